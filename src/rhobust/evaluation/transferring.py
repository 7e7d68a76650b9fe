"""Transfer attacks: craft on each of several networks once, judge by all of them."""

import itertools
from collections.abc import Sequence
from typing import Any

from rhobust.attacks import AnyAttack
from rhobust.evaluation.attacking import check_pair, check_radii, source_identity
from rhobust.evaluation.judging import Judge, Scored
from rhobust.evaluation.probing import Evaluation
from rhobust.evaluation.sweeping import BLOCKS, norm_of, sweep
from rhobust.evaluation.target import Target
from rhobust.evaluation.trust import INSPECTED, inspect
from rhobust.evaluation.walk import walk
from rhobust.formatting import format_distance, format_percent
from rhobust.measurements import FEW, GAIN, VOTE_LEVEL, judged_by, most_missed, robust_curve
from rhobust.progress import ProgressCallback
from rhobust.records import Record, Row
from rhobust.settings import kind_of, member_to_json


def transfer_matrix(
    targets: Sequence[Target],
    attack: AnyAttack,
    radii: Sequence[float],
    *,
    scored: Scored | None = None,
    votes: int = 100,
    limit: int | None = None,
    stride: int = 1,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> list[Record]:
    """Attack each network once and judge the attacked inputs by every one: a record a source, in the source's folder.

    The curve of a source's own network is that of the white-box attack.

    Args:
        targets: The networks, all with the same test data.
        attack: The attack and its hyper-parameters.
        radii: Increasing radii, from 0 on.
        scored: Judge by the "base" networks or by votes of the "smoothed" ones; where none is given, smoothed where a
            network has a noise.
        votes: Noise draws that judge a smoothed prediction.
        limit: Examples at most.
        stride: Take every stride-th example.
        seed: Names the noise.
        progress: Progress callback; default: shown on stderr.
    """
    radii = check_radii(radii)
    if len(targets) < 2:
        raise ValueError(f"a transfer attack needs at least two runs, got {len(targets)}")
    if len({target.model_hash for target in targets}) < len(targets):
        raise ValueError("the runs of a transfer attack must have different weights, but two have the same")
    if len({target.data.fingerprint() for target in targets}) > 1:
        raise ValueError("the runs of a transfer attack must have the same test data: name it as data for all")
    judges = [Judge(one, scored or ("base" if one.sigma is None else "smoothed"), votes) for one in targets]
    for target in targets:
        check_pair(target, target)
        if attack.attacks_smoothed:
            target.smoothing()
    return [_from(source, attack, radii, judges, limit, stride, seed, progress) for source in targets]


def _from(
    source: Target,
    attack: AnyAttack,
    radii: Sequence[float],
    judges: Sequence[Judge],
    limit: int | None,
    stride: int,
    seed: int,
    progress: ProgressCallback | None,
) -> Record:
    settings: Row = {
        "attack": member_to_json(attack, AnyAttack),
        "norm": norm_of(attack),
        "radii": list(radii),
        "votes": judges[0].votes,
        "targets": [{**source_identity(judge.target), "scored": judge.scored} for judge in judges],
        "limit": limit,
        "stride": stride,
        "seed": seed,
        **source.identity(),
    }
    kind = kind_of(type(attack))

    def evaluate(block: list[int]) -> list[Row]:
        by_judge = sweep(source, attack, radii, judges, block, seed)
        return [
            {"target": judge.target.model_hash, **row}
            for judge, rows in zip(judges, by_judge, strict=True)
            for row in rows
        ]

    def summarise(rows: list[Row]) -> dict[str, Any]:
        own = next(judge for judge in judges if judge.target.model_hash == source.model_hash)
        indices = list(dict.fromkeys(row["index"] for row in rows))[:INSPECTED]
        return {
            "targets": [
                {
                    "model_hash": judge.target.model_hash,
                    "scored": judge.scored,
                    "robust_accuracy": robust_curve(rows_of(rows, judge.target.model_hash), radii),
                }
                for judge in judges
            ],
            "vote_level": VOTE_LEVEL,
            "warnings": inspect(Evaluation(source, own, attack, tuple(radii), seed), indices),
        }

    return walk(
        source.writer("transfer", kind, settings),
        source.data.places(limit, stride),
        evaluate,
        summarise,
        task=f"transfer {kind} from {source.name}",
        progress=progress,
        rows_each=len(radii) * len(judges),
        block=BLOCKS[source.device.type],
    )


def rows_of(rows: Sequence[Row], model_hash: str) -> list[Row]:
    """The rows that one target answered."""
    return [row for row in rows if row["target"] == model_hash]


def surprising_transfers(records: Sequence[Record]) -> list[str]:
    """Warnings about transfer attacks that break more than two points of what the white-box attack left standing."""
    warnings = []
    for transfer, white_box in itertools.product(records, records):
        if transfer is not white_box:
            warnings += _surprising(transfer, white_box)
    return warnings


def _surprising(transfer: Record, white_box: Record) -> list[str]:
    model_hash = white_box.settings["model_hash"]
    names = {target["model_hash"]: target["name"] for target in white_box.settings["targets"]}
    count, radius, examples = most_missed(judged_by(white_box, model_hash), judged_by(transfer, model_hash))
    if count < FEW or count <= GAIN * examples:
        return []
    source, target = names[transfer.settings["model_hash"]], names[model_hash]
    return [
        f"a transfer attack is stronger than the white-box one: from {source} it breaks"
        f" {format_percent(count / examples, 'nearest')} points of {target} that the attack on itself left robust at"
        f" radius {format_distance(radius)}"
    ]
