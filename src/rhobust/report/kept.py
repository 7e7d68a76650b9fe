"""Images that evaluations kept next to their records: .npz files of arrays, checked before they are shown."""

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from rhobust.files import open_regular
from rhobust.formatting import format_distance
from rhobust.measurements import ROBUST, outcomes
from rhobust.records import Record, Row

LARGEST = 1 << 26
"""Bytes that the arrays of one record may take."""
_ATTACKED = ("index", "label", "radius", "prediction", "distance")


def read_kept(path: Path, record: Record) -> Row:
    """The arrays of the .npz file that an evaluation wrote next to its record.

    Args:
        path: The file.
        record: An attack, a certificate for inputs, or corruptions.

    Raises:
        ValueError: The file is damaged, or does not belong to the record.
    """
    try:
        with open_regular(path, own=True) as source:
            with zipfile.ZipFile(source) as archive:
                size = sum(member.file_size for member in archive.infolist())
            if size > LARGEST:
                raise ValueError(f"it unpacks to {size:,} bytes, at most {LARGEST:,} are read")
            source.seek(0)
            with np.load(source, allow_pickle=False) as file:
                arrays: Row = {name: file[name] for name in file.files}
    except Exception as error:  # an archive can be wrong in every way
        raise ValueError(f"it must be an .npz file of arrays: {str(error) or type(error).__name__}") from None
    CHECKS[record.kind](arrays, record)
    return arrays


def _check_attacked(arrays: Row, attack: Record) -> None:
    _must_hold(arrays, (*_ATTACKED, "before", "after", "classes"))
    before, after = arrays["before"], arrays["after"]
    _check_images(before)
    if before.shape != after.shape:
        raise ValueError(
            f"its images must be uint8 and of one shape before and after, got {before.shape}, {after.shape}"
        )
    _check_columns(arrays, _ATTACKED, len(before))
    if not ((after >= 0) & (after <= 1)).all():
        raise ValueError("its attacked images must be in [0, 1]")
    for index, radius in zip(arrays["index"].tolist(), arrays["radius"].tolist(), strict=True):
        if outcomes(attack, ROBUST, radius).get(index) != 0:
            raise ValueError(f"example {index} must be misclassified at radius {format_distance(radius)} in its record")
    if max(arrays["label"].max(), arrays["prediction"].max()) >= len(arrays["classes"]):
        raise ValueError(f"its labels must be below {len(arrays['classes'])}")


def _check_certified(arrays: Row, certificate: Record) -> None:
    _must_hold(arrays, ("index", "image", "classes"))
    _check_images(arrays["image"])
    _check_columns(arrays, ("index",), len(arrays["image"]))
    if strange := set(arrays["index"].tolist()) - {row["index"] for row in certificate.rows}:
        raise ValueError(f"its images must be in its record, but example {min(strange)} is not")


def _check_corrupted(arrays: Row, record: Record) -> None:
    _must_hold(arrays, ("index", "before", "corruption", "severity", "after", "classes"))
    for name in ("before", "after"):
        _check_images(arrays[name])
    _check_columns(arrays, ("index",), 1)
    _check_columns(arrays, ("corruption", "severity"), len(arrays["after"]))
    if arrays["index"].tolist()[0] not in {row["index"] for row in record.rows}:
        raise ValueError("its image must be in its record, but it is not")


def _must_hold(arrays: Row, names: Sequence[str]) -> None:
    if missing := [name for name in names if name not in arrays]:
        raise ValueError(f"it must hold {', '.join(missing)}")


def _check_images(images: np.ndarray) -> None:
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise ValueError(f"its images must be uint8 (n, 1 or 3, height, width), got {images.dtype} {images.shape}")


def _check_columns(arrays: Row, names: Sequence[str], count: int) -> None:
    if any(arrays[name].shape != (count,) for name in names):
        raise ValueError(f"it must hold one number per image, {count}")


CHECKS: dict[str, Callable[[Row, Record], None]] = {
    "attack": _check_attacked,
    "certify": _check_certified,
    "corruptions": _check_corrupted,
}
"""Kinds of records with pictures, and what these must be like."""
