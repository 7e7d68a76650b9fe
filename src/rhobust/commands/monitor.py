"""rhobust monitor."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rhobust.commands.measure_shift import show_floors
from rhobust.commands.options import Writing, WritingOptions, print_trained, print_warnings, record_document
from rhobust.commands.target import FLAT, TargetOptions
from rhobust.data import load_pairs
from rhobust.evaluation import MeasureShift, run
from rhobust.formatting import format_distance, format_number


@dataclass(frozen=True)
class MonitorCommand:
    """Certify the accuracy on today's images from pairs without labels, and fail where it is below a floor.

    The pairs are the same scenes as reference images and as they come today: through the new encoder, sensor or
    pipeline. Labels of the reference images are used where they have them, else the run's labelled test data. Exit code
    1 means that the floor is not certified, which does not prove that it is not kept.
    """

    reference: Path | None = None
    """The images before the change: a folder, or an .npy or .npz file."""
    changed: Path | None = None
    """The same images after it, paired by name without suffix, or by place."""
    at_least: float = 0.9
    """The floor: the accuracy that must be certified at every eps."""
    labels: Path | None = None
    """Class numbers of the reference images in arrays, an .npy file."""
    target: Annotated[TargetOptions, FLAT] = field(default_factory=TargetOptions)
    evaluation: Annotated[MeasureShift, FLAT] = field(default_factory=lambda: MeasureShift(eps=(0.0,)))
    common: WritingOptions = Writing()

    def __post_init__(self) -> None:
        if not 0 <= self.at_least <= 1:
            raise ValueError(f"at_least must be in [0, 1], got {self.at_least}")

    def run(self) -> dict[str, Any]:
        self.target.check()
        if self.reference is None or self.changed is None:
            raise ValueError("--reference and --changed must be given, the same images before and after the change")
        target = self.target.target(self.common)
        pairs = load_pairs(
            self.reference,
            self.changed,
            labels=self.labels,
            channels=target.data.shape[0],
            progress=self.common.progress,
        )
        record = run(self.evaluation, target.with_pairs(pairs), progress=self.common.progress, wait=self.common.wait)
        return {
            **record_document(record),
            "at_least": self.at_least,
            "passed": not _below(record.summary, self.at_least),
        }

    def show(self, result: dict[str, Any]) -> None:
        summary = result["summary"]
        show_floors(result)
        print_trained(result)
        print_warnings(summary.get("warnings", []))
        print("passed" if result["passed"] else "failed")
        print(result["record"])

    def failure(self, result: dict[str, Any]) -> str | None:
        """Why the images are not known to be classified well enough."""
        if not (below := _below(result["summary"], self.at_least)):
            return None
        worst = below[-1]
        value = format_number(worst["certified_accuracy"], 4, "down")
        where = f" within W2 distance {format_distance(worst['eps'])} of them" if worst["eps"] else ""
        return f"the accuracy on the changed images must be certified >= {self.at_least:g}{where}, got {value}"


def _below(summary: dict[str, Any] | None, floor: float) -> list[dict[str, Any]]:
    """The points of the certified curve that are below the floor."""
    if summary is None or "recentred" not in summary:
        raise ValueError("the record must have a certificate of the changed data, but it is of an older release")
    return [point for point in summary["recentred"]["curve"] if point["certified_accuracy"] < floor]


COMMAND = MonitorCommand
