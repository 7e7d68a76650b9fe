"""Prediction sets with certified coverage under shift: scores of classes, calibration, and sets of new inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rhobust.certificates.independence import Repeats
from rhobust.certificates.losses import sample_logits
from rhobust.certificates.shift import checked_smoothing
from rhobust.certificates.smoothed import labelled_points, network_inputs
from rhobust.certificates.spec import Dtype, Smoothing
from rhobust.proofs.conformal import FREE_RANKS, PENALTY, SCORES, ConformalCertificate, Score, SetCounts, threshold_grid

PURPOSE = "conform"
"""Purpose of the noise streams of the calibration."""


def nonconformity(logits: Tensor, score: Score) -> Tensor:
    """How unlikely each class is, float64 `(n, classes)`; a class is in a set if this is at most the threshold.

    probability: 1 - softmax. adaptive: the probability of all likelier classes, so that the likeliest is always in
    (Romano et al., 2020, without randomisation). regularised: the same plus 0.1 per rank beyond the second
    (Angelopoulos et al., 2021).

    Args:
        logits: One row per input.
        score: Which score.
    """
    probabilities = logits.double().softmax(1)
    if score == "probability":
        return 1 - probabilities
    ordered, order = probabilities.sort(dim=1, descending=True, stable=True)
    above = ordered.cumsum(1) - ordered
    if score == "regularised":
        ranks = torch.arange(logits.shape[1], device=logits.device, dtype=torch.float64)
        above = above + PENALTY * (ranks - FREE_RANKS).clamp(min=0)
    return torch.empty_like(above).scatter_(1, order, above)


def sample_sets(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    smoothing: Smoothing,
    *,
    scores: Sequence[Score],
    indices: Sequence[int],
    draws: int,
    votes: int = 1,
    repeats: Repeats | None = None,
) -> dict[Score, SetCounts]:
    """How far along the grid of thresholds the sets of noisy inputs hold the label, for each score.

    The other arguments are those of `count_votes`; `votes` noisy inputs decide each set.
    """
    if not 1 <= votes <= draws:
        raise ValueError(f"votes must be in 1..draws ({draws}), got {votes}")
    classes = smoothing.num_classes
    rising = {score: _rising(score, classes).to(x.device) for score in scores}
    labels: dict[Score, list[Tensor]] = {score: [] for score in scores}
    firsts: dict[Score, list[Tensor]] = {score: [] for score in scores}
    seen = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    for owner, logits in sample_logits(
        model, x, smoothing, indices=indices, draws=draws, purpose=PURPOSE, repeats=repeats
    ):
        # The samples of an image follow one another: those with fewer than `votes` before them are its first set.
        number = seen[owner] + torch.arange(len(owner), device=x.device) - torch.searchsorted(owner, owner)
        seen += torch.bincount(owner, minlength=len(x))
        for score in scores:
            places = _last_places(nonconformity(logits, score), rising[score])
            labels[score].append(places.gather(1, y[owner, None]).squeeze(1))
            firsts[score].append(places[number < votes])
    found = {}
    for score in scores:
        first = torch.cat(firsts[score]).view(len(x), votes, classes)
        # In more than half of the nested sets: as far along as the set in the middle, rounded to the smaller sets.
        held = first.sort(dim=1, descending=True).values[:, votes // 2]
        last = torch.cat(labels[score]).view(len(x), draws)
        found[score] = SetCounts(last.cpu().numpy(), held.cpu().numpy())
    return found


def _rising(score: Score, classes: int) -> Tensor:
    return torch.from_numpy(np.flip(threshold_grid(score, classes)).copy())


def _last_places(scores: Tensor, rising: Tensor) -> Tensor:
    """For each score the last place of the grid with a threshold of at least so much."""
    return len(rising) - 1 - torch.searchsorted(rising, scores.contiguous())


@dataclass(frozen=True, eq=False)
class ConformalClassifier:
    """A network with calibrated prediction sets: `predict_set` answers with all classes that it cannot exclude."""

    model: nn.Module
    """The base network, from inputs in [0, 1] to logits."""
    smoothing: Smoothing
    """The noise and the arithmetic, part of what is certified."""
    certificate: ConformalCertificate
    """What is certified about the sets, and their thresholds."""

    def predict_set(self, x: Any, *, seed: int = 0) -> np.ndarray:
        """The prediction set of each input, a boolean matrix `(n, classes)`.

        Each set takes fresh noise; with one seed the sets of one call are the same each time.

        Args:
            x: Inputs, uint8 or float in [0, 1]: a tensor (n, ...), or anything that `rhobust.as_dataset` takes.
            seed: Random seed of the noise; for inputs from an adversary, a secret one.
        """
        x, certificate = network_inputs(self.model, x), self.certificate
        smoothing = Smoothing.for_images(
            x, self.smoothing.sigma, self.smoothing.num_classes, seed=seed, dtype=self.smoothing.dtype
        )
        limits = torch.tensor(
            [float("inf") if one is None else one for one in certificate.thresholds], dtype=torch.float64
        ).to(x.device)
        held = torch.zeros(len(x), smoothing.num_classes, dtype=torch.int64, device=x.device)
        for owner, logits in sample_logits(
            self.model, x, smoothing, indices=range(len(x)), draws=certificate.votes, purpose="predict-set"
        ):
            held.index_add_(0, owner, (nonconformity(logits, certificate.score) <= limits).long())
        return (2 * held > certificate.votes).cpu().numpy()


def conformalize(
    model: nn.Module,
    x: Any,
    y: Any = None,
    *,
    sigma: float,
    coverage: float = 0.95,
    eps: float = 0.0,
    score: Score | None = None,
    conditional: bool = False,
    votes: int = 1,
    draws: int = 20,
    alpha: float = 1e-3,
    dtype: Dtype | None = None,
    seed: int = 0,
) -> ConformalClassifier:
    """Calibrate prediction sets that hold the label under every distribution shift of size eps.

    Guarantee: `ConformalCertificate`. The calibration points must be drawn independently from the data's distribution
    and not used in training. Raises if the model is batch-dependent (e.g. BatchNorm in training mode), keeps state or
    draws its own noise. Where nothing smaller can be certified the sets hold all classes.

    Args:
        model: The base network, from inputs in [0, 1] to logits.
        x: Calibration inputs, uint8 or float in [0, 1]: a tensor (n, ...), or anything that `rhobust.as_dataset` takes.
        y: Their labels; None where the inputs come with labels.
        sigma: Standard deviation of the smoothing noise.
        coverage: Smallest probability that a set holds the label.
        eps: Size of the shift; 0 for none.
        score: Score of the classes; default: the one with the smallest sets, at shares of alpha (0.9, 0.05, 0.05).
        conditional: Whether coverage must hold in every class, at a share of alpha each.
        votes: Noisy inputs per set; a class is in it if it is in the sets of more than half of them.
        draws: Noise samples per calibration point.
        alpha: Probability that the statement is false.
        dtype: Arithmetic of the network; default: bfloat16 on a GPU, float32 on a CPU.
        seed: Random seed.
    """
    x, y = labelled_points(model, x, y)
    smoothing, repeats = checked_smoothing(model, x, sigma, seed=seed, dtype=dtype)
    counts = sample_sets(
        model,
        x,
        y,
        smoothing,
        scores=SCORES if score is None else (score,),
        indices=range(len(x)),
        draws=draws,
        votes=votes,
        repeats=repeats,
    )
    certificate = ConformalCertificate.from_counts(
        counts,
        y.cpu().numpy(),
        smoothing.samples(x, draws=draws, alpha=alpha),
        num_classes=smoothing.num_classes,
        coverage=coverage,
        eps=eps,
        conditional=conditional,
        votes=votes,
    )
    return ConformalClassifier(model, smoothing, certificate)
