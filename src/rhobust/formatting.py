"""Numbers as text: proved quantities are rounded down, estimates to nearest, intervals outward."""

from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Literal

Direction = Literal["down", "nearest", "up"]
"""Rounding direction."""

_ROUNDING = {"down": ROUND_FLOOR, "nearest": ROUND_HALF_EVEN, "up": ROUND_CEILING}


def format_number(value: float, digits: int, direction: Direction) -> str:
    """A number with a fixed number of decimals.

    The shortest decimal that represents the float is rounded, so 0.29 rounds down to 0.29.

    Args:
        value: The number.
        digits: Decimals.
        direction: "down" for a proved lower bound, "up" for an upper bound, "nearest" for an estimate.

    >>> format_number(0.8999, 2, "down"), format_number(0.8999, 2, "nearest"), format_number(0.29, 2, "down")
    ('0.89', '0.90', '0.29')
    """
    return _rounded(Decimal(repr(float(value))), digits, direction)


def _rounded(value: Decimal, digits: int, direction: Direction) -> str:
    text = str(value.quantize(Decimal(1).scaleb(-digits), rounding=_ROUNDING[direction]))
    return text.lstrip("-") if Decimal(text) == 0 else text


def format_interval(low: float, high: float, digits: int) -> str:
    """An interval, rounded outward.

    >>> format_interval(0.1239, 0.4561, 3)
    '0.123 to 0.457'
    """
    return f"{format_number(low, digits, 'down')} to {format_number(high, digits, 'up')}"


def format_percent(value: float, direction: Direction) -> str:
    """A proportion as a percentage with one decimal, without the percent sign.

    >>> format_percent(0.8999, "down"), format_percent(0.8999, "nearest")
    ('89.9', '90.0')
    """
    return _rounded(Decimal(repr(float(value))).scaleb(2), 1, direction)


def format_distance(value: float) -> str:
    """A radius or an eps with at most six significant digits, rounded down, without trailing zeros.

    A certificate at a distance holds at every smaller distance, so rounding down keeps it true.

    >>> format_distance(0.5), format_distance(2.0), format_distance(0.125), format_distance(0.12345678)
    ('0.5', '2', '0.125', '0.123456')
    """
    return f"{float(Context(prec=6, rounding=ROUND_FLOOR).create_decimal(repr(float(value)))):.6g}"


UNNAMED = "images"
"""Name of a data set of images that came without one."""


def name_split(split: str | None) -> str:
    """What the images of a split are called: those that a run held out of its training are no test images.

    >>> name_split("test"), name_split("validation"), name_split("train")
    ('test', 'held-out', 'training')
    """
    if split == "validation":
        return "held-out"
    return "training" if split == "train" else "test"


def of_data(name: str | None) -> str:
    """Whose images they are, after the word images; nothing for those that came without a name.

    >>> of_data("digits"), of_data("images")
    (' of digits', '')
    """
    return f" of {name}" if name and name != UNNAMED else ""


def format_setting(value: float) -> str:
    """A setting that identifies a classifier or a loss (sigma, a clip): all its digits, without trailing zeros.

    >>> format_setting(0.25), format_setting(2.0), format_setting(0.12345678)
    ('0.25', '2', '0.12345678')
    """
    short = f"{value:.6g}"
    return short if float(short) == value else repr(float(value))


def format_confidence(alpha: float) -> str:
    """The confidence level 1 - alpha as a percentage with its sign, rounded down.

    >>> format_confidence(0.001), format_confidence(0.05)
    ('99.9%', '95%')
    """
    shifted = (1 - Decimal(repr(float(alpha)))).scaleb(2).quantize(Decimal("0.0001"), rounding=ROUND_FLOOR)
    return f"{shifted.normalize():f}%"


def format_duration(seconds: float) -> str:
    """A duration in seconds, minutes, hours or days.

    >>> format_duration(90), format_duration(1000), format_duration(9000), format_duration(864000)
    ('90 s', '17 min', '2.5 h', '10 days')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 100 else f"{hours / 24:,.0f} days"


def format_workers(workers: int) -> str:
    """A number of workers, in words.

    >>> format_workers(1)
    '1 worker'
    """
    return "1 worker" if workers == 1 else f"{workers:,} workers"


def printable(text: str) -> str:
    r"""A text with every character that a terminal would obey written as its escape sequence.

    >>> print(printable("cat\x1b[2J\u202e"))
    cat\x1b[2J\u202e
    """
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def shorten(text: str, most: int = 1000) -> str:
    """A text of at most `most` characters: of a longer one the middle is left out.

    >>> shorten("abcdefghijklmnop", most=9)
    'abc...nop'
    """
    half = (most - 3) // 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"
