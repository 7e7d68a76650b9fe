"""The accuracy of the base network, and of one prediction under noise: the first numbers to look at."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from rhobust.certificates import count_votes
from rhobust.data import to_unit
from rhobust.evaluation.attack import check_networks
from rhobust.evaluation.base import NoisyEvaluation
from rhobust.evaluation.target import Target
from rhobust.measurements import base_accuracy
from rhobust.models.inference import frozen
from rhobust.progress import ProgressCallback
from rhobust.records import Row
from rhobust.settings import check_count

ROWS = 100
"""Images per forward pass of the base network."""


@dataclass(frozen=True, kw_only=True)
class Accuracy(NoisyEvaluation):
    """Measure the accuracy of the base network, and of one prediction under noise.

    Both are estimates: the share of right answers on these examples. Without a noise level only the base network is
    measured.
    """

    kind: ClassVar[str] = "accuracy"

    draws: int = 20
    """Noise samples per example."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("draws", self.draws)

    def resolve(self, target: Target) -> Self:
        check_networks(target, target)
        return super().resolve(target)

    def derived(self, target: Target) -> Row:
        return {"num_classes": target.data.num_classes}

    def rows(self, target: Target, examples: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
        examples = list(examples)
        labels = target.data.labels[examples]
        images = target.data.images[examples].to(target.device)
        with torch.no_grad(), frozen(target.model) as network:
            predicted = torch.cat([network(to_unit(part)).argmax(1) for part in images.split(ROWS)]).tolist()
        right: list[int] | None = None
        if target.sigma is not None:
            smoothing = self.smoothing(target)
            self.check_network(target)
            votes = count_votes(target.model, images, smoothing, indices=examples, draws=self.draws, purpose="accuracy")
            right = votes.cpu().gather(1, labels[:, None]).squeeze(1).tolist()
        for place, (index, label) in enumerate(zip(examples, labels.tolist(), strict=True)):
            row: Row = {"index": index, "label": label, "prediction": predicted[place]}
            yield row if right is None else {**row, "draws": self.draws, "errors": self.draws - right[place]}

    def summarise(self, target: Target, rows: list[Row]) -> Row:
        return {**base_accuracy(rows), "warnings": target.sigma_warnings()}
