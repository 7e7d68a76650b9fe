"""The sweep over nested radii: perturb on one network, predict by one or several, share the work."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rhobust.attacks import AnyAttack, AttackMethod, GradientAttack, PaperPGD
from rhobust.attacks.base import MIN_BATCH, Norm, distances, pad_batch
from rhobust.certificates import Dtype, Smoothing, compiled_by_default, count_votes, native_dtype
from rhobust.data import to_unit
from rhobust.evaluation.target import Target
from rhobust.evaluation.target_cache import compiled_copy, fast_copy
from rhobust.models.inference import WithEvalCopy, frozen
from rhobust.noise import ExampleNoise
from rhobust.records import Row
from rhobust.settings import check_count, check_declared

ROWS = {"cpu": 1024, "cuda": 4096}
"""Largest number of inputs per gradient, noise samples included."""
ELEMENTS = {"cpu": 2**20, "cuda": 2**24}
"""Largest number of pixels per gradient: what a network keeps for it must fit into memory."""
BLOCKS = {"cpu": 100, "cuda": 1000}
"""Examples that go through the radii together: survivors are packed into full batches."""
PredictorName = Literal["base", "smoothed"]


@dataclass(frozen=True)
class Predictor:
    """The classifier whose answers to perturbed inputs are counted: the base network, or votes of the smoothed one."""

    target: Target
    name: PredictorName
    votes: int
    """Noise samples per smoothed prediction; not used where the base network predicts."""
    fast: bool = False
    """Let the bf16 copy vote: the smoothed classifier is then the one in that arithmetic."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_count("votes", self.votes)
        if self.name == "smoothed":
            self.target.smoothing_sigma()

    @property
    def dtype(self) -> Dtype:
        """The arithmetic of the predictions."""
        return "bfloat16" if self.fast and self.name == "smoothed" else native_dtype(self.target.device)

    def predict(self, x: Tensor, labels: Sequence[int], names: list[int], seed: int, purpose: str) -> list[Row]:
        """What a record says of each prediction: the class, whether it is wrong, and the votes behind it.

        The prediction is the class with most votes. A tie with the label counts as wrong.
        """
        if self.name == "base":
            found = self._base(x)
            return [{"prediction": one, "broken": one != label} for one, label in zip(found, labels, strict=True)]
        # Perturbed points are between the points of the 8-bit grid, so their noise is float.
        target = self.target
        compiled = self.fast and compiled_by_default(self.dtype, target.device)
        smoothing = Smoothing(
            target.smoothing_sigma(),
            target.data.num_classes,
            noise="float",
            seed=seed,
            dtype=self.dtype,
            compiled=compiled,
        )
        # A compiled pass has a copy of its own, which certificates share.
        network = fast_copy(target) if self.fast and not compiled else target.model
        counts = count_votes(network, x, smoothing, indices=names, draws=self.votes, purpose=purpose).cpu()
        rows = []
        for count, label in zip(counts, labels, strict=True):
            ours = int(count[label])
            count[label] = -1
            runner_up, theirs = int(count.argmax()), int(count.max())
            broken = theirs >= ours
            rows.append(
                {
                    "prediction": runner_up if broken else label,
                    "broken": broken,
                    "votes": self.votes,
                    "label_votes": ours,
                    "rival_votes": theirs,
                }
            )
        return rows

    @torch.no_grad()
    def _base(self, x: Tensor) -> list[int]:
        with frozen(self.target.model) as model:
            logits = model(pad_batch(x))[: len(x)]
        if logits.isnan().any():
            raise ValueError("logits must be numbers, but the network returned NaN: nothing was predicted")
        return logits.argmax(1).tolist()


def norm_of(attack: AnyAttack) -> Norm:
    """The norm in which an attack's radius is measured."""
    return getattr(attack, "norm", "l2")


class Sweep:
    """A sweep of one block of examples over nested radii.

    An example that is not robust for a predictor at one radius is not robust for it at any larger one, and an example
    that is robust for no predictor leaves the batch. An ascent begins where the smaller radius ended unless the attack
    says otherwise; its restarts are for robust examples only. A point that a predictor is shown depends on the source,
    the example, the radii, the seed and that predictor's own answers, so more predictors change nothing.

    Args:
        source: The network that is attacked.
        attack: The attack and its hyper-parameters.
        predictors: Who answers the perturbed inputs.
        block: The examples.
        seed: Random seed.
        nested: Without it every example is attacked at every radius, from scratch: the rows of a radius are those of a
            sweep over it alone.
        fast: Take gradients of the bf16 copy of the source.
        stage: Part of the name of the noise streams: another stage of an evaluation draws fresh noise.
    """

    def __init__(
        self,
        source: Target,
        attack: AnyAttack,
        predictors: Sequence[Predictor],
        block: list[int],
        seed: int,
        *,
        nested: bool = True,
        fast: bool = False,
        stage: str = "",
    ) -> None:
        self.source, self.predictors, self.block, self.seed, self.stage = source, predictors, block, seed, stage
        self.nested = nested
        self.fast: nn.Module | None = WithEvalCopy(source.model, self._copy) if fast else None
        self.attack: AttackMethod = attack.gradient_attack() if isinstance(attack, PaperPGD) else attack
        self.norm = norm_of(attack)
        self.x = to_unit(source.data.images[block]).to(source.device)
        self.y = source.data.labels[block].to(source.device)
        self.rows: list[list[list[Row]]] = [[[] for _ in block] for _ in predictors]
        self.before: dict[tuple[int, int], Tensor] = {}
        """Where each attempt at each example ended at the smaller radius."""
        self.ends: dict[tuple[int, int], Tensor] = {}
        self.breaks: list[dict[int, tuple[Row, Tensor]]] = [{} for _ in predictors]
        """For each predictor the first row of each example that is not robust, and the point behind it."""

    def over(self, radii: Sequence[float]) -> list[list[Row]]:
        """The rows of each predictor at increasing radii, example by example."""
        everyone = [set(range(len(self.block))) for _ in self.predictors]
        robust = everyone
        for radius in radii:
            robust = self._at(radius, robust if self.nested else everyone)
            for rows in self.rows:
                for own in rows:
                    if own[-1]["radius"] != radius:
                        # Not robust at a smaller radius, hence not robust here, by the same point.
                        own.append({**own[-1], "radius": radius})
        return [[row for own in rows for row in own] for rows in self.rows]

    def _at(self, radius: float, robust: list[set[int]]) -> list[set[int]]:
        """Attack the examples that are robust so far at a radius; returns those that still are."""
        left = [set(one) for one in robust]
        self.before, self.ends = self.ends, {}
        attempts = self.attack.attempts if isinstance(self.attack, GradientAttack) and radius > 0 else 1
        found: list[dict[int, Row]] = [{} for _ in self.predictors]
        for attempt in range(attempts):
            name = f"{radius!r}:{attempt}" if attempt else repr(radius)
            for chunk in self._chunks(sorted(set().union(*left))):
                perturbed = self.x[chunk] if radius == 0 else self._perturb(radius, chunk, attempt, name)
                far = distances(perturbed, self.x[chunk], self.norm).tolist()
                for number in range(len(self.predictors)):
                    rows = self._predict(number, chunk, left[number], perturbed, far, radius, name)
                    _keep_worst(found[number], rows)
                    left[number].difference_update(position for position, row in rows.items() if row["broken"])
        for number, rows in enumerate(found):
            for position, row in rows.items():
                self.rows[number][position].append(row)
        return left

    @property
    def size(self) -> int:
        """Examples per gradient."""
        kind = self.source.device.type
        rows = min(ROWS[kind], ELEMENTS[kind] // self.x[0].numel())
        return max(1, rows // self._draws)

    @property
    def _draws(self) -> int:
        """Inputs of the network per example and gradient: an attack on the base network has noise samples for none."""
        return getattr(self.attack, "draws", 1) if self.attack.attacks_smoothed else 1

    @property
    def compiled(self) -> bool:
        """Whether gradients are compiled, for one batch size: on a GPU, if there is at least one full batch."""
        attack = isinstance(self.attack, GradientAttack)
        return self.fast is not None and attack and self.source.device.type == "cuda" and len(self.block) >= self.size

    def _copy(self) -> nn.Module:
        return compiled_copy(self.source) if self.compiled else fast_copy(self.source)

    def _chunks(self, positions: list[int]) -> Iterator[list[int]]:
        for first in range(0, len(positions), self.size):
            yield positions[first : first + self.size]

    def _perturb(self, radius: float, chunk: list[int], attempt: int, name: str) -> Tensor:
        least = self.size if self.compiled else -(-MIN_BATCH // self._draws)
        filled = chunk + chunk[:1] * (least - len(chunk))
        rng = ExampleNoise(self.seed, f"{self.stage}attack:{name}", [self.block[position] for position in filled])
        x, y = self.x[filled], self.y[filled]
        ball: dict[str, Any] = {"eps": radius, "sigma": self.source.sigma, "rng": rng}
        if not isinstance(self.attack, GradientAttack):
            # FAB and Square rest on the last digits of a base network's logits, which a bf16 copy does not have.
            network = self.fast if self.attack.attacks_smoothed else None
            return self.attack(network or self.source.model, x, y, **ball)[: len(chunk)]
        start = self.attack.start(x, radius, rng, attempt)
        # One per loss; further restarts begin elsewhere.
        rank = self.attack.rank(attempt)
        warm = self.nested and self.attack.warm and attempt < 2 and not rank
        if warm:
            start = torch.stack(
                [self.before.get((attempt, position), own) for position, own in zip(filled, start, strict=True)]
            )
        network = self.fast or self.source.model
        ball |= {"rank": rank} if rank else {}
        ended = self.attack.attempt(attempt).ascend_from(network, x, y, **ball, start=start)[: len(chunk)]
        if warm:
            self.ends.update(((attempt, position), end) for position, end in zip(chunk, ended, strict=True))
        return ended

    def _predict(
        self,
        number: int,
        chunk: list[int],
        left: set[int],
        perturbed: Tensor,
        far: list[float],
        radius: float,
        name: str,
    ) -> dict[int, Row]:
        """The rows of one predictor at those examples of a chunk that are left for it."""
        predictor, mine = self.predictors[number], [place for place, one in enumerate(chunk) if one in left]
        if not mine:
            return {}
        names = [self.block[chunk[place]] for place in mine]
        labels = self.y[[chunk[place] for place in mine]].tolist()
        points = perturbed[mine].to(predictor.target.device)
        predictions = predictor.predict(points, labels, names, self.seed, f"{self.stage}score:{name}")
        rows: dict[int, Row] = {}
        for place, index, label, prediction in zip(mine, names, labels, predictions, strict=True):
            row = {"index": index, "label": label, "radius": radius, **prediction, "distance": far[place]}
            rows[chunk[place]] = row
            if row["broken"]:
                self.breaks[number].setdefault(chunk[place], (row, perturbed[place]))
        return rows


def _keep_worst(kept: dict[int, Row], rows: dict[int, Row]) -> None:
    """Of several attempts keep the one that succeeded, else the one with fewest votes for the label."""
    for position, row in rows.items():
        before = kept.get(position)
        if before is None or row["broken"] or row.get("label_votes", 0) < before.get("label_votes", 0):
            kept[position] = row
