"""How arguments are read: fractions, files and options in any order, the user's own classes, mistyped words.

A class is named as `--method package.module:Class` or `--attack file.py:Class`. It is a frozen dataclass; its fields
are options, `--method.weight 3`, as those of the built-in ones are. Nothing is imported but what the user typed.
"""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

SWITCH, ONE, MANY, WORDS = 0, 1, -1, -2
"""Values that an option takes: none, one, as many numbers as follow, or all words up to the next option."""
ROLES = {"--method": "loss", "--attack": "perturb"}
"""Options that name a class, and the function that it must have."""


def number(text: str) -> float:
    """A number, also as a fraction: `8/255`."""
    above, divided, below = text.partition("/")
    if not divided:
        return float(text)
    if float(below) == 0:
        raise ValueError(f"a fraction must not divide by zero, got {text}")
    return float(above) / float(below)


@cache
def registry() -> ConstructorRegistry:
    """What the parser makes of texts: numbers may be fractions."""
    made = ConstructorRegistry()

    @made.primitive_rule
    def fraction(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[float] | None:
        if kind.type is not float:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="FLOAT",
            instance_from_str=lambda texts: number(texts[0]),
            is_instance=lambda value: isinstance(value, float) or ("~" if isinstance(value, int) else False),
            str_from_instance=lambda value: [str(value)],
        )

    return made


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of a command."""

    name: str
    """With its dashes."""
    values: int
    """SWITCH, ONE, MANY or WORDS."""
    choices: tuple[str, ...] = ()
    """The words that it takes; empty where it takes others."""
    number: str = ""
    """What each of its values must be: `a number` or `a whole number`; empty where it may be something else."""


def options_of(command: type, prefix: str = "") -> Iterator[Option]:
    """The options of a command, those of nested settings included; positional arguments are none."""
    hints = get_type_hints(command, include_extras=True)
    for one in dataclasses.fields(command):
        declared, *extra = get_args(hints[one.name]) if get_origin(hints[one.name]) is Annotated else (hints[one.name],)
        if any(mark is tyro.conf.Positional for mark in extra):
            continue
        name = f"{prefix}{one.name.replace('_', '-')}"
        members = [kind for kind in _members(declared) if kind is not NoneType]
        nested = [kind for kind in members if isinstance(kind, type) and dataclasses.is_dataclass(kind)]
        if nested:
            flat = any(getattr(mark, "name", None) == "" for mark in extra)
            for kind in nested:
                yield from options_of(kind, prefix if flat else f"{name}.")
        elif bool in members and len(members) < len(_members(declared)):  # on, off, or left out
            yield Option(f"--{name}", ONE, ("True", "False"))
        elif bool in members:
            path = name.split(".")
            path[-1] = f"no-{path[-1]}" if one.default is True else path[-1]
            yield Option(f"--{'.'.join(path)}", SWITCH)
        else:
            tuples = [kind for kind in members if get_origin(kind) is tuple]
            many = WORDS if any(get_args(kind)[0] is str for kind in tuples) else MANY
            choices = [word for kind in members if get_origin(kind) is Literal for word in get_args(kind)]
            words = tuple(word for word in choices if isinstance(word, str))
            yield Option(f"--{name}", many if tuples else ONE, words, _number_of(members))


def _members(kind: Any) -> Sequence[Any]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _number_of(members: Sequence[Any]) -> str:
    """What values of these types must be, where all of them are numbers."""
    kinds = {part for kind in members for part in (get_args(kind) or (kind,)) if part is not Ellipsis}
    if not kinds or not kinds <= {int, float}:
        return ""
    return "a number" if float in kinds else "a whole number"


def check_numbers(command: type, arguments: Sequence[str]) -> None:
    """Raise where the first value of an option that takes numbers is none."""
    known = {option.name: option for option in options_of(command)}
    for place, argument in enumerate(arguments):
        name, joined, value = argument.partition("=")
        option = known.get(name.replace("_", "-"))
        if option is None or not option.number:
            continue
        if not joined:
            following = arguments[place + 1] if place + 1 < len(arguments) else "--"
            if following.startswith("-") and not _is_number(following):
                continue  # no value: the parser says so
            value = following
        if not _is_number(value, whole=option.number == "a whole number"):
            wanted = f"{option.number[2:]}s with spaces between them" if option.values == MANY else option.number
            raise ValueError(f"{name} must be {wanted}, got {value!r}")


SIZES = {"--eps": "--radii", "--radii": "--eps"}
"""Sizes that commands about images and commands about distributions call differently."""
OTHER_NAMES = {"--samples": "--n"}
"""Options by another name: torchrun takes `--n` for one of its own, wherever it stands."""


def spelt_choices(command: type, arguments: Sequence[str]) -> list[str]:
    """The arguments with the words of options that take a few as these are spelt: `L2` is l2, `L-inf` is linf."""
    known = {option.name for option in options_of(command)}
    others = {other: name for other, name in OTHER_NAMES.items() if name in known and other not in known}
    arguments = [re.sub(r"^--[\w-]+", lambda found: others.get(found[0], found[0]), one) for one in arguments]
    choices: dict[str, dict[str, str]] = {}
    for option in options_of(command):
        choices.setdefault(option.name, {}).update({_bare(word): word for word in option.choices})
    found = list(arguments)
    for place, argument in enumerate(arguments):
        option, joined, value = argument.partition("=")
        words = choices.get(option.replace("_", "-"), {})
        if joined:
            found[place] = f"{option}={words.get(_bare(value), value)}"
        elif words and place + 1 < len(arguments):
            found[place + 1] = words.get(_bare(arguments[place + 1]), arguments[place + 1])
    return found


def _bare(word: str) -> str:
    """A word in small letters, without what people put between them."""
    return re.sub(r"[-_. ]", "", word.lower())


def names_first(command: type, arguments: Sequence[str]) -> list[str]:
    """The arguments with the names (folders, files) before the options, wherever they stood.

    An option takes the values that it declares; one with any number of them takes the numbers that follow, or, if they
    are words, everything up to the next option. With an option that is not known the order stays: the parser says what
    is wrong.
    """
    known = {option.name: option.values for option in options_of(command)} | {"-h": SWITCH, "--help": SWITCH}
    names, rest, place = [], [], 0
    while place < len(arguments):
        argument = arguments[place]
        option, joined, _ = argument.partition("=")
        option = option.replace("_", "-")
        place += 1
        if not argument.startswith("-") or _is_number(argument):
            # `method:nal` chooses a method, and is no name of a file.
            (rest if argument.startswith(("method:", "attack:")) else names).append(argument)
            continue
        if option not in known:
            return list(arguments)
        rest.append(argument)
        if joined or known[option] == SWITCH:
            continue
        if known[option] == ONE:
            rest += arguments[place : place + 1]
            place += 1
        while place < len(arguments) and _belongs(arguments[place], known[option]):
            rest.append(arguments[place])
            place += 1
    return [*names, *rest]


def _belongs(argument: str, values: int) -> bool:
    """Whether an argument is one more value of the option before it."""
    return (values == MANY and _is_number(argument)) or (values == WORDS and not argument.startswith("-"))


def _is_number(text: str, *, whole: bool = False) -> bool:
    try:
        int(text) if whole else number(text)
    except ValueError:
        return False
    return True


def suggestion(word: str, known: Iterable[str]) -> str:
    """A question that follows a message about a mistyped word; empty if nothing is near."""
    bare = {_unmarked(one): one for one in known}
    near = difflib.get_close_matches(_unmarked(word), list(bare), n=1, cutoff=0.65)
    return f"; did you mean {bare[near[0]]}?" if near else ""


def _unmarked(word: str) -> str:
    """A word without its dashes, `method:` or `attack:`: what all have makes nothing alike."""
    return re.sub(r"^(--?|method:|attack:)", "", word)


def suggestions(command: type, arguments: Sequence[str]) -> str:
    """What was perhaps meant by the first argument that is no option, choice, method or attack of the command."""
    options = list(options_of(command))
    known = {option.name for option in options}
    for argument in arguments:
        word = argument.partition("=")[0].replace("_", "-")
        if word.startswith("--") and word not in known:
            size = SIZES.get(word)
            return f"; did you mean {size}?" if size in known else suggestion(word, known)
    for role in ("method", "attack"):
        if not any(name.startswith(f"--{role}.") for name in known):
            continue
        for argument in arguments:
            named = argument.removeprefix(f"{role}:")
            if argument in _kinds(role) or (named != argument and named not in _kinds(role)):
                return suggestion(f"{role}:{named}", {f"{role}:{kind}" for kind in _kinds(role)})
    for before, argument in pairwise(arguments):
        words = {word for option in options if option.name == before.replace("_", "-") for word in option.choices}
        if words and argument not in words:
            return suggestion(argument, words)
    return ""


def about_names(command: type, message: str) -> str:
    """The parser's message, where it calls names that are too many unrecognized options, in other words."""
    found = re.fullmatch(r"Unrecognized options: ((?!-)(?:(?!, --).)*?)(?: Available subcommands: (.*))?", message)
    if found is None:
        return message
    hint = f"; choices are {found[2]}" if found[2] else ""
    if any(option.name == "--run" for option in options_of(command)):
        hint = "; a run folder is named by --run"
    return f"names must be as many as the command takes, got {found[1]} too{hint}"


@cache
def _kinds(role: str) -> frozenset[str]:
    """The built-in methods or attacks by name."""
    from rhobust.attacks import AnyAttack
    from rhobust.methods import AnyMethod
    from rhobust.settings import kind_of

    return frozenset(kind_of(kind) for kind in get_args({"method": AnyMethod, "attack": AnyAttack}[role]))


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
        from rhobust.models.named_code import named_code  # needs torch

        cls = named_code(value, role)
        if not isinstance(cls, type) or not dataclasses.is_dataclass(cls) or not hasattr(cls, ROLES[option]):
            raise ValueError(f"{role} {value} must be a dataclass with a function {ROLES[option]}, got {cls!r}")
        check_attack(f"{role} {value}", cls)
        return OwnCode(role, cls), [*arguments[:place], *arguments[after:]]
    return None, arguments


def check_attack(name: str, cls: object) -> None:
    """Raise if a class of the user's perturbs inputs and lacks what every attack inherits."""
    from rhobust.attacks import AttackMethod  # needs torch

    if hasattr(cls, ROLES["--attack"]) and not (isinstance(cls, type) and issubclass(cls, AttackMethod)):
        raise ValueError(f"{name} must inherit from AttackMethod of rhobust.attacks, got {cls!r}")


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
