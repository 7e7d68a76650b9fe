"""Validation of arguments: float or array in, float64 out, a one-line ValueError for invalid values."""

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[np.float64]
FloatOrArray: TypeAlias = float | Array

MARGIN = 1e-12
"""Outward rounding of every bound; the float64 error of the formulas in this package is below a tenth of it."""


def _require(name: str, array: Array, valid: NDArray[np.bool_], condition: str) -> Array:
    if not np.all(valid):
        worst = array[~valid].flat[0] if array.ndim else array[()]
        raise ValueError(f"{name} must {condition}, got {worst:.12g}")
    return array


def _as_floats(name: str, value: ArrayLike) -> Array:
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a torch tensor that requires a gradient
        raise ValueError(f"{name} must be a number or an array of numbers, got {value!r}") from None


def _one(name: str, array: Array) -> float:
    if array.ndim:
        raise ValueError(f"{name} must be one number, got an array of shape {array.shape}")
    return float(array)


def unit_interval(name: str, value: ArrayLike) -> Array:
    """Return `value` as an array of numbers in [0, 1]."""
    array = _as_floats(name, value)
    return _require(name, array, (array >= 0) & (array <= 1), "be in [0, 1]")


def open_interval(name: str, value: ArrayLike) -> Array:
    """Return `value` as an array of numbers in (0, 1)."""
    array = _as_floats(name, value)
    return _require(name, array, (array > 0) & (array < 1), "be in (0, 1)")


def level(name: str, value: float) -> float:
    """Return one significance level in (0, 1)."""
    return _one(name, open_interval(name, value))


def positive(name: str, value: ArrayLike) -> Array:
    """Return `value` as an array of finite positive numbers."""
    array = _as_floats(name, value)
    return _require(name, array, (array > 0) & np.isfinite(array), "be > 0 and finite")


def nonnegative(name: str, value: ArrayLike) -> Array:
    """Return `value` as an array of finite nonnegative numbers."""
    array = _as_floats(name, value)
    return _require(name, array, (array >= 0) & np.isfinite(array), "be >= 0 and finite")


def one_positive(name: str, value: float) -> float:
    """Return one finite positive number."""
    return _one(name, positive(name, value))


def counts(name: str, value: ArrayLike, *, least: int = 0) -> Array:
    """Return `value` as an array of whole numbers, `least` or more."""
    array = _as_floats(name, value)
    valid = (array >= least) & np.isfinite(array) & (array == np.floor(array))
    return _require(name, array, valid, f"be a whole number >= {least}")


def one_count(name: str, value: int, *, least: int = 0) -> int:
    """Return one whole number, `least` or more."""
    return int(_one(name, counts(name, value, least=least)))


def points(name: str, value: ArrayLike) -> Array:
    """Return `value` as a non-empty vector of numbers in [0, 1], one per point."""
    array = unit_interval(name, value)
    if array.ndim > 1 or array.size == 0:
        raise ValueError(f"{name} must hold one number per point, got shape {array.shape}")
    return array.reshape(-1)


def error_counts(errors: ArrayLike, draws: int) -> tuple[Array, int]:
    """Return the error counts per point and the number of noise samples per point."""
    draws = one_count("draws", draws, least=1)
    found = counts("errors", errors)
    if found.ndim != 1 or found.size == 0:
        raise ValueError(f"errors must hold one count per point, got shape {found.shape}")
    if found.max() > draws:
        raise ValueError(f"errors must be <= draws = {draws}, got {found.max():.0f}")
    return found, draws


def result(array: ArrayLike) -> FloatOrArray:
    """Return a Python float for a zero-dimensional result and the float64 array otherwise."""
    floats = np.asarray(array, dtype=np.float64)
    return floats if floats.ndim else float(floats)
