"""Reasons to distrust an attack: found in the network, in the rows, in other records, and by stronger attacks."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rhobust.attacks import EOT, PGD, AnyAttack, GradientAttack, PaperPGD
from rhobust.attacks.base import norms
from rhobust.data import to_unit
from rhobust.evaluation.sweep import Predictor, Sweep
from rhobust.evaluation.target import Target
from rhobust.formatting import format_distance, format_percent
from rhobust.measurements import FEW, GAIN, not_significant
from rhobust.models.inference import frozen
from rhobust.noise import ExampleNoise
from rhobust.records import Row
from rhobust.settings import member_to_json
from rhobust.user_code import UserCode

INSPECTED = 64
"""Examples on which a network is inspected."""
VANISHING = 1e-30
"""A gradient of this norm is lost: float32 cannot hold its smaller components."""


@dataclass(frozen=True)
class Attacked:
    """An attack, the network that it was crafted on, and whose predictions were counted."""

    source: Target
    predictor: Predictor
    attack: AnyAttack
    radii: tuple[float, ...]
    seed: int
    fast: bool = False

    @property
    def transfer(self) -> bool:
        """Whether the attack was crafted on another network than the one that predicts."""
        return self.source.model_hash != self.predictor.target.model_hash

    @property
    def gradient_attack(self) -> GradientAttack:
        """The ascent that the attack makes; for one that is no ascent, the standard one on the same classifier."""
        if isinstance(self.attack, GradientAttack):
            return self.attack
        if isinstance(self.attack, PaperPGD):
            return self.attack.gradient_attack()
        return EOT() if self.attack.attacks_smoothed else PGD()

    def again(self, attack: AnyAttack, radius: float, examples: list[int]) -> list[Row]:
        """The rows of another attack on some examples at one radius, with fresh noise."""
        (rows,) = Sweep(
            self.source, attack, [self.predictor], examples, self.seed, fast=self.fast, stage="probe:"
        ).over((radius,))
        return rows


def diagnose(attacked: Attacked, rows: Sequence[Row], *, probe: bool) -> tuple[list[str], Row]:
    """All warnings about an attack, and what the checks with other attacks measured.

    `probe` lets a few examples be attacked again; of a transfer attack none ever is.
    """
    indices = list(dict.fromkeys(row["index"] for row in rows))[:INSPECTED]
    warnings = inspect(attacked, indices) + _near_start(attacked, rows) + _rising(attacked, rows)
    measured: Row = {}
    if probe and not attacked.transfer:
        for check in (_probe_stronger, _probe_larger):
            found, numbers = check(attacked, rows)
            warnings += found
            measured |= numbers
    return warnings, {"probe": measured} if measured else {}


def inspect(attacked: Attacked, indices: Sequence[int]) -> list[str]:
    """Warnings about the networks themselves, from a few examples, and about noise that they were not trained with."""
    predictor = attacked.predictor
    warnings = predictor.target.sigma_warnings() if predictor.name == "smoothed" else []
    networks = {target.model_hash: target for target in (attacked.source, predictor.target)}
    for target in networks.values():
        who = "the network" if len(networks) == 1 else target.name
        x = _images(target, indices)
        one, two = _outputs(target, x), _outputs(target, x)
        if ((one - two).abs() > 1e-3 * (1 + one.abs())).any():
            warnings.append(
                f"randomised outputs: {who} answers the same input differently each time, so a single answer decides"
                " nothing; smooth it (with a sigma) or make it deterministic"
            )
        if (one >= 0).all() and ((one.sum(1) - 1).abs() < 1e-3).all():
            warnings.append(
                f"outputs sum to one: {who} seems to end in a softmax, whose gradients vanish where it is confident;"
                " let it return logits"
            )
    lost, right = _without_gradient(attacked, indices)
    if lost:
        warnings.append(
            f"zero gradients: the attacked loss has no gradient at {lost} of {right} inputs that are classified"
            " correctly, so a gradient attack fails there without showing robustness"
        )
    return warnings


def _near_start(attacked: Attacked, rows: Sequence[Row]) -> list[str]:
    """A warning where an ascent left many robust examples near their start: its gradient is too small for its steps."""
    if not isinstance(attacked.attack, GradientAttack | PaperPGD):
        return []
    worst, said = 0.0, []
    for radius in attacked.radii:
        robust = [row for row in rows if row["radius"] == radius and radius > 0 and not row["broken"]]
        near = sum(row["distance"] < radius / 10 for row in robust)
        if near >= FEW and near > max(worst, 0.05) * len(robust):
            worst = near / len(robust)
            said = [
                f"vanishing gradients: at radius {format_distance(radius)} the attack perturbed {near} of {len(robust)}"
                " robust examples by less than a tenth of the radius"
            ]
    return said


def _rising(attacked: Attacked, rows: Sequence[Row]) -> list[str]:
    """A warning where more examples are robust at a larger radius; nested radii cannot show any."""
    robust = dict.fromkeys(attacked.radii, 0)
    for row in rows:
        robust[row["radius"]] += not row["broken"]
    rises = [
        (more - fewer, small, large)
        for (small, fewer), (large, more) in itertools.combinations(sorted(robust.items()), 2)
    ]
    rise, small, large = max(rises, default=(0, 0.0, 0.0))
    examples = len(rows) // len(robust)
    if rise < FEW or rise <= GAIN * examples:
        return []
    return [
        f"accuracy rises with the radius: by {format_percent(rise / examples, 'nearest')} points from radius"
        f" {format_distance(small)} to {format_distance(large)}"
    ]


TARGETS = 3
"""Runner-up classes that the stronger attack is targeted at."""


def probe_size(examples: int) -> int:
    """How many examples a check takes: a tenth, at least 16 and at most 100."""
    return min(max(examples // 10, 16), 100)


def stronger(attacked: Attacked) -> PGD | EOT:
    """An attack on the classifier that predicts: twice the steps and noise samples, other starts, and targets."""
    ascent = attacked.gradient_attack
    shape = {"steps": 2 * ascent.steps, "norm": ascent.norm, "random_start": True, "targets": TARGETS}
    if attacked.predictor.name == "base":
        return PGD(**shape)
    draws = ascent.draws if isinstance(ascent, EOT) else 1
    return EOT(**shape, draws=max(2 * draws, EOT().draws))


def _probe_stronger(attacked: Attacked, rows: Sequence[Row]) -> tuple[list[str], Row]:
    """Attack robust examples of a middle radius harder; what then fails significantly is what the attack had missed."""
    radius = _middle(attacked, rows)
    if radius is None:
        return [], {}
    here = [row for row in rows if row["radius"] == radius]
    robust = [row["index"] for row in here if not row["broken"]]
    chosen = spread(robust, probe_size(len(here)))
    attack = stronger(attacked)
    broken = _significant(attacked.again(attack, radius, chosen), broken=True)
    gain = broken / len(chosen) * len(robust) / len(here)
    measured = {
        "attack": member_to_json(attack, AnyAttack),
        "radius": radius,
        "examples": len(chosen),
        "broken": broken,
        "gain": gain,
    }
    if gain <= GAIN or broken < FEW:
        return [], {"stronger": measured}
    draws = f" and {attack.draws} noise samples" if isinstance(attack, EOT) else ""
    warning = (
        f"a stronger attack gains {format_percent(gain, 'nearest')} points at radius {format_distance(radius)}:"
        f" {attack.steps} steps{draws} succeed on {broken} of {len(chosen)} examples that this attack left robust"
    )
    return [warning], {"stronger": measured}


def _probe_larger(attacked: Attacked, rows: Sequence[Row]) -> tuple[list[str], Row]:
    """Attack at the largest radius, from scratch, examples that are not robust at a smaller one: it must succeed."""
    largest = attacked.radii[-1]
    earlier = [index for index, radius in first_broken(rows).items() if 0 < radius < largest]
    if not earlier:
        return [], {}
    chosen = spread(sorted(earlier), probe_size(len(rows) // len(attacked.radii)))
    robust = _significant(attacked.again(attacked.attack, largest, chosen), broken=False)
    measured = {"radius": largest, "examples": len(chosen), "standing": robust}
    if robust < FEW or robust <= 0.1 * len(chosen):
        return [], {"larger": measured}
    warning = (
        f"accuracy rises with the radius: {robust} of {len(chosen)} examples that are not robust at a smaller radius"
        f" are robust at radius {format_distance(largest)} when they are attacked there from scratch"
    )
    return [warning], {"larger": measured}


def _middle(attacked: Attacked, rows: Sequence[Row]) -> float | None:
    """The radius at which about half of the examples that are right at all are robust."""
    counts = {radius: sum(not row["broken"] for row in rows if row["radius"] == radius) for radius in attacked.radii}
    possible = {radius: count for radius, count in counts.items() if radius > 0 and count}
    if not possible:
        return None
    right = max(counts.values())
    return min(possible, key=lambda radius: abs(possible[radius] - right / 2))


def first_broken(rows: Sequence[Row]) -> dict[int, float]:
    """The smallest radius at which each example is not robust."""
    first: dict[int, float] = {}
    for row in rows:
        if row["broken"]:
            first.setdefault(row["index"], row["radius"])
    return first


def spread(indices: Sequence[int], count: int) -> list[int]:
    """At most so many of the indices, evenly over them."""
    count = min(count, len(indices))
    return [indices[place * len(indices) // count] for place in range(count)]


def _significant(rows: Sequence[Row], *, broken: bool) -> int:
    """How many rows are wrong, or right, by a vote that is significant at 5%."""
    return sum(row["broken"] == broken and not open_ for row, open_ in zip(rows, not_significant(rows), strict=True))


def _images(target: Target, indices: Sequence[int]) -> Tensor:
    return to_unit(target.data.images[list(indices)]).to(target.device)


@torch.no_grad()
def _outputs(target: Target, x: Tensor) -> Tensor:
    with frozen(target.model) as model:
        return model(x).float()


def _without_gradient(attacked: Attacked, indices: Sequence[int]) -> tuple[int, int]:
    """At how many of the inputs that are right the attacked loss has a lost gradient, and how many are right."""
    source = attacked.source
    x, y = _images(source, indices), source.data.labels[list(indices)].to(source.device)
    right = (_outputs(source, x).argmax(1) == y).nonzero().flatten().tolist()
    if not right:
        return 0, 0
    rng = ExampleNoise(attacked.seed, "inspect", [indices[place] for place in right])
    x = x[right].requires_grad_()
    with frozen(source.model) as model, torch.enable_grad():
        values = attacked.gradient_attack.objective(model, y[right], sigma=source.sigma, rng=rng)(x)
        with UserCode("the network's gradient raised", x):
            (gradient,) = torch.autograd.grad(values.sum(), x)
    return int((norms(gradient) < VANISHING).sum()), len(right)
