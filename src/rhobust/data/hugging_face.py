"""Data sets of Hugging Face `datasets`: saved folders, folders of parquet files, hub ids, and live objects."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rhobust.data.dataset import Dataset, Split
from rhobust.data.sizing import AS_STORED, Sizing
from rhobust.data.source import DatasetCheck, data_root, fetch_command, summarise_check
from rhobust.data.table_rows import PREFIX, TableRows, find_columns, import_datasets
from rhobust.progress import ProgressCallback
from rhobust.user_code import UserCode

FOLDER = "hf-datasets"
"""Folder of those that were downloaded, under the root of the data sets."""
TEST_SPLITS = ("test", "validation", "valid", "val")
"""Splits that serve as the test split; the first that is there."""
_SAVED = ("dataset_dict.json", "state.json")
_LIVE = ("datasets.arrow_dataset", "datasets.dataset_dict")


@dataclass(frozen=True)
class HuggingFace:
    """`hf-datasets:SOURCE[:SPLIT[:CONFIG]]`: a folder of `save_to_disk` or of parquet files, or a hub id.

    A hub id is read from `ROOT/hf-datasets`, where `fetch` saves it: nothing else downloads. SPLIT is what is tested;
    default: `test`, else `validation`. The split `train` is trained on. A data set with one split only is split by the
    stored pixels of each image (`in_test_part`), unless that split is a test split: then it is tested whole. Images
    are chosen by the type of their column, and so are labels; a message says which. Images are in a shuffled order that
    depends on the number of their row only, so the first hundred are a fair sample of data that is sorted by class.
    """

    spec: str
    """What follows `hf-datasets:`."""
    sizing: Sizing = AS_STORED
    """How images are resized and cropped."""

    def __post_init__(self) -> None:
        source = self._parts[0]
        if not source or (source != self.spec and self.spec.count(":") > 2):
            raise ValueError(f"data must be {PREFIX}FOLDER-or-ID[:split[:config]], got {PREFIX}{self.spec}")

    @property
    def _parts(self) -> tuple[str, str | None, str | None]:
        """Source, split and config; a folder may have colons in its name."""
        if Path(self.spec).expanduser().is_dir():
            return self.spec, None, None
        source, split, config, *_ = [*self.spec.split(":"), "", ""]
        return source, split or None, config or None

    @property
    def name(self) -> str:
        """The last part of the source's name, with the split and the config if they were named."""
        source, split, config = self._parts
        return "-".join([Path(source).expanduser().resolve().name, *(part for part in (split, config) if part)])

    @property
    def description(self) -> str:
        """Where it is."""
        return f"images of Hugging Face datasets in {self._parts[0]}"

    def locate(self, root: Path) -> Path | None:
        """The folder that was named, or the one that a hub id was saved in."""
        named, saved = Path(self._parts[0]).expanduser(), self._saved(root)
        return named if named.is_dir() else saved if saved.is_dir() else None

    def load(self, root: Path, split: Split, progress: ProgressCallback) -> Dataset:
        """One split; messages say which columns and which split were taken, or how a single split was divided."""
        splits, where = self._open(root)
        return self._load(splits, where, root, split, progress)

    def check(self, root: Path, progress: ProgressCallback) -> DatasetCheck:
        """Decode every image."""
        splits, where = self._open(root)
        trained = "train" in splits or self._unsplit(splits)
        train = self._load(splits, where, root, "train", progress) if trained else None
        test = self._load(splits, where, root, "test", progress)
        files = {file["filename"] for part in splits.values() for file in part.cache_files}
        return summarise_check(test.name, where, len(files), train, test, test.num_classes)

    def fetch(self, root: Path, progress: ProgressCallback) -> str:
        """Download a data set of the hub, with all of its splits, by the rules of `datasets` and its cache."""
        if self.locate(root) is not None:
            return "already there"
        source, _, config = self._parts
        datasets = import_datasets()
        with _calling(f"{PREFIX}{source}", datasets):
            splits = datasets.load_dataset(source, config)
            part = self._saved(root).with_name(f".{self._saved(root).name}.part")
            shutil.rmtree(part, ignore_errors=True)
            splits.save_to_disk(str(part))
        part.rename(self._saved(root))
        return f"the hub's {source}"

    def _saved(self, root: Path) -> Path:
        source, _, config = self._parts
        return root / FOLDER / "--".join([*source.split("/"), *([config] if config else [])])

    def _open(self, root: Path) -> tuple[dict[str, Any], Path]:
        """The splits by their names, and their folder."""
        source, named, config = self._parts
        where, datasets = self.locate(root), import_datasets()
        if where is None and (source.count("/") > 1 or source.startswith((".", "/", "~"))):
            raise ValueError(f"{PREFIX}{source} must be a folder, or an id of the hub, but there is no such folder")
        if where is None:
            raise ValueError(
                f"{PREFIX}{source} must be a folder, or a data set of the hub under {root / FOLDER}, but it is neither;"
                f" run {fetch_command(f'{PREFIX}{self.spec}', root)}"
            )
        saved = any((where / name).is_file() for name in _SAVED)
        if saved and config and where != self._saved(root):
            raise ValueError(f"{where} must be named without a config, as save_to_disk wrote one only, got {config}")
        with _calling(f"{PREFIX}{source}", datasets):
            found = datasets.load_from_disk(str(where)) if saved else datasets.load_dataset(str(where), config)
        splits = _named_splits(found)
        if named is not None and named not in splits:
            raise ValueError(f"{where} must have the split {named}, got {', '.join(splits)}")
        return splits, where

    def _unsplit(self, splits: Mapping[str, Any]) -> bool:
        return self._parts[1] is None and not any(name in splits for name in TEST_SPLITS)

    def _load(
        self, splits: dict[str, Any], where: Path, root: Path, split: Split, progress: ProgressCallback
    ) -> Dataset:
        named, unsplit = self._parts[1], self._unsplit(splits)
        if unsplit and len(splits) > 1 and "train" not in splits:
            raise ValueError(f"{where} must have a split train or test, got {', '.join(splits)}: name one of them")
        chosen = "train" if split == "train" else named or next((name for name in TEST_SPLITS if name in splits), None)
        if unsplit:
            chosen = "train" if "train" in splits else next(iter(splits))
        if chosen not in splits:
            raise ValueError(f"{where} must have a split {chosen}, got {', '.join(splits)}")
        if not unsplit and "train" not in splits:
            progress(f"{where} is a test part: all of its {len(splits[chosen]):,} images are tested")
        name = self.name + str(self.sizing)
        used = {"train", named, next((name for name in TEST_SPLITS if name in splits), None)} - {chosen}
        rows = TableRows(splits[chosen], [splits[other] for other in sorted(map(str, used)) if other in splits], where)
        return rows.load(chosen, split, self.sizing, root, progress, name=name, unsplit=unsplit, shuffled=True)


def take_live(value: Any, split: Split, sizing: Sizing, limit: int | None, progress: ProgressCallback) -> Any:
    """A live `datasets.Dataset`, or the fitting split of a `DatasetDict`, as a `Dataset`.

    One with a transform of its own, or without columns of images and labels, is returned as it is.

    Args:
        value: The live object.
        split: The split that is wanted.
        sizing: How images are resized and cropped.
        limit: Largest number of images, the first rows; None: no limit.
        progress: Progress callback.
    """
    chosen, others = str(value.split or split) if not isinstance(value, Mapping) else "", list[Any]()
    if isinstance(value, Mapping):
        wanted = TEST_SPLITS if split == "test" else ("train",)
        chosen = next((name for name in wanted if name in value), "")
        if not chosen:
            raise ValueError(f"images must be one split of the DatasetDict, got {', '.join(value)}: pass one of them")
        progress(f"images are the split {chosen} of {', '.join(value)}")
        value, others = value[chosen], [value[name] for name in ("train", *wanted) if name in value and name != chosen]
    columns = find_columns(value.features)
    if value.format["type"] == "custom" or columns is None or columns.label is None:
        return value
    if limit is not None:
        value = value.select(range(min(limit, len(value))))
    files = value.cache_files
    where = Path(files[0]["filename"]).parent if files else Path(value.info.dataset_name or "images")
    name = (value.info.dataset_name or "images") + str(sizing)
    return TableRows(value, others, where).load(chosen, split, sizing, data_root(None), progress, name=name)


def is_live(value: object) -> bool:
    """Whether a value is a `Dataset` or `DatasetDict` of the package datasets, which is not imported to find out."""
    return any(base.__module__ in _LIVE and base.__name__ in ("Dataset", "DatasetDict") for base in type(value).__mro__)


def _named_splits(found: Any) -> dict[str, Any]:
    """The splits of what was opened by their names; a single one may know its own."""
    return (
        {str(name): part for name, part in found.items()}
        if isinstance(found, Mapping)
        else {str(found.split or "train"): found}
    )


@contextmanager
def _calling(name: str, datasets: Any) -> Iterator[None]:
    """Calls of datasets without its progress bars; every error is one line."""
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with UserCode(f"{name} must be readable by datasets, but it raised"):
            yield
    finally:
        if shown:
            datasets.enable_progress_bars()
