"""rhobust transfer."""

from dataclasses import dataclass
from typing import Any

from rhobust.attacks import PGD, AnyAttack
from rhobust.commands.choice import SeveralOptions
from rhobust.commands.options import Common, CommonOptions, print_table, print_warnings, record_document
from rhobust.evaluation import surprising_transfers, transfer_matrix
from rhobust.evaluation.judging import Scored


@dataclass(frozen=True)
class Transfer:
    """Attack each of several runs and judge the attacked images by every one of them."""

    several: SeveralOptions
    radii: tuple[float, ...] = (0.0, 0.5)
    """Increasing radii in units of the [0, 1] pixel range, of the attack's norm."""
    attack: AnyAttack = PGD()
    """The attack and its hyper-parameters."""
    scored: Scored | None = None
    """Judge by the base networks or by votes of the smoothed ones; smoothed where a run has a noise, if not said."""
    votes: int = 100
    """Noise draws that judge a smoothed prediction."""
    common: CommonOptions = Common()

    def run(self) -> dict[str, Any]:
        records = transfer_matrix(
            self.several.targets(self.common),
            self.attack,
            self.radii,
            scored=self.scored,
            votes=self.votes,
            **self.several.sample(self.common),
        )
        return {
            "runs": [str(folder) for folder in self.several.runs],
            "records": [record_document(record) for record in records],
            "warnings": surprising_transfers(records),
        }

    def show(self, result: dict[str, Any]) -> None:
        names = result["runs"]
        for place, radius in enumerate(self.radii):
            print(f"radius {radius:g}: robust accuracy of the column's run, attacked on the row's")
            rows = [
                [name, *(f"{to['robust_accuracy'][place]['accuracy']:.3f}" for to in record["summary"]["targets"])]
                for name, record in zip(names, result["records"], strict=True)
            ]
            print_table(["attacked on", *names], rows)
        scored = [to["scored"] for to in result["records"][0]["summary"]["targets"]]
        print("judged: " + ", ".join(f"{name} {way}" for name, way in zip(names, scored, strict=True)))
        print_warnings(
            [*(w for record in result["records"] for w in record["summary"]["warnings"]), *result["warnings"]]
        )
        for record in result["records"]:
            print(record["record"])


COMMAND = Transfer
