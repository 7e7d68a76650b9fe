"""How many numbers an image of a record has: part of every bound for distributions."""

import json
import math
import struct
from pathlib import Path
from typing import Any

from rhobust.files import open_regular, read_json
from rhobust.records import Record, network_folder

WEIGHTS, FINGERPRINT, ANSWERS = "model.safetensors", "weights.json", "answers.json"
"""Files of a run folder that say the shape of its images."""
_HEADER = 1 << 24
"""Bytes of a weights file's header that are read at most."""


def image_dimension(record: Record) -> int:
    """Numbers per image, as the record says, or for older records as its folder does.

    Raises:
        ValueError: Neither says it, or both do and differ.
    """
    stated = record.settings.get("dimension", (record.summary or {}).get("dimension"))
    folder = _folder_dimension(network_folder(record.path))
    if stated is None and folder is None:
        raise ValueError(
            f"{record.path} must say how many numbers an image has, or be in the folder of its network, to be proved"
            " from its rows: delete it to evaluate it again"
        )
    if stated is not None and (not isinstance(stated, int) or isinstance(stated, bool) or stated < 1):
        raise ValueError(f"{record.path} must have a whole number >= 1 as dimension, got {stated!r}")
    if stated is not None and folder is not None and stated != folder:
        raise ValueError(f"{record.path} must be of images of {folder} numbers, as its folder is, got {stated}")
    found = folder if stated is None else stated
    assert found is not None  # one of both
    return found


def _folder_dimension(folder: Path) -> int | None:
    """Numbers per image of a run folder's network, by its weights or by what is published in their place."""
    for name, shape in ((WEIGHTS, _weights_shape), (FINGERPRINT, _document_shape), (ANSWERS, _answers_shape)):
        path = folder / name
        try:
            found = shape(path) if path.is_file() else None
            if found is not None:
                return math.prod(int(side) for side in found)
        except (ValueError, OSError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # what is damaged says nothing
    return None


def _weights_shape(path: Path) -> Any:
    with open_regular(path, own=True) as file:
        (size,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        header = json.loads(file.read(size)) if size <= _HEADER else {}
    return json.loads(header["__metadata__"]["rhobust"])["shape"]


def _document_shape(path: Path) -> Any:
    return read_json(path)["shape"]


def _answers_shape(path: Path) -> Any:
    shapes = list(read_json(path)["logits"])
    return shapes[0].split("x") if len(shapes) == 1 else None
