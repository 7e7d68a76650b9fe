"""Decoded images in one file that all processes map into memory: decoded once, and never held twice."""

import hashlib
import mmap
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rhobust.data.arrays import check_memory
from rhobust.data.dataset import Origin
from rhobust.data.sizing import Sizing
from rhobust.files import open_regular, part_of, read_json, write_json
from rhobust.progress import ProgressCallback

FOLDER = "decoded-images"
"""Folder of the files, under the root of the data sets."""
WORTH_IMAGES = 2000
"""Images from which decoding is worth a file."""
WORTH_BYTES = 1 << 24
"""Bytes of image files from which decoding is worth a file."""
# Python 3.13 is the first that names it; the number is that of these machines.
_LINUX = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64", "riscv64")
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if _LINUX else 0)


Shape = tuple[int, int, int]
"""Channels, height and width of an image."""


class CacheWriteError(ValueError):
    """The file cannot be written: a full disk, or a folder that is read-only."""


@dataclass(frozen=True)
class MappedImages:
    """The decoded images of one split of a data set: `ROOT/decoded-images/KEY.bin` with the pixels, and `KEY.json`.

    Guarantee: what is read is what was decoded from these files. The key is a hash of the source's path, of the path,
    size and times of change of every file, of what is done to the images and of the decoder's version. A file of pixels
    whose size, times or inode are not those of the one that was written is compared with its SHA-256. Both files are
    renamed into place when they are whole, so threads, processes and machines that decode at the same time do not
    disturb each other. Whatever does not fit is decoded again.

    Nothing is read but the pages of the images that are used, not even to name the data: their fingerprint is kept too.
    """

    folder: Path
    """Where the files are."""
    place: str
    """Start of their names: one per folder, split and sizing; older files with it are removed."""
    stamp: str
    """Rest of their names: changes with the images."""

    @classmethod
    def of(
        cls,
        root: Path,
        source: Path,
        split: str,
        sizing: Sizing,
        paths: Sequence[Path],
        count: int | None = None,
        content: str = "",
    ) -> "MappedImages | None":
        """The file of a split of a data set; None for one that is decoded in a moment.

        Args:
            root: Folder of the data sets.
            source: The folder of the data set.
            split: The split.
            sizing: What is done to the images.
            paths: The files of all images, in their order.
            count: Number of images; default: one per file.
            content: What else changes with the images.
        """
        import PIL

        whole = source.resolve()
        digest, size = hashlib.sha256(f"{PIL.__version__}\0{sizing}\0{content}".encode()), 0
        for path in paths:
            found = path.stat()
            size += found.st_size
            times = f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"
            named = path.relative_to(source) if path.is_relative_to(source) else path.resolve()
            digest.update(os.fsencode(named) + f"\0{times}\n".encode())
        if not paths or ((len(paths) if count is None else count) < WORTH_IMAGES and size < WORTH_BYTES):
            return None
        place = hashlib.sha256(os.fsencode(whole)).hexdigest()[:16]
        return cls(root / FOLDER, f"{place}-{split}{sizing}-", digest.hexdigest()[:32])

    @property
    def _pixels(self) -> Path:
        return self.folder / f"{self.place}{self.stamp}.bin"

    @property
    def _description(self) -> Path:
        return self.folder / f"{self.place}{self.stamp}.json"

    def read(self, count: int) -> tuple[list[int], np.ndarray] | None:
        """Places and pixels as `write` returned them; None if they are not there, or not as they were written."""
        try:
            described = read_json(self._description)
            places, shape, digest = (described[key] for key in ("places", "shape", "sha256"))
            numbers = [*places, *shape]
            if not all(type(number) is int and number >= 0 for number in numbers) or len(shape) != 3:
                return None
            if not places or places[-1] >= count or sorted(set(places)) != places:
                return None
            images = self._map((len(places), *shape))
            if described.get("file") != self._file():
                if pixel_digest(images) != digest:
                    return None
                self._describe(described | {"file": self._file()})  # a copy of the file: known from now on
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return places, images

    def write(
        self, shape: Shape, decoded: Iterable[tuple[int, np.ndarray]], progress: ProgressCallback
    ) -> tuple[list[int], np.ndarray]:
        """Write images as they are decoded, one by one, and map the file; memory holds one image at a time.

        Raises:
            CacheWriteError: It cannot be written; nothing is left behind.
        """
        places, digest = list[int](), hashlib.sha256()
        part = part_of(self._pixels)
        with _writing(part):
            self.folder.mkdir(parents=True, exist_ok=True)
            file = part.open("wb", buffering=0)  # nothing is left to be written when it is closed on a full disk
        try:
            with file:
                for place, image in decoded:
                    digest.update(image.data)
                    places.append(place)
                    rest = image.data.cast("B")
                    while rest:
                        with _writing(part):
                            rest = rest[file.write(rest) :]
                with _writing(part):
                    os.fsync(file.fileno())
            if not places:
                return places, np.empty((0, *shape), np.uint8)
            with _writing(part):
                part.replace(self._pixels)
                images = self._map((len(places), *shape))
                # Last: pixels without their description are not read.
                whole = {"shape": shape, "sha256": digest.hexdigest(), "places": places, "file": self._file()}
                write_json(self._description, whole)
        finally:
            part.unlink(missing_ok=True)
        self._forget_older()
        progress(f"decoded images are in {self._pixels}")
        return places, images

    def fingerprint(self, labels: torch.Tensor, compute: Callable[[], str]) -> str:
        """The fingerprint of these images with some labels: kept from the first call on, which reads every pixel."""
        key = hashlib.sha256(labels.cpu().contiguous().numpy().astype("<i8").data).hexdigest()[:32]
        try:
            described = read_json(self._description)
            known = described.get("fingerprints", {})
            if described["file"] == self._file() and isinstance(known.get(key), str):
                return known[key]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return compute()
        found = compute()
        if described["file"] == self._file():
            self._describe(described | {"fingerprints": known | {key: found}})
        return found

    def _file(self) -> list[int]:
        """What changes when the file of pixels is written again."""
        found = self._pixels.stat()
        return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]

    def _describe(self, description: dict[str, Any]) -> None:
        """Write what is only known better; a read-only folder keeps what it has."""
        try:
            write_json(self._description, description)
        except OSError:
            return

    def _map(self, shape: tuple[int, ...]) -> np.ndarray:
        """The pixels, shared with all processes that map them; a write to them would stay in this process."""
        with open_regular(self._pixels, own=True) as file:
            if os.fstat(file.fileno()).st_size != np.prod(shape, dtype=np.int64):
                raise ValueError(f"{self._pixels} must hold images of shape {shape}, but it has another size")
            return _private_map(file.fileno()).reshape(shape)

    def _forget_older(self) -> None:
        """Remove what was decoded before the folder changed; a process that has mapped it keeps it."""
        kept = (self._pixels.name, self._description.name)
        for old in self.folder.glob(f"{self.place}*"):
            if old.name not in kept and len(old.stem) == len(self._pixels.stem):
                try:
                    old.unlink(missing_ok=True)
                except OSError:  # another user's, or mapped on a platform that then refuses
                    continue


def _private_map(descriptor: int) -> np.memmap:
    """All bytes of a file, writable for this process alone.

    Without a reservation: Linux refuses to reserve more than its memory, which copies of all pages would take.
    """
    if hasattr(mmap, "MAP_PRIVATE"):
        flags, access = mmap.MAP_PRIVATE | _NO_RESERVE, mmap.PROT_READ | mmap.PROT_WRITE
        held = mmap.mmap(descriptor, 0, flags=flags, prot=access)
    else:
        held = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    return np.frombuffer(held, np.uint8).view(np.memmap)


def pixel_digest(images: np.ndarray) -> str:
    """The SHA-256 of all pixels."""
    return hashlib.sha256(images.data).hexdigest()


class SplitImages(NamedTuple):
    """The decoded images of one split."""

    places: list[int]
    """Where they are among the images of the source."""
    images: torch.Tensor
    """uint8, (n, channels, height, width)."""
    origin: Origin | None
    """The file that they are mapped from; None: memory."""


def decode_once(
    cache: MappedImages | None,
    shape: Callable[[], Shape],
    decoded: Callable[[Shape], Iterable[tuple[int, np.ndarray]]],
    count: int,
    name: str,
    progress: ProgressCallback,
    *,
    again: bool = False,
) -> SplitImages:
    """The images of one split: from their file if it is there, else decoded, into the file or into memory.

    Args:
        cache: The file; None: memory.
        shape: Finds channels, height and width of each; called only if they are decoded.
        decoded: Decodes images of that shape: the place and the pixels of each.
        count: Largest number of them.
        name: The source, for messages.
        progress: Progress callback.
        again: Decode even if the file is there, and write it again.
    """
    found = None if cache is None or again else cache.read(count)
    if found is None:
        size = shape()
        if cache is not None:
            try:
                found = cache.write(size, decoded(size), progress)
            except CacheWriteError as error:
                progress(f"decoded images are not kept: {error}")
        found = found or _in_memory(decoded(size), count, size, name)
    places, pixels = found
    images = torch.from_numpy(pixels)
    mapped = cache is not None and isinstance(pixels, np.memmap)
    return SplitImages(places, images, Origin(cache, images, images._version) if mapped else None)


def _in_memory(
    decoded: Iterable[tuple[int, np.ndarray]], count: int, shape: Shape, name: str
) -> tuple[list[int], np.ndarray]:
    """Places and pixels, as `MappedImages.write` returns them."""
    check_memory(name, count * int(np.prod(shape)))
    # Pages of the tail that an unsplit source leaves unused are never touched.
    images, places = np.empty((count, *shape), np.uint8), list[int]()
    for place, image in decoded:
        images[len(places)] = image
        places.append(place)
    return places, images[: len(places)]


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into a `CacheWriteError` that names the file."""
    try:
        yield
    except OSError as error:
        raise CacheWriteError(f"{path} cannot be written ({error.strerror})") from None
