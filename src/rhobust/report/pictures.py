"""Pictures of the page: arrays as data addresses, and adversarial examples before and after with their votes."""

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from PIL import Image

from rhobust.formatting import format_distance, format_number
from rhobust.measurements import LABEL_VOTES, outcomes
from rhobust.records import Row
from rhobust.report.runs import PageRecord, PageRun

SIDE = 96
"""Pixels of the longer side that a picture of the page has at most."""
SHARP = 48
"""Pixels of the longer side up to which a change of single pixels is seen."""
_QUALITY = 88
BUDGET = 150_000
"""Characters that the adversarial examples of a page may take together."""

_LEVELS = 7
"""Steps of a change on either side of zero."""
_MORE, _LESS = (213, 94, 0), (0, 114, 178)
"""Colours of what was added and of what was taken away; distinct for eyes that confuse red and green."""


class Sized(Protocol):
    """Something with pictures."""

    @property
    def size(self) -> int:
        """Characters that its pictures take."""
        ...


T = TypeVar("T", bound=Sized)


def take_turns(waiting: Sequence[Iterator[T]], budget: int) -> list[list[T]]:
    """As many of each as all may take together; they take turns, so that each has some."""
    taken: list[list[T]] = [[] for _ in waiting]
    places = list(range(len(waiting)))
    while places:
        for place in list(places):
            one = next(waiting[place], None)
            if one is None or one.size > budget:
                places.remove(place)
                continue
            budget -= one.size
            taken[place].append(one)
    return taken


def exact(image: np.ndarray, **options: object) -> str:
    """An image (1 or 3, height, width) of 8 bits, every pixel unchanged."""
    return _address(_encode(_reduced(image), "PNG", optimize=True, **options), "png")


def faithful(image: np.ndarray) -> str:
    """An image whose pixels matter: unchanged up to `SHARP` pixels, compressed beyond, where none is seen."""
    return exact(image) if max(image.shape[1:]) <= SHARP else small(image)


def small(image: np.ndarray) -> str:
    """An image in whatever is smaller: every pixel unchanged, or compressed as a photograph is."""
    picture = _reduced(image)
    lossless = _encode(picture, "PNG", optimize=True)
    try:
        lossy = _encode(picture.convert("RGB"), "WEBP", quality=_QUALITY, method=6)
    except (KeyError, OSError):  # Pillow may be built without WebP
        return _address(lossless, "png")
    return _address(lossless, "png") if len(lossless) <= len(lossy) else _address(lossy, "webp")


def palette(steps: np.ndarray, colours: list[tuple[int, int, int]], opacity: bytes) -> str:
    """A picture (height, width) of few colours, each with its opacity."""
    image = Image.frombytes("P", steps.shape[::-1], steps.astype(np.uint8).tobytes())
    image.putpalette([part for colour in colours for part in colour])
    return _address(_encode(image, "PNG", optimize=True, bits=4, transparency=opacity), "png")


def _reduced(image: np.ndarray) -> Image.Image:
    picture = Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(np.moveaxis(image, 0, -1)))
    if max(picture.size) > SIDE:
        picture.thumbnail((SIDE, SIDE), Image.Resampling.BOX)
    return picture


def _encode(picture: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format=form, **options)
    return buffer.getvalue()


def _address(data: bytes, form: str) -> str:
    return f"data:image/{form};base64,{base64.b64encode(data).decode()}"


@dataclass(frozen=True)
class VoteCount:
    """How the noisy copies of one input voted."""

    label: int
    runner_up: int
    of: int


@dataclass(frozen=True)
class Picture:
    """One adversarial example."""

    index: int
    label: str
    prediction: str
    radius: str
    distance: str
    votes_before: int | None
    votes: VoteCount | None
    """None where the base network predicts."""
    scale: str
    """The largest change of a pixel, which has the strongest colour."""
    before: str
    change: str
    after: str

    @property
    def size(self) -> int:
        """Characters the pictures take."""
        return len(self.before) + len(self.change) + len(self.after)


@dataclass(frozen=True)
class Gallery:
    """The adversarial examples of one run that are shown."""

    run: int
    label: str
    attack: str
    predictor: str
    kept: int
    pictures: tuple[Picture, ...]


def galleries(runs: Sequence[PageRun]) -> list[Gallery]:
    """For each run the pictures of one attack, on the smoothed classifier if there is one, as many as the page bears.

    The runs take turns, so that each has some.
    """
    chosen = [(run, attack) for run in runs if (attack := shown_attack(run)) is not None]
    waiting = [_pictures(run.kept[attack.file], attack) for run, attack in chosen]
    taken = take_turns(waiting, BUDGET)
    return [
        Gallery(
            run=run.place,
            label=run.label,
            attack=attack.attack_name,
            predictor=attack.predictor_name,
            kept=len(run.kept[attack.file]["index"]),
            pictures=tuple(sorted(pictures, key=lambda picture: (float(picture.radius), picture.index))),
        )
        for (run, attack), pictures in zip(chosen, taken, strict=True)
        if pictures
    ]


def shown_attack(run: PageRun) -> PageRecord | None:
    """The attack whose pictures are shown: on the smoothed classifier, in L2 and on the network itself, if possible."""

    def rank(attack: PageRecord) -> tuple[bool, bool, int]:
        return attack.majority, attack.norm == "l2" and not attack.transferred, attack.n

    return max((attack for attack in run.of("attack") if attack.file in run.kept), key=rank, default=None)


def _pictures(examples: Row, attack: PageRecord) -> Iterator[Picture]:
    classes = examples["classes"].tolist()
    voted = any("undecided" in one.detail for one in attack.found) and 0.0 in attack.accuracy
    clean = outcomes(attack.record, LABEL_VOTES, 0.0) if voted else {}
    for place, index in enumerate(examples["index"].tolist()):
        before = examples["before"][place]
        after = examples["after"][place].astype(np.float64)
        change = after - before / 255
        votes = None
        if "votes" in examples:
            label, runner_up, of = (int(examples[key][place]) for key in ("label_votes", "rival_votes", "votes"))
            votes = VoteCount(label, runner_up, of)
        yield Picture(
            index=index,
            label=str(classes[examples["label"][place]]),
            prediction=str(classes[examples["prediction"][place]]),
            radius=format_distance(float(examples["radius"][place])),
            distance=format_number(float(examples["distance"][place]), 3, "nearest"),
            votes_before=None if clean.get(index) is None else int(clean[index]),
            votes=votes,
            scale=format_number(float(np.abs(change).max()), 2, "nearest"),
            before=exact(before),
            change=_change(change),
            after=exact(np.rint(after * 255).astype(np.uint8)),
        )


def _change(change: np.ndarray) -> str:
    """The change in few colours: more of one where something was added, of another where it was taken away.

    Grey images have a picture that is transparent where nothing changed; coloured ones a grey one, each channel
    lighter or darker by its own change.
    """
    steps = np.rint(change / max(float(np.abs(change).max()), 1e-9) * _LEVELS).astype(int)
    if len(change) == 1 and max(change.shape) <= SIDE:
        colours = [_MORE if step > 0 else _LESS for step in range(-_LEVELS, _LEVELS + 1)]
        opacity = bytes(round(255 * abs(step) / _LEVELS) for step in range(-_LEVELS, _LEVELS + 1))
        return palette(steps[0] + _LEVELS, colours, opacity)
    return exact((128 + steps * (127 // _LEVELS)).astype(np.uint8))
