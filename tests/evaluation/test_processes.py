"""Certificates in two processes and after a kill, as a user would run them."""

import os
import subprocess
import sys

import pytest

from evaluation.killing import ENVIRONMENT, killed
from rhobust.cli import run
from rhobust.lock import owned
from rhobust.records import read_record

CERTIFY = ["--radii", "0", "0.25", "0.5", "--n", "5000", "--limit", "150", "--quiet", "--json"]


@pytest.fixture(scope="module")
def rows(folder):
    assert run(["certify", str(folder), *CERTIFY]) == 0
    (path,) = folder.glob("certify-grid-*.jsonl")
    found = read_record(path).rows
    path.unlink()
    return found


def torchrun(folder):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "--"]
    command += ["rhobust", "certify", str(folder), *CERTIFY]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_two_processes_count_the_same_votes(folder, rows):
    done = torchrun(folder)
    assert done.returncode == 0, done.stderr[-2000:]
    (path,) = folder.glob("certify-grid-*.jsonl")
    assert read_record(path).rows == rows
    with owned(path.with_suffix(".lock"), path):
        assert run(["certify", str(folder), *CERTIFY]) == 0  # a finished record needs no owner
        path.rename(folder / "finished")
        refused = torchrun(folder)
    assert refused.returncode != 0
    assert refused.stderr.count(f"must have one writer, but process {os.getpid()} on this machine is writing it") == 2
    assert not list(folder.glob("certify-grid-*.jsonl"))


@pytest.mark.slow
def test_a_killed_certification_goes_on(folder, rows):
    command = [sys.executable, "-m", "rhobust", "certify", str(folder), *CERTIFY]
    path = killed(command, folder, "certify-grid-*.jsonl")
    assert 0 < len(read_record(path).rows) < 150
    assert subprocess.run(command, env=ENVIRONMENT, capture_output=True, timeout=300).returncode == 0
    assert read_record(path).rows == rows
