"""What holds for the package as a whole."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rhobust

ROOT = Path(__file__).parent.parent


def public_names():
    stub = ast.parse(Path(rhobust.__file__).with_suffix(".pyi").read_text())
    return [alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names]


@pytest.mark.parametrize("name", public_names())
def test_every_name_of_the_stub_is_there_and_documented(name):
    assert getattr(rhobust, name).__doc__
    assert name in dir(rhobust)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'certify'"):
        rhobust.certify  # noqa: B018


def loaded_after(statement):
    code = f"{statement}\nimport sys; print(' '.join(sorted(m.partition('.')[0] for m in sys.modules)))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_importing_is_light():
    assert not loaded_after("import rhobust") & {"torch", "numpy", "scipy", "rich", "PIL", "matplotlib"}
    extras = {"ray", "matplotlib", "foolbox", "pyautoattack", "torchvision", "jinja2", "rich", "PIL", "hypothesis"}
    assert not loaded_after("import rhobust; rhobust.SmoothedClassifier; rhobust.train") & (extras - {"jinja2"})
    assert not loaded_after("import rhobust.bounds") & {"torch"}


def test_help_needs_no_torch():
    listed = loaded_after("from rhobust.cli import run; run(['--help'])")
    assert not listed & {"torch", "numpy", "tyro"}


def test_every_test_file_is_collected():
    files = [path for path in (ROOT / "tests").rglob("*.py") if re.search(r"^\s*def test_", path.read_text(), re.M)]
    assert files
    assert [str(path) for path in files if not path.name.startswith("test_")] == []


def test_no_pickle_is_read_anywhere():
    sources = {path: path.read_text() for path in (ROOT / "src").rglob("*.py")}
    for path, text in sources.items():
        # What a process sends to the workers that it starts itself.
        assert "import pickle" not in text or path.parts[-2:] == ("executors", "payload.py"), path
        for call in re.findall(r"torch\.load\([^)]*\)", text):
            assert "weights_only=True" in call, (path, call)
        assert "allow_pickle=True" not in text, path


def sentences(tree):
    """The strings of a module but for its docstrings, those of an f-string in one."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "_" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            left += ast.iter_child_nodes(node)


def test_messages_to_python_callers_name_no_option_of_the_command_line():
    package, found = ROOT / "src" / "rhobust", []
    for part in ("attacks", "bounds", "certificates", "data", "evaluation", "methods", "models", "training"):
        for path in (package / part).rglob("*.py"):
            found += [
                (path, text) for text in sentences(ast.parse(path.read_text())) if re.search(r"[ (`]--[a-z]", text)
            ]
    # A whole command can be run by either.
    assert [one for one in found if "`rhobust data get " not in one[1]] == []
    assert found
