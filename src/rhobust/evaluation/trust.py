"""Reasons not to trust an evaluation: found by looking at the network, at the rows, and by probes."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from rhobust.attacks import GradientAttack, PaperPGD
from rhobust.attacks.base import norms
from rhobust.data import to_unit
from rhobust.evaluation.probing import Evaluation, probe_larger, probe_stronger
from rhobust.evaluation.target import Target
from rhobust.formatting import format_distance, format_percent
from rhobust.measurements import FEW, GAIN, stronger_attacks
from rhobust.models.inference import frozen
from rhobust.noise import ExampleNoise
from rhobust.records import Record, Row, finished_records

INSPECTED = 64
"""Examples on which a network is looked at."""
VANISHING = 1e-30
"""A gradient of this length is lost: float32 cannot hold its smaller components."""


def distrust(evaluation: Evaluation, rows: Sequence[Row], *, probe: bool, beside: Record) -> tuple[list[str], Row]:
    """All warnings about an evaluation, and what the probes measured.

    Args:
        evaluation: The attack and who judges it.
        rows: What it found, all examples and radii.
        probe: Whether a few examples may be attacked again; a transfer attack is never probed.
        beside: The evaluation's record, to be compared with the others in its folder.
    """
    indices = list(dict.fromkeys(row["index"] for row in rows))[:INSPECTED]
    warnings = inspect(evaluation, indices) + hardly_moved(evaluation, rows) + rising(evaluation, rows)
    measured: Row = {}
    if probe and not evaluation.transfer:
        for look in (probe_stronger, probe_larger):
            found, numbers = look(evaluation, rows)
            warnings += found
            measured |= numbers
    warnings += stronger_attacks(beside, finished_records(beside.path.parent, "attack"))
    return warnings, {"probe": measured} if measured else {}


def inspect(evaluation: Evaluation, indices: Sequence[int]) -> list[str]:
    """Warnings about the networks themselves, from a few examples, and about noise that they were not trained with."""
    judge = evaluation.judge
    warnings = judge.target.sigma_warnings() if judge.scored == "smoothed" else []
    networks = {target.model_hash: target for target in (evaluation.source, judge.target)}
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
                f"outputs sum to one: {who} seems to end in a softmax, which hides gradients where it is sure; let it"
                " return logits"
            )
    lost, right = _without_gradient(evaluation, indices)
    if lost:
        warnings.append(
            f"zero gradients: the attacked loss has no gradient at {lost} of {right} inputs that are right, so the"
            " attack does not know where to go"
        )
    return warnings


def hardly_moved(evaluation: Evaluation, rows: Sequence[Row]) -> list[str]:
    """A warning where an ascent left many survivors near their start: its gradient is too small for its steps."""
    if not isinstance(evaluation.attack, GradientAttack | PaperPGD):
        return []
    worst, said = 0.0, []
    for radius in evaluation.radii:
        survivors = [row for row in rows if row["radius"] == radius and radius > 0 and not row["broken"]]
        near = sum(row["distance"] < radius / 10 for row in survivors)
        if near >= FEW and near > max(worst, 0.05) * len(survivors):
            worst = near / len(survivors)
            said = [
                f"vanishing gradients: at radius {format_distance(radius)} the attack moved {near} of"
                f" {len(survivors)} survivors"
                " by less than a tenth of the radius"
            ]
    return said


def rising(evaluation: Evaluation, rows: Sequence[Row]) -> list[str]:
    """A warning where more examples stand at a larger radius; radii that are nested can show none."""
    standing = dict.fromkeys(evaluation.radii, 0)
    for row in rows:
        standing[row["radius"]] += not row["broken"]
    rises = [
        (more - fewer, small, large)
        for (small, fewer), (large, more) in itertools.combinations(sorted(standing.items()), 2)
    ]
    rise, small, large = max(rises, default=(0, 0.0, 0.0))
    examples = len(rows) // len(standing)
    if rise < FEW or rise <= GAIN * examples:
        return []
    return [
        f"accuracy rises with the radius: by {format_percent(rise / examples, 'nearest')} points from radius"
        f" {format_distance(small)} to"
        f" {format_distance(large)}"
    ]


def _images(target: Target, indices: Sequence[int]) -> Tensor:
    return to_unit(target.data.images[list(indices)]).to(target.device)


@torch.no_grad()
def _outputs(target: Target, x: Tensor) -> Tensor:
    with frozen(target.model) as frozen_model:
        return frozen_model(x).float()


def _without_gradient(evaluation: Evaluation, indices: Sequence[int]) -> tuple[int, int]:
    """At how many of the inputs that are right the attacked loss has a lost gradient, and how many are right."""
    source = evaluation.source
    x, y = _images(source, indices), source.data.labels[list(indices)].to(source.device)
    right = (_outputs(source, x).argmax(1) == y).nonzero().flatten().tolist()
    if not right:
        return 0, 0
    rng = ExampleNoise(evaluation.seed, "inspect", [indices[place] for place in right])
    x = x[right].requires_grad_()
    with frozen(source.model) as frozen_model, torch.enable_grad():
        values = evaluation.climber.objective(frozen_model, y[right], sigma=source.sigma, rng=rng)(x)
        (gradient,) = torch.autograd.grad(values.sum(), x)
    return int((norms(gradient) < VANISHING).sum()), len(right)
