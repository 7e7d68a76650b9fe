"""What the rows of a certificate for inputs prove: radii from counts, and the curve; the table of Cohen et al."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from rhobust.bounds import certified_radius, failure_quantile, lecuyer_radius, li_radius
from rhobust.bounds.confidence import NoiseKind
from rhobust.files import read_file, write_whole
from rhobust.formatting import format_confidence, format_distance, format_number, format_percent
from rhobust.measurements.counting import certified_at_least, certified_curve, is_whole, right_class, same
from rhobust.proofs.claim import scope_of_validity
from rhobust.proofs.plan import ClassVotes
from rhobust.proofs.procedures import (
    NAMES_ON_DISK,
    PROCEDURE_ON_DISK,
    choose_procedure,
    corrected_plan,
    procedure_settings,
)
from rhobust.proofs.sequential import TESTS
from rhobust.records import Record, Row

OTHERS: dict[str, Callable[..., object]] = {"cohen": certified_radius, "lecuyer": lecuyer_radius, "li": li_radius}
"""Theorems that turn the same lower bound of a probability into a radius."""
DECIDING = ("early", "first", "last", "share")
"""Settings of a sequential test that no option changes."""
RUNNER_UP = ("runner_up", "runner_up_votes")
"""Keys that rows of older versions lack: the class with the most votes besides the selected one, and its votes."""
COLUMNS = ("idx", "label", "predict", "radius", "correct", "time")
"""Of a table of Cohen et al.: one line per example, tab-separated, as their code and many others' write it."""
DIGITS = 6
"""Digits of a radius in a table; it is rounded down."""


def unproved_rows(rows: Sequence[Row], settings: Mapping[str, Any]) -> Iterator[str]:
    """One line for each example whose counts do not prove its row, or cannot come from the record's procedure.

    Args:
        rows: Those of a record of kind "certify".
        settings: The record's.
    """
    stopping, classes = settings.get("stopping", "e-value"), settings.get("num_classes")
    sequential = settings["way"] == PROCEDURE_ON_DISK["sequential"]
    if sequential and stopping not in [*TESTS]:
        yield f"stopping must be one of {', '.join(TESTS)}, got {stopping!r}"
        return
    procedure = choose_procedure(
        NAMES_ON_DISK[settings["way"]],
        radii=settings["radii"] if sequential else None,
        tolerance=settings.get("tolerance"),
        n0=settings["n0"],
        n=settings["n"],
        stopping=stopping if sequential else None,
        futility=settings.get("futility"),
    )
    plan = corrected_plan(
        procedure,
        sigma=settings["sigma"],
        noise=settings["noise"],
        dimension=settings["dimension"],
        alpha=settings["alpha"],
    )
    if plan.compares and not (is_whole(classes) and classes >= 2):
        yield f"num_classes must be a whole number >= 2, got {classes!r}"
        return
    for key, value in procedure_settings(procedure).items():
        if key in DECIDING and not same(settings.get(key, value), value):
            yield f"{key} must be {value}, by which votes were tested, got {settings[key]!r}"
            return
    selecting = procedure.n0 or int(plan.first_look(np.zeros(1, dtype=np.int64))[0])
    seen, possible = set[int](), list[Row]()
    for row in rows:
        if row["index"] in seen:
            yield f"example {row['index']} occurs twice"
        seen.add(row["index"])
        reason = _impossible(row, procedure.n, selecting, classes if is_whole(classes) else None)
        if reason is None:
            possible.append(row)
        else:
            yield f"example {row['index']}: {reason}"
    evidence = [[tuple(step) for step in row.get("evidence", [])] for row in possible]
    counts = [(row["top"], row["count"], _runner_up(row), row["n"]) for row in possible]
    votes = ClassVotes(*np.array(counts, dtype=np.int64).reshape(-1, 4).T)
    reasons = plan.audit(votes, evidence)
    sound = [place for place, reason in enumerate(reasons) if reason is None]
    claims = plan.claims(votes.of(sound), [evidence[place] for place in sound])
    proved = zip(claims.proved.tolist(), claims.radius.tolist(), claims.p_lower.tolist(), strict=True)
    for row, reason in zip(possible, reasons, strict=True):
        if reason is not None:
            yield f"example {row['index']}: {reason}"
            continue
        proves, radius, lower = next(proved)
        found = {"prediction": row["selected"] if proves else None, "radius": radius, "p_lower": lower}
        for what, value in found.items():
            if not same(row[what], value):
                yield f"example {row['index']}: the counts give the {what} {value}, the record says {row[what]}"


def _runner_up(row: Row) -> int:
    """Votes of the runner-up class; all that are not for the class where a row of an older version does not say."""
    return row.get("runner_up_votes", row["n"] - row["count"])


def _impossible(row: Row, n: int, selecting: int, classes: int | None) -> str | None:
    """Why a row's counts cannot be of any votes, whatever the test; None if they can.

    Args:
        row: The row.
        n: Largest number of noise samples.
        selecting: Noise samples that select the class.
        classes: Number of classes; None if it is not known.
    """
    evidence = row.get("evidence", [])
    whole = [
        row["top"],
        row["count"],
        row["n"],
        row.get("runner_up_votes", 0),
        *(one for step in evidence for one in step),
    ]
    if not all(map(is_whole, whole)):
        return "its counts must be whole numbers"
    steps = [*evidence, (row["n"], row["count"], _runner_up(row))]
    if not (0 <= row["count"] <= row["n"] <= n and 0 <= row["top"] <= selecting):
        return f"impossible counts, {row['count']} of {row['n']} and {row['top']} of {selecting}"
    # The class with most votes has at least an equal share of them, and the runner-up of the others.
    if classes is not None and row["top"] * classes < selecting:
        return f"impossible counts, {row['top']} of {selecting} for the class of {classes} with most"
    for draws, count, runner_up in (step for step in steps if len(step) == 3):
        others = draws - count
        if not 0 <= runner_up <= others or (classes is not None and runner_up * (classes - 1) < others):
            return f"impossible votes of the runner-up class, {runner_up} besides {count} of {draws}"
    if classes is not None and not (is_whole(row["selected"]) and 0 <= row["selected"] < classes):
        return f"the class must be one of {classes}, got {row['selected']!r}"
    if "runner_up" in row and row["runner_up"] == row["selected"]:
        return f"the runner-up must be another class than {row['selected']}"
    return None


def certified_summary(rows: Sequence[Row], settings: Mapping[str, Any]) -> Row:
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
        "statement": _statement(_quoted(found["certified_accuracy"]), len(rows), settings),
        "mean_draws": sum(draws) / len(rows),
        "most_draws": max(draws),
        "theorems": [_theorem(name, rows, settings) for name in OTHERS],
        "deduction": math.sqrt(settings["dimension"]) / 510 if settings["noise"] == "grid" else None,
    }


def other_parts(record: Record) -> Iterator[tuple[str, object, object]]:
    """The parts of a finished record's summary that are not what its rows give, with both; None where one is missing.

    Older records have statements without their last sentence, the scope of validity, and always about the middle
    radius.
    """
    settings, noise = record.settings, record.settings["noise"]
    summary = certified_summary(record.rows, settings)
    points = summary["certified_accuracy"]
    middle = {"statement": _statement(points[len(points) // 2], len(record.rows), settings)}
    for key, found in summary.items():
        said, older = (record.summary or {}).get(key), middle.get(key, found)
        if not any(same(said, one) for one in (found, _shorter(found, noise), older, _shorter(older, noise))):
            yield key, said, found


def _shorter(value: Any, noise: NoiseKind) -> Any:
    """A part of a summary as older records have it."""
    if isinstance(value, str):
        return value.removesuffix(scope_of_validity(noise))
    if isinstance(value, dict):
        return {key: _shorter(inner, noise) for key, inner in value.items()}
    return [_shorter(inner, noise) for inner in value] if isinstance(value, list) else value


def _quoted(points: Sequence[Row]) -> Row:
    """The point that a statement is about: the middle one, or the largest below it that says something."""
    return next((point for point in reversed(points[: len(points) // 2 + 1]) if point["at_least"] > 0), points[0])


def _statement(point: Row, n: int, settings: Mapping[str, Any]) -> str:
    return (
        f"With probability {format_confidence(settings['alpha'])} over the noise, at least"
        f" {format_percent(point['at_least'], 'down')}% of these {n} examples are classified right by the smoothed"
        " classifier"
        f" at every point within L2 distance {format_distance(point['radius'])}.{scope_of_validity(settings['noise'])}"
    )


def _theorem(name: str, rows: Sequence[Row], settings: Mapping[str, Any]) -> Row:
    """What a theorem makes of the rows' bounds: from the same counts, at the same alpha."""
    lower = np.array([row["p_lower"] for row in rows])
    # Where only comparisons with each other class prove a class, no bound of its probability does.
    right = right_class(rows) & (lower > 0.5)
    radius = np.where(right, np.asarray(OTHERS[name](lower, settings["sigma"])), 0.0)
    accuracy = [float(np.mean(right & (radius >= at))) for at in settings["radii"]]
    return {"name": name, "average_certified_radius": float(radius.mean()), "certified_accuracy": accuracy}


def write_tsv(record: Record, path: Path | str) -> None:
    """Write the rows of a finished `certify` record as a table of Cohen et al.

    An abstention is -1 there. The time of an example is its share, by noise samples, of the time of all.
    """
    if record.kind != "certify" or record.summary is None:
        raise ValueError(f"{record.path} must be a finished record of certify, got one of {record.kind}")
    seconds = (record.summary.get("seconds") or 0.0) / sum(row["n"] for row in record.rows)
    lines: list[str] = ["\t".join(COLUMNS)]
    for row in record.rows:
        predict = -1 if row["prediction"] is None else row["prediction"]
        took = timedelta(seconds=seconds * row["n"])
        cells = (row["index"], row["label"], predict, format_number(row["radius"], DIGITS, "down"))
        lines.append("\t".join(map(str, (*cells, int(predict == row["label"]), took))))
    write_whole(Path(path), "\n".join(lines) + "\n")


def read_tsv(path: Path | str) -> list[Row]:
    """Read a table of Cohen et al. into rows with index, label, prediction and radius.

    The column `correct` is not believed: some programs write a running total there, and some a byte-order mark first.
    """
    try:
        lines = read_file(Path(path)).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be a table in UTF-8, but it is not: {error}") from None
    if not lines or tuple(lines[0].split("\t")[:4]) != COLUMNS[:4]:
        raise ValueError(f"{path} must start with the columns {' '.join(COLUMNS)}, but it does not")
    rows, seen = list[Row](), set[int]()
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        try:
            index, label, predict = (int(cell) for cell in line.split("\t")[:3])
            radius = float(line.split("\t")[3])
        except (ValueError, IndexError):
            raise ValueError(
                f"{path}, line {number} must hold three whole numbers and a radius, got {line!r}"
            ) from None
        if not 0 <= radius < float("inf"):
            raise ValueError(f"{path}, line {number}: a radius must be >= 0 and finite, got {radius}")
        if index in seen:
            raise ValueError(f"{path}, line {number}: an example must have one row, got {index} twice")
        seen.add(index)
        prediction = None if predict == -1 else predict
        rows.append({"index": index, "label": label, "prediction": prediction, "radius": radius})
    if not rows:
        raise ValueError(f"{path} must hold at least one example, got none")
    return rows
