"""A small part of `make fuzz`: chosen cases of every group, and every parser on bytes that hypothesis invents."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rhobust.archives import opened
from rhobust.files import parse_json, read_json, unzip
from rhobust.measurements import measurements, read_tsv
from rhobust.models.weights import read_weights
from rhobust.records import read_head, read_record, read_rows
from rhobust.training import open_run
from rhobust.training.run import load_checkpoint, weights_metadata
from tests.fuzz.harness import GOOD, Case, execute, refused
from tests.fuzz.options import BASES, options

NAMES = st.sampled_from(
    ["kind", "settings", "summary", "digest", "index", "radius", "label", "prediction", "radii", "n"]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(["certify", "attack", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)


def lines(documents):
    import json

    return "".join(json.dumps(document) + "\n" for document in documents).encode()


def unpacked(path):
    with opened([path]) as found:
        return found.paths


READERS = {
    "config.json": [lambda path: open_run(path.parent), read_json],
    "certify-x.jsonl": [read_record, read_head, read_rows, lambda path: measurements(read_record(path))],
    "certify-x.jsonl.gz": [read_record, read_head],
    "runs.tar.xz": [unpacked],
    "model.safetensors": [weights_metadata, read_weights],
    "resume.pt": [lambda path: load_checkpoint(path, "cpu")],
    "table.tsv": [read_tsv],
}


@pytest.mark.parametrize("name", READERS)
@settings(derandomize=True, max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200) | st.lists(VALUES, max_size=4).map(lines))
def test_a_parser_returns_or_raises_one_line(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    for read in READERS[name]:
        with contextlib.suppress(ValueError, OSError):
            read(path)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.binary(max_size=100))
def test_bytes_are_no_gzip_and_no_json(content):
    for read in (parse_json, lambda raw: unzip(raw, Path("x.gz"))):
        with contextlib.suppress(ValueError):
            read(content)


def chosen():
    """A few options per command with a value that each must refuse."""
    found = []
    for number, base in enumerate(BASES):
        names = [name for name, takes in options(base).items() if takes]
        for step, value in enumerate(("", "\x1b[2J", "nan")):
            name = names[(7 * number + 5 * step) % len(names)]
            # Any name may be that of a folder to be made, or of data sets.
            found.append((base, name, value if name not in ("--out", "--root", "--tsv") else ""))
    return found


@pytest.mark.parametrize(("base", "name", "value"), chosen(), ids=lambda text: ascii(text))
def test_an_option_refuses(base, name, value, tmp_path):
    words = [str(word) for word in BASES[base](tmp_path)]
    outcome = execute(Case("options", name, lambda _: [*words, name, value], refused), limit=20)
    assert outcome.verdict == "refused", outcome.detail


def test_the_harness_tells_the_verdicts_apart():
    def verdict(todo):
        return execute(Case("harness", "", lambda _: todo, refused), limit=0.3).verdict

    def crash():
        raise KeyError("x")

    assert verdict(["data", "check", "no-such-data"]) == "refused"
    assert verdict(["data", "check", "digits", "--quiet"]) == "silent success"
    assert verdict(lambda: time.sleep(5)) == "hang"
    assert verdict(crash) == "traceback"
    assert "right" in GOOD


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_the_examples_so_far(tmp_path, number, code):
    command = [sys.executable, "-m", "rhobust"]
    train = ["train", "method:gaussian", "--data", "digits", "--model", "cnn-small", "--epochs", "1", "--out", "run"]
    subprocess.run([*command, *train, "--quiet"], cwd=tmp_path, check=True, capture_output=True)
    certify = ["certify", "run", "--n", "20000"]
    with subprocess.Popen([*command, *certify], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        while "certify" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(2)
        os.kill(process.pid, number)
        last = process.communicate(timeout=60)[1].splitlines()[-1]
    assert process.returncode == code
    assert last.startswith("rhobust: interrupted; ")
    assert last.endswith("this goes on from there: rhobust certify run --n 20000")
