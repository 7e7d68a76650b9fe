"""A measured shift: the distance between images before and after a change, and the certified accuracy after it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from rhobust.certificates.independence import Repeats
from rhobust.certificates.losses import sample_votes
from rhobust.certificates.schedule import count_votes
from rhobust.certificates.shift import PURPOSE, checked_smoothing, count_errors
from rhobust.certificates.spec import Dtype, Smoothing, noise_kind
from rhobust.data import check_images, class_numbers, pair_distances
from rhobust.proofs.measured_shift import ChangeCounts, MeasuredCertificate, MeasuredShift, RecentredCertificate


def measure_shift(before: Tensor, after: Tensor, *, alpha: float = 1e-3) -> MeasuredShift:
    """Measure the distance between images before and after a change.

    Guarantee: `MeasuredShift`.

    Args:
        before: Images, uint8 or float in [0, 1], drawn independently.
        after: The same images after the change, in the same order.
        alpha: Probability that a bound is false.
    """
    check_images(before)
    check_images(after)
    return MeasuredShift.from_distances(pair_distances(before, after), dimension=before[0].numel(), alpha=alpha)


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
    votes: int | None = 1,
) -> MeasuredCertificate:
    """Certify the accuracy of the smoothed classifier after a measured change, and after all others of its size.

    Guarantee: `MeasuredCertificate`. The test points must be drawn independently and not used in training; the images
    before the change must be drawn independently from the same distribution, and may be the test points themselves.
    Raises if the model is batch-dependent (e.g. BatchNorm in training mode), keeps state or draws its own noise.

    Args:
        model: The base network, from inputs in [0, 1] to logits.
        x: Test inputs before the change, uint8 or float in [0, 1].
        y: Their labels.
        before: Images before the change; no labels are needed.
        after: The same images after the change.
        sigma: Standard deviation of the smoothing noise.
        draws: Noise samples per point; more are needed as eps / sigma grows.
        alpha: Probability that the statement is false.
        dtype: Arithmetic of the network; default: bfloat16 on a GPU, float32 on a CPU.
        seed: Random seed.
        votes: Noisy votes per answer; None for the class most probable under noise.
    """
    y = _checked(x, y, before, after)
    smoothing, repeats = checked_smoothing(model, x, sigma, seed=seed, dtype=dtype)
    return MeasuredCertificate.from_counts(
        count_errors(model, x, y, smoothing, indices=range(len(x)), draws=draws, repeats=repeats),
        pair_distances(before, after),
        smoothing.samples(x, draws=draws, alpha=alpha),
        votes=votes,
    )


def _checked(x: Tensor, y: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """The labels, where images before and after a change fit the labelled ones."""
    for images in (x, before, after):
        check_images(images)
    y = class_numbers(y, x)
    if before.shape[1:] != x.shape[1:]:
        raise ValueError(f"before must have the shape of x, {tuple(x.shape[1:])}, got {tuple(before.shape[1:])}")
    for name, images in (("before", before), ("after", after)):
        if noise_kind(images) != noise_kind(x):
            kinds = f"{noise_kind(images)} and {noise_kind(x)}"
            raise ValueError(f"{name} must hold 8-bit values where x does, got {kinds}")
    return y


@dataclass(frozen=True, slots=True)
class ReferenceVotes:
    """Votes at reference images, and the majority of other votes there: their pseudo-labels."""

    votes: np.ndarray
    """Class voted for, `(images, draws)`."""
    pseudo_labels: np.ndarray
    """The class with most of the other votes, the first of equals."""

    @classmethod
    def sample(
        cls,
        model: nn.Module,
        images: Tensor,
        smoothing: Smoothing,
        *,
        indices: Sequence[int],
        draws: int,
        label_draws: int,
        repeats: Repeats | None = None,
    ) -> "ReferenceVotes":
        """Sample both at images of these names; the pseudo-labels have noise of their own."""
        votes = sample_votes(model, images, smoothing, indices=indices, draws=draws, purpose=PURPOSE, repeats=repeats)
        others = count_votes(
            model, images, smoothing, indices=indices, draws=label_draws, purpose="pseudo-label", repeats=repeats
        )
        return cls(votes, others.argmax(1).cpu().numpy())

    def against(self, changed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Per image: votes after a change that are not the pseudo-label, and that differ under the same noise."""
        return (changed != self.pseudo_labels[:, None]).sum(1), (changed != self.votes).sum(1)


def certify_recentred(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    before: Tensor,
    after: Tensor,
    *,
    sigma: float,
    eps: Sequence[float] = (0.0,),
    draws: int = 20,
    label_draws: int = 20,
    alpha: float = 1e-3,
    votes: int | None = 1,
    dtype: Dtype | None = None,
    seed: int = 0,
) -> RecentredCertificate:
    """Certify the accuracy on changed data, and under every shift of size eps from there, without new labels.

    Guarantee: `RecentredCertificate`. The labelled images must be drawn independently and not used in training; the
    images before the change must be drawn independently from the same distribution, and may be the labelled ones. The
    size of the change does not enter: what counts is how often the network votes otherwise after it. Raises if
    the model is batch-dependent (e.g. BatchNorm in training mode), keeps state or draws its own noise.

    `eps` are the sizes of a further shift, 0 for the changed data themselves; the statement holds for all of them at
    once. `label_draws` further noise samples per image before the change choose its pseudo-label. The other arguments
    are those of `certify_measured_shift`.
    """
    y = _checked(x, y, before, after)
    smoothing, repeats = checked_smoothing(model, x, sigma, seed=seed, dtype=dtype)

    def sample(images: Tensor) -> ReferenceVotes:
        names = range(len(images))
        return ReferenceVotes.sample(
            model, images, smoothing, indices=names, draws=draws, label_draws=label_draws, repeats=repeats
        )

    labels = y.cpu().numpy()
    points = sample(x)
    pairs = points if before is x else sample(before)
    changed = sample_votes(
        model, after, smoothing, indices=range(len(after)), draws=draws, purpose=PURPOSE, repeats=repeats
    )
    disagreements, differing = pairs.against(changed)
    counts = ChangeCounts(
        (points.votes != labels[:, None]).sum(1), points.pseudo_labels != labels, disagreements, differing
    )
    return RecentredCertificate.from_counts(
        counts, eps, smoothing.samples(x, draws=draws, alpha=alpha), label_draws=label_draws, votes=votes
    )
