"""rhobust attack."""

from typing import Any

from rhobust.commands.options import print_table
from rhobust.commands.target import AttackTargetOptions, evaluation_command
from rhobust.evaluation import Attack
from rhobust.formatting import format_interval
from rhobust.measurements import contradictions
from rhobust.records import Record, finished_records


def show(result: dict[str, Any]) -> None:
    """Print robust accuracy over radii."""
    curve = result["summary"]["robust_accuracy"]
    voted = "undecided" in curve[0]
    rows = [
        [f"{at['radius']:g}", f"{at['accuracy']:.3f}", format_interval(at["low"], at["high"], 3), str(at["n"])]
        + ([f"{at['undecided']}", format_interval(at["least"], at["most"], 3)] if voted else [])
        for at in curve
    ]
    columns = ["radius", "robust accuracy", "95% interval", "n"]
    print_table(columns + (["votes not significant", "if all were decided"] if voted else []), rows)


def contradicting(record: Record, _: AttackTargetOptions) -> dict[str, Any]:
    """Certificates that the attack contradicts; one may have been made after the attack."""
    return {"contradictions": contradictions([record, *finished_records(record.path.parent, "certify")])}


COMMAND = evaluation_command(
    Attack,
    show,
    target=AttackTargetOptions,
    after=contradicting,
    failure=lambda result: " ".join(result["contradictions"]) or None,
)
