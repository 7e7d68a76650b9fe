"""Certificates in two processes and after a kill, as a user would run them."""

import subprocess
import sys

import pytest

from evaluation.killing import ENVIRONMENT, killed
from rhobust.cli import run
from rhobust.records import read_record

CERTIFY = ["--radii", "0", "0.25", "0.5", "--n", "5000", "--limit", "150", "--quiet", "--json"]


@pytest.fixture(scope="module")
def rows(folder):
    assert run(["certify", str(folder), *CERTIFY]) == 0
    (path,) = folder.glob("certify-grid-*.jsonl")
    found = read_record(path).rows
    path.unlink()
    return found


@pytest.mark.slow
def test_two_processes_count_the_same_votes(folder, rows):
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "--",
        "rhobust",
    ]
    done = subprocess.run(
        [*torchrun, "certify", str(folder), *CERTIFY], env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (path,) = folder.glob("certify-grid-*")
    assert read_record(path).rows == rows
    path.unlink()


@pytest.mark.slow
def test_a_killed_certification_goes_on(folder, rows):
    command = [sys.executable, "-m", "rhobust", "certify", str(folder), *CERTIFY]
    path = killed(command, folder, "certify-grid-*.jsonl")
    assert 0 < len(read_record(path).rows) < 150
    assert subprocess.run(command, env=ENVIRONMENT, capture_output=True, timeout=300).returncode == 0
    assert read_record(path).rows == rows
