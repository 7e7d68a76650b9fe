"""The harness of random faults itself, with a few of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_random_kills_and_pairs_lose_nothing(tmp_path):
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.faults.kills", "--count", "10", "--scratch", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "records lost, damaged or different: 0" in done.stdout
