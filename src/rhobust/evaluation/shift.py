"""Accuracy under distribution shift: certified for every distribution within a transport distance, and attacked.

The attack moves test images within one transport budget, most where it breaks most.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

import numpy as np
from torch import Tensor
from tyro.conf import arg

from rhobust.attacks import EOT, AnyAttack
from rhobust.certificates import ShiftClaim, ShiftProcedure, noise_kind
from rhobust.certificates.shift import SECOND_SHARE, count_errors
from rhobust.data import to_unit
from rhobust.evaluation.attack import check_networks
from rhobust.evaluation.base import NoisyEvaluation
from rhobust.evaluation.sweep import BLOCKS, norm_of
from rhobust.evaluation.target import Target
from rhobust.files import read_file
from rhobust.measurements.proved import COLUMNS, shift_summary
from rhobust.measurements.shift_attack import shift_attack_summary
from rhobust.noise import LEVELS, ExampleNoise
from rhobust.progress import ProgressCallback
from rhobust.proofs.claim import check_claim
from rhobust.proofs.subpopulation import factors
from rhobust.records import Row
from rhobust.settings import AUTO, check_at_least, check_level

RADII = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
"""Default radii of the attack in units of sigma: far beyond eps, since few images take most of the budget."""


@dataclass(frozen=True, kw_only=True)
class CertifyShift(NoisyEvaluation):
    """Certify the accuracy, or the loss, under every distribution shift up to eps.

    Guarantee: with probability at least 1 - alpha over test points and noise, the whole curve of the summary holds at
    once (theory page, sections 4 to 7).
    """

    kind: ClassVar[str] = "certify-shift"

    claim: Annotated[ShiftClaim, arg(name="")] = ShiftClaim()
    """Classifier, loss, distance and estimator."""
    eps: tuple[float, ...] = (0.0, 0.05, 0.1, 0.25, 0.5)
    """Increasing sizes of the shift; the statement holds for all of them at once."""
    draws: int = 20
    """Noise samples per test point; more are needed as eps / sigma grows, and hundreds for the majority vote."""
    second_draws: int | None = None
    """Further noise samples at a random share of the test points, where the first ones gave no error: for eps beyond
    1.5 sigma, e.g. 100 with --draws 10, which takes no more samples than --draws 20; default: none."""
    second_share: float | None = None
    """That share; default: 0.1."""
    alpha: float = 1e-3
    """Probability that the statement is false."""
    gamma: tuple[float, ...] | None = None
    """Certify every subpopulation too: largest factors of reweighting, e.g. 1 2 5 10; 5 covers every subgroup with a
    share of 20% or more. The whole surface over gamma and eps costs no further alpha."""
    outliers: float | None = None
    """Share of inputs that may be replaced by anything; the others are perturbed within eps."""
    label_shift: tuple[float, ...] | None = None
    """Certify under changed shares of classes (or of --groups): by how much in total variation they may change, e.g.
    0.1 0.3; any mixture is always included."""
    groups: str | None = None
    """A text file with the name of each test image's group, one per line: certify every group on its own."""
    agree: int | None = None
    """Of the k-vote classifier: bound how often it answers wrongly if it answers only where so many votes agree."""
    baselines: bool = False
    """Certify with published bounds from the same samples too: W1 and W-infinity, Kumar et al., Cohen et al."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._increasing("eps")
        check_claim(self.claim)
        check_at_least(1, self, "draws")
        check_level(self.alpha)
        if self.baselines and self.claim.loss != "0-1":
            raise ValueError("baselines must be left out for a loss that is not 0-1: they certify accuracy")
        if self.second_draws is None and self.second_share is not None:
            raise ValueError(f"second_share must come with second_draws, got {self.second_share} alone")
        if self.second_draws is not None and self.second_share is None:
            object.__setattr__(self, "second_share", SECOND_SHARE)
        if self.gamma is not None:
            object.__setattr__(self, "gamma", factors(self.gamma))
        self._increasing("label_shift")
        for name, values in (("outliers", (self.outliers or 0.0,)), ("label_shift", self.label_shift or ())):
            if not all(0 <= value < 1 for value in values):
                raise ValueError(f"{name} must be in [0, 1), got {' '.join(map(str, values))}")
        if self.agree is not None:
            votes = self.claim.votes_per_answer if self.claim.classifier == "k-vote" else None
            if votes is None or not votes / 2 < self.agree <= votes:
                raise ValueError(f"agree must be more than half of a k-vote classifier's votes, got {self.agree}")
        if any((self.gamma, self.outliers, self.label_shift, self.groups, self.agree)):
            majorants = self.claim.loss == "0-1" and self.claim.estimator == "majorant"
            if not majorants:
                raise ValueError("gamma, outliers, label_shift, groups and agree must come with the loss 0-1, majorant")

    def population(self, target: Target) -> bool:
        return self.claim.estimator != "sample" or self.baselines

    def resolve(self, target: Target) -> Self:
        evaluation = replace(super().resolve(target), claim=self.claim.resolve(target.data.num_classes))
        evaluation.procedure(target)
        self.group_names(target)
        return evaluation

    def group_names(self, target: Target) -> list[str] | None:
        """The name of each test image's group; None without groups."""
        if self.groups is None:
            return None
        names = [line.strip() for line in read_file(Path(self.groups)).decode("utf-8", "replace").splitlines()]
        if len(names) != len(target.data) or not all(names):
            raise ValueError(
                f"groups must hold one name per line for each of the {len(target.data)} test images, got"
                f" {len(names)} lines{'' if all(names) else ', some of them empty'}"
            )
        return names

    def procedure(self, target: Target) -> ShiftProcedure:
        """How the test points are sampled, and what is certified from the counts."""
        return ShiftProcedure(
            self.claim,
            self.smoothing(target),
            points=len(self.examples(target)),
            dimension=target.data.dimension,
            draws=self.draws,
            alpha=self.alpha,
            second_draws=self.second_draws,
            second_share=SECOND_SHARE if self.second_share is None else self.second_share,
        )

    def derived(self, target: Target) -> Row:
        found = {
            "votes": self.claim.votes_per_answer,
            "bound": self.claim.loss_bound,
            "noise": self.procedure(target).smoothing.noise,
        }
        if (names := self.group_names(target)) is not None:
            # Those without an image among the examples count too.
            digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
            return {**found, "groups_hash": digest, "num_groups": len(set(names))}
        return {**found, "num_groups": target.data.num_classes} if self.label_shift else found

    @classmethod
    def from_settings(cls, settings: Row) -> Self:
        votes = settings["votes"] if settings["classifier"] == "k-vote" else None
        bound = None if settings["loss"] == "0-1" else settings["bound"]
        return super().from_settings({**settings, "votes": votes, "bound": bound})

    def rows(self, target: Target, examples: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
        procedure, examples = self.procedure(target), list(examples)
        repeats = self.check_network(target)
        labels = target.data.labels[examples]
        images = target.data.images[examples].to(target.device)
        counts = procedure.sample(target.model, images, labels.to(target.device), indices=examples, repeats=repeats)
        found = {name: getattr(counts, one) for one, name in COLUMNS.items() if getattr(counts, one) is not None}
        groups = self.group_names(target)
        for position, (index, label) in enumerate(zip(examples, labels, strict=True)):
            columns = {name: column[position].item() for name, column in found.items()}
            if counts.second is not None and np.asarray(counts.second.chosen)[position]:
                # None: it was chosen, and its first samples have an error, so that no further ones were taken.
                further = int(np.asarray(counts.second.errors)[position])
                columns["second"] = None if columns["errors"] else further
            if groups is not None:
                columns["group"] = groups[index]
            yield {"index": index, "label": int(label), "draws": self.draws, **columns}

    def summarise(self, target: Target, rows: list[Row]) -> Row:
        return self.proved(shift_summary, target, rows)


@dataclass(frozen=True, kw_only=True)
class AttackShift(NoisyEvaluation):
    """Attack the accuracy under distribution shift: the empirical ceiling over the certified floor of certify-shift.

    Every image is attacked at several radii; then one budget, a mean squared distance of eps^2, is spent over all
    images where it breaks most, and an image may split its mass. What is left is the accuracy under one distribution
    within W2 distance eps of the test images: no certificate about them can be above it. It is an estimate, and a
    stronger attack may leave less.
    """

    kind: ClassVar[str] = "attack-shift"

    attack: AnyAttack = EOT()
    """The attack at each radius and its hyper-parameters."""
    radii: tuple[float, ...] | None = field(default=None, metadata=AUTO)
    """Increasing L2 radii at which every image is attacked; default: 1, 2, 3, 4, 6, 8 and 12 sigma."""
    eps: tuple[float, ...] = (0.0, 0.05, 0.1, 0.25, 0.5)
    """Increasing sizes of the shift, W2 distances."""
    draws: int = 50
    """Noise samples that choose among the points found, and as many that count the errors there."""
    votes: int = 1
    """Noisy votes per answer; a tie is an error."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._increasing("eps")
        self._increasing("radii")
        if self.radii is not None and self.radii[0] <= 0:
            raise ValueError(f"radii must be > 0: the image itself is always included, got {self.radii[0]:g}")
        check_at_least(1, self, "draws", "votes")
        if self.votes > self.draws:
            raise ValueError(f"votes must be <= draws ({self.draws}), got {self.votes}")
        if norm_of(self.attack) != "l2":
            raise ValueError(f"attack must be an L2 attack, got {norm_of(self.attack)}")

    def resolve(self, target: Target) -> Self:
        sigma = target.smoothing_sigma()
        check_networks(target, target)
        radii = self.radii or tuple(sigma * step for step in RADII)
        return replace(super().resolve(target), radii=radii)

    def derived(self, target: Target) -> Row:
        return {"noise": noise_kind(target.data.images)}

    def block(self, target: Target) -> int:
        return BLOCKS[target.device.type]

    def rows(self, target: Target, examples: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
        examples, data, device = list(examples), target.data, target.device
        images, labels = data.images[examples].to(device), data.labels[examples].to(device)
        smoothing = self.smoothing(target)
        repeats, x = self.check_network(target), to_unit(images)
        columns: list[tuple[float, list[float], list[int], list[int]]] = []
        for radius in (0.0, *(self.radii or ())):
            point = images
            if radius:
                noise = ExampleNoise(self.seed, f"attack-shift:{radius!r}", examples)
                found = self.attack(target.model, x, labels, eps=radius, sigma=smoothing.sigma, rng=noise)
                point = _like(found, images)
            counted = [
                count_errors(
                    target.model,
                    point,
                    labels,
                    smoothing,
                    indices=examples,
                    draws=self.draws,
                    purpose=f"attack-shift:{part}:{radius!r}",
                    repeats=repeats,
                ).tolist()
                for part in ("choose", "count")
            ]
            squared = (to_unit(point).double() - x.double()).flatten(1).square().sum(1).tolist()
            columns.append((radius, squared, *counted))
        for i, (index, label) in enumerate(zip(examples, labels.tolist(), strict=True)):
            places = [
                {"radius": radius, "squared_distance": squared[i], "errors": first[i], "fresh_errors": second[i]}
                for radius, squared, first, second in columns
            ]
            yield {"index": index, "label": label, "draws": self.draws, "places": places}

    def summarise(self, target: Target, rows: list[Row]) -> Row:
        found = shift_attack_summary(rows, self.settings(target))
        return {
            **found,
            "dimension": target.data.dimension,
            "warnings": found["warnings"] + target.sigma_warnings(),
        }


def _like(found: Tensor, images: Tensor) -> Tensor:
    """Adversarial examples on the grid of the images, where these have one: they take the same noise as images do."""
    return found if images.is_floating_point() else (found * LEVELS).round().clamp(0, LEVELS).to(images.dtype)
