"""Forward passes: compiled once per network and shape, always of the present network, in memory that is there."""

import gc
import threading
import time
from contextlib import nullcontext
from weakref import ref

import numpy as np
import pytest
import torch
from torch import nn

from rhobust.certificates import SmoothedClassifier, Smoothing, VoteCounter, batch_size, count_votes, passes
from rhobust.certificates.blocks import SampleBlock, cut_blocks
from rhobust.certificates.spec import arithmetic, compiled_by_default, vote_dtype
from tests.captured import pretend_cuda


@pytest.fixture
def compiled(monkeypatch):
    """Compiles by calling the function itself; returns how often that was asked for."""
    made = []

    def compile_function(function, **options):
        made.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile_function)
    return made


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
        model = nn.Sequential(*layers)
        model(torch.rand(64, 1, 4, 4))
    return model.eval()


def votes(model, images, **options):
    smoothing = Smoothing(options.pop("sigma", 0.25), 2, compiled=True, **options)
    return count_votes(model, images, smoothing, indices=range(len(images)), draws=50, purpose="test")


def test_one_compilation_serves_every_number_of_images_sigma_and_purpose(compiled, grey_images):
    model, images = network(), grey_images.images
    few = votes(model, images[:3])
    whole = votes(model, images)
    assert torch.equal(whole[:3], few)
    votes(model, images, sigma=0.5)
    votes(model, images, noise="float")
    SmoothedClassifier(model, 0.25, 2, compiled=True).certify(images[:2], n=200)
    SmoothedClassifier(model, 0.25, 2, compiled=True).predict(images[:5], n=100)
    assert len(compiled) == 1
    votes(model, images[:3], dtype="bfloat16")
    assert len(compiled) == 2
    # Another network is another one, and a network that is gone leaves nothing.
    known = len(passes._PASSES)
    votes(network(), images[:3])
    assert len(compiled) == 3
    gc.collect()
    assert len(passes._PASSES) == known


def test_the_compiled_copy_has_the_present_weights_and_layers(compiled, grey_images):
    model, images = network(), grey_images.images
    plain = lambda: count_votes(model, images, Smoothing(0.25, 2), indices=range(40), draws=50, purpose="test")  # noqa: E731
    assert torch.equal(votes(model, images), plain())
    with torch.no_grad():
        model[-1].weight.neg_()
        model[1].running_mean.add_(0.3)
    assert torch.equal(votes(model, images), plain())
    assert len(compiled) == 1
    model[2] = nn.Tanh()
    assert torch.equal(votes(model, images), plain())
    assert len(compiled) == 2
    model[2].register_forward_hook(lambda module, inputs, output: -output)
    assert torch.equal(votes(model, images), plain())
    assert len(compiled) == 3


class Scaled(nn.Module):
    """Depends on an object that is no parameter."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.options = inner, {"sign": 1.0}

    def forward(self, x):
        return self.options["sign"] * self.inner(x)


def test_a_change_that_only_its_answers_show_is_found(compiled, grey_images):
    model, images = Scaled(network()), grey_images.images
    before = votes(model, images)
    model.options["sign"] = -1.0
    assert torch.equal(votes(model, images), before.flip(1))
    assert len(compiled) == 2


def test_a_network_that_cannot_be_compiled_votes_all_the_same(monkeypatch, grey_images):
    def refuse(function, **options):
        def call(*arguments):
            raise RuntimeError("no compiler here")

        return call

    model, images = network(), grey_images.images
    plain = count_votes(model, images, Smoothing(0.25, 2), indices=range(40), draws=50, purpose="test")
    monkeypatch.setattr(torch, "compile", refuse)
    with pytest.warns(UserWarning, match="could not be compiled, so votes are counted more slowly: no compiler here"):
        assert torch.equal(votes(model, images), plain)


def captured(model, images):
    """The passes of a compiled network, captured as on a GPU."""
    made = VoteCounter(model, images, Smoothing(0.25, 2, compiled=True)).passes
    with torch.no_grad():
        made._capture()
    return made


def test_a_captured_pass_counts_the_votes_of_the_present_network(compiled, grey_images, monkeypatch):
    (model, images), graphs = (network(), grey_images.images), pretend_cuda(monkeypatch)
    plain = lambda: count_votes(model, images, Smoothing(0.25, 2), indices=range(40), draws=50, purpose="test")  # noqa: E731
    made = captured(model, images)
    assert torch.equal(votes(model, images), plain())
    replays = graphs[0].replays
    assert graphs[0].mode == "thread_local"
    assert replays >= 40 * 50 / made.rows
    with torch.no_grad():
        model[-1].weight.neg_()
        model[1].running_mean.add_(0.3)
    assert torch.equal(votes(model, images), plain())
    assert graphs[0].replays == 2 * replays
    with pytest.warns(UserWarning, match="out of memory with 256 inputs per pass: 128 from now on"):
        made.halve("full")
    # Later calls take the halved pass.
    assert torch.equal(votes(model, images[:9]), plain()[:9])
    assert VoteCounter(model, images, Smoothing(0.25, 2, compiled=True)).passes is made
    assert (len(compiled), graphs[0].replays) == (1, 2 * replays)


def test_threads_that_share_a_network_make_its_pass_once(compiled, grey_images, monkeypatch):
    model, images, prepare, made = network(), grey_images.images[:3], passes.NetworkPass.prepare, []

    def prepare_slowly(self, *given):
        made.append("begun")
        time.sleep(0.05)
        prepare(self, *given)
        made.append("done")

    monkeypatch.setattr(passes.NetworkPass, "prepare", prepare_slowly)
    found = []
    threads = [threading.Thread(target=lambda one=one: found.append(votes(one, images))) for one in (model, model)]
    threads.append(threading.Thread(target=votes, args=(network(), images)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Two networks, one after the other: the preparation of a capture would break another one.
    assert made == ["begun", "done"] * 2
    assert len(compiled) == 2
    assert torch.equal(*found)


def test_a_pass_that_cannot_be_captured_counts_the_same(compiled, grey_images, monkeypatch):
    model, images = network(), grey_images.images
    pretend_cuda(monkeypatch, fail=RuntimeError("capture failed"))
    with pytest.warns(UserWarning, match="no CUDA graph could be captured, so votes are .* slowly: capture failed"):
        assert captured(model, images).graph is None
    plain = count_votes(model, images, Smoothing(0.25, 2), indices=range(40), draws=50, purpose="test")
    assert torch.equal(votes(model, images), plain)
    pretend_cuda(monkeypatch, fail=torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError):  # the rows are halved then
        captured(network(), images)


class Limited(nn.Module):
    """Its memory holds few inputs."""

    def __init__(self, inner, most):
        super().__init__()
        self.inner, self.most, self.seen = inner, most, []

    def forward(self, x):
        self.seen.append(len(x))
        if len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.inner(x)


def test_out_of_memory_while_compiling_halves_the_batch(compiled, half_space, grey_images):
    images, model = grey_images.images, Limited(half_space, 100)
    expected = count_votes(half_space, images, Smoothing(0.25, 2), indices=range(40), draws=50, purpose="test")
    with pytest.warns(UserWarning, match=r"out of memory with \d+ inputs per pass: \d+ from now on"):
        assert torch.equal(votes(model, images), expected)
    assert VoteCounter(model, images, Smoothing(0.25, 2, compiled=True)).rows == 64
    assert len(compiled) == 3  # of 256, 128 and 64 rows; the next call compiles nothing


@pytest.mark.parametrize("most", [200, 40])
def test_out_of_memory_halves_the_batch_and_changes_no_count(most, half_space, grey_images):
    images = grey_images.images
    expected = count_votes(half_space, images, Smoothing(0.25, 2), indices=range(40), draws=300, purpose="test")
    model = Limited(half_space, most)
    with pytest.warns(UserWarning, match=r"out of memory with \d+ inputs per pass: \d+ from now on"):
        found = count_votes(model, images, Smoothing(0.25, 2), indices=range(40), draws=300, purpose="test")
    assert torch.equal(found, expected)
    assert model.seen[-1] == {200: 128, 40: 32}[most]


def test_no_frame_of_the_failed_pass_is_alive_when_rows_are_halved(half_space, grey_images):
    held = []

    class Holding(Limited):
        def forward(self, x):
            if len(x) > self.most:
                large = torch.zeros(3)  # what a frame of the error would keep
                held.append(ref(large))
            elif held:
                assert all(one() is None for one in held)
            return super().forward(x)

    with pytest.warns(UserWarning, match="out of memory with 256 inputs"):
        count_votes(
            Holding(half_space, 200), grey_images.images, Smoothing(0.25, 2), indices=range(40), draws=300, purpose="x"
        )
    assert held


@pytest.mark.parametrize(("part", "rows"), [(1.0, 256), (1e-4, 64)])
def test_a_batch_fits_into_the_part_of_the_card_that_the_process_may_use(
    part, rows, half_space, grey_images, monkeypatch
):
    said = {
        "synchronize": None,
        "memory_allocated": 0,
        "reset_peak_memory_stats": None,
        "max_memory_allocated": passes.MEASURED * 1000,
        "memory_reserved": 0,
        "mem_get_info": (10**9, 10**9),
    }
    for name, value in said.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda: part)
    images = grey_images.images
    found = passes.NetworkPass(images.shape[1:], Smoothing(0.25, 2), torch.device("cpu"), 256)
    found._fit(half_space, images[:1] / 255)
    assert found.rows == len(found.inputs) == rows


@pytest.mark.filterwarnings("ignore:out of memory")
def test_a_batch_that_never_fits_is_refused(half_space, grey_images):
    model, smoothing = Limited(half_space, 1), Smoothing(0.25, 2)
    with pytest.raises(ValueError, match="a batch of 8 must fit into memory"):
        count_votes(model, grey_images.images, smoothing, indices=range(40), draws=9, purpose="x")


def test_the_batch_size_can_be_set_and_changes_no_count(half_space, grey_images):
    images, model = grey_images.images, Limited(half_space, 256)
    expected = count_votes(half_space, images, Smoothing(0.25, 2), indices=range(40), draws=99, purpose="test")
    with batch_size(48):
        found = count_votes(model, images, Smoothing(0.25, 2), indices=range(40), draws=99, purpose="test")
    assert torch.equal(found, expected)
    assert set(model.seen) == {48}
    assert VoteCounter(model, images, Smoothing(0.25, 2)).rows == passes.ROWS["cpu"]
    for wrong in (0, 7):
        with pytest.raises(ValueError, match="batch_size must be >="), batch_size(wrong):
            pass


def test_blocks_are_cut_into_parts():
    blocks = [SampleBlock(0, 0, "x", 0, 0, 10, 128), SampleBlock(1, 1, "x", 2, 100, 128, 128)]
    parts = cut_blocks(blocks, 16)
    assert [sum(map(len, part)) for _, part in parts] == [16, 16, 6]
    assert [owners for owners, _ in parts] == [[0, 1], [1], [1]]
    samples = [(owners[i], k) for owners, part in parts for i, b in enumerate(part) for k in range(b.first, b.stop)]
    assert samples == [(0, k) for k in range(10)] + [(1, k) for k in range(100, 128)]


def test_defaults_of_a_device():
    cpu = torch.device("cpu")
    assert vote_dtype(cpu) == "float32"
    assert not compiled_by_default("bfloat16", cpu)
    assert not compiled_by_default("float32", torch.device("cuda"))
    assert compiled_by_default("bfloat16", torch.device("cuda"))
    assert Smoothing.on(cpu, 0.25, 2) == Smoothing(0.25, 2)
    assert np.prod((3, 224, 224)) * passes.batch_rows(torch.device("cuda"), (3, 224, 224)) < 2**26


def test_threads_take_turns_with_the_settings_of_cudnn():
    settings, cuda = torch.backends.cudnn, torch.device("cuda")
    before, inside, seen = (settings.benchmark, settings.deterministic, settings.allow_tf32), threading.Event(), []

    def work():
        with arithmetic("tf32", cuda):
            seen.append(settings.allow_tf32)
            inside.set()

    thread = threading.Thread(target=work)
    with arithmetic("float32", cuda):
        thread.start()
        assert not inside.wait(0.1)
        assert not settings.allow_tf32
    thread.join()
    assert seen == [True]
    assert (settings.benchmark, settings.deterministic, settings.allow_tf32) == before
