"""Networks that are no function of one input get no certificate: for one image and for many, masked or not."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rhobust
from rhobust.certificates import (
    BatchDependenceError,
    Fixed,
    Repeats,
    Smoothing,
    VoteCounter,
    certify_inputs,
    certify_shift,
    check_batch_independence,
    count_votes,
    predict_inputs,
    sampling,
)
from rhobust.certificates.blocks import SampleBlock
from rhobust.certificates.independence import GROUPS, KEPT, logit_change, top_gaps

FLOAT32 = {"dtype": "float32", "storage": torch.float32}


class Net(nn.Module):
    """Any function of a batch."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def half(mean):
    """Logits of the half space of bright images, from the mean pixel."""
    return torch.stack([0.5 - mean, mean - 0.5], dim=1) * 50


def bright(x):
    return half(x.flatten(1).mean(1))


def mask(logits, value):
    return torch.cat([logits, torch.full((len(logits), 1), value)], dim=1)


def batch_mean(x):
    """Denoised by the other inputs: all rows vote alike."""
    return half(x.mean().expand(len(x)))


BATCH_DEPENDENT = {
    "maximum": lambda x: bright(x / x.max()),
    "range": lambda x: bright((x - x.min()) / (x.max() - x.min())),
    "first": lambda x: bright(x - 0.3 * x[:1] + 0.153),
    "median": lambda x: half(x.flatten(1).mean(1).median().expand(len(x))),
    "mean": batch_mean,
    "place": lambda x: bright(x) + 1e-2 * (torch.arange(len(x)) % 2)[:, None],
    "large": lambda x: bright(x) if len(x) < 100 else torch.ones(len(x), 2) * torch.tensor([0.0, 1.0]),
    "full": lambda x: bright(x) if (x[-1] == 0).all() else -bright(x),
    "neighbour": lambda x: bright(0.9 * x + 0.1 * x.roll(1, 0)),
}
"""Networks that answer one input otherwise than a batch, by what they look at."""


@pytest.fixture
def grey():
    """Images just above the boundary: the half space is right with probability 0.56 under noise of 0.5."""
    return torch.full((4, 1, 8, 8), 130, dtype=torch.uint8)


def certify(network, images, n=1000, **changes):
    smoothing = Smoothing(0.5, changes.pop("classes", 2), **changes)
    return certify_inputs(network, images, smoothing, Fixed(n=n), indices=range(len(images)), alpha=1e-3)


def test_the_half_space_itself_is_certified(grey):
    assert certify(Net(bright), grey[:1], n=20_000)[0].radius < (130 / 255 - 0.5) * 8
    masked = certify(Net(lambda x: mask(bright(x), -torch.inf)), grey[:1], n=20_000, classes=3)
    assert masked[0].radius == certify(Net(bright), grey[:1], n=20_000)[0].radius


@pytest.mark.parametrize("images", [1, 4])
@pytest.mark.parametrize("what", BATCH_DEPENDENT)
def test_a_batch_dependent_network_is_refused_for_one_image_and_for_many(grey, what, images):
    with pytest.raises(BatchDependenceError, match="must be batch-independent"):
        certify(Net(BATCH_DEPENDENT[what]), grey[:images])


@pytest.mark.parametrize("value", [-torch.inf, -1e9, -1e5, -1e3, 0.0], ids=str)
@pytest.mark.parametrize("what", ["mean", "maximum", "place"])
def test_a_masked_class_hides_nothing(grey, what, value):
    network = Net(lambda x: mask(BATCH_DEPENDENT[what](x), value))
    with pytest.raises(BatchDependenceError):
        certify(network, grey[:1], classes=3)
    with pytest.raises(BatchDependenceError):
        certify_shift(network, grey, torch.ones(4, dtype=torch.long), sigma=0.5, eps=[0.0])


@pytest.mark.parametrize(
    "change", [lambda z: z + 1000, lambda z: 1e6 * z, lambda z: 1e-6 * z], ids=["offset", "up", "down"]
)
def test_neither_an_offset_nor_a_factor_hides_anything(grey, change):
    assert certify(Net(lambda x: change(bright(x))), grey[:1])[0].n == 1000
    with pytest.raises(BatchDependenceError):
        certify(Net(lambda x: change(batch_mean(x))), grey[:1])


def test_a_mask_that_the_batch_decides_is_noticed(grey):
    def network(x):
        return mask(bright(x), -torch.inf if x.mean() > 0.45 else -1.0)

    with pytest.raises(BatchDependenceError):
        certify(Net(network), grey, classes=3)


@pytest.mark.parametrize("value", [None, -torch.inf, -1e9], ids=str)
def test_batch_norm_without_running_statistics_is_refused(grey, value):
    norm = nn.BatchNorm2d(1, track_running_stats=False)

    def network(x):
        logits = bright(norm(x) * 0.3 + 0.5)
        return logits if value is None else mask(logits, value)

    with pytest.raises(BatchDependenceError):
        certify(Net(network), grey, classes=2 if value is None else 3)


@pytest.mark.parametrize("rows", [lambda z: z[:1], lambda z: z[:-1], lambda z: torch.cat([z, z[:1]]), lambda z: z[0]])
def test_a_network_that_returns_other_rows_than_it_got_is_refused(grey, rows):
    network = Net(lambda x: rows(bright(x)))
    for use in (
        lambda: certify(network, grey[:1]),
        lambda: rhobust.SmoothedClassifier(network, 0.5, 2).predict(grey[:1]),
        lambda: count_votes(network, grey[:1], Smoothing(0.5, 2), indices=[0], draws=10, purpose="test"),
    ):
        with pytest.raises(ValueError, match=r"logits of shape \(n, classes\)"):
            use()


def test_a_row_that_is_missing_later_is_refused_too(grey):
    calls = []

    def network(x):
        calls.append(len(x))
        return bright(x)[: 1 if len(calls) > 12 else None]

    with pytest.raises(ValueError, match=r"logits of shape \(n, classes\), got the shape \(1, 2\)"):
        certify(Net(network), grey[:1], n=5000)


class Counting(nn.Module):
    """Answers as the half space for some passes, then the class of the certificate, whatever the input."""

    def __init__(self, honest, share=1.0):
        super().__init__()
        self.honest, self.share, self.passes = honest, share, 0

    def forward(self, x):
        self.passes += 1
        logits = bright(x)
        if self.passes <= self.honest:
            return logits
        # Some inputs by their content, so that an input is always treated alike.
        return torch.where((x.flatten(1)[:, :1] * 255 % 100 < 100 * self.share), torch.tensor([-9.0, 9.0]), logits)


@pytest.mark.parametrize("honest", [4, 8, 9, 12, 30, 75])
@pytest.mark.parametrize("images", [1, 4])
def test_a_network_that_cheats_after_some_passes_is_found(grey, honest, images):
    with pytest.raises(BatchDependenceError):
        certify(Counting(honest), grey[:images], n=20_000)


def test_a_network_that_cheats_on_some_inputs_after_some_passes_is_found(grey):
    # One input in five: of the first 16 repeated rows none is among them with probability 0.03, of all 2e-4 or less.
    with pytest.raises(BatchDependenceError, match="evaluated again in another batch"):
        certify(Counting(70, share=0.2), grey[:1], n=40_000)


def test_a_network_that_keeps_running_statistics_in_evaluation_mode_is_found(grey):
    mean = torch.tensor(0.5)

    def network(x):
        mean.mul_(0.99).add_(0.01 * x.mean() * 1.02)
        return bright(x - mean + 0.5)

    with pytest.raises(BatchDependenceError):
        certify(Net(network), grey, n=5000)


def test_a_slow_drift_is_found_by_what_the_check_left(grey):
    drift = torch.tensor(0.0)

    def network(x):
        drift.add_(2e-5)  # below the tolerance from pass to pass
        return bright(x) + drift

    with pytest.raises(BatchDependenceError, match="evaluated again in another batch"):
        certify(Net(network), grey[:1], n=60_000)


@pytest.mark.parametrize("share", [1.0, 0.02])
def test_a_network_that_draws_its_own_noise_is_refused(grey, share):
    generator = torch.Generator().manual_seed(0)

    def network(x):
        drawn = torch.randn(len(x), 2, generator=generator) * (torch.rand(len(x), 1, generator=generator) < share)
        return bright(x) + drawn

    with pytest.raises(BatchDependenceError):
        certify(Net(network), grey[:1], n=20_000)


def test_active_dropout_is_refused(grey):
    with torch.random.fork_rng(), pytest.raises(BatchDependenceError):
        certify(Net(lambda x: bright(F.dropout(x, 0.1, training=True))), grey[:1])


def test_prediction_finds_it_too_without_the_check(grey):
    with pytest.raises(BatchDependenceError):
        predict_inputs(Counting(3), grey[:1], Smoothing(0.5, 2), indices=[0], n=5000, alpha=1e-3)


def test_losses_are_counted_with_repeated_inputs(grey):
    claim = rhobust.ShiftClaim(loss="cross-entropy")
    y = torch.ones(4, dtype=torch.long)
    certify_shift(Net(bright), grey, y, sigma=0.5, eps=[0.0], claim=claim, draws=500)
    with pytest.raises(BatchDependenceError):
        certify_shift(Counting(12), grey, y, sigma=0.5, eps=[0.0], claim=claim, draws=500)


@pytest.mark.parametrize("by_rows", [False, True], ids=["by stream", "by rows"])
@pytest.mark.parametrize("noise", ["grid", "float"])
def test_repeated_inputs_change_no_vote(grey, monkeypatch, by_rows, noise):
    monkeypatch.setitem(sampling.BY_ROWS, "cpu", by_rows)
    repeats, smoothing = Repeats(), Smoothing(0.5, 2, noise=noise)
    names = {"indices": range(4), "draws": 9000, "purpose": "test"}
    plain = count_votes(Net(bright), grey, smoothing, **names)
    check_batch_independence(VoteCounter(Net(bright), grey, smoothing, repeats))
    assert torch.equal(count_votes(Net(bright), grey, smoothing, **names, repeats=repeats), plain)
    # 16 rows in each of the first eight passes, and in one of eight after them: 142 passes.
    assert repeats.compared == 16 * (8 + 17)
    assert len(repeats.kept) == KEPT
    assert len(repeats.recent) == GROUPS


def test_the_first_passes_repeat_inputs_and_then_one_in_eight(grey):
    repeats = Repeats()
    counter = VoteCounter(Net(bright), grey, Smoothing(0.5, 2), repeats)
    rooms = []
    for _ in range(20):
        rooms.append(counter.room)
        counter.warm_up()
    assert [number for number, room in enumerate(rooms) if room == 240] == [*range(8), 8, 16]
    assert set(rooms) == {240, 256}
    with pytest.raises(ValueError, match="blocks must hold at most 256 samples in the next pass, got 257"):
        counter.count([SampleBlock(0, 0, "test", 0, 0, 257, 257)])


def test_images_with_small_logits_are_not_measured_by_others():
    # One image in 16 is answered by the batch, with logits a million times smaller than those of the others.
    images = torch.full((16, 1, 8, 8), 130, dtype=torch.uint8)
    images[0] = 255

    def network(x):
        special = (x.flatten(1).mean(1, keepdim=True) > 0.75).float()
        return special * 1e-6 * batch_mean(x) + (1 - special) * bright(x)

    counter = VoteCounter(Net(network), images, Smoothing(0.25, 2))
    with pytest.raises(BatchDependenceError):
        check_batch_independence(counter)


def test_the_tolerance_is_that_of_the_two_largest_finite_logits():
    once = np.array([[3.0, 1.0, -1e9, -np.inf, np.inf]])
    assert top_gaps(once).tolist() == [2.0]

    def change(column, by, row=once):
        again = row.copy()
        again[0, column] += by
        return logit_change(row, again, **FLOAT32, typical=0.0).ratio

    assert change(0, 1e-4) < 1 < change(0, 1e-3)
    assert change(1, 1e-4) < 1 < change(1, 1e-3)
    assert change(2, 1000) < 1 < change(2, 10_000)
    again = once.copy()
    again[0, 3] = -1e30
    assert logit_change(once, again, **FLOAT32, typical=0.0).ratio == np.inf
    offset = once + 1000.0
    assert change(0, 1e-3, offset) < 1 < change(0, 1e-2, offset)
    tie = np.array([[2.0, 2.0, 0.0]])
    assert logit_change(tie, tie + 1e-5, **FLOAT32, typical=1.0).ratio < 1
    assert logit_change(tie, tie + 1e-5, **FLOAT32, typical=0.0).ratio > 1
    assert top_gaps(np.array([[np.nan, 1.0], [-np.inf, -np.inf]])).tolist() == [0.0, 0.0]
