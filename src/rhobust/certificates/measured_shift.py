"""A change of the images that was measured: how far it moves them, and the accuracy that is certain after it."""

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from rhobust.bounds import betting_upper, eps_upper, measured_loss, shuffle
from rhobust.certificates.claim import scope_of_validity
from rhobust.certificates.sampling import PROBES, VoteCounter, check_batch_independence
from rhobust.certificates.shift import count_errors, infer_num_classes
from rhobust.certificates.spec import Dtype, NoiseKind, Smoothing, corrected_alpha, native_dtype, noise_kind
from rhobust.data import check_images, class_numbers, pair_distances
from rhobust.formatting import format_confidence, format_number, format_percent, format_setting
from rhobust.noise import LEVELS


@dataclass(frozen=True, slots=True)
class MeasuredShift:
    """How far a change moves images, from pairs of an image and what the change made of it.

    `eps`, `mean_distance` and `largest_distance` are exact for the pairs measured: the pairing is a coupling, so they
    bound the W2, W1 and W-infinity distance between the two sets of images. With probability at least 1 - alpha over
    pairs drawn independently, `eps_capped` and `eps_upper` both bound the population's root mean square distance, the
    first with every distance above `cap` counted as `cap`.
    """

    eps: float
    """Root of the mean squared L2 distance of the pairs (W2)."""
    mean_distance: float
    """Mean L2 distance of the pairs (W1)."""
    largest_distance: float
    """Largest L2 distance of the pairs (W-infinity)."""
    cap: float
    """What a distance counts at most in `eps_capped`; no pair measured exceeds it."""
    eps_capped: float
    """Upper bound of the population's eps with capped distances."""
    eps_upper: float
    """Upper bound of the population's eps, hence of the W2 distance; wide, for few pairs say little of rare ones."""
    pairs: int
    """Pairs measured."""
    alpha: float
    """Probability that a bound is false."""

    def statement(self) -> str:
        """What is certain of the change, in words, rounded up."""
        cap = format_number(self.cap, 4, "down")
        return (
            f"With probability {format_confidence(self.alpha)} over image pairs, the change moves images by a root"
            " mean "
            f"square of at most {format_number(self.eps_capped, 4, 'up')} if distances above {cap} count as {cap},"
            " and of at "
            f"most {format_number(self.eps_upper, 4, 'up')} in any case."
        )


@dataclass(frozen=True, slots=True)
class MeasuredCertificate:
    """Certified accuracy of the randomised classifier after a measured change.

    With probability at least 1 - alpha over image pairs, test points and noise, the classifier that answers with one
    noisy vote is right with at least the stated probability after the change, and after every other change of the
    same images whose distances are stochastically no larger (for every t, no larger share of images moves further
    than t). Labels stay as they are.
    """

    certified_accuracy: float
    """A lower bound of the accuracy after the change."""
    accuracy_under_noise: float
    """The share of right votes at the test points, before the change: an estimate, not a bound."""
    points: int
    """Test points."""
    draws: int
    """Noise draws a point."""
    pairs: int
    """Pairs whose distances were measured."""
    free: float
    """The distance that every image was allowed to move at no charge."""
    scale: float | None
    """Beyond `free`, an image is charged (excess / scale)^2, at most 1; None where nothing could be certified."""
    excess: float
    """Upper bound of the mean charge, part of the loss."""
    alpha: float
    """Probability that the statement is false."""
    sigma: float
    """Standard deviation of the smoothing noise."""
    noise: NoiseKind
    """"grid": exact integer noise; "float": float32 noise, for ideal Gaussian draws only."""
    seed: int
    """Names the noise."""

    def statement(self) -> str:
        """The guarantee in words, rounded down."""
        return (
            f"With probability {format_confidence(self.alpha)} over image pairs, test points and noise, the"
            " classifier that "
            f"takes one noisy vote (sigma {format_setting(self.sigma)}) is right at least "
            f"{format_percent(self.certified_accuracy, 'down')}% of the time after the change, and after every"
            " other change that moves images no further (no larger share of them beyond any distance)."
            f"{scope_of_validity(self.noise)}"
        )


def measured_shift(distances: np.ndarray, *, dimension: int, alpha: float) -> MeasuredShift:
    """What distances of pairs say of the change.

    Args:
        distances: L2 distance of each pair.
        dimension: Numbers in an image; no distance exceeds its root.
        alpha: Probability that a bound is false.
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be in (0, 1), got {alpha}")
    upper = eps_upper(distances, math.sqrt(dimension), alpha, least=1 / LEVELS)
    return MeasuredShift(
        eps=math.sqrt(float(np.mean(distances**2))),
        mean_distance=float(distances.mean()),
        largest_distance=float(distances.max()),
        cap=upper.cap,
        eps_capped=upper.capped,
        eps_upper=upper.uncapped,
        pairs=len(distances),
        alpha=alpha,
    )


def measured_certificate(
    errors: np.ndarray,
    distances: np.ndarray,
    *,
    draws: int,
    sigma: float,
    dimension: int,
    alpha: float,
    seed: int,
    noise: NoiseKind,
) -> MeasuredCertificate:
    """The certificate that wrong votes at test points and distances of pairs give.

    Args:
        errors: Wrong votes at each test point, out of `draws`.
        distances: L2 distance of each pair; the pairs may be of the test points or of other images.
        draws: Votes a point.
        sigma: Standard deviation of the smoothing noise.
        dimension: Numbers in an image.
        alpha: Probability that the statement is false.
        seed: Names the noise, for the record.
        noise: The kind of noise.
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be in (0, 1), got {alpha}")
    level = corrected_alpha(alpha, sigma=sigma, dimension=dimension, draws=draws * len(errors), noise=noise)
    found = measured_loss(errors, draws, distances, sigma, level, least=1 / LEVELS, most=math.sqrt(dimension))
    return MeasuredCertificate(
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


def vote_accuracy(errors: np.ndarray, draws: int) -> dict[str, float]:
    """The share of right votes at images drawn independently, with a two-sided 95% interval.

    Several votes at one image are not independent, so the interval is by betting on each image's share.

    Args:
        errors: Wrong votes at each image, out of `draws`.
        draws: Votes an image.
    """
    wrong = shuffle(errors) / draws
    high, low = float(betting_upper(1 - wrong, 0.025)), 1 - float(betting_upper(wrong, 0.025))
    return {"accuracy": float(1 - wrong.mean()), "low": low, "high": high, "n": len(errors)}


def measure_shift(before: Tensor, after: Tensor, *, alpha: float = 1e-3) -> MeasuredShift:
    """Measure how far a change moves images.

    Args:
        before: Images, uint8 or float in [0, 1], drawn independently.
        after: The same images after the change, in the same order.
        alpha: Probability that a bound is false.
    """
    check_images(before)
    check_images(after)
    return measured_shift(pair_distances(before, after), dimension=before[0].numel(), alpha=alpha)


def certify_measured_shift(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    before: Tensor,
    after: Tensor,
    *,
    sigma: float,
    draws: int = 20,
    alpha: float = 1e-3,
    dtype: Dtype | None = None,
    seed: int = 0,
) -> MeasuredCertificate:
    """Certify the accuracy of the randomised smoothed classifier after a measured change of the images.

    The test points must be drawn independently and not used in training; the images before the change must be drawn
    independently from the same distribution. They may be the test points themselves. A network that looks at its
    neighbours in a batch is refused.

    Args:
        model: The base network, from inputs in [0, 1] to logits.
        x: Test inputs before the change, uint8 or float in [0, 1].
        y: Their labels.
        before: Images before the change; no labels are needed.
        after: The same images after the change.
        sigma: Standard deviation of the smoothing noise.
        draws: Noise draws a point; more are needed as eps / sigma grows.
        alpha: Probability that the statement is false.
        dtype: Arithmetic of the network; the device's own where none is given.
        seed: Names the noise.
    """
    for images in (x, before, after):
        check_images(images)
    y = class_numbers(y, x)
    if before.shape[1:] != x.shape[1:]:
        raise ValueError(f"before must have the shape of x, {tuple(x.shape[1:])}, got {tuple(before.shape[1:])}")
    if noise_kind(after) != noise_kind(x):
        raise ValueError(f"after must hold 8-bit values where x does, got {noise_kind(after)} and {noise_kind(x)}")
    classes, dtype = infer_num_classes(model, x), dtype or native_dtype(x.device)
    smoothing = Smoothing(sigma, classes, noise=noise_kind(x), seed=seed, dtype=dtype)
    check_batch_independence(VoteCounter(model, x[:PROBES], smoothing))
    wrong, noise = count_errors(
        model, x, y, indices=range(len(x)), sigma=sigma, draws=draws, seed=seed, num_classes=classes, dtype=dtype
    )
    return measured_certificate(
        wrong,
        pair_distances(before, after),
        draws=draws,
        sigma=sigma,
        dimension=x[0].numel(),
        alpha=alpha,
        seed=seed,
        noise=noise,
    )
