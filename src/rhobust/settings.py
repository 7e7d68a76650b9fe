"""Frozen dataclasses as settings: type checks, and JSON in both directions."""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from itertools import pairwise
from numbers import Integral, Real
from types import MappingProxyType, NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin

import cattrs
from cattrs.gen import make_dict_unstructure_fn, override
from cattrs.strategies import configure_tagged_union

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_KINDS: dict[Any, tuple[type, str]] = {
    int: (Integral, "an int"),
    float: (Real, "a number"),
    bool: (bool, "True or False"),
    str: (str, "a string"),
    NoneType: (NoneType, "None"),
}
T = TypeVar("T")
AUTO = MappingProxyType({"auto": True})
"""Metadata of a field whose default, None, stands for a value that suits the target or its device.

A search for a record accepts any value where such a field is None.
"""
OMIT_IF_DEFAULT = MappingProxyType({"omit_if_default": True})
"""Metadata of a field that is not written while it has its default: files and run names from before it stay valid."""


LARGEST = 1_000_000_000
"""The largest absolute value of a number among settings, but a seed's: beyond it arithmetic overflows."""
LARGEST_SEED = 1 << 64
SMALLEST = 1e-12
"""The smallest number among settings that must be above 0: below it the arithmetic of the network rounds to 0."""


def check_declared(settings: "DataclassInstance") -> None:
    """Raise if a field of a dataclass has another type or value than it declares.

    Checked are numbers, strings, booleans, literals and None; numbers must be finite and at most `LARGEST`. An unknown
    literal would otherwise select the last branch of the code that uses it. Numbers of numpy become Python's own, which
    every file can hold.
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, Real) and hasattr(value, "item"):
            value = value.item()
            object.__setattr__(settings, field.name, value)
        union = get_origin(field.type) in (Union, UnionType)
        kinds = get_args(field.type) if union else (field.type,)
        required = [_required(kind) for kind in kinds]
        if None not in required and not any(_fits(value, kind) for kind in kinds):
            raise ValueError(f"{field.name} must be {' or '.join(map(str, required))}, got {_describe_value(value)}")
        if (int in kinds or float in kinds) and isinstance(value, Real):
            check_bounded(field.name, value)


def check_instance(name: str, value: object, kind: type | tuple[type, ...], required: str) -> None:
    """Raise unless a value is an instance of a class, or of one of several; `required` says which, in words."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} must be {required}, got {named_kind(value)}")


def named_kind(value: object) -> str:
    """What a value is, for messages: a class, or an instance of one."""
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def check_bounded(name: str, value: Any) -> None:
    """Raise unless a number is finite and within `LARGEST` of 0."""
    largest = LARGEST_SEED if name == "seed" else LARGEST
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    if not -largest <= value <= largest:
        raise ValueError(f"{name} must be between -{largest:,} and {largest:,}, got {_describe_value(value)}")


def check_at_least(least: int, settings: "DataclassInstance", *names: str) -> None:
    """Raise if one of these fields is below `least`; None passes."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be >= {least}, got {value}")


def check_positive(settings: "DataclassInstance", *names: str) -> None:
    """Raise if one of these fields is not > 0; None passes."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be > 0, got {value}")
        if value is not None and value < SMALLEST:
            raise ValueError(f"{name} must be at least {SMALLEST:g}, got {value}")


def check_count(name: str, value: int) -> None:
    """Raise unless value is an integer >= 1."""
    if not _fits(value, int):
        raise ValueError(f"{name} must be an int, got {_describe_value(value)}")
    if value < 1:
        raise ValueError(f"{name} must be >= 1, got {value}")
    check_bounded(name, value)


def check_number(name: str, value: float) -> None:
    """Raise unless value is one finite number."""
    if not _fits(value, float):
        raise ValueError(f"{name} must be a number, got {_describe_value(value)}")
    check_bounded(name, value)


def check_positive_number(name: str, value: float) -> None:
    """Raise unless value is one number > 0 and finite."""
    if not _fits(value, float):
        raise ValueError(f"{name} must be a number, got {_describe_value(value)}")
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be > 0 and finite, got {value}")
    if value < SMALLEST:
        raise ValueError(f"{name} must be at least {SMALLEST:g}, got {value}")
    check_bounded(name, value)


def check_level(alpha: float, name: str = "alpha") -> None:
    """Raise unless alpha is in (0, 1)."""
    if not _fits(alpha, float) or not 0 < alpha < 1:
        raise ValueError(f"{name} must be in (0, 1), got {alpha}")


def sizes(name: str, values: Iterable[float]) -> tuple[float, ...]:
    """Radii or shift sizes as floats; raises unless they are a list of numbers from 0 to `LARGEST`."""
    try:
        found = tuple(float(value) for value in values)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a list of numbers, got {_describe_value(values)}") from None
    if not found:
        raise ValueError(f"{name} must hold at least one number, got none")
    if not all(math.isfinite(size) for size in found):
        raise ValueError(f"{name} must be finite, got {' '.join(f'{size:g}' for size in found)}")
    if min(found) < 0:
        raise ValueError(f"{name} must be >= 0, got {min(found)}")
    check_bounded(name, max(found))
    return found


def check_increasing(name: str, values: Iterable[float]) -> tuple[float, ...]:
    """Radii or shift sizes as floats; those that are negative, not increasing, or none at all are refused."""
    found = sizes(name, values)
    if any(later <= earlier for earlier, later in pairwise(found)):
        raise ValueError(f"{name} must increase, got {' '.join(f'{value:g}' for value in found)}")
    return found


def _required(kind: Any) -> str | None:
    """The requirement of a type, for messages; None for a type that is not checked."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return _KINDS[kind][1] if kind in _KINDS else None


def _describe_value(value: object) -> str:
    """The repr of a value; its type for an array or tensor of several lines."""
    return f"a {type(value).__name__}" if "\n" in repr(value) else repr(value)


def _fits(value: object, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    return isinstance(value, _KINDS[kind][0]) and (kind is bool or not isinstance(value, bool))


@dataclass(frozen=True)
class NotImported:
    """Settings of a user's dataclass whose module is not imported: no file makes rhobust import code."""

    kind: str
    """package.module:Class."""
    settings: dict[str, Any]
    """Its fields in the file."""

    @property
    def sigma(self) -> float | None:
        """The smoothing noise of a training method that has one."""
        return self.settings.get("sigma")


def flatten(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a nested document, by their keys with dots between them.

    >>> dict(flatten({"method": {"sigma": 0.25}, "seed": 0}))
    {'method.sigma': 0.25, 'seed': 0}
    """
    for key, value in document.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def kind_of(cls: type) -> str:
    """The name of a member of a union in JSON and on the command line."""
    return vars(cls).get("kind") or cls.__name__.lower()


def to_json(value: object, *unions: UnionType) -> Any:
    """A dataclass as JSON values; the value of a field that is one of the given unions has a `kind`."""
    return _converter(*unions).unstructure(value)


def member_to_json(value: object, union: UnionType) -> Any:
    """A member of a union, or a user's dataclass in its place, as JSON values with its `kind`."""
    return _converter(union).unstructure(value, unstructure_as=union)


def from_json(cls: type[T], document: Any, where: str, *unions: UnionType) -> T:
    """A dataclass from JSON values."""
    try:
        return _converter(*unions).structure(document, cls)
    except Exception as error:
        faults = "; ".join(cattrs.transform_error(error, format_exception=_describe))
        raise ValueError(f"{where} must be a valid {cls.__name__}, but {faults}") from None


def _describe(error: BaseException, kind: type | None) -> str:
    match error:
        case cattrs.errors.ForbiddenExtraKeysError():
            return f"it has unknown keys ({', '.join(sorted(error.extra_fields))})"
        case KeyError():
            return f"{error.args[0]!r} is missing or unknown"
        case _:
            return str(error)


def _exactly(allowed: tuple[type, ...], word: str) -> Any:
    def check(value: Any, _: Any) -> Any:
        if type(value) not in allowed:
            raise ValueError(f"a value must be {word}, got {value!r}")
        return value

    return check


@lru_cache(maxsize=8)
def _converter(*unions: UnionType) -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    # cattrs would convert 4.7 to 4 and "no" to True.
    converter.register_structure_hook(int, _exactly((int,), "a whole number"))
    converter.register_structure_hook(float, _exactly((float, int), "a number"))
    converter.register_structure_hook(bool, _exactly((bool,), "true or false"))
    converter.register_structure_hook(str, _exactly((str,), "a string"))
    converter.register_unstructure_hook_factory(
        lambda cls: isinstance(cls, type) and is_dataclass(cls) and bool(_omitted(cls)),
        lambda cls: make_dict_unstructure_fn(cls, converter, **_omitted(cls)),
    )
    for union in unions:
        configure_tagged_union(union, converter, tag_generator=kind_of, tag_name="kind")
        _admit_user_classes(converter, union)
    return converter


def _omitted(cls: Any) -> dict[str, Any]:
    """Overrides for the fields of a dataclass that are not written while they have their defaults."""
    named = (field.name for field in fields(cls) if field.metadata.get("omit_if_default"))
    return {name: override(omit_if_default=True) for name in named}


def _abilities(cls: type) -> set[str]:
    """The names of a class's public methods."""
    return {name for name in dir(cls) if not name.startswith("_") and callable(getattr(cls, name, None))}


def _admit_user_classes(converter: cattrs.Converter, union: UnionType) -> None:
    """Accept a user's dataclass as a member of the union, and name the choices in errors."""
    structure_member, unstructure_member = converter.get_structure_hook(union), converter.get_unstructure_hook(union)
    kinds = [kind_of(cls) for cls in get_args(union)]
    # What all members can do, a method its loss: a file must not make us build any other dataclass in memory.
    abilities = set.intersection(*map(_abilities, get_args(union)))

    def structure(value: Any, _: Any) -> Any:
        kind = value.get("kind") if isinstance(value, dict) else None
        if isinstance(kind, str) and ":" in kind:
            settings = {key: item for key, item in value.items() if key != "kind"}
            module, _, name = kind.partition(":")
            # Not getattr: some modules import others when asked for a name.
            cls = vars(sys.modules[module]).get(name) if module in sys.modules else None
            if isinstance(cls, type) and is_dataclass(cls) and abilities <= _abilities(cls):
                return converter.structure(settings, cls)
            return NotImported(kind, settings)
        if kind not in kinds:
            raise ValueError(f"kind must be one of {', '.join(kinds)}, or package.module:Class, got {kind!r}")
        return structure_member(value, union)

    def unstructure(value: Any) -> Any:
        # A subclass is a user's class, with additional fields.
        if type(value) in get_args(union):
            return unstructure_member(value)
        if isinstance(value, NotImported):
            return {"kind": value.kind, **value.settings}
        cls = type(value)
        if not is_dataclass(cls):
            raise ValueError(f"a value must be a dataclass or one of {', '.join(kinds)}, got {cls.__name__}")
        return {"kind": f"{cls.__module__}:{cls.__qualname__}", **converter.unstructure(value)}

    converter.register_structure_hook(union, structure)
    converter.register_unstructure_hook(union, unstructure)
