"""Walk a test set through an attack over nested radii."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from rhobust.attacks import AnyAttack, PaperPGD
from rhobust.data import check_labels, to_unit
from rhobust.evaluation.answers import check_answers
from rhobust.evaluation.climbing import FastCopy, with_fast_climbs
from rhobust.evaluation.examples import keep_examples
from rhobust.evaluation.judging import Judge, Scored
from rhobust.evaluation.sweeping import BLOCKS, norm_of, sweep
from rhobust.evaluation.target import Target
from rhobust.evaluation.trust import Evaluation, distrust
from rhobust.evaluation.walk import walk
from rhobust.measurements import VOTE_LEVEL, contradictions, robust_curve, unresolved
from rhobust.models.inference import frozen, output_width
from rhobust.progress import ProgressCallback
from rhobust.records import Record, Row, finished_records
from rhobust.settings import kind_of, member_to_json, sizes


def attack_target(
    target: Target,
    attack: AnyAttack,
    radii: Sequence[float],
    *,
    source: Target | None = None,
    scored: Scored | None = None,
    votes: int = 100,
    nested: bool = True,
    probe: bool = True,
    fast: bool = False,
    limit: int | None = None,
    stride: int = 1,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Record:
    """Attack test examples at each radius and record what breaks.

    Unless told otherwise radii are nested: an example that breaks at one is broken at every larger one, so only
    survivors are attacked further. The rows do not depend on interruptions, on the number of processes or, on a CPU,
    on how examples are batched: noise is named by the example and the radius.

    The summary holds `warnings`, reasons to distrust the numbers, and `contradictions` with certificates in the same
    folder, which are errors. Both are looked for once, when the last example is done. A few broken examples are then
    kept as pictures beside the record.

    Args:
        target: The network that is judged.
        attack: The attack and its hyper-parameters.
        radii: Increasing radii, from 0 on.
        source: The network that is attacked, for a transfer attack; where none is given, the target itself.
        scored: Judge by the "base" network or by a vote of the "smoothed" one; where none is given, as the attack
            sees it: EOT smoothed, PGD base, the paper's attack smoothed where the target has a noise.
        votes: Noise draws that judge a smoothed prediction.
        nested: What breaks at a radius is broken at every larger one; without it every example is attacked at every
            radius.
        probe: Attack a few examples again, harder, to see whether the attack was strong enough.
        fast: Let ascents climb a bf16 copy of the network, which pays on a GPU. Under noise it votes, too: judged is
            the smoothed classifier in that arithmetic, the one that `certify_target` speaks of with dtype "bfloat16".
            Without noise the network itself is judged.
        limit: Examples at most.
        stride: Take every stride-th example.
        seed: Names the noise.
        progress: Progress callback; default: shown on stderr.
    """
    radii = check_radii(radii)
    judge = Judge(target, scored or _seen(attack, target), votes)
    origin = target if source is None else source
    if attack.attacks_smoothed:
        origin.smoothing()
    check_pair(origin, target)
    if source is not None:
        # The record names the source by its weights alone.
        check_answers(source)
    if fast:
        copy = FastCopy(origin.model)
        origin = with_fast_climbs(origin, copy)
        if judge.scored == "smoothed":
            judge = replace(judge, voter=copy if source is None else FastCopy(target.model))
    indices = target.data.places(limit, stride)
    settings: Row = {
        "attack": member_to_json(attack, AnyAttack),
        "norm": norm_of(attack),
        "scored": judge.scored,
        "radii": list(radii),
        "votes": votes if judge.scored == "smoothed" else None,
        "nested": nested,
        "source": None if source is None else source_identity(source),
        "probe": probe,
        "limit": limit,
        "stride": stride,
        "seed": seed,
        **({"climbed": "bfloat16"} if fast else {}),
        **target.identity(),
        "dtype": judge.dtype,
    }
    kind = kind_of(type(attack))
    writer = target.writer("attack", kind, settings)

    def summarise(rows: list[Row]) -> dict[str, Any]:
        evaluation = Evaluation(origin, judge, attack, tuple(radii), seed)
        warnings, measured = distrust(evaluation, rows, probe=probe, beside=writer.record())
        beside = [writer.record(), *finished_records(writer.path.parent, "certify")]
        keep_examples(evaluation, rows, writer.path, nested=nested)
        return {
            "robust_accuracy": robust_curve(rows, radii),
            "vote_level": VOTE_LEVEL if judge.scored == "smoothed" else None,
            **measured,
            "warnings": warnings + unresolved(beside),
            "contradictions": contradictions(beside),
        }

    return walk(
        writer,
        indices,
        lambda block: sweep(origin, attack, radii, [judge], block, seed, nested=nested)[0],
        summarise,
        task=f"attack {kind} {target.name}",
        progress=progress,
        rows_each=len(radii),
        block=BLOCKS[target.device.type],
    )


def check_radii(radii: Sequence[float], name: str = "radii") -> tuple[float, ...]:
    """The radii as floats; those that are negative, not sorted, or none at all are refused."""
    found = sizes(name, radii)
    if any(later <= earlier for earlier, later in itertools.pairwise(found)):
        raise ValueError(f"{name} must increase, got {' '.join(f'{radius:g}' for radius in found)}")
    return found


def check_pair(source: Target, target: Target) -> None:
    """Refuse a network that has no class for a label, and a source that was trained for other images."""
    image, labels = to_unit(target.data.images[:1]), target.data.labels
    for network in (source, target):
        try:
            check_labels(labels, output_width(network.model, image.to(network.device)))
        except ValueError as error:
            raise ValueError(f"{network.name}: {error}") from error
    with frozen(source.model) as frozen_model, torch.enable_grad():
        if not frozen_model(image.to(source.device).requires_grad_()).requires_grad:
            raise ValueError(f"{source.name} must be differentiable to be attacked, but its output has no gradient")


def source_identity(source: Target) -> Row:
    """What a record says of the network that was attacked in the target's place."""
    return {"name": source.name, "model_hash": source.model_hash, "sigma": source.sigma}


def _seen(attack: AnyAttack, target: Target) -> Scored:
    return (
        "smoothed" if attack.attacks_smoothed or (isinstance(attack, PaperPGD) and target.sigma is not None) else "base"
    )
