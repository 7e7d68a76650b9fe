"""Adversarial examples that an evaluation kept, as pictures of the page: before, the change, after, and the votes."""

import base64
import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from rhobust.files import open_regular
from rhobust.formatting import format_distance, format_number
from rhobust.measurements import LABEL_VOTES, ROBUST, outcomes
from rhobust.records import Record, Row
from rhobust.report.runs import PageRecord, PageRun

BUDGET = 150_000
"""Characters that all pictures of a page may take together."""

LARGEST = 1 << 26
"""Bytes that the arrays of one record may take."""
_COLUMNS = ("index", "label", "radius", "prediction", "distance")
_LEVELS = 7
"""Steps of a change on either side of zero."""
_MORE, _LESS = (213, 94, 0), (0, 114, 178)
"""Colours of what was added and of what was taken away; distinct for eyes that confuse red and green."""


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


def read_examples(path: Path, attack: Record) -> Row:
    """The arrays of an .npz file that an attack wrote next to its record.

    Raises:
        ValueError: The file is damaged, or does not belong to the record.
    """
    try:
        with open_regular(path, own=True) as source:
            with zipfile.ZipFile(source) as archive:
                size = sum(member.file_size for member in archive.infolist())
            if size > LARGEST:
                raise ValueError(f"it unpacks to {size:,} bytes, at most {LARGEST:,} are read")
            source.seek(0)
            with np.load(source, allow_pickle=False) as file:
                examples: Row = {name: file[name] for name in file.files}
    except Exception as error:  # an archive can be wrong in every way
        raise ValueError(f"it must be an .npz file of arrays: {str(error) or type(error).__name__}") from None
    if missing := [name for name in (*_COLUMNS, "before", "after", "classes") if name not in examples]:
        raise ValueError(f"it must hold {', '.join(missing)}")
    before, after = examples["before"], examples["after"]
    if before.dtype != np.uint8 or before.ndim != 4 or before.shape[1] not in (1, 3) or before.shape != after.shape:
        raise ValueError(f"its images must be uint8 (n, 1 or 3, height, width), got {before.dtype} {before.shape}")
    if any(examples[name].shape != before.shape[:1] for name in _COLUMNS):
        raise ValueError(f"it must hold one number per image, {len(before)}")
    if not ((after >= 0) & (after <= 1)).all():
        raise ValueError("its attacked images must be in [0, 1]")
    for index, radius in zip(examples["index"].tolist(), examples["radius"].tolist(), strict=True):
        if outcomes(attack, ROBUST, radius).get(index) != 0:
            raise ValueError(f"example {index} must be misclassified at radius {format_distance(radius)} in its record")
    if max(examples["label"].max(), examples["prediction"].max()) >= len(examples["classes"]):
        raise ValueError(f"its labels must be below {len(examples['classes'])}")
    return examples


def galleries(runs: Sequence[PageRun]) -> list[Gallery]:
    """For each run the pictures of one attack, on the smoothed classifier if there is one, as many as the page bears.

    The runs take turns, so that each has some.
    """
    chosen = [(position, run, attack) for position, run in enumerate(runs) if (attack := _chosen(run)) is not None]
    waiting = [_pictures(run.examples[attack.file], attack) for _, run, attack in chosen]
    taken: list[list[Picture]] = [[] for _ in chosen]
    left, open_places = BUDGET, list(range(len(chosen)))
    while open_places:
        for place in list(open_places):
            picture = next(waiting[place], None)
            if picture is None or picture.size > left:
                open_places.remove(place)
                continue
            left -= picture.size
            taken[place].append(picture)
    return [
        Gallery(
            run=position,
            label=run.label,
            attack=attack.attack_name,
            predictor=attack.predictor_name,
            kept=len(run.examples[attack.file]["index"]),
            pictures=tuple(sorted(pictures, key=lambda picture: (float(picture.radius), picture.index))),
        )
        for (position, run, attack), pictures in zip(chosen, taken, strict=True)
        if pictures
    ]


def _chosen(run: PageRun) -> PageRecord | None:
    def rank(attack: PageRecord) -> tuple[bool, bool, int]:
        return attack.majority, attack.norm == "l2" and not attack.transferred, attack.n

    return max((attack for attack in run.of("attack") if attack.file in run.examples), key=rank, default=None)


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
            before=_png(before),
            change=_change(change),
            after=_png(np.rint(after * 255).astype(np.uint8)),
        )


def _png(image: np.ndarray) -> str:
    return _encoded(Image.fromarray(image[0] if len(image) == 1 else np.moveaxis(image, 0, -1)))


def _change(change: np.ndarray) -> str:
    """The change in few colours: more of one where something was added, of another where it was taken away.

    Grey images have a picture that is transparent where nothing changed; coloured ones a grey one, each channel
    lighter or darker by its own change.
    """
    steps = np.rint(change / max(float(np.abs(change).max()), 1e-9) * _LEVELS).astype(int)
    if len(change) == 1:
        image = Image.frombytes("P", steps[0].shape[::-1], (steps[0] + _LEVELS).astype(np.uint8).tobytes())
        image.putpalette([part for step in range(-_LEVELS, _LEVELS + 1) for part in (_MORE if step > 0 else _LESS)])
        opacity = bytes(round(255 * abs(step) / _LEVELS) for step in range(-_LEVELS, _LEVELS + 1))
        return _encoded(image, bits=4, transparency=opacity)
    return _png((128 + steps * (127 // _LEVELS)).astype(np.uint8))


def _encoded(image: Image.Image, **options: object) -> str:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True, **options)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
