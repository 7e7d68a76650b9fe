"""No walk certifies a network that looks at its neighbours: its votes in a batch say nothing of a vote alone."""

import json

import pytest
from torch import nn

from evaluation.networks import Randomised
from rhobust.attacks import PGD
from rhobust.certificates import BatchDependenceError
from rhobust.data import Pairs
from rhobust.evaluation import Ascent, Attack, Certify, CertifyShift, MeasureShift, WorstCaseCurves, run
from rhobust.progress import no_progress
from rhobust.records import DamagedRecordError, finished_records, read_record


class Crowd(nn.Module):
    """Answers what the batch answers on average: copies of an image vote before they are asked."""

    def __init__(self, base):
        super().__init__()
        self.base = base

    def forward(self, x):
        logits = self.base(x)
        return logits + logits.mean(0)


WALKS = pytest.mark.parametrize(
    "walk",
    [
        lambda target: run(Certify(n=100), target, progress=no_progress),
        lambda target: run(CertifyShift(eps=[0.1]), target, progress=no_progress),
        lambda target: run(
            WorstCaseCurves(eps=[0.1], ascent=Ascent(gammas=(2.0,), steps=1)), target, progress=no_progress
        ),
        lambda target: run(
            MeasureShift(), target.with_pairs(Pairs("same", *[target.data.images] * 2, None)), progress=no_progress
        ),
    ],
    ids=["certify", "certify-shift", "curves", "measure-shift"],
)


@WALKS
def test_a_network_that_looks_at_its_neighbours_is_refused(wrapped, half_space, walk):
    with pytest.raises(ValueError, match="the network must be batch-independent"):
        walk(wrapped(Crowd(half_space)))


@WALKS
def test_a_randomised_network_is_refused(wrapped, half_space, walk):
    with pytest.raises(BatchDependenceError):
        walk(wrapped(Randomised(half_space)))


class Forgetful(nn.Module):
    """Answers the opposite after some passes."""

    def __init__(self, base, honest):
        super().__init__()
        self.base, self.left = base, honest

    def forward(self, x):
        self.left -= 1
        return self.base(x) if self.left >= 0 else -self.base(x)


@pytest.mark.parametrize(
    ("evaluation", "honest"),
    [(Certify(n=1000), 60), (CertifyShift(eps=[0.1], draws=200), 20)],
    ids=["certify", "certify-shift"],
)
def test_a_violation_while_counting_voids_the_record(wrapped, half_space, evaluation, honest, monkeypatch):
    monkeypatch.setattr("rhobust.evaluation.base.BLOCK", 5)
    monkeypatch.setattr("rhobust.executors.base.PIECE", 5)
    target = wrapped(Forgetful(half_space, honest))
    with pytest.raises(BatchDependenceError, match="evaluated again in another batch"):
        run(evaluation, target, progress=no_progress)
    (path,) = target.folder.glob("certify*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) > 2
    assert lines[-1].keys() == {"void"}
    # Nobody reads its rows or continues it, and no report or comparison shows it.
    with pytest.raises(
        DamagedRecordError, match="is void and proves nothing, delete it to evaluate again: the network"
    ):
        read_record(path)
    with pytest.raises(DamagedRecordError, match="is void"):
        run(evaluation, wrapped(half_space), progress=no_progress)
    assert finished_records(target.folder, evaluation.kind) == []
    path.unlink()
    assert run(evaluation, wrapped(half_space), progress=no_progress).summary is not None


def test_a_violation_at_the_end_voids_the_record_too(wrapped, half_space):
    # All examples are in the record when the last check finds another network than the first one.
    target = wrapped(half_space)
    writes = []

    def progress(event):
        if not isinstance(event, str) and event.done == event.total:
            writes.append(event)
            half_space.normal.data.neg_()

    with pytest.raises(BatchDependenceError):
        run(Certify(n=200), target, progress=progress)
    assert writes
    with pytest.raises(DamagedRecordError, match="is void"):
        read_record(next(iter(target.folder.glob("certify*.jsonl"))))


def test_an_attack_takes_a_randomised_network_and_says_so(wrapped, half_space):
    record = run(
        Attack(attack=PGD(steps=1), radii=(0.0, 0.5), limit=10, predictor="smoothed", probe=False),
        wrapped(Randomised(half_space)),
        progress=no_progress,
    )
    assert any("randomised outputs" in warning for warning in record.summary["warnings"])
