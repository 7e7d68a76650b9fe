"""rho_of and gamma_of against closed forms on a half-space."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from rhobust.data import load, to_unit
from rhobust.methods import NAL, WRM, gamma_of, rho_of
from rhobust.models import build_model
from rhobust.noise import ExampleNoise


def half_space_rho(half_space, data, gamma):
    """The mean of t^2, t the maximiser of log(1 + exp(t - margin)) - gamma t^2: sigmoid(t - margin) = 2 gamma t."""
    value = half_space(to_unit(data.images))[:, 1].detach()
    margins = torch.where(data.labels == 1, value, -value).tolist()
    far = 0.5 / gamma + 1e-9
    roots = [brentq(lambda t, m=m: 1 / (1 + math.exp(m - t)) - 2 * gamma * t, 0, far) for m in margins]
    return sum(root**2 for root in roots) / len(roots)


def three_classes(data):
    return replace(data, labels=torch.arange(len(data)) % 3, classes=("dark", "grey", "bright"))


def wrong_size():
    return torch.nn.utils.skip_init(torch.nn.Linear, 3, 2)


@pytest.mark.parametrize("gamma", [0.25, 1.5, 5.0])
def test_rho_is_the_mean_squared_distance_of_the_maximiser(gamma, half_space, grey_images):
    # The loss bends by at most 1/4, so every gamma above 1/8 has one maximiser; 60 damped steps come near it.
    found = rho_of(half_space, grey_images, gamma, steps=60)
    assert found == pytest.approx(half_space_rho(half_space, grey_images, gamma), rel=1e-3)


@pytest.mark.parametrize("sigma", [None, 0.1])
def test_rho_is_the_distance_that_the_methods_report(sigma, half_space, grey_images):
    x, y = to_unit(grey_images.images), grey_images.labels
    noise = ExampleNoise(0, "matching", range(40))
    method = NAL(sigma=sigma, gamma=1.5, steps=16) if sigma else WRM(gamma=1.5)
    expected = method.loss(half_space, x, y, noise).squared_distance.mean().item()
    assert rho_of(half_space, grey_images, 1.5, sigma=sigma) == pytest.approx(expected, rel=1e-6)


def test_little_noise_is_no_noise(half_space, grey_images):
    without = rho_of(half_space, grey_images, 0.5)
    assert rho_of(half_space, grey_images, 0.5, sigma=0) == without
    assert rho_of(half_space, grey_images, 0.5, sigma=1e-4) == pytest.approx(without, rel=1e-3)


def test_an_image_counts_the_same_in_every_batch(half_space, grey_images):
    rho = rho_of(half_space, grey_images, 0.5, sigma=0.3)
    assert rho_of(half_space, grey_images, 0.5, sigma=0.3, batch_size=7) == pytest.approx(rho, rel=1e-5)
    assert rho_of(half_space, grey_images, 0.5, sigma=0.3, seed=1) != rho
    # Ten of forty images: every fourth.
    part = rho_of(half_space, grey_images, 0.5, limit=10)
    assert part == pytest.approx(rho_of(half_space, grey_images.select(torch.arange(0, 40, 4)), 0.5), rel=1e-5)
    assert rho_of(half_space, grey_images, 0.5, limit=100) == rho_of(half_space, grey_images, 0.5)


@pytest.mark.parametrize("sigma", [None, 0.2])
@pytest.mark.parametrize("gamma", [0.07, 1.5, 30.0])
def test_the_search_inverts_rho(gamma, sigma, half_space, grey_images):
    eps = math.sqrt(rho_of(half_space, grey_images, gamma, sigma=sigma))
    assert gamma_of(half_space, grey_images, eps, sigma=sigma) == pytest.approx(gamma, rel=0.01)


@pytest.mark.parametrize("sigma", [None, 0.1])
def test_rho_decreases_in_gamma_and_the_network_is_unchanged(sigma):
    data = load("digits", "train")
    network = build_model(
        "cnn-small", shape=(1, 8, 8), classes=10, mean=[0.3], deviation=[0.3], activation="elu", seed=1
    ).train()
    rhos = [rho_of(network, data, gamma, sigma=sigma, draws=2, limit=60) for gamma in (0.05, 0.25, 1.5, 5.0)]
    assert rhos == sorted(rhos, reverse=True)
    assert network.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in network.parameters())


def test_an_eps_out_of_reach_is_refused(half_space, grey_images):
    with pytest.raises(ValueError, match="eps must be in reach of the inner steps"):
        gamma_of(half_space, grey_images, 1e-12, steps=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda *given: rho_of(*given, 0.0), "gamma must be > 0, got 0"),
        (lambda *given: rho_of(*given, 1.0, sigma=-0.1), "sigma must be > 0, got -0.1"),
        (lambda *given: rho_of(*given, 1.0, limit=0), "limit must be >= 1, got 0"),
        (lambda *given: rho_of(*given, 1.0, batch_size=0), "batch_size must be >= 1, got 0"),
        (lambda *given: rho_of(*given, torch.tensor(1.0)), r"gamma must be a number, got tensor\(1\.\)"),
        (lambda *given: rho_of(*given, torch.ones(2, 2)), "gamma must be a number, got a Tensor"),
        (lambda *given: rho_of(*given, math.inf), "gamma must be finite, got inf"),
        (lambda *given: rho_of(*given, 1.0, sigma=np.array([0.1, 0.2])), "sigma must be a number, got array"),
        (lambda *given: rho_of(*given, 1.0, sigma=0.1, steps="3"), "steps must be an int, got '3'"),
        (lambda *given: rho_of(*given, 1.0, sigma=0.1, steps=0), "steps must be >= 1, got 0"),
        (lambda *given: rho_of(*given, 1.0, limit=5.5), "limit must be an int, got 5.5"),
        (lambda *given: rho_of(*given, 1.0, batch_size="a"), "batch_size must be an int, got 'a'"),
        (lambda model, data: rho_of(model, data.images, 1.0), "data must be a Dataset, got a Tensor"),
        (lambda model, data: gamma_of(model, (data.images, data.labels), 1.0), "data must be a Dataset, got a tuple"),
        (lambda model, data: rho_of(model, three_classes(data), 1.0), r"labels must be in \[0, 2\), got 0 to 2"),
        (
            lambda _, data: rho_of(wrong_size(), data, 1.0),
            "the network raised RuntimeError: ",
        ),
        (lambda *given: gamma_of(*given, "1"), "eps must be a number, got '1'"),
        (lambda *given: gamma_of(*given, None), "eps must be a number, got None"),
        (lambda *given: gamma_of(*given, 1.0, precision="1"), "precision must be a number, got '1'"),
        (lambda *given: gamma_of(*given, 0.0), "eps must be > 0, got 0"),
        (lambda *given: gamma_of(*given, 1.0, precision=0.0), "precision must be > 0, got 0"),
    ],
)
def test_bad_arguments_are_refused(call, message, half_space, grey_images):
    with pytest.raises(ValueError, match=message) as refusal:
        call(half_space, grey_images)
    assert "\n" not in str(refusal.value)
