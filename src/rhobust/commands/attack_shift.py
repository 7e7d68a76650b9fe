"""rhobust attack-shift."""

from typing import Any

from rhobust.commands.options import print_table
from rhobust.commands.target import TargetOptions, evaluation_command
from rhobust.evaluation import AttackShift
from rhobust.formatting import format_distance, format_interval, format_number
from rhobust.records import Record, finished_records


def show(result: dict[str, Any]) -> None:
    """Print the accuracy that the attack leaves at each eps, with the certified floor where there is one."""
    floors = {point["eps"]: point["certified_accuracy"] for point in result["floor"]}
    rows = [
        [
            format_distance(at["eps"]),
            format_number(at["accuracy"], 3, "nearest"),
            format_interval(at["low"], at["high"], 3),
            format_number(at["perturbed"], 3, "nearest"),
            format_number(floors[at["eps"]], 3, "down") if at["eps"] in floors else "",
        ]
        for at in result["summary"]["curve"]
    ]
    print_table(["eps", "accuracy left", "95% interval", "share perturbed", "certified floor"], rows)
    print(result["summary"]["statement"])


def with_floor(record: Record, _: TargetOptions) -> dict[str, Any]:
    """The certified curve of the same classifier and data in the folder, W2 and from the most test points."""
    votes = record.settings["votes"]
    found = [
        one
        for one in finished_records(record.path.parent, "certify-shift")
        if all(one.settings.get(key) == record.settings[key] for key in ("model_hash", "data", "split", "sigma"))
        and (one.settings.get("loss", "0-1"), one.settings.get("cost", "w2")) == ("0-1", "w2")
        and one.settings.get("classifier") != "majority"
        and (one.settings.get("votes") or 1) == votes
    ]
    best = max(found, key=lambda one: len(one.rows), default=None)
    return {"floor": [] if best is None or best.summary is None else best.summary["curve"]}


COMMAND = evaluation_command(AttackShift, show, after=with_floor)
