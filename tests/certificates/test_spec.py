"""Every certificate is computed at alpha after the sampler's correction, for all noise samples that it depends on."""

import pytest

from rhobust.certificates import ShiftClaim, SmoothedClassifier, certify_measured_shift, certify_shift, corrected_alpha

PIXELS = 16


def radius(model, x, y, alpha):
    return [found.p_lower for found in SmoothedClassifier(model, 0.25, 2).certify(x, n=300, alpha=alpha)]


def radii(model, x, y, alpha):
    found = SmoothedClassifier(model, 0.25, 2).certify(x, n=300, radii=(0.0, 0.1, 0.2, 0.3), alpha=alpha)
    return [number for one in found for number in (one.radius, one.n)]


def tolerance(model, x, y, alpha):
    found = SmoothedClassifier(model, 0.25, 2).certify(x, n0=50, n=300, tolerance=0.05, alpha=alpha)
    return [one.p_lower for one in found]


def prediction(model, x, y, alpha):
    return SmoothedClassifier(model, 0.25, 2).predict(x, n=20, alpha=alpha)


def shift(estimator):
    def certify(model, x, y, alpha):
        claim = ShiftClaim(estimator=estimator, cost="winf")
        return certify_shift(model, x, y, sigma=0.25, eps=(0.1,), draws=10, alpha=alpha, claim=claim).certified_loss

    return certify


def soft_sample(model, x, y, alpha):
    claim = ShiftClaim(estimator="sample", cost="winf", loss="cross-entropy", bound=2.0)
    return certify_shift(model, x, y, sigma=0.25, eps=(0.1,), draws=10, alpha=alpha, claim=claim).certified_loss


def measured(model, x, y, alpha):
    return certify_measured_shift(model, x, y, x, x, sigma=0.25, draws=10, alpha=alpha).certified_accuracy


@pytest.mark.parametrize(
    ("certify", "draws"),
    [
        (radius, 300),
        (radii, 300),
        (tolerance, 300),
        (prediction, 20),
        (shift("majorant"), 400),
        (shift("intervals"), 400),
        (shift("sample"), 400),
        (soft_sample, 400),
        (measured, 400),
    ],
    ids=["radius", "radii", "tolerance", "prediction", "majorant", "intervals", "sample", "soft sample", "measured"],
)
def test_every_sample_is_corrected_for(half_space, grey_images, monkeypatch, certify, draws):
    arguments = half_space, grey_images.images, grey_images.labels
    with monkeypatch.context() as patch:
        # A sampler so far from its law that the correction is 0.09: samples, numbers per image, deviation.
        patch.setattr("rhobust.bounds.confidence.grid_deviation", lambda sigma: 0.09 / (draws * PIXELS))
        corrected = certify(*arguments, 0.1)
    assert corrected == pytest.approx(certify(*arguments, 0.01), abs=1e-6)
    assert corrected != certify(*arguments, 0.1)


def test_the_correction_is_small_and_only_for_integer_noise():
    left = corrected_alpha(1e-3, sigma=0.25, dimension=3072, draws=100_000, noise="grid")
    assert 0 < 1e-3 - left < 1e-6
    assert corrected_alpha(1e-3, sigma=0.25, dimension=3072, draws=100_000, noise="float") == 1e-3
    with pytest.raises(ValueError, match="alpha must exceed"):
        corrected_alpha(1e-12, sigma=0.25, dimension=3072, draws=100_000, noise="grid")
