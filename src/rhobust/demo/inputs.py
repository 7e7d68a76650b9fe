"""Photos and drawings as images of the network's shape."""

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rhobust.data import read_image
from rhobust.data.images import pillow_image, pixels_of
from rhobust.demo.classifier import DemoClassifier

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

FILL = 0.75
"""Share of the height or width that a drawing takes, where no examples show it."""
MOST = 4 << 20
"""Characters of a drawing that are decoded."""
_INK = 64
"""Level from which a pixel counts as ink."""


def fit_photo(photo: "PillowImage", classifier: DemoClassifier) -> Tensor:
    """A photo as an image of the network, uint8 (channels, height, width); one of its size is taken unchanged.

    It is resized and cropped as in the network's training. Where nothing is known of that, the largest central part
    with the ratio of the network's images is resized, bilinear with antialiasing.
    """
    from PIL import ImageOps
    from PIL.Image import Resampling

    channels, height, width = classifier.shape
    pixels = pixels_of(ImageOps.exif_transpose(_on_white(photo)), channels)
    if pixels.shape != classifier.shape and classifier.sizing:
        pixels = classifier.sizing.apply(pixels)
    if pixels.shape != classifier.shape:
        whole = pillow_image(pixels)
        pixels = pixels_of(ImageOps.fit(whole, (width, height), Resampling.BILINEAR), channels)
    return torch.from_numpy(pixels)


def _on_white(photo: "PillowImage") -> "PillowImage":
    """A picture without transparency."""
    from PIL import Image

    if "A" not in photo.getbands() and "transparency" not in photo.info:
        return photo
    photo = photo.convert("RGBA")
    paper = Image.new("RGBA", photo.size, "white")
    return Image.alpha_composite(paper, photo).convert("RGB")


def decode_drawing(url: str | None) -> "PillowImage | None":
    """The drawing of the page's canvas, which comes as a data URL of a PNG; None for an empty canvas."""
    from PIL import Image

    if url is None:
        return None
    head, _, code = str(url).partition(",")
    if head != "data:image/png;base64" or len(code) > MOST:
        raise ValueError(f"a drawing must be a PNG of at most {MOST:,} characters, got {head[:40]} of {len(code):,}")
    try:
        with Image.open(io.BytesIO(base64.b64decode(code, validate=True)), formats=["PNG"]) as image:
            return image.convert("RGBA")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"a drawing must be a PNG, but {error}") from None


def fit_drawing(drawing: "PillowImage | None", classifier: DemoClassifier) -> Tensor | None:
    """A drawing on a transparent canvas as an image of the network; None while nothing is drawn.

    For grey images the ink is cut out, centred, sized as in the classifier's examples, and drawn bright on dark or dark
    on bright, like them. For colour images the canvas is taken as a photo on white.
    """
    from PIL import Image

    if drawing is None:
        return None
    canvas = drawing.convert("RGBA")
    ink = canvas.getchannel("A")
    box = ink.point(lambda level: 255 * (level >= _INK)).getbbox()
    if box is None:
        return None
    channels, height, width = classifier.shape
    if channels != 1:
        return fit_photo(canvas, classifier)
    left, top, right, bottom = box
    side = max(1, round(max(right - left, bottom - top) / _fill(classifier.examples)))
    # The centre of mass in the middle, as in MNIST, as far as no ink is cut off.
    weights = np.asarray(ink, dtype=np.float64)
    centre = [np.average(np.arange(len(sums)), weights=sums) for sums in (weights.sum(0), weights.sum(1))]
    ends = ((left, right), (top, bottom))
    x, y = (
        int(np.clip(round(middle - side / 2), last - side, first))
        for middle, (first, last) in zip(centre, ends, strict=True)
    )
    square = ink.crop((x, y, x + side, y + side))  # beyond the canvas there is no ink
    levels = np.asarray(square.resize((width, height), Image.Resampling.BOX))[None]
    return torch.from_numpy(levels.copy() if _is_dark(classifier.examples) else 255 - levels)


def _is_dark(examples: Tensor) -> bool:
    """Whether images have a dark background, by the pixels of their edges; True where there are none, as in MNIST."""
    if not len(examples):
        return True
    edges = [examples[:, :, 0], examples[:, :, -1], examples[:, :, :, 0], examples[:, :, :, -1]]
    return bool(torch.cat([edge.flatten() for edge in edges]).float().mean() < 128)


def _fill(examples: Tensor) -> float:
    """Share of the height or width that the ink of an image takes, the larger of both; the median of the examples."""
    ink = examples if _is_dark(examples) else 255 - examples
    shares = []
    for image in ink[:, 0] if len(ink) else []:
        rows, columns = (np.flatnonzero((image >= _INK).any(axis).numpy()) for axis in (1, 0))
        if rows.size:
            sides = zip((rows, columns), image.shape, strict=True)
            shares.append(max((places[-1] - places[0] + 1) / side for places, side in sides))
    return float(np.median(shares)) if shares else FILL


def read_example_images(folder: Path | str, classifier_shape: tuple[int, int, int]) -> Tensor:
    """The image files of a folder in the order of their names, uint8 (n, channels, height, width).

    Args:
        folder: The folder; one that is missing has no images.
        classifier_shape: Channels, height and width that they must have.
    """
    paths = sorted(Path(folder).glob("*.png"))
    images = [read_image(path, classifier_shape[0]) for path in paths]
    for path, image in zip(paths, images, strict=True):
        if tuple(image.shape) != classifier_shape:
            raise ValueError(f"{path} must be an image of shape {classifier_shape}, got {tuple(image.shape)}")
    return torch.stack(images) if images else torch.empty(0, dtype=torch.uint8)
