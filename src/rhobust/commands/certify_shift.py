"""rhobust certify-shift."""

from dataclasses import dataclass
from typing import Any

from rhobust.commands.choice import ChoiceOptions
from rhobust.commands.options import Common, CommonOptions, print_table, record_document
from rhobust.evaluation import certify_shift_target
from rhobust.rounding import rounded


@dataclass(frozen=True)
class CertifyShift:
    """Certify the accuracy that holds for every distribution within W2 distance eps of the data's."""

    choice: ChoiceOptions
    eps: tuple[float, ...] = (0.0, 0.05, 0.1, 0.25, 0.5)
    """Increasing W2 radii; the statement holds for all of them at once."""
    draws: int = 20
    """Noise draws a test point; more are needed as eps / sigma grows."""
    alpha: float = 1e-3
    """Probability that the statement is false."""
    common: CommonOptions = Common()

    def run(self) -> dict[str, Any]:
        target = self.choice.target(self.common)
        record = certify_shift_target(
            target,
            eps=self.eps,
            draws=self.draws,
            alpha=self.alpha,
            **self.choice.sample(self.common),
        )
        return record_document(record)

    def show(self, result: dict[str, Any]) -> None:
        summary = result["summary"]
        rows = [[f"{at['eps']:g}", rounded(at["certified_accuracy"], 3, "down")] for at in summary["curve"]]
        print_table(["eps", "certified accuracy"], rows)
        print(f"measured under noise {summary['accuracy_under_noise']:.3f} ({summary['points']} points)")
        print(summary["statement"])
        print(result["record"])


COMMAND = CertifyShift
