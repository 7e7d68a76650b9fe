"""Proportions of test images and paired differences between two networks, with 95% confidence intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from rhobust.bounds import clopper_pearson

Z = 1.96
"""97.5% quantile of the standard normal distribution."""


@dataclass(frozen=True)
class Share:
    """A proportion k / n of examples with its two-sided 95% Clopper-Pearson interval."""

    k: int
    n: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """K / n."""
        return self.k / self.n

    def as_row(self) -> dict[str, float]:
        """The proportion in the format of a record's summary."""
        return {"accuracy": self.value, "low": self.low, "high": self.high, "n": self.n}


def share(k: int, n: int) -> Share:
    """The proportion k / n with its 95% Clopper-Pearson interval (2.5% on either side)."""
    if not 0 <= k <= n or n == 0:
        raise ValueError(f"k must be in 0..n with n >= 1, got k={k}, n={n}")
    low, high = (float(clopper_pearson(k, n, 0.025, side)) for side in ("lower", "upper"))
    return Share(k, n, low, high)


@dataclass(frozen=True)
class Mean:
    """A mean over images with its 95% normal interval, 1.96 standard errors to either side."""

    value: float
    low: float
    high: float
    n: int


def mean(values: Sequence[float]) -> Mean:
    """The mean of one number per image, with its interval."""
    n = len(values)
    if n == 0:
        raise ValueError("a mean must be of one number at least, got none")
    value = math.fsum(values) / n
    variance = math.fsum((one - value) ** 2 for one in values) / max(1, n - 1)
    half = Z * math.sqrt(variance / n)
    return Mean(value, value - half, value + half, n)


@dataclass(frozen=True)
class Difference:
    """The mean over images of ours minus theirs, with its 95% interval.

    The interval covers the choice of images, which are the same for both networks. It does not cover the randomness
    of training.
    """

    value: float
    low: float
    high: float
    n: int

    def as_row(self) -> dict[str, float]:
        """The difference as JSON values."""
        return {"difference": self.value, "low": self.low, "high": self.high, "n": self.n}


def share_difference(ours: Sequence[bool], theirs: Sequence[bool]) -> Difference:
    """The difference of two proportions on the same images, with the interval of Bonett and Price (2012).

    With b successes of ours only and c of theirs only, p = (b + 1) / (n + 2) and q = (c + 1) / (n + 2), the interval
    is p - q plus and minus 1.96 sqrt((p + q - (p - q)^2) / (n + 2)). Unlike the Wald interval it has positive width
    if the two agree on every image.
    """
    a, b = _same_length(ours, theirs)
    n = len(a)
    p, q = ((float(np.sum(only)) + 1) / (n + 2) for only in (a > b, b > a))
    half = Z * math.sqrt((p + q - (p - q) ** 2) / (n + 2))
    return Difference(float(np.mean(a - b)), max(-1.0, p - q - half), min(1.0, p - q + half), n)


def mean_difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """The difference of two means over the same images, with the paired Student t interval.

    The interval is exact for normal differences and asymptotic otherwise.
    """
    a, b = _same_length(ours, theirs)
    differences, n = a - b, len(a)
    value = float(np.mean(differences))
    if n < 2:
        raise ValueError(f"a mean difference must have two images at least for an interval, got {n}")
    half = float(stdtrit(n - 1, 0.975)) * float(np.std(differences, ddof=1)) / math.sqrt(n)
    return Difference(value, value - half, value + half, n)


def _same_length(ours: Sequence[float], theirs: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    if not 0 < len(ours) == len(theirs):
        raise ValueError(f"two networks must have the same images, one at least, got {len(ours)} and {len(theirs)}")
    return np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
