"""Certificates for every distribution within a Wasserstein radius, from counts; and baselines from the same counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from rhobust.bounds import (
    Cost,
    SecondStage,
    kumar_loss,
    population_loss,
    population_loss_intervals,
    population_loss_uppers,
    sample_loss,
    worst_case_loss,
)
from rhobust.formatting import format_confidence, format_distance, format_percent, format_setting
from rhobust.proofs.claim import (
    DISTANCES,
    Classifier,
    NoiseCertificate,
    NoiseSamples,
    ShiftClaim,
    TransportCertificate,
    scope_of_validity,
)
from rhobust.settings import sizes

INTERVAL_ALPHA = 1e-3
"""Level of each point's interval for the estimator "intervals"; it is added to the bound, so it is fixed beforehand."""


@dataclass(frozen=True, slots=True)
class VoteCounts:
    """What the noise samples at each point gave."""

    errors: np.ndarray
    """Wrong votes per point."""
    rounded_losses: np.ndarray | None = None
    """Samples per point whose soft loss was rounded to 1, each with probability loss / bound (randomized rounding)."""
    losses: np.ndarray | None = None
    """Mean soft loss per point."""
    uppers: np.ndarray | None = None
    """Upper confidence bound of soft loss / bound, per point."""
    second: SecondStage | None = None
    """Further wrong votes, at some of the points without one among the first."""


@dataclass(frozen=True, slots=True)
class ShiftCertificate(NoiseCertificate):
    """Certified accuracy, or loss, against the size of a shift.

    Guarantee: with probability at least 1 - alpha, for every eps at once,
    sup { E_P loss : W(P, P0) <= eps } <= certified_loss, where P0 is the distribution of the test points, the ground
    cost is the L2 distance on inputs and labels are fixed. The claim says which classifier, loss and W are meant.
    """

    claim: ShiftClaim
    """Classifier, loss, distance and estimator."""
    eps: tuple[float, ...]
    """Sizes of the shift."""
    certified_loss: tuple[float, ...]
    """Upper bound of the expected loss at each eps; for the 0-1 loss, of the error."""
    accuracy_under_noise: float
    """Measured share of correct votes: an estimate, not a bound."""
    loss_under_noise: float
    """Measured mean loss of one noisy prediction: an estimate, not a bound."""

    @property
    def certified_accuracy(self) -> tuple[float, ...]:
        """Lower bound of the accuracy at each eps; only for the 0-1 loss."""
        if self.claim.loss != "0-1":
            raise ValueError(f"certified_accuracy must come from the 0-1 loss, got {self.claim.loss}")
        return tuple(max(0.0, 1 - loss) for loss in self.certified_loss)

    def statement(self, eps: float) -> str:
        """The guarantee at one eps, in words, rounded to the safe side."""
        if eps not in self.eps:
            raise ValueError(f"eps must be one of {', '.join(map(format_setting, self.eps))}, got {eps}")
        value = (self.certified_accuracy if self.claim.loss == "0-1" else self.certified_loss)[self.eps.index(eps)]
        return self.claim.in_words(
            value, eps=eps, alpha=self.alpha, sigma=self.sigma, points=self.points, noise=self.noise
        )


@dataclass(frozen=True, kw_only=True)
class ShiftProof(NoiseSamples):
    """What the counts at all test points prove."""

    claim: ShiftClaim
    """What is claimed; its bound must be resolved."""
    points: int
    """Test points in all."""
    second_draws: int = 0
    """Further noise samples at a point of the second stage."""

    def level(self, rounds: int = 1) -> float:
        """Alpha after the sampler's correction for this many rounds of samples at all points."""
        return self.corrected(rounds * (self.draws + self.second_draws) * self.points)

    def common(self) -> dict[str, Any]:
        """What certificates from the majorants of error counts have in common; refuses other claims."""
        claim = self.claim
        if claim.loss != "0-1" or claim.estimator != "majorant":
            raise ValueError(
                "gamma, outliers, groups, label_shift and agree must come with the 0-1 loss and the estimator majorant,"
                f" got {claim.loss} and {claim.estimator}"
            )
        return {"votes": claim.votes_per_answer, "cost": claim.cost, **self.described(self.points)}

    def certify(self, counts: VoteCounts, eps: Sequence[float]) -> ShiftCertificate:
        """The certificate from the counts at all points, for these sizes of the shift."""
        eps = sizes("eps", eps)
        if len(counts.errors) != self.points:
            raise ValueError(f"counts must be those of all {self.points} points, got {len(counts.errors)}")
        claim, draws = self.claim, self.draws
        rho = np.square(np.asarray(eps, dtype=float))
        soft = claim.loss != "0-1"
        mean = counts.losses.mean() if soft and counts.losses is not None else counts.errors.mean() / draws
        worst = (_soft_loss if soft else _error)(counts, claim, draws, rho, self.sigma, self.level())
        return ShiftCertificate(
            claim=claim,
            eps=eps,
            certified_loss=tuple(worst.tolist()),
            accuracy_under_noise=float(1 - counts.errors.mean() / draws),
            loss_under_noise=float(mean),
            **self.described(self.points),
        )


def _error(
    counts: VoteCounts, claim: ShiftClaim, draws: int, rho: np.ndarray, sigma: float, level: float
) -> np.ndarray:
    bounds = {"majorant": population_loss, "intervals": population_loss_intervals, "sample": sample_loss}
    options: dict[str, Any] = {"cost": claim.cost, "votes": claim.votes_per_answer}
    if counts.second is not None:
        options["second"] = counts.second
    return np.atleast_1d(bounds[claim.estimator](counts.errors, draws, rho, sigma, level, **options))


def _soft_loss(
    counts: VoteCounts, claim: ShiftClaim, draws: int, rho: np.ndarray, sigma: float, level: float
) -> np.ndarray:
    if claim.estimator == "majorant":
        assert counts.rounded_losses is not None
        worst = population_loss(counts.rounded_losses, draws, rho, sigma, level, cost=claim.cost)
    else:
        assert counts.uppers is not None
        if claim.estimator == "intervals":
            worst = population_loss_uppers(
                counts.uppers, rho, sigma, level, cost=claim.cost, interval_alpha=INTERVAL_ALPHA
            )
        else:
            worst = worst_case_loss(counts.uppers, rho, sigma, cost=claim.cost)
    return claim.loss_bound * np.atleast_1d(worst)


@dataclass(frozen=True, slots=True)
class AbstainingCertificate(TransportCertificate):
    """How often a classifier answers wrongly that takes a few noisy votes and answers only where enough agree.

    Guarantee: with probability at least 1 - alpha, for every eps at once: under every distribution within transport
    distance eps of the data's, it gives a wrong answer with at most the stated probability. A wrong answer needs
    `agree` wrong votes, and P(Bin(votes, q) >= agree) bounds that where one vote errs with probability q.
    """

    eps: tuple[float, ...]
    """Sizes of the shift."""
    wrong_answers: tuple[float, ...]
    """Upper bound of the share of inputs with a wrong answer, at each eps."""
    agree: int
    """Votes that must agree."""
    right_answers: float | None
    """Share of inputs with a right answer, without a shift: an unbiased estimate, no bound; None with too few draws."""

    @classmethod
    def from_counts(
        cls, counts: VoteCounts, proof: ShiftProof, *, agree: int, eps: Sequence[float]
    ) -> "AbstainingCertificate":
        """The certificate from wrong votes at the test points; `proof` names the votes, the noise and alpha."""
        eps, common, votes = sizes("eps", eps), proof.common(), proof.claim.votes_per_answer
        if votes is None or not votes / 2 < agree <= votes:
            raise ValueError(f"agree must be more than half of the votes of the k-vote classifier, got {agree}")
        errors = counts.errors
        worst = population_loss(
            errors,
            proof.draws,
            np.square(eps),
            proof.sigma,
            proof.level(),
            cost=proof.claim.cost,
            votes=votes,
            agree=agree,
            second=counts.second,
        )
        right = None
        if votes <= proof.draws:
            # Of the votes taken, a random choice of so many holds enough right ones.
            right = float(stats.hypergeom.sf(agree - 1, proof.draws, proof.draws - errors, votes).mean())
        return cls(eps, tuple(np.atleast_1d(worst).tolist()), agree, right, **common)

    def in_words(self, wrong: float, eps: float) -> str:
        """The sentence of a share of wrong answers at one eps, rounded up."""
        return (
            f"With probability {format_confidence(self.alpha)} over test points and noise, for every distribution"
            f" within {DISTANCES[self.cost]} distance {format_distance(eps)} of the data's, the classifier that takes"
            f" {self.votes} noisy votes (sigma {format_setting(self.sigma)}) and answers only if {self.agree} agree"
            f" answers wrongly at most {format_percent(wrong, 'up')}% of the time.{scope_of_validity(self.noise)}"
        )


@dataclass(frozen=True, slots=True)
class BaselineCertificate:
    """A baseline from the same votes; it holds with probability 1 - alpha on its own, not jointly with the others."""

    name: str
    """"kumar": Kumar et al., 2022; "ours": this package's bound for another distance; "cohen": the share of inputs
    whose radius (Cohen et al., 2019) exceeds eps, for the population."""
    classifier: Classifier
    cost: Cost
    certified_accuracy: tuple[float, ...]
    """Lower bound of the accuracy at each eps."""


def baseline_certificates(
    errors: np.ndarray, *, draws: int, eps: Sequence[float], sigma: float, level: float
) -> tuple[BaselineCertificate, ...]:
    """Other bounds from the same wrong votes, all of them about the population.

    A distribution within W-infinity distance eps perturbs every input by at most eps, so the accuracy of the majority
    vote under it is at least the share of inputs with a certified radius above eps: Cohen's certified accuracy.

    Args:
        errors: Wrong votes of each point.
        draws: Votes per point.
        eps: Sizes of the shift.
        sigma: Standard deviation of the smoothing noise.
        level: Probability that one of them is false, after the sampler's correction; each on its own.
    """
    rho = np.square(np.asarray(eps, dtype=float))

    def certificate(name: str, classifier: Classifier, cost: Cost, loss: object) -> BaselineCertificate:
        accuracy = np.maximum(0.0, 1 - np.atleast_1d(np.asarray(loss, dtype=float)))
        return BaselineCertificate(name, classifier, cost, tuple(accuracy.tolist()))

    def ours(cost: Cost, votes: int | None = 1) -> object:
        return population_loss(errors, draws, rho, sigma, level, cost=cost, votes=votes)

    return (
        certificate("ours", "randomised", "w1", ours("w1")),
        certificate("kumar", "randomised", "w1", kumar_loss(errors, draws, rho, sigma, level)),
        certificate("ours", "randomised", "winf", ours("winf")),
        certificate("cohen", "majority", "winf", ours("winf", None)),
    )
