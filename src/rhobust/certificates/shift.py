"""Certificates for every distribution within a Wasserstein radius: counting votes at the test points."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Required, TypedDict, Unpack

import numpy as np
from torch import Tensor, nn

from rhobust.bounds import SecondStage, betting_upper, randomized_counts
from rhobust.certificates.independence import PROBES, Repeats, check_batch_independence
from rhobust.certificates.losses import ClippedCrossEntropy, rounding_noise, sample_losses
from rhobust.certificates.sampling import VoteCounter
from rhobust.certificates.schedule import count_votes
from rhobust.certificates.smoothed import labelled_points
from rhobust.certificates.spec import Dtype, Smoothing
from rhobust.data import check_labels
from rhobust.models.inference import output_width
from rhobust.proofs.claim import ShiftClaim, check_claim
from rhobust.proofs.shift import INTERVAL_ALPHA, ShiftCertificate, ShiftProof, VoteCounts
from rhobust.proofs.subpopulation import GroupCertificate, SubpopulationCertificate
from rhobust.settings import check_at_least, check_declared, check_level, sizes

PURPOSE, SECOND_PURPOSE = "shift", "shift:second"
"""Purposes of the noise streams of this certificate and of its second stage."""
SECOND_SHARE = 0.1
"""Share of the points that are in a second stage; default."""


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
    second_draws: int | None = None
    """Further noise samples at a random share of the points, where the first ones gave no error; default: none."""
    second_share: float = SECOND_SHARE
    """That share."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_level(self.alpha)
        if self.second_draws is not None:
            check_at_least(1, self, "second_draws")
            check_level(self.second_share, "second_share")
            if self.claim.loss != "0-1" or self.claim.estimator != "majorant":
                raise ValueError("second_draws must come with the loss 0-1 and the estimator majorant")

    @property
    def proof(self) -> ShiftProof:
        """What the counts prove."""
        smoothing = self.smoothing
        return ShiftProof(
            claim=self.claim,
            sigma=smoothing.sigma,
            noise=smoothing.noise,
            points=self.points,
            dimension=self.dimension,
            draws=self.draws,
            alpha=self.alpha,
            seed=smoothing.seed,
            second_draws=self.second_draws or 0,
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
            indices: The points' names in the data set, one per row, all different: they name the noise, and the bound
                takes the noise of two points for independent.
            repeats: Inputs to evaluate again, the same object in every call; default: a new one.
        """
        if (different := len(set(indices))) < len(indices):
            raise ValueError(f"indices must be different, got {len(indices)} with {different} different ones")
        repeats = repeats or Repeats()
        claim, smoothing, draws = self.claim, self.smoothing, self.draws
        if claim.loss == "0-1":
            errors = count_errors(model, x, y, smoothing, indices=indices, draws=draws, repeats=repeats)
            return VoteCounts(errors, second=self._second_stage(model, x, y, errors, indices, repeats))
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

    def _second_stage(
        self, model: nn.Module, x: Tensor, y: Tensor, errors: np.ndarray, indices: Sequence[int], repeats: Repeats
    ) -> SecondStage | None:
        """Further votes at some of the points; a point is chosen by a number that only its name and the seed decide."""
        if self.second_draws is None:
            return None
        names = np.asarray(list(indices))
        chosen = rounding_noise(self.smoothing.seed, SECOND_PURPOSE, names.tolist(), 1)[:, 0] < self.second_share
        further = np.zeros(len(names), dtype=np.int64)
        again = np.flatnonzero(chosen & (errors == 0))
        if again.size:
            further[again] = count_errors(
                model,
                x[again],
                y[again],
                self.smoothing,
                indices=names[again].tolist(),
                draws=self.second_draws,
                purpose=SECOND_PURPOSE,
                repeats=repeats,
            )
        return SecondStage(self.second_draws, chosen, further)

    def certify(self, counts: VoteCounts, eps: Sequence[float]) -> ShiftCertificate:
        """The certificate from the counts at all points, for these sizes of the shift."""
        return self.proof.certify(counts, eps)


class ShiftOptions(TypedDict, total=False):
    """Arguments that `certify_shift` and its relatives share; they are explained there."""

    sigma: Required[float]
    draws: int
    alpha: float
    claim: ShiftClaim | None
    dtype: Dtype | None
    seed: int
    second_draws: int | None
    second_share: float


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
    second_draws: int | None = None,
    second_share: float = SECOND_SHARE,
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
        second_draws: Further noise samples at a random share of the points, where the first ones gave no error: for
            eps beyond 1.5 sigma; default: none.
        second_share: That share.
    """
    eps = sizes("eps", eps)
    counting = {"draws": draws, "alpha": alpha, "second_draws": second_draws, "second_share": second_share}
    procedure, counts, _ = _sampled(model, x, y, sigma=sigma, claim=claim, dtype=dtype, seed=seed, **counting)
    return procedure.certify(counts, eps)


def _sampled(
    model: nn.Module,
    x: Any,
    y: Any,
    *,
    sigma: float,
    claim: ShiftClaim | None = None,
    dtype: Dtype | None = None,
    seed: int = 0,
    **counting: Any,
) -> tuple[ShiftProcedure, VoteCounts, Tensor]:
    """The procedure, the counts at all points and their labels; refuses a model that is batch-dependent.

    `counting` holds the other arguments of `ShiftProcedure`: draws, alpha, second_draws, second_share.
    """
    claim = ShiftClaim() if claim is None else claim
    check_claim(claim)
    x, y = labelled_points(model, x, y)
    smoothing, repeats = checked_smoothing(model, x, sigma, seed=seed, dtype=dtype)
    procedure = ShiftProcedure(
        claim.resolve(smoothing.num_classes), smoothing, points=len(x), dimension=x[0].numel(), **counting
    )
    return procedure, procedure.sample(model, x, y, indices=range(len(x)), repeats=repeats), y


def certify_subpopulations(
    model: nn.Module,
    x: Any,
    y: Any = None,
    *,
    eps: Sequence[float] = (0.0,),
    gamma: Sequence[float] = (1.0, 2.0, 5.0, 10.0),
    outliers: float = 0.0,
    **options: Unpack[ShiftOptions],
) -> SubpopulationCertificate:
    """Certify the accuracy of every subpopulation under every shift of size eps: one alpha for the whole surface.

    Guarantee: `SubpopulationCertificate`. Assumptions are those of `certify_shift`.

    Args:
        model: The base network.
        x: Test inputs.
        y: Their labels.
        eps: Sizes of the shift; 0 for none.
        gamma: Largest factors of reweighting; 5 covers every subgroup with a share of 20% or more.
        outliers: Share of inputs that may be replaced by anything.
        options: sigma, and draws, alpha, claim, dtype, seed, second_draws, second_share, as in `certify_shift`.
    """
    procedure, counts, _ = _sampled(model, x, y, **options)
    return SubpopulationCertificate.from_counts(counts, procedure.proof, gamma=gamma, eps=eps, outliers=outliers)


def certify_groups(
    model: nn.Module,
    x: Any,
    y: Any = None,
    *,
    groups: Sequence[str] | None = None,
    tv: Sequence[float] = (0.1, 1.0),
    eps: Sequence[float] = (0.0,),
    **options: Unpack[ShiftOptions],
) -> GroupCertificate:
    """Certify the accuracy of every named group, and under every change of their shares: label shift for classes.

    Guarantee: `GroupCertificate`. Assumptions are those of `certify_shift`. A second stage is not used.

    Args:
        model: The base network.
        x: Test inputs.
        y: Their labels.
        groups: Name of each input's group; every group that there is must have an input. Default: its class.
        tv: By how much the groups' shares may differ from the data's, in total variation; 1 for any mixture.
        eps: Sizes of the shift; 0 for none.
        options: sigma, and draws, alpha, claim, dtype and seed, as in `certify_shift`.
    """
    procedure, counts, labels = _sampled(model, x, y, **options)
    names = [str(label) for label in labels.tolist()] if groups is None else [str(name) for name in groups]
    if len(names) != len(counts.errors):
        raise ValueError(f"groups must name the group of each of {len(counts.errors)} inputs, got {len(names)}")
    errors = {name: counts.errors[np.array(names) == name] for name in sorted(set(names))}
    known = procedure.smoothing.num_classes if groups is None else None
    return GroupCertificate.from_counts(errors, procedure.proof, tv=tv, eps=eps, num_groups=known)


def count_errors(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    smoothing: Smoothing,
    *,
    indices: Sequence[int],
    draws: int,
    purpose: str = PURPOSE,
    repeats: Repeats | None = None,
) -> np.ndarray:
    """Wrong votes of each point out of `draws` noise samples; the other arguments as in `count_votes`."""
    check_labels(y, smoothing.num_classes)
    votes = count_votes(model, x, smoothing, indices=indices, draws=draws, purpose=purpose, repeats=repeats)
    right = votes.gather(1, y[:, None]).squeeze(1)
    return (draws - right).cpu().numpy()


def checked_smoothing(
    model: nn.Module, x: Tensor, sigma: float, *, seed: int, dtype: Dtype | None
) -> tuple[Smoothing, Repeats]:
    """The smoothing of a network for such inputs, and what its votes are compared with.

    Raises if the model is batch-dependent (e.g. BatchNorm in training mode), keeps state or draws its own noise.
    """
    smoothing, repeats = Smoothing.for_images(x, sigma, infer_num_classes(model, x), seed=seed, dtype=dtype), Repeats()
    check_batch_independence(VoteCounter(model, x[:PROBES], smoothing, repeats))
    return smoothing, repeats


def infer_num_classes(model: nn.Module, x: Tensor) -> int:
    """Number of classes of a network that is evaluated on float32 inputs, as it is under noise."""
    return output_width(model, x[:1].float() if x.is_floating_point() else x)
