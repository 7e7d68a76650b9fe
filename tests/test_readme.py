"""The words around the code: their examples run, their commands parse, their links lead somewhere."""

import importlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import rhobust
from rhobust.cli import COMMANDS, parse, run
from rhobust.settings import kind_of

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "results/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def fenced(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def named_files(page):
    """The Python files that a page shows, by name."""
    return re.findall(r"^`(\w+\.py)`:\n\n```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def command_lines(program):
    """Every call of a program in the pages' shell blocks, with its page."""
    lines = [
        (name_of(page), line)
        for page in PAGES
        for block in fenced(page, "sh")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [pytest.param(line, id=f"{page}: {line}"[:100]) for page, line in lines if line.split()[:1] == [program]]


def prose(page):
    """The page without its fenced blocks and its code spans."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page):
    """The anchors of a page's headings, as GitHub names them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with the run that the examples open."""
    folder = tmp_path_factory.mktemp("readme")
    options = "method:gaussian --method.sigma 0.25 --data digits --model cnn-small --epochs 2 --lr 0.002"
    assert run(["train", *options.split(), "--out", str(folder / "quickstart" / "nal"), "--quiet"]) == 0
    return folder


def test_the_six_lines_of_the_readme(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    code = fenced(ROOT / "README.md", "python")[-1]
    body = code.split("\n\n")[-1]
    assert len(body.splitlines()) == 6
    exec(code, {"__name__": "readme"})
    shown, statement = capsys.readouterr().out.splitlines()
    assert shown.startswith("Certificate(prediction=")
    assert "noise='grid'" in shown
    assert statement.startswith("With probability 99.9% over test points and noise, for every distribution within W2")


def test_the_first_call_of_the_readme_is_one_that_evaluate_takes(monkeypatch, capsys):
    code, _ = fenced(ROOT / "README.md", "python")
    signature = inspect.signature(rhobust.evaluate)
    monkeypatch.setattr(rhobust, "evaluate", lambda *given, **named: [*signature.bind(*given, **named).arguments])
    exec(code, {"model": None, "images": None, "labels": None})
    assert capsys.readouterr().out == "['model', 'images', 'labels', 'sigma', 'effort']\n"


LONG = {"assessment.md", "pretrained.md", "evaluate.md", "index.md"}
"""Pages whose examples evaluate whole networks."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.name in LONG else [])
        for page in PAGES
        if ROOT / "docs" in page.parents
    ],
    ids=name_of,
)
def test_the_examples_of_the_docs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name, code in named_files(page):
        (tmp_path / name).write_text(code)
    for code in fenced(page, "python"):
        with torch.random.fork_rng(devices=[]):  # a network that an example builds may take its first weights there
            exec(code, {"__name__": "example"})


@pytest.mark.slow
def test_the_method_of_contributing_takes_one_file_and_its_name(tmp_path):
    page = ROOT / "CONTRIBUTING.md"
    methods = tmp_path / "rhobust" / "methods"
    shutil.copytree(ROOT / "src" / "rhobust", tmp_path / "rhobust", ignore=shutil.ignore_patterns("__pycache__"))
    [code], [changes] = fenced(page, "python"), fenced(page, "diff")
    (methods / "worstdraw.py").write_text(code)
    added_import, old, new = changes.splitlines()
    init = (methods / "__init__.py").read_text()
    assert f"\n{old[1:]}\n" in init
    init = init.replace(old[1:], new[1:])
    (methods / "__init__.py").write_text(
        init.replace("\nfrom rhobust.methods.wrm", f"\n{added_import[1:]}\nfrom rhobust.methods.wrm")
    )
    [command] = [block for block in fenced(page, "text") if block.startswith("rhobust train")]
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command), "--quiet"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert '"kind": "worstdraw"' in (tmp_path / "runs" / "worstdraw" / "config.json").read_text()


@pytest.mark.parametrize("line", [*command_lines("rhobust"), *command_lines("torchrun")])
def test_every_command_in_the_pages_parses(line, tmp_path, monkeypatch):
    words = shlex.split(line)
    if {"--method", "--attack"} & set(words):  # the class of its own that a page defines
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        for file, code in named_files(ROOT / "docs" / "guides" / "own-method.md"):
            (tmp_path / file).write_text(code)
    name, *arguments = words[words.index("rhobust") + 1 :]
    assert name in COMMANDS
    module = importlib.import_module(f"rhobust.commands.{name.replace('-', '_')}")
    assert parse(module.COMMAND, name, arguments) is not None


@pytest.mark.parametrize("line", command_lines("python"))
def test_every_script_in_the_pages_exists_and_takes_its_options(line):
    _, *words = shlex.split(line)
    if words[0] != "-m":
        assert (ROOT / words[0]).exists()
        return
    if words[1] == "pip":  # what it installs is tested in test_install.py
        assert words[2] in ("install", "wheel")
        return
    assert words[1] == "reproduction", "the pages call the other modules in prose only"
    from reproduction.__main__ import TOOLS, parse
    from reproduction.runner import GROUPS, SPECS

    if words[2] not in TOOLS:
        given = parse(words[2:])
        assert set() < set(given.names) <= {*GROUPS, *SPECS}
        assert all(path.exists() for path in given.records)


@pytest.mark.parametrize("line", command_lines("make"))
def test_every_make_target_in_the_pages_exists(line):
    assert re.search(rf"^{line.split()[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_readme_names_every_command_and_every_method():
    from rhobust.methods import AnyMethod

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"`rhobust {name}" not in text] == []
    assert [kind.__name__ for kind in AnyMethod.__args__ if f"`method:{kind_of(kind)}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_the_picture_is_a_small_png():
    picture = (ROOT / "docs" / "quickstart.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 200_000


def test_the_citation_file():
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    keys = re.findall(r"^([a-z-]+):", text, re.MULTILINE)
    assert {"cff-version", "message", "title", "authors", "version", "license", "references"} <= set(keys)
    assert len(keys) == len(set(keys))
    assert "\t" not in text
    version = (ROOT / "src" / "rhobust" / "version.py").read_text()
    assert f'"{re.search(r"^version: (.+)$", text, re.MULTILINE)[1]}"' in version
    # The paper, then Gaussian, STN, PGD, TRADES, SmoothAdv, WRM, MACER, consistency, SmoothMix, CAT-RS, AutoAttack,
    # Lecuyer et al., Kumar et al., betting.
    cited = re.findall(r'"arXiv:([\d.]+)"', text)
    assert cited == [
        "2010.10987",
        *("1902.02918", "1809.03113", "1706.06083", "1901.08573", "1906.04584", "1710.10571"),
        *("2001.02378", "2006.04062", "2111.09277", "2212.09000", "2003.01690"),
        *("1802.03471", "2201.12440", "2010.09686"),
    ]
    methods = re.findall(r"^\| `method:.*arxiv\.org/abs/([\d.]+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(methods) > 5
    assert set(methods) <= set(cited)
    references = text.partition("\nreferences:\n")[2].split("\n  - type: ")[1:]
    for reference in references:
        assert {"title", "authors", "year"} <= set(re.findall(r"^    ([a-z-]+):", reference, re.MULTILINE)), reference


def test_the_changelog_speaks_of_this_version():
    from rhobust.version import VERSION

    assert f"\n## [{VERSION}] - " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
