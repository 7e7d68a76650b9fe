"""Certificates for every distribution within a Wasserstein radius: counting votes at the test points."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from rhobust.bounds import betting_upper, randomized_counts
from rhobust.certificates.claim import ClippedCrossEntropy, rounding_noise, sample_losses
from rhobust.certificates.independence import PROBES, check_batch_independence
from rhobust.certificates.inputs import labelled_inputs
from rhobust.certificates.repeats import Repeats
from rhobust.certificates.sampling import VoteCounter
from rhobust.certificates.schedule import count_votes
from rhobust.certificates.spec import Dtype, Smoothing
from rhobust.data import check_labels
from rhobust.models.inference import output_width
from rhobust.proofs.claim import ShiftClaim
from rhobust.proofs.shift import INTERVAL_ALPHA, ShiftCertificate, ShiftProof, VoteCounts
from rhobust.proofs.subpopulation import GroupCertificate, SubpopulationCertificate
from rhobust.settings import check_declared, check_level, sizes

PURPOSE = "shift"
"""Purpose of the noise streams of this certificate."""


@dataclass(frozen=True)
class ShiftProcedure:
    """A certification procedure for distributions: `sample` counts votes at the test points, `certify` bounds the loss.

    `sample` may be called on parts of the test set; `certify` takes the counts of all points together.
    """

    claim: ShiftClaim
    """What is claimed; its bound must be resolved."""
    smoothing: Smoothing
    """The smoothed classifier, and the seed of its noise."""
    points: int
    """Test points in all."""
    dimension: int
    """Numbers per input, for the sampler's correction of alpha."""
    draws: int = 20
    """Noise samples per point."""
    alpha: float = 1e-3
    """Probability that the whole statement is false."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_level(self.alpha)

    @property
    def proof(self) -> ShiftProof:
        """What the counts prove."""
        smoothing = self.smoothing
        return ShiftProof(
            self.claim,
            smoothing.sigma,
            smoothing.noise,
            points=self.points,
            dimension=self.dimension,
            draws=self.draws,
            alpha=self.alpha,
            seed=smoothing.seed,
        )

    def level(self, rounds: int = 1) -> float:
        """Alpha after the sampler's correction for this many rounds of `draws` samples at all points."""
        return self.proof.level(rounds)

    def sample(
        self, model: nn.Module, x: Tensor, y: Tensor, *, indices: Sequence[int], repeats: Repeats | None = None
    ) -> VoteCounts:
        """Count votes at some of the points; the counts of a point do not depend on the others.

        Args:
            model: The base network, from inputs in [0, 1] to logits.
            x: Inputs, uint8 or float in [0, 1].
            y: Their labels.
            indices: The points' names in the data set, one per row.
            repeats: Inputs to evaluate again, the same object in every call; default: a new one.
        """
        repeats = repeats or Repeats()
        claim, smoothing, draws = self.claim, self.smoothing, self.draws
        if claim.loss == "0-1":
            return VoteCounts(count_errors(model, x, y, smoothing, indices=indices, draws=draws, repeats=repeats))
        check_labels(y, smoothing.num_classes)
        loss = ClippedCrossEntropy(claim.loss_bound)
        drawn = sample_losses(
            model, x, y, loss, smoothing, indices=indices, draws=draws, purpose=PURPOSE, repeats=repeats
        )
        mean = drawn.values.mean(axis=1)
        if claim.estimator == "majorant":
            uniform = rounding_noise(smoothing.seed, PURPOSE, indices, draws)
            return VoteCounts(
                drawn.errors, rounded_losses=randomized_counts(drawn.values, claim.loss_bound, uniform), losses=mean
            )
        each = INTERVAL_ALPHA if claim.estimator == "intervals" else self.level() / self.points
        uppers = np.atleast_1d(betting_upper(drawn.values / claim.loss_bound, each))
        return VoteCounts(drawn.errors, losses=mean, uppers=uppers)

    def certify(self, counts: VoteCounts, eps: Sequence[float]) -> ShiftCertificate:
        """The certificate from the counts at all points, for these sizes of the shift."""
        return self.proof.certify(counts, eps)


def certify_shift(
    model: nn.Module,
    x: Any,
    y: Any = None,
    *,
    sigma: float,
    eps: Sequence[float],
    draws: int = 20,
    alpha: float = 1e-3,
    claim: ShiftClaim | None = None,
    dtype: Dtype | None = None,
    seed: int = 0,
) -> ShiftCertificate:
    """Certify the accuracy of the smoothed classifier under every distribution shift of size eps.

    Guarantee: `ShiftCertificate`. The points must be drawn independently from the data's distribution and not used in
    training. Raises if the model is batch-dependent (e.g. BatchNorm in training mode), keeps state or
    draws its own noise.

    Args:
        model: The base network, from inputs in [0, 1] to logits.
        x: Test inputs, uint8 or float in [0, 1]: a tensor (n, ...), or anything that `rhobust.as_dataset` takes.
        y: Their labels; None where the inputs come with labels, as from a DataLoader or a folder.
        sigma: Standard deviation of the smoothing noise.
        eps: Sizes of the shift; the statement holds for all of them at once.
        draws: Noise samples per point; more are needed as eps / sigma grows.
        alpha: Probability that the statement is false.
        claim: Classifier, loss, distance and estimator; default: accuracy of the randomised classifier under W2.
        dtype: Arithmetic of the network; default: bfloat16 on a GPU, float32 on a CPU.
        seed: Random seed.
    """
    eps = sizes("eps", eps)
    options = {"sigma": sigma, "draws": draws, "alpha": alpha, "claim": claim, "dtype": dtype, "seed": seed}
    procedure, counts, _ = _sampled(model, x, y, **options)
    return procedure.certify(counts, eps)


def _sampled(
    model: nn.Module,
    x: Any,
    y: Any,
    *,
    sigma: float,
    draws: int,
    alpha: float,
    claim: ShiftClaim | None,
    dtype: Dtype | None,
    seed: int,
) -> tuple[ShiftProcedure, VoteCounts, Tensor]:
    """The procedure, the counts at all points and their labels; refuses a model that is batch-dependent."""
    x, y = labelled_inputs(model, x, y)
    if y is None:
        raise ValueError(f"y must be given, one class number per input ({len(x)}), or inputs that come with labels")
    classes = infer_num_classes(model, x)
    procedure = ShiftProcedure(
        (claim or ShiftClaim()).resolve(classes),
        Smoothing.for_images(x, sigma, classes, seed=seed, dtype=dtype),
        points=len(x),
        dimension=x[0].numel(),
        draws=draws,
        alpha=alpha,
    )
    repeats = Repeats()
    check_batch_independence(VoteCounter(model, x[:PROBES], procedure.smoothing, repeats))
    return procedure, procedure.sample(model, x, y, indices=range(len(x)), repeats=repeats), y


def certify_subpopulations(
    model: nn.Module,
    x: Any,
    y: Any = None,
    *,
    sigma: float,
    eps: Sequence[float] = (0.0,),
    gamma: Sequence[float] = (1.0, 2.0, 5.0, 10.0),
    outliers: float = 0.0,
    draws: int = 20,
    alpha: float = 1e-3,
    claim: ShiftClaim | None = None,
    dtype: Dtype | None = None,
    seed: int = 0,
) -> SubpopulationCertificate:
    """Certify the accuracy of every subpopulation under every shift of size eps: one alpha for the whole surface.

    Guarantee: `SubpopulationCertificate`. Arguments and assumptions are those of `certify_shift`, and:

    Args:
        model: The base network.
        x: Test inputs.
        y: Their labels.
        sigma: Standard deviation of the smoothing noise.
        eps: Sizes of the shift; 0 for none.
        gamma: Largest factors of reweighting; 5 covers every subgroup with a share of 20% or more.
        outliers: Share of inputs that may be replaced by anything.
        draws: Noise samples per point.
        alpha: Probability that the statement is false.
        claim: Classifier and distance; default: one noisy vote, W2.
        dtype: Arithmetic of the network; default: the device's own.
        seed: Random seed.
    """
    options = {"sigma": sigma, "draws": draws, "alpha": alpha, "claim": claim, "dtype": dtype, "seed": seed}
    procedure, counts, _ = _sampled(model, x, y, **options)
    return SubpopulationCertificate.from_counts(counts.errors, procedure.proof, gamma=gamma, eps=eps, outliers=outliers)


def certify_groups(
    model: nn.Module,
    x: Any,
    y: Any = None,
    *,
    sigma: float,
    groups: Sequence[str] | None = None,
    tv: Sequence[float] = (0.1, 1.0),
    eps: Sequence[float] = (0.0,),
    draws: int = 20,
    alpha: float = 1e-3,
    claim: ShiftClaim | None = None,
    dtype: Dtype | None = None,
    seed: int = 0,
) -> GroupCertificate:
    """Certify the accuracy of every named group, and under every change of their shares: label shift for classes.

    Guarantee: `GroupCertificate`. Arguments and assumptions are those of `certify_shift`, and:

    Args:
        model: The base network.
        x: Test inputs.
        y: Their labels.
        sigma: Standard deviation of the smoothing noise.
        groups: Name of each input's group; default: its class.
        tv: By how much the groups' shares may differ from the data's, in total variation; 1 for any mixture.
        eps: Sizes of the shift; 0 for none.
        draws: Noise samples per point.
        alpha: Probability that the statement is false.
        claim: Classifier and distance; default: one noisy vote, W2.
        dtype: Arithmetic of the network; default: the device's own.
        seed: Random seed.
    """
    options = {"sigma": sigma, "draws": draws, "alpha": alpha, "claim": claim, "dtype": dtype, "seed": seed}
    procedure, counts, labels = _sampled(model, x, y, **options)
    names = [str(label) for label in labels.tolist()] if groups is None else [str(name) for name in groups]
    if len(names) != len(counts.errors):
        raise ValueError(f"groups must name the group of each of {len(counts.errors)} inputs, got {len(names)}")
    errors = {name: counts.errors[np.array(names) == name] for name in sorted(set(names))}
    return GroupCertificate.from_counts(errors, procedure.proof, tv=tv, eps=eps)


def count_errors(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    smoothing: Smoothing,
    *,
    indices: Sequence[int],
    draws: int,
    repeats: Repeats | None = None,
) -> np.ndarray:
    """Wrong votes of each point out of `draws` noise samples; `repeats` as in `count_votes`."""
    check_labels(y, smoothing.num_classes)
    votes = count_votes(model, x, smoothing, indices=indices, draws=draws, purpose=PURPOSE, repeats=repeats)
    right = votes.gather(1, y[:, None]).squeeze(1)
    return (draws - right).cpu().numpy()


def infer_num_classes(model: nn.Module, x: Tensor) -> int:
    """Number of classes of a network that is evaluated on float32 inputs, as it is under noise."""
    return output_width(model, x[:1].float() if x.is_floating_point() else x)
