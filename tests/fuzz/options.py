"""Every option of every command with values that it must refuse, and with odd ones that it may take."""

import io
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path

from tests.fuzz.harness import Case, anything, command, refused
from tests.fuzz.material import SMALL, material, place_special

HUGE = "1" + "0" * 21
NUMBERS = ("nan", "inf", "-inf", "1e308", "1e999", "-1", HUGE, "abc", "", "0.5.5", "--", "0x")
"""No number of an option may be one of these; a seed may be negative."""
ODD_NUMBERS = ("0", "1e-308", "1", "1e-9")
TEXTS = (
    "",
    "no-such-thing",
    "\x1b[31mred\x1b[2J",
    "a" * 5000,
    "\udcff\udcfe",
    "no_such_module:make",
    "a\nb",
    "os:",
    ":x",
    "%s",
)
"""Neither data nor networks nor devices have such names."""
CHOICES = ("abc", "", "None ", "\x1b[2J", "TRUE?")
SPECIAL = ("fifo", "socket", "loop", "dangling")
"""What may be in the place of a file."""
NEGATIVE = ("--seed",)
"""Options that take negative numbers."""
BASES: dict[str, Callable[[Path], list[object]]] = {
    "quickstart": lambda at: ["quickstart", "--out", "new", "--epochs", 1, "--limit", 1, "--n", 100],
    "data list": lambda at: ["data", "list"],
    "data get": lambda at: ["data", "get", "digits"],
    "data check": lambda at: ["data", "check", at / "images"],
    "certify": lambda at: ["certify", at / "sweep", "--n0", 10, "--n", 100, "--procedure", "fixed", *SMALL],
    "certify-shift": lambda at: ["certify-shift", at / "sweep", "--eps", 0, 0.1, "--draws", 4, "--limit", 20],
    "conform": lambda at: ["conform", at / "sweep", "--draws", 2, "--score", "probability", *SMALL],
    "measure-shift": lambda at: [
        *("measure-shift", at / "before", at / "after", "--run", at / "sweep", "--draws", 2, *SMALL)
    ],
    "monitor": lambda at: [
        *("monitor", at / "sweep", "--reference", at / "before", "--changed", at / "after", "--draws", 2, *SMALL),
        *("--at-least", 0),
    ],
    "curves": lambda at: [
        *("curves", at / "sweep", "--eps", 0, 0.1, "--gammas", 1, "--steps", 1, "--draws", 2, *SMALL)
    ],
    "evaluate": lambda at: ["evaluate", at / "missing", "--out", "new"],
    "sign": lambda at: ["sign", at / "run", "--key", "missing"],
    "compare": lambda at: ["compare", at / "run", at / "other"],
    "audit": lambda at: ["audit", at / "run", "--share", 0.1, "--seed", 1],
    "predict": lambda at: ["predict", at / "run", at / "image.png", "--n", 20],
    "publish": lambda at: ["publish", at / "run", "--out", "new"],
    "demo": lambda at: ["demo", at / "run", "--space", "new"],
    "report": lambda at: ["report", at / "run", "--out", "page.html"],
}
METHODS = ("erm", "gaussian", "nal", "wrm", "stn", "smoothadv", "trades", "pgd")
ATTACKS = ("pgd", "eot", "paper", "autoattack")
for _method in METHODS:
    BASES[f"train method:{_method}"] = lambda at, method=_method: [
        *("train", f"method:{method}", "--data", at / "data.npz", "--model", "cnn-small", "--epochs", 1),
        *("--batch-size", 20, "--out", "new"),
    ]
for _attack in ATTACKS:
    BASES[f"attack attack:{_attack}"] = lambda at, attack=_attack: [
        *("attack", at / "sweep", f"attack:{attack}", "--radii", 0, 1, "--votes", 4, "--no-probe", *SMALL)
    ]
BASES["transfer"] = lambda at: [
    *("transfer", at / "sweep", at / "other", "attack:pgd", "--attack.steps", 1, "--radii", 0, 1, "--votes", 4, *SMALL)
]


@cache
def options(base: str) -> dict[str, str]:
    """The options of a command, and of its method or attack, with what the help says that they take."""
    shown = io.StringIO()
    with redirect_stdout(shown):
        assert command([*base.split(), "--help"]) == 0, base
    found = re.findall(r"^  (--[\w.-]+)(?: (\S.*?))?(?: {2,}.*)?$", shown.getvalue(), re.MULTILINE)
    return {name: takes for name, takes in found if name not in ("--help",)}


def option_cases() -> Iterator[Case]:
    """The sweep, in a fixed order."""
    for base in BASES:
        several = base.startswith(("train", "attack")) and not base.endswith((METHODS[1], ATTACKS[1]))
        for name, takes in options(base).items():
            # Options that do not belong to a method or an attack are the same for all of them.
            if "." in name or not several:
                yield from _cases(base, name, takes)
        for words in (["--no-such-option"], ["--no-such-option", "1"], ["--json=maybe"], ["-x"], ["--=", "1"], [""]):
            yield _case(base, " ".join(words), lambda _, words=words: words, right=refused)
    for number, words in enumerate(
        (["\x1b[2J"], ["trian"], ["--quiet"], ["train"], ["train", "method:x"], ["data"], [" "])
    ):
        yield Case("options", f"no command {number}", lambda _, words=words: words, refused)


def _cases(base: str, name: str, takes: str) -> Iterator[Case]:
    """The cases of one option."""
    if not takes:
        yield _case(base, f"{name}=maybe", lambda _: [f"{name}=maybe"], right=refused)
        return
    if "..." not in takes:
        yield _case(base, f"{name} without a value", lambda _: [name], right=refused)
    if "FLOAT" in takes or "INT" in takes:
        for value in NUMBERS:
            right = anything if name in NEGATIVE and value == "-1" else refused
            yield _case(base, f"{name} {value}", lambda _, value=value: [name, value], right=right)
        for value in () if base == "quickstart" else ODD_NUMBERS:  # it would train
            yield _case(base, f"{name} {value}", lambda _, value=value: [name, value], right=anything)
        if "..." in takes:
            yield _case(base, f"{name} none", lambda _: [name], right=refused)
            yield _case(base, f"{name} falling", lambda _: [name, "0.5", "0.25"], right=anything)
            yield _case(base, f"{name} with nan", lambda _: [name, "0.1", "nan"], right=refused)
    elif takes == "STR":
        for value in TEXTS:
            yield _case(base, f"{name} {ascii(value)[:40]}", lambda _, value=value: [name, value], right=refused)
        for kind in SPECIAL:
            yield _case(base, f"{name} {kind}", lambda at, kind=kind: [name, _special(at, kind)], right=refused)
    elif takes == "PATH":
        yield from _paths(base, name)
    else:
        for value in CHOICES:
            yield _case(base, f"{name} {value!a}", lambda _, value=value: [name, value], right=refused)


def _paths(base: str, name: str) -> Iterator[Case]:
    # Data sets that come with the package, and those at a path, need no folder of data sets.
    right = anything if name == "--root" else refused
    yield _case(base, f"{name} ''", lambda _: [name, ""], right=refused)
    yield _case(base, f"{name}=", lambda _: [f"{name}="], right=refused)
    yield _case(base, f"{name} below a file", lambda at: [name, _text(at) / "x"], right=right)
    yield _case(base, f"{name} long", lambda _: [name, "n" * 5000], right=right)
    for kind in SPECIAL:
        # A link that leads nowhere is a name like any other for something new.
        new = name in ("--out", "--tsv") and kind in ("dangling", "loop")
        yield _case(
            base, f"{name} {kind}", lambda at, kind=kind: [name, _special(at, kind)], right=anything if new else right
        )
    if name not in ("--out", "--tsv", "--root"):
        yield _case(base, f"{name} missing", lambda _: [name, "missing"], right=right)
        yield _case(base, f"{name} text", lambda at: [name, _text(at)], right=right)
    if name == "--tsv" or base == "report":
        yield _case(base, f"{name} a folder", lambda _: [name, "."], right=refused)
        yield _case(base, f"{name} in no folder", lambda _: [name, "missing/page"], right=refused)
    elif name == "--out":
        yield _case(base, f"{name} a file", lambda at: [name, _text(at)], right=refused)


def _case(base: str, what: str, words: Callable[[Path], list[object]], *, right: Callable[[str], bool]) -> Case:
    def prepare(at: Path) -> list[object]:
        given = words(at)
        # Of an option that is given twice the last value counts: what is tried comes last, and the rest stays good.
        return [*BASES[base](material()), "--quiet", *given] if "--quiet" in options(base) else [*base.split(), *given]

    return Case("options", f"{base} {what}", prepare, right)


def _special(at: Path, kind: str) -> Path:
    place_special(at / kind, kind)
    return at / kind


def _text(at: Path) -> Path:
    (at / "text").write_text("text")
    return at / "text"
