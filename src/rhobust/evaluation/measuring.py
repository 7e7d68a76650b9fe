"""Walk pairs of images through a measurement, and a network through the certificate that rests on it."""

import math
from dataclasses import asdict
from pathlib import Path

import numpy as np

from rhobust.certificates import (
    Dtype,
    MeasuredCertificate,
    MeasuredShift,
    Smoothing,
    accuracy_under_noise,
    count_errors,
    native_dtype,
    noise_kind,
)
from rhobust.data import Dataset, Pairs, pair_distances
from rhobust.evaluation.shift import check_target
from rhobust.evaluation.target import Target
from rhobust.evaluation.walk import walk
from rhobust.progress import ProgressCallback
from rhobust.records import Record, RecordWriter, Row


def measure_pairs(pairs: Pairs, *, alpha: float = 1e-3) -> Row:
    """How far a change moves images: the measured distances, their bounds and the statement in words."""
    return _shift(pair_distances(pairs.before, pairs.after), pairs, alpha)


def record_pairs(pairs: Pairs, folder: Path | str, *, alpha: float = 1e-3) -> Record:
    """`measure_pairs` as a record in a folder, with a row for each pair."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    writer = RecordWriter(folder, "measure-shift", "", {**_identity(pairs), "alpha": alpha})
    if writer.summary is None:
        done = len(writer.rows)
        distances = pair_distances(pairs.before, pairs.after)
        writer.append({"index": index, "distance": at} for index, at in enumerate(distances.tolist()[done:], done))
        writer.finish({"shift": _shift(distances, pairs, alpha)})
    return writer.record()


def measure_target(
    target: Target,
    pairs: Pairs,
    *,
    draws: int = 20,
    alpha: float = 1e-3,
    dtype: Dtype | None = None,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Record:
    """Certify the accuracy after a measured change, and set the accuracy measured after it beside.

    The test points are the images before the change where they have labels; the wrong votes after it are then
    counted too, under the same noise. Otherwise they are the target's test data, and the pairs tell the distances
    only. A row holds pair number `index` and test point number `index`, as far as there are such.

    Each of the two statements in the summary is false with probability at most alpha.
    """
    sigma = target.smoothing()
    shape = tuple(pairs.before.shape[1:])
    if shape != target.data.shape:
        raise ValueError(
            f"images of {pairs.name} must have the shape of {target.data.name}, {target.data.shape} "
            f"(channels, height, width), got {shape}"
        )
    labels = pairs.places(target.data.classes)
    if labels is None:
        points, moved = target.data, None
    else:
        points, moved = (
            Dataset(pairs.name, "test", images, labels, target.data.classes) for images in (pairs.before, pairs.after)
        )
    noise = noise_kind(points.images)
    dtype = dtype or native_dtype(target.device)
    settings: Row = {
        **_identity(pairs),
        "points": "test data" if moved is None else "before",
        "draws": draws,
        "alpha": alpha,
        "classifier": "randomised",
        "loss": "0-1",
        "bound": 1.0,
        "noise": noise,
        "seed": seed,
        **target.identity(),
        "sigma": sigma,
        "dtype": dtype,
    }
    distances = pair_distances(pairs.before, pairs.after)
    shift = _shift(distances, pairs, alpha)

    def wrong_votes(data: Dataset, block: list[int]) -> list[int]:
        images, labels = data.images[block].to(target.device), data.labels[block].to(target.device)
        smoothing = Smoothing.for_images(images, sigma, data.num_classes, seed=seed, dtype=dtype)
        return count_errors(target.model, images, labels, smoothing, indices=block, draws=draws).tolist()

    def evaluate(block: list[int]) -> list[Row]:
        rows: dict[int, Row] = {index: {"index": index} for index in block}
        for index in block:
            if index < len(pairs):
                rows[index]["distance"] = float(distances[index])
        if asked := [index for index in block if index < len(points)]:
            for index, errors in zip(asked, wrong_votes(points, asked), strict=True):
                rows[index] |= {"label": int(points.labels[index]), "errors": errors, "draws": draws}
        if moved is not None:
            for index, errors in zip(block, wrong_votes(moved, block), strict=True):
                rows[index]["errors_after"] = errors
        return list(rows.values())

    def summarise(rows: list[Row]) -> Row:
        def column(name: str) -> np.ndarray:
            return np.array([row[name] for row in rows if name in row])

        certificate = MeasuredCertificate.from_counts(
            column("errors"),
            column("distance"),
            draws=draws,
            sigma=sigma,
            dimension=math.prod(shape),
            alpha=alpha,
            seed=seed,
            noise=noise,
        )
        after = None if moved is None else accuracy_under_noise(column("errors_after"), draws)
        return {
            "shift": shift,
            "certificate": {**asdict(certificate), "statement": certificate.statement()},
            "before": accuracy_under_noise(column("errors"), draws),
            "after": after,
            "warnings": target.sigma_warnings(),
        }

    writer = target.writer("measure-shift", "", settings)
    if writer.summary is None:
        check_target(target, Smoothing(sigma, target.data.num_classes, dtype=dtype))
    indices = range(max(len(pairs), len(points)))
    return walk(writer, indices, evaluate, summarise, task=f"measure-shift {target.name}", progress=progress)


def _identity(pairs: Pairs) -> Row:
    return {"pairs": pairs.name, "pairs_fingerprint": pairs.fingerprint()}


def _shift(distances: np.ndarray, pairs: Pairs, alpha: float) -> Row:
    shift = MeasuredShift.from_distances(distances, dimension=pairs.before[0].numel(), alpha=alpha)
    return {**asdict(shift), "statement": shift.statement()}
