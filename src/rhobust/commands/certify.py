"""rhobust certify."""

from dataclasses import dataclass
from typing import Any

from rhobust.commands.choice import ChoiceOptions
from rhobust.commands.options import Common, CommonOptions, print_table, record_document
from rhobust.evaluation import certify_target
from rhobust.rounding import rounded


@dataclass(frozen=True)
class Certify:
    """Certify the L2 radius within which each test image keeps its class."""

    choice: ChoiceOptions
    radii: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Radii of the certified accuracy that is shown."""
    n0: int = 100
    """Draws that select the class."""
    n: int = 100_000
    """Draws that count it."""
    alpha: float = 1e-3
    """Probability that one image's certificate is false."""
    common: CommonOptions = Common()

    def run(self) -> dict[str, Any]:
        target = self.choice.target(self.common)
        record = certify_target(
            target,
            radii=self.radii,
            n0=self.n0,
            n=self.n,
            alpha=self.alpha,
            **self.choice.sample(self.common),
        )
        return record_document(record)

    def show(self, result: dict[str, Any]) -> None:
        rows = [
            [f"{at['radius']:g}", rounded(at["accuracy"], 3, "down"), str(at["n"])]
            for at in result["summary"]["certified_accuracy"]
        ]
        print_table(["radius", "certified accuracy", "n"], rows)
        print(f"average certified radius {rounded(result['summary']['average_certified_radius'], 4, 'down')}")
        print(result["record"])


COMMAND = Certify
