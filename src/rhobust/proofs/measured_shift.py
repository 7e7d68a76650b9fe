"""A measured shift, from distances and counts: how far a change perturbs images, and what is certified after it."""

import math
from dataclasses import dataclass

import numpy as np

from rhobust.bounds import betting_upper, eps_upper, measured_loss, shuffle
from rhobust.bounds.sampler import LEVELS, NoiseKind, corrected_alpha
from rhobust.formatting import format_confidence, format_number, format_percent, format_setting
from rhobust.proofs.claim import scope_of_validity
from rhobust.settings import check_level


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
class MeasuredCertificate:
    """Certified accuracy of the randomised classifier after a measured change.

    Guarantee: with probability at least 1 - alpha over image pairs, test points and noise, the classifier that takes
    one noisy vote is correct with at least the stated probability after the change, and after every other change of the
    same images whose distances are stochastically no larger (for every t, no larger share of images is perturbed by
    more than t). Labels are unchanged.
    """

    certified_accuracy: float
    """Lower bound of the accuracy after the change."""
    accuracy_under_noise: float
    """Share of correct votes at the test points before the change: an estimate, not a bound."""
    points: int
    """Test points."""
    draws: int
    """Noise samples per point."""
    pairs: int
    """Pairs whose distances were measured."""
    free: float
    """Perturbation that is allowed for every image at no penalty."""
    scale: float | None
    """Beyond `free` the penalty of an image is (excess / scale)^2, at most 1; None if nothing could be certified."""
    excess: float
    """Upper bound of the mean penalty, part of the loss."""
    alpha: float
    """Probability that the statement is false."""
    sigma: float
    """Standard deviation of the smoothing noise."""
    noise: NoiseKind
    """"grid": exact integer noise; "float": float32 noise, for ideal Gaussian noise only."""
    seed: int
    """Random seed."""

    @classmethod
    def from_counts(
        cls,
        errors: np.ndarray,
        distances: np.ndarray,
        *,
        draws: int,
        sigma: float,
        dimension: int,
        alpha: float,
        seed: int,
        noise: NoiseKind,
    ) -> "MeasuredCertificate":
        """The certificate from wrong votes at test points and distances of pairs.

        Args:
            errors: Wrong votes at each test point, out of `draws`.
            distances: L2 distance of each pair; the pairs may be of the test points or of other images.
            draws: Votes per point.
            sigma: Standard deviation of the smoothing noise.
            dimension: Numbers per image.
            alpha: Probability that the statement is false.
            seed: Random seed of the votes.
            noise: Kind of noise.
        """
        check_level(alpha)
        level = corrected_alpha(alpha, sigma=sigma, dimension=dimension, draws=draws * len(errors), noise=noise)
        found = measured_loss(errors, draws, distances, sigma, level, least=1 / LEVELS, most=math.sqrt(dimension))
        return cls(
            certified_accuracy=max(0.0, 1 - found.loss),
            accuracy_under_noise=float(1 - errors.mean() / draws),
            points=len(errors),
            draws=draws,
            pairs=len(distances),
            free=found.free,
            scale=found.scale if math.isfinite(found.scale) else None,
            excess=found.excess,
            alpha=alpha,
            sigma=sigma,
            noise=noise,
            seed=seed,
        )

    def statement(self) -> str:
        """The guarantee in words, rounded down."""
        return (
            f"With probability {format_confidence(self.alpha)} over image pairs, test points and noise, the classifier"
            f" that takes one noisy vote (sigma {format_setting(self.sigma)}) is right at least"
            f" {format_percent(self.certified_accuracy, 'down')}% of the time after the change, and after every"
            " other change that moves images no further (no larger share of them beyond any distance)."
            f"{scope_of_validity(self.noise)}"
        )


def accuracy_under_noise(errors: np.ndarray, draws: int) -> dict[str, float]:
    """Share of correct votes at images drawn independently, with a two-sided 95% interval.

    Votes at one image are not independent, so the interval is a betting interval over the images' shares.

    Args:
        errors: Wrong votes at each image, out of `draws`.
        draws: Votes per image.
    """
    wrong = shuffle(errors) / draws
    high, low = float(betting_upper(1 - wrong, 0.025)), 1 - float(betting_upper(wrong, 0.025))
    return {"accuracy": float(1 - wrong.mean()), "low": low, "high": high, "n": len(errors)}
