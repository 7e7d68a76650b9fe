"""rhobust certify."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rhobust.certificates import Dtype, NoiseKind, ProcedureName
from rhobust.commands.choice import ChoiceOptions
from rhobust.commands.options import Common, CommonOptions, print_table, print_warnings, record_document
from rhobust.evaluation import certify_target
from rhobust.formatting import format_distance, format_number
from rhobust.measurements import write_tsv


@dataclass(frozen=True)
class Certify:
    """Certify the L2 radius within which each test image keeps its class."""

    choice: ChoiceOptions
    radii: tuple[float, ...] | None = None
    """Increasing radii to decide; an image stops drawing when it is known which of them hold."""
    procedure: ProcedureName | None = None
    """fixed: a fixed number of noise samples; sequential: a test over the radii that stops early; two-stage: as many
    samples as the tolerance needs. Default: as radii or tolerance ask."""
    tolerance: float | None = None
    """two-stage: how much smaller than with n draws a radius may be expected to be; 0.05 where none is given."""
    n0: int | None = None
    """Draws that select the class: 100, or 500 of two-stage, which also plans with them."""
    n: int = 100_000
    """Draws that count it, at most."""
    alpha: float = 1e-3
    """Probability that one image's certificate is false."""
    noise: NoiseKind = "grid"
    """Exact integer noise on the 8-bit grid, or float32 noise."""
    dtype: Dtype | None = None
    """Arithmetic of the network, part of what is certified; the device's own where none is given."""
    compile: bool = False
    """Compile the network, which pays on a GPU; part of what is certified too."""
    tsv: Path | None = None
    """Also write the table of Cohen et al. here."""
    common: CommonOptions = Common()

    def run(self) -> dict[str, Any]:
        target = self.choice.target(self.common)
        record = certify_target(
            target,
            radii=self.radii,
            procedure=self.procedure,
            tolerance=self.tolerance,
            n0=self.n0,
            n=self.n,
            alpha=self.alpha,
            noise=self.noise,
            dtype=self.dtype,
            compiled=self.compile,
            **self.choice.sample(self.common),
        )
        if self.tsv is not None:
            write_tsv(record, self.tsv)
        return record_document(record)

    def show(self, result: dict[str, Any]) -> None:
        summary = result["summary"]
        _, lecuyer, li = summary["theorems"]
        rows = [
            [
                format_distance(at["radius"]),
                format_number(at["accuracy"], 3, "down"),
                format_number(at["at_least"], 3, "down"),
                format_number(private, 3, "down"),
                format_number(divergent, 3, "down"),
                str(at["n"]),
            ]
            for at, private, divergent in zip(
                summary["certified_accuracy"],
                lecuyer["certified_accuracy"],
                li["certified_accuracy"],
                strict=True,
            )
        ]
        print_table(
            ["radius", "certified accuracy", "for all, at least", "by Lecuyer et al.", "by Li et al.", "n"], rows
        )
        print(f"average certified radius {format_number(summary['average_certified_radius'], 4, 'down')}")
        print(f"draws an image {summary['mean_draws']:.0f}, {summary['abstained']} abstentions")
        print(summary["statement"])
        if summary["deduction"] is not None:
            print(
                f"for images between the 8-bit levels subtract {format_number(summary['deduction'], 4, 'up')} from"
                " a radius"
            )
        print_warnings(summary["warnings"])
        print(result["record"])


COMMAND = Certify
