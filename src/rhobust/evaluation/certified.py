"""What the certificates of a test set add up to."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from rhobust.bounds import certified_radius, failure_quantile, lecuyer_radius, li_radius
from rhobust.certificates import scope_of_validity
from rhobust.formatting import format_confidence, format_distance, format_percent
from rhobust.measurements import certified_at_least, certified_curve, right_class
from rhobust.records import Row

OTHERS: dict[str, Callable[..., object]] = {"cohen": certified_radius, "lecuyer": lecuyer_radius, "li": li_radius}
"""Theorems that turn the same lower bound of a probability into a radius."""


def certified_summary(rows: Sequence[Row], settings: Row) -> Row:
    """The curve of certificates, and what follows for the test set.

    `at_least` is a lower bound, with probability 1 - alpha for all radii at once, of the share of these examples that
    truly are right within the radius: more than `false_at_most` certificates are false with probability at most alpha.
    """
    alpha = settings["alpha"]
    false = failure_quantile(len(rows), alpha, alpha)
    found = certified_curve(rows, settings["radii"])
    for point in found["certified_accuracy"]:
        point["at_least"] = certified_at_least(round(point["accuracy"] * len(rows)), len(rows), alpha)
    draws = [row["n"] for row in rows]
    return {
        **found,
        "abstained": sum(row["prediction"] is None for row in rows),
        "false_at_most": false,
        "statement": _statement(found["certified_accuracy"][len(settings["radii"]) // 2], len(rows), settings),
        "mean_draws": sum(draws) / len(rows),
        "most_draws": max(draws),
        "theorems": [_theorem(name, rows, settings) for name in OTHERS],
        "deduction": math.sqrt(settings["dimension"]) / 510 if settings["noise"] == "grid" else None,
    }


def _statement(point: Row, n: int, settings: Row) -> str:
    return (
        f"With probability {format_confidence(settings['alpha'])} over the noise, at least"
        f" {format_percent(point['at_least'], 'down')}% of these {n} examples are classified right by the smoothed"
        " classifier"
        f" at every point within L2 distance {format_distance(point['radius'])}.{scope_of_validity(settings['noise'])}"
    )


def _theorem(name: str, rows: Sequence[Row], settings: Row) -> Row:
    """What a theorem makes of the rows' bounds: from the same counts, at the same alpha."""
    right, lower = right_class(rows), np.array([row["p_lower"] for row in rows])
    radius = np.where(right, np.asarray(OTHERS[name](lower, settings["sigma"])), 0.0)
    accuracy = [float(np.mean(right & (radius >= at))) for at in settings["radii"]]
    return {"name": name, "average_certified_radius": float(radius.mean()), "certified_accuracy": accuracy}
