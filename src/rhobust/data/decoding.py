"""Image files to pixels of one shape, by several threads."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from rhobust.data.content import content_keys, in_test_part
from rhobust.data.dataset import Split
from rhobust.data.images import ImageHeader, decode_image
from rhobust.data.sizing import Sizing

_AHEAD = 4
"""Images that each thread may be ahead of the one that is needed next."""

Item = TypeVar("Item")
Found = TypeVar("Found")


def common_shape(headers: Iterable[tuple[Path, ImageHeader]], sizing: Sizing, where: str) -> tuple[int, int, int]:
    """Channels, height and width of all images after resizing and cropping; raises unless they have one size.

    Args:
        headers: Path, for messages, and header of each.
        sizing: How they are resized and cropped.
        where: Where they are, for messages.
    """
    first: tuple[Path, int, int] | None = None
    channels = 1
    for path, header in headers:
        try:
            height, width = sizing.size(header.height, header.width)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        first, channels = first or (path, height, width), max(channels, header.channels)
        if (height, width) != first[1:]:
            after = f" after {str(sizing)[1:]}" if sizing else ""
            raise ValueError(
                f"images {where} must have one size{after}, got {first[0]} of {first[2]}x{first[1]} and {path} of"
                f" {width}x{height}; give resize and crop"
            )
    if first is None:
        raise ValueError(f"images {where} must be one at least, got none")
    return channels, *first[1:]


def decode_sized(
    content: bytes, path: Path, shape: tuple[int, int, int], sizing: Sizing, part: Split | None
) -> np.ndarray | None:
    """The pixels of an image file, resized and cropped; None if it is in the other part of an unsplit source.

    Args:
        content: The whole file.
        path: Its path, for messages.
        shape: Channels, height and width of the result.
        sizing: How it is resized and cropped.
        part: The part that the stored pixels, before resizing, must choose; None: any.
    """
    stored = decode_image(content, path, shape[0])
    if part is not None and in_test_part(content_keys(stored[None]))[0] != (part == "test"):
        return None
    image = sizing.apply(stored)
    if image.shape != shape:
        raise ValueError(f"{path} must keep its size while it is read, but it changed")
    return image


def in_order(function: Callable[[Item], Found], items: Iterable[Item]) -> Iterator[Found]:
    """The results of a function in the order of the items, computed by as many threads as torch has.

    Pillow decodes without the interpreter's lock. Items are taken as they are needed; an error is raised in its place.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        yield from map(function, items)
        return
    waiting: deque[Future[Found]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > _AHEAD * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for rest in waiting:
                rest.cancel()
