"""What the certificates of a test set add up to."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rhobust.bounds import certified_radius, failure_quantile, lecuyer_radius, li_radius
from rhobust.certificates import scope_of_validity
from rhobust.formatting import format_confidence, format_distance, format_percent
from rhobust.records import Row
from rhobust.stats import share

OTHERS: dict[str, Callable[..., object]] = {"cohen": certified_radius, "lecuyer": lecuyer_radius, "li": li_radius}
"""Theorems that turn the same lower bound of a probability into a radius."""


def certified_curve(rows: Sequence[Row], radii: Sequence[float]) -> Row:
    """The certified accuracy at each radius, and the average certified radius.

    The certified accuracy at a radius is the share of examples that are right and certified there; at 0, the share
    that is right and certified at all. An abstention and a wrong answer count as radius 0 in the average.
    """
    check_certificates(rows)
    right, radius = rights(rows), np.array([row["radius"] for row in rows])
    hits = [int(np.sum(right & (radius >= at))) for at in radii]
    return {
        "certified_accuracy": [
            {"radius": at, **share(count, len(rows)).as_row()} for at, count in zip(radii, hits, strict=True)
        ],
        "average_certified_radius": float(np.where(right, radius, 0.0).mean()),
    }


def certified_summary(rows: Sequence[Row], settings: Row) -> Row:
    """The curve of certificates, and what follows for the test set.

    `at_least` is a lower bound, with probability 1 - alpha for all radii at once, of the share of these examples that
    truly are right within the radius: more than `false_at_most` certificates are false with probability at most alpha.
    """
    alpha = settings["alpha"]
    false = failure_quantile(len(rows), alpha, alpha)
    found = certified_curve(rows, settings["radii"])
    for point in found["certified_accuracy"]:
        point["at_least"] = max(0, round(point["accuracy"] * len(rows)) - false) / len(rows)
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


def check_certificates(rows: Sequence[Row]) -> None:
    """Refuse rows of attacks, and none at all."""
    if not rows or any("broken" in row for row in rows):
        given = "those of an attack, which proves nothing of what it leaves standing" if rows else "none"
        raise ValueError(f"rows must be those of certificates, got {given}")


def rights(rows: Sequence[Row]) -> NDArray[np.bool_]:
    """Which certificates are of the right class."""
    return np.array([row["prediction"] is not None and row["prediction"] == row["label"] for row in rows])


def _statement(point: Row, n: int, settings: Row) -> str:
    return (
        f"With probability {format_confidence(settings['alpha'])} over the noise, at least"
        f" {format_percent(point['at_least'], 'down')}% of these {n} examples are classified right by the smoothed"
        " classifier"
        f" at every point within L2 distance {format_distance(point['radius'])}.{scope_of_validity(settings['noise'])}"
    )


def _theorem(name: str, rows: Sequence[Row], settings: Row) -> Row:
    """What a theorem makes of the rows' bounds: from the same counts, at the same alpha."""
    right, lower = rights(rows), np.array([row["p_lower"] for row in rows])
    radius = np.where(right, np.asarray(OTHERS[name](lower, settings["sigma"])), 0.0)
    accuracy = [float(np.mean(right & (radius >= at))) for at in settings["radii"]]
    return {"name": name, "average_certified_radius": float(radius.mean()), "certified_accuracy": accuracy}
