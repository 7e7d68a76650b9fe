"""The notebooks of examples/notebooks: whole and small, and (slow) they run and still print what was saved."""

import ast
import json
import re
from pathlib import Path

import pytest
import torch

from tests.conftest import load_script

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def cells(path, kind="code"):
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def words(outputs):
    """What outputs say, without numbers, which other versions of torch round differently."""
    text = "".join("".join(one.get("text") or one["data"]["text/plain"]) for one in outputs)
    return re.sub(r"-?\d+(\.\d+)?(e-?\d+)?|None", "#", text).split()


@pytest.fixture(scope="module")
def tool():
    return load_script("docs/tools/notebooks.py")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_whole_and_has_its_outputs(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["cells"][0]["cell_type"]) == (4, "markdown")
    assert path.stat().st_size < 100_000
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert sum(bool(cell["outputs"]) for cell in cells(path)) >= 3
    for cell in cells(path):
        ast.parse("".join(cell["source"]))
        assert all(one["output_type"] != "error" for one in cell["outputs"])


def test_an_output_is_what_is_printed_and_the_last_value(tool, tmp_path):
    picture = "from PIL import Image\nprint('x')\nImage.new('L', (2, 2))"
    sources = ["print(1)\n2", "a = 3", "a", picture]
    path = tmp_path / "one.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": [one]} for one in sources]}))
    tool.save(path)
    outputs = [cell["outputs"] for cell in cells(path)]
    assert [words(one) for one in outputs] == [["#", "#"], [], ["#"], ["x", "picture"]]
    assert outputs[3][1]["data"]["image/png"].startswith("iVBOR")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_and_prints_what_was_saved(path, tool):
    with torch.random.fork_rng(devices=[]):  # a loader's first seed comes from there
        found = tool.execute(cells(path))
    assert [words(one) for one in found] == [words(cell["outputs"]) for cell in cells(path)]
