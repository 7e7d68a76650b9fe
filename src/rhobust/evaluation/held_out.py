"""The images that a training run held out, and those that it was trained on."""

from pathlib import Path
from typing import get_args

from rhobust.data import Dataset, EvaluationSplit, ImageSet, load
from rhobust.data.registry import KNOWN
from rhobust.data.sizing import Sizing
from rhobust.progress import ProgressCallback
from rhobust.training.loop import split_validation
from rhobust.training.run import Run, check_same_images


def check_split(split: str, *, own: Path | str | None = None) -> None:
    """Raise unless a network can be evaluated on this split.

    The user's own network, by its name `own`, held nothing out.
    """
    if split not in get_args(EvaluationSplit):
        raise ValueError(f"split must be 'test' or 'validation', got {split!r}")
    if own is not None and split != "test":
        raise ValueError(
            f"split must be 'test' for {own}, which is no training run and held nothing out, got {split!r}"
        )


def held_out(
    run: Run,
    *,
    data: str | None = None,
    sizing: Sizing,
    root: Path | str | None = None,
    progress: ProgressCallback | None = None,
) -> tuple[Dataset, ImageSet | None]:
    """The images that a run held out (`TrainConfig.validation`), and the set of those that it was trained on.

    They are the same images as in the training, since the run's lists of its training images and of those that it held
    out are compared with the data. The set is None where an earlier release trained the run, which kept no such list,
    unless the data set is a published one, whose images have one order.

    Args:
        run: The run.
        data: Data that the user named: the run's own, or None.
        sizing: How the user wants images to be resized and cropped: as in the training, or not at all.
        root: Folder of the data sets.
        progress: Progress callback.
    """
    config = run.config
    if not config.validation:
        raise ValueError(f"validation must be > 0 in the training of {run.folder} to evaluate held-out images, got 0")
    if data not in (None, config.data):
        raise ValueError(f"data must be the run's own, {config.data}, to evaluate its held-out images, got {data}")
    if sizing and sizing != config.sizing:
        raise ValueError(
            f"resize and crop must be as in the training, {config.resize} and {config.crop}, to evaluate its held-out"
            f" images, got {sizing.resize} and {sizing.crop}"
        )
    train = load(config.data, "train", root=root, progress=progress, **vars(config.sizing))
    fitting, held = split_validation(train, config)
    check_same_images(run, ImageSet.of(train.images), ImageSet.of(held.images), "evaluated")
    in_order = run.held_out_images() is not None or any(config.data == source.name for source in KNOWN)
    known = in_order and run.training_images() is not None
    return held, ImageSet.of(fitting.images) if known else None
