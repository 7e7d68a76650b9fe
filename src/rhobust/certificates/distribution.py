"""The distributional certificate: accuracy that holds for every distribution near the data's."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rhobust.attacks.ascent import frozen
from rhobust.bounds import population_loss
from rhobust.data import to_unit
from rhobust.rounding import confidence, percent

from .smoothed import check_images
from .smoothing import NoiseKind, Smoothing, charged_alpha, native_dtype, noise_kind
from .votes import count_votes


@dataclass(frozen=True, slots=True)
class ShiftCertificate:
    """Certified accuracy of the randomised classifier against the radius of a W2 shift.

    With probability at least 1 - alpha over test points and noise, for every eps at once and every distribution
    within W2 distance eps of the one the points were drawn from (L2 cost on inputs, labels fixed), the classifier
    that answers with one noisy vote is right with at least the stated probability.
    """

    eps: tuple[float, ...]
    """W2 radii."""
    certified_accuracy: tuple[float, ...]
    """A lower bound of the accuracy at each radius."""
    accuracy_under_noise: float
    """The share of right votes that was measured: an estimate, not a bound."""
    points: int
    """Test points."""
    draws: int
    """Noise draws a point."""
    alpha: float
    """Probability that the statement is false."""
    sigma: float
    """Standard deviation of the smoothing noise."""
    noise: NoiseKind
    """"grid": exact integer noise; "float": float32 noise, for ideal Gaussian draws only."""
    seed: int
    """Names the noise."""

    def statement(self, eps: float) -> str:
        """The guarantee at one radius, in words, rounded down."""
        if eps not in self.eps:
            raise ValueError(f"eps must be one of {', '.join(f'{known:g}' for known in self.eps)}, got {eps:g}")
        accuracy = self.certified_accuracy[self.eps.index(eps)]
        return (
            f"With probability {confidence(self.alpha)} over test points and noise, for every distribution within "
            f"W2 distance {eps:g} of the data's, the classifier that takes one noisy vote (sigma {self.sigma:g}) is "
            f"right at least {percent(accuracy, 'down')}% of the time."
        )


def shift_certificate(
    errors: np.ndarray,
    *,
    draws: int,
    eps: Sequence[float],
    sigma: float,
    dimension: int,
    alpha: float,
    seed: int,
    noise: NoiseKind,
) -> ShiftCertificate:
    """The certificate that a number of wrong votes at each point gives.

    Args:
        errors: Wrong votes at each point, out of `draws`.
        draws: Votes a point.
        eps: W2 radii.
        sigma: Standard deviation of the smoothing noise.
        dimension: Numbers in an input; decides what the integer sampler is charged.
        alpha: Probability that the statement is false.
        seed: Names the noise, for the record.
        noise: The kind of noise.
    """
    if len(eps) == 0:
        raise ValueError("eps must hold at least one radius, got none")
    if min(eps) < 0:
        raise ValueError(f"eps must be >= 0, got {min(eps)}")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie in (0, 1), got {alpha}")
    level = charged_alpha(alpha, sigma=sigma, dimension=dimension, draws=draws * len(errors), noise=noise)
    loss = np.atleast_1d(population_loss(errors, draws, np.square(np.asarray(eps, dtype=float)), sigma, level))
    return ShiftCertificate(
        eps=tuple(float(value) for value in eps),
        certified_accuracy=tuple(float(max(0.0, 1 - value)) for value in loss),
        accuracy_under_noise=float(1 - errors.mean() / draws),
        points=len(errors),
        draws=draws,
        alpha=alpha,
        sigma=sigma,
        noise=noise,
        seed=seed,
    )


def certify_shift(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    sigma: float,
    eps: Sequence[float],
    draws: int = 20,
    alpha: float = 1e-3,
    seed: int = 0,
) -> ShiftCertificate:
    """Certify the accuracy of the randomised smoothed classifier under every W2 shift of the data.

    The points must be drawn independently from the data's distribution and not used in training.

    Args:
        model: The base network, from inputs in [0, 1] to logits.
        x: Test inputs, uint8 or float in [0, 1].
        y: Their labels.
        sigma: Standard deviation of the smoothing noise.
        eps: W2 radii; the statement holds for all of them at once.
        draws: Noise draws a point; more are needed as eps / sigma grows.
        alpha: Probability that the statement is false.
        seed: Names the noise.
    """
    check_images(x)
    if y.shape != (len(x),):
        raise ValueError(f"y must hold one label an input ({len(x)}), got the shape {tuple(y.shape)}")
    wrong, noise = count_errors(model, x, y, indices=range(len(x)), sigma=sigma, draws=draws, seed=seed)
    return shift_certificate(
        wrong,
        draws=draws,
        eps=eps,
        sigma=sigma,
        dimension=x[0].numel(),
        alpha=alpha,
        seed=seed,
        noise=noise,
    )


def count_errors(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    indices: Sequence[int],
    sigma: float,
    draws: int,
    seed: int,
    num_classes: int | None = None,
) -> tuple[np.ndarray, NoiseKind]:
    """Wrong votes of each point out of `draws`, and the kind of noise they were taken with."""
    noise = noise_kind(x)
    if num_classes is None:
        num_classes = output_width(model, x)
    if y.min() < 0 or y.max() >= num_classes:
        raise ValueError(f"labels must lie in [0, {num_classes}), got {int(y.min())} to {int(y.max())}")
    smoothing = Smoothing(sigma, num_classes, noise=noise, seed=seed, dtype=native_dtype(x.device))
    votes = count_votes(model, x, smoothing, indices=indices, draws=draws, purpose="shift")
    right = votes.gather(1, y[:, None]).squeeze(1)
    return (draws - right).cpu().numpy(), noise


def output_width(model: nn.Module, x: Tensor) -> int:
    """The number of classes a network answers with."""
    with torch.no_grad(), frozen(model):
        first = x[:1] if x.is_floating_point() else to_unit(x[:1])
        return model(first).shape[1]
