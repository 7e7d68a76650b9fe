"""Walk a test set through the certificate for an input."""

from collections.abc import Sequence

import numpy as np

from rhobust.certificates import certify_inputs, noise_kind
from rhobust.progress import Report
from rhobust.records import Record, RecordWriter, Row
from rhobust.rounding import share

from .attacking import check_radii
from .target import Target
from .walk import walk


def certify_target(
    target: Target,
    *,
    radii: Sequence[float],
    n0: int = 100,
    n: int = 100_000,
    alpha: float = 1e-3,
    limit: int | None = None,
    stride: int = 1,
    seed: int = 0,
    report: Report | None = None,
) -> Record:
    """Certify the L2 radius of test examples and record the counts.

    The summary's certified accuracy at a radius is the share of examples that are right and certified there; at 0,
    the share that is right and certified at all. Every row alone is false with probability at most alpha.
    """
    check_radii(radii)
    sigma = target.smoothing()
    indices = target.data.places(limit, stride)
    noise = noise_kind(target.data.images)
    settings: Row = {
        "way": "cohen",
        "n0": n0,
        "n": n,
        "alpha": alpha,
        "noise": noise,
        "radii": list(radii),
        "limit": limit,
        "stride": stride,
        "seed": seed,
        **target.identity(),
        "sigma": sigma,
    }

    def evaluate(block: list[int]) -> list[Row]:
        certificates = certify_inputs(
            target.model,
            target.data.images[block].to(target.device),
            indices=block,
            sigma=sigma,
            num_classes=target.data.num_classes,
            n0=n0,
            n=n,
            alpha=alpha,
            seed=seed,
            noise=noise,
        )
        return [
            {
                "index": index,
                "label": int(target.data.labels[index]),
                "prediction": certificate.prediction,
                "radius": certificate.radius,
                "count": certificate.count,
                "n": certificate.n,
                "p_lower": certificate.p_lower,
            }
            for index, certificate in zip(block, certificates, strict=True)
        ]

    def summarise(rows: list[Row]) -> Row:
        radius = np.array([row["radius"] if row["prediction"] == row["label"] else 0.0 for row in rows])
        certified = [int(np.sum(radius > 0 if at == 0 else radius >= at)) for at in radii]
        return {
            "certified_accuracy": [
                {"radius": at, **share(hits, len(rows)).as_row()} for at, hits in zip(radii, certified, strict=True)
            ],
            "average_certified_radius": float(radius.mean()),
        }

    writer = RecordWriter(target.folder, "certify", "cohen", settings)
    return walk(writer, indices, evaluate, summarise, task=f"certify {target.name}", report=report)
