"""Options that say which network is evaluated, and the commands that are made of an evaluation's own fields."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.assessment.diagnosis import first_look
from rhobust.commands.options import (
    Common,
    Counting,
    CountingOptions,
    print_diagnosis,
    print_trained,
    print_warnings,
    record_document,
)
from rhobust.data import EvaluationSplit
from rhobust.data.sizing import Sizing
from rhobust.evaluation import Evaluation, Target, run
from rhobust.evaluation.held_out import check_split
from rhobust.files import check_folder, read_json
from rhobust.models import MODELS
from rhobust.models.sources import has_weights
from rhobust.records import CONFIG, Record
from rhobust.settings import check_positive_number, sizes

FLAT = tyro.conf.arg(name="")
"""Marks options without a prefix of their own on the command line."""


def check_named(folders: Iterable[Path], model: str | None, *, trust: bool) -> None:
    """Raise if --model names code that none of these folders does: it would not be used.

    A folder that names other code is refused when it is opened, unless it is trusted.
    """
    if model is None:
        return
    folders = list(folders)
    named = {_model_of(folder) for folder in folders}
    if model not in named and (trust or named == {None}):
        raise ValueError(
            "a run folder must be given alone, or with the code that it names, but"
            f" {', '.join(map(str, folders[:3]))} does not name {model}"
        )


def _model_of(folder: Path) -> str | None:
    """The user's own code that a folder names; None for a network of this package."""
    config = read_json(folder / CONFIG)
    named = config.get("model") if isinstance(config, dict) else None
    return named if isinstance(named, str) and named not in MODELS else None


@dataclass(frozen=True)
class ModelOptions:
    """The user's own network, or what a folder of its records may run."""

    model: str | None = None
    """The network: package.module:factory, file.py:factory, rhobust:NAME, hf:ID, timm:NAME or torchvision:NAME; with a
    run folder, the code that it may run."""
    weights: Path | None = None
    """Its weights, safetensors or a file of torch.save; default: what the factory or the hub loads itself."""
    mean: tuple[float, ...] | None = None
    """Mean per channel that the user's own network expects to be subtracted from images in [0, 1]."""
    std: tuple[float, ...] | None = None
    """Deviation per channel that it expects to be divided by."""


@dataclass(frozen=True)
class ImageOptions:
    """On which images networks are evaluated."""

    data: str | None = None
    """Test data; default: the run's own."""
    resize: int | None = None
    """Pixels of the shorter side that images are resized to; default: as in the run's training, else as stored."""
    crop: int | None = None
    """Side of the central square that is kept of each image, after resizing; default: likewise."""
    root: Path | None = None
    """Folder of the data sets; default: $RHOBUST_DATA, else a cache folder."""
    trust: bool = False
    """Run the code and read the files that a run folder names, whatever they are."""

    @property
    def sizing(self) -> Sizing:
        """How the user wants images to come to the network's size."""
        return Sizing(self.resize, self.crop)


@dataclass(frozen=True)
class InputOptions(ImageOptions):
    """With which noise and on which images networks are evaluated."""

    sigma: float | None = None
    """Smoothing noise; default: that of the network's training, of a run or `rhobust:NAME`."""

    def __post_init__(self) -> None:
        if self.sigma is not None:
            check_positive_number("sigma", self.sigma)

    def open(self, folder: Path, common: Common, **options: Any) -> Target:
        """The network that a folder is about, with this noise and on these images; options of `Target.from_run`."""
        return Target.from_run(
            folder,
            device=common.device,
            sigma=self.sigma,
            data=self.data,
            root=self.root,
            progress=common.progress,
            trust=self.trust,
            **vars(self.sizing),
            **options,
        )


@dataclass(frozen=True)
class NetworkOptions(InputOptions, ModelOptions):
    """Which network, with which noise and on which images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None:
                sizes(name, values)

    def check_alone(self) -> None:
        """Refuse what no network of a run folder takes."""
        for name in ("mean", "std"):
            if getattr(self, name) is not None:
                raise ValueError(f"a run folder must be given alone, but --{name} was given with it")


@dataclass(frozen=True)
class DataOptions(InputOptions):
    """On which of the data's images networks are evaluated."""

    split: EvaluationSplit = "test"
    """validation: the training images that the run held out (train --validation), in place of test data."""
    unseen: bool = False
    """Leave out the test images that the run was trained on."""

    def load(self, folder: Path, common: Common, *, model: str | None = None, weights: Path | None = None) -> Target:
        """The network of a run folder, or the user's own that a folder of records is about."""
        return self.open(folder, common, split=self.split, model=model, weights=weights, unseen=self.unseen)


@dataclass(frozen=True)
class TargetOptions(DataOptions, NetworkOptions):
    """Which network is evaluated: a run folder, or the user's own network."""

    run: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None
    """A run folder, or the folder of your own network's records; or give --model, --data and --out."""
    out: Path | None = None
    """Folder for the records of the user's own network."""

    def check(self) -> None:
        """Refuse places where results cannot be written, before work begins."""
        if self.out is not None:
            check_folder("out", self.out)

    def without_record(self, evaluation: Evaluation, common: Common) -> dict[str, Any] | None:
        """The result, where it has no record; None for what is evaluated on test data."""
        return None

    def target(self, common: Common) -> Target:
        """Load the network and its test data."""
        if self.run is not None:
            if self.out is not None:
                raise ValueError("a run folder must be given alone, but --out was given with it")
            self.check_alone()
            check_named([self.run], self.model, trust=self.trust)
            return self.load(self.run, common, model=self.model, weights=self.weights)
        if self.model is None or self.data is None or self.out is None:
            missing = [name for name in ("model", "data", "out") if getattr(self, name) is None]
            raise ValueError(
                f"a run folder, or all of --model, --data and --out must be given, got no --{', no --'.join(missing)}"
            )
        check_split(self.split, own=self.model)
        target = Target.from_weights(
            self.model,
            self.weights,
            data=self.data,
            folder=self.out,
            mean=self.mean,
            std=self.std,
            device=common.device,
            sigma=self.sigma,
            root=self.root,
            progress=common.progress,
            resize=self.resize,
            crop=self.crop,
        )
        return target.unseen() if self.unseen else target


@dataclass(frozen=True)
class AttackTargetOptions(TargetOptions):
    """Which network is attacked, and on which one the attack is crafted."""

    source: Path | None = None
    """A run folder on whose network the attack is crafted: a transfer attack; default: a white-box attack."""

    def target(self, common: Common) -> Target:
        target = super().target(common)
        return target if self.source is None else target.with_source(self.source, trust=self.trust, model=self.model)


@dataclass(frozen=True)
class RunsOptions(DataOptions):
    """Which runs are evaluated together."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")] = ()
    """Run folders."""
    model: str | None = None
    """The code of a user's own network, package.module:factory, that the run folders may run."""

    def targets(self, common: Common) -> list[Target]:
        """Load the networks and their test data."""
        if not self.runs:
            raise ValueError("at least one run folder must be given, got none")
        check_named(self.runs, self.model, trust=self.trust)
        return [self.load(folder, common, model=self.model) for folder in self.runs]


def evaluation_command(
    evaluation: type[Evaluation],
    show: Callable[[dict[str, Any]], None],
    *,
    target: type[TargetOptions] = TargetOptions,
    after: Callable[[Record, Any], dict[str, Any]] | None = None,
    failure: Callable[[dict[str, Any]], str | None] | None = None,
    diagnosed: bool = False,
) -> type:
    """The command of an evaluation: its fields as options, which target, and how the result is shown.

    Args:
        evaluation: The evaluation; each of its fields is an option, and its docstring is the command's help.
        show: Prints the result for people; its warnings and the record's path follow.
        target: Options that say which network is evaluated.
        after: What the result gains from the record and the target's options, each time the command is run.
        failure: Why a result, though it was computed and shown, must not be used; None for nearly all.
        diagnosed: Whether the accuracy of the base network is shown too, with what explains low numbers.
    """

    def run_command(self: Any) -> dict[str, Any]:
        self.target.check()
        if (found := self.target.without_record(self.evaluation, self.common)) is not None:
            return found
        target, common = self.target.target(self.common), self.common
        record = run(self.evaluation, target, executor=common.chosen(), progress=common.progress, wait=common.wait)
        document = {**record_document(record), **({} if after is None else after(record, self.target))}
        if diagnosed:
            given = self.target.weights is not None or self.target.run is not None
            named = target.factory is None or given or has_weights(target.factory)
            examples = sorted({row["index"] for row in record.rows})
            document["diagnosis"] = first_look(target, examples, weights_named=named)
        return document

    def show_result(self: Any, result: dict[str, Any]) -> None:
        show(result)
        if "record" not in result:
            print_warnings(result["warnings"])
            return
        if "diagnosis" in result:
            print_diagnosis(result["diagnosis"])
        print_trained(result)
        print_warnings(result["summary"].get("warnings", []))
        print(result["record"])

    members: dict[str, Any] = {"run": run_command, "show": show_result}
    members["failure"] = lambda self, result: None if failure is None else failure(result)
    command = make_dataclass(
        f"{evaluation.__name__}Command",
        [
            ("target", Annotated[target, FLAT], field(default_factory=target)),
            ("evaluation", Annotated[evaluation, FLAT], field(default_factory=evaluation)),
            ("common", CountingOptions, field(default_factory=Counting)),
        ],
        frozen=True,
        namespace=members,
    )
    command.__doc__ = evaluation.__doc__
    return command
