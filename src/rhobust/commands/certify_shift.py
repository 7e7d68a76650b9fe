"""rhobust certify-shift."""

from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from rhobust.certificates import Dtype, ShiftClaim
from rhobust.commands.choice import ChoiceOptions
from rhobust.commands.options import Common, CommonOptions, print_table, print_warnings, record_document
from rhobust.evaluation import certify_shift_target
from rhobust.formatting import format_distance, format_number

ClaimOptions = Annotated[ShiftClaim, tyro.conf.arg(name="")]


@dataclass(frozen=True)
class CertifyShift:
    """Certify the accuracy that holds for every distribution within transport distance eps of the data's."""

    choice: ChoiceOptions
    claim: ClaimOptions = ShiftClaim()
    eps: tuple[float, ...] = (0.0, 0.05, 0.1, 0.25, 0.5)
    """Increasing sizes of the shift; the statement holds for all of them at once."""
    draws: int = 20
    """Noise draws a test point; more are needed as eps / sigma grows, and hundreds for the majority vote."""
    alpha: float = 1e-3
    """Probability that the statement is false."""
    baselines: bool = False
    """Show other certificates from the same draws too: W1 and W-infinity, Kumar et al., Cohen's certified accuracy."""
    dtype: Dtype | None = None
    """Arithmetic of the network, part of what is certified; the device's own where none is given."""
    common: CommonOptions = Common()

    def run(self) -> dict[str, Any]:
        target = self.choice.target(self.common)
        record = certify_shift_target(
            target,
            eps=self.eps,
            draws=self.draws,
            alpha=self.alpha,
            claim=self.claim,
            baselines=self.baselines,
            dtype=self.dtype,
            **self.choice.sample(self.common),
        )
        return record_document(record)

    def show(self, result: dict[str, Any]) -> None:
        summary, settings = result["summary"], result["settings"]
        accuracy = settings["loss"] == "0-1"
        name, way = ("certified_accuracy", "down") if accuracy else ("certified_loss", "up")
        columns = ["eps", name.replace("_", " ")]
        rows = [[format_distance(at["eps"]), format_number(at[name], 3, way)] for at in summary["curve"]]
        for other in summary.get("beside", []):
            columns.append(f"{other['name']} {other['cost']} {other['classifier']}")
            for row, value in zip(rows, other["certified_accuracy"], strict=True):
                row.append(format_number(value, 3, "down"))
        print_table(columns, rows)
        measured = summary["accuracy_under_noise"] if accuracy else summary["loss_under_noise"]
        print(f"measured under noise {measured:.3f} ({summary['points']} points)")
        print(summary["statement"])
        print_warnings(summary.get("warnings", []))
        print(result["record"])


COMMAND = CertifyShift
