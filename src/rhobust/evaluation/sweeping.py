"""The sweep over nested radii: craft on one network, judge by one classifier or several, share the work."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rhobust.attacks import AnyAttack, AttackMethod, GradientAttack, PaperPGD
from rhobust.attacks.base import MIN_BATCH, Norm, distances
from rhobust.data import to_unit
from rhobust.evaluation.judging import Judge
from rhobust.evaluation.target import Target
from rhobust.noise import ExampleNoise
from rhobust.records import Row

ROWS = {"cpu": 1024, "cuda": 4096}
"""Rows of a gradient at most, draws included."""
ELEMENTS = {"cpu": 2**20, "cuda": 2**24}
"""Pixels of a gradient at most: what a network keeps for it must fit into memory."""
BLOCKS = {"cpu": 100, "cuda": 1000}
"""Examples that go through the radii together: survivors are packed into full batches."""


def sweep(
    source: Target,
    attack: AnyAttack,
    radii: Sequence[float],
    judges: Sequence[Judge],
    block: list[int],
    seed: int,
    *,
    nested: bool = True,
    stage: str = "",
) -> list[list[Row]]:
    """Attack a block of examples at each radius; the rows of each judge, example by example.

    Radii are nested: what is broken for a judge is broken for it at every larger radius, and what is broken for all
    leaves the batch. An ascent begins where the smaller radius ended, unless told otherwise; its restarts are for
    survivors only. A point that a judge is shown depends on the source, the example, the radii, the seed and that
    judge's own answers, so more judges change nothing.

    Args:
        source: The network that is attacked.
        attack: The attack and its hyper-parameters.
        radii: Increasing radii.
        judges: Who answers the attacked inputs.
        block: The examples.
        seed: Names the noise.
        nested: Whether what is broken stays broken; without it every example is attacked at every radius, anew: the
            rows of a radius are those of a sweep over it alone.
        stage: Names the noise too: another stage of an evaluation draws anew.
    """
    return _Sweep(source, attack, judges, block, seed, stage, nested=nested).over(radii)


def first_breaks(
    source: Target,
    attack: AnyAttack,
    radii: Sequence[float],
    judge: Judge,
    block: list[int],
    seed: int,
    *,
    nested: bool,
) -> dict[int, tuple[Row, Tensor]]:
    """Attack a few examples as `sweep` does: the first broken row of each that breaks, and the point it speaks of."""
    made = _Sweep(source, attack, [judge], block, seed, "", nested=nested)
    made.over(radii)
    return {block[position]: found for position, found in made.breaks[0].items()}


def norm_of(attack: AnyAttack) -> Norm:
    """The norm an attack's radius is measured in."""
    return getattr(attack, "norm", "l2")


class _Sweep:
    def __init__(
        self,
        source: Target,
        attack: AnyAttack,
        judges: Sequence[Judge],
        block: list[int],
        seed: int,
        stage: str,
        *,
        nested: bool,
    ) -> None:
        self.source, self.judges, self.block, self.seed, self.stage = source, judges, block, seed, stage
        self.nested = nested
        self.attack: AttackMethod = attack.gradient_attack() if isinstance(attack, PaperPGD) else attack
        self.norm = norm_of(attack)
        self.x = to_unit(source.data.images[block]).to(source.device)
        self.y = source.data.labels[block].to(source.device)
        self.rows: list[list[list[Row]]] = [[[] for _ in block] for _ in judges]
        self.before: dict[tuple[int, int], Tensor] = {}
        """Where each attempt at each example ended at the smaller radius."""
        self.ends: dict[tuple[int, int], Tensor] = {}
        self.breaks: list[dict[int, tuple[Row, Tensor]]] = [{} for _ in judges]
        """For each judge the first broken row of each example, and the point behind it."""

    def over(self, radii: Sequence[float]) -> list[list[Row]]:
        everyone = [set(range(len(self.block))) for _ in self.judges]
        alive = everyone
        for radius in radii:
            alive = self._at(radius, alive if self.nested else everyone)
            for rows in self.rows:
                for own in rows:
                    if own[-1]["radius"] != radius:
                        # Broken at a smaller radius, hence broken here by the same point.
                        own.append({**own[-1], "radius": radius})
        return [[row for own in rows for row in own] for rows in self.rows]

    def _at(self, radius: float, alive: list[set[int]]) -> list[set[int]]:
        """Attack the survivors of each judge at a radius; returns who still stands."""
        standing = [set(one) for one in alive]
        self.before, self.ends = self.ends, {}
        restarts = self.attack.restarts if isinstance(self.attack, GradientAttack) and radius > 0 else 0
        found: list[dict[int, Row]] = [{} for _ in self.judges]
        for attempt in range(1 + restarts):
            name = f"{radius!r}:{attempt}" if attempt else repr(radius)
            for chunk in self._chunks(sorted(set().union(*standing))):
                moved = self.x[chunk] if radius == 0 else self._craft(radius, chunk, attempt, name)
                far = distances(moved, self.x[chunk], self.norm).tolist()
                for number, judge in enumerate(self.judges):
                    mine = [place for place, position in enumerate(chunk) if position in standing[number]]
                    if mine:
                        rows = self._judge(judge, chunk, mine, moved, far, radius, name)
                        _keep_worst(found[number], rows)
                        for place, (position, row) in zip(mine, rows.items(), strict=True):
                            if row["broken"]:
                                standing[number].discard(position)
                                self.breaks[number].setdefault(position, (row, moved[place]))
        for number, rows in enumerate(found):
            for position, row in rows.items():
                self.rows[number][position].append(row)
        return standing

    def _chunks(self, positions: list[int]) -> Iterator[list[int]]:
        kind = self.source.device.type
        rows = min(ROWS[kind], ELEMENTS[kind] // self.x[0].numel())
        size = max(1, rows // getattr(self.attack, "draws", 1))
        for first in range(0, len(positions), size):
            yield positions[first : first + size]

    def _craft(self, radius: float, chunk: list[int], attempt: int, name: str) -> Tensor:
        least = -(-MIN_BATCH // getattr(self.attack, "draws", 1))
        filled = chunk + chunk[:1] * (least - len(chunk))
        rng = ExampleNoise(self.seed, f"{self.stage}attack:{name}", [self.block[position] for position in filled])
        x, y = self.x[filled], self.y[filled]
        ball = {"eps": radius, "sigma": self.source.sigma, "rng": rng}
        if not isinstance(self.attack, GradientAttack):
            # FAB and Square live on the last digits of a base network's answers, which a fast copy does not have.
            network = self.source.climbed if self.attack.attacks_smoothed else None
            return self.attack(network or self.source.model, x, y, **ball)[: len(chunk)]
        start = self.attack.start(x, radius, rng, attempt)
        # One for each loss; further starts are to be other ones.
        warm = self.nested and self.attack.warm and attempt < 2
        if warm:
            start = torch.stack(
                [self.before.get((attempt, position), own) for position, own in zip(filled, start, strict=True)]
            )
        network = self.source.climbed or self.source.model
        moved = self.attack.attempt(attempt).ascend_from(network, x, y, **ball, start=start)[: len(chunk)]
        if warm:
            self.ends.update(((attempt, position), end) for position, end in zip(chunk, moved, strict=True))
        return moved

    def _judge(
        self,
        judge: Judge,
        chunk: list[int],
        mine: list[int],
        moved: Tensor,
        far: list[float],
        radius: float,
        name: str,
    ) -> dict[int, Row]:
        positions = [chunk[place] for place in mine]
        names = [self.block[position] for position in positions]
        labels = self.y[positions].tolist()
        points = moved[mine].to(judge.target.device)
        verdicts = judge.verdicts(points, labels, names, self.seed, f"{self.stage}score:{name}")
        return {
            position: {"index": index, "label": label, "radius": radius, **verdict, "distance": far[place]}
            for position, place, index, label, verdict in zip(positions, mine, names, labels, verdicts, strict=True)
        }


def _keep_worst(kept: dict[int, Row], rows: dict[int, Row]) -> None:
    """Of several attempts keep the one that broke, else the one with fewest votes for the label."""
    for position, row in rows.items():
        before = kept.get(position)
        if before is None or row["broken"] or row.get("label_votes", 0) < before.get("label_votes", 0):
            kept[position] = row
