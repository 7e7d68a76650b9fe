"""Certify the accuracy, or the loss, for every distribution within a transport distance of the data's."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from tyro.conf import arg

from rhobust.certificates import (
    Dtype,
    Repeats,
    ShiftClaim,
    ShiftProcedure,
    Smoothing,
    VoteCounter,
    check_batch_independence,
    noise_kind,
    vote_dtype,
)
from rhobust.certificates.independence import PROBES
from rhobust.evaluation.attack import check_increasing
from rhobust.evaluation.base import Evaluation
from rhobust.evaluation.target import Target
from rhobust.files import read_file
from rhobust.measurements.proved import COLUMNS, shift_summary
from rhobust.progress import ProgressCallback
from rhobust.proofs.subpopulation import factors
from rhobust.records import Row
from rhobust.settings import AUTO, check_at_least, check_level

if TYPE_CHECKING:
    from rhobust.evaluation.worst_case import WorstCaseCurves


@dataclass(frozen=True, kw_only=True)
class CertifyShift(Evaluation):
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
    dtype: Dtype | None = field(default=None, metadata=AUTO)
    """Arithmetic of the network, part of what is certified; default: bfloat16 on a GPU, float32 on a CPU."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "eps", check_increasing("eps", self.eps))
        check_at_least(1, self, "draws")
        check_level(self.alpha)
        if self.baselines and self.claim.loss != "0-1":
            raise ValueError("baselines must be left out for a loss that is not 0-1: they certify accuracy")
        if self.gamma is not None:
            object.__setattr__(self, "gamma", factors(self.gamma))
        if self.label_shift is not None:
            object.__setattr__(self, "label_shift", check_increasing("label_shift", self.label_shift))
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
        evaluation = replace(
            super().resolve(target),
            claim=self.claim.resolve(target.data.num_classes),
            dtype=self.dtype or vote_dtype(target.device),
        )
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
        return shift_procedure(self, self.claim, target)

    def derived(self, target: Target) -> Row:
        return {
            "votes": self.claim.votes_per_answer,
            "bound": self.claim.loss_bound,
            "noise": self.procedure(target).smoothing.noise,
            "sigma": target.smoothing_sigma(),
            "dtype": self.dtype,
            **({} if self.groups is None else {"groups_hash": self._groups_hash(target)}),
        }

    def _groups_hash(self, target: Target) -> str:
        return hashlib.sha256("\n".join(self.group_names(target) or ()).encode()).hexdigest()[:16]

    @classmethod
    def from_settings(cls, settings: Row) -> Self:
        votes = settings["votes"] if settings["classifier"] == "k-vote" else None
        bound = None if settings["loss"] == "0-1" else settings["bound"]
        return super().from_settings({**settings, "votes": votes, "bound": bound})

    def rows(self, target: Target, examples: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
        procedure, examples = self.procedure(target), list(examples)
        repeats = check_target(target, procedure.smoothing)
        labels = target.data.labels[examples]
        images = target.data.images[examples].to(target.device)
        counts = procedure.sample(target.model, images, labels.to(target.device), indices=examples, repeats=repeats)
        found = {name: getattr(counts, one) for one, name in COLUMNS.items() if getattr(counts, one) is not None}
        groups = self.group_names(target)
        for position, (index, label) in enumerate(zip(examples, labels, strict=True)):
            columns = {name: column[position].item() for name, column in found.items()}
            if groups is not None:
                columns["group"] = groups[index]
            yield {"index": index, "label": int(label), "draws": self.draws, **columns}

    def summarise(self, target: Target, rows: list[Row]) -> Row:
        found = shift_summary(rows, self.settings(target), math.prod(target.data.shape))
        return {**found, "warnings": target.sigma_warnings()}


def shift_procedure(evaluation: "CertifyShift | WorstCaseCurves", claim: ShiftClaim, target: Target) -> ShiftProcedure:
    """How a target's test data is sampled for a shift certificate."""
    data = target.data
    smoothing = Smoothing.on(
        target.device,
        target.smoothing_sigma(),
        data.num_classes,
        noise=noise_kind(data.images),
        seed=evaluation.seed,
        dtype=evaluation.dtype,
    )
    return ShiftProcedure(
        claim,
        smoothing,
        points=len(evaluation.examples(target)),
        dimension=math.prod(data.shape),
        draws=evaluation.draws,
        alpha=evaluation.alpha,
    )


def check_target(target: Target, smoothing: Smoothing) -> Repeats:
    """Refuse a batch-dependent network; each network is checked once. Returns what its votes are compared with."""

    def check() -> Repeats:
        repeats = Repeats()
        images = target.data.images[:PROBES].to(target.device)
        check_batch_independence(VoteCounter(target.model, images, smoothing, repeats))
        return repeats

    return target.once(("batch independence", smoothing), check)
