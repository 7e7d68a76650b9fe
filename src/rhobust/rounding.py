"""How a number is shown: what is proved is rounded down, what is estimated to nearest, intervals outward."""

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Literal

from rhobust.bounds import clopper_pearson

Way = Literal["down", "nearest", "up"]

_ROUNDING = {"down": ROUND_FLOOR, "nearest": ROUND_HALF_EVEN, "up": ROUND_CEILING}


@dataclass(frozen=True)
class Share:
    """So many of so many examples, with its two-sided 95% Clopper-Pearson interval."""

    k: int
    n: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The share itself."""
        return self.k / self.n

    def as_row(self) -> dict[str, float]:
        """The share as it stands in a record's summary."""
        return {"accuracy": self.value, "low": self.low, "high": self.high, "n": self.n}


def share(k: int, n: int) -> Share:
    """The share k of n with its 95% interval (2.5% on either side).

    Args:
        k: How many examples count.
        n: How many examples there are.
    """
    if not 0 <= k <= n or n == 0:
        raise ValueError(f"k must be in 0..n with n >= 1, got k={k}, n={n}")
    low, high = (float(clopper_pearson(k, n, 0.025, side)) for side in ("lower", "upper"))
    return Share(k, n, low, high)


def rounded(value: float, digits: int, way: Way) -> str:
    """A number with a fixed number of digits, rounded the way its meaning allows.

    The shortest decimal that stands for the float is what is rounded, so 0.29 floors to 0.29.

    >>> rounded(0.8999, 2, "down"), rounded(0.8999, 2, "nearest"), rounded(0.29, 2, "down")
    ('0.89', '0.90', '0.29')
    """
    text = str(Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), rounding=_ROUNDING[way]))
    return text.lstrip("-") if Decimal(text) == 0 else text


def outward(low: float, high: float, digits: int) -> str:
    """An interval, each end rounded away from the other.

    >>> outward(0.1239, 0.4561, 3)
    '0.123 to 0.457'
    """
    return f"{rounded(low, digits, 'down')} to {rounded(high, digits, 'up')}"


def percent(value: float, way: Way) -> str:
    """A share as a percentage with one digit, without the sign.

    >>> percent(0.8999, "down"), percent(0.8999, "nearest")
    ('89.9', '90.0')
    """
    shifted = Decimal(repr(float(value))).scaleb(2)
    text = str(shifted.quantize(Decimal("0.1"), rounding=_ROUNDING[way]))
    return text.lstrip("-") if Decimal(text) == 0 else text


def plain(value: float) -> str:
    """A radius or an eps as it was given, without needless zeros.

    More than six digits are rounded down: what is proved at a distance is proved at every smaller one.

    >>> plain(0.5), plain(2.0), plain(0.125), plain(0.12345678)
    ('0.5', '2', '0.125', '0.123456')
    """
    return f"{float(Context(prec=6, rounding=ROUND_FLOOR).create_decimal(repr(float(value)))):.6g}"


def exact(value: float) -> str:
    """A setting that names a classifier or a loss (sigma, a clip), with all its digits and no needless zeros.

    >>> exact(0.25), exact(2.0), exact(0.12345678)
    ('0.25', '2', '0.12345678')
    """
    short = f"{value:.6g}"
    return short if float(short) == value else repr(float(value))


def confidence(alpha: float) -> str:
    """The confidence 1 - alpha as a percentage with its sign, rounded down.

    >>> confidence(0.001), confidence(0.05)
    ('99.9%', '95%')
    """
    shifted = (1 - Decimal(repr(float(alpha)))).scaleb(2).quantize(Decimal("0.0001"), rounding=ROUND_FLOOR)
    return f"{shifted.normalize():f}%"


def duration(seconds: float) -> str:
    """A time, as coarse as an estimate of it may be.

    >>> duration(90), duration(1000), duration(9000), duration(864000)
    ('90 s', '17 min', '2.5 h', '10 days')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 100 else f"{hours / 24:,.0f} days"
