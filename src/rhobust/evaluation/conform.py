"""Calibrate prediction sets whose coverage holds under every distribution shift up to eps."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from rhobust.certificates import Score, noise_kind, sample_sets
from rhobust.evaluation.base import NoisyEvaluation
from rhobust.evaluation.target import Target
from rhobust.measurements.conformal import conform_summary
from rhobust.progress import ProgressCallback
from rhobust.proofs.conformal import SCORES
from rhobust.records import Row
from rhobust.settings import check_at_least, check_level, sizes


@dataclass(frozen=True, kw_only=True)
class Conform(NoisyEvaluation):
    """Calibrate prediction sets that hold the label with a given probability under every distribution shift up to eps.

    Guarantee: the statement of the summary is false with probability at most alpha over calibration points and noise
    (theory page, section 15).
    """

    kind: ClassVar[str] = "conform"

    coverage: float = 0.95
    """Smallest probability that a set holds the label."""
    eps: float = 0.1
    """Size of the shift, a W2 distance; 0 for none."""
    score: Score | None = None
    """probability: 1 - the class's probability; adaptive: the probability of all likelier classes; regularised: the
    same plus a penalty on the rank. Default: the one with the smallest sets, at shares of alpha (0.9, 0.05, 0.05)."""
    conditional: bool = False
    """Hold the coverage in every class, each with a threshold of its own and a share of alpha."""
    votes: int = 1
    """Noisy inputs per set; a class is in it if it is in the sets of more than half of them."""
    draws: int = 20
    """Noise samples per calibration point; more are needed as eps / sigma grows."""
    alpha: float = 1e-3
    """Probability that the statement is false."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes("eps", [self.eps])
        check_at_least(1, self, "draws", "votes")
        check_level(self.alpha)
        check_level(self.coverage, "coverage")
        if self.votes > self.draws:
            raise ValueError(f"votes must be <= draws ({self.draws}), got {self.votes}")

    def population(self, target: Target) -> bool:
        return True

    def resolve(self, target: Target) -> Self:
        target.smoothing_sigma()
        return super().resolve(target)

    def derived(self, target: Target) -> Row:
        return {
            "scores": [self.score] if self.score else list(SCORES),
            "num_classes": target.data.num_classes,
            "noise": noise_kind(target.data.images),
        }

    def rows(self, target: Target, examples: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
        examples, data = list(examples), target.data
        images, labels = data.images[examples].to(target.device), data.labels[examples]
        smoothing = self.smoothing(target)
        found = sample_sets(
            target.model,
            images,
            labels.to(target.device),
            smoothing,
            scores=(self.score,) if self.score else SCORES,
            indices=examples,
            draws=self.draws,
            votes=self.votes,
            repeats=self.check_network(target),
        )
        for place, (index, label) in enumerate(zip(examples, labels.tolist(), strict=True)):
            # The order of the noise samples does not matter; sorted, a row compresses better.
            last = {score: sorted(one.last[place].tolist()) for score, one in found.items()}
            classes = {score: one.classes[place].tolist() for score, one in found.items()}
            yield {"index": index, "label": label, "draws": self.draws, "last": last, "classes": classes}

    def summarise(self, target: Target, rows: list[Row]) -> Row:
        return self.proved(conform_summary, target, rows)
