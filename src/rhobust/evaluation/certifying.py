"""Walk a test set through the certificate for an input."""

import dataclasses
import math
from collections.abc import Iterator, Sequence

from rhobust.certificates import (
    Certificate,
    Dtype,
    NoiseKind,
    ProcedureName,
    Smoothing,
    VoteCounter,
    certification_plan,
    certify_stream,
    check_batch_independence,
    choose_procedure,
    native_dtype,
)
from rhobust.evaluation.attacking import check_radii
from rhobust.evaluation.certified import certified_summary
from rhobust.evaluation.target import Target
from rhobust.evaluation.walk import walk
from rhobust.formatting import format_duration
from rhobust.progress import ProgressCallback
from rhobust.records import Record, Row, on_disk

RADII = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Radii of the certified accuracy where none are asked for."""
LONG = 60.0
"""Seconds of certification that are told beforehand."""


def certify_target(
    target: Target,
    *,
    radii: Sequence[float] | None = None,
    procedure: ProcedureName | None = None,
    tolerance: float | None = None,
    n0: int | None = None,
    n: int | None = None,
    alpha: float = 1e-3,
    noise: NoiseKind = "grid",
    dtype: Dtype | None = None,
    compiled: bool = False,
    limit: int | None = None,
    stride: int = 1,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Record:
    """Certify the L2 radius of test examples and record the counts.

    Every row alone is false with probability at most alpha. The rows depend on nothing but the settings: not on the
    batches, the order, interruptions or the number of processes.

    Args:
        target: The network and its test data.
        radii: Increasing radii to decide, and those of the summary's certified accuracy.
        procedure: Certification procedure; default: two-stage with a tolerance, sequential with radii, otherwise fixed.
        tolerance: Of two stages, how much smaller than with n draws a radius may be expected to be.
        n0: Draws that select the class; default: the procedure's own number.
        n: Draws that count it, at most.
        alpha: Probability that one example's certificate is false.
        noise: "grid": exact integer noise; "float": float32 noise.
        dtype: Arithmetic of the network; the device's own where none is given.
        compiled: Whether to compile the network.
        limit: Examples at most.
        stride: Take every stride-th example.
        seed: Names the noise.
        progress: Progress callback; default: shown on stderr.
    """
    if radii is not None:
        radii = check_radii(radii)
    chosen = choose_procedure(procedure, radii=radii, tolerance=tolerance, n0=n0, n=n)
    smoothing = Smoothing(
        target.smoothing(),
        target.data.num_classes,
        noise=noise,
        seed=seed,
        dtype=dtype or native_dtype(target.device),
        compiled=compiled,
    )
    certification_plan(chosen, smoothing, dimension=math.prod(target.data.shape), alpha=alpha)
    indices = target.data.places(limit, stride)
    settings: Row = {
        **on_disk({"procedure": chosen.name, **dataclasses.asdict(chosen)}),
        "alpha": alpha,
        "noise": noise,
        "radii": list(radii or RADII),
        "limit": limit,
        "stride": stride,
        **target.identity(),
        **dataclasses.asdict(smoothing),
        "dimension": math.prod(target.data.shape),
    }
    writer = target.writer("certify", settings["way"], settings)
    if writer.summary is not None:
        return writer.record()
    counter = VoteCounter(target.model, target.data.images.to(target.device), smoothing)
    counter.warm_up()
    warnings = [*target.sigma_warnings(), *check_batch_independence(counter)]

    def evaluate(mine: list[int]) -> Iterator[Row]:
        inputs = [(index, index) for index in mine]
        for index, certificate in zip(mine, certify_stream(counter, chosen, inputs, alpha=alpha), strict=True):
            yield certificate_row(index, int(target.data.labels[index]), certificate)

    def forecast(count: int) -> str | None:
        """How long a fixed number of draws takes; what stops early is not foreseen."""
        if chosen.name != "fixed":
            return None
        draws = chosen.n0 + chosen.n
        seconds = count * draws * counter.seconds_per_sample()
        if seconds < LONG:
            return None
        return (
            f"{count:,} images with {draws:,} draws each take about {format_duration(seconds)}: radii or a"
            " tolerance stop drawing early, a limit or a stride takes fewer images, a smaller n fewer draws"
        )

    return walk(
        writer,
        indices,
        evaluate,
        lambda rows: {**certified_summary(rows, settings), "warnings": warnings},
        task=f"certify {target.name}",
        progress=progress,
        streaming=True,
        forecast=forecast,
    )


def certificate_row(index: int, label: int, certificate: Certificate) -> Row:
    """What a record says of one example."""
    row: Row = {
        "index": index,
        "label": label,
        "prediction": certificate.prediction,
        "radius": certificate.radius,
        "count": certificate.count,
        "n": certificate.n,
        "p_lower": certificate.p_lower,
        "selected": certificate.selected,
        "top": certificate.top,
    }
    if certificate.procedure == "sequential":
        row["evidence"] = [list(step) for step in certificate.evidence]
    return row
