"""The documentation site: every public name is in the reference, every number in a page is the one in results/."""

import ast
import importlib
import importlib.util
import inspect
import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.conftest import load_script

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GUIDES = ("index", "command-line")
FENCE = re.MULTILINE | re.DOTALL
MODULES = [path.stem for path in sorted((DOCS / "reference").glob("*.md")) if path.stem not in GUIDES]


def tool(name):
    return load_script(f"docs/tools/{name}.py")


def public_names(module):
    """What a module offers: re-exports (`import x as x`) and assignments of a package, definitions of a file."""
    source = Path(importlib.import_module(module).__file__)
    names = []
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            names += [alias.asname for alias in node.names if alias.asname == alias.name]
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign) and source.name == "__init__.py":
            names += [target.id for target in node.targets]
    return [name for name in names if not name.startswith("_")]


def examples(page):
    """The code of a reference page's examples."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))


def pages():
    return tool("fill").pages()


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_in_the_reference(name):
    listed = re.findall(rf"^::: rhobust\.{name}\.(\w+)$", (DOCS / "reference" / f"{name}.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(public_names(f"rhobust.{name}"))


def test_the_reference_lists_every_name_of_the_package():
    import rhobust

    page = (DOCS / "reference" / "index.md").read_text()
    names = [name for name in dir(rhobust) if not name.startswith("_")]
    assert len(names) > 25
    assert [name for name in names if f"`rhobust.{name}`" not in page] == []


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_an_example(name):
    module, code = importlib.import_module(f"rhobust.{name}"), examples(DOCS / "reference" / f"{name}.md")
    without = [
        one
        for one in public_names(f"rhobust.{name}")
        if ">>>" not in (inspect.getdoc(getattr(module, one)) or "") and not re.search(rf"\b{one}\b", code)
    ]
    assert without == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_numbers_of_a_page_are_those_of_the_results(page):
    assert tool("fill").filled(page) == page.read_text(encoding="utf-8"), "run python docs/tools/fill.py"


def test_the_table_of_workers_has_every_machine_that_was_measured(tmp_path, monkeypatch):
    fill = tool("fill")
    monkeypatch.setattr(fill, "RESULTS", tmp_path)
    line = {"network": "cnn", "workers": 2, "samples_per_second": 123456.7, "gain": 1.514, "efficiency": 0.757}
    for name, device in (("cpu", "cpu"), ("h200", "NVIDIA H200")):
        found = {"device": device, "cores": 2, "workers": [line]}
        (tmp_path / f"scale-workers-{name}.json").write_text(json.dumps(found))
    assert fill.place("workers", tmp_path / "page.md").splitlines()[2:] == [
        "| 2 cores | cnn | 2 | 123,457 | 1.51 | 0.76 |",
        "| one NVIDIA H200 | cnn | 2 | 123,457 | 1.51 | 0.76 |",
    ]


def test_a_number_comes_with_its_format(tmp_path, monkeypatch):
    fill = tool("fill")
    monkeypatch.setattr(fill, "RESULTS", tmp_path)
    head = "method,sigma,column,reported,source,value,low,high,n,record,fault\n"
    rows = ["NAL,0.1,0.25,0.7,ours,0.59951,0.5,0.7,2000,r,", "NAL,0.25,0.1,,ours,-0.0219,-0.1,0.1,500,r,"]
    (tmp_path / "table-a.csv").write_text(head + "\n".join(rows) + "\n")
    pairs = [{"name": name, "at": at, "rate": at / 16} for name in "xy" for at in (1, 8)]
    rates = [{"name": "x", "rate": 1234.5}, {"name": "y", "rate": 2469}]
    (tmp_path / "b.json").write_text(json.dumps({"rates": rates, "pairs": pairs}))
    shown = {
        "table-a / NAL / sigma=0.1 / column=0.25": "60.0%",
        "table-a / NAL / sigma=0.1 : % down": "59.9%",
        "table-a / NAL / sigma=0.1 : %2": "59.95%",
        "table-a / NAL / sigma=0.1 / reported": "70.0%",
        "table-a / NAL / sigma=0.25 : behind": "2.2",
        "table-a / NAL / sigma=0.25 : points": "-2.2",
        "b.json / rates / x / rate : ,.0": "1,234",
        "b.json / rates / y / rate over b.json / rates / x / rate : .2": "2.00",
        "b.json / pairs / x / 8 / rate : .1": "0.5",
    }
    assert {spec: fill.number(spec) for spec in shown} == shown
    with pytest.raises(ValueError, match=r"must name one number of table-a[.]csv, but names 2"):
        fill.number("table-a / NAL")
    with pytest.raises(ValueError, match="a format must be one of"):
        fill.number("table-a / NAL / sigma=0.1 : percent")
    with pytest.raises(ValueError, match=r"table-c[.]csv must be one file under results/, found 0"):
        fill.number("table-c / NAL")


def test_every_link_of_the_staged_pages_leads_somewhere(tmp_path, monkeypatch):
    site = tool("site")
    monkeypatch.setattr(site, "STAGED", tmp_path / "docs")
    assert site.stage() == []
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    listed = re.findall(r"'([\w/-]+\.md)'", str(nav))
    staged = [path.relative_to(tmp_path / "docs").as_posix() for path in (tmp_path / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(staged)
    dead = [
        f"{page.relative_to(tmp_path)}: {link}"
        for page in (tmp_path / "docs").rglob("*.md")
        for link in re.findall(r"\]\(([^)#\s]+)[^)\s]*\)", re.sub(r"^```.*?^```$", "", page.read_text(), flags=FENCE))
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert dead == []


@pytest.mark.slow
def test_the_site_builds_without_a_warning():
    pytest.importorskip("zensical")
    assert tool("site").main() == 0


def test_what_the_theory_page_names_exists():
    homes = [
        importlib.import_module(f"rhobust.{name}") for name in ("bounds", "certificates", "noise", "bounds.population")
    ]
    text = (DOCS / "theory.md").read_text(encoding="utf-8")
    named = re.findall(r"`(?:rhobust\.\w+\.)?(\w+)`", " ".join(re.findall(r"(?:Implemented by|—) (.*)", text)))
    assert len(named) > 30
    assert [name for name in named if not any(hasattr(home, name) for home in homes)] == []


def test_the_count_of_the_design_page():
    count = tool("count")
    assert count.collisions({"a.py": ast.parse("class A: ..."), "b.py": ast.parse("class A: ...\nclass B: ...")}) == [
        "A"
    ]
    code = "def f(attack, *, radii, votes, probe): ...\nx = {'attack': 1, 'radii': 2, 'votes': 3}\n"
    code += "[row['broken'] for row in record.rows]"
    parsed = {"a.py": ast.parse(code)}
    assert count.declarations(parsed) == ["a.py:1 f"]
    assert count.readers(parsed) == ["a.py"]


def test_the_start_page_names_every_guide():
    page = (DOCS / "index.md").read_text()
    assert [one.name for one in sorted((DOCS / "guides").glob("*.md")) if f"(guides/{one.name})" not in page] == []
