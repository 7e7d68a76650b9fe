import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from rhobust import RoutedClassifier, SmoothedClassifier
from rhobust.bounds import routed_radius
from rhobust.data import to_unit


class Cut(nn.Module):
    """Classes 0 and 1 of 4x4 images, split where the mean pixel exceeds a level; `calls` counts the inputs."""

    def __init__(self, level, classes=2):
        super().__init__()
        self.level, self.classes, self.calls = nn.Parameter(torch.tensor(4 * level)), classes, 0

    def forward(self, x):
        self.calls += len(x)
        value = 0.25 * x.flatten(1).sum(1) - self.level  # the distance to the cut
        return torch.stack([torch.zeros_like(value), value, *[value - 9] * (self.classes - 2)], dim=1)


def cut(level, sigma, classes=2):
    return SmoothedClassifier(Cut(level, classes).eval(), sigma, classes)


def greys(*levels):
    return torch.tensor(levels, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()


@pytest.fixture
def routed():
    """Dark images are answered by a classifier of little noise that cuts at 0.2, others by one that cuts at 0.4."""
    return RoutedClassifier(cut(0.3, 0.5), [cut(0.2, 0.1), cut(0.4, 0.5)])


def truth(images):
    """Its class at images of one grey level, and the distance to the next change of it."""
    level = to_unit(images).flatten(1).mean(1)
    dark = level <= 0.3
    cuts = torch.where(dark, 0.2, 0.4)
    distance = 4 * torch.minimum((level - cuts).abs(), (level - 0.3).abs())
    return (level > cuts).long().tolist(), distance.tolist()


@pytest.mark.parametrize("ask", [{}, {"radii": [step / 20 for step in range(40)]}], ids=["fixed", "sequential"])
def test_radii_stay_below_the_distance_to_a_change_and_near_it(routed, ask):
    images = greys(0, 20, 40, 60, 66, 70, 85, 95, 110, 130, 180, 250)
    for certificate, label, distance in zip(routed.certify(images, n=2000, **ask), *truth(images), strict=True):
        # Where all classifiers agree it does not matter who answers: then the distance to the router's cut may be
        # exceeded, but never that to the cuts of all classifiers.
        answers = [part for part in certificate.answers if part is not None]
        agree = len(answers) == 2 and len({part.prediction for part in answers}) == 1
        reach = max(distance, min(part.radius for part in answers) if agree else 0.0)
        if certificate.prediction is None:
            assert distance < 0.5 * stats.norm.ppf(0.6) + 0.05
            continue
        assert certificate.prediction == label
        assert certificate.radius <= reach + 0.5 / 255
        ceiling = 0.1 if certificate.route.prediction == 0 else 0.5
        assert certificate.radius >= min(distance, 2.3 * ceiling) * 0.8 - (0.11 if ask else 0.06)


def test_a_certificate_follows_from_its_parts(routed):
    for certificate in routed.certify(greys(20, 60, 85, 130), n=1000, alpha=0.03, seed=3):
        parts = [certificate.route, *(part for part in certificate.answers if part is not None)]
        assert {part.alpha for part in parts} == {0.01}  # alpha is shared by the router and both classifiers
        assert certificate.alpha == 0.03
        assert certificate.draws == len(parts) * 1100
        claims = [None if part is None else (part.prediction, part.radius) for part in certificate.answers]
        route = certificate.route
        assert (certificate.prediction, certificate.radius) == routed_radius((route.prediction, route.radius), claims)


def test_its_parts_are_those_of_the_smoothed_classifiers(routed):
    images = greys(20, 85, 130)
    routes = routed.router.certify(images, n=500, alpha=1e-3 / 3, seed=5)
    answers = [one.certify(images, n=500, alpha=1e-3 / 3, seed=5) for one in routed.classifiers]
    for place, certificate in enumerate(routed.certify(images, n=500, seed=5)):
        assert certificate.route == routes[place]
        assert all(part in (None, answers[number][place]) for number, part in enumerate(certificate.answers))
        assert certificate.answers[routes[place].prediction] == answers[routes[place].prediction][place]


def test_only_classifiers_that_can_enlarge_a_radius_are_asked():
    dark, bright = cut(0.1, 0.1), cut(0.9, 0.1)
    certificate = RoutedClassifier(cut(0.5, 0.5), [dark, bright]).certify(greys(60), n=500)[0]
    assert certificate.route.prediction == 0
    assert certificate.radius == certificate.answers[0].radius < certificate.route.radius
    assert certificate.answers[1] is None
    assert bright.model.calls == 0


def test_where_the_router_abstains_agreement_is_enough():
    certificate = RoutedClassifier(cut(0.5, 0.5), [cut(0.1, 0.1), cut(0.2, 0.5)]).certify(
        torch.full((1, 1, 4, 4), 0.5), n=1000
    )[0]
    assert certificate.route.prediction is None
    assert certificate.prediction == 1
    assert certificate.radius == min(part.radius for part in certificate.answers) > 0.2


def test_predictions_are_those_of_the_classifier_that_the_router_names(routed):
    images = greys(0, 30, 66, 90, 120, 250)
    labels, _ = truth(images)
    assert routed.predict(images, n=2000) == labels
    # At the router's cut nobody knows who answers, at a classifier's cut nobody knows what.
    assert routed.predict(torch.full((1, 1, 4, 4), 0.3), n=200) == [None]
    assert routed.predict(torch.full((1, 1, 4, 4), 0.4), n=200) == [None]


def test_a_prediction_shares_alpha_between_router_and_classifier(routed):
    # 13 of 13 votes: by a two-sided test of even chances significant at 0.00025, not at half of 0.0003.
    image = greys(250)
    assert routed.predict(image, n=13, alpha=6e-4) == [1]
    assert routed.predict(image, n=13, alpha=4e-4) == [None]


def test_false_certificates_are_rarer_than_alpha():
    # At the cuts of the router and of the classifiers every certificate of one class would be false half of the time:
    # this is where errors are most likely. Each image has noise of its own.
    alpha, count = 0.1, 400
    routed = RoutedClassifier(cut(0.5, 0.5), [cut(0.5, 0.1), cut(0.1, 0.5)])
    image = torch.full((count, 1, 4, 4), 0.5)
    found = routed.certify(image, n0=10, n=100, alpha=alpha)
    # Beyond the router's cut class 1 is right wherever the image is; before it, the class changes at once.
    false = sum(one.prediction == 0 or (one.prediction == 1 and one.radius > 0) for one in found)
    assert 0 < false <= stats.binom.ppf(0.9999, count, alpha)


def test_wrong_predictions_are_rarer_than_alpha():
    # Here the router barely names the second classifier, and the first one gives another class.
    alpha, count = 0.3, 400
    routed = RoutedClassifier(cut(0.5, 0.5), [cut(0.52, 0.1), cut(0.48, 0.5)])
    image = torch.full((count, 1, 4, 4), 129 / 255)
    wrong = sum(one == 0 for one in routed.predict(image, n=60, alpha=alpha))
    assert 0 < wrong <= stats.binom.ppf(0.9999, count, alpha)


def test_three_classifiers_and_their_router():
    router = SmoothedClassifier(Cut(0.5, 3).eval(), 0.5, 3)
    routed = RoutedClassifier(router, [cut(0.1, 0.1), cut(0.2, 0.5), cut(0.3, 1.0)])
    certificate = routed.certify(greys(200), n=1000)[0]
    assert certificate.route.alpha == pytest.approx(1e-3 / 4)
    assert (certificate.route.prediction, certificate.prediction) == (1, 1)


def test_images_come_in_any_form(routed):
    array = np.full((1, 4, 4, 1), 250, dtype=np.uint8)  # channels last
    assert routed.predict(array, n=100) == [1]
    assert routed.certify(array, n=100)[0].prediction == 1


@pytest.mark.parametrize(
    ("router", "classifiers", "message"),
    [
        (2, [2], "the router must have one class per classifier, and two at least, got 2 for 1 classifiers"),
        (3, [2, 2], "the router must have one class per classifier, and two at least, got 3 for 2 classifiers"),
        (2, [2, 3], r"classifiers must have the same num_classes, got \[2, 3\]"),
    ],
)
def test_a_router_that_does_not_fit_is_refused(router, classifiers, message):
    with pytest.raises(ValueError, match=message):
        RoutedClassifier(cut(0.5, 0.5, router), [cut(0.5, 0.5, classes) for classes in classifiers])


@pytest.mark.parametrize("alpha", [0.0, 1.0, -1.0])
def test_a_level_that_is_none_is_refused(routed, alpha):
    with pytest.raises(ValueError, match="alpha must be"):
        routed.certify(greys(20), n=100, alpha=alpha)
    with pytest.raises(ValueError, match="alpha must be"):
        routed.predict(greys(20), n=100, alpha=alpha)


class PassedOn(nn.Module):
    """A module around another one that has its attributes, as `torch.compile` returns."""

    def __init__(self, module):
        super().__init__()
        self.inner = module

    def __getattr__(self, name):
        return getattr(super().__getattr__("_modules")["inner"], name)


@pytest.mark.parametrize("wrap", [PassedOn, lambda one: one.model])
def test_what_is_no_smoothed_classifier_is_refused(wrap):
    # It would not be counted among the classifiers, and the others would answer under its number.
    with pytest.raises(ValueError, match="each of classifiers must be a SmoothedClassifier, got a "):
        RoutedClassifier(cut(0.5, 0.5), [wrap(cut(0.1, 0.1)), cut(0.9, 0.5)])
    with pytest.raises(ValueError, match="router must be a SmoothedClassifier, got a "):
        RoutedClassifier(wrap(cut(0.5, 0.5)), [cut(0.1, 0.1), cut(0.9, 0.5)])


class Table(nn.Module):
    """Classes of one-pixel images by a table of the pixel's value, over everything that noise can make of it."""

    reach = 700

    def __init__(self, classes, rng):
        super().__init__()
        ends = np.sort(rng.choice(256, 14, replace=False))
        labels = rng.integers(classes, size=15)[np.searchsorted(ends, np.arange(-self.reach, 256 + self.reach))]
        self.labels = nn.Parameter(torch.from_numpy(labels), requires_grad=False)
        self.classes = classes

    def forward(self, x):
        values = (255 * x.flatten(1)[:, 0]).round().long()
        values = values.clamp(-self.reach, 255 + self.reach)
        return nn.functional.one_hot(self.labels[values + self.reach], self.classes).float()

    def smoothed(self, sigma):
        """The exact classes under noise of this deviation that is rounded to the pixel grid, of all 256 images."""
        steps = np.arange(-self.reach, self.reach + 1)
        noise = np.diff(stats.norm.cdf((np.append(steps, steps[-1] + 1) - 0.5) / (255 * sigma)))
        votes = [np.convolve(self.labels.numpy() == one, noise, mode="valid") for one in range(self.classes)]
        return np.argmax(votes, axis=0)


def test_certificates_of_one_pixel_hold_at_all_images_within_their_radius():
    alpha, sigmas, router_sigma, rng = 1e-3, (0.01, 0.02, 0.05), 0.02, np.random.default_rng(2)
    chooser, *tables = Table(3, rng), *(Table(2, rng) for _ in sigmas)
    classifiers = [SmoothedClassifier(table, sigma, 2) for table, sigma in zip(tables, sigmas, strict=True)]
    routed = RoutedClassifier(SmoothedClassifier(chooser, router_sigma, 3), classifiers)
    answers = [table.smoothed(sigma) for table, sigma in zip(tables, sigmas, strict=True)]
    truth, places = np.choose(chooser.smoothed(router_sigma), answers), np.arange(256)
    values = torch.arange(256, dtype=torch.uint8).view(-1, 1, 1, 1)
    false, certified, agreed = 0, 0, 0
    for place, one in enumerate(routed.certify(values, n0=10, n=100, alpha=alpha)):
        if one.prediction is not None:
            certified += 1
            agreed += one.radius > one.route.radius
            false += bool((truth[abs(places - place) <= 255 * one.radius] != one.prediction).any())
    predicted = routed.predict(values, n=40, alpha=alpha)
    wrong = sum(one not in (None, right) for one, right in zip(predicted, truth, strict=True))
    assert certified > 100
    assert agreed > 10, "all classifiers agreed where the router was not sure"
    assert max(false, wrong) <= stats.binom.ppf(0.9999, 256, alpha)
