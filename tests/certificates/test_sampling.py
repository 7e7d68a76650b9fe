"""Votes under named noise, in any batch; networks that are batch-dependent are refused."""

import threading
import time

import pytest
import torch
from torch import nn

from rhobust.certificates import (
    Fixed,
    SmoothedClassifier,
    Smoothing,
    VoteCounter,
    ZeroOne,
    certify_inputs,
    certify_measured_shift,
    certify_shift,
    check_batch_independence,
    count_votes,
    noise_kind,
    sample_losses,
    sampling,
)
from rhobust.certificates.passes import ROWS, prepared_pass
from rhobust.certificates.sampling import BY_ROWS
from rhobust.data import to_unit
from rhobust.noise import grid_block, normal_block, stream_key
from rhobust.proofs.plan import CHUNK


def votes(model, images, indices=None, *, draws=150, sigma=0.25, noise="grid"):
    names = range(len(images)) if indices is None else indices
    return count_votes(model, images, Smoothing(sigma, 2, noise=noise), indices=names, draws=draws, purpose="test")


def test_every_sample_is_one_vote(half_space, grey_images):
    counts = votes(half_space, grey_images.images)
    assert counts.dtype == torch.int64
    assert (counts.sum(1) == 150).all()
    assert counts[0, 0] == 150
    assert counts[-1, 1] == 150


@pytest.mark.parametrize("noise", ["grid", "float"])
def test_votes_are_those_of_the_named_noise(half_space, grey_images, noise):
    image = grey_images.images[18:19]
    expected = 0
    for chunk, size in enumerate((CHUNK, 150 - CHUNK)):
        key = stream_key(0, "test", 18, chunk)
        if noise == "grid":
            x = (image.int() + grid_block(key, (size, 1, 4, 4), 0.25)).float() / 255
        else:
            x = to_unit(image) + 0.25 * normal_block(key, (size, 1, 4, 4))
        expected += (half_space(x).argmax(1) == 1).sum()
    assert votes(half_space, image, [18], noise=noise)[0, 1] == expected
    assert 0 < expected < 150


def test_order_and_grouping_change_no_count(half_space, grey_images):
    whole = votes(half_space, grey_images.images)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    assert torch.equal(votes(half_space, grey_images.images[order], order.tolist()), whole[order])
    parts = [votes(half_space, grey_images.images[i : i + 7], range(i, min(i + 7, 40))) for i in range(0, 40, 7)]
    assert torch.equal(torch.cat(parts), whole)


def test_floats_on_the_grid_vote_like_the_bytes(half_space, grey_images):
    x = to_unit(grey_images.images)
    assert noise_kind(grey_images.images) == noise_kind(x) == "grid"
    assert noise_kind(x + 1e-4) == "float"
    # One number off the grid is enough: rounded to it, another image would be certified.
    off_grid = x.clone()
    off_grid[3, 0, 1, 2] += 1e-3
    assert noise_kind(off_grid) == "float"
    assert torch.equal(votes(half_space, x), votes(half_space, grey_images.images))


def test_images_off_the_grid_are_not_certified_as_if_on_it(half_space, grey_images):
    with pytest.raises(ValueError, match=r"images must be uint8, or multiples of 1/255 in \[0, 1\], for grid noise"):
        votes(half_space, to_unit(grey_images.images) + 1e-3)
    # The nearest bfloat16 of k / 255 is another image.
    assert noise_kind(to_unit(grey_images.images).bfloat16()) == "float"


class BatchShape(nn.Module):
    """Records the shape of its batches, and would use batch statistics in training mode."""

    def __init__(self):
        super().__init__()
        self.rows = set()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        assert not self.training
        self.rows.add(len(x))
        return self.norm(x.flatten(1))[:, :2]


def test_the_network_sees_one_shape_in_evaluation_mode(grey_images):
    model = BatchShape().train()
    votes(model, grey_images.images[:3], draws=20)
    votes(model, grey_images.images, draws=130)
    assert model.rows == {ROWS["cpu"]}
    assert model.training


class Watching(nn.Module):
    """Records its inputs."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x.flatten(1).clone())
        return x.flatten(1)[:, :2]


@pytest.mark.parametrize("by_rows", [False, True], ids=["by stream", "by rows"])
def test_no_two_samples_share_their_noise(grey_images, monkeypatch, by_rows):
    # One image under three names, 150 samples in two chunks, for two purposes and two seeds; by rows as on a GPU.
    monkeypatch.setitem(BY_ROWS, "cpu", by_rows)
    image, noisy = grey_images.images[18:19].repeat(3, 1, 1, 1), []
    for purpose in ("one", "other"):
        for seed in (0, 1):
            model = Watching()
            count_votes(model, image, Smoothing(0.25, 2, seed=seed), indices=[4, 5, 6], draws=150, purpose=purpose)
            noisy.append(torch.cat(model.seen)[:450])
    assert len(torch.unique(torch.cat(noisy), dim=0)) == 4 * 450


class Broken(nn.Module):
    def __init__(self, width, value):
        super().__init__()
        self.width, self.value = width, value

    def forward(self, x):
        return torch.full((len(x), self.width), self.value)


def test_nan_is_an_error_never_a_vote(grey_images):
    with pytest.raises(ValueError, match="returned NaN"):
        votes(Broken(2, float("nan")), grey_images.images)
    with pytest.raises(
        ValueError,
        match=r"logits must have the shape \(256, 2\), one row per input, got \(256, 3\): num_classes must be 3",
    ):
        votes(Broken(3, 0.0), grey_images.images)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigma": 0.0}, "sigma must be > 0"),
        ({"draws": 0}, "draws must be >= 1"),
        ({"indices": [1]}, "indices must name"),
    ],
)
def test_bad_arguments_are_refused(half_space, grey_images, change, message):
    with pytest.raises(ValueError, match=message):
        votes(half_space, grey_images.images, **change)


@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
def test_what_is_no_8_bit_image_is_not_certified_with_grid_noise(half_space, grey_images, kind):
    # 255.0 is a multiple of 1/255, but not below one: its steps would not fit into the sampler's integers.
    x = grey_images.images.to(kind)
    assert noise_kind(x) == "float"
    with pytest.raises(ValueError, match="for grid noise, got others"):
        certify_inputs(half_space, x, Smoothing(0.25, 2), Fixed(n=100), indices=range(len(x)), alpha=0.01)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (range(3), r"indices must name every image \(40\), got 3"),
        (range(50), r"indices must name every image \(40\), got 50"),
    ],
)
def test_every_image_has_a_name(half_space, grey_images, indices, message):
    x, y = grey_images.images, grey_images.labels
    with pytest.raises(ValueError, match=message):
        certify_inputs(half_space, x, Smoothing(0.25, 2), Fixed(n=100), indices=indices, alpha=0.01)
    with pytest.raises(ValueError, match=message):
        sample_losses(half_space, x, y, ZeroOne(), Smoothing(0.25, 2), indices=indices, draws=2, purpose="test")


class Mixing(nn.Module):
    """A half space whose logits change with the batch's mean, or with an input's place, by a little or a lot."""

    def __init__(self, base, *, mean=0.0, place=0.0):
        super().__init__()
        self.base, self.mean, self.place = base, mean, place

    def forward(self, x):
        logits = self.base(x)
        return logits + self.mean * x.mean() + self.place * torch.arange(len(x))[:, None]


def check(model, images):
    return check_batch_independence(VoteCounter(model, images, Smoothing(0.25, 2)))


def test_a_function_of_one_input_passes(half_space, grey_images):
    assert check(half_space, grey_images.images) == []


@pytest.mark.parametrize("dependence", [{"mean": 1.0}, {"place": 0.01}, {"mean": 3e-3}, {"place": 3e-6}])
def test_a_batch_dependent_network_is_refused(half_space, grey_images, dependence):
    with pytest.raises(ValueError, match="must be batch-independent, but its logits depend on the other inputs"):
        check(Mixing(half_space, **dependence), grey_images.images)


@pytest.mark.parametrize(
    "certify",
    [
        lambda model, x, y: SmoothedClassifier(model, 0.25, 2).certify(x, n=100),
        lambda model, x, y: SmoothedClassifier(model, 0.25, 2).certify(x, n=100, radii=(0.0, 0.5)),
        lambda model, x, y: certify_shift(model, x, y, sigma=0.25, eps=[0.1]),
        lambda model, x, y: certify_measured_shift(model, x, y, x, x, sigma=0.25),
    ],
    ids=["radius", "radii", "shift", "measured shift"],
)
def test_no_function_certifies_a_batch_dependent_network(half_space, grey_images, certify):
    certify(half_space, grey_images.images, grey_images.labels)
    with pytest.raises(ValueError, match="must be batch-independent"):
        certify(Mixing(half_space, mean=1.0), grey_images.images, grey_images.labels)


def test_a_network_that_fails_says_so_in_one_line(half_space):
    with pytest.raises(ValueError, match=r"the network raised RuntimeError: .* 256 inputs of shape 1x5x5") as line:
        check(half_space, torch.zeros(2, 1, 5, 5, dtype=torch.uint8))
    assert "\n" not in str(line.value)


def test_rounding_is_a_warning(half_space, grey_images):
    (warning,) = check(Mixing(half_space, place=3e-8), grey_images.images)
    assert "depend on an input's place in the batch" in warning


def test_batch_norm_is_checked_in_evaluation_mode(half_space, grey_images):
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), half_space).train()
    assert check(model, grey_images.images) == []
    assert model.training


class InPlace(nn.Module):
    """Shifts its input in place before it answers."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        x -= 0.1
        return self.network(x + 0.1)


def test_a_network_that_works_in_place_leaves_the_images_unchanged(half_space, grey_images):
    x, y = to_unit(grey_images.images), grey_images.labels
    found = certify_shift(InPlace(half_space), x, y, sigma=0.25, eps=[0.1])
    assert found == certify_shift(half_space, x, y, sigma=0.25, eps=[0.1])
    assert torch.equal(x, to_unit(grey_images.images))


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("noise", ["grid", "float"])
def test_torchs_default_dtype_changes_no_input(half_space, grey_images, noise, default):
    seen = []

    class Watched(nn.Module):
        def forward(self, x):
            seen.append(x.clone())
            return half_space(x)

    def inputs():
        seen.clear()
        votes(Watched(), grey_images.images[:3], noise=noise)
        return list(seen)

    expected, before = inputs(), torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        found = inputs()
    finally:
        torch.set_default_dtype(before)
    assert [x.dtype for x in found] == [torch.float32] * len(expected)
    assert all(map(torch.equal, found, expected))


def test_threads_that_share_a_compiled_pass_count_their_own_votes(half_space, grey_images, monkeypatch):
    # A compiled pass is one per network, with memory for its inputs; here it is the plain network, and shared all the
    # same. It waits for others before it reads them.
    class Late(nn.Module):
        def forward(self, x):
            time.sleep(0.02)
            return half_space(x)

    network, kept = Late(), {}

    def shared(*options, **named):
        return kept.setdefault("pass", prepared_pass(*options, **named))

    monkeypatch.setattr(sampling, "prepared_pass", shared)
    dark, bright = (grey_images.images[[place]] for place in (10, 30))
    counted = {}

    def count(name, image):
        counted[name] = votes(network, image, draws=1500).tolist()

    alone = [votes(half_space, image, draws=1500).tolist() for image in (dark, bright)]
    threads = [threading.Thread(target=count, args=named) for named in (("dark", dark), ("bright", bright))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [counted["dark"], counted["bright"]] == alone
