import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from rhobust.bounds import clopper_pearson
from rhobust.certificates import SmoothedClassifier, Smoothing, count_votes, predict_inputs
from rhobust.data import to_unit
from rhobust.noise import BatchNoise, noisy_copies, stream


@pytest.fixture
def smoothed(half_space):
    return SmoothedClassifier(half_space, 0.25, 2)


GRID = tuple(step / 20 for step in range(18))


@pytest.mark.parametrize("ask", [{}, {"radii": GRID}, {"tolerance": 0.02}], ids=["fixed", "sequential", "two-stage"])
def test_radii_stay_below_the_true_distance_and_near_it(smoothed, half_space, grey_images, ask):
    # The smoothed half space is the half space itself: the true radius is the distance to the plane.
    n, alpha = 2000, 1e-3
    distance = half_space(to_unit(grey_images.images))[:, 1].abs()
    certificates = smoothed.certify(grey_images.images, n=n, alpha=alpha, **ask)
    for certificate, true, label in zip(certificates, distance.tolist(), grey_images.labels.tolist(), strict=True):
        if certificate.prediction is None:
            assert certificate.radius == 0.0
            assert true < 0.25 * stats.norm.ppf(0.56) + 2 * ask.get("tolerance", 0.0)
            continue
        assert certificate.prediction == label
        # Each of 40 bounds fails with probability alpha at most: a false alarm of 4% over seeds. The grid's
        # rounding shifts the plane by at most half a step.
        assert certificate.radius <= true + 0.5 / 255
        # n samples give at least this radius except once in ten thousand, at the final level of the sequential test.
        p = stats.norm.cdf(true / 0.25)
        low = clopper_pearson(int(stats.binom.ppf(1e-4, n, p)), n, 0.8 * alpha, "lower")
        near = 0.25 * stats.norm.ppf(min(low, 1 - 1e-9)) - 0.01
        if "radii" in ask:
            near = max((radius for radius in GRID if radius <= near), default=0.0)
        # Two stages may lose the tolerance, and as much again where the pilot misjudged it.
        assert certificate.radius >= near - 2 * ask.get("tolerance", 0.0)
        assert certificate.procedure == {"radii": "sequential", "tolerance": "two-stage"}.get(
            next(iter(ask), ""), "fixed"
        )


def test_radii_and_a_tolerance_save_samples(smoothed, grey_images):
    fixed, grid, planned = (
        sum(certificate.n for certificate in smoothed.certify(grey_images.images[::2], n=2000, **ask))
        for ask in ({}, {"radii": (0.0, 0.25)}, {"tolerance": 0.05})
    )
    assert fixed == 20 * 2000
    assert grid < fixed / 4
    assert planned < fixed / 2


def test_a_certified_class_may_have_radius_zero(smoothed, grey_images):
    certificate = smoothed.certify(grey_images.images[17:18], n=4000, radii=(0.0, 0.5))[0]
    assert (certificate.prediction, certificate.radius) == (0, 0.0)
    assert certificate.p_lower == pytest.approx(0.5, abs=1e-9)
    assert len(certificate.evidence) == 1


def test_a_certificate_can_be_recomputed_from_its_counts(smoothed, grey_images):
    certificate = smoothed.certify(grey_images.images[-1:], n0=20, n=500, alpha=0.01, seed=3)[0]
    assert (certificate.n, certificate.n0, certificate.alpha, certificate.sigma) == (500, 20, 0.01, 0.25)
    assert (certificate.noise, certificate.seed, certificate.dtype) == ("grid", 3, "float32")
    assert certificate.p_lower == pytest.approx(clopper_pearson(certificate.count, 500, 0.01, "lower"), abs=1e-9)
    assert certificate.radius == pytest.approx(0.25 * stats.norm.ppf(certificate.p_lower), abs=1e-9)


def test_selection_and_counting_use_independent_noise(smoothed, grey_images):
    one = smoothed.certify(grey_images.images[15:25], n0=100, n=300, seed=0)
    two = smoothed.certify(grey_images.images[15:25], n0=200, n=300, seed=0)
    assert [c.count for c in one if c.prediction is not None] == [
        d.count for c, d in zip(one, two, strict=True) if c.prediction is not None
    ]


def test_the_mode_is_the_networks():
    network = nn.Flatten()
    assert SmoothedClassifier(network, 0.25, 2).training
    assert not SmoothedClassifier(network.eval(), 0.25, 2).training


def test_predict_abstains_at_the_plane_and_not_far_from_it(smoothed, grey_images):
    middle = torch.full((1, 1, 4, 4), 0.5)
    assert smoothed.predict(middle, n=200) == [None]
    answers = smoothed.predict(grey_images.images[[0, -1]], n=200)
    assert answers == [0, 1]


@pytest.mark.parametrize("ask", [{}, {"radii": GRID}, {"tolerance": 0.02}], ids=["fixed", "sequential", "two-stage"])
def test_nothing_is_certified_at_the_plane(smoothed, ask):
    middle = torch.full((4, 1, 4, 4), 0.5)
    for certificate in smoothed.certify(middle, n=1000, **ask):
        assert (certificate.prediction, certificate.radius) == (None, 0.0)
        assert certificate.selected in (0, 1)


def test_a_prediction_needs_a_two_sided_test_of_the_two_largest_counts(grey_images):
    # Three classes by brightness: the third takes votes that the test of the other two must not count.
    class Thirds(nn.Module):
        def forward(self, x):
            brightness = x.flatten(1).mean(1)
            return -(brightness[:, None] - torch.tensor([0.3, 0.5, 0.6])).abs()

    smoothing = Smoothing(0.5, 3)
    found = predict_inputs(Thirds(), grey_images.images, smoothing, indices=range(40), n=60, alpha=0.02)
    votes = count_votes(Thirds(), grey_images.images, smoothing, indices=range(40), draws=60, purpose="predict")
    assert (votes > 0).all(dim=1).any()
    for answer, counts in zip(found, votes, strict=True):
        first, second, _ = counts.sort(descending=True).values.tolist()
        assert [number for _, number in answer.votes] == [first, second]
        chance = min(1.0, 2 * stats.binom.sf(first - 1, first + second, 0.5))
        assert answer.prediction == (int(counts.argmax()) if chance <= 0.02 else None)
    assert {answer.prediction for answer in found} >= {None, 0, 2}


def test_forward_is_the_log_of_the_mean_softmax(smoothed, grey_images):
    x = to_unit(grey_images.images[:3])
    out = smoothed(x)
    assert out.shape == (3, 2)
    noisy = noisy_copies(x, 0.25, 16, BatchNoise(stream(0, "forward")))
    assert torch.allclose(out.exp(), smoothed.model(noisy).softmax(1).view(16, 3, 2).mean(0))
    assert not torch.equal(out, smoothed(x))
    bytes_in = SmoothedClassifier(smoothed.model, 0.25, 2, draws=4)(grey_images.images[:3])
    assert torch.equal(bytes_in, SmoothedClassifier(smoothed.model, 0.25, 2, draws=4)(x))
    x.requires_grad_()
    smoothed(x)[:, 1].sum().backward()
    assert (x.grad > 0).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.0}, r"alpha must be in \(0, 1\), got 0.0"),
        ({"alpha": 1.0}, r"alpha must be in \(0, 1\)"),
        ({"n": 10, "n0": 20}, "n must be >= n0 >= 1, got n=10 and n0=20"),
        ({"n0": 0}, "n must be >= n0 >= 1"),
        ({"radii": (0.5, 0.25)}, "radii must increase"),
        ({"radii": 0.5}, r"radii must be a list of numbers, got 0\.5"),
        ({"n": 1e4}, r"n must be an int, got 10000\.0"),
        ({"n": 100, "n0": float("nan")}, "n0 must be an int, got nan"),
        ({"seed": 1.5}, r"seed must be an int, got 1\.5"),
        ({"radii": (0.5,), "tolerance": 0.1}, "radii or tolerance must be given, got both"),
        ({"tolerance": -1.0}, "tolerance must be > 0"),
    ],
)
def test_bad_settings_are_refused(smoothed, grey_images, settings, message):
    with pytest.raises(ValueError, match=message):
        smoothed.certify(grey_images.images[:1], **settings)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.full((1, 1, 4, 4), 1.5), r"x must be in \[0, 1\]"),
        (torch.full((1, 1, 4, 4), float("nan")), r"x must be in \[0, 1\]"),
        (torch.zeros(1, 1, 4, 4, dtype=torch.int64), "x must be uint8 or floating point"),
        (torch.zeros(0, 1, 4, 4), "x must be a batch"),
        (torch.zeros(1, 1, 4, 4, device="meta"), "x must be on a cpu or cuda device, got meta"),
    ],
)
def test_bad_inputs_are_refused(smoothed, x, message):
    with pytest.raises(ValueError, match=message):
        smoothed.predict(x, n=10)


def test_an_image_of_the_wrong_shape_is_refused_in_one_line(smoothed):
    with pytest.raises(ValueError, match=r"the network raised RuntimeError: .* 256 inputs of shape 1x5x5") as refusal:
        smoothed.certify(torch.zeros(2, 1, 5, 5), n=100)
    assert "\n" not in str(refusal.value)


def test_bfloat16_is_certified_as_such(half_space, grey_images):
    smoothed = SmoothedClassifier(half_space, 0.25, 2, dtype="bfloat16")
    certificate = smoothed.certify(grey_images.images[-1:], n=200)[0]
    assert (certificate.dtype, certificate.prediction) == ("bfloat16", 1)
    assert smoothed.predict(grey_images.images[-1:], n=200) == [1]
    with pytest.raises(ValueError, match="dtype must be float32 or bfloat16 on a cpu, got tf32"):
        SmoothedClassifier(half_space, 0.25, 2, dtype="tf32").predict(grey_images.images[:1])


def test_bad_classifiers_are_refused(half_space):
    for settings, message in [
        ((0.0, 2), "sigma must be > 0"),
        ((0.1, 1), "num_classes must be >= 2"),
        (("0.1", 2), "sigma must be a number, got '0.1'"),
    ]:
        with pytest.raises(ValueError, match=message):
            SmoothedClassifier(half_space, *settings)
    with pytest.raises(ValueError, match=r"the network must be a torch\.nn\.Module, got a function"):
        SmoothedClassifier(lambda x: half_space(x), 0.1, 2)
    with pytest.raises(ValueError, match=r"n must be an int, got 10\.0"):
        SmoothedClassifier(half_space, 0.1, 2).predict(torch.zeros(1, 1, 4, 4), n=10.0)


class Pair(torch.nn.Module):
    """Logits and something else, as networks with auxiliary heads return them."""

    def forward(self, x):
        return x.flatten(1)[:, :2], x


@pytest.mark.parametrize(
    "ask",
    [
        lambda smoothed, x: smoothed.certify(x, n=100),
        lambda smoothed, x: smoothed.predict(x, n=100),
        lambda smoothed, x: smoothed(x),
    ],
)
def test_a_network_that_returns_a_tuple_is_refused_in_one_line(ask):
    with pytest.raises(ValueError, match="got a tuple"):
        ask(SmoothedClassifier(Pair(), 0.25, 2), torch.zeros(3, 1, 4, 4))


def test_a_forward_pass_is_that_of_the_certified_classifier(half_space):
    x = torch.zeros(3, 1, 4, 4)
    with pytest.raises(ValueError, match="the network must return 3 logits, num_classes, got 2"):
        SmoothedClassifier(half_space, 0.25, 3)(x)
    for wrong, given in [(x.long(), "torch.int64"), (x.numpy(), "a ndarray")]:
        with pytest.raises(ValueError, match=f"x must be a tensor, uint8 or floating point, got {given}"):
            SmoothedClassifier(half_space, 0.25, 2)(wrong)


def test_the_repr_names_the_noise(half_space):
    assert "sigma=0.25, num_classes=2, draws=16" in repr(SmoothedClassifier(half_space, 0.25, 2))


def test_the_noise_may_be_a_number_of_numpys(half_space, grey_images):
    sigma = np.float32(0.3)
    found = SmoothedClassifier(half_space, sigma, 2).certify(grey_images.images[-1:], n=200)
    assert found == SmoothedClassifier(half_space, float(sigma), 2).certify(grey_images.images[-1:], n=200)
