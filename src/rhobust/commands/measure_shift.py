"""rhobust measure-shift."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.certificates import Dtype
from rhobust.commands.choice import Choice
from rhobust.commands.options import Common, CommonOptions, print_table, print_warnings, record_document
from rhobust.data import Pairs, load_pairs
from rhobust.evaluation import measure_pairs, measure_target, record_pairs
from rhobust.formatting import format_interval, format_number


@dataclass(frozen=True)
class MeasureShift:
    """Measure how far a change moves images, and certify the accuracy of a network after it.

    BEFORE and AFTER hold the same images before and after re-encoding, resizing, denoising, another sensor: two
    folders, paired by name without suffix, or two .npy or .npz files, paired by place.
    """

    before: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BEFORE")]
    """The images as they were; in one subfolder a class, or with y in the .npz file, they have labels."""
    after: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="AFTER")]
    """The same images after the change."""
    run_folder: Annotated[Path | None, tyro.conf.arg(name="run")] = None
    """A run folder whose accuracy after the change is certified; or give --model, --weights, --data and --out."""
    labels: Path | None = None
    """Class numbers of images in arrays, an .npy file. Without labels the run's test data are certified."""
    model: str | None = None
    """The user's own network, package.module:factory."""
    weights: Path | None = None
    """Its weights, a safetensors file."""
    out: Path | None = None
    """Folder for the record, where no run is given."""
    sigma: float | None = None
    """Smoothing noise; the run's own where none is given."""
    data: str | None = None
    """Data set of the network, which names its classes; the run's own where none is given."""
    root: Path | None = None
    """Where the data sets lie."""
    draws: int = 20
    """Noise draws an image; more are needed as eps / sigma grows."""
    alpha: float = 1e-3
    """Probability that the statement is false."""
    dtype: Dtype | None = None
    """Arithmetic of the network, part of what is certified; the device's own where none is given."""
    seed: int = 0
    """Names the noise."""
    common: CommonOptions = Common()

    def run(self) -> dict[str, Any]:
        if self.run_folder is None and self.model is None:
            return self._measured()
        target = Choice(
            run=self.run_folder,
            model=self.model,
            weights=self.weights,
            out=self.out,
            sigma=self.sigma,
            data=self.data,
            root=self.root,
        ).target(self.common)
        pairs = self._pairs(channels=target.data.shape[0])
        record = measure_target(
            target,
            pairs,
            draws=self.draws,
            alpha=self.alpha,
            dtype=self.dtype,
            seed=self.seed,
            progress=self.common.progress,
        )
        return record_document(record)

    def _measured(self) -> dict[str, Any]:
        """What needs no network: the distances alone."""
        for name in ("labels", "weights", "sigma", "data", "dtype"):
            if getattr(self, name) is not None:
                raise ValueError(f"--{name} must come with a network, but neither --run nor --model was given")
        pairs = self._pairs(channels=None)
        if self.out is not None:
            return record_document(record_pairs(pairs, self.out, alpha=self.alpha))
        shift = measure_pairs(pairs, alpha=self.alpha)
        return {"record": None, "kind": "measure-shift", "settings": {}, "summary": {"shift": shift}}

    def _pairs(self, channels: int | None) -> Pairs:
        return load_pairs(self.before, self.after, labels=self.labels, channels=channels, progress=self.common.progress)

    def show(self, result: dict[str, Any]) -> None:
        summary = result["summary"]
        shift, certificate = summary["shift"], summary.get("certificate")
        rows = [
            [name, distance, format_number(shift[key], 4, "up")]
            for name, distance, key in (
                ("root mean square (eps)", "W2", "eps"),
                ("mean", "W1", "mean_distance"),
                ("largest", "W-infinity", "largest_distance"),
            )
        ]
        print_table([f"distance of {shift['pairs']} pairs", "bounds", "measured"], rows, left=2)
        print(shift["statement"])
        if certificate is not None:
            rows = [
                ["certified after the change", format_number(certificate["certified_accuracy"], 3, "down"), "proved"]
            ]
            for when in ("after", "before"):
                if (share := summary[when]) is not None:
                    interval = format_interval(share["low"], share["high"], 3)
                    shown = format_number(share["accuracy"], 3, "nearest")
                    rows.append([f"measured {when} the change", shown, f"estimate, 95% {interval}"])
            print_table(["accuracy with one noisy vote", "", ""], rows)
            print(certificate["statement"])
            print_warnings(summary.get("warnings", []))
        if result["record"] is not None:
            print(result["record"])


COMMAND = MeasureShift
