"""Extras: every message and page that names one names one that exists; the check of an installation itself."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.conftest import load_script

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
TREES = ("src", "reproduction", "benchmarks", "docs", "examples", "tests")
NAMED = re.compile(r"(?:\.|rhobust)\[([a-z, ]+)\]'|extra `([a-z]+)`")


def texts() -> dict[Path, str]:
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "pyproject.toml", "Makefile")]
    for tree in TREES:
        pages += [path for suffix in ("py", "md", "ipynb") for path in (ROOT / tree).rglob(f"*.{suffix}")]
    return {path: path.read_text() for path in pages if path != Path(__file__)}


def test_every_extra_that_is_named_exists() -> None:
    found: dict[str, Path] = {}
    for path, text in texts().items():
        for listed, single in NAMED.findall(text.replace("\\", "")):
            found |= {name.strip(): path for name in (listed or single).split(",")}
    assert {"hub", "attacks", "plots"} <= set(found)
    assert {name: path for name, path in found.items() if name not in EXTRAS} == {}


def test_one_table_lists_every_extra_with_what_it_brings() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert [name for name, _ in rows if name in EXTRAS] == [name for name, _ in rows]
    assert {name for name, _ in rows} == set(EXTRAS)
    for name, brings in rows:
        if name in ("hub", "attacks", "plots", "demo", "ray"):
            packages = [re.split(r"[<>=\[]", one)[0] for one in EXTRAS[name]]
            assert sorted(brings.strip().split(", ")) == sorted(packages)
    assert "docs/install.md" in (ROOT / "README.md").read_text()


def test_versions_are_named_alike() -> None:
    classified = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert f">={classified[0]}" == PROJECT["requires-python"]
    page = (ROOT / "docs" / "install.md").read_text()
    assert f"Python {', '.join(classified[:-1])} or {classified[-1]}" in page
    (torch,) = [one.removeprefix("torch>=") for one in PROJECT["dependencies"] if one.startswith("torch>=")]
    assert f"torch {torch} or newer" in page


@pytest.fixture
def script():
    return load_script("tests/install/check.py")


def test_the_check_pins_the_lower_bounds(script) -> None:
    assert script.pinned(ROOT, oldest=False, torch=None) == []
    assert script.pinned(ROOT, oldest=False, torch="2.13.0") == ["torch==2.13.0"]
    oldest = script.pinned(ROOT, oldest=True, torch=None)
    assert len(oldest) == len(PROJECT["dependencies"])
    assert "torch==2.11.*" in oldest
    assert "tyro==1.0.10" in oldest


def test_the_parts_that_the_wheel_must_hold_exist(script) -> None:
    assert [part for part in script.PARTS if not (ROOT / "src" / "rhobust" / part).is_file()] == []
