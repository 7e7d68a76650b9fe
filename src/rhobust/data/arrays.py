"""Arrays of `.npz` and `.npy` files.

Sizes are checked before anything is unpacked, and pickles are never read.
"""

import io
import math
import os
import struct
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from rhobust.data.labels import MOST_CLASSES
from rhobust.files import open_regular

_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_MOST_HEADER = 10_000
"""Largest header of an array in bytes, numpy's own limit."""
_LONGEST = 300
"""Characters of an error that are shown: numpy's quote the whole header."""
_KINDS = "biufU"
"""Kinds of numpy's types that are read: numbers, and names of classes."""
SHARD = 1 << 24
"""Bytes that are read at once of an array that is not held in memory."""


@dataclass(frozen=True)
class ArrayHeader:
    """What a file says of an array."""

    shape: tuple[int, ...]
    by_column: bool
    """Whether the first index changes fastest: its images are not one after the other."""
    dtype: np.dtype

    @property
    def size(self) -> int:
        """Number of bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def check_memory(name: str, size: int) -> None:
    """Raise a one-line ValueError if so many bytes take more than half of the memory: splitting makes a copy."""
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every platform says
        return
    if 2 * size > there:
        raise ValueError(
            f"{name} must fit into half of the memory, but takes {size / 2**30:,.1f} GiB of {there / 2**30:,.1f}"
        )


def read_arrays(path: Path, names: Collection[str], *, bare: str | None = None) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file, or the array of an `.npy` file.

    The size that a header promises is compared with the bytes that are there before memory is taken. Encrypted
    archives, other compressions than numpy's, and pickled objects are refused.

    Args:
        path: The file.
        names: Arrays to read; others are left out.
        bare: Name given to the array of an `.npy` file; None: such a file is an error.
    """
    with _opened(path, bare) as file:
        if bare is not None and not _is_zip(file):
            return {bare: _read_array(file, path.stat().st_size, bare)}
        return {name: _read_array(member, size, name) for name, member, size in _members(file, names)}


def read_headers(path: Path, names: Collection[str]) -> dict[str, ArrayHeader]:
    """What the headers of the arrays of an `.npz` file say.

    Names that are not there are left out.
    """
    with _opened(path, None) as file:
        return {name: _read_header(member, size, name) for name, member, size in _members(file, names)}


def read_shards(path: Path, name: str) -> Iterator[np.ndarray]:
    """An array of an `.npz` file in parts along its first axis, so that it is never held in memory.

    At the end its checksum has been compared.
    """
    with _opened(path, None) as file:
        for _, member, size in _members(file, (name,)):
            header = _read_header(member, size, name)
            each = header.size // max(1, header.shape[0])
            step = max(1, SHARD // max(1, each))
            for first in range(0, header.shape[0], step):
                count = min(step, header.shape[0] - first)
                yield _filled(member, (count, *header.shape[1:]), header.dtype, name)
            _check_end(member, name)


@contextmanager
def _opened(path: Path, bare: str | None) -> Iterator[IO[bytes]]:
    """An open file; whatever is wrong with it is one line that names it."""
    kind = ".npz" if bare is None else ".npz or .npy"
    if not path.is_file():
        found = "it is no regular file" if path.exists() else "there is no such file"
        raise ValueError(f"{path} must be an {kind} file, but {found}")
    try:
        with open_regular(path) as file:
            yield file
    except Exception as error:  # an archive can be wrong in every way
        reason = " ".join(str(error).split())[:_LONGEST] or type(error).__name__
        raise ValueError(
            f"{path} must be a whole {kind} of plain arrays, but it is damaged or holds something else: {reason}; "
            f"write it again with {'np.savez' if bare is None else 'np.savez or np.save'}"
        ) from None


def _is_zip(file: IO[bytes]) -> bool:
    start = file.read(4)
    file.seek(0)
    return start in _ZIP_MAGIC


def _members(file: IO[bytes], names: Collection[str]) -> Iterator[tuple[str, IO[bytes], int]]:
    """The arrays of these names in an archive: name, content and its size."""
    if not _is_zip(file):
        raise ValueError("it is no archive of arrays")
    seen = set[str]()
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name not in names:
                continue
            if name in seen:
                raise ValueError(f"it holds two arrays {name}")
            if info.flag_bits & 1:
                raise ValueError(f"{name} is encrypted")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{name} is compressed by method {info.compress_type}, which numpy does not write")
            seen.add(name)
            with archive.open(info) as member:
                yield name, member, info.file_size


def _read_header(file: IO[bytes], size: int, name: str) -> ArrayHeader:
    """The header of an open `.npy` file of this size."""
    version = np.lib.format.read_magic(file)
    layout = {(1, 0): "<H", (2, 0): "<I"}.get(version)
    if layout is None:
        raise ValueError(f"{name} has version {version[0]}.{version[1]} of the format, only 1.0 and 2.0 are read")
    prefix = file.read(struct.calcsize(layout))
    (length,) = struct.unpack(layout, prefix)
    if length > _MOST_HEADER:
        raise ValueError(f"the header of {name} has {length:,} bytes, at most {_MOST_HEADER:,} are read")
    header = io.BytesIO(prefix + file.read(length))
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_column, dtype = read_header(header)
    if dtype.hasobject:
        raise ValueError(f"{name} holds pickled objects")
    if dtype.kind not in _KINDS or not dtype.itemsize or dtype.shape:
        raise ValueError(f"{name} must hold numbers, got the type {dtype}")
    if any(side < 0 for side in shape):
        raise ValueError(f"{name} must have sides >= 0, got {shape}")
    promised, there = math.prod(shape) * dtype.itemsize, size - len(np.lib.format.magic(*version)) - header.tell()
    if promised != there:
        raise ValueError(f"the header of {name} promises {promised:,} bytes, but {there:,} are there")
    return ArrayHeader(shape, by_column, dtype)


def _read_array(file: IO[bytes], size: int, name: str) -> np.ndarray:
    header = _read_header(file, size, name)
    check_memory(name, header.size)
    shape = header.shape[::-1] if header.by_column else header.shape
    array = _filled(file, shape, header.dtype, name)
    _check_end(file, name)
    return array.transpose() if header.by_column else array


def _filled(file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype, name: str) -> np.ndarray:
    """An array of this shape, of the next bytes of a file."""
    array = np.empty(shape, dtype)
    rest = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
    while rest:
        done = file.readinto(rest)  # type: ignore[attr-defined]
        if not done:
            raise EOFError(f"{name} is cut off")
        rest = rest[done:]
    return array


def _check_end(file: IO[bytes], name: str) -> None:
    if file.read(1):  # at its end an archive compares the checksum
        raise ValueError(f"{name} is longer than its header promises")


def channels_first(x: np.ndarray, name: str) -> np.ndarray:
    """8-bit images as (n, channels, height, width), from (n, h, w), or from (n, h, w, c) or (n, c, h, w), c 1 or 3."""
    if x.dtype != np.uint8:
        raise ValueError(
            f"{name} must be uint8 (values 0..255), got {x.dtype}: the certificates' noise "
            f"is on the 1/255 grid; {_as_bytes(x)}"
        )
    if x.ndim == 3:
        return x[:, None]
    places = [axis for axis in (1, 3) if x.ndim == 4 and x.shape[axis] in (1, 3)]
    if len(places) != 1:
        trouble = "either may be the channels" if places else "no axis has 1 or 3 channels"
        raise ValueError(f"{name} must be (n, h, w), (n, h, w, c) or (n, c, h, w), got {x.shape}: {trouble}")
    return x if places == [1] else np.ascontiguousarray(x.transpose(0, 3, 1, 2))


def _as_bytes(x: np.ndarray) -> str:
    """Advice how to convert to uint8; a wrong factor would silently overflow."""
    low, high = (float(x.min()), float(x.max())) if x.dtype.kind in "fiu" and x.size else (0.0, 1.0)
    if 0 <= low <= high <= 255:
        return f"store np.round({'255 * x' if high <= 1 else 'x'}).astype(np.uint8)"
    return f"its values run from {low:.4g} to {high:.4g}, so undo the normalisation first"


def integer_labels(y: np.ndarray, count: int, name: str) -> np.ndarray:
    """Labels as int64, one per image."""
    if count == 0 == y.size:
        raise ValueError(f"{name} must hold the label of an image at least, got none for no images")
    if y.dtype.kind not in "iu" or y.shape not in ((count,), (count, 1)):
        raise ValueError(f"{name} must be integers, one per image, got {y.dtype} {y.shape} for {count} images")
    y = y.reshape(count)
    if int(y.min()) < 0 or int(y.max()) >= MOST_CLASSES:
        raise ValueError(f"{name} must be labels 0, 1, 2, ..., got {y.min()}..{y.max()}")
    return y.astype(np.int64)
