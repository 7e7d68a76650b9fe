"""Walk a test set through an attack over nested radii."""

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from rhobust.attacks import AnyAttack, Eot
from rhobust.attacks.ascent import frozen
from rhobust.certificates import count_votes
from rhobust.configs import kind_of, to_json
from rhobust.data import to_unit
from rhobust.noise import ExampleNoise
from rhobust.progress import Report
from rhobust.records import Record, RecordWriter, Row
from rhobust.rounding import share

from .target import Target
from .walk import walk

Scored = Literal["base", "smoothed"]


def attack_target(
    target: Target,
    attack: AnyAttack,
    radii: Sequence[float],
    *,
    scored: Scored | None = None,
    votes: int = 100,
    limit: int | None = None,
    stride: int = 1,
    seed: int = 0,
    report: Report | None = None,
) -> Record:
    """Attack test examples at each radius and record what breaks.

    Radii are nested: an example that breaks at one radius is broken at every larger one, so only survivors are
    attacked further. The result does not depend on interruptions: noise is named by the example and the radius.

    Args:
        target: The network under attack.
        attack: The attack and its hyper-parameters.
        radii: Increasing radii, from 0 on.
        scored: Judge by the "base" network or by a vote of the "smoothed" one; where none is given, as the attack
            sees it: EOT smoothed, PGD base.
        votes: Noise draws that judge a smoothed prediction.
        limit: Examples at most.
        stride: Take every stride-th example.
        seed: Names the noise.
        report: Told of progress; None shows it on stderr.
    """
    check_radii(radii)
    if votes < 1:
        raise ValueError(f"votes must be >= 1, got {votes}")
    if scored is None:
        scored = "smoothed" if isinstance(attack, Eot) else "base"
    if scored == "smoothed" or isinstance(attack, Eot):
        target.smoothing()
    indices = target.data.places(limit, stride)
    settings: Row = {
        "attack": to_json(attack, AnyAttack),
        "scored": scored,
        "radii": list(radii),
        "votes": votes if scored == "smoothed" else None,
        "limit": limit,
        "stride": stride,
        "seed": seed,
        **target.identity(),
    }
    kind = kind_of(type(attack))
    return walk(
        RecordWriter(target.folder, "attack", kind, settings),
        indices,
        lambda block: _attack_block(target, attack, radii, block, scored, votes, seed),
        lambda rows: _summary(rows, radii),
        task=f"attack {kind} {target.name}",
        report=report,
        rows_each=len(radii),
    )


def check_radii(radii: Sequence[float]) -> None:
    """Refuse radii that are negative, not sorted, or none at all."""
    if len(radii) == 0:
        raise ValueError("radii must hold at least one radius, got none")
    if min(radii) < 0:
        raise ValueError(f"radii must be >= 0, got {min(radii)}")
    if any(later <= earlier for earlier, later in itertools.pairwise(radii)):
        raise ValueError(f"radii must increase, got {' '.join(f'{radius:g}' for radius in radii)}")


def _attack_block(
    target: Target,
    attack: AnyAttack,
    radii: Sequence[float],
    block: list[int],
    scored: Scored,
    votes: int,
    seed: int,
) -> list[Row]:
    """All radii for a block of examples; rows stand example by example."""
    x = to_unit(target.data.images[block]).to(target.device)
    y = target.data.labels[block].to(target.device)
    rows: dict[int, list[Row]] = {index: [] for index in block}
    alive = list(range(len(block)))
    for radius in radii:
        if alive:
            names = [block[position] for position in alive]
            noise = ExampleNoise(seed, f"attack:{radius!r}", names)
            clean, labels = x[alive], y[alive]
            moved = (
                clean if radius == 0 else attack(target.model, clean, labels, eps=radius, sigma=target.sigma, rng=noise)
            )
            predictions = _predict(target, moved, names, scored, votes, seed, f"score:{radius!r}")
            distances = (moved - clean).flatten(1).norm(dim=1)
            for position, prediction, distance in zip(alive, predictions.tolist(), distances.tolist(), strict=True):
                label = int(y[position])
                rows[block[position]].append(
                    {
                        "index": block[position],
                        "label": label,
                        "radius": radius,
                        "prediction": prediction,
                        "broken": prediction != label,
                        "distance": distance,
                    }
                )
            alive = [position for position in alive if not rows[block[position]][-1]["broken"]]
        for index in block:
            if rows[index][-1]["radius"] != radius:
                # Broken at a smaller radius, hence broken here by the same point.
                rows[index].append({**rows[index][-1], "radius": radius})
    return [row for index in block for row in rows[index]]


@torch.no_grad()
def _predict(
    target: Target, x: Tensor, names: list[int], scored: Scored, votes: int, seed: int, purpose: str
) -> Tensor:
    if scored == "base":
        with frozen(target.model):
            return target.model(x).argmax(1)
    counts = count_votes(
        target.model,
        x,
        indices=names,
        sigma=target.smoothing(),
        draws=votes,
        num_classes=target.data.num_classes,
        seed=seed,
        purpose=purpose,
        noise="float",  # attacked points lie between the grid's
    )
    return counts.argmax(1)


def _summary(rows: list[Row], radii: Sequence[float]) -> dict[str, Any]:
    curve = []
    for radius in radii:
        broken = [row["broken"] for row in rows if row["radius"] == radius]
        curve.append({"radius": radius, **share(len(broken) - sum(broken), len(broken)).as_row()})
    return {"robust_accuracy": curve, "warnings": []}
