"""rhobust measure-shift."""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.commands.options import (
    Counting,
    CountingOptions,
    print_claim,
    print_table,
    print_trained,
    print_warnings,
    record_document,
)
from rhobust.commands.target import FLAT, TargetOptions
from rhobust.data import CORRUPTIONS, SEVERITIES, Pairs, load_pairs, pair_distances
from rhobust.evaluation import (
    Corruptions,
    Evaluation,
    MeasureDistance,
    MeasureShift,
    Target,
    Untargeted,
    distance_summary,
    run,
)
from rhobust.formatting import format_distance, format_interval, format_number
from rhobust.measurements.corruptions import corruptions_in_words


@dataclass(frozen=True)
class ChangedNetwork(TargetOptions):
    """Which network is certified after the change; none is needed to measure the change alone."""

    run: Annotated[Path | None, tyro.conf.arg(name="run")] = None
    """A run folder whose accuracy after the change is certified; or give --model, --data and --out."""


@dataclass(frozen=True)
class MeasureShiftCommand:
    """Measure how far a change moves images, and certify the accuracy of a network after it.

    BEFORE and AFTER hold the same images before and after re-encoding, resizing, denoising, another sensor: two
    folders, paired by name without suffix, or two .npy or .npz files, paired by place. With --corruptions the changes
    are built in: rhobust measure-shift RUN --corruptions.
    """

    before: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="BEFORE")] = None
    """The images before the change; in one subfolder per class, or with y in the .npz file, they have labels. With
    --corruptions: the run folder."""
    after: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="AFTER")] = None
    """The same images after the change."""
    corruptions: tuple[str, ...] | None = None
    """Measure common corruptions of the run's test data instead: their names, or none for all of them."""
    severities: tuple[int, ...] = SEVERITIES
    """Severities of the corruptions, out of 1 to 5."""
    labels: Path | None = None
    """Class numbers of images in arrays, an .npy file. Without labels the run's test data are certified."""
    network: Annotated[ChangedNetwork, FLAT] = field(default_factory=ChangedNetwork)
    evaluation: Annotated[MeasureShift, FLAT] = field(default_factory=MeasureShift)
    common: CountingOptions = Counting()

    def run(self) -> dict[str, Any]:
        self.network.check()
        if self.corruptions is not None:
            return self._corruptions(self.corruptions)
        if self.severities != SEVERITIES:
            raise ValueError(f"severities must come with --corruptions, got {' '.join(map(str, self.severities))}")
        if self.before is None or self.after is None:
            raise ValueError("the images before and after a change must be given, or a run folder with --corruptions")
        if self.network.run is None and self.network.model is None:
            return self._distances()
        target = self.network.target(self.common)
        pairs = self._pairs(channels=target.data.shape[0])
        return self._run(self.evaluation, target.with_pairs(pairs))

    def _corruptions(self, names: tuple[str, ...]) -> dict[str, Any]:
        if self.after is not None or self.labels is not None or (self.before and self.network.run):
            raise ValueError("--corruptions must come with one run folder, got other images or labels too")
        known = {one.name for one in fields(Corruptions)}
        shared = {one.name: getattr(self.evaluation, one.name) for one in fields(self.evaluation) if one.name in known}
        evaluation = Corruptions(corruptions=names or tuple(CORRUPTIONS), severities=self.severities, **shared)
        network = self.network if self.before is None else replace(self.network, run=self.before)
        return self._run(evaluation, network.target(self.common))

    def _distances(self) -> dict[str, Any]:
        """What needs no network: the distances alone."""
        given = {"labels": self.labels, "dtype": self.evaluation.dtype}
        given |= {name: getattr(self.network, name) for name in ("weights", "mean", "std", "sigma", "data")}
        given |= {"split": None if self.network.split == "test" else self.network.split}
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"--{name} must come with a network, but neither --run nor --model was given")
        pairs, alpha = self._pairs(channels=None), self.evaluation.alpha
        if self.network.out is not None:
            where = Untargeted(self.network.out, pairs=pairs)
            return self._run(MeasureDistance(alpha=alpha), where)
        shift = distance_summary(pair_distances(pairs.before, pairs.after), pairs, alpha)
        return {"record": None, "kind": "measure-shift", "settings": {}, "summary": {"shift": shift}}

    def _run(self, evaluation: Evaluation, target: Target | Untargeted) -> dict[str, Any]:
        common = self.common
        record = run(evaluation, target, executor=common.chosen(), progress=common.progress, wait=common.wait)
        return record_document(record)

    def _pairs(self, channels: int | None) -> Pairs:
        assert self.before is not None
        assert self.after is not None
        return load_pairs(self.before, self.after, labels=self.labels, channels=channels, progress=self.common.progress)

    def show(self, result: dict[str, Any]) -> None:
        summary = result["summary"]
        if result["kind"] == "corruptions":
            _show_corruptions(result)
            print(result["record"])
            return
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
        alone = {**result, "record": None}
        print_claim(shift["statement"], alone, shift["pairs"])
        if certificate is not None:
            show_floors(result)
            print_claim(certificate["statement"], result, certificate["points"])
            print_trained(result)
            print_warnings(summary.get("warnings", []))
        if result["record"] is not None:
            print(result["record"])


def show_floors(result: dict[str, Any]) -> None:
    """Print the two floors after a change, what was measured, and the sentence of the floor on the changed data."""
    summary = result["summary"]
    certificate, around = summary["certificate"], summary.get("recentred")
    rows = []
    for point in [] if around is None else around["curve"]:
        where = f"within W2 {format_distance(point['eps'])} of the changed data" if point["eps"] else "the changed data"
        rows.append([where, format_number(point["certified_accuracy"], 3, "down"), f"proved, by {point['source']}"])
    floor = format_number(certificate["certified_accuracy"], 3, "down")
    rows.append(["after every change that moves images no further", floor, "proved, by distances"])
    for when in ("after", "before"):
        if (share := summary[when]) is not None:
            interval = format_interval(share["low"], share["high"], 3)
            shown = format_number(share["accuracy"], 3, "nearest")
            rows.append([f"one vote, measured {when} the change", shown, f"estimate, 95% {interval}"])
    print_table(["accuracy", "", ""], rows)
    if around is not None:
        print_claim(around["curve"][0]["statement"], result, certificate["points"])


_DISTANCES = {"mean_distance": "mean L2", "eps": "eps (W2)", "eps_capped": "at most"}
"""Columns of a corruption's distances."""


def _show_corruptions(result: dict[str, Any]) -> None:
    summary = result["summary"]
    smoothed = "noisy" in summary["clean"]
    start: dict[str, Any] = {"corruption": "none", "severity": "", **dict.fromkeys(_DISTANCES, 0.0), **summary["clean"]}
    rows = []
    for point in [start, *summary["table"]]:
        eps = [format_number(point[key], 3, "up") for key in _DISTANCES]
        row = [
            point["corruption"],
            str(point["severity"]),
            *eps,
            format_number(point["base"]["accuracy"], 3, "nearest"),
        ]
        if smoothed:
            certified = point.get("certified_accuracy")
            interval = format_interval(point["noisy"]["low"], point["noisy"]["high"], 3)
            shown = format_number(point["noisy"]["accuracy"], 3, "nearest")
            alone = point.get("certified_without_labels")
            row += [shown, interval]
            row += ["" if one is None else format_number(one, 3, "down") for one in (alone, certified)]
        rows.append(row)
    columns = ["corruption", "severity", *_DISTANCES.values(), "base network"]
    proved = ["certified, no labels", "certified, any change of its size"]
    print_table([*columns, *(["one noisy vote", "95%", *proved] if smoothed else [])], rows)
    if smoothed:
        print_claim(corruptions_in_words(result["settings"]), result, summary["clean"]["base"]["n"])
    else:
        print("nothing is certified: pass --sigma, the noise of the smoothed classifier")
    print_warnings(summary.get("warnings", []))


COMMAND = MeasureShiftCommand
