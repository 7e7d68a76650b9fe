"""Probes: attack a few examples again to see whether the attack was strong enough to be believed."""

from collections.abc import Sequence
from dataclasses import dataclass

from rhobust.attacks import EOT, PGD, AnyAttack, GradientAttack, PaperPGD
from rhobust.evaluation.judging import Judge
from rhobust.evaluation.sweeping import sweep
from rhobust.evaluation.target import Target
from rhobust.formatting import format_distance, format_percent
from rhobust.measurements import FEW, GAIN, not_significant
from rhobust.records import Row
from rhobust.settings import member_to_json


@dataclass(frozen=True)
class Evaluation:
    """An attack and who judges it."""

    source: Target
    """The network that is attacked."""
    judge: Judge
    attack: AnyAttack
    radii: tuple[float, ...]
    seed: int

    @property
    def transfer(self) -> bool:
        """Whether another network was attacked than is judged."""
        return self.source.model_hash != self.judge.target.model_hash

    @property
    def climber(self) -> GradientAttack:
        """The ascent that the attack makes; for one that is no ascent, the plain one that sees as much."""
        if isinstance(self.attack, GradientAttack):
            return self.attack
        if isinstance(self.attack, PaperPGD):
            return self.attack.gradient_attack()
        return EOT() if self.attack.attacks_smoothed else PGD()


def probe_size(examples: int) -> int:
    """How many examples a probe takes: a tenth, 16 at least and 100 at most."""
    return min(max(examples // 10, 16), 100)


def stronger(evaluation: Evaluation) -> PGD | EOT:
    """An attack that should do no better: it sees what is judged, with twice the steps and draws, from other starts."""
    climber = evaluation.climber
    shape = {"steps": 2 * climber.steps, "norm": climber.norm, "random_start": True}
    if evaluation.judge.scored == "base":
        return PGD(**shape)
    draws = climber.draws if isinstance(climber, EOT) else 1
    return EOT(**shape, draws=max(2 * draws, EOT().draws))


def probe_stronger(evaluation: Evaluation, rows: Sequence[Row]) -> tuple[list[str], Row]:
    """Attack survivors of a middle radius harder; what breaks beyond doubt is what the attack had missed."""
    radius = _middle(evaluation, rows)
    if radius is None:
        return [], {}
    here = [row for row in rows if row["radius"] == radius]
    survivors = [row["index"] for row in here if not row["broken"]]
    chosen = spread(survivors, probe_size(len(here)))
    attack = stronger(evaluation)
    (found,) = sweep(evaluation.source, attack, (radius,), [evaluation.judge], chosen, evaluation.seed, stage="probe:")
    broken = _beyond_doubt(found, broken=True)
    gain = broken / len(chosen) * len(survivors) / len(here)
    measured = {
        "attack": member_to_json(attack, AnyAttack),
        "radius": radius,
        "examples": len(chosen),
        "broken": broken,
        "gain": gain,
    }
    if gain <= GAIN or broken < FEW:
        return [], {"stronger": measured}
    draws = f" and {attack.draws} draws" if isinstance(attack, EOT) else ""
    warning = (
        f"a stronger attack gains {format_percent(gain, 'nearest')} points at radius {format_distance(radius)}:"
        f" {attack.steps} steps"
        f"{draws} break {broken} of {len(chosen)} examples that this attack left standing"
    )
    return [warning], {"stronger": measured}


def probe_larger(evaluation: Evaluation, rows: Sequence[Row]) -> tuple[list[str], Row]:
    """Attack anew, at the largest radius, examples that broke at a smaller one: there they must break as well."""
    largest = evaluation.radii[-1]
    earlier = [index for index, radius in first_broken(rows).items() if 0 < radius < largest]
    if not earlier:
        return [], {}
    chosen = spread(sorted(earlier), probe_size(len(rows) // len(evaluation.radii)))
    (found,) = sweep(
        evaluation.source, evaluation.attack, (largest,), [evaluation.judge], chosen, evaluation.seed, stage="probe:"
    )
    standing = _beyond_doubt(found, broken=False)
    measured = {"radius": largest, "examples": len(chosen), "standing": standing}
    if standing < FEW or standing <= 0.1 * len(chosen):
        return [], {"larger": measured}
    warning = (
        f"accuracy rises with the radius: {standing} of {len(chosen)} examples that broke at a smaller radius stand at"
        f" radius {format_distance(largest)} when they are attacked there anew"
    )
    return [warning], {"larger": measured}


def _middle(evaluation: Evaluation, rows: Sequence[Row]) -> float | None:
    """The radius at which about half of the examples that are right at all still stand."""
    standing = {
        radius: sum(not row["broken"] for row in rows if row["radius"] == radius)
        for radius in evaluation.radii
        if radius > 0
    }
    possible = {radius: count for radius, count in standing.items() if count}
    if not possible:
        return None
    right = max(sum(not row["broken"] for row in rows if row["radius"] == radius) for radius in evaluation.radii)
    return min(possible, key=lambda radius: abs(possible[radius] - right / 2))


def first_broken(rows: Sequence[Row]) -> dict[int, float]:
    """The smallest radius at which each example broke."""
    first: dict[int, float] = {}
    for row in rows:
        if row["broken"]:
            first.setdefault(row["index"], row["radius"])
    return first


def spread(indices: Sequence[int], count: int) -> list[int]:
    """At most so many of the indices, evenly over them."""
    count = min(count, len(indices))
    return [indices[place * len(indices) // count] for place in range(count)]


def _beyond_doubt(rows: Sequence[Row], *, broken: bool) -> int:
    """How many rows are broken, or standing, by a vote that is decided."""
    return sum(row["broken"] == broken and not doubt for row, doubt in zip(rows, not_significant(rows), strict=True))
