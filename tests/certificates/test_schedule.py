"""The schedule against a plain loop over inputs and looks, and against itself in other batches."""

import numpy as np
import pytest
import torch

from rhobust.bounds import BoundaryTest, PairwiseTest, RadiusTest, looks
from rhobust.certificates import (
    Fixed,
    Sequential,
    Smoothing,
    TwoStage,
    certify_inputs,
    count_votes,
    passes,
    sampling,
    schedule,
)
from rhobust.proofs.plan import ClassVotes

SMOOTHING = Smoothing(0.25, 2)
RADII = (0.0, 0.2, 0.4)
PROCEDURES = [
    Fixed(n0=50, n=500),
    Sequential(RADII, n0=50, n=3000),
    TwoStage(n0=100, n=3000, tolerance=0.02),
    Sequential(RADII, n=3000),
]
NOTHING = ClassVotes(*np.zeros((4, 1), dtype=np.int64))


def certify(model, images, procedure, indices=None, **changes):
    names = range(len(images)) if indices is None else indices
    return certify_inputs(model, images, SMOOTHING, procedure, indices=names, alpha=changes.get("alpha", 0.01))


def plain(model, image, index, test, sizes):
    """The sequential test of one input by hand: draw to a look, count from the beginning, judge."""

    def count(draws, purpose):
        return count_votes(model, image[None], SMOOTHING, indices=[index], draws=draws, purpose=purpose)[0].numpy()

    selection = count(int(sizes[0]), "count") if test.reused else count(50, "select")
    chosen = selection.argmax()
    reached, evidence = np.array([0]), []
    for look in sizes:
        votes = count(int(look), "count")
        successes, runner_up = votes[chosen], np.delete(votes, chosen).max()
        if pairwise := isinstance(test, PairwiseTest):
            given = (np.array([one]) for one in (successes, look, reached[0], runner_up, selection[chosen]))
            now, go_on = test.decide_pairs(*given)
        else:
            now, go_on = test.decide(np.array([successes]), np.array([look]), reached)
        step = (int(look), int(successes), int(runner_up))[: 3 if pairwise else 2]
        evidence += [step] * int(now[0] - reached[0])
        reached = now
        if not go_on[0]:
            return chosen, int(selection[chosen]), int(successes), int(look), tuple(evidence)
    raise AssertionError


@pytest.mark.parametrize("n0", [0, 50])
@pytest.mark.parametrize("stopping", ["pairwise", "boundary", "e-value"])
def test_the_sequential_test_decides_as_by_hand(half_space, grey_images, stopping, n0):
    images, settings = grey_images.images[14:26], {"n": 3000, "reused": n0 == 0}
    by_hand = BoundaryTest(RADII, 0.25, 0.01, step=128, **settings)
    by_e_value = RadiusTest(RADII, 0.25, 0.01, **settings)
    by_pairs = PairwiseTest(RADII, 0.25, 0.01, step=128, **settings)
    tests = {"boundary": (by_hand, by_hand.looks), "e-value": (by_e_value, looks(3000, 128))}
    tests["pairwise"] = by_pairs, by_pairs.looks
    found = certify(half_space, images, Sequential(RADII, n0=n0, n=3000, stopping=stopping), range(14, 26))
    assert len({certificate.n for certificate in found}) > 3
    for index, certificate in zip(range(14, 26), found, strict=True):
        chosen, top, count, n, evidence = plain(half_space, grey_images.images[index], index, *tests[stopping])
        assert (certificate.selected, certificate.top) == (chosen, top)
        assert (certificate.count, certificate.n) == (count, n)
        assert certificate.evidence == evidence
        assert certificate.prediction == (chosen if evidence else None)
        assert certificate.radius == (RADII[len(evidence) - 1] if evidence else 0.0)


@pytest.mark.parametrize("procedure", PROCEDURES, ids=lambda procedure: procedure.name)
def test_batches_order_and_running_ahead_change_no_count(half_space, grey_images, procedure, monkeypatch):
    images = grey_images.images[10:30]
    whole = certify(half_space, images, procedure)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1)).tolist()
    shuffled = certify(half_space, images[order], procedure, order)
    assert shuffled == [whole[place] for place in order]
    assert [certify(half_space, images[place : place + 1], procedure, [place])[0] for place in (0, 9, 10)] == [
        whole[place] for place in (0, 9, 10)
    ]
    # Other batch sizes, and up to three batches running before the first one's votes are seen.
    for rows, ahead in ((64, 0), (640, 3)):
        monkeypatch.setitem(passes.ROWS, "cpu", rows)
        monkeypatch.setitem(schedule.AHEAD, "cpu", ahead)
        assert certify(half_space, images, procedure) == whole


def test_batches_stay_full_while_inputs_wait(half_space, grey_images, monkeypatch):
    filled = []
    counted = sampling.VoteCounter.count

    def count(self, blocks):
        filled.append(sum(map(len, blocks)))
        return counted(self, blocks)

    monkeypatch.setattr(sampling.VoteCounter, "count", count)
    certify(half_space, grey_images.images, PROCEDURES[1])
    # The other rows of a pass repeat earlier inputs; at the end no input waits, and a pass or two are not full.
    room = [240 if number < 9 or number % 8 == 0 else 256 for number in range(len(filled))]
    assert filled[:65] == room[:65]
    assert sum(one != other for one, other in zip(filled, room, strict=True)) <= 2


@pytest.mark.parametrize("share", [1.0, 0.99, 0.9, 0.6, 0.2])
def test_the_likely_end_is_where_votes_in_proportion_end_the_test(share):
    plan = Sequential(RADII, n0=50, n=3000).plan(0.25, 0.01)
    reached, look, looked = np.array([0]), plan.first_look(np.array([50])), np.array([0])
    while look != looked:
        looked = look
        count = np.rint(share * looked).astype(np.int64)
        reached, look = plan.look(ClassVotes(np.array([50]), count, looked - count, looked), reached)
    assert plan.likely_end(np.array([share]), NOTHING, np.array([0]), looked) == looked
    assert plan.likely_end(np.array([share]), NOTHING, np.array([0]), np.array([3000])) == looked
    assert plan.likely_end(np.array([share]), NOTHING, np.array([0]), looked - 1) == 3000


@pytest.mark.parametrize("procedure", [PROCEDURES[0], Sequential(RADII, n0=50, n=500, stopping="e-value")])
def test_where_no_end_is_guessed_it_is_the_limit(procedure):
    given = np.array([1.0]), NOTHING, np.array([0]), np.array([500])
    assert procedure.plan(0.25, 0.01).likely_end(*given) == 500


def test_samples_ahead_are_of_inputs_that_will_need_them():
    running = schedule.AdaptiveSchedule([(0, 0), (1, 1)], Sequential((0.0, 0.6), n0=100).plan(0.25, 0.01), 100)
    # The first input never fails; the second one is near the threshold of the second radius.
    shares, issued, finished = np.array([1.0, 0.993]), np.zeros(2, dtype=np.int64), []
    while blocks := running.next_blocks(640):
        sizes, positions = np.array([len(block) for block in blocks]), [block.position for block in blocks]
        np.add.at(issued, positions, sizes)
        votes = np.rint(shares[positions] * sizes).astype(np.int64)
        running.add_votes(blocks, np.stack([votes, sizes - votes], axis=1))
        finished += running.finished()
    one, other = finished
    assert 100 < one.known < other.known
    assert issued[0] == 100 + one.known


def test_noise_by_rows_gives_valid_certificates_too(half_space, grey_images, monkeypatch):
    # The noise generator of a GPU, on a CPU: other samples of the same law, the same in every batch.
    ours = certify(half_space, grey_images.images[10:30], PROCEDURES[1])
    monkeypatch.setitem(sampling.BY_ROWS, "cpu", True)
    rows = certify(half_space, grey_images.images[10:30], PROCEDURES[1])
    assert [certificate.count for certificate in rows] != [certificate.count for certificate in ours]
    close = [one.radius == two.radius for one, two in zip(rows, ours, strict=True)]
    assert sum(close) >= 16
    monkeypatch.setitem(passes.ROWS, "cpu", 200)
    monkeypatch.setitem(schedule.AHEAD, "cpu", 2)
    assert certify(half_space, grey_images.images[10:30], PROCEDURES[1]) == rows


def test_bad_settings_are_refused():
    for procedure, least in ((Fixed, 1), (TwoStage, 1), (lambda **draws: Sequential(RADII, **draws), 0)):
        with pytest.raises(ValueError, match=f"n must be >= n0 >= {least}, got n=10 and n0=20"):
            procedure(n0=20, n=10)
        with pytest.raises(ValueError, match=f"n must be >= n0 >= {least}, got n=0 and n0=0"):
            procedure(n0=0, n=0)
    with pytest.raises(ValueError, match="tolerance must be > 0, got 0"):
        TwoStage(tolerance=0)
    with pytest.raises(ValueError, match="radii must increase"):
        Sequential((0.5, 0.1))
