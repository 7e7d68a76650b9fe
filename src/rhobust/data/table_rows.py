"""Rows of a Hugging Face data set: which columns are images and labels, and how they are read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rhobust.data.dataset import Dataset, Split
from rhobust.data.decoded import MappedImages, Shape, decode_once
from rhobust.data.images import IMAGE_KEYS, header_of
from rhobust.data.labels import LABEL_KEYS, MOST_CLASSES, numbered
from rhobust.data.sizing import Sizing, common_shape, decode_sized, in_order
from rhobust.data.source import hash_order, split_message
from rhobust.files import read_file
from rhobust.progress import ProgressCallback, ProgressEvent
from rhobust.user_code import UserCode, import_extra

PREFIX = "hf-datasets:"
"""Start of the name of such a data set."""
_PLAIN = ("int", "uint", "string", "large_string")


class Columns(NamedTuple):
    """The columns that are used."""

    image: str
    """Column of the images."""
    label: str | None
    """Column of the labels; None if there is none."""
    classes: tuple[str, ...] | None
    """Names of the classes; None: numbers, or the labels themselves are names."""


@dataclass(frozen=True)
class TableRows:
    """Rows of one split, with their images not decoded yet."""

    table: Any
    """The split."""
    others: Sequence[Any]
    """Splits that have the same classes, size and channels."""
    where: Path
    """Where they are."""

    def load(
        self,
        chosen: str,
        split: Split,
        sizing: Sizing,
        root: Path,
        progress: ProgressCallback,
        *,
        name: str,
        unsplit: bool = False,
        shuffled: bool = False,
    ) -> Dataset:
        """The images and labels; of an unsplit table, those of one part.

        Args:
            chosen: What messages call the table's split.
            split: The split, or the part of an unsplit table.
            sizing: How images are resized and cropped.
            root: Folder of the data sets.
            progress: Progress callback; gets the columns.
            name: Name of the data set.
            unsplit: Whether the stored pixels of an image choose its part.
            shuffled: Whether images are in a shuffled order that depends on the number of their row only.
        """
        columns = find_columns(self.table.features)
        if columns is None or columns.label is None:
            missing = "images" if columns is None else "labels"
            raise ValueError(f"{self.where} must have a column of {missing}, got {', '.join(self.table.column_names)}")
        progress(f"{self.where}, split {chosen}: images are the column {columns.image}, labels {columns.label}")
        everything, classes, named = self._labels(columns, chosen)
        order = list(range(len(self.table)))
        if shuffled:
            order.sort(key=lambda row: hash_order(str(row)))
        stamp = " ".join(str(part._fingerprint) for part in (self.table, *self.others))
        cache = MappedImages.of(
            root,
            self.where / f"{chosen}:{columns.image}",
            split,
            sizing,
            [Path(file["filename"]) for file in self.table.cache_files],
            len(order),
            stamp,
        )
        part = split if unsplit else None
        places, images, origin = decode_once(
            cache,
            lambda: self._shape(columns, sizing),
            lambda shape: self._images(columns, order, shape, sizing, part, name, progress),
            len(order),
            str(self.where),
            progress,
        )
        if not places:
            raise ValueError(f"{self.where} must have an image for its {split} split, but the pixels of none choose it")
        if unsplit:
            progress(split_message(self.where, split, len(places), len(order)))
        labels = everything[[order[place] for place in places]]
        return Dataset(name, split, images, labels, classes, named=named, origin=origin)

    def _labels(self, columns: Columns, chosen: str) -> tuple[torch.Tensor, tuple[str, ...], bool]:
        """The label of every row, the names of the classes, and whether they are names."""
        values = [list(part[columns.label]) for part in (self.table, *self.others) if columns.label in part.features]
        flat = [value for part in values for value in part]
        numbers = all(isinstance(value, int) for value in flat)
        if numbers and min(values[0]) < 0:
            raise ValueError(f"{self.where} must have labels in its split {chosen}, got {min(values[0])}: name another")
        if numbers and max(flat) >= MOST_CLASSES:
            raise ValueError(f"{self.where} must have labels below {MOST_CLASSES:,}, got {max(flat)}")
        if columns.classes is not None:
            return numbered(values[0], len(values[0]), columns.classes)[0], columns.classes, True
        if not numbers and not all(isinstance(value, str) for value in flat):
            raise ValueError(f"{self.where} must have whole numbers or names in {columns.label}, got others")
        classes = tuple(map(str, range(max(flat) + 1))) if numbers else tuple(sorted(set(flat)))
        return numbered(values[0], len(values[0]), classes)[0], classes, not numbers

    def _contents(self, columns: Columns, table: Any, order: Sequence[int]) -> Iterator[tuple[bytes, Path]]:
        """The file of each image and a path that messages call it by."""
        raw = table.with_format(None).select_columns([columns.image])
        if hasattr(table.features[columns.image], "decode"):
            raw = raw.cast_column(columns.image, import_datasets().Image(decode=False))
        for row in order:
            with UserCode(f"{self.where} must be readable, but datasets raised"):
                value = raw[row][columns.image]
            path = self.where / f"row {row}"
            held = value.get("bytes") if isinstance(value, Mapping) else value
            if held is None and isinstance(value, Mapping) and value.get("path"):
                path = Path(value["path"])
                held = read_file(path)
            if not isinstance(held, bytes):
                raise ValueError(f"{path} must hold an image, but it is empty")
            yield held, path

    def _shape(self, columns: Columns, sizing: Sizing) -> Shape:
        headers = (
            (path, header_of(content, path))
            for table in (self.table, *self.others)
            if columns.image in table.features
            for content, path in self._contents(columns, table, range(len(table)))
        )
        return common_shape(headers, sizing, f"of {self.where}")

    def _images(
        self,
        columns: Columns,
        order: Sequence[int],
        shape: Shape,
        sizing: Sizing,
        part: Split | None,
        name: str,
        progress: ProgressCallback,
    ) -> Iterator[tuple[int, np.ndarray]]:
        def decode(file: tuple[bytes, Path]) -> np.ndarray | None:
            return decode_sized(*file, shape, sizing, part)

        for place, image in enumerate(in_order(decode, self._contents(columns, self.table, order))):
            if image is not None:
                yield place, image
            progress(ProgressEvent(name, place + 1, len(order), "images"))


def find_columns(features: Mapping[str, Any]) -> Columns | None:
    """The columns of images and labels, by their types; by their names only where several have the type.

    Images are an `Image`, else a file's bytes. Labels are a `ClassLabel`, else whole numbers or strings with a usual
    name. None without a column of images.
    """
    kinds = {name: type(feature).__name__ for name, feature in features.items()}
    stored = [name for name, feature in features.items() if _is_file(feature)]
    image = _choose("images", [name for name, kind in kinds.items() if kind == "Image"] or stored, IMAGE_KEYS)
    if image is None:
        return None
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    plain = [name for name in LABEL_KEYS if str(getattr(features.get(name), "dtype", "")).startswith(_PLAIN)]
    label = _choose("labels", labels or plain[:1], LABEL_KEYS)
    names = getattr(features[label], "names", None) if label is not None else None
    return Columns(image, label, None if names is None else tuple(map(str, names)))


def _is_file(feature: Any) -> bool:
    """Whether a column holds the bytes of files, plain or as `{bytes, path}`."""
    held = feature.get("bytes") if isinstance(feature, Mapping) else feature
    return getattr(held, "dtype", None) in ("binary", "large_binary")


def _choose(what: str, found: list[str], usual: Sequence[str]) -> str | None:
    if len(found) < 2:
        return found[0] if found else None
    known = [name for name in usual if name in found]
    if not known:
        raise ValueError(f"columns of {what} must be one, got {', '.join(found)}: keep one with select_columns")
    return known[0]


def import_datasets() -> Any:
    """The package datasets."""
    return import_extra("datasets", "hub", f"{PREFIX} data needs")
