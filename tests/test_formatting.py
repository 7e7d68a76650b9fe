"""No number is shown as better than it is."""

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from rhobust.formatting import (
    format_confidence,
    format_distance,
    format_interval,
    format_number,
    format_percent,
    format_setting,
)

NUMBERS = st.floats(-1e4, 1e4, allow_nan=False)


@given(NUMBERS, st.integers(0, 8))
def test_down_is_never_above_and_up_never_below(value, digits):
    given_value, unit = Decimal(repr(value)), Decimal(1).scaleb(-digits)
    down, nearest, up = (Decimal(format_number(value, digits, direction)) for direction in ("down", "nearest", "up"))
    assert down <= given_value <= up
    assert up - down in (0, unit)
    assert abs(nearest - given_value) <= unit / 2


@given(st.floats(-1, 2))
def test_a_percentage_rounds_like_its_number(value):
    hundredfold = Decimal(repr(value)) * 100
    down, up = Decimal(format_percent(value, "down")), Decimal(format_percent(value, "up"))
    assert down <= hundredfold <= up
    assert up - down in (0, Decimal("0.1"))
    assert abs(Decimal(format_percent(value, "nearest")) - hundredfold) <= Decimal("0.05")


@given(NUMBERS, NUMBERS)
def test_an_interval_grows(one, other):
    low, high = sorted((one, other))
    shown = [Decimal(end) for end in format_interval(low, high, 3).split(" to ")]
    assert shown[0] <= Decimal(repr(low))
    assert Decimal(repr(high)) <= shown[1]


@given(st.floats(0, 1e6, allow_subnormal=False))
def test_a_distance_is_shown_no_larger(value):
    shown = Decimal(format_distance(value))
    assert shown <= Decimal(repr(value))
    assert shown >= Decimal(repr(value)) * (1 - Decimal("1e-5"))


@given(st.floats(1e-12, 0.5))
def test_a_confidence_is_shown_no_larger(alpha):
    assert Decimal(format_confidence(alpha).removesuffix("%")) <= 100 * (1 - Decimal(repr(alpha)))


def test_a_setting_keeps_all_its_digits():
    for value in (0.1234567, 1 / 3, 2.302585092994046, 0.25, 1e-9):
        assert float(format_setting(value)) == value


def test_no_zero_has_a_sign():
    assert format_number(-0.0001, 2, "up") == format_number(-0.0001, 2, "nearest") == "0.00"
    assert format_percent(-1e-9, "up") == "0.0"
