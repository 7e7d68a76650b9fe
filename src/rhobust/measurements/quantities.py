"""The quantities that records measure, and what one number needs to be read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rhobust.formatting import Direction

Status = Literal["proved", "upper bound", "estimate"]
"""A certificate; an attack, so that the true robust accuracy is at most this; or neither of both."""

BASE = "base accuracy"
"""Of the base network, without noise and without an attack."""
ROBUST = "robust accuracy"
CERTIFIED = "certified accuracy"
ALL_AT_ONCE = "certified accuracy, all examples at once"
"""Lower bound, with probability 1 - alpha, of the share of these examples that truly is right within the radius."""
AVERAGE_RADIUS = "average certified radius"
UNDER_NOISE = "accuracy under noise"
SHIFT = "certified accuracy under shift"
SHIFT_ATTACK = "accuracy under a distributional attack"
"""Under one distribution within eps that an attack found: no certificate about the same images can be above it."""
SUBPOPULATION = "certified accuracy under shift of a subpopulation"
"""At a gamma: for every subpopulation with a share of at least 1 / gamma."""
GROUP = "certified accuracy under shift of a group"
MIXTURE = "certified accuracy under shift of a mixture of groups"
WRONG_ANSWERS = "certified wrong answers under shift"
"""Of a classifier that abstains unless enough votes agree: an upper bound."""
COVERAGE = "certified coverage under shift"
"""Of prediction sets: how often they hold the label, at least."""
SET_COVERAGE = "coverage of prediction sets"
SET_SIZE = "mean size of prediction sets"
LOSS_UNDER_NOISE = "loss under noise"
SHIFT_LOSS = "certified loss under shift"
WORST_CERTIFIED = "worst-case loss: certified"
WORST_LOWER = "worst-case loss: lower"
WORST_ESTIMATE = "worst-case loss: estimate"
CHANGE = "distance of the change"
BEFORE = "accuracy before the change"
AFTER = "accuracy after the change"
CERTIFIED_AFTER = "certified accuracy after the change"
RECENTRED = "certified accuracy on the changed data"
"""And under every distribution within eps of them; no label of a changed image is needed."""
BASE_BEFORE = "accuracy of the base network before the change"
BASE_AFTER = "accuracy of the base network after the change"
LABEL_VOTES = "votes for the label"
"""Known of single images only: `outcomes`."""

_FROM_ABOVE = (SHIFT_LOSS, WORST_CERTIFIED, WRONG_ANSWERS)
"""What is proved as an upper bound."""

TRAINED_ON = "images were trained on: the numbers say little of other images"
"""The end of the sentence that begins with how many."""
CHOSEN = "the images chose the epoch that was kept: the numbers are too good for other images"
SEEN_BEFORE = "a teacher, or an earlier training, may have had the images: then the numbers are too good for others"
"""What else is said of images that the network, or the choice of its weights, has seen."""


def about_images(warning: str) -> bool:
    """Whether a warning is about the images, and so about every number that was measured on them."""
    return warning in (CHOSEN, SEEN_BEFORE) or warning.endswith(TRAINED_ON)


@dataclass(frozen=True)
class Measurement:
    """One number of a record with everything needed to read it."""

    quantity: str
    at: float | None
    """The radius, or the size eps of the shift."""
    value: float
    low: float | None
    """Ends of the 95% interval over the choice of images, where there is one."""
    high: float | None
    n: int
    """Images behind it."""
    status: Status
    detail: Mapping[str, Any] = field(default_factory=dict)
    """What only some have. Robust accuracy: `undecided`, `least`, `most` of votes that are not significant, and
    `target`, the network that a transfer attack is tested on. Shift: `cost`, `classifier`, `baseline` (whose bound).
    Common corruptions: `corruption`, `severity` and its `level`."""

    @classmethod
    def counted(
        cls, quantity: str, at: float | None, share: Mapping[str, Any], status: Status, **detail: Any
    ) -> "Measurement":
        """A share of images with its interval, as `Share.as_row` has it."""
        return cls(quantity, at, share["accuracy"], share["low"], share["high"], share["n"], status, detail)

    @property
    def direction(self) -> Direction:
        """How to round it: what is proved to the safe side, all else to nearest."""
        if self.status != "proved":
            return "nearest"
        return "up" if self.quantity in _FROM_ABOVE else "down"
