"""Image pairs, before and after a change, from two folders or two files of arrays."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rhobust.data.arrays import channels_first, check_memory, integer_labels, read_arrays
from rhobust.data.images import SUFFIXES, decode_image, is_image, read_header
from rhobust.data.labels import are_numbers, class_names
from rhobust.files import read_file
from rhobust.progress import ProgressCallback, ProgressEvent, progress_or_default

_CHUNK = 1024


@dataclass(frozen=True, eq=False)
class Pairs:
    """Images before and after a change, in the same order."""

    name: str
    """Names of the two sources."""
    before: Tensor
    """uint8, (n, channels, height, width)."""
    after: Tensor
    """The same images after the change, of the same shape."""
    labels: Sequence[str | None] | Sequence[int | None] | None
    """Class of each image, the folder's name or a number; None: unknown, for all of them or for one."""

    def __post_init__(self) -> None:
        for name, images in (("before", self.before), ("after", self.after)):
            if images.dtype != torch.uint8 or images.ndim != 4 or 0 in images.shape:
                raise ValueError(
                    f"{name} must be uint8 (n, channels, height, width), got {images.dtype} {tuple(images.shape)}"
                )
        if self.before.shape != self.after.shape:
            raise ValueError(
                f"images before and after must have one shape (n, channels, height, width), got "
                f"{tuple(self.before.shape)} and {tuple(self.after.shape)}; resize them to one size first"
            )

    def __len__(self) -> int:
        return len(self.before)

    def places(self, classes: Sequence[str]) -> Tensor | None:
        """The index of each label in these classes, int64, -1 for an unknown one; None without labels.

        Names are matched with names. Numbers are refused unless the classes are numbers too.
        """
        if self.labels is None:
            return None
        known = {label for label in self.labels if label is not None}
        numbers = not any(isinstance(label, str) for label in known)
        if numbers and not are_numbers(classes):
            raise ValueError(
                f"labels of {self.name} must be names of classes, as the network's are ({', '.join(classes[:3])}, ...),"
                " got numbers: add the array classes, their names in the order of the numbers, to the .npz file"
            )
        for label in known:
            if str(label) not in classes:
                allowed = f"in 0..{len(classes) - 1}" if numbers else f"one of {', '.join(classes)}"
                raise ValueError(
                    f"labels of {self.name} must be {allowed}, got {label}; put images without labels "
                    "into one folder without subfolders"
                )
        return torch.tensor([-1 if label is None else classes.index(str(label)) for label in self.labels])

    def fingerprint(self) -> str:
        """Fingerprint of images and labels, sixteen hex digits."""
        digest = hashlib.sha256(repr((tuple(self.before.shape), self.labels)).encode())
        for images in (self.before, self.after):
            digest.update(images.contiguous().numpy().data)
        return digest.hexdigest()[:16]


def pair_distances(before: Tensor, after: Tensor) -> np.ndarray:
    """The L2 distance of each pair, for images scaled to [0, 1].

    8-bit images are subtracted as integers, so only the square root is rounded.

    Args:
        before: Images, uint8 or floating point in [0, 1], (n, ...).
        after: The same images after the change.
    """
    if before.shape != after.shape or before.dtype != after.dtype:
        raise ValueError(
            "images before and after must have one shape and type, got "
            f"{before.dtype} {tuple(before.shape)} and {after.dtype} {tuple(after.shape)}"
        )
    wide, levels = (torch.int64, 255) if before.dtype == torch.uint8 else (torch.float64, 1)
    squares = [
        (one.to(wide) - other.to(wide)).square().flatten(1).sum(1)
        for one, other in zip(before.split(_CHUNK), after.split(_CHUNK), strict=True)
    ]
    return torch.cat(squares).detach().cpu().to(torch.float64).sqrt().numpy() / levels


def load_pairs(
    before: Path | str,
    after: Path | str,
    *,
    labels: Path | str | None = None,
    channels: int | None = None,
    progress: ProgressCallback | None = None,
) -> Pairs:
    """Read the images before and after a change.

    Two folders: images are paired by their path without suffix, so `cat/1.png` pairs with `cat/1.jpg`. Subfolders of
    depth one are the classes, and images next to them have no label; deeper folders give no labels.
    Two files, `.npy` or `.npz` with `x`: images are paired by index; `y` in the first file, or `labels`, holds the
    class numbers, and `classes` in the first file their names.

    Args:
        before: Folder or file of the images before the change.
        after: Folder or file of the same images after the change.
        labels: An `.npy` file of class numbers, for arrays.
        channels: 1 for grey, 3 for colour; default: colour unless all images are grey.
        progress: Progress callback; default: progress bars on stderr.
    """
    before, after = Path(before), Path(after)
    name = f"{before} and {after}"
    if before.is_dir() and after.is_dir():
        if labels is not None:
            raise ValueError("labels must be given with arrays only; the labels of a folder are its subfolders' names")
        with progress_or_default(progress) as notify:
            return _from_folders(name, before, after, channels, notify)
    for path in (before, after):
        if path.suffix not in (".npy", ".npz") or path.is_dir():
            raise ValueError(f"before and after must be two folders, or two .npy or .npz files, got {name}")
    (x, y, names), (changed, _, _) = (_from_file(path) for path in (before, after))
    if labels is not None:
        y = read_arrays(Path(labels), ("y",), bare="y").get("y")
        if y is None:
            raise ValueError(f"{labels} must hold an array y, but it has none")
    found = None if y is None else tuple(integer_labels(y, len(x), f"labels of {before}").tolist())
    if found is not None and names is not None:
        classes = class_names(names, 1 + max(found), f"classes in {before}")
        found = tuple(classes[number] for number in found)
    return Pairs(name, torch.from_numpy(x), torch.from_numpy(changed), found)


def _from_file(path: Path) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Images, labels and names of the classes."""
    arrays = read_arrays(path, ("x", "y", "x_test", "y_test", "classes"), bare="x")
    if not {"x"} <= arrays.keys() <= {"x", "y", "classes"}:
        raise ValueError(f"{path} must hold an array x, and optionally y, got {', '.join(arrays) or 'none'}")
    return channels_first(arrays["x"], f"x in {path}"), arrays.get("y"), arrays.get("classes")


def _from_folders(name: str, before: Path, after: Path, channels: int | None, progress: ProgressCallback) -> Pairs:
    first, second = _named_images(before), _named_images(after)
    for files, others, other in ((first, second, after), (second, first, before)):
        if missing := sorted(files.keys() - others.keys()):
            raise ValueError(
                f"every image must have a partner, but {len(missing)} of {len(files)} have none: "
                f"{files[missing[0]]} has no {missing[0]}.* under {other}"
            )
    order = sorted(first)
    headers = {path: read_header(path) for key in order for path in (first[key], second[key])}
    size = (headers[first[order[0]]].height, headers[first[order[0]]].width)
    for path, header in headers.items():
        if (header.height, header.width) != size:
            raise ValueError(
                f"all images must have one size, got {first[order[0]]} of {size[1]}x{size[0]} and "
                f"{path} of {header.width}x{header.height}; resize them to one size first"
            )
    if channels is None:
        channels = max(header.channels for header in headers.values())
    check_memory(name, 2 * len(order) * channels * size[0] * size[1])
    images = np.empty((2, len(order), channels, *size), np.uint8)
    for done, key in enumerate(order):
        for side, path in enumerate((first[key], second[key])):
            images[side, done] = decode_image(read_file(path), path, channels)
        progress(ProgressEvent("reading pairs", done + 1, len(order), "pairs"))
    classes = [key.split("/") for key in order]
    labelled = max(map(len, classes)) == 2
    labels = tuple(parts[0] if len(parts) == 2 else None for parts in classes) if labelled else None
    return Pairs(name, torch.from_numpy(images[0]), torch.from_numpy(images[1]), labels)


def _named_images(folder: Path) -> dict[str, Path]:
    """All images under a folder, by path without suffix."""
    found: dict[str, Path] = {}
    try:
        paths = sorted(folder.rglob("*"))
    except (RecursionError, OSError) as error:
        raise ValueError(f"{folder} must be a readable tree of folders, but {type(error).__name__}: {error}") from None
    for path in paths:
        place = path.relative_to(folder)
        if any(part.startswith(".") for part in place.parts) or not is_image(path):
            continue
        key = place.with_suffix("").as_posix()
        if key in found:
            raise ValueError(f"images must have different names without their suffix, got {found[key]} and {path}")
        found[key] = path
    if not found:
        raise ValueError(f"{folder} must hold images ({' '.join(suffix[1:] for suffix in SUFFIXES)}), but it has none")
    return found
