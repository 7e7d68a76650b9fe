"""A reproduction so small that it takes seconds."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reproduction.runner import Store, plan, reproduce
from reproduction.scales import SCALES
from rhobust.attacks import EOT
from rhobust.progress import no_progress

RESULTS = Path(__file__).parents[2] / "results"
TINY = replace(
    SCALES["smoke"],
    epochs=2,
    limit=6,
    eot=EOT(steps=2, draws=2),
    votes=5,
    certified=6,
    draws=200,
    shift_draws=4,
    measured=4,
    curvature_draws=64,
    kr=((2, 1),),
)


@pytest.fixture(scope="session")
def tiny():
    return TINY


def store_in(folder, progress=no_progress):
    return Store(folder, torch.device("cpu"), progress=progress)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with a table and a figure, as they come out uninterrupted; nobody writes to it."""
    folder = tmp_path_factory.mktemp("made")
    outcome = reproduce(plan(["table-elu", "fig-training"], TINY), store_in(folder))
    assert outcome.faults == ()
    return folder


@pytest.fixture
def redrawn(tmp_path):
    """Draws published tables again from what they were drawn from, and fails where one differs."""

    def check(write, *sources, place="tables"):
        (tmp_path / place).mkdir()
        for name in sources:
            (tmp_path / name).symlink_to(RESULTS / name)
        written = write(tmp_path)
        for path in written:
            stale = f"{path.name} is stale: run python -m reproduction index results"
            assert path.read_text(encoding="utf-8") == (RESULTS / place / path.name).read_text(encoding="utf-8"), stale
        return written

    return check
