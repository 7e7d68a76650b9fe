"""Frozen dataclasses as settings: type checks, and JSON in both directions."""

import math
from collections.abc import Iterable
from dataclasses import fields
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
import sys
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar

import cattrs
from cattrs.gen import make_dict_unstructure_fn, override
from cattrs.strategies import configure_tagged_union

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


T = TypeVar("T")
OMIT_IF_DEFAULT = MappingProxyType({"later": True})
"""Metadata of a setting that came after runs had been named by theirs: while it has its default it is not written."""


@dataclass(frozen=True)
class Foreign:
    """The settings of a user's own dataclass whose module is not imported: nothing is imported to read a file."""

    kind: str
    """package.module:Class."""
    settings: dict[str, Any]
    """Its fields as they stand in the file."""

    @property
    def sigma(self) -> float | None:
        """The smoothing noise, for a training method that has one."""
        return self.settings.get("sigma")


def kind_of(cls: type) -> str:
    """The word that names a member of a union in JSON and on the command line."""
    return vars(cls).get("kind") or cls.__name__.lower()


def to_json(value: object, *unions: UnionType) -> Any:
    """A dataclass as plain JSON values; where a field is one of the given unions, its value carries its `kind`."""
    return _converter(*unions).unstructure(value)


def member_to_json(value: object, union: UnionType) -> Any:
    """A member of a union, or a user's own dataclass in its place, as plain JSON values with its `kind`."""
    return _converter(union).unstructure(value, unstructure_as=union)


def from_json(cls: type[T], document: Any, where: str, *unions: UnionType) -> T:
    """A dataclass from plain JSON values.

    Args:
        cls: The dataclass.
        document: What `to_json` wrote.
        where: The file's name, for the message of a fault.
        unions: The tagged unions that occur in the dataclass.
    """
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
            return f"{error.args[0]!r} is missing or names nothing known"
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
    # cattrs would turn 4.7 into 4 and "no" into True: a config must hold what it means.
    converter.register_structure_hook(int, _exactly((int,), "a whole number"))
    converter.register_structure_hook(float, _exactly((float, int), "a number"))
    converter.register_structure_hook(bool, _exactly((bool,), "true or false"))
    converter.register_structure_hook(str, _exactly((str,), "a string"))
    converter.register_unstructure_hook_factory(_has_later, lambda cls: _without_defaults(cls, converter))
    for union in unions:
        configure_tagged_union(union, converter, tag_generator=kind_of, tag_name="kind")
        _admit_foreign(converter, union)
    return converter


def _later(cls: type) -> list[str]:
    return [field.name for field in fields(cls) if field.metadata.get("later")]


def _has_later(cls: Any) -> bool:
    return isinstance(cls, type) and is_dataclass(cls) and bool(_later(cls))


def _without_defaults(cls: type, converter: cattrs.Converter) -> Any:
    omitted: dict[str, Any] = {name: override(omit_if_default=True) for name in _later(cls)}
    return make_dict_unstructure_fn(cls, converter, **omitted)


def _admit_foreign(converter: cattrs.Converter, union: UnionType) -> None:
    """Let a user's own dataclass stand where a member of the union stands, and name the choices in a fault."""
    structure_member, unstructure_member = converter.get_structure_hook(union), converter.get_unstructure_hook(union)
    kinds = [kind_of(cls) for cls in get_args(union)]

    def structure(value: Any, _: Any) -> Any:
        kind = value.get("kind") if isinstance(value, dict) else None
        if isinstance(kind, str) and ":" in kind:
            settings = {key: item for key, item in value.items() if key != "kind"}
            module, _, name = kind.partition(":")
            cls = getattr(sys.modules.get(module), name, None)
            if isinstance(cls, type) and is_dataclass(cls):
                return converter.structure(settings, cls)
            return Foreign(kind, settings)
        if kind not in kinds:
            raise ValueError(f"kind must be one of {', '.join(kinds)}, or package.module:Class, got {kind!r}")
        return structure_member(value, union)

    def unstructure(value: Any) -> Any:
        # A subclass is a class of the user's own, with fields that the member does not know.
        if type(value) in get_args(union):
            return unstructure_member(value)
        if isinstance(value, Foreign):
            return {"kind": value.kind, **value.settings}
        cls = type(value)
        if not is_dataclass(cls):
            raise ValueError(f"a value must be a dataclass or one of {', '.join(kinds)}, got {cls.__name__}")
        return {"kind": f"{cls.__module__}:{cls.__qualname__}", **converter.unstructure(value)}

    converter.register_structure_hook(union, structure)
    converter.register_unstructure_hook(union, unstructure)
