"""A measured shift, from distances and counts: how far a change perturbs images, and what is certified after it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rhobust.bounds import betting_upper, eps_upper, measured_loss, recentred_loss, shuffle
from rhobust.bounds.confidence import LEVELS
from rhobust.formatting import format_confidence, format_distance, format_number, format_percent, format_setting
from rhobust.proofs.claim import NoiseCertificate, NoiseSamples, name_classifier, scope_of_validity
from rhobust.settings import check_level, sizes


@dataclass(frozen=True, slots=True)
class MeasuredShift:
    """Distance between images before and after a change, from pairs.

    `eps`, `mean_distance` and `largest_distance` are exact for the measured pairs: the pairing is a coupling, so they
    bound the W2, W1 and W-infinity distance between the two sets of images. Guarantee: with probability at least
    1 - alpha over pairs drawn independently, `eps_capped` and `eps_upper` both bound the population's root mean square
    distance, the first with every distance above `cap` counted as `cap`.
    """

    eps: float
    """Root of the mean squared L2 distance of the pairs (W2)."""
    mean_distance: float
    """Mean L2 distance of the pairs (W1)."""
    largest_distance: float
    """Largest L2 distance of the pairs (W-infinity)."""
    cap: float
    """Distances above it count as `cap` in `eps_capped`; no measured pair exceeds it."""
    eps_capped: float
    """Upper bound of the population's eps with capped distances."""
    eps_upper: float
    """Upper bound of the population's eps, hence of the W2 distance; wide: few pairs say little about rare ones."""
    pairs: int
    """Pairs measured."""
    alpha: float
    """Probability that a bound is false."""

    @classmethod
    def from_distances(cls, distances: np.ndarray, *, dimension: int, alpha: float) -> "MeasuredShift":
        """The shift from the distances of pairs.

        Args:
            distances: L2 distance of each pair.
            dimension: Numbers per image; no distance exceeds its square root.
            alpha: Probability that a bound is false.
        """
        check_level(alpha)
        upper = eps_upper(distances, math.sqrt(dimension), alpha, least=1 / LEVELS)
        return cls(
            eps=math.sqrt(float(np.mean(distances**2))),
            mean_distance=float(distances.mean()),
            largest_distance=float(distances.max()),
            cap=upper.cap,
            eps_capped=upper.capped,
            eps_upper=upper.uncapped,
            pairs=len(distances),
            alpha=alpha,
        )

    def statement(self) -> str:
        """The bounds in words, rounded up."""
        cap = format_number(self.cap, 4, "down")
        return (
            f"With probability {format_confidence(self.alpha)} over image pairs, the change moves images by a root mean"
            f" square of at most {format_number(self.eps_capped, 4, 'up')} if distances above {cap} count as {cap},"
            f" and of at most {format_number(self.eps_upper, 4, 'up')} in any case."
        )


@dataclass(frozen=True, slots=True)
class MeasuredCertificate(NoiseCertificate):
    """Certified accuracy of the smoothed classifier after a measured change, and every other one of its size.

    Guarantee: with probability at least 1 - alpha over image pairs, test points and noise, the classifier that takes
    `votes` noisy votes is correct with at least the stated probability after the change, and after every other change
    of the same images whose distances are stochastically no larger (for every t, no larger share of images is
    perturbed by more than t). Labels are unchanged.
    """

    certified_accuracy: float
    """Lower bound of the accuracy after the change."""
    accuracy_under_noise: float
    """Share of correct votes at the test points before the change: an estimate, not a bound."""
    pairs: int
    """Pairs whose distances were measured."""
    free: float
    """Perturbation that is allowed for every image at no penalty."""
    scale: float | None
    """Beyond `free` the penalty of an image is (excess / scale)^2, at most 1; None if nothing could be certified."""
    excess: float
    """Upper bound of the mean penalty, part of the loss."""
    votes: int | None = 1
    """Noisy votes per answer; None for the class most probable under noise."""

    @classmethod
    def from_counts(
        cls, errors: np.ndarray, distances: np.ndarray, samples: NoiseSamples, *, votes: int | None = 1
    ) -> "MeasuredCertificate":
        """The certificate from wrong votes at test points and distances of pairs.

        Args:
            errors: Wrong votes at each test point.
            distances: L2 distance of each pair; the pairs may be of the test points or of other images.
            samples: How the votes were taken.
            votes: Noisy votes per answer; None for the class most probable under noise.
        """
        draws, level = samples.draws, samples.corrected(samples.draws * len(errors))
        reach = {"least": 1 / LEVELS, "most": math.sqrt(samples.dimension)}
        found = measured_loss(errors, draws, distances, samples.sigma, level, **reach, votes=votes)
        return cls(
            certified_accuracy=max(0.0, 1 - found.loss),
            accuracy_under_noise=float(1 - errors.mean() / draws),
            pairs=len(distances),
            free=found.free,
            scale=found.scale if math.isfinite(found.scale) else None,
            excess=found.excess,
            votes=votes,
            **samples.described(len(errors)),
        )

    def statement(self) -> str:
        """The guarantee in words, rounded down."""
        return (
            f"With probability {format_confidence(self.alpha)} over image pairs, test points and noise,"
            f" {name_classifier(self.votes)} (sigma {format_setting(self.sigma)}) is right at least"
            f" {format_percent(self.certified_accuracy, 'down')}% of the time after the change, and after every"
            " other change that moves images no further (no larger share of them beyond any distance)."
            f"{scope_of_validity(self.noise)}"
        )


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    """What noise samples gave at labelled reference images, and at pairs of an image before and after a change.

    Votes at both images of a pair use the same noise; the pseudo-label is the majority of other votes at the first.
    """

    errors: np.ndarray
    """Wrong votes at each labelled reference image."""
    mislabelled: np.ndarray
    """Whether its pseudo-label is wrong."""
    disagreements: np.ndarray
    """At each pair, votes after the change that are not the pseudo-label."""
    differing: np.ndarray
    """At each pair, noise samples under which the votes before and after differ."""
    errors_after: np.ndarray | None = None
    """Wrong votes after the change at each pair whose label is known; None where none is."""


@dataclass(frozen=True, slots=True)
class RecentredCertificate(NoiseCertificate):
    """Certified accuracy around the changed data, from pairs that need no labels.

    Guarantee: with probability at least 1 - alpha over image pairs, labelled reference images and noise, for every eps
    at once, the classifier is correct with at least the certified probability under every distribution within W2
    distance eps of that of the changed images. Labels are unchanged by the change.
    """

    eps: tuple[float, ...]
    """Sizes of a further shift, after the change."""
    certified_accuracy: tuple[float, ...]
    """Lower bound of the accuracy at each eps."""
    source: tuple[str, ...]
    """What proved it: "pseudo-labels", "disagreement" (error plus disagreement) or "labels"."""
    pairs: int
    """Pairs."""
    labelled_pairs: int
    """Pairs whose label was used."""
    votes: int | None
    """Noisy votes per answer; None for the class most probable under noise."""
    label_draws: int
    """Further noise samples at each reference image, whose majority is its pseudo-label."""

    @classmethod
    def from_counts(
        cls,
        counts: ChangeCounts,
        eps: Sequence[float],
        samples: NoiseSamples,
        *,
        label_draws: int,
        votes: int | None = 1,
    ) -> "RecentredCertificate":
        """The certificate from counts and how they were taken; other arguments as its fields."""
        eps = sizes("eps", eps)
        images = len(counts.errors) + len(counts.differing)
        found = recentred_loss(
            counts.disagreements,
            samples.draws,
            np.square(eps),
            samples.sigma,
            samples.corrected((samples.draws + label_draws) * images),
            mislabelled=counts.mislabelled,
            errors=counts.errors,
            differing=counts.differing,
            errors_after=counts.errors_after,
            votes=votes,
        )
        return cls(
            eps=eps,
            certified_accuracy=tuple(np.maximum(1 - found.loss, 0.0).tolist()),
            source=found.source,
            pairs=len(counts.differing),
            labelled_pairs=0 if counts.errors_after is None else len(counts.errors_after),
            votes=votes,
            label_draws=label_draws,
            **samples.described(len(counts.errors)),
        )

    def statement(self, eps: float) -> str:
        """The guarantee at one eps, in words, rounded down."""
        if eps not in self.eps:
            raise ValueError(f"eps must be one of {', '.join(map(format_setting, self.eps))}, got {eps}")
        return self.in_words(self.certified_accuracy[self.eps.index(eps)], eps)

    def in_words(self, accuracy: float, eps: float) -> str:
        """The sentence of an accuracy at one eps."""
        used = f"The labels of {self.labelled_pairs} changed images were used."
        labels = used if self.labelled_pairs else "No label of a changed image was used."
        within = f"for every distribution within W2 distance {format_distance(eps)} of that of the changed images"
        where = within if eps else "on images changed like these"
        return (
            f"With probability {format_confidence(self.alpha)} over image pairs, labelled images and noise, {where},"
            f" {name_classifier(self.votes)} (sigma {format_setting(self.sigma)}) is right at least"
            f" {format_percent(accuracy, 'down')}% of the time. {labels}{scope_of_validity(self.noise)}"
        )


def accuracy_under_noise(errors: np.ndarray, draws: int) -> dict[str, float]:
    """Share of correct votes at images drawn independently, with a two-sided 95% interval.

    Votes at one image are not independent, so the interval is a betting interval over the images' shares. Bets learn
    from the first images, and so may lead away from the share itself; the interval is widened to it.

    Args:
        errors: Wrong votes at each image, out of `draws`.
        draws: Votes per image.
    """
    wrong = shuffle(errors) / draws
    accuracy = float(1 - wrong.mean())
    high, low = float(betting_upper(1 - wrong, 0.025)), 1 - float(betting_upper(wrong, 0.025))
    return {"accuracy": accuracy, "low": min(low, accuracy), "high": max(high, accuracy), "n": len(errors)}
