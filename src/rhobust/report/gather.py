"""Run folders to numbers: every number is counted again from the rows of its record."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeGuard

from rhobust.records import Record, Row, read_json, read_record, read_rows
from rhobust.report.run import Attack, Certificate, Run, Shift
from rhobust.rounding import plain


def gather(folders: Sequence[Path]) -> list[Run]:
    """The runs in the order given, with labels that tell them apart.

    Args:
        folders: Run folders; each must hold a config.json.

    Raises:
        ValueError: No folder is given, or one is no run folder. Damage further inside becomes a note of the run.
    """
    if not folders:
        raise ValueError("runs must name at least one run folder, got none")
    runs: list[Run] = []
    for folder in folders:
        runs.append(_gather_run(folder, taken={run.label for run in runs}))
    return runs


def _gather_run(folder: Path, taken: set[str]) -> Run:
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise ValueError(f"{folder / 'config.json'} must hold a JSON object, got {type(config).__name__}")
    notes: list[str] = []
    pieces: dict[type, list[Any]] = {Attack: [], Certificate: [], Shift: []}
    seconds: dict[str, float] = {}
    for path in sorted(folder.glob("*.jsonl")):
        if path.name == "metrics.jsonl":
            continue
        try:
            record = read_record(path)
            piece = _piece(record)
        except (ValueError, OSError) as error:
            notes.append(f"{path.name} is damaged and left out: {str(error).replace(f'{folder}/', '')}")
            continue
        if isinstance(piece, str):
            notes.append(piece)
            continue
        pieces[type(piece)].append(piece)
        notes += _disagreements(piece, record.summary or {})
        if isinstance(took := (record.summary or {}).get("seconds"), int | float):
            seconds[path.name] = float(took)
    return Run(
        folder=folder.name,
        label=_label(config, folder, taken),
        config=config,
        environment=_environment(folder, notes),
        epochs=_epochs(folder, config, notes),
        attacks=tuple(pieces[Attack]),
        certificates=tuple(pieces[Certificate]),
        shifts=tuple(pieces[Shift]),
        seconds=seconds,
        notes=tuple(notes),
    )


def _label(config: Row, folder: Path, taken: set[str]) -> str:
    name = str(config.get("name") or folder.resolve().name)
    label, number = name, 1
    while label in taken:
        number += 1
        label = f"{name} ({number})"
    return label


def _environment(folder: Path, notes: list[str]) -> Row:
    try:
        environment = read_json(folder / "environment.json")
    except (ValueError, OSError):
        environment = None
    if not isinstance(environment, dict):
        notes.append("environment.json is missing or damaged: hardware and versions are not known.")
        return {}
    return environment


def _epochs(folder: Path, config: Row, notes: list[str]) -> tuple[Row, ...]:
    try:
        rows = read_rows(folder / "metrics.jsonl")
    except (ValueError, OSError) as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else "is damaged and left out"
        notes.append(f"metrics.jsonl {reason}: there are no training curves.")
        return ()
    rows = [row for row in rows if _is_number(row.get("epoch"))]
    planned = config.get("epochs")
    if isinstance(planned, int) and len(rows) < planned:
        notes.append(f"metrics.jsonl holds {len(rows)} of {planned} epochs: the training is not finished.")
    return tuple(rows)


def _piece(record: Record) -> Attack | Certificate | Shift | str:
    """The record as numbers, or the line that says why it is left out."""
    if not isinstance(record.settings, dict):
        raise ValueError(f"settings must be a JSON object, got {type(record.settings).__name__}")
    readers = {"attack": _attack, "certify": _certificate, "certify-shift": _shift}
    if record.kind == "transfer":
        return f"{record.path.name} is a transfer matrix, which this page does not show: see rhobust transfer."
    if record.settings.get("norm", "l2") != "l2":
        return f"{record.path.name} is not an L2 attack, and this page compares by L2 radius: left out."
    if record.kind not in readers:
        return f"{record.path.name} is of kind {record.kind!r}, which this report does not know: left out."
    if record.summary is None:
        return f"{record.path.name} is unfinished ({len(record.rows)} rows so far): left out."
    if not isinstance(record.summary, dict):
        raise ValueError(f"summary must be a JSON object, got {type(record.summary).__name__}")
    if not record.rows:
        return f"{record.path.name} has no rows: left out."
    return readers[record.kind](record, record.summary)


def _attack(record: Record, summary: Row) -> Attack:
    examples: set[int] = set()
    answers: dict[float, dict[int, bool]] = {}
    for number, row in enumerate(record.rows, start=2):
        index, radius = _integer(row, "index", number), _nonnegative(row, "radius", number)
        if not isinstance(row.get("broken"), bool):
            raise ValueError(f"line {number}: broken must be true or false, got {row.get('broken')!r}")
        if index in answers.setdefault(radius, {}):
            raise ValueError(f"line {number}: an example must stand once a radius, got {index} twice")
        answers[radius][index] = row["broken"]
        examples.add(index)
    broken: dict[float, frozenset[int]] = {}
    before: frozenset[int] = frozenset()
    for radius, answer in sorted(answers.items()):
        # A sweep may drop what is broken already: without a row of its own it stays broken.
        missing = examples - answer.keys()
        if not missing <= before:
            raise ValueError(
                f"radius {plain(radius)} must have a row for every example, {len(missing - before)} lack it"
            )
        before = frozenset(index for index, wrong in answer.items() if wrong) | missing
        broken[radius] = before
    return Attack(record.path.name, record.settings, frozenset(examples), broken, _warnings(summary))


def _certificate(record: Record, summary: Row) -> Certificate:
    examples: set[int] = set()
    correct: dict[int, float] = {}
    abstained = 0
    for number, row in enumerate(record.rows, start=2):
        index, radius = _integer(row, "index", number), _nonnegative(row, "radius", number)
        if index in examples:
            raise ValueError(f"line {number}: an example must stand once, got {index} twice")
        examples.add(index)
        if row.get("prediction") is None:
            abstained += 1
        elif _integer(row, "prediction", number) == _integer(row, "label", number):
            correct[index] = radius
    listed = [point.get("radius") for point in _points(summary, "certified_accuracy")]
    radii = tuple(sorted({float(radius) for radius in listed if _is_number(radius)}))
    return Certificate(
        record.path.name, record.settings, frozenset(examples), correct, abstained, radii, _warnings(summary)
    )


def _shift(record: Record, summary: Row) -> Shift:
    errors = sum(_integer(row, "errors", number) for number, row in enumerate(record.rows, start=2))
    draws = sum(_integer(row, "draws", number) for number, row in enumerate(record.rows, start=2))
    if not 0 <= errors <= draws or draws == 0:
        raise ValueError(f"errors must be in 0..draws with draws >= 1, got {errors} of {draws}")
    curve = []
    for point in _points(summary, "curve"):
        eps, accuracy = point.get("eps"), point.get("certified_accuracy")
        if not _is_number(eps) or eps < 0 or not _is_number(accuracy) or not 0 <= accuracy <= 1:
            raise ValueError(f"a point of the curve must have eps >= 0 and an accuracy in [0, 1], got {point!r}")
        curve.append((float(eps), float(accuracy)))
    return Shift(
        file=record.path.name,
        settings=record.settings,
        points=len(record.rows),
        under_noise=1 - errors / draws,
        curve=tuple(sorted(curve)),
        statement=str(summary.get("statement", "")),
        warnings=_warnings(summary),
    )


def _disagreements(piece: Attack | Certificate | Shift, summary: Row) -> list[str]:
    """One line for each number of the summary that its own rows do not give."""
    if isinstance(piece, Shift):
        told = [("accuracy under noise", summary.get("accuracy_under_noise"), piece.under_noise)]
    elif isinstance(piece, Certificate):
        told = [
            (f"certified accuracy at radius {point.get('radius')}", point.get("accuracy"), piece.accuracy(r).value)
            for point in _points(summary, "certified_accuracy")
            if _is_number(r := point.get("radius"))
        ]
    else:
        told = [
            (f"accuracy at radius {point.get('radius')}", point.get("accuracy"), piece.accuracy[r].value)
            for point in _points(summary, "robust_accuracy")
            if _is_number(r := point.get("radius")) and r in piece.accuracy
        ]
    return [
        f"{piece.file}: the summary's {what} ({said}) is not what its rows give ({counted:.6g}), which is shown."
        for what, said, counted in told
        if _is_number(said) and abs(said - counted) > 1e-6
    ]


def _points(summary: Row, key: str) -> list[Row]:
    points = summary.get(key, [])
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        raise ValueError(f"the summary's {key} must be a list of objects, got {points!r}")
    return points


def _warnings(summary: Row) -> tuple[str, ...]:
    warnings = summary.get("warnings", [])
    return tuple(str(warning) for warning in warnings) if isinstance(warnings, list) else (str(warnings),)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _integer(row: Row, key: str, number: int) -> int:
    value = row.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"line {number}: {key} must be an integer, got {value!r}")
    return value


def _nonnegative(row: Row, key: str, number: int) -> float:
    value = row.get(key)
    if not _is_number(value) or value < 0:
        raise ValueError(f"line {number}: {key} must be a number >= 0, got {value!r}")
    return float(value)
