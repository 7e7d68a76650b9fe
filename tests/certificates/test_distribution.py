import numpy as np
import pytest
from scipy import stats

from rhobust.bounds import worst_case_loss
from rhobust.certificates import certify_shift, shift_certificate
from rhobust.data import to_unit

EPS = (0.0, 0.1, 0.25, 0.5)


def test_the_certificate_lies_below_the_true_worst_case(half_space, grey_images):
    # For a half space the worst case over the W2 ball is known: every point's error probability is exact.
    images = grey_images.images.repeat(25, 1, 1, 1)
    labels = grey_images.labels.repeat(25)
    certificate = certify_shift(half_space, images, labels, sigma=0.25, eps=EPS, draws=20, alpha=0.01)
    distance = half_space(to_unit(grey_images.images))[:, 1].abs().detach().numpy()
    wrong = stats.norm.cdf(-distance / 0.25)
    truth = 1 - np.array([worst_case_loss(wrong, eps**2, 0.25) for eps in EPS])
    certified = np.array(certificate.certified_accuracy)
    assert (certified < truth).all()
    assert (certified > truth - 0.12).all()
    assert (np.diff(certified) < 0).all()
    assert certificate.accuracy_under_noise == pytest.approx(1 - wrong.mean(), abs=0.02)
    assert (certificate.points, certificate.draws, certificate.noise) == (1000, 20, "grid")


def test_the_statement_is_rounded_down(half_space, grey_images):
    certificate = certify_shift(half_space, grey_images.images, grey_images.labels, sigma=0.25, eps=EPS, alpha=0.01)
    statement = certificate.statement(0.1)
    shown = float(statement.rsplit("at least ", 1)[1].split("%")[0])
    assert 0 <= 100 * certificate.certified_accuracy[1] - shown < 0.1
    assert statement.startswith("With probability 99% over test points and noise")
    assert "W2 distance 0.1" in statement
    with pytest.raises(ValueError, match=r"eps must be one of 0, 0\.1, 0\.25, 0\.5, got 0\.3"):
        certificate.statement(0.3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eps": (-0.1, 0.2)}, "eps must be >= 0, got -0.1"),
        ({"eps": ()}, "eps must hold at least one"),
        ({"draws": 0}, "draws must be >= 1, got 0"),
        ({"alpha": 2.0}, r"alpha must lie in \(0, 1\)"),
        ({"sigma": 0.0}, "sigma must be > 0"),
    ],
)
def test_bad_settings_are_refused(half_space, grey_images, settings, message):
    with pytest.raises(ValueError, match=message):
        certify_shift(half_space, grey_images.images, grey_images.labels, **({"sigma": 0.25, "eps": EPS} | settings))


def test_bad_labels_are_refused(half_space, grey_images):
    with pytest.raises(ValueError, match="y must hold one label"):
        certify_shift(half_space, grey_images.images, grey_images.labels[:3], sigma=0.25, eps=EPS)
    labels = grey_images.labels.clone()
    labels[-1] = 2
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 2\), got 0 to 2"):
        certify_shift(half_space, grey_images.images, labels, sigma=0.25, eps=EPS)


def test_more_errors_never_certify_more():
    def certified(errors):
        return shift_certificate(
            np.array(errors), draws=10, eps=(0.1,), sigma=0.5, dimension=64, alpha=0.01, seed=0, noise="grid"
        ).certified_accuracy[0]

    rng = np.random.default_rng(0)
    errors = rng.integers(0, 3, 400)
    assert certified(errors) >= certified(errors + 1) >= certified(errors + 5)
