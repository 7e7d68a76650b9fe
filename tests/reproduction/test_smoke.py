"""The whole paper at the smallest scale, as a user calls it, uninterrupted and killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from reproduction.runner import PAPER

pytestmark = pytest.mark.slow


def start(folder):
    command = [sys.executable, "-m", "reproduction", "all", "--scale", "smoke", "--device", "cpu", "--quiet"]
    return subprocess.Popen([*command, "--out", str(folder)], stdout=subprocess.DEVNULL, start_new_session=True)


def finish(folder):
    started = time.monotonic()
    assert start(folder).wait() == 0
    return time.monotonic() - started


def made(folder):
    return {path.name: path.read_bytes() for kind in ("tables", "figures") for path in (folder / kind).iterdir()}


def parts(document):
    """Every number or curve of ours."""
    match document:
        case {"lines": lines}:
            return [ours for line in lines for cell in line["cells"] for ours in cell["ours"]]
        case {"panels": panels}:
            return [curve for panel in panels for curve in panel["curves"] if "reported" not in curve]
        case {"cells": cells}:
            return [cell for row in cells for cell in row]


def test_all_of_the_paper_is_made_and_a_kill_changes_nothing(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    took = finish(whole)
    files = made(whole)
    tables = {name for name in PAPER if not name.startswith("fig")}
    expected = {f"{name}.{end}" for name in tables for end in ("json", "md", "csv")}
    expected |= {f"{name}.{end}" for name in PAPER.keys() - tables for end in ("json", "svg", "pdf")}
    assert files.keys() == expected
    for name in PAPER:
        found = parts(json.loads(files[f"{name}.json"]))
        assert found
        for part in found:
            assert "fault" not in part
            assert (whole / part["record"]).stat().st_size > 0

    moments = random.Random(0)
    for _ in range(4):
        process = start(killed)
        time.sleep(moments.uniform(0.1, 0.4) * took)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    finish(killed)
    assert made(killed) == files
