"""Settings must hold what they declare: the command line and the config files look, Python itself does not."""

import math
from collections.abc import Iterable
from dataclasses import fields
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_KINDS: dict[Any, tuple[type, str]] = {
    int: (Integral, "an int"),
    float: (Real, "a number"),
    bool: (bool, "True or False"),
    str: (str, "a string"),
    NoneType: (NoneType, "None"),
}


def check_declared(settings: "DataclassInstance") -> None:
    """Refuse a dataclass with a field of another type, or another word, than it declares.

    Fields are looked at that are numbers, strings, True or False, one of several words, or None. A word that is not
    known would otherwise be taken for the last one that is.
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        union = get_origin(field.type) in (Union, UnionType)
        kinds = get_args(field.type) if union else (field.type,)
        wanted = [_wanted(kind) for kind in kinds]
        if None not in wanted and not any(_fits(value, kind) for kind in kinds):
            raise ValueError(f"{field.name} must be {' or '.join(map(str, wanted))}, got {_shown(value)}")


def check_count(name: str, value: int) -> None:
    """Refuse what is not a whole number of at least one."""
    if not _fits(value, int):
        raise ValueError(f"{name} must be an int, got {_shown(value)}")
    if value < 1:
        raise ValueError(f"{name} must be >= 1, got {value}")


def check_number(name: str, value: float) -> None:
    """Refuse what is not one finite number."""
    if not _fits(value, float):
        raise ValueError(f"{name} must be a number, got {_shown(value)}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")


def sizes(name: str, values: Iterable[float]) -> tuple[float, ...]:
    """Radii, or sizes of a shift, as floats; what is no list of finite numbers >= 0 is refused."""
    try:
        found = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a list of numbers, got {_shown(values)}") from None
    if not found:
        raise ValueError(f"{name} must hold at least one number, got none")
    if not all(math.isfinite(size) for size in found):
        raise ValueError(f"{name} must be finite, got {' '.join(f'{size:g}' for size in found)}")
    if min(found) < 0:
        raise ValueError(f"{name} must be >= 0, got {min(found)}")
    return found


def _wanted(kind: Any) -> str | None:
    """What a field of this kind must be, in words; None for a kind that is not looked at."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return _KINDS[kind][1] if kind in _KINDS else None


def _shown(value: object) -> str:
    """A value as Python writes it; an array or a tensor that takes more than one line by its type alone."""
    return f"a {type(value).__name__}" if "\n" in repr(value) else repr(value)


def _fits(value: object, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    return isinstance(value, _KINDS[kind][0]) and (kind is bool or not isinstance(value, bool))
