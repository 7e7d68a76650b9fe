"""rhobust attack."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rhobust.attacks import EOT, AnyAttack
from rhobust.commands.choice import ChoiceOptions
from rhobust.commands.options import Common, CommonOptions, print_table, print_warnings, record_document
from rhobust.evaluation import attack_target, source_from_run
from rhobust.evaluation.judging import Scored
from rhobust.formatting import format_interval
from rhobust.measurements import contradictions
from rhobust.records import finished_records


@dataclass(frozen=True)
class Attack:
    """Attack a run over radii and say how far the numbers can be trusted."""

    choice: ChoiceOptions
    radii: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Increasing radii in units of the [0, 1] pixel range, of the attack's norm."""
    attack: AnyAttack = EOT()
    """The attack and its hyper-parameters."""
    source: Path | None = None
    """A run folder whose network is attacked in this one's place: a transfer attack."""
    scored: Scored | None = None
    """Judge by the base network or by a vote of the smoothed one; as the attack sees it where none is given."""
    votes: int = 100
    """Noise draws that judge a smoothed prediction."""
    nested: bool = True
    """What breaks at a radius is broken at every larger one; without it every example is attacked at every radius."""
    probe: bool = True
    """Attack a few examples again, harder, to see whether the attack was strong enough; without it nothing looks."""
    fast: bool = False
    """Let ascents climb a bf16 copy of the network, and let it vote under noise, which pays on a GPU."""
    common: CommonOptions = Common()

    def run(self) -> dict[str, Any]:
        target = self.choice.target(self.common)
        record = attack_target(
            target,
            self.attack,
            self.radii,
            source=None if self.source is None else source_from_run(self.source, target),
            scored=self.scored,
            votes=self.votes,
            nested=self.nested,
            probe=self.probe,
            fast=self.fast,
            **self.choice.sample(self.common),
        )
        # A certificate may have come after the attack was done, so both are compared each time.
        found = contradictions([record, *finished_records(record.path.parent, "certify")])
        return {**record_document(record), "contradictions": found}

    def show(self, result: dict[str, Any]) -> None:
        curve = result["summary"]["robust_accuracy"]
        voted = "undecided" in curve[0]
        rows = [
            [f"{at['radius']:g}", f"{at['accuracy']:.3f}", format_interval(at["low"], at["high"], 3), str(at["n"])]
            + ([f"{at['undecided']}", format_interval(at["least"], at["most"], 3)] if voted else [])
            for at in curve
        ]
        columns = ["radius", "robust accuracy", "95% interval", "n"]
        print_table(columns + (["undecided votes", "if decided"] if voted else []), rows)
        print_warnings(result["summary"]["warnings"])
        print(result["record"])

    def failure(self, result: dict[str, Any]) -> str | None:
        return " ".join(result["contradictions"]) or None


COMMAND = Attack
