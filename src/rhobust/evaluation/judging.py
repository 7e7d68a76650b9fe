"""Who judges an attacked input: the base network, or a vote of the smoothed classifier."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from rhobust.attacks.base import pad_batch
from rhobust.certificates import Dtype, Smoothing, count_votes, native_dtype
from rhobust.evaluation.target import Target
from rhobust.models.inference import frozen
from rhobust.records import Row
from rhobust.settings import check_count, check_declared

Scored = Literal["base", "smoothed"]


@dataclass(frozen=True)
class Judge:
    """A classifier that answers attacked inputs."""

    target: Target
    scored: Scored
    votes: int
    """Noise draws of a smoothed answer; not used where the base network answers."""
    voter: nn.Module | None = None
    """A bf16 copy of the network that votes in its place: the smoothed classifier is the one in that arithmetic."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_count("votes", self.votes)
        if self.scored == "smoothed":
            self.target.smoothing()

    @property
    def dtype(self) -> Dtype:
        """The arithmetic of the answers."""
        return native_dtype(self.target.device) if self.voter is None else "bfloat16"

    def verdicts(self, x: Tensor, labels: Sequence[int], names: list[int], seed: int, purpose: str) -> list[Row]:
        """What a record says of each answer: the prediction, whether it is wrong, and the votes behind it.

        The answer is the class with most votes. A tie with the label counts as wrong.
        """
        if self.scored == "base":
            answers = self._ask(x)
            return [{"prediction": a, "broken": a != label} for a, label in zip(answers, labels, strict=True)]
        # Attacked points lie between the grid's, so their noise is float.
        smoothing = Smoothing(
            self.target.smoothing(),
            self.target.data.num_classes,
            noise="float",
            seed=seed,
            dtype=self.dtype,
        )
        network = self.voter or self.target.model
        counts = count_votes(network, x, smoothing, indices=names, draws=self.votes, purpose=purpose).cpu()
        rows = []
        for count, label in zip(counts, labels, strict=True):
            ours = int(count[label])
            count[label] = -1
            rival, theirs = int(count.argmax()), int(count.max())
            broken = theirs >= ours
            rows.append(
                {
                    "prediction": rival if broken else label,
                    "broken": broken,
                    "votes": self.votes,
                    "label_votes": ours,
                    "rival_votes": theirs,
                }
            )
        return rows

    @torch.no_grad()
    def _ask(self, x: Tensor) -> list[int]:
        with frozen(self.target.model) as frozen_model:
            logits = frozen_model(pad_batch(x))[: len(x)]
        if logits.isnan().any():
            raise ValueError("logits must be numbers, but the network returned NaN: nothing was judged")
        return logits.argmax(1).tolist()
