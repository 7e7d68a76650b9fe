"""Evaluations: frozen dataclasses that are their settings, from the command line to the header of a record.

A field of an evaluation is an option of its command, an entry of the record's header, and part of what identifies the
record. Adding an option is one field and its use; adding an evaluation is one subclass.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, get_args, get_origin

from torch import Tensor

from rhobust.attacks import AnyAttack
from rhobust.certificates import (
    Dtype,
    Repeats,
    Smoothing,
    VoteCounter,
    check_batch_independence,
    noise_kind,
    vote_dtype,
)
from rhobust.certificates.independence import PROBES
from rhobust.evaluation.target import Target
from rhobust.measurements.proved import Summary
from rhobust.progress import ProgressCallback
from rhobust.proofs.procedures import PROCEDURE_ON_DISK
from rhobust.records import Record, Row, is_finished, read_head, record_paths
from rhobust.settings import AUTO, check_at_least, check_declared, check_increasing, from_json, to_json

BLOCK = 100
"""Examples between two writes of a record, unless an evaluation says otherwise: what an interruption can cost."""

_KEYS_ON_DISK = {
    "procedure": "way",
    "estimator": "way",
    "baselines": "beside",
    "predictor": "scored",
    "fast": "climbed",
}
"""Settings that record files call otherwise; no evaluation has two settings with one name on disk."""
_VALUES_ON_DISK: dict[str, dict[Any, Any]] = {
    "procedure": PROCEDURE_ON_DISK,
    "fast": {True: "bfloat16", False: None},
    "stopping": {"e-value": None, "boundary": "boundary", "pairwise": "pairwise", None: None},
}
"""Values of settings that record files call otherwise."""
_OMITTED_ON_DISK = (
    *("climbed", "tolerance", "stopping", "gamma", "outliers", "label_shift", "groups", "agree"),
    *("second_draws", "second_share", "futility"),
)
"""Names on disk that a header leaves out where they are None."""


@dataclass(frozen=True, kw_only=True)
class Evaluation(ABC):
    """What is measured or proved of a target, example by example.

    Rows are a pure function of the settings, the target and the example: they depend neither on interruptions, nor on
    the number of processes, nor on the machine that computes them (up to rounding on other hardware).
    """

    kind: ClassVar[str]
    """First word of the record's file name, and the name of the command."""

    limit: int | None = None
    """Largest number of examples: the first ones. A claim about a distribution needs them in random order."""
    stride: int | None = field(default=1, metadata=AUTO)
    """Take every stride-th example; None spreads `limit` examples evenly over the data."""
    seed: int = 0
    """Random seed."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_at_least(1, self, "limit", "stride")

    def _increasing(self, *names: str) -> None:
        """Keep the radii or sizes in these fields as floats, and refuse what does not increase; a default passes."""
        for name in names:
            values = getattr(self, name)
            if values is not getattr(type(self), name):
                object.__setattr__(self, name, check_increasing(name, values))

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in vars(cls):
            EVALUATIONS.setdefault(cls.kind, cls)

    @property
    def label(self) -> str:
        """Second word of the record's file name."""
        return ""

    @property
    def title(self) -> str:
        """Its kind and what it uses, as tables name it."""
        return f"{self.kind} {self.label}".strip()

    def population(self, target: Target) -> bool:
        """Whether it states something about other images than the test images: none of these may be trained on."""
        return False

    def resolve(self, target: Target) -> Self:
        """Replace the defaults that depend on the target by their values, and refuse what does not fit it."""
        if self.stride is not None:
            return self
        return dataclasses.replace(self, stride=max(1, len(target.data) // (self.limit or len(target.data))))

    def with_defaults(self) -> Self:
        """Replace the defaults that depend on other settings, and not on the target, by their values."""
        return self

    def examples(self, target: Target) -> Sequence[int]:
        """The examples that are evaluated, by their place in the data."""
        return target.data.places(self.limit, 1 if self.stride is None else self.stride)

    def test_images(self, target: Target) -> Tensor:
        """The test images of these examples, uint8."""
        return target.data.images[list(self.examples(target))]

    def settings(self, target: Target) -> Row:
        """The header of the record: every field, what identifies the target, and what follows from both."""
        return {**on_disk(self), **target.identity(), **self.derived(target)}

    def derived(self, target: Target) -> Row:
        """What the header says beyond the fields and the target."""
        return {}

    @classmethod
    def from_settings(cls, settings: Row) -> Self:
        """The evaluation back from the header of a record."""
        return _structure(cls, settings)

    def block(self, target: Target) -> int | None:
        """How many examples `rows` takes at once; an interrupted block is computed again as a whole.

        None where `rows` takes all examples and gives the rows of each as soon as it is done.
        """
        return BLOCK

    def rows_per_example(self, target: Target) -> int:
        """Rows that one example has."""
        return 1

    def samples(self, row: Row) -> int:
        """Noise samples behind a row, for the speed that is shown."""
        return next((row[key] for key in ("draws", "votes") if isinstance(row.get(key), int)), 1)

    @abstractmethod
    def rows(self, target: Target, examples: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
        """Compute the rows of some examples, example by example; each row names its example as `index`."""

    @abstractmethod
    def summarise(self, target: Target, rows: list[Row]) -> Row:
        """What all rows add up to: a function of the rows, so that it can be computed again."""

    def compare(self, target: Target, record: Record) -> Row:
        """What the summary gains from the other records in the folder; the record has its rows and its summary."""
        return {}


@dataclass(frozen=True, kw_only=True)
class NoisyEvaluation(Evaluation):
    """What is measured or proved of a network's votes under noise."""

    dtype: Dtype | None = field(default=None, metadata=AUTO)
    """Arithmetic of the network under noise, part of what is measured or certified; default: bfloat16 on a GPU, float32
    on a CPU."""

    def resolve(self, target: Target) -> Self:
        return dataclasses.replace(super().resolve(target), dtype=self.dtype or vote_dtype(target.device))

    def settings(self, target: Target) -> Row:
        # In place of the arithmetic of a plain call, which the target's identity names.
        return {**super().settings(target), "dtype": self.dtype}

    def smoothing(self, target: Target) -> Smoothing:
        """The smoothed classifier of the target, with the noise that fits its images."""
        sigma, classes, noise = target.smoothing_sigma(), target.data.num_classes, noise_kind(target.data.images)
        return Smoothing.on(target.device, sigma, classes, noise=noise, seed=self.seed, dtype=self.dtype)

    def proved(self, summary: Summary, target: Target, rows: list[Row]) -> Row:
        """What the rows prove, and a warning where the network was trained with other noise."""
        return {**summary(rows, self.settings(target), target.data.dimension), "warnings": target.sigma_warnings()}

    def check_network(self, target: Target) -> Repeats:
        """Refuse a batch-dependent network; each is checked once. Returns what its votes are compared with."""
        smoothing = self.smoothing(target)

        def check() -> Repeats:
            repeats = Repeats()
            images = target.data.images[:PROBES].to(target.device)
            check_batch_independence(VoteCounter(target.model, images, smoothing, repeats))
            return repeats

        return target.once(("batch independence", smoothing), check)


EVALUATIONS: dict[str, type[Evaluation]] = {}
"""Evaluations by their kind, as record files name it."""


def evaluation_of(kind: str, settings: Row) -> Evaluation:
    """The evaluation that a record's header describes; a kind that is not known is a ValueError."""
    if kind not in EVALUATIONS:
        raise ValueError(f"the kind of a record must be one of {', '.join(EVALUATIONS)}, got {kind!r}")
    return EVALUATIONS[kind].from_settings(settings)


def find_record(
    evaluation: Evaluation,
    folder: Path | str,
    *,
    model_hash: str | None,
    sigma: float | None = None,
    split: str | None = None,
    source_hash: str | None = None,
) -> Path | None:
    """The record of an evaluation in a folder, a finished one before an unfinished one; None where there is none.

    A record is found by its header alone: the evaluation that it describes must equal the one that is looked for,
    where a field that was left to the target (`AUTO`) equals any value.

    Args:
        evaluation: What was evaluated.
        folder: A run folder.
        model_hash: Fingerprint of the weights.
        sigma: Smoothing noise; None accepts any.
        split: Split of the data, test or validation; None accepts any.
        source_hash: Fingerprint of the network on which a transfer attack was crafted; None for no transfer attack.
    """
    found = []
    for path in record_paths(folder, evaluation.kind):
        head = read_head(path)
        settings = head.get("settings")
        if head.get("kind") != evaluation.kind or not isinstance(settings, dict):
            continue
        source = settings.get("source")
        crafted_on = source.get("model_hash") if isinstance(source, dict) else None
        if (settings.get("model_hash"), crafted_on) != (model_hash, source_hash):
            continue
        asked = {"sigma": sigma, "split": split}
        if any(value is not None and settings.get(key) != value for key, value in asked.items()):
            continue
        if _describes(settings, evaluation):
            found.append(path)
    return next(filter(is_finished, found), found[0] if found else None)


def _describes(settings: Row, evaluation: Evaluation) -> bool:
    try:
        theirs = type(evaluation).from_settings(settings)
        return _completed(evaluation, theirs) == theirs
    except (ValueError, KeyError, TypeError):
        return False  # a header of another version, or of another program


def _completed(wanted: Any, found: Any, *, auto: bool = False) -> Any:
    """Settings in which every field that was left to the target has the value that it has in others.

    They are made anew, since such a field may decide what others are for: an attack on the base network has no votes.
    """
    if wanted is None and auto:
        return found
    if not dataclasses.is_dataclass(wanted) or isinstance(wanted, type) or type(wanted) is not type(found):
        return wanted
    values = {
        one.name: _completed(getattr(wanted, one.name), getattr(found, one.name), auto=bool(one.metadata.get("auto")))
        for one in dataclasses.fields(wanted)
        if one.init
    }
    return dataclasses.replace(wanted, **values)


def on_disk(evaluation: Evaluation) -> Row:
    """The fields of an evaluation under their names in record files; nested settings but an attack's are flattened."""
    row: Row = {}
    for name, value in to_json(evaluation, AnyAttack).items():
        nested = isinstance(value, dict) and "kind" not in value
        for one, inner in value.items() if nested else [(name, value)]:
            key = _KEYS_ON_DISK.get(one, one)
            known = _VALUES_ON_DISK.get(one, {})
            shown = known.get(inner, inner) if known else inner
            if shown is not None or key not in _OMITTED_ON_DISK:
                row[key] = shown
    return row


def _structure(cls: type, settings: Row) -> Any:
    """A dataclass from those keys of a header that are its fields; what a header does not say takes its default."""
    document: Row = {}
    for one in dataclasses.fields(cls):
        key = _KEYS_ON_DISK.get(one.name, one.name)
        declared = get_args(one.type)[0] if get_origin(one.type) is Annotated else one.type
        if dataclasses.is_dataclass(declared) and isinstance(declared, type):
            document[one.name] = to_json(_structure(declared, settings))
        elif key in settings or key in _OMITTED_ON_DISK:
            value = settings.get(key)
            known = {theirs: ours for ours, theirs in _VALUES_ON_DISK.get(one.name, {}).items()}
            document[one.name] = known.get(value, value) if known else value
    return from_json(cls, document, "the header of a record", AnyAttack)
