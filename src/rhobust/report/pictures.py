"""Adversarial examples that an evaluation kept, as pictures of the page: before, the change, after, and the votes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rhobust.formatting import format_distance, format_number
from rhobust.measurements import LABEL_VOTES, outcomes
from rhobust.records import Row
from rhobust.report.runs import PageRecord, PageRun
from rhobust.report.thumbnails import SIDE, exact, palette, take_turns

BUDGET = 150_000
"""Characters that the adversarial examples of a page may take together."""

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


def galleries(runs: Sequence[PageRun]) -> list[Gallery]:
    """For each run the pictures of one attack, on the smoothed classifier if there is one, as many as the page bears.

    The runs take turns, so that each has some.
    """
    chosen = [(position, run, attack) for position, run in enumerate(runs) if (attack := shown_attack(run)) is not None]
    waiting = [_pictures(run.kept[attack.file], attack) for _, run, attack in chosen]
    taken = take_turns(waiting, BUDGET)
    return [
        Gallery(
            run=position,
            label=run.label,
            attack=attack.attack_name,
            predictor=attack.predictor_name,
            kept=len(run.kept[attack.file]["index"]),
            pictures=tuple(sorted(pictures, key=lambda picture: (float(picture.radius), picture.index))),
        )
        for (position, run, attack), pictures in zip(chosen, taken, strict=True)
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
