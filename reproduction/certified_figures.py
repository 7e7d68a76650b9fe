"""Figures of our best certified networks and of other authors' numbers: certified accuracy by radius, and p_A."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Any

from reproduction.other_authors import published
from reproduction.plots import draw, to_bytes
from reproduction.seeds import ARCHIVE, DISTILLED, Cell, decided_record, measured_record, stratified_mean
from rhobust.archives import ENDING, opened
from rhobust.files import read_json, write_json, write_whole
from rhobust.measurements import AVERAGE_RADIUS, CERTIFIED, measurements, outcomes
from rhobust.records import Record

SIGMA_HALF = f"cifar10-certified-0.5{ENDING}"
"""Archive of the network for sigma 0.5."""
OURS, THEIRS = "ours, ResNet-18", "other authors, ResNet-110"
NAL, REFERENCE = "NAL, damped", "Sun et al."
SHOWN = (("Smoothing", "acr"), ("SmoothAdv", "acr"), ("CAT-RS", "catrs"), (REFERENCE, "acr"))
"""Other authors' networks in the figures, and the log they are from: where there are two, the later one."""
Document = dict[str, Any]
Cells = Mapping[float, Cell]
"""Numbers by radius."""


def write_figures(results: Path) -> list[Path]:
    """Draw both figures from the records of a folder of results, and write them with their numbers."""
    written = []
    for document in (certified_curves(results), vote_shares(results)):
        path = results / "figures" / f"{document['name']}.json"
        write_json(path, document)
        figure = draw(document)
        write_whole(path.with_suffix(".svg"), to_bytes(figure, "svg"))
        write_whole(path.with_suffix(".pdf"), to_bytes(figure, "pdf"))
        written += [path.with_suffix(f".{ending}") for ending in ("json", "svg", "pdf")]
    return written


def certified_curves(results: Path) -> Document:
    """Certified accuracy by radius at both noise levels, and below it the difference to the reference."""
    quarter = decided_record(results / "pretrained" / DISTILLED)
    with opened([results / "records" / SIGMA_HALF]) as here:
        (half,) = map(decided_record, here.paths)
    above, below = [], []
    for decided, baseline in ((quarter, _baseline(quarter, results)), (half, {})):
        others = _others(decided.settings["sigma"])
        zero, ours = others[REFERENCE], {NAL: _proved(decided), **baseline}
        title = f"sigma {decided.settings['sigma']:g}"
        lines = [_curve(name, cells) for name, cells in ours.items()]
        lines += [_reported(method, curve) for method, curve in others.items()]
        above.append(_panel(title, "certified accuracy", lines))
        lines = [_curve(name, cells, zero) for name, cells in ours.items()]
        for method, curve in others.items():
            if method != "Smoothing":  # far below the others
                lines.append(_reported(method, {at: curve[at] - zero[at] for at in curve}))
        below.append(_panel(title, f"difference to {REFERENCE}", lines))
    note = (
        "NAL, damped: with mirror images; at sigma 0.25 the pretrained network with two generations of teachers, at 0.5"
        " without a teacher. Our SmoothAdv has the same teacher; certified on some of the images, weighted to all."
        " Between two markers of ours the value of the right one is proved, not the line."
    )
    return {
        "name": "fig-certified-radii",
        "title": "Certified accuracy, CIFAR-10",
        "columns": 2,
        "panels": [*above, *below],
        "notes": [note],
    }


def vote_shares(results: Path) -> Document:
    """The distribution of p_A, the probability of the right class under noise, from the radii that it certifies."""
    run = results / "pretrained" / DISTILLED
    decided, radii = decided_record(run), _measured_radii(run)
    sigma, others = decided.settings["sigma"], _others(decided.settings["sigma"])
    edges = [*others[REFERENCE], math.inf]
    ours = {-1.0: _share(decided, radii, lambda radius: radius < 0)}
    for low, high in pairwise(edges):
        ours[low] = _share(decided, radii, lambda radius, low=low, high=high: low <= radius < high)
    lines = [_curve(NAL, ours)]
    for method, curve in others.items():
        parts = [1 - curve[0.0], *(here - after for here, after in pairwise([*curve.values(), 0.0]))]
        lines.append(_reported(method, dict(zip(ours, parts, strict=True))))
    panel = {**_panel(f"sigma {sigma:g}", "share of test images", lines), "x": "p_A, from this value to the next"}
    note = (
        "p_A: lower bound on the probability of the right class under noise, which gives the certified radius. Wrong:"
        " another class, or no answer. NAL: estimated from few images, weighted to all."
    )
    return {
        "name": "fig-certified-votes",
        "title": "Distribution of p_A, CIFAR-10",
        "columns": 1,
        "panels": [{**panel, "bars": ["wrong", *(_level(radius / sigma) for radius in edges[:-1])]}],
        "notes": [note],
    }


def _level(deviations: float) -> str:
    """The p_A of a radius in units of sigma; the last digit is the first in which it differs from 1."""
    level = NormalDist().cdf(deviations)
    return f"{level:.{max(2, -math.floor(math.log10(1 - level)))}f}"


def _measured_radii(run: Path) -> dict[int, float]:
    """The radius of each image that was measured; -1 where it is not right.

    It is clipped to the range that was decided for its image, so that decided radii have their shares among all images.
    """
    decided = decided_record(run)
    steps = [outcomes(decided, CERTIFIED, radius) for radius in decided.settings["radii"]]
    ranges = [-1.0, *decided.settings["radii"], math.inf]
    found = {}
    for index, radius in outcomes(measured_record(run), AVERAGE_RADIUS).items():
        held = round(sum(step[index] for step in steps))
        found[index] = min(max(radius, ranges[held]), math.nextafter(ranges[held + 1], -math.inf)) if held else -1.0
    return found


def _share(decided: Record, radii: Mapping[int, float], holds: Callable[[float], bool]) -> Cell:
    found = stratified_mean(decided, {index: float(holds(radius)) for index, radius in radii.items()})
    return replace(found, n=len(radii))


def _proved(record: Record) -> dict[float, Cell]:
    found = [one for one in measurements(record) if one.quantity == CERTIFIED]
    return {one.at: Cell(one.value, one.n, one.low, one.high) for one in found if one.at is not None}


def _baseline(decided: Record, results: Path) -> dict[str, Cells]:
    """SmoothAdv with the teacher of the pretrained network: certified on some images, weighted to all."""
    with opened([results / "records" / ARCHIVE]) as here:
        (run,) = (path for path in here.paths if read_json(path / "config.json")["method"]["kind"] == "smoothadv")
        record = decided_record(run)
    shares = {at: outcomes(record, CERTIFIED, at) for at in decided.settings["radii"]}
    return {"SmoothAdv": {at: stratified_mean(decided, share) for at, share in shares.items()}}


def _others(sigma: float) -> dict[str, dict[float, float]]:
    """Curves of other authors at this noise, by method."""
    found = {(one.method, one.log): one.curve for one in published() if one.sigma == sigma}
    return {method: found[method, log] for method, log in SHOWN}


def _curve(name: str, cells: Cells, less: Mapping[float, float] | None = None) -> Document:
    """Numbers of ours, perhaps less others."""
    shift = [less[at] if less else 0.0 for at in cells]
    ends = {"y": "value", "low": "low", "high": "high"}
    numbers = {
        key: [getattr(cell, end) - by for cell, by in zip(cells.values(), shift, strict=True)]
        for key, end in ends.items()
    }
    return {**_head(name, OURS), "x": list(cells), **numbers, "n": next(iter(cells.values())).n}


def _reported(name: str, values: Mapping[float, float]) -> Document:
    y = list(values.values())
    return {**_head(name, THEIRS), "dash": "dashed", "x": list(values), "y": y, "low": y, "high": y, "reported": True}


def _head(name: str, kind: str) -> Document:
    return {"colour": name, "kind": kind, "dash": "solid", "label": "", "falling": False}


def _panel(title: str, y: str, lines: list[Document]) -> Document:
    return {"title": title, "x": "L2 radius", "y": y, "zoom": True, "curves": lines}
