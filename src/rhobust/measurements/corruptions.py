"""Records of common corruptions: what their rows prove, and their measurements."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rhobust.formatting import format_confidence, format_setting
from rhobust.measurements.counting import integer, nonnegative, numbered_rows, summary_points
from rhobust.measurements.proved import SAMPLES, once, recentred, shift_claim
from rhobust.measurements.quantities import (
    AFTER,
    BASE_AFTER,
    BASE_BEFORE,
    BEFORE,
    CERTIFIED_AFTER,
    CHANGE,
    RECENTRED,
    Measurement,
)
from rhobust.measurements.shifts import SUMMARIES, prove
from rhobust.proofs.claim import NoiseSamples, name_classifier, scope_of_validity
from rhobust.proofs.measured_shift import MeasuredCertificate, MeasuredShift, accuracy_under_noise
from rhobust.records import Record, Row
from rhobust.stats import share

CLEAN = ("none", 0)
"""Corruption and severity of the rows of unchanged images."""
REACH = 6.0
"""In units of sigma: where 99% of the images are perturbed by more, nothing is certified, and it is not tried."""
_SHIFT = ("eps", "mean_distance", "largest_distance", "eps_capped", "eps_upper")


@once
def corruption_summary(rows: Sequence[Row], settings: Mapping[str, Any], dimension: int) -> Row:
    """What the rows of corruptions prove: of each corruption and severity the shift, accuracies, and a certificate.

    Guarantee: with probability at least 1 - alpha all certified accuracies hold at once (union bound over the table).
    Without a sigma in the settings nothing is certified.
    """
    cells = _cells(rows)
    names = [(name, severity) for name in settings["corruptions"] for severity in settings["severities"]]
    each = settings["alpha"] / len(names)
    sigma: float | None = settings["sigma"]
    errors, votes = np.array([row.get("errors", 0) for row in cells[CLEAN]]), shift_claim(settings).votes_per_answer
    table: list[Row] = []
    for (name, severity), level in zip(names, settings["levels"], strict=True):
        here = cells[name, severity]
        distances = np.array([row["distance"] for row in here])
        shift = MeasuredShift.from_distances(distances, dimension=dimension, alpha=each)
        point: Row = {"corruption": name, "severity": severity, "level": level}
        point |= {key: getattr(shift, key) for key in _SHIFT}
        if sigma is not None:
            # Where a smaller shift of the same kind has no certificate, a larger one is not tried.
            known = [one for one in table if one["corruption"] == name and one["eps"] <= point["eps"]]
            hopeless = any(one["certified_accuracy"] == 0 for one in known)
            hopeless |= bool(np.quantile(distances, 0.01) > REACH * sigma)
            taken = {key: settings[key] for key in SAMPLES}
            samples = NoiseSamples(dimension=dimension, **{**taken, "alpha": each})
            point["certified_accuracy"] = 0.0
            if not hopeless:
                found = MeasuredCertificate.from_counts(errors, distances, samples, votes=votes)
                point["certified_accuracy"] = found.certified_accuracy
            if "label_draws" in settings:
                # The labels of changed images are known here, and left out: what is certified needs none of them.
                left_out = [{key: value for key, value in row.items() if key != "errors"} for row in here]
                alone = recentred([*cells[CLEAN], *left_out], {**settings, "eps": (0.0,)}, samples, votes=votes)
                point["certified_without_labels"] = alone.certified_accuracy[0]
        table.append({**point, **_accuracies(here)})
    return {"dimension": dimension, "clean": _accuracies(cells[CLEAN]), "table": table}


def corruptions_in_words(settings: Mapping[str, Any]) -> str:
    """What is certified of all corruptions of a record."""
    who = f"{name_classifier(shift_claim(settings).votes_per_answer)} (sigma {format_setting(settings['sigma'])})"
    return (
        f"With probability {format_confidence(settings['alpha'])} over test points and noise all accuracies certified"
        f" after any change of a corruption's size hold at once, for {who}: each also after every other change that"
        " moves images no further. With that probability all those certified without labels hold at once, each for its"
        f" corruption alone; they use no label of a changed image.{scope_of_validity(settings['noise'])}"
    )


def _cells(rows: Sequence[Row]) -> dict[tuple[str, int], list[Row]]:
    """The rows of each corruption and severity."""
    cells: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        cells.setdefault((row["corruption"], row["severity"]), []).append(row)
    return cells


def _accuracies(rows: Sequence[Row]) -> Row:
    """Accuracy of the base network, and of one noisy vote where there are votes, with their 95% intervals."""
    found: Row = {"base": share(sum(row["prediction"] == row["label"] for row in rows), len(rows)).as_row()}
    if "errors" in rows[0]:
        found["noisy"] = accuracy_under_noise(np.array([row["errors"] for row in rows]), rows[0]["draws"])
    return found


def read_corruptions(record: Record, _: Sequence[float] | None) -> Iterator[Measurement]:
    """Of unchanged images and of each corruption: its size, the accuracies, and what is certified."""
    for number, row in numbered_rows(record):
        for key in ("label", "severity", "prediction"):
            integer(row, key, number)
        nonnegative(row, "distance", number)
    found = prove(record)
    indices = [sorted(row["index"] for row in rows) for rows in _cells(record.rows).values()]
    if len(indices) != 1 + len(found["table"]) or any(here != sorted(set(indices[0])) for here in indices):
        raise ValueError(f"{record.path} must have one row per example, corruption and severity, but it has not")
    yield from _measured(found["clean"], 0.0, {}, BASE_BEFORE, BEFORE)
    for ours, theirs in zip(found["table"], summary_points(record, "table"), strict=True):
        detail = {key: ours[key] for key in ("corruption", "severity", "level")}
        eps, n = ours["eps"], ours["base"]["n"]
        yield Measurement(CHANGE, None, eps, None, None, n, "estimate", detail)
        yield from _measured(ours, eps, detail, BASE_AFTER, AFTER)
        for quantity, key in ((CERTIFIED_AFTER, "certified_accuracy"), (RECENTRED, "certified_without_labels")):
            if key in ours:
                value = min(one[key] for one in (ours, theirs))
                yield Measurement(quantity, eps, value, None, None, n, "proved", detail)


def _measured(point: Row, eps: float, detail: Row, base: str, noisy: str) -> Iterator[Measurement]:
    for quantity, key in ((base, "base"), (noisy, "noisy")):
        if key in point:
            yield Measurement.counted(quantity, eps, point[key], "estimate", **detail)


SUMMARIES["corruptions"] = corruption_summary
