"""rhobust noise."""

from dataclasses import dataclass
from typing import Any

from rhobust.attacks import AnyAttack
from rhobust.commands.choice import SeveralOptions
from rhobust.commands.options import Common, CommonOptions, print_table, print_warnings, record_document
from rhobust.evaluation import with_and_without_noise


@dataclass(frozen=True)
class Noise:
    """Attack runs twice, tested with noise and without, as in the paper's figure 1(a)."""

    several: SeveralOptions
    radii: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    """Increasing radii in units of the [0, 1] pixel range."""
    attack: AnyAttack | None = None
    """One attack for both tests; where none is given, EOT with noise and PGD without."""
    votes: int = 100
    """Noise draws that judge a smoothed prediction."""
    common: CommonOptions = Common()

    def run(self) -> dict[str, Any]:
        pairs = with_and_without_noise(
            self.several.targets(self.common),
            self.radii,
            attack=self.attack,
            votes=self.votes,
            **self.several.sample(self.common),
        )
        return {
            "runs": [
                {"run": str(folder), "with": record_document(noisy), "without": record_document(plain)}
                for folder, (noisy, plain) in zip(self.several.runs, pairs, strict=True)
            ]
        }

    def show(self, result: dict[str, Any]) -> None:
        rows = [
            [run["run"], way, *(f"{at['accuracy']:.3f}" for at in run[way]["summary"]["robust_accuracy"])]
            for run in result["runs"]
            for way in ("with", "without")
        ]
        print_table(["run", "tested", *(f"{radius:g}" for radius in self.radii)], rows, left=2)
        for run in result["runs"]:
            for way in ("with", "without"):
                print_warnings([f"{run['run']}, {way} noise: {w}" for w in run[way]["summary"]["warnings"]])

    def failure(self, result: dict[str, Any]) -> str | None:
        found = [text for run in result["runs"] for text in run["with"]["summary"]["contradictions"]]
        return " ".join(found) or None


COMMAND = Noise
