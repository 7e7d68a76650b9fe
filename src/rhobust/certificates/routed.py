"""Input-dependent noise: smoothed classifiers of different noise, and a smoothed router that says which one answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from torch import Tensor, nn

from rhobust.bounds.radius import routed_radius
from rhobust.certificates.smoothed import (
    Certificate,
    SmoothedClassifier,
    certify_inputs,
    network_inputs,
    predict_inputs,
)
from rhobust.proofs.procedures import AnyProcedure, choose_procedure
from rhobust.settings import check_instance, check_level


@dataclass(frozen=True, slots=True)
class RoutedCertificate:
    """Certified class and radius of one input under a `RoutedClassifier`, with the certificates behind them.

    Guarantee: with probability at least 1 - alpha over the noise, the routed classifier predicts `prediction` at every
    point within L2 distance `radius` of the input; at every 8-bit image there if the noise of its parts is "grid".
    """

    prediction: int | None
    """Certified class; None if nothing is proved."""
    radius: float
    """Certified L2 radius; 0.0 if nothing is proved."""
    alpha: float
    """Probability that the certificate is false."""
    route: Certificate = field(repr=False)
    """The router's certificate: which classifier answers near the input."""
    answers: tuple[Certificate | None, ...] = field(repr=False)
    """The certificates of the classifiers; None for one that was not needed."""

    @property
    def draws(self) -> int:
        """Noise samples of all certificates."""
        return sum(part.n0 + part.n for part in (self.route, *self.answers) if part is not None)


class RoutedClassifier(nn.Module):
    """The classifier G(x) = g_{s(x)}(x): a smoothed router s chooses among smoothed classifiers g_1, ..., g_K.

    With classifiers of different noise this is input-dependent noise with a certificate (dual randomized smoothing,
    arXiv 2512.01782): little noise for inputs that need accuracy, much for those that allow large radii. The router is
    smoothed itself, so its choice is constant within a certified radius, which a choice by the input alone is not.

    Args:
        router: Smoothed classifier whose classes are the places in `classifiers`.
        classifiers: Smoothed classifiers of the same classes, at least two.
    """

    def __init__(self, router: SmoothedClassifier, classifiers: Sequence[SmoothedClassifier]) -> None:
        super().__init__()
        for name, one in (("router", router), *(("each of classifiers", one) for one in classifiers)):
            check_instance(name, one, SmoothedClassifier, "a SmoothedClassifier")
        if len(classifiers) < 2 or router.num_classes != len(classifiers):
            choices = f"{router.num_classes} for {len(classifiers)} classifiers"
            raise ValueError(f"the router must have one class per classifier, and two at least, got {choices}")
        classes = [one.num_classes for one in classifiers]
        if len(set(classes)) > 1:
            raise ValueError(f"classifiers must have the same num_classes, got {classes}")
        self.router, self.classifiers = router, nn.ModuleList(classifiers)
        self.training = router.training

    def predict(self, x: Any, *, n: int = 1000, alpha: float = 1e-3, seed: int = 0) -> list[int | None]:
        """Predicted class of each input by n votes of the router and n of the classifier it names, or None.

        Guarantee: with probability at most alpha a prediction is given that is not G(x): the router names another
        classifier than s(x) with probability at most alpha / 2, and the classifier s(x), a fixed one, answers another
        class than its most probable one with probability at most alpha / 2.
        """
        check_level(alpha)
        x = network_inputs(self.router.model, x)
        routes = self._predictions(self.router, x, range(len(x)), n, alpha / 2, seed)
        found: list[int | None] = [None] * len(x)
        for number, classifier in enumerate(self._classifiers):
            places = [place for place, route in enumerate(routes) if route == number]
            for place, answer in zip(places, self._predictions(classifier, x, places, n, alpha / 2, seed), strict=True):
                found[place] = answer
        return found

    def certify(
        self,
        x: Any,
        *,
        radii: Sequence[float] | None = None,
        n0: int | None = None,
        n: int = 100_000,
        alpha: float = 1e-3,
        seed: int = 0,
    ) -> list[RoutedCertificate]:
        """Certified class and L2 radius of each input.

        Guarantee: each certificate is false with probability at most alpha. Router and classifiers are certified at
        alpha / (K + 1) each, so by the union bound all their certificates of an input hold together, whichever of them
        are computed and whether or not they share noise samples; then `routed_radius` says what follows. A classifier
        that the router does not name is asked only where its answer can enlarge the radius.

        Args:
            x: Inputs in any form that `SmoothedClassifier.certify` takes.
            radii: Increasing radii to test sequentially; default: n samples of each part.
            n0: Noise samples that select a class; default: that of the procedure.
            n: Noise samples that count its votes, at most, for the router and for each classifier.
            alpha: Probability that a certificate is false.
            seed: Random seed.
        """
        check_level(alpha)
        x, level = network_inputs(self.router.model, x), alpha / (len(self.classifiers) + 1)
        procedure = choose_procedure(radii=radii, n0=n0, n=n)
        routes = self._certificates(self.router, x, range(len(x)), procedure, level, seed)
        answers: list[list[Certificate | None]] = [[None] * len(self.classifiers) for _ in routes]
        for named in (True, False):
            wanted = [self._wanted(route, parts, named) for route, parts in zip(routes, answers, strict=True)]
            for number, classifier in enumerate(self._classifiers):
                places = [place for place, numbers in enumerate(wanted) if number in numbers]
                found = self._certificates(classifier, x, places, procedure, level, seed)
                for place, certificate in zip(places, found, strict=True):
                    answers[place][number] = certificate
        return [_joined(route, tuple(parts), alpha) for route, parts in zip(routes, answers, strict=True)]

    @property
    def _classifiers(self) -> list[SmoothedClassifier]:
        return [cast(SmoothedClassifier, one) for one in self.classifiers]

    def _wanted(self, route: Certificate, parts: Sequence[Certificate | None], named: bool) -> list[int]:
        """Which classifiers to ask: first the one that the router names, then all others where they may help."""
        if named:
            return [] if route.prediction is None else [route.prediction]
        answer = None if route.prediction is None else parts[route.prediction]
        if answer is not None and (answer.prediction is None or answer.radius <= route.radius):
            return []
        return [number for number, part in enumerate(parts) if part is None]

    def _certificates(
        self,
        classifier: SmoothedClassifier,
        x: Tensor,
        places: Sequence[int],
        procedure: AnyProcedure,
        level: float,
        seed: int,
    ) -> list[Certificate]:
        if not places:
            return []
        smoothing = classifier.smoothing(x, seed)
        return certify_inputs(classifier.model, x[list(places)], smoothing, procedure, indices=places, alpha=level)

    def _predictions(
        self, classifier: SmoothedClassifier, x: Tensor, places: Sequence[int], n: int, level: float, seed: int
    ) -> list[int | None]:
        if not places:
            return []
        smoothing = classifier.smoothing(x, seed)
        found = predict_inputs(classifier.model, x[list(places)], smoothing, indices=places, n=n, alpha=level)
        return [one.prediction for one in found]


def _joined(route: Certificate, parts: tuple[Certificate | None, ...], alpha: float) -> RoutedCertificate:
    claims = [None if part is None else (part.prediction, part.radius) for part in parts]
    prediction, radius = routed_radius((route.prediction, route.radius), claims)
    return RoutedCertificate(prediction, radius, alpha, route, parts)
