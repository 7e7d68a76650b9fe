"""Walk a test set through the certificate for a distribution."""

import math
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from rhobust.certificates import (
    Dtype,
    Evidence,
    ShiftClaim,
    ShiftSurvey,
    Smoothing,
    check_network,
    compare,
    native_dtype,
    noise_kind,
)
from rhobust.certificates.batch_independence import IMAGES
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
    beside: bool = False,
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
        beside: Sum up other certificates from the same draws too, each at alpha on its own.
        dtype: Arithmetic of the network; the device's own where none is given.
        limit: Examples at most.
        stride: Take every stride-th example.
        seed: Names the noise.
        progress: Progress callback; default: shown on stderr.
    """
    eps = check_radii(eps, "eps")
    sigma = target.smoothing()
    indices = target.data.places(limit, stride)
    claim = (claim or ShiftClaim()).settled(target.data.num_classes)
    if beside and claim.loss != "0-1":
        raise ValueError("beside must be left out for a loss that is not 0-1: the other certificates are of accuracy")
    survey = survey_of(target, claim, points=len(indices), draws=draws, alpha=alpha, dtype=dtype, seed=seed)
    settings: Row = {
        "eps": list(eps),
        "draws": draws,
        "alpha": alpha,
        **on_disk(asdict(claim)),
        "votes": claim.noisy_votes,
        "bound": claim.largest,
        "beside": beside,
        "noise": survey.smoothing.noise,
        "limit": limit,
        "stride": stride,
        "seed": seed,
        **target.identity(),
        "sigma": sigma,
        "dtype": survey.smoothing.dtype,
    }

    def evaluate(block: list[int]) -> list[Row]:
        return shift_rows(target, survey, block)

    def summarise(rows: list[Row]) -> Row:
        return {**shift_summary(rows, survey, eps, beside=beside), "warnings": target.sigma_warnings()}

    writer = target.writer("certify-shift", "", settings)
    if writer.summary is None:
        check_target(target, survey.smoothing)
    return walk(writer, indices, evaluate, summarise, task=f"certify-shift {target.name}", progress=progress)


def shift_rows(target: Target, survey: ShiftSurvey, block: Sequence[int]) -> list[Row]:
    """What the draws showed at some points, each by its number in the data."""
    block = list(block)
    labels = target.data.labels[block]
    images = target.data.images[block].to(target.device)
    evidence = survey.gather(target.model, images, labels.to(target.device), indices=block)
    columns = {name: found for name, found in _columns(evidence).items() if found is not None}
    return [
        {
            "index": index,
            "label": int(label),
            "draws": survey.draws,
            **{name: found[position].item() for name, found in columns.items()},
        }
        for position, (index, label) in enumerate(zip(block, labels, strict=True))
    ]


def shift_summary(rows: Sequence[Row], survey: ShiftSurvey, eps: Sequence[float], *, beside: bool) -> Row:
    """What the points prove together; a function of the rows alone, so that it can be computed again."""
    evidence = Evidence(
        **{field: np.array([row[name] for row in rows]) for field, name in _NAMES.items() if name in rows[0]}
    )
    certificate = survey.certificate(evidence, eps)
    accuracy = survey.claim.loss == "0-1"
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
    if beside:
        others = compare(
            evidence.errors, draws=survey.draws, eps=eps, sigma=survey.smoothing.sigma, level=survey.level()
        )
        summary["beside"] = [{**asdict(other), "eps": list(eps)} for other in others]
    return summary


def survey_of(
    target: Target, claim: ShiftClaim, *, points: int, draws: int, alpha: float, dtype: Dtype | None, seed: int
) -> ShiftSurvey:
    """How a target's test data is asked about a shift."""
    data = target.data
    smoothing = Smoothing(
        target.smoothing(),
        data.num_classes,
        noise=noise_kind(data.images),
        seed=seed,
        dtype=dtype or native_dtype(target.device),
    )
    return ShiftSurvey(claim, smoothing, points=points, dimension=math.prod(data.shape), draws=draws, alpha=alpha)


def check_target(target: Target, smoothing: Smoothing) -> None:
    """Refuse a network that looks at its neighbours in a batch."""
    check_network(target.model, target.data.images[:IMAGES].to(target.device), smoothing)


_NAMES = {"errors": "errors", "dithered": "dithered", "losses": "loss", "uppers": "upper"}
"""The evidence's fields and their names in a row."""


def _columns(evidence: Evidence) -> dict[str, np.ndarray | None]:
    return {name: getattr(evidence, field) for field, name in _NAMES.items()}
