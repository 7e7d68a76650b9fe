"""Votes on a GPU: the same whatever the batch, compiled and captured or not."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from rhobust import noise
from rhobust.certificates import (
    Fixed,
    Sequential,
    SmoothedClassifier,
    Smoothing,
    VoteCounter,
    certify_stream,
    check_batch_independence,
    count_votes,
    schedule,
)
from rhobust.models import build_model, operators
from rhobust.noise import (
    GridTables,
    grid_block,
    grid_steps,
    grid_thresholds,
    grid_values,
    key_words,
    normal_rows,
    stream_key,
)

# torch warns about its own parts while it compiles.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

CUDA = torch.device("cuda")
ARITHMETICS = [{"dtype": "tf32"}, {"dtype": "float32"}, {"dtype": "bfloat16"}, {"dtype": "bfloat16", "compiled": True}]


@pytest.fixture(scope="module")
def network():
    model = build_model(
        "resnet18", shape=(3, 32, 32), classes=10, mean=[0.5] * 3, deviation=[0.25] * 3, activation="relu", seed=0
    )
    return model.to(CUDA).eval()


@pytest.fixture(scope="module")
def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (40, 3, 32, 32), generator=generator, dtype=torch.uint8).to(CUDA)


@pytest.mark.parametrize("arithmetic", ARITHMETICS, ids=str)
def test_votes_do_not_depend_on_the_batch(network, images, arithmetic):
    smoothing = Smoothing(0.25, 10, **arithmetic)
    whole = count_votes(network, images, smoothing, indices=range(40), draws=300, purpose="test")
    assert whole.sum(1).tolist() == [300] * 40
    names = [7, 30, 3]
    some = count_votes(network, images[names], smoothing, indices=names, draws=300, purpose="test")
    assert torch.equal(some, whole[names])


def test_a_captured_pass_votes_as_the_plain_one(network, images):
    plain, fast = (
        count_votes(network, images, Smoothing(0.25, 10, **arithmetic), indices=range(40), draws=256, purpose="test")
        for arithmetic in (ARITHMETICS[1], ARITHMETICS[3])
    )
    # The same noise; bf16 changes only predictions that are nearly tied.
    assert (plain - fast).abs().sum().item() < 0.05 * plain.sum().item()


def test_the_draws_have_their_law():
    sigma, rows, size = 0.25, 4096, 1024
    keys = torch.tensor([key_words(stream_key(0, "law"))], device=CUDA).expand(rows, 4)
    steps = grid_steps(keys, torch.arange(rows, device=CUDA), size, grid_thresholds(sigma, CUDA))
    drawn = grid_values(sigma, CUDA)[steps].double()
    count = rows * size
    assert abs(drawn.mean().item()) < 5 * sigma / np.sqrt(count)
    spread = drawn.square().mean().sqrt().item()
    expected = np.sqrt(sigma**2 + 1 / (12 * 255**2))
    assert spread == pytest.approx(expected, abs=5 * expected / np.sqrt(2 * count))
    # Rows of other streams, and other rows of the same stream, have nothing in common.
    assert abs(torch.corrcoef(torch.stack([drawn[0], drawn[1]]))[0, 1].item()) < 6 / np.sqrt(size)


@pytest.mark.parametrize("procedure", [Fixed(50, 1000), Sequential((0.0, 0.25, 0.5), 50, 1000)], ids=str)
def test_certificates_do_not_depend_on_other_inputs(network, images, procedure):
    counter = VoteCounter(network, images, Smoothing(0.25, 10, **ARITHMETICS[3]))
    single = [next(iter(certify_stream(counter, procedure, [(place, place)], alpha=1e-3))) for place in range(5)]
    together = list(certify_stream(counter, procedure, [(place, place) for place in range(5)], alpha=1e-3))
    assert single == together


def test_the_counter_draws_as_on_a_cpu():
    keys = torch.tensor([key_words(stream_key(0, "test", index)) for index in range(6)])
    rows = torch.tensor([0, 1, 5, 127, 3, 9])
    here = grid_steps(keys, rows, 77, grid_thresholds(0.25, "cpu"))
    there = grid_steps(keys.cuda(), rows.cuda(), 77, grid_thresholds(0.25, "cuda"))
    assert torch.equal(here, there.cpu())
    block = grid_block(stream_key(0, "test", 4), (10, 77), 0.25, "cuda").cpu()
    assert torch.equal(block[3], (here[4] - len(grid_thresholds(0.25, "cpu")) // 2).to(torch.int16))


@pytest.mark.parametrize("sigma", [0.02, 0.25, 2.0])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 7, 7), (5,), (3, 224, 224)], ids=str)
def test_the_kernel_draws_the_integers_of_the_definition(shape, sigma):
    rows, size = 64, int(np.prod(shape))
    images = torch.randint(256, (3, size), generator=torch.Generator().manual_seed(1), dtype=torch.uint8).to(CUDA)
    plan = np.zeros((7, rows), dtype=np.int64)
    plan[0], plan[1] = np.arange(rows) % 3, np.arange(rows) * 37 % 128
    plan[3:] = np.array([key_words(stream_key(0, "kernel", row // 7)) for row in range(rows)]).T
    plan, tables = torch.from_numpy(plan).to(CUDA), GridTables(sigma, CUDA)
    out = torch.full((rows, *shape), torch.nan, device=CUDA)
    out = out.contiguous(memory_format=torch.channels_last) if len(shape) == 3 else out
    assert noise._kernels() is not None
    tables.write_noisy(out, images, plan)
    steps = grid_steps(plan[3:].T, plan[1], size, tables.thresholds)
    assert torch.equal(out, tables.values[steps + images[plan[0]]].view(rows, *shape))


def test_by_default_votes_are_fast_and_one_pass_serves_all_calls(network, images):
    smoothed = SmoothedClassifier(network, 0.25, 10)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*more slowly")
        (one,) = smoothed.certify(images[:1], n=500)
        assert (one.dtype, one.compiled) == ("bfloat16", True)
        before = counters["stats"]["unique_graphs"]
        several = smoothed.certify(images[:7], n=500, radii=(0.0, 0.25))
        smoothed.predict(images, n=100)
        SmoothedClassifier(network, 0.5, 10).certify(images[:3], n=500)
        smoothed.certify(images[:2].float() / 255 * 0.99, n=500)  # float noise
        count_votes(network, images, Smoothing.for_images(images, 0.1, 10), indices=range(40), draws=9, purpose="shift")
    assert counters["stats"]["unique_graphs"] == before
    assert len(several) == 7
    assert SmoothedClassifier(network, 0.25, 10, dtype="float32").certify(images[:1], n=500)[0].compiled is False


def test_new_weights_are_certified_without_compiling(images):
    with torch.random.fork_rng():
        layers = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        network = nn.Sequential(*layers, nn.Linear(16, 10)).to(CUDA).eval()
    smoothed = SmoothedClassifier(network, 0.25, 10)
    smoothed.certify(images[:1], n=500)
    before = counters["stats"]["unique_graphs"]
    with torch.no_grad():
        network[-1].bias[3] += 100
    assert smoothed.certify(images[:1], n=500)[0].selected == 3
    assert counters["stats"]["unique_graphs"] == before
    network[-1] = nn.Sequential(network[-1], nn.Softmin(dim=1))
    assert smoothed.certify(images[:1], n=500)[0].selected != 3


def test_a_network_that_cannot_be_captured_votes_more_slowly(images):
    class Asking(nn.Module):
        def forward(self, x):
            return x.flatten(1)[:, :10] * (2.0 if x.sum().item() > 0 else 1.0)

    with pytest.warns(UserWarning, match="no CUDA graph could be captured, so votes are counted more slowly"):
        (one,) = SmoothedClassifier(Asking(), 0.25, 10).certify(images[:1], n=300)
    assert one.n == 300


@pytest.mark.parametrize("arithmetic", [ARITHMETICS[0], ARITHMETICS[3]], ids=str)
def test_the_network_is_batch_independent(network, images, arithmetic):
    check_batch_independence(VoteCounter(network, images, Smoothing(0.25, 10, **arithmetic)))


def certificates(network, images, procedure):
    counter = VoteCounter(network, images, Smoothing(0.25, 10, **ARITHMETICS[3]))
    return counter, list(certify_stream(counter, procedure, [(place, place) for place in range(12)], alpha=1e-3))


def test_a_capture_changes_no_certificate(network, images, monkeypatch):
    counter, captured = certificates(network, images, Fixed(100, 5000))
    assert counter.passes.graph is not None
    monkeypatch.setattr(counter.passes, "graph", None)
    assert certificates(network, images, Fixed(100, 5000))[1] == captured


def test_running_ahead_changes_no_certificate(network, images, monkeypatch):
    procedure = Sequential((0.0, 0.25, 0.5), n=20_000)
    _, ahead = certificates(network, images, procedure)
    monkeypatch.setitem(schedule.AHEAD, "cuda", 0)
    assert certificates(network, images, procedure)[1] == ahead


def test_nan_is_an_error(images):
    class Broken(nn.Module):
        def forward(self, x):
            return x.flatten(1)[:, :10] * float("nan")

    with pytest.raises(ValueError, match="logits must be numbers"):
        count_votes(Broken(), images, Smoothing(0.25, 10, dtype="tf32"), indices=range(40), draws=10, purpose="test")


def test_the_kernel_draws_the_normal_numbers_of_the_definition():
    keys = [stream_key(0, "normal", index) for index in range(5)]
    assert noise._kernels() is not None
    drawn = normal_rows(keys, 7, 1001, CUDA).cpu()
    assert torch.allclose(drawn, normal_rows(keys, 7, 1001, "cpu"), atol=1e-3)
    x = torch.zeros(5, 3, 8, 8, device=CUDA)
    whole = noise.ExampleNoise(0, "test", range(5)).normal(x, 4)
    assert torch.equal(noise.ExampleNoise(0, "test", [3]).normal(x[:1], 4)[:, 0], whole[:, 3])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_the_kernel_finds_the_patches_of_the_definition(layout):
    x = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(CUDA, torch.bfloat16)
    assert operators._patches_kernel() is not None
    found = operators.patches(x.contiguous(memory_format=layout), [3, 3], [1, 1])
    assert torch.equal(found, operators._plain_patches(x, [3, 3], [1, 1]))


def test_a_large_vision_transformer_is_certified_on_eight_gigabytes():
    models = pytest.importorskip("torchvision.models")
    total = torch.cuda.get_device_properties(CUDA).total_memory
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(256, (1, 3, 224, 224), generator=generator, dtype=torch.uint8).to(CUDA)
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()  # by the compiled passes of other tests
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_per_process_memory_fraction(min(1.0, (held + 8e9) / total))
    try:
        smoothed = SmoothedClassifier(models.vit_l_16().to(CUDA).eval(), 0.5, 1000)
        (found,) = smoothed.certify(image, n0=100, n=500)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert found.n == 500
    assert torch.cuda.max_memory_reserved() - held <= 8e9
