"""Certificates for subpopulations and mixtures of groups after transport, from the counts of one sample."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rhobust.bounds import mixture_loss, subpopulation_loss
from rhobust.formatting import format_number, format_percent, format_setting
from rhobust.proofs.claim import TransportCertificate
from rhobust.proofs.shift import ShiftProof, VoteCounts
from rhobust.settings import sizes


@dataclass(frozen=True, slots=True)
class SubpopulationCertificate(TransportCertificate):
    """Certified accuracy against how much inputs are reweighted (gamma) and perturbed (eps).

    Guarantee: with probability at least 1 - alpha, for every gamma and eps at once: take any subpopulation with a share
    of at least 1 / gamma of the data's distribution P0, or any reweighting of P0 by factors up to gamma; let a share of
    at most `outliers` of it become anything, and move the rest by a transport distance of at most eps. The
    classifier is correct with at least the certified probability. Labels are unchanged.
    """

    gamma: tuple[float, ...]
    """Largest factors by which inputs may be reweighted."""
    eps: tuple[float, ...]
    """Sizes of the shift."""
    certified_accuracy: tuple[tuple[float, ...], ...]
    """Lower bound of the accuracy, one row per gamma and one column per eps."""
    outliers: float
    """Share of inputs that may be anything."""

    @classmethod
    def from_counts(
        cls, counts: VoteCounts, proof: ShiftProof, *, gamma: Sequence[float], eps: Sequence[float], outliers: float
    ) -> "SubpopulationCertificate":
        """The certificate from wrong votes at the test points; `proof` names the classifier, the noise and alpha."""
        gamma, eps = factors(gamma), sizes("eps", eps)
        worst = subpopulation_loss(
            counts.errors,
            proof.draws,
            np.square(eps),
            proof.sigma,
            proof.level(),
            gamma=gamma,
            outliers=outliers,
            cost=proof.claim.cost,
            votes=proof.claim.votes_per_answer,
            second=counts.second,
        )
        accuracy = tuple(tuple(row) for row in np.maximum(1 - worst, 0.0).tolist())
        return cls(gamma, eps, accuracy, outliers, **proof.common())

    def statement(self, gamma: float, eps: float) -> str:
        """The guarantee at one gamma and eps, in words, rounded down."""
        if gamma not in self.gamma or eps not in self.eps:
            raise ValueError(f"gamma and eps must be those of the certificate, got {gamma} and {eps}")
        return self.in_words(self.certified_accuracy[self.gamma.index(gamma)][self.eps.index(eps)], gamma, eps)

    def in_words(self, accuracy: float, gamma: float, eps: float) -> str:
        """The sentence of an accuracy at one gamma and eps."""
        share = format_percent(1 / gamma, "up")
        of = f"any subpopulation that is at least {share}% of the data's" if gamma > 1 else "the data's"
        if self.outliers:
            of += f", of which at most {format_percent(self.outliers, 'down')}% are replaced by anything"
        return self._right(of, accuracy, eps)


@dataclass(frozen=True, slots=True)
class GroupCertificate(TransportCertificate):
    """Certified accuracy of every group, and of every mixture of groups with shares near the data's.

    Guarantee: with probability at least 1 - alpha, for all groups, eps and `tv` at once: the classifier is
    correct with at least the certified probability under every distribution within transport distance eps of the
    group's; and of a mixture of the groups whose shares differ from the data's by at most `tv` in total variation.
    """

    groups: tuple[str, ...]
    """Names of the groups: classes, or what the test points were named."""
    sizes: tuple[int, ...]
    """Test points of each group."""
    tv: tuple[float, ...]
    """By how much the groups' shares may differ from the data's, in total variation; 1 for any mixture."""
    eps: tuple[float, ...]
    """Sizes of the shift."""
    group_accuracy: tuple[tuple[float, ...], ...]
    """Lower bound of the accuracy, one row per group and one column per eps."""
    certified_accuracy: tuple[tuple[float, ...], ...]
    """Lower bound for mixtures, one row per `tv` and one column per eps."""

    @classmethod
    def from_counts(
        cls,
        errors: Mapping[str, np.ndarray],
        proof: ShiftProof,
        *,
        tv: Sequence[float],
        eps: Sequence[float],
        num_groups: int | None = None,
    ) -> "GroupCertificate":
        """The certificate from wrong votes at the points of each group; `proof` as in `SubpopulationCertificate`.

        `num_groups` counts the groups that were named beforehand, with or without a test point; default: those given.
        """
        eps, tv = sizes("eps", eps), sizes("tv", tv)
        if max(tv) > 1:
            raise ValueError(f"tv must be in [0, 1], got {max(tv)}")
        claim, counts = proof.claim, [np.asarray(one) for one in errors.values()]
        found = mixture_loss(
            counts,
            proof.draws,
            np.square(eps),
            proof.sigma,
            proof.level(),
            tv=tv,
            cost=claim.cost,
            votes=claim.votes_per_answer,
            num_groups=num_groups,
        )
        groups, mixtures = (
            tuple(tuple(row) for row in np.maximum(1 - worst, 0.0).tolist()) for worst in (found.groups, found.mixtures)
        )
        return cls(tuple(errors), tuple(map(len, counts)), tv, eps, groups, mixtures, **proof.common())

    def statement(self, tv: float, eps: float) -> str:
        """The guarantee for mixtures at one `tv` and eps, in words, rounded down."""
        if tv not in self.tv or eps not in self.eps:
            raise ValueError(f"tv and eps must be those of the certificate, got {tv} and {eps}")
        return self.in_words(self.certified_accuracy[self.tv.index(tv)][self.eps.index(eps)], tv, eps)

    def in_words(self, accuracy: float, tv: float, eps: float) -> str:
        """The sentence of an accuracy for mixtures at one `tv` and eps."""
        kept = f"whose shares differ from the data's by at most {format_number(tv, 3, 'down')} in total variation"
        of = f"a mixture of the {len(self.groups)} groups {kept if tv < 1 else 'in any shares'}"
        return self._right(of, accuracy, eps)

    def group_in_words(self, accuracy: float, group: str, eps: float) -> str:
        """The sentence of an accuracy for one group at one eps."""
        return self._right(f"that of the group {group}", accuracy, eps)


def factors(gamma: Sequence[float]) -> tuple[float, ...]:
    """Factors of reweighting as floats; raises unless they are increasing numbers from 1 on."""
    found = sizes("gamma", gamma)
    if min(found) < 1 or any(later <= earlier for earlier, later in itertools.pairwise(found)):
        raise ValueError(f"gamma must be increasing numbers >= 1, got {' '.join(map(format_setting, found))}")
    return found
