"""rhobust certify."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rhobust.commands.options import print_table
from rhobust.commands.target import TargetOptions, evaluation_command
from rhobust.evaluation import Certify
from rhobust.files import check_output
from rhobust.formatting import format_distance, format_number
from rhobust.measurements import write_tsv
from rhobust.records import Record


def show(result: dict[str, Any]) -> None:
    """Print certified accuracy over radii, by three theorems from the same counts."""
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
            summary["certified_accuracy"], lecuyer["certified_accuracy"], li["certified_accuracy"], strict=True
        )
    ]
    print_table(["radius", "certified accuracy", "for all, at least", "by Lecuyer et al.", "by Li et al.", "n"], rows)
    print(f"average certified radius {format_number(summary['average_certified_radius'], 4, 'down')}")
    print(f"noise samples per image {summary['mean_draws']:.0f}, {summary['abstained']} abstentions")
    print(summary["statement"])
    if summary["deduction"] is not None:
        deduction = format_number(summary["deduction"], 4, "up")
        print(f"for images between the 8-bit levels subtract {deduction} from a radius")


@dataclass(frozen=True)
class CertifyOptions(TargetOptions):
    """Which network is certified, and where its table goes."""

    tsv: Path | None = None
    """Also write the table of Cohen et al. here."""

    def check(self) -> None:
        super().check()
        if self.tsv is not None:
            check_output("tsv", self.tsv)


def write_table(record: Record, options: CertifyOptions) -> dict[str, Any]:
    """Write the table of Cohen et al. where it is asked for."""
    if options.tsv is not None:
        write_tsv(record, options.tsv)
    return {}


COMMAND = evaluation_command(Certify, show, target=CertifyOptions, after=write_table)
