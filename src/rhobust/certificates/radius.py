"""The certified radius of an input, by Cohen et al.'s test with a fixed number of draws."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rhobust.bounds import certified_radius, clopper_pearson

from .votes import NoiseKind, charged_alpha, count_votes


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was proved for one input, unrounded, with the counts that prove it.

    With probability at least 1 - alpha over the noise, the smoothed classifier answers `prediction` at every point
    within L2 distance `radius` of the input. With noise "grid" the points are 8-bit images.
    """

    prediction: int | None
    """The certified class; None where the test abstains."""
    radius: float
    """L2 radius; 0.0 where the test abstains."""
    count: int
    """Votes for the selected class in the counting stage."""
    n: int
    """Draws of the counting stage."""
    n0: int
    """Draws of the selection stage."""
    p_lower: float
    """Lower confidence bound of the selected class's probability."""
    alpha: float
    """Probability of a false claim."""
    sigma: float
    """Standard deviation of the smoothing noise."""
    noise: NoiseKind
    """"grid": exact integer noise; "float": float32 noise, for ideal Gaussian draws only."""
    seed: int
    """With the example's index, names the noise."""


def certify_inputs(
    model: nn.Module,
    images: Tensor,
    *,
    indices: Sequence[int],
    sigma: float,
    num_classes: int,
    n0: int,
    n: int,
    alpha: float,
    seed: int,
    noise: NoiseKind,
) -> list[Certificate]:
    """Certify each input: select the class with n0 draws, count it in n fresh ones.

    Each certificate alone is false with probability at most alpha.
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie in (0, 1), got {alpha}")
    if n0 < 1 or n < n0:
        raise ValueError(f"n must be >= n0 >= 1, got n={n} and n0={n0}")

    def votes(draws: int, purpose: str) -> Tensor:
        return count_votes(
            model,
            images,
            indices=indices,
            sigma=sigma,
            draws=draws,
            num_classes=num_classes,
            seed=seed,
            purpose=purpose,
            noise=noise,
        ).cpu()

    selected = votes(n0, "select").argmax(1)
    counts = votes(n, "count").gather(1, selected[:, None]).squeeze(1)
    # Only the counting stage carries the proof, so only its draws are charged.
    level = charged_alpha(alpha, sigma=sigma, dimension=images[0].numel(), draws=n, noise=noise)
    lower = np.atleast_1d(clopper_pearson(counts.numpy(), n, level, "lower"))
    radii = np.atleast_1d(certified_radius(lower, sigma))
    return [
        Certificate(
            prediction=int(choice) if radius > 0 else None,
            radius=float(radius),
            count=int(count),
            n=n,
            n0=n0,
            p_lower=float(bound),
            alpha=alpha,
            sigma=sigma,
            noise=noise,
            seed=seed,
        )
        for choice, radius, count, bound in zip(selected, radii, counts, lower, strict=True)
    ]


def predict_inputs(
    model: nn.Module,
    images: Tensor,
    *,
    indices: Sequence[int],
    sigma: float,
    num_classes: int,
    n: int,
    alpha: float,
    seed: int,
    noise: NoiseKind,
) -> list[int | None]:
    """The smoothed classifier's answer for each input, or None.

    With probability at least 1 - alpha an answer equals the class most probable under noise (Cohen et al., PREDICT).
    """
    from scipy.stats import binomtest

    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie in (0, 1), got {alpha}")
    level = charged_alpha(alpha, sigma=sigma, dimension=images[0].numel(), draws=n, noise=noise)
    counts = count_votes(
        model,
        images,
        indices=indices,
        sigma=sigma,
        draws=n,
        num_classes=num_classes,
        seed=seed,
        purpose="predict",
        noise=noise,
    ).cpu()
    top = torch.topk(counts, 2, dim=1)
    return [
        int(classes[0]) if binomtest(int(votes[0]), int(votes.sum()), 0.5).pvalue <= level else None
        for votes, classes in zip(top.values, top.indices, strict=True)
    ]
