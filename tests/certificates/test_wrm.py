import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rhobust.certificates import loss_smoothness, wrm_surrogate
from rhobust.methods import WRM
from rhobust.models import build_model
from rhobust.models.fused import ConvNorm
from rhobust.noise import stream


def network(activation="elu"):
    return build_model(
        "cnn-small", shape=(1, 8, 8), classes=4, mean=[0.3], deviation=[0.4], activation=activation, seed=0
    )


def matrix_of(layer, shape):
    """A linear layer as a matrix, column by column."""
    basis = torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)
    return (layer.double()(basis) - layer(torch.zeros(1, *shape, dtype=torch.float64))).flatten(1).detach()


def made(make):
    """A module with weights that leave torch's global generator alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


@pytest.mark.parametrize(
    ("make", "size", "slack"),
    [
        (lambda: nn.Conv2d(2, 3, 3, padding=1), 9, 1.2),
        (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), 9, 3.0),
        (lambda: nn.Conv2d(2, 2, 3, padding=2, dilation=2), 12, 1.3),
        (lambda: nn.Conv2d(1, 4, 5), 12, 1.5),
    ],
)
def test_a_convolutions_norm_is_bounded(make, size, slack):
    layer = made(make)
    shape = (layer.in_channels, size, size)
    # One linear layer, so the loss's smoothness is half its squared norm.
    found = math.sqrt(2 * loss_smoothness(layer, shape))
    exact = float(torch.linalg.matrix_norm(matrix_of(layer, shape), 2))
    assert exact <= found <= slack * exact


def test_a_dense_layer_and_the_elu_are_composed():
    model = made(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ELU(), nn.Linear(5, 3)))
    first, last = (float(torch.linalg.matrix_norm(model[i].weight.detach().double(), 2)) for i in (1, 3))
    by_hand = math.sqrt(2) * last * first**2 + 0.5 * (last * first) ** 2
    assert loss_smoothness(model, (1, 2, 2)) == pytest.approx(by_hand, rel=1e-6)
    assert loss_smoothness(model, (1, 2, 2)) >= by_hand


def test_the_activation_of_a_normalised_convolution_counts():
    def model(*inside, behind=()):
        convolution = made(lambda: ConvNorm(1, 2, 3, activation=inside[0] if inside else None))
        return nn.Sequential(convolution, *behind, nn.Flatten(), made(lambda: nn.Linear(32, 3))).eval()

    shape = (1, 4, 4)
    assert loss_smoothness(model(nn.ELU()), shape) == loss_smoothness(model(behind=[nn.ELU()]), shape)
    assert loss_smoothness(model(nn.ELU()), shape) > 1.1 * loss_smoothness(model(), shape)
    with pytest.raises(ValueError, match="its ReLU is not smooth"):
        loss_smoothness(model(nn.ReLU()), shape)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        # A replicated border counts its pixels more than once, and groups have a weight of another shape.
        (lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="replicate"), "Conv2d"),
        (lambda: nn.Conv2d(2, 2, 3, groups=2), "Conv2d"),
        # Three times as steep and as bent below zero.
        (lambda: nn.ELU(alpha=3.0), "ELU"),
    ],
)
def test_layers_of_other_norms_are_refused(make, name):
    with pytest.raises(ValueError, match=f"its {name}'s norms are not known"):
        loss_smoothness(made(make), (2, 8, 8))


def test_a_convolutions_norm_is_not_missed_between_the_frequencies_of_the_image():
    # Largest at the highest frequency, which nine pixels do not have: a torus of nine would find less than the truth.
    layer = made(lambda: nn.Conv2d(1, 1, 3, padding=1, bias=False))
    with torch.no_grad():
        layer.weight.copy_(torch.outer(torch.tensor([1.0, -1, 1]), torch.tensor([1.0, -1, 1])))
    found = math.sqrt(2 * loss_smoothness(layer, (1, 9, 9)))
    exact = float(torch.linalg.matrix_norm(matrix_of(layer, (1, 9, 9)), 2))
    assert exact <= found <= 1.1 * exact


def test_the_most_stretched_channel_decides():
    def smoothness(*deviation):
        model = build_model(
            "cnn-small", shape=(3, 8, 8), classes=4, mean=[0.5] * 3, deviation=deviation, activation="elu", seed=0
        )
        return loss_smoothness(model, (3, 8, 8))

    assert smoothness(0.2, 0.5, 1.0) == pytest.approx(smoothness(0.2, 0.2, 0.2), rel=1e-9)


def test_a_point_that_is_no_maximum_pays_its_whole_gradient(monkeypatch):
    # Far above the threshold the objective is almost a parabola: one full step reaches almost all of the gap.
    model, noise = network(), stream(3, "test")
    smoothness = loss_smoothness(model, (1, 8, 8))
    gamma = 50 * smoothness
    x, y = torch.rand(5, 1, 8, 8, generator=noise, dtype=torch.float64), torch.arange(5) % 4
    reached = wrm_surrogate(model, x, y, gamma, smoothness=smoothness)
    monkeypatch.setattr(WRM, "maximise", lambda self, network, x, y: x.clone())
    stayed = wrm_surrogate(model, x, y, gamma, smoothness=smoothness)
    with torch.no_grad():
        start = F.cross_entropy(network().double()(x), y, reduction="none").numpy()
    assert (reached > start).all()
    assert (stayed - start >= 0.999 * (reached - start)).all()
    assert (stayed - start <= 1.1 * (reached - start)).all()


def test_no_gradient_changes_faster():
    model = network()
    smoothness = loss_smoothness(model, (1, 8, 8))
    double = build_model(
        "cnn-small", shape=(1, 8, 8), classes=4, mean=[0.3], deviation=[0.4], activation="elu", seed=0
    ).double()
    noise = stream(1, "test")
    x = torch.rand(50, 1, 8, 8, generator=noise, dtype=torch.float64)
    step = 1e-3 * torch.randn(x.shape, generator=noise, dtype=torch.float64)
    y = torch.arange(50) % 4

    def gradient(at):
        at = at.clone().requires_grad_()
        return torch.autograd.grad(F.cross_entropy(double(at), y, reduction="sum"), at)[0]

    change = (gradient(x + step) - gradient(x)).flatten(1).norm(dim=1) / step.flatten(1).norm(dim=1)
    assert change.max() < smoothness


def test_the_certificate_is_above_what_any_point_reaches():
    model = network()
    smoothness = loss_smoothness(model, (1, 8, 8))
    noise = stream(2, "test")
    x, y = torch.rand(20, 1, 8, 8, generator=noise), torch.arange(20) % 4
    gamma = 0.6 * smoothness
    upper = wrm_surrogate(model, x, y, gamma, smoothness=smoothness)
    reached = np.full(20, -np.inf)
    with torch.no_grad():
        for scale in (0.0, 1e-4, 1e-3, 1e-2, 0.1):
            for _ in range(20):
                offset = scale * torch.randn(x.shape, generator=noise)
                value = F.cross_entropy(model(x + offset), y, reduction="none")
                reached = np.maximum(reached, (value - gamma * offset.flatten(1).square().sum(1)).numpy())
    assert (upper >= reached - 1e-5).all()
    assert (upper <= reached + 0.01).all()


def test_non_smooth_networks_and_small_penalties_are_refused():
    with pytest.raises(ValueError, match="must be smooth for WRM's certificate, but its ReLU is not"):
        loss_smoothness(network("relu"), (1, 8, 8))
    with pytest.raises(ValueError, match="its Softmax's norms are not known"):
        loss_smoothness(nn.Sequential(nn.Flatten(), nn.Softmax(1)), (1, 2, 2))
    with pytest.raises(ValueError, match="gamma must exceed half the smoothness, 5, got 4"):
        wrm_surrogate(
            network(), torch.rand(1, 1, 8, 8, generator=stream(0, "x")), torch.zeros(1).long(), 4.0, smoothness=10.0
        )


def test_bytes_are_images_in_the_unit_of_one():
    model, x = network(), torch.randint(256, (4, 1, 8, 8), generator=stream(0, "x"), dtype=torch.uint8)
    y, smoothness = torch.arange(4), loss_smoothness(model, (1, 8, 8))
    found = wrm_surrogate(model, x, y.to(torch.uint8), smoothness, smoothness=smoothness)
    assert (found == wrm_surrogate(model, x.float() / 255, y, smoothness, smoothness=smoothness)).all()
    with pytest.raises(ValueError, match=r"x must be in \[0, 1\], got values from"):
        wrm_surrogate(model, x.float(), y, smoothness, smoothness=smoothness)
