"""Run the notebooks of examples/notebooks without Jupyter, and save their outputs.

    python docs/tools/notebooks.py [NOTEBOOK ...]

Cells run in order in one namespace, each notebook in a temporary folder. The output of a cell is what it prints, and
the value of its last expression: text, or a picture where the value has one.
"""

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent.parent / "examples" / "notebooks"


def execute(cells: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The outputs of each code cell, in Jupyter's format."""
    names: dict[str, Any] = {"__name__": "notebook"}
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return [_outputs("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
        finally:
            os.chdir(here)


def _outputs(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    parsed = ast.parse(source)
    last = parsed.body.pop() if parsed.body and isinstance(parsed.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(parsed, "<cell>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)  # noqa: S307
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if value is not None:
        data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
        if (picture := getattr(value, "_repr_png_", None)) is not None:
            data = {"image/png": base64.b64encode(picture()).decode(), "text/plain": ["picture"]}
        outputs.append({"output_type": "display_data", "metadata": {}, "data": data})
    return outputs


def save(path: Path) -> None:
    """Run a notebook and write it with its outputs."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    found = iter(execute(notebook["cells"]))
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            cell |= {"outputs": next(found), "execution_count": None}
        cell["id"] = f"cell-{number}"
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for one in [Path(name).resolve() for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")):
        save(one)
        print(one.name, one.stat().st_size, "bytes")
