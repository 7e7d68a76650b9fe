"""Decoded images of a folder in one file that all processes map into memory: decoded once, and never held twice."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rhobust.data.sizing import Sizing
from rhobust.files import open_regular, read_json, write_json
from rhobust.progress import ProgressCallback

FOLDER = "decoded-images"
"""Folder of the files, under the root of the data sets."""
WORTH_IMAGES = 2000
"""Images from which decoding is worth a file."""
WORTH_BYTES = 1 << 24
"""Bytes of image files from which decoding is worth a file."""


class CacheWriteError(ValueError):
    """The file cannot be written: a full disk, or a folder that is read-only."""


@dataclass(frozen=True)
class MappedImages:
    """The decoded images of one split of a folder: `ROOT/decoded-images/KEY.bin` with the pixels, and `KEY.json`.

    Guarantee: what is read is what was decoded from these files. The key is a hash of the folder's path, of the path,
    size and times of change of every image, of what is done to them and of the decoder's version; the pixels are
    compared with their SHA-256. Both files are renamed into place when they are whole, so processes that decode at
    the same time do not disturb each other. Whatever does not fit is decoded again.
    """

    folder: Path
    """Where the files are."""
    place: str
    """Start of their names: one per folder, split and sizing; older files with it are removed."""
    stamp: str
    """Rest of their names: changes with the images."""

    @classmethod
    def of(cls, root: Path, source: Path, split: str, sizing: Sizing, paths: Sequence[Path]) -> "MappedImages | None":
        """The file of a split of a folder; None for a folder that is decoded in a moment.

        Args:
            root: Folder of the data sets.
            source: The folder.
            split: The split.
            sizing: What is done to the images.
            paths: All images of the folder, in their order.
        """
        import PIL

        whole = source.resolve()
        digest, size = hashlib.sha256(f"{PIL.__version__}\0{sizing}\0".encode()), 0
        for path in paths:
            found = path.stat()
            size += found.st_size
            times = f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"
            digest.update(os.fsencode(path.relative_to(source)) + f"\0{times}\n".encode())
        if len(paths) < WORTH_IMAGES and size < WORTH_BYTES:
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
        """Places and pixels as `write` returned them; None if they are not there, or not as they were written.

        Args:
            count: Number of images that they are among.
        """
        try:
            described = read_json(self._description)
            places, shape, digest = (described[key] for key in ("places", "shape", "sha256"))
            numbers = [*places, *shape]
            if not all(type(number) is int and number >= 0 for number in numbers) or len(shape) != 3:
                return None
            if not places or places[-1] >= count or sorted(set(places)) != places:
                return None
            images = self._map((len(places), *shape))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return (places, images) if hashlib.sha256(images.data).hexdigest() == digest else None

    def write(
        self, shape: tuple[int, int, int], decoded: Iterable[tuple[int, np.ndarray]], progress: ProgressCallback
    ) -> tuple[list[int], np.ndarray]:
        """Write images as they are decoded, one by one, and map the file; memory holds one image at a time.

        Args:
            shape: Channels, height and width of each.
            decoded: Place among the folder's images, and pixels.
            progress: Progress callback; gets the file's path.

        Raises:
            CacheWriteError: It cannot be written; nothing is left behind.
        """
        places, digest = list[int](), hashlib.sha256()
        part = self.folder / f".{self._pixels.name}.{os.getpid()}.part"
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
                # Last: pixels without their description are not read.
                write_json(self._description, {"shape": shape, "sha256": digest.hexdigest(), "places": places})
                images = self._map((len(places), *shape))
        finally:
            part.unlink(missing_ok=True)
        self._forget_older()
        progress(f"decoded images are in {self._pixels}")
        return places, images

    def _map(self, shape: tuple[int, ...]) -> np.ndarray:
        """The pixels, shared with all processes that map them; a write to them would stay in this process."""
        with open_regular(self._pixels, own=True) as file:
            if os.fstat(file.fileno()).st_size != np.prod(shape, dtype=np.int64):
                raise ValueError(f"{self._pixels} must hold images of shape {shape}, but it has another size")
            return np.memmap(file, np.uint8, "c", shape=shape)

    def _forget_older(self) -> None:
        """Remove what was decoded before the folder changed; a process that has mapped it keeps it."""
        kept = (self._pixels.name, self._description.name)
        for old in self.folder.glob(f"{self.place}*"):
            if old.name not in kept and len(old.stem) == len(self._pixels.stem):
                try:
                    old.unlink(missing_ok=True)
                except OSError:  # another user's, or mapped on a platform that then refuses
                    continue


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into a `CacheWriteError` that names the file."""
    try:
        yield
    except OSError as error:
        raise CacheWriteError(f"{path} cannot be written ({error.strerror})") from None
