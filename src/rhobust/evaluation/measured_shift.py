"""Measure how far a change moves images, and certify a network's accuracy after it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from rhobust.certificates import ReferenceVotes, Repeats, ShiftClaim, noise_kind, sample_votes
from rhobust.certificates.shift import PURPOSE
from rhobust.data import Dataset, Pairs, pair_distances
from rhobust.evaluation.base import Evaluation, NoisyEvaluation
from rhobust.evaluation.target import Target, Untargeted
from rhobust.measurements.proved import change_summary, measured_summary
from rhobust.progress import ProgressCallback
from rhobust.proofs.claim import Classifier
from rhobust.records import Row
from rhobust.settings import check_at_least, check_level


@dataclass(frozen=True, kw_only=True)
class MeasureShift(NoisyEvaluation):
    """Certify the accuracy after a measured change, and measure the accuracy after it (`Target.with_pairs`).

    Two floors: `recentred` is about the changed data and every distribution within eps of them, from how often
    the network votes otherwise after the change; no label of a changed image is needed. `certificate` is about this
    change and every other one that perturbs images no further, from their distances.

    The test points are the images before the change where they all have labels. Otherwise they are the target's test
    data. A row holds pair number `index` and test point number `index`, as far as there are such.

    Guarantee: each of the statements in the summary (shift, certificate, recentred) is false with probability at
    most alpha.
    """

    kind: ClassVar[str] = "measure-shift"

    eps: tuple[float, ...] = (0.0, 0.05, 0.1, 0.25)
    """Increasing sizes of a further shift from the changed data; 0 for the changed data themselves."""
    classifier: Classifier = "randomised"
    """randomised: one noisy vote; k-vote: the majority of a few fresh votes, a tie is an error; majority: the class
    most probable under noise."""
    votes: int | None = None
    """Votes of the k-vote classifier; default: 3."""
    draws: int = 20
    """Noise samples per image; more are needed as eps / sigma grows."""
    label_draws: int = 20
    """Further noise samples per image before the change: their majority is the pseudo-label."""
    alpha: float = 1e-3
    """Probability that the statement is false."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._increasing("eps")
        check_at_least(1, self, "draws", "label_draws")
        check_level(self.alpha)
        ShiftClaim(self.classifier, self.votes)

    def population(self, target: Target) -> bool:
        return True

    def resolve(self, target: Target) -> Self:
        target.smoothing_sigma()
        pairs = _pairs(target)
        shape = tuple(pairs.before.shape[1:])
        if shape != target.data.shape:
            raise ValueError(
                f"images of {pairs.name} must have the shape of {target.data.name}, {target.data.shape} "
                f"(channels, height, width), got {shape}"
            )
        return super().resolve(target)

    def points(self, target: Target) -> tuple[Dataset, Dataset | None]:
        """The test points, and the same images after the change where they have labels."""
        pairs = _pairs(target)
        labels = pairs.places(target.data.classes)
        if labels is None or (labels < 0).any():
            return target.data, None
        before, after = (
            Dataset(pairs.name, "test", images, labels, target.data.classes) for images in (pairs.before, pairs.after)
        )
        return before, after

    def examples(self, target: Target) -> Sequence[int]:
        return range(0, max(len(_pairs(target)), len(self.points(target)[0])), self.stride or 1)[: self.limit]

    def test_images(self, target: Target) -> Tensor:
        points, after = self.points(target)
        examples, pairs = self.examples(target), _pairs(target)
        found = points.images[[index for index in examples if index < len(points)]]
        if after is not None:
            return found
        # The votes at the pairs count too: of images that were trained on, votes change less than of others.
        return torch.cat([found, pairs.before[[index for index in examples if index < len(pairs)]]])

    def derived(self, target: Target) -> Row:
        points, after = self.points(target)
        return {
            **_identity(_pairs(target)),
            "points": "test data" if after is None else "before",
            "loss": "0-1",
            "bound": 1.0,
            "noise": noise_kind(points.images),
        }

    def rows(self, target: Target, examples: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
        pairs, examples = _pairs(target), list(examples)
        points, after = self.points(target)
        repeats = self.check_network(target)
        rows: dict[int, Row] = {index: {"index": index, "draws": self.draws} for index in examples}
        paired = [index for index in examples if index < len(pairs)]
        known = None
        if paired:
            distances = pair_distances(pairs.before[paired], pairs.after[paired])
            known = self._reference(target, pairs.before, paired, repeats)
            changed = self._votes(target, pairs.after, paired, repeats)
            labels = pairs.places(target.data.classes)
            columns = zip(paired, distances.tolist(), *map(np.ndarray.tolist, known.against(changed)), strict=True)
            for place, (index, distance, disagreements, differing) in enumerate(columns):
                rows[index] |= {"distance": distance, "disagreements": disagreements, "differing": differing}
                if labels is not None and (label := int(labels[index])) >= 0:
                    rows[index]["errors_after"] = int((changed[place] != label).sum())
        if asked := [index for index in examples if index < len(points)]:
            if after is None or known is None:
                known = self._reference(target, points.images, asked, repeats)
            for place, index in enumerate(asked):
                label = int(points.labels[index])
                errors = int((known.votes[place] != label).sum())
                wrong = int(known.pseudo_labels[place] != label)
                rows[index] |= {"label": label, "errors": errors, "mislabelled": wrong}
        yield from rows.values()

    def _reference(self, target: Target, images: Tensor, examples: list[int], repeats: Repeats) -> ReferenceVotes:
        here = images[examples].to(target.device)
        return ReferenceVotes.sample(
            target.model,
            here,
            self.smoothing(target),
            indices=examples,
            draws=self.draws,
            label_draws=self.label_draws,
            repeats=repeats,
        )

    def _votes(self, target: Target, images: Tensor, examples: list[int], repeats: Repeats) -> np.ndarray:
        here = images[examples].to(target.device)
        return sample_votes(
            target.model,
            here,
            self.smoothing(target),
            indices=examples,
            draws=self.draws,
            purpose=PURPOSE,
            repeats=repeats,
        )

    def summarise(self, target: Target, rows: list[Row]) -> Row:
        return self.proved(measured_summary, target, rows)


@dataclass(frozen=True, kw_only=True)
class MeasureDistance(Evaluation):
    """Measure how far a change moves images, without a network: one row per pair (`Untargeted`, with its pairs)."""

    kind: ClassVar[str] = "measure-shift"

    alpha: float = 1e-3
    """Probability that a bound is false."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_level(self.alpha)

    def resolve(self, target: Any) -> Self:
        return self

    def examples(self, target: Any) -> Sequence[int]:
        return range(0, len(_pairs(target)), self.stride or 1)[: self.limit]

    def derived(self, target: Any) -> Row:
        return _identity(_pairs(target))

    def rows(self, target: Any, examples: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
        pairs, examples = _pairs(target), list(examples)
        found = pair_distances(pairs.before[examples], pairs.after[examples])
        yield from ({"index": index, "distance": at} for index, at in zip(examples, found.tolist(), strict=True))

    def summarise(self, target: Any, rows: list[Row]) -> Row:
        return measured_summary(rows, self.settings(target), _pairs(target).before[0].numel())


def distance_summary(distances: np.ndarray, pairs: Pairs, alpha: float = 1e-3) -> Row:
    """How far a change moves images: the measured distances, their bounds and the statement in words."""
    return change_summary(distances, pairs.before[0].numel(), alpha)


def _pairs(target: Target | Untargeted) -> Pairs:
    if target.pairs is None:
        raise ValueError("pairs of images before and after the change must be given, got none")
    return target.pairs


def _identity(pairs: Pairs) -> Row:
    return {"pairs": pairs.name, "pairs_fingerprint": pairs.fingerprint()}
