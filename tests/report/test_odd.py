"""Whatever stands in a file, the page is made: an odd value is named, or shown as it is, and never a crash."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from report.folders import rewrite, write_losses, write_run, write_shift, write_transfer
from rhobust.report import write_report
from tests.fuzz.edits import places

ODD = (None, True, -1, 0, 1e308, "", "x", [], [None], {}, {"a": []}, [[1]], "<b>")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    run = write_run(tmp_path_factory.mktemp("odd") / "run", examples=8, epochs=3)
    write_losses(run)
    write_transfer(run, "beef", {"beef": np.linspace(0, 1, 4), "f00d": np.linspace(0, 1, 4)})
    beside = [{"name": "kumar", "classifier": "randomised", "cost": "w1", "certified_accuracy": [0.5], "eps": [0.1]}]
    write_shift(run, np.ones(5, dtype=int), sigma=0.25, classifier="k-vote", votes=3, beside=beside)
    return run


def spoil(path: Path, rng: random.Random) -> None:
    """Put an odd value in one place of a file; in a record mostly into its header or its summary."""
    if path.suffix == ".json":
        document = json.loads(path.read_text())
        holder, key = rng.choice(places(document))
        holder[key] = rng.choice(ODD)
        path.write_text(json.dumps(document))
        return

    def change(lines: list[str]) -> list[str]:
        number = rng.choice([0, len(lines) - 1, rng.randrange(len(lines))])
        document = json.loads(lines[number])
        holder, key = rng.choice(places(document))
        holder[key] = rng.choice(ODD)
        return [*lines[:number], json.dumps(document), *lines[number + 1 :]]

    rewrite(path, change)


@pytest.mark.parametrize("seed", range(8))
def test_an_odd_value_never_stops_the_page(tmp_path, whole, seed):
    rng = random.Random(seed)
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for path in sorted(run.glob("*.json*")):
        spoil(path, rng)
    assert "<html" in write_report([run], tmp_path / "r.html").path.read_text()
