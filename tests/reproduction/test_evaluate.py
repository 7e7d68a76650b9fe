"""A job's record is the one that a reproduction makes, in its arithmetic."""

import json
from dataclasses import replace

import pytest

from reproduction.evaluate import find, perform
from reproduction.jobs import Attack, Certify, Curves, Shift
from reproduction.protocol import ALPHA
from rhobust.attacks import EOT, PGD
from rhobust.evaluation import CertifyShift, run
from rhobust.methods import Gaussian
from rhobust.progress import no_progress
from rhobust.training import TrainConfig
from tests.reproduction.conftest import workshop_in

RUN = TrainConfig(Gaussian(sigma=0.25), data="digits", model="cnn-small", epochs=1, batch_size=500, lr=2e-3)
JOBS = {
    "attack": Attack(RUN, EOT(steps=1, draws=2), (0.0, 0.5), "smoothed", None, votes=5, limit=4, probe=False),
    "attack, no noise": Attack(RUN, PGD(steps=1), (0.0, 0.5), "base", None, votes=5, limit=4, probe=False),
    "certify": Certify(RUN, 0.25, n=200, images=4, procedure="sequential", radii=(0.25,)),
    "shift": Shift(RUN, 0.25, (0.0, 0.1), draws=2),
    "curves": Curves(RUN, 0.25, (0.0, 0.1), (1.0,), draws=2, images=4),
}
PLAIN = {"device": "cpu", "dtype": "float32"}
MADE = {
    "attack": [PLAIN, {"device": "cuda", "climbed": "bfloat16", "dtype": "bfloat16"}],
    "attack, no noise": [PLAIN, {"device": "cuda", "climbed": "bfloat16", "dtype": "tf32"}],
    "certify": [PLAIN, {"device": "cuda", "dtype": "bfloat16"}],
    "shift": [PLAIN, {"device": "cuda", "dtype": "tf32"}],
    "curves": [PLAIN, {"device": "cuda", "dtype": "tf32"}],
}
BY_HAND = {
    "attack": [
        {"device": "cpu", "climbed": "bfloat16"},
        {"device": "cpu", "dtype": "bfloat16"},
        {"device": "cuda", "dtype": "bfloat16"},
        {"device": "cuda", "climbed": "bfloat16", "dtype": "tf32"},
    ],
    "attack, no noise": [{"device": "cuda", "climbed": "bfloat16", "dtype": "bfloat16"}, {"device": "cuda"}],
    "certify": [{"device": "cpu", "dtype": "bfloat16"}, {"device": "cuda", "dtype": "tf32"}],
    "shift": [{"device": "cpu", "dtype": "bfloat16"}, {"device": "cuda", "dtype": "bfloat16"}],
    "curves": [{"device": "cpu", "dtype": "bfloat16"}, {"device": "cuda", "dtype": "float32"}],
}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return workshop_in(tmp_path_factory.mktemp("out"))


@pytest.mark.parametrize("kind", JOBS)
def test_a_record_made_by_hand_in_another_arithmetic_is_not_the_reproductions(kind, workshop):
    job = JOBS[kind]
    record = perform(job, workshop)
    assert find(job, workshop) == record.path
    header = json.loads(record.path.read_text().splitlines()[0])
    record.path.unlink()
    for arithmetic, taken in [*((one, True) for one in MADE[kind]), *((one, False) for one in BY_HAND[kind])]:
        other = {**header, "settings": {**header["settings"], **arithmetic}}
        record.path.write_text(json.dumps(other) + "\n")
        assert (find(job, workshop) == record.path) == taken, arithmetic


def test_beside_one_made_by_hand_the_reproduction_makes_its_own(workshop):
    job = replace(JOBS["shift"], eps=(0.0, 0.2))
    ours = perform(job, workshop).path
    ours.unlink()
    theirs = run(
        CertifyShift(eps=job.eps, draws=job.draws, alpha=ALPHA, dtype="bfloat16"),
        workshop.target(RUN, 0.25),
        progress=no_progress,
    )
    assert find(job, workshop) is None
    assert perform(job, workshop).path == ours != theirs.path
