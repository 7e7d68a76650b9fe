"""Arrays from `.npz` and `.npy` files: sizes are checked before anything is unpacked, and pickles are never read."""

import io
import math
import os
import struct
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import IO

import numpy as np

from rhobust.files import open_regular

_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_MOST_HEADER = 10_000
"""Largest header of an array in bytes, numpy's own limit."""
_LONGEST = 300
"""Characters of an error that are shown: numpy's quote the whole header."""
_KINDS = "biufU"
"""Kinds of numpy's types that are read: numbers, and names of classes."""


def check_memory(name: str, size: int) -> None:
    """Raise a one-line ValueError if so many bytes take more than half of the memory: splitting makes a copy.

    Args:
        name: What takes them, for the message.
        size: Number of bytes.
    """
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
    kind = ".npz" if bare is None else ".npz or .npy"
    if not path.is_file():
        found = "it is no regular file" if path.exists() else "there is no such file"
        raise ValueError(f"{path} must be an {kind} file, but {found}")
    try:
        with open_regular(path) as file:
            start = file.read(4)
            file.seek(0)
            if start in _ZIP_MAGIC:
                return _read_zip(file, names)
            if bare is None:
                raise ValueError("it is no archive of arrays")
            return {bare: _read_array(file, path.stat().st_size, bare)}
    except Exception as error:  # an archive can be wrong in every way
        reason = " ".join(str(error).split())[:_LONGEST] or type(error).__name__
        raise ValueError(
            f"{path} must be a whole {kind} of plain arrays, but it is damaged or holds something else: {reason}; "
            f"write it again with {'np.savez' if bare is None else 'np.savez or np.save'}"
        ) from None


def _read_zip(file: IO[bytes], names: Collection[str]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name not in names:
                continue
            if name in arrays:
                raise ValueError(f"it holds two arrays {name}")
            if info.flag_bits & 1:
                raise ValueError(f"{name} is encrypted")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{name} is compressed by method {info.compress_type}, which numpy does not write")
            with archive.open(info) as member:
                arrays[name] = _read_array(member, info.file_size, name)
    return arrays


def _read_array(file: IO[bytes], size: int, name: str) -> np.ndarray:
    """The array of an open `.npy` file of this size."""
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
    check_memory(name, promised)
    flat = np.empty(math.prod(shape), dtype)
    rest = flat.view(np.uint8).data if flat.size else memoryview(b"")
    while rest:
        done = file.readinto(rest)  # type: ignore[attr-defined]
        if not done:
            raise EOFError(f"{name} is cut off")
        rest = rest[done:]
    if file.read(1):  # at its end an archive compares the checksum
        raise ValueError(f"{name} is longer than its header promises")
    return flat.reshape(shape[::-1]).transpose() if by_column else flat.reshape(shape)
