"""Decoded images kept on disk: decoded once, read back whole or not at all.

Beside the array lies a description: what the folder looked like, the checksum of every image file, and the
digest of the array. An array that does not fit its description is decoded anew. An image file whose contents
changed under its name since it was first decoded is refused.
"""

import hashlib
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rhobust.progress import Report, Step
from rhobust.records import read_json, write_json

from rhobust.data.images import decode_image
from rhobust.data.tree import Tree


@dataclass(frozen=True)
class DecodedImages:
    """Colour images of one side length out of a tree, kept as an array."""

    folder: Path
    """Where array and description lie."""
    label: str
    """What their names start with."""
    side: int
    """Height and width that every image must have."""

    @property
    def _array(self) -> Path:
        return self.folder / f"{self.label}.npy"

    @property
    def _description(self) -> Path:
        return self.folder / f"{self.label}.json"

    def load(self, tree: Tree, names: Sequence[str], report: Report) -> np.ndarray:
        """The images of these files, uint8 (n, 3, side, side), from the array when it is still theirs."""
        if self._array.is_file() and (description := self._read_description()):
            if description.get("stamp") == _stamp(tree, names):
                if (images := self._read_array(description, len(names))) is not None:
                    return images
                report(f"{self._array} is damaged: decoding again")
            else:
                report(f"{tree.path} changed since it was decoded: decoding again")
        return self.decode(tree, names, report)

    def decode(self, tree: Tree, names: Sequence[str], report: Report) -> np.ndarray:
        """Decode every file, keep the array, and return it."""
        known = self._read_description().get("files", {})
        images = np.empty((len(names), 3, self.side, self.side), np.uint8)
        files = {}
        for done, name in enumerate(names):
            content = tree.read(name)
            files[name] = f"{len(content)} {zlib.crc32(content):08x}"
            if known.get(name, files[name]) != files[name]:
                raise ValueError(
                    f"{tree.path / name} must have the contents it was first decoded with, but they changed: "
                    f"restore it, or delete {self._description} to accept it"
                )
            pixels = decode_image(content, tree.path / name, 3)
            if pixels.shape != images.shape[1:]:
                _, height, width = pixels.shape
                raise ValueError(
                    f"{tree.path / name} must be {self.side}x{self.side} pixels, got {width}x{height}; replace it"
                )
            images[done] = pixels
            report(Step(f"decoding {self.label}", done + 1, len(names), "images"))
        self._write(images, {"stamp": _stamp(tree, names), "sha256": _digest(images), "files": files}, report)
        return images

    def _read_description(self) -> dict[str, Any]:
        if not self._description.is_file():
            return {}
        try:
            description = read_json(self._description)
        except ValueError as error:
            raise ValueError(f"{error}; delete it") from None
        if not isinstance(description, dict) or not isinstance(description.get("files", {}), dict):
            raise ValueError(f"{self._description} must describe decoded images, but it is damaged; delete it")
        return description

    def _read_array(self, description: dict[str, Any], count: int) -> np.ndarray | None:
        try:
            images = np.load(self._array, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        whole = images.dtype == np.uint8 and images.shape == (count, 3, self.side, self.side)
        return images if whole and _digest(images) == description.get("sha256") else None

    def _write(self, images: np.ndarray, description: dict[str, Any], report: Report) -> None:
        # The description goes last: what a kill leaves between the two does not fit, and is decoded anew.
        part = self.folder / f".{self._array.name}.{os.getpid()}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                with part.open("wb") as file:
                    np.save(file, images, allow_pickle=False)
                    file.flush()
                    os.fsync(file.fileno())
                part.replace(self._array)
            finally:
                part.unlink(missing_ok=True)
            write_json(self._description, description)
        except OSError as error:
            report(f"decoded images are not kept: {self.folder} cannot be written ({error.strerror})")


def _stamp(tree: Tree, names: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0{tree.stamps[name]}\n".encode())
    return digest.hexdigest()


def _digest(images: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(images).data).hexdigest()
