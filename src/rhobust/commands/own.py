"""The user's own method or attack on the command line: `--method package.module:Class`, `--attack file.py:Class`.

The class is a frozen dataclass; its fields are options, `--method.weight 3`, as those of the built-in ones are. Nothing
is imported but what the user typed.
"""

import dataclasses
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from rhobust.models.sources import named_code

ROLES = {"--method": "loss", "--attack": "perturb"}
"""Options that name a class, and the function that it must have."""


class OwnCode(NamedTuple):
    """A class that the user named on the command line."""

    role: str
    """method or attack."""
    cls: type


def own_code(arguments: list[str]) -> tuple[OwnCode | None, list[str]]:
    """The class that the arguments name, if any, and the arguments without it."""
    for place, argument in enumerate(arguments):
        option, joined, value = argument.partition("=")
        if option not in ROLES:
            continue
        after = place + 1
        if not joined:
            value, after = (arguments[after] if after < len(arguments) else ""), after + 1
        role = option.removeprefix("--")
        if ":" not in value:
            raise ValueError(f"{option} must name a class, package.module:Class, got {value!r}; built in: {role}:NAME")
        cls = named_code(value, role)
        if not isinstance(cls, type) or not dataclasses.is_dataclass(cls) or not hasattr(cls, ROLES[option]):
            raise ValueError(f"{role} {value} must be a dataclass with a function {ROLES[option]}, got {cls!r}")
        return OwnCode(role, cls), [*arguments[:place], *arguments[after:]]
    return None, arguments


def with_own_code(command: Any, own: OwnCode) -> Any:
    """The command with the options of the user's class in the place of those of the built-in ones."""
    for one in dataclasses.fields(command):
        declared, *extra = get_args(one.type) if get_origin(one.type) is Annotated else (one.type,)
        if isinstance(declared, type) and dataclasses.is_dataclass(declared):
            (inner,) = [inner for inner in dataclasses.fields(declared) if inner.name == own.role] or [None]
            if inner is not None:
                return _replaced(command, one, declared, extra, inner, own)
    raise ValueError(f"--{own.role} must be left out: this command takes none")


def _replaced(command: Any, outer: Any, declared: type, extra: list[Any], inner: Any, own: OwnCode) -> Any:
    """The command whose field `outer`, of the type `declared`, has the user's class as its field `inner`."""
    default = (
        dataclasses.field() if inner.default is dataclasses.MISSING else dataclasses.field(default_factory=own.cls)
    )
    theirs = dataclasses.make_dataclass(
        declared.__name__, [(own.role, own.cls, default)], bases=(declared,), frozen=True, kw_only=inner.kw_only
    )
    kind: Any = Annotated[(theirs, *extra)] if extra else theirs
    required = outer.default_factory is dataclasses.MISSING
    whole: Any = dataclasses.field() if required else dataclasses.field(default_factory=theirs)

    def make_plain(self: Any) -> None:
        """Put plain settings in the place of those that were made for the parser."""
        parsed = getattr(self, outer.name)
        values = {one.name: getattr(parsed, one.name) for one in dataclasses.fields(declared) if one.init}
        object.__setattr__(self, outer.name, declared(**values))

    return dataclasses.make_dataclass(
        command.__name__,
        [(outer.name, kind, whole)],
        bases=(command,),
        frozen=True,
        namespace={"__doc__": command.__doc__, "__post_init__": make_plain},
    )
