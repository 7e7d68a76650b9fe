import math

import numpy as np
import pytest
import torch
from scipy import special

from rhobust.attacks.gradient import ascend
from rhobust.bounds import concavity_threshold, psi
from rhobust.certificates import ZeroOne, certified_surrogate, robust_surrogate, surrogate
from rhobust.data import to_unit
from rhobust.methods.base import penalised_step
from rhobust.noise import ExampleNoise

SIGMA = 0.25


def softplus_surrogate(v, gamma, sigma):
    """sup_t E log(1 + exp(v + t + sigma s)) - gamma t^2 by quadrature: the half space's cross-entropy for label 0."""
    t = np.linspace(0, 0.5 / gamma + 1e-9, 4001)  # the loss rises by at most 1 a unit of distance
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    smoothed = np.logaddexp(0, v + t[:, None] + sigma * nodes) @ weights / math.sqrt(2 * math.pi)
    return (smoothed - gamma * t**2).max()


@pytest.mark.parametrize(("sigma", "slack"), [(None, 1e-4), (0.1, 0.02)])
@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_the_surrogate_of_a_half_space(half_space, grey_images, sigma, slack, gamma):
    x = to_unit(grey_images.images[15:25])
    y = torch.zeros(10, dtype=torch.long)
    found = robust_surrogate(half_space, x, y, gamma, sigma=sigma, steps=60, draws=200)
    truth = [softplus_surrogate(v, gamma, sigma or 0.0) for v in half_space(x)[:, 1].tolist()]
    assert found.phi.tolist() == pytest.approx(truth, abs=slack)
    if sigma is None:
        assert (found.phi.double().numpy() <= np.array(truth) + 1e-6).all()
    offset = (found.maximiser - x).flatten(1)
    assert found.distance.tolist() == pytest.approx(offset.norm(dim=1).tolist(), abs=1e-6)
    # Along the normal, and no further than the slope allows.
    assert (offset @ half_space.normal > 0.999 * found.distance).all()
    assert (found.distance <= 0.5 / gamma).all()


def test_a_batch_is_its_examples(half_space, grey_images):
    x, y = to_unit(grey_images.images[10:20]), grey_images.labels[10:20]
    whole = robust_surrogate(half_space, x, y, 1.0, sigma=SIGMA, rng=ExampleNoise(0, "test", range(10)))
    part = robust_surrogate(half_space, x[4:6], y[4:6], 1.0, sigma=SIGMA, rng=ExampleNoise(0, "test", [4, 5]))
    assert torch.allclose(whole.phi[4:6], part.phi, atol=1e-6)
    assert torch.allclose(whole.maximiser[4:6], part.maximiser, atol=1e-6)


def test_an_ascent_that_overshoots_does_not_end_below_its_start(half_space, grey_images):
    # The 0-1 loss is at most 1, the cross-entropy grows without end: at a small penalty the ascent overshoots.
    x, y = to_unit(grey_images.images), grey_images.labels
    found = robust_surrogate(half_space, x, y, 0.1, sigma=SIGMA, draws=50, loss=ZeroOne())
    stayed = robust_surrogate(half_space, x, y, 1e6, sigma=SIGMA, draws=50, loss=ZeroOne())
    assert found.phi.mean() > stayed.phi.mean() + 0.2
    assert (found.phi > stayed.phi - 0.3).all()


@pytest.mark.parametrize("dimension", [1, 3072])
def test_ascent_approaches_psi_from_below(dimension):
    # The smoothed 0-1 loss of a half space, in closed form, above the concavity threshold.
    gamma = 1.5 * concavity_threshold(1.0, SIGMA)
    normal = torch.full((dimension,), dimension**-0.5, dtype=torch.float64)
    x0 = torch.linspace(0, 1, dimension, dtype=torch.float64)[None]
    offset = x0 @ normal + 0.2

    def smoothed(x):
        return torch.special.ndtr((x @ normal - offset) / SIGMA)

    bound = psi(float(special.ndtr(-0.2 / SIGMA)), 2 * gamma * SIGMA**2)
    reached = []
    for steps in (1, 4, 16, 400):
        x = ascend(smoothed, x0, steps=steps, step=penalised_step(x0, gamma, 0.5 / gamma))
        reached.append(float(smoothed(x) - gamma * (x - x0).square().sum()))
    assert all(value <= bound for value in reached)
    assert bound - reached[-1] < 1e-9
    assert reached == sorted(reached)


class Ramp(torch.nn.Module):
    """One logit, the coordinate along a unit normal."""

    def __init__(self, dimension):
        super().__init__()
        self.normal = torch.nn.Parameter(torch.eye(dimension)[0])

    def forward(self, x):
        value = x.flatten(1) @ self.normal
        return torch.stack([torch.zeros_like(value), value], dim=1)


class Slope:
    """The loss Phi((v - 1/2) / 2): far flatter than noise of 0.25 allows."""

    bound = 1.0

    def __call__(self, logits, y):
        return torch.special.ndtr((logits[:, 1].double() - 0.5) / 2)


def test_the_concave_regime_certifies_a_flat_loss():
    dimension, gamma = 20, 3 * concavity_threshold(1.0, SIGMA)
    model, x, y = Ramp(dimension), torch.full((2, 1, 4, 5), 0.4), torch.zeros(2, dtype=torch.long)
    scale = math.sqrt(4 + SIGMA**2)
    t = np.linspace(0, 0.2, 20_001)
    truth = np.max(special.ndtr((-0.1 + t) / scale) - gamma * t**2)
    settings = {"sigma": SIGMA, "alpha": 0.01, "draws": 4000}
    found = certified_surrogate(model, x, y, gamma, Slope(), half=4000, **settings)
    assert (found >= truth).all()
    assert (found <= truth + 0.08).all()
    # Below the threshold only the value at the input is left, and the flatness of the loss remains unknown.
    low = 0.5 * concavity_threshold(1.0, SIGMA)
    direct = certified_surrogate(model, x, y, low, Slope(), **settings)
    value = special.ndtr(-0.1 / scale)
    assert (direct >= psi(value, 2 * low * SIGMA**2)).all()
    assert (direct <= psi(value + 0.02, 2 * low * SIGMA**2)).all()
    assert (found < psi(value, 2 * gamma * SIGMA**2)).all()


class Steep:
    """Twice the slope, up to twice the bound."""

    bound = 2.0

    def __call__(self, logits, y):
        return 2 * Slope()(logits, y)


def test_a_larger_bound_is_a_larger_unit():
    model, x, y = Ramp(20), torch.full((2, 1, 4, 5), 0.4), torch.zeros(2, dtype=torch.long)
    low, gamma = (share * concavity_threshold(1.0, SIGMA) for share in (0.5, 3))
    settings = {"sigma": SIGMA, "alpha": 0.01, "draws": 4000, "half": 4000}
    once, twice = (
        certified_surrogate(model, x, y, factor * low, loss, **settings)
        for factor, loss in ((1, Slope()), (2, Steep()))
    )
    assert twice == pytest.approx(2 * once, rel=1e-9)
    t = np.linspace(0, 0.2, 20_001)
    truth = 2 * np.max(special.ndtr((-0.1 + t) / math.sqrt(4 + SIGMA**2)) - gamma * t**2)
    found = certified_surrogate(model, x, y, 2 * gamma, Steep(), **settings)
    assert (truth <= found).all()
    assert (found <= truth + 0.16).all()


class Constant:
    """A loss that is its bound everywhere: no gradient, and the largest scores."""

    bound = 1.0

    def __call__(self, logits, y):
        return torch.ones(len(logits), dtype=torch.float64)


@pytest.fixture
def watched(monkeypatch):
    """What `certified_surrogate` hands on: levels of confidence bounds, maximisers, products of gradients."""
    seen = {"levels": [], "maximiser": None, "products": None}
    bet, square, ascend = surrogate.betting_upper, surrogate.squared_gradient_upper, surrogate.robust_surrogate

    def betting(values, alpha):
        seen["levels"].append(alpha)
        return bet(values, alpha)

    def squared(products, half, dimension, alpha, **settings):
        seen["levels"].append(alpha)
        seen["products"] = products
        return square(products, half, dimension, alpha, **settings)

    def ascended(*args, **settings):
        found = ascend(*args, **settings)
        seen["maximiser"] = found.maximiser
        return found

    monkeypatch.setattr(surrogate, "betting_upper", betting)
    monkeypatch.setattr(surrogate, "squared_gradient_upper", squared)
    monkeypatch.setattr(surrogate, "robust_surrogate", ascended)
    return seen


def test_all_bounds_of_one_certificate_share_its_alpha(watched):
    model, x, y = Ramp(4), torch.full((1, 1, 2, 2), 0.4), torch.zeros(1, dtype=torch.long)
    threshold = concavity_threshold(1.0, SIGMA)
    settings = {"sigma": SIGMA, "alpha": 0.01, "draws": 50, "half": 50}
    certified_surrogate(model, x, y, 3 * threshold, Slope(), **settings)
    assert len(watched["levels"]) == 3
    assert sum(watched["levels"]) == pytest.approx(0.01)
    watched["levels"].clear()
    certified_surrogate(model, x, y, 0.5 * threshold, Slope(), **settings)
    assert watched["levels"] == [0.01]


@pytest.mark.parametrize("loss", [Slope(), Constant()], ids=["slope", "constant"])
def test_products_of_gradients_have_the_mean_and_the_spread_that_their_bound_assumes(watched, loss):
    dimension, half, gamma = 20, 2000, 3 * concavity_threshold(1.0, SIGMA)
    model, x, y = Ramp(dimension), torch.full((1, 1, 4, 5), 0.4), torch.zeros(1, dtype=torch.long)
    certified_surrogate(model, x, y, gamma, loss, sigma=SIGMA, alpha=1e-6, draws=50, half=half)
    shift = (watched["maximiser"] - x).flatten(1)[0].double()
    gradient = -2 * gamma * shift
    if isinstance(loss, Slope):
        scale = math.sqrt(4 + SIGMA**2)
        gradient[0] += math.exp(-(((shift[0] - 0.1) / scale) ** 2) / 2) / math.sqrt(2 * math.pi) / scale
    square, products = float(gradient @ gradient), watched["products"][0]
    assert square > 0.01
    variance = 1 / (4 * SIGMA**2)
    largest = dimension * variance**2 / half**2 + 2 * variance * square / half
    assert len(np.unique(products)) == len(products) > 30
    # False-alarm rates over seeds below 1e-5: a mean of so many products, and their spread.
    assert products.mean() == pytest.approx(square, abs=4.5 * math.sqrt(largest / len(products)))
    assert products.var() < 3 * largest


def test_the_surrogate_is_evaluated_under_fresh_noise(half_space, grey_images):
    noise = ExampleNoise(0, "test", range(10))
    robust_surrogate(half_space, to_unit(grey_images.images[:10]), grey_images.labels[:10], 1.0, sigma=SIGMA, rng=noise)
    # Sixteen steps, one sample to choose between the points of the ascent, and one to evaluate the choice.
    assert noise.calls == 16 + 2


def test_nan_is_refused(grey_images):
    class Nan(torch.nn.Module):
        def forward(self, x):
            return x.flatten(1)[:, :2] * math.nan

    with pytest.raises(ValueError, match="the network gave NaN"):
        robust_surrogate(Nan(), to_unit(grey_images.images[:2]), grey_images.labels[:2], 1.0)


@pytest.mark.parametrize("sigma", [None, 0.25])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.full((2, 1, 4, 4), 128.0)}, r"x must be in \[0, 1\], got values from 128 to 128"),
        ({"x": np.zeros((2, 1, 4, 4))}, "x must be a tensor, got a ndarray"),
        ({"x": torch.zeros(2, 1, 5, 5)}, "the network raised RuntimeError: .* one input of shape 1x5x5"),
        ({"y": torch.tensor([0.0, 1.0])}, "y must be a tensor of one class number per input"),
        ({"y": torch.tensor([0, 2])}, r"labels must be in \[0, 2\), got 0 to 2"),
    ],
)
def test_bad_arguments_are_refused(half_space, sigma, change, message):
    given = {"x": torch.zeros(2, 1, 4, 4), "y": torch.tensor([0, 1])} | change
    with pytest.raises(ValueError, match=message):
        robust_surrogate(half_space, given["x"], given["y"], 1.0, sigma=sigma)


def test_bytes_and_short_labels_are_taken(half_space, grey_images):
    x, y = grey_images.images[:4], grey_images.labels[:4]
    expected = robust_surrogate(half_space, x / 255, y, 1.0, sigma=0.25)
    found = robust_surrogate(half_space, x, y.to(torch.uint8), 1.0, sigma=0.25)
    assert torch.equal(found.phi, expected.phi)
    assert "maximiser" not in repr(found)


def test_a_bound_is_computed_for_images_only(half_space):
    with pytest.raises(ValueError, match=r"x must be in \[0, 1\], got values from -1 to -1"):
        certified_surrogate(half_space, torch.full((2, 1, 4, 4), -1.0), torch.tensor([0, 1]), 1.0, ZeroOne(), sigma=0.5)
