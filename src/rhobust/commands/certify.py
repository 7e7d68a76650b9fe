"""rhobust certify."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.certificates import Repeats, VoteCounter, certify_stream, check_batch_independence, scope_of_validity
from rhobust.commands.images import OpenedImages, open_images, shown_images
from rhobust.commands.options import Common, print_table
from rhobust.commands.target import TargetOptions, evaluation_command
from rhobust.data import SUFFIXES
from rhobust.evaluation import Certify, Evaluation
from rhobust.files import check_output
from rhobust.formatting import format_confidence, format_distance, format_number
from rhobust.measurements import write_tsv
from rhobust.records import Record


def show(result: dict[str, Any]) -> None:
    """Print certified accuracy over radii, by three theorems from the same counts; or the radii of image files."""
    if "certificates" in result:
        _show_images(result)
        return
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
    abstained = summary["abstained"]
    print(f"noise samples per image {summary['mean_draws']:.0f}, {abstained} abstention{'s' * (abstained != 1)}")
    print(summary["statement"])
    _show_deduction(summary["deduction"])


def _show_images(result: dict[str, Any]) -> None:
    rows = [
        [
            one["image"],
            "abstains" if one["class"] is None else one["class"],
            f"{one['count']} of {one['n']}",
            format_distance(one["radius"]) if one["class"] is not None else "–",
        ]
        for one in result["certificates"]
    ]
    print_table(["image", "class", "votes", "radius"], rows, left=2)
    print(result["statement"])
    _show_deduction(result["deduction"])


def _show_deduction(value: float | None) -> None:
    if value is not None:
        print(f"for images between the 8-bit levels subtract {format_number(value, 4, 'up')} from a radius")


@dataclass(frozen=True)
class CertifyOptions(TargetOptions):
    """Which network is certified, on test data or at image files, and where its table goes."""

    images: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[IMAGE ...]")] = ()
    """Image files to certify instead of test data, without a record; with --model, image files alone."""
    tsv: Path | None = None
    """Also write the table of Cohen et al. here."""

    def check(self) -> None:
        super().check()
        if self.tsv is not None:
            check_output("tsv", self.tsv)

    def without_record(self, evaluation: Evaluation, common: Common) -> dict[str, Any] | None:
        """The certificates of image files; None where test data are certified."""
        assert isinstance(evaluation, Certify)
        folder, files = self.run, self.images
        if folder is not None and folder.suffix.lower() in SUFFIXES and not folder.is_dir():
            folder, files = None, (folder, *files)
        if not files:
            return None
        unused: dict[str, Any] = {"out": self.out, "tsv": self.tsv, "limit": evaluation.limit}
        unused |= {"unseen": self.unseen or None, "stride": None if evaluation.stride == 1 else evaluation.stride}
        unused |= {"split": None if self.split == "test" else self.split}
        for name, value in unused.items():
            if value is not None:
                raise ValueError(f"--{name} must be left out with image files, got {value}")
        return certify_images(evaluation, open_images(self, folder, files, common))


def certify_images(evaluation: Certify, opened: OpenedImages) -> dict[str, Any]:
    """The certificates of image files, one by one."""
    smoothing = opened.smoothing(
        seed=evaluation.seed, dtype=evaluation.dtype, compiled=evaluation.compiled, noise=evaluation.noise
    )
    procedure, alpha = evaluation.certification(), evaluation.alpha
    counter = VoteCounter(opened.model, opened.images, smoothing, Repeats())
    warnings = [*opened.warnings, *check_batch_independence(counter)]
    places = [(place, place) for place in range(len(opened.files))]
    found = certify_stream(counter, procedure, places, alpha=alpha)
    certificates = [
        {
            "image": str(path),
            "prediction": one.prediction,
            "class": opened.name(one.prediction),
            "radius": one.radius,
            "count": one.count,
            "n": one.n,
            "p_lower": one.p_lower,
            "selected": opened.name(one.selected),
        }
        for path, one in zip(opened.files, found, strict=True)
    ]
    samples = "" if procedure.name == "fixed" else "up to "
    shape = "x".join(map(str, opened.images.shape[1:]))
    statement = (
        f"For each image alone, with probability {format_confidence(alpha)} over {samples}{procedure.n:,} noise"
        f" samples, the smoothed classifier with noise {opened.sigma:g} predicts the class at every point of shape"
        f" {shape} within L2 distance radius, which is rounded down.{scope_of_validity(smoothing.noise)}"
    )
    return {
        **shown_images(opened, smoothing),
        "procedure": procedure.name,
        "n0": procedure.n0,
        "n": procedure.n,
        "alpha": alpha,
        "certificates": certificates,
        "statement": statement,
        "deduction": math.sqrt(math.prod(opened.images.shape[1:])) / 510 if smoothing.noise == "grid" else None,
        "warnings": warnings,
    }


def write_table(record: Record, options: CertifyOptions) -> dict[str, Any]:
    """Write the table of Cohen et al. where it is asked for."""
    if options.tsv is not None:
        write_tsv(record, options.tsv)
    return {}


COMMAND = evaluation_command(Certify, show, target=CertifyOptions, after=write_table, diagnosed=True)
