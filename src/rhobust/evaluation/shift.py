"""Walk a test set through the certificate for a distribution."""

import math
from collections.abc import Sequence

import numpy as np

from rhobust.certificates import count_errors, noise_kind, shift_certificate
from rhobust.progress import Report
from rhobust.records import Record, RecordWriter, Row

from .attacking import check_radii
from .target import Target
from .walk import walk


def certify_shift_target(
    target: Target,
    *,
    eps: Sequence[float],
    draws: int = 20,
    alpha: float = 1e-3,
    limit: int | None = None,
    stride: int = 1,
    seed: int = 0,
    report: Report | None = None,
) -> Record:
    """Certify the accuracy under every W2 shift up to eps, and record each point's wrong votes.

    With probability at least 1 - alpha the whole curve of the summary holds at once.
    """
    check_radii(eps)
    sigma = target.smoothing()
    indices = target.data.places(limit, stride)
    noise = noise_kind(target.data.images)
    settings: Row = {
        "eps": list(eps),
        "draws": draws,
        "alpha": alpha,
        "classifier": "randomised",
        "cost": "w2",
        "loss": "0-1",
        "bound": 1.0,
        "noise": noise,
        "limit": limit,
        "stride": stride,
        "seed": seed,
        **target.identity(),
        "sigma": sigma,
    }

    def evaluate(block: list[int]) -> list[Row]:
        labels = target.data.labels[block]
        wrong, _ = count_errors(
            target.model,
            target.data.images[block].to(target.device),
            labels.to(target.device),
            indices=block,
            sigma=sigma,
            draws=draws,
            seed=seed,
            num_classes=target.data.num_classes,
        )
        return [
            {"index": index, "label": int(label), "errors": int(errors), "draws": draws}
            for index, label, errors in zip(block, labels, wrong, strict=True)
        ]

    def summarise(rows: list[Row]) -> Row:
        certificate = shift_certificate(
            np.array([row["errors"] for row in rows]),
            draws=draws,
            eps=eps,
            sigma=sigma,
            dimension=math.prod(target.data.shape),
            alpha=alpha,
            seed=seed,
            noise=noise,
        )
        return {
            "accuracy_under_noise": certificate.accuracy_under_noise,
            "points": certificate.points,
            "curve": [
                {"eps": at, "certified_accuracy": accuracy, "statement": certificate.statement(at)}
                for at, accuracy in zip(certificate.eps, certificate.certified_accuracy, strict=True)
            ],
            "statement": certificate.statement(certificate.eps[len(certificate.eps) // 2]),
        }

    writer = RecordWriter(target.folder, "certify-shift", "", settings)
    return walk(writer, indices, evaluate, summarise, task=f"certify-shift {target.name}", report=report)
