"""What a distributional attack leaves: one transport budget, spent over all images where it breaks most."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats as distributions

from rhobust.bounds import spend_budget
from rhobust.formatting import format_distance, format_percent, format_setting, name_split
from rhobust.measurements.counting import integer, nonnegative, other_summary, same, single_rows, summary_points
from rhobust.measurements.quantities import SHIFT_ATTACK, Measurement
from rhobust.proofs.claim import name_classifier
from rhobust.records import Record, Row
from rhobust.stats import mean

UNSPENT = 0.98
"""Share of eps below which a budget counts as not spent."""


def shift_attack_summary(rows: Sequence[Row], settings: Mapping[str, Any]) -> Row:
    """The accuracy that the attack leaves at each eps, and how far it moves images.

    The shares of the mass are chosen by one part of the noise samples, and the loss is counted by the other part: an
    unbiased estimate of the loss of the distribution that was chosen, so choosing does not flatter the attack.
    """
    costs, chosen, fresh = (
        np.array([[place[key] for place in row["places"]] for row in rows], dtype=float)
        for key in ("squared_distance", "errors", "fresh_errors")
    )
    draws, votes, eps = settings["draws"], settings["votes"], settings["eps"]
    tables = spend_budget(costs, _loss(chosen, draws, votes), np.square(eps))
    lost = _loss(fresh, draws, votes)
    curve, warnings = [], []
    for at, shares in zip(eps, tables, strict=True):
        found = mean((1 - (shares * lost).sum(axis=1)).tolist())
        spent = float(np.sqrt((shares * costs).sum(axis=1).mean()))
        moved = float((1 - shares[:, 0]).mean())
        low, high = max(0.0, found.low), min(1.0, found.high)
        curve.append({"eps": at, "accuracy": found.value, "low": low, "high": high, "spent": spent, "perturbed": moved})
        if spent < UNSPENT * at and found.value > 0:
            warnings.append(
                f"at eps {format_distance(at)} the attack spends only {format_distance(spent)}: larger radii may leave"
                " less accuracy"
            )
    middle = curve[len(curve) // 2]
    statement = in_words(middle["accuracy"], middle["eps"], settings, len(rows))
    return {"points": len(rows), "curve": curve, "statement": statement, "warnings": warnings}


def _loss(errors: np.ndarray, draws: int, votes: int) -> np.ndarray:
    """Unbiased estimate of how often at least half of the votes are wrong, from errors among the noise samples."""
    return distributions.hypergeom.sf((votes + 1) // 2 - 1, draws, errors, votes)


def in_words(accuracy: float, eps: float, settings: Mapping[str, Any], points: int) -> str:
    """The sentence of what the attack leaves at one eps: an estimate, and no bound from below."""
    images = f"{points} {name_split(settings.get('split'))} images"
    return (
        f"An attack that moves these {images} by a root mean square of at most"
        f" {format_distance(eps)}, most where it breaks most, leaves {name_classifier(settings['votes'])} (sigma"
        f" {format_setting(settings['sigma'])}) right {format_percent(accuracy, 'nearest')}% of the time (estimate). No"
        " certificate about these images can be above it, up to the error of the estimate; a stronger attack may leave"
        " less."
    )


def read_shift_attack(record: Record, _: Sequence[float] | None) -> Iterator[Measurement]:
    """The accuracy left at each eps, counted from the rows."""
    settings, n = record.settings, len(record.rows)
    for number, row in single_rows(record):
        places = row.get("places")
        if not isinstance(places, list) or len(places) != 1 + len(settings["radii"]):
            raise ValueError(f"line {number}: places must be the image and one per radius")
        for place in places:
            nonnegative(place, "squared_distance", number)
            for key in ("errors", "fresh_errors"):
                if not 0 <= integer(place, key, number) <= settings["draws"]:
                    raise ValueError(f"line {number}: {key} must be in 0..draws, got {place[key]}")
    found = shift_attack_summary(record.rows, settings)
    stated = summary_points(record, "curve")
    if len(stated) != len(found["curve"]):
        raise other_summary(record, "curve", f"{len(stated)} points", f"{len(found['curve'])} points")
    for ours, theirs in zip(found["curve"], stated, strict=True):
        for key, value in ours.items():
            if not same(theirs.get(key), value):
                raise other_summary(record, f"{key} at eps {format_distance(ours['eps'])}", theirs.get(key), value)
        detail = {"statement": in_words(ours["accuracy"], ours["eps"], settings, n), "votes": settings["votes"]}
        status = "upper bound" if ours["eps"] > 0 else "estimate"
        yield Measurement(SHIFT_ATTACK, ours["eps"], ours["accuracy"], ours["low"], ours["high"], n, status, detail)
