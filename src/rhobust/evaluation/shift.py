"""Walk a test set through the certificate for a distribution."""

import math
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from rhobust.certificates import (
    Dtype,
    ShiftClaim,
    ShiftProcedure,
    Smoothing,
    VoteCounter,
    VoteCounts,
    baseline_certificates,
    check_batch_independence,
    native_dtype,
    noise_kind,
)
from rhobust.certificates.sampling import PROBES
from rhobust.evaluation.attacking import check_radii
from rhobust.evaluation.target import Target
from rhobust.evaluation.walk import walk
from rhobust.progress import ProgressCallback
from rhobust.records import Record, Row, on_disk


def certify_shift_target(
    target: Target,
    *,
    eps: Sequence[float],
    draws: int = 20,
    alpha: float = 1e-3,
    claim: ShiftClaim | None = None,
    baselines: bool = False,
    dtype: Dtype | None = None,
    limit: int | None = None,
    stride: int = 1,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Record:
    """Certify the accuracy, or the loss, under every shift up to eps, and record what was counted at each point.

    With probability at least 1 - alpha the whole curve of the summary holds at once.

    Args:
        target: The network and its test data.
        eps: Increasing sizes of the shift.
        draws: Noise draws a point.
        alpha: Probability that the curve is false.
        claim: Classifier, loss, distance and estimator; default: accuracy of the randomised classifier under W2.
        baselines: Sum up other certificates from the same draws too, each at alpha on its own.
        dtype: Arithmetic of the network; the device's own where none is given.
        limit: Examples at most.
        stride: Take every stride-th example.
        seed: Names the noise.
        progress: Progress callback; default: shown on stderr.
    """
    eps = check_radii(eps, "eps")
    sigma = target.smoothing()
    indices = target.data.places(limit, stride)
    claim = (claim or ShiftClaim()).resolve(target.data.num_classes)
    if baselines and claim.loss != "0-1":
        raise ValueError("baselines must be left out for a loss that is not 0-1: they are certificates of accuracy")
    procedure = shift_procedure(target, claim, points=len(indices), draws=draws, alpha=alpha, dtype=dtype, seed=seed)
    settings: Row = {
        "eps": list(eps),
        "draws": draws,
        "alpha": alpha,
        **on_disk(asdict(claim)),
        "votes": claim.votes_per_answer,
        "bound": claim.loss_bound,
        "beside": baselines,
        "noise": procedure.smoothing.noise,
        "limit": limit,
        "stride": stride,
        "seed": seed,
        **target.identity(),
        "sigma": sigma,
        "dtype": procedure.smoothing.dtype,
    }

    def evaluate(block: list[int]) -> list[Row]:
        return shift_rows(target, procedure, block)

    def summarise(rows: list[Row]) -> Row:
        return {**shift_summary(rows, procedure, eps, baselines=baselines), "warnings": target.sigma_warnings()}

    writer = target.writer("certify-shift", "", settings)
    if writer.summary is None:
        check_target(target, procedure.smoothing)
    return walk(writer, indices, evaluate, summarise, task=f"certify-shift {target.name}", progress=progress)


def shift_rows(target: Target, procedure: ShiftProcedure, block: Sequence[int]) -> list[Row]:
    """What the draws showed at some points, each by its number in the data."""
    block = list(block)
    labels = target.data.labels[block]
    images = target.data.images[block].to(target.device)
    counts = procedure.sample(target.model, images, labels.to(target.device), indices=block)
    columns = {name: found for name, found in _columns(counts).items() if found is not None}
    return [
        {
            "index": index,
            "label": int(label),
            "draws": procedure.draws,
            **{name: found[position].item() for name, found in columns.items()},
        }
        for position, (index, label) in enumerate(zip(block, labels, strict=True))
    ]


def shift_summary(rows: Sequence[Row], procedure: ShiftProcedure, eps: Sequence[float], *, baselines: bool) -> Row:
    """What the points prove together; a function of the rows alone, so that it can be computed again."""
    counts = VoteCounts(
        **{field: np.array([row[name] for row in rows]) for field, name in _NAMES.items() if name in rows[0]}
    )
    certificate = procedure.certify(counts, eps)
    accuracy = procedure.claim.loss == "0-1"
    name = "certified_accuracy" if accuracy else "certified_loss"
    certified = certificate.certified_accuracy if accuracy else certificate.certified_loss
    summary: Row = {
        "accuracy_under_noise": certificate.accuracy_under_noise,
        "loss_under_noise": certificate.loss_under_noise,
        "points": certificate.points,
        "curve": [
            {"eps": at, name: value, "statement": certificate.statement(at)}
            for at, value in zip(certificate.eps, certified, strict=True)
        ],
        "statement": certificate.statement(certificate.eps[len(certificate.eps) // 2]),
    }
    if baselines:
        others = baseline_certificates(
            counts.errors, draws=procedure.draws, eps=eps, sigma=procedure.smoothing.sigma, level=procedure.level()
        )
        summary["beside"] = [{**asdict(other), "eps": list(eps)} for other in others]
    return summary


def shift_procedure(
    target: Target, claim: ShiftClaim, *, points: int, draws: int, alpha: float, dtype: Dtype | None, seed: int
) -> ShiftProcedure:
    """How a target's test data is asked about a shift."""
    data = target.data
    smoothing = Smoothing(
        target.smoothing(),
        data.num_classes,
        noise=noise_kind(data.images),
        seed=seed,
        dtype=dtype or native_dtype(target.device),
    )
    return ShiftProcedure(claim, smoothing, points=points, dimension=math.prod(data.shape), draws=draws, alpha=alpha)


def check_target(target: Target, smoothing: Smoothing) -> None:
    """Raise if the model is batch-dependent."""
    check_batch_independence(VoteCounter(target.model, target.data.images[:PROBES].to(target.device), smoothing))


_NAMES = {"errors": "errors", "rounded_losses": "dithered", "losses": "loss", "uppers": "upper"}
"""The counts's fields and their names in a row."""


def _columns(counts: VoteCounts) -> dict[str, np.ndarray | None]:
    return {name: getattr(counts, field) for field, name in _NAMES.items()}
