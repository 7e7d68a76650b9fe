"""Transfer attacks: perturb on each of several networks once, predict by all of them."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rhobust.attacks import PGD, AnyAttack
from rhobust.evaluation.attack import check_networks
from rhobust.evaluation.base import Evaluation
from rhobust.evaluation.diagnostics import INSPECTED, Attacked, inspect
from rhobust.evaluation.engine import run
from rhobust.evaluation.sweep import BLOCKS, Predictor, PredictorName, Sweep, norm_of
from rhobust.evaluation.target import Target
from rhobust.executors import Executor
from rhobust.formatting import format_distance, format_percent
from rhobust.measurements import FEW, GAIN, VOTE_LEVEL, most_missed, predicted_by, robust_curve
from rhobust.progress import ProgressCallback
from rhobust.records import Record, Row
from rhobust.settings import AUTO, check_count, kind_of


@dataclass(frozen=True, kw_only=True)
class Transfer(Evaluation):
    """Attack a network and count the predictions of several: one row of a transfer matrix (`transfer_matrix`).

    The curve of the attacked network itself is that of the white-box attack.
    """

    kind: ClassVar[str] = "transfer"

    attack: AnyAttack = PGD()
    """The attack and its hyper-parameters."""
    radii: tuple[float, ...] = (0.0, 0.5)
    """Increasing radii in units of the [0, 1] pixel range, in the attack's norm."""
    predictor: PredictorName | None = field(default=None, metadata=AUTO)
    """Count the predictions of the base networks or of the smoothed classifiers; default: smoothed where a network has
    a noise."""
    votes: int = 100
    """Noise samples per prediction of a smoothed classifier."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._increasing("radii")
        check_count("votes", self.votes)

    @property
    def label(self) -> str:
        return kind_of(type(self.attack))

    def predictors(self, target: Target) -> list[Predictor]:
        """Whose predictions are counted."""
        return [
            Predictor(one, self.predictor or ("base" if one.sigma is None else "smoothed"), self.votes)
            for one in target.predictors
        ]

    def resolve(self, target: Target) -> "Transfer":
        everyone = target.predictors
        if len(everyone) < 2:
            raise ValueError(f"a transfer attack needs at least two runs, got {len(everyone)}")
        if len({one.model_hash for one in everyone}) < len(everyone):
            raise ValueError("the runs of a transfer attack must have different weights, but two have the same")
        if len({one.identity()["data_fingerprint"] for one in everyone}) > 1:
            raise ValueError("the runs of a transfer attack must have the same test data: name it as data for all")
        self.predictors(target)
        check_networks(target, target)
        if self.attack.attacks_smoothed:
            target.smoothing_sigma()
        return super().resolve(target)

    def derived(self, target: Target) -> Row:
        others = [{**one.target.source_identity(), "scored": one.name} for one in self.predictors(target)]
        return {"norm": norm_of(self.attack), "targets": others}

    def block(self, target: Target) -> int:
        return BLOCKS[target.device.type]

    def rows_per_example(self, target: Target) -> int:
        return len(self.radii) * len(target.predictors)

    def rows(self, target: Target, examples: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
        predictors = self.predictors(target)
        found = Sweep(target, self.attack, predictors, list(examples), self.seed).over(self.radii)
        each = len(self.radii)
        for place in range(len(examples)):
            for predictor, rows in zip(predictors, found, strict=True):
                for row in rows[each * place : each * (place + 1)]:
                    yield {"target": predictor.target.model_hash, **row}

    def summarise(self, target: Target, rows: list[Row]) -> Row:
        predictors = self.predictors(target)
        own = next(one for one in predictors if one.target.model_hash == target.model_hash)
        indices = list(dict.fromkeys(row["index"] for row in rows))[:INSPECTED]
        return {
            "targets": [
                {
                    "model_hash": one.target.model_hash,
                    "scored": one.name,
                    "robust_accuracy": robust_curve(rows_of(rows, one.target.model_hash), self.radii),
                }
                for one in predictors
            ],
            "vote_level": VOTE_LEVEL,
            "warnings": inspect(Attacked(target, own, self.attack, self.radii, self.seed), indices),
        }


def transfer_matrix(
    evaluation: Transfer,
    targets: Sequence[Target],
    *,
    executor: Executor | None = None,
    progress: ProgressCallback | None = None,
    wait: bool = False,
) -> list[Record]:
    """Attack each network once and count the predictions of all: one record per attacked network, in its folder.

    Args:
        evaluation: The attack and whose predictions count.
        targets: The networks, all with the same test data.
        executor: Where it is computed, as in `run`.
        progress: Progress callback; default: shown on stderr.
        wait: If another process is writing a record, wait for it and continue from what it left.
    """
    rows = [target.with_predictors(targets) for target in targets]
    for row in rows:
        evaluation.resolve(row)  # refuse before anything is computed
    if not rows:
        raise ValueError("a transfer attack needs at least two runs, got 0")
    return [run(evaluation, row, executor=executor, progress=progress, wait=wait) for row in rows]


def rows_of(rows: Sequence[Row], model_hash: str) -> list[Row]:
    """The rows that one network predicted."""
    return [row for row in rows if row["target"] == model_hash]


def surprising_transfers(records: Sequence[Record]) -> list[str]:
    """Warnings about transfer attacks that succeed on more than two points of what the white-box attack left robust."""
    warnings = []
    for transfer, white_box in itertools.product(records, records):
        if transfer is not white_box:
            warnings += _surprising(transfer, white_box)
    return warnings


def _surprising(transfer: Record, white_box: Record) -> list[str]:
    model_hash = white_box.settings["model_hash"]
    names = {target["model_hash"]: target["name"] for target in white_box.settings["targets"]}
    count, radius, examples = most_missed(predicted_by(white_box, model_hash), predicted_by(transfer, model_hash))
    if count < FEW or count <= GAIN * examples:
        return []
    source, target = names[transfer.settings["model_hash"]], names[model_hash]
    return [
        f"a transfer attack is stronger than the white-box one: from {source} it succeeds on"
        f" {format_percent(count / examples, 'nearest')} points of {target} that the attack on itself left robust at"
        f" radius {format_distance(radius)}"
    ]
