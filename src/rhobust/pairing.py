"""Two networks on the same images: how far one lies above the other, with an interval."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

SAME_IMAGES = ("data_fingerprint", "split")
"""Settings that name the images of a record, together with their numbers."""
SAME_CERTIFICATE = (*SAME_IMAGES, "way", "n", "alpha")
"""Settings that two records of certificates must share to be compared image by image; sigma may be what differs."""
SAME_ATTACK = (*SAME_IMAGES, "attack", "source", "scored", "votes")
"""The same for two records of attacks."""
Z = 1.96
"""Of a normal law 95% lie within so many standard deviations."""


@dataclass(frozen=True)
class Difference:
    """A mean over images of ours minus theirs, with its 95% interval.

    The interval is over the images, the same for both: it says how far other images of this kind might move the
    difference, and nothing of another training.
    """

    value: float
    low: float
    high: float
    n: int

    def as_row(self) -> dict[str, float]:
        """The difference as it stands in JSON."""
        return {"difference": self.value, "low": self.low, "high": self.high, "n": self.n}


def share_difference(ours: Sequence[bool], theirs: Sequence[bool]) -> Difference:
    """The difference of two shares of the same images.

    With b images that only ours has and c that only theirs has, p = (b + 1) / (n + 2) and q = (c + 1) / (n + 2), the
    interval is p - q plus and minus 1.96 sqrt((p + q - (p - q)^2) / (n + 2)) (Bonett and Price, 2012). Unlike the
    plain one it has a width where the two agree on every image.

    Args:
        ours: Whether each image counts for ours.
        theirs: The same for theirs, in the same order.
    """
    a, b = _same_length(ours, theirs)
    n = len(a)
    p, q = ((float(np.sum(only)) + 1) / (n + 2) for only in (a > b, b > a))
    half = Z * math.sqrt((p + q - (p - q) ** 2) / (n + 2))
    return Difference(float(np.mean(a - b)), max(-1.0, p - q - half), min(1.0, p - q + half), n)


def mean_difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """The difference of two means over the same images, with Student's interval.

    It is exact where differences are normal, and good where there are many images.

    Args:
        ours: A number of each image.
        theirs: The same for theirs, in the same order.
    """
    a, b = _same_length(ours, theirs)
    apart, n = a - b, len(a)
    value = float(np.mean(apart))
    if n < 2:
        raise ValueError(f"a mean difference must have two images at least for an interval, got {n}")
    half = float(stdtrit(n - 1, 0.975)) * float(np.std(apart, ddof=1)) / math.sqrt(n)
    return Difference(value, value - half, value + half, n)


def _same_length(ours: Sequence[float], theirs: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    if not 0 < len(ours) == len(theirs):
        raise ValueError(f"two networks must have the same images, one at least, got {len(ours)} and {len(theirs)}")
    return np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
