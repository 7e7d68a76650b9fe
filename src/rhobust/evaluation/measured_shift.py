"""Measure how far a change moves images, and certify a network's accuracy after it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from rhobust.certificates import (
    Dtype,
    Repeats,
    Smoothing,
    count_errors,
    noise_kind,
    vote_dtype,
)
from rhobust.data import Dataset, Pairs, pair_distances
from rhobust.evaluation.base import Evaluation
from rhobust.evaluation.shift import check_target
from rhobust.evaluation.target import Target, Untargeted
from rhobust.measurements.proved import change_summary, measured_summary
from rhobust.progress import ProgressCallback
from rhobust.records import Row
from rhobust.settings import AUTO, check_at_least, check_level


@dataclass(frozen=True, kw_only=True)
class MeasureShift(Evaluation):
    """Certify the accuracy after a measured change, and measure the accuracy after it (`Target.with_pairs`).

    The test points are the images before the change where they have labels; the wrong votes after it are then counted
    too, under the same noise. Otherwise they are the target's test data, and the pairs give the distances only. A row
    holds pair number `index` and test point number `index`, as far as there are such.

    Guarantee: each of the two statements in the summary is false with probability at most alpha.
    """

    kind: ClassVar[str] = "measure-shift"

    draws: int = 20
    """Noise samples per image; more are needed as eps / sigma grows."""
    alpha: float = 1e-3
    """Probability that the statement is false."""
    dtype: Dtype | None = field(default=None, metadata=AUTO)
    """Arithmetic of the network, part of what is certified; default: bfloat16 on a GPU, float32 on a CPU."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, self, "draws")
        check_level(self.alpha)

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
        return replace(super().resolve(target), dtype=self.dtype or vote_dtype(target.device))

    def points(self, target: Target) -> tuple[Dataset, Dataset | None]:
        """The test points, and the same images after the change where they have labels."""
        pairs = _pairs(target)
        labels = pairs.places(target.data.classes)
        if labels is None:
            return target.data, None
        before, after = (
            Dataset(pairs.name, "test", images, labels, target.data.classes) for images in (pairs.before, pairs.after)
        )
        return before, after

    def examples(self, target: Target) -> Sequence[int]:
        return range(0, max(len(_pairs(target)), len(self.points(target)[0])), self.stride or 1)[: self.limit]

    def test_images(self, target: Target) -> Tensor:
        points, _ = self.points(target)
        return points.images[[index for index in self.examples(target) if index < len(points)]]

    def derived(self, target: Target) -> Row:
        points, after = self.points(target)
        return {
            **_identity(_pairs(target)),
            "points": "test data" if after is None else "before",
            "classifier": "randomised",
            "loss": "0-1",
            "bound": 1.0,
            "noise": noise_kind(points.images),
            "sigma": target.smoothing_sigma(),
            "dtype": self.dtype,
        }

    def rows(self, target: Target, examples: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
        pairs, examples = _pairs(target), list(examples)
        points, after = self.points(target)
        smoothing = Smoothing.on(target.device, target.smoothing_sigma(), target.data.num_classes, dtype=self.dtype)
        repeats = check_target(target, smoothing)
        rows: dict[int, Row] = {index: {"index": index} for index in examples}
        paired = [index for index in examples if index < len(pairs)]
        if paired:
            found = pair_distances(pairs.before[paired], pairs.after[paired])
            for index, distance in zip(paired, found.tolist(), strict=True):
                rows[index]["distance"] = distance
        if asked := [index for index in examples if index < len(points)]:
            for index, errors in zip(asked, self._wrong_votes(target, points, asked, repeats), strict=True):
                rows[index] |= {"label": int(points.labels[index]), "errors": errors, "draws": self.draws}
            if after is not None:
                for index, errors in zip(asked, self._wrong_votes(target, after, asked, repeats), strict=True):
                    rows[index]["errors_after"] = errors
        yield from rows.values()

    def _wrong_votes(self, target: Target, data: Dataset, examples: list[int], repeats: Repeats) -> list[int]:
        images, labels = data.images[examples].to(target.device), data.labels[examples].to(target.device)
        smoothing = Smoothing.for_images(
            images, target.smoothing_sigma(), data.num_classes, seed=self.seed, dtype=self.dtype
        )
        return count_errors(
            target.model, images, labels, smoothing, indices=examples, draws=self.draws, repeats=repeats
        ).tolist()

    def summarise(self, target: Target, rows: list[Row]) -> Row:
        found = measured_summary(rows, self.settings(target), math.prod(target.data.shape))
        return {**found, "warnings": target.sigma_warnings()}


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
