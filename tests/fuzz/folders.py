"""Run folders of which one file was edited, under every command that reads it."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from tests.fuzz.edits import Edit, all_edits
from tests.fuzz.harness import Case, anything, command, normal
from tests.fuzz.material import SMALL, material, own, resumed

Words = Callable[[Path, Path], list[object]]
"""The arguments of a command, from the edited folder and the folder of all material."""
READERS: dict[str, Words] = {
    "audit": lambda run, _: ["audit", run, "--share", 0.1, "--seed", 1],
    "report": lambda run, _: ["report", run, "--out", "page.html"],
    "compare": lambda run, at: ["compare", run, at / "other"],
    "certify": lambda run, _: ["certify", run, "--n0", 10, "--n", 100, "--procedure", "fixed", *SMALL],
    "certify-shift": lambda run, _: ["certify-shift", run, "--eps", 0, 0.1, "--draws", 4, "--limit", 20],
    "attack": lambda run, _: [
        *("attack", run, "attack:pgd", "--attack.steps", 2, "--radii", 0, 2, "--no-probe", *SMALL)
    ],
    "predict": lambda run, at: ["predict", run, at / "image.png", "--n", 20],
}
OWN: dict[str, Words] = {
    "own audit": lambda run, at: ["audit", run, "--share", 0.1, "--seed", 1, "--trust"],
    "own certify-shift": lambda run, at: [
        *("certify-shift", *own(at), "--out", run, "--eps", 0, 0.1, "--draws", 2, *SMALL)
    ],
    "own report": lambda run, at: ["report", run, "--out", "page.html"],
}
TRAINING: dict[str, Words] = {"train": lambda run, _: list(resumed(run))}


@cache
def expected(folder: str, name: str) -> object:
    """What a command prints of the folder unchanged."""
    import contextlib
    import io
    import tempfile

    from tests.fuzz.harness import inside

    out = io.StringIO()
    with inside(Path(tempfile.mkdtemp(prefix="fuzz-"))):
        shutil.copytree(material() / folder, "run", symlinks=True)
        with contextlib.redirect_stdout(out):
            words = (READERS | OWN | TRAINING)[name](Path("run"), material())
            assert command([*map(str, words), "--json", *([] if "--quiet" in words else ["--quiet"])]) == 0, name
    return normal(out.getvalue())


def folder_cases(flips: int = 3, values: int = 4) -> Iterator[Case]:
    """Every file of the folders, every edit, every command."""
    for folder, commands in (("run", READERS), ("own", OWN), ("unfinished", TRAINING)):
        for path in sorted((material() / folder).iterdir()):
            if path.suffix == ".lock":
                continue
            for what, edit in (("deleted", Path.unlink), *all_edits(path, flips, values)):
                for name in commands:
                    yield _case(folder, path.name, what, edit, name, commands[name])


def _case(folder: str, file: str, what: str, edit: Edit, name: str, words: Words) -> Case:
    def prepare(at: Path) -> list[object]:
        shutil.copytree(material() / folder, at / "run", symlinks=True)
        edit(at / "run" / file)
        given = words(Path("run"), material())
        return [*given, "--json", *([] if "--quiet" in given else ["--quiet"])]

    def right(out: str) -> bool:
        if name.endswith("report") and json.loads(out)["problems"]:
            return True
        return normal(out) == expected(folder, name)

    return Case(f"folder {name}", f"{folder}/{file} {what}", prepare, anything if _may(file, what, name) else right)


def _may(file: str, what: str, name: str) -> bool:
    """Whether a command may give another answer than before, and say nothing.

    - A file that is not there is nobody's; one that was cut is as a kill leaves it, and counts as unfinished.
    - A forger who can write a record can seal it; what was sealed is for `audit`, which looks at certificates only.
    - Settings, environment and metrics have no digest: a value of the right type and range is the run's.
    """
    if what == "deleted" or "dangling" in what:
        return True
    if file.endswith(".jsonl") and what in ("empty", "a quarter", "three quarters"):
        return True
    if "sealed" in what:
        return True
    return file in ("config.json", "environment.json", "metrics.jsonl")
