"""Audit a record of certificates: recompute what its counts prove, and draw a share of them again."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rhobust.certificates import (
    PROCEDURES,
    AnyProcedure,
    ShiftClaim,
    Smoothing,
    VoteCounter,
    certification_plan,
    certify_stream,
    scope_of_validity,
)
from rhobust.evaluation.certified import certified_summary
from rhobust.evaluation.certifying import certificate_row
from rhobust.evaluation.shift import shift_procedure, shift_rows, shift_summary
from rhobust.evaluation.target import Target, target_from_folder
from rhobust.measurements import same
from rhobust.progress import ProgressCallback, ProgressEvent, progress_or_default
from rhobust.records import COMPRESSED, PLAIN, PROCEDURE_FROM_DISK, Record, Row, read_record, settings_hash
from rhobust.training import resolve_device

AUDITED = ("certify", "certify-shift")
"""The kinds of records whose claims are computed again."""
BLOCK = 100
"""Points of a certificate for distributions that are drawn again together."""


def audit_record(
    path: Path | str,
    *,
    device: torch.device | str,
    share: float = 0.05,
    seed: int = 0,
    data: str | None = None,
    root: Path | str | None = None,
    progress: ProgressCallback | None = None,
) -> Row:
    """Audit one record of `certify` or `certify-shift`.

    Every radius is computed again from its counts, and the summary, or the bound for distributions, from the rows.
    Then a share of the examples, chosen by the seed, is drawn again with the recorded noise: the network, whose weights
    and data must be those of the record, has to give the same counts. A bound for distributions also depends on how
    many classes and pixels the data has, so its network and data are asked for in any case.

    Args:
        path: The record; the network is that of its folder.
        device: Where to draw again; of the kind that the record names.
        share: Share of the examples that are drawn again, at least one; 0 for none.
        seed: Chooses them.
        data: Test data; that of the folder's own config where none is given.
        root: Where the data sets lie.
        progress: Progress callback; default: shown on stderr.

    Returns:
        What was checked, and one entry a problem.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share must be in [0, 1], got {share}")
    path, device = Path(path), resolve_device(device)
    record = read_record(path)
    if record.kind not in AUDITED:
        raise ValueError(f"{path} must be a record of {' or '.join(AUDITED)}, got one of {record.kind}")
    if not record.rows:
        raise ValueError(f"{path} must hold at least one example, got none")
    try:
        procedure = smoothing = None
        problems = list(_header(record))
        if record.kind == "certify":
            procedure, smoothing = _procedure(record.settings), _smoothing(record.settings)
            problems += [*_rows(record, procedure, smoothing), *_summary(record)]
        redrawn: list[Row] = []
        if (share or smoothing is None) and not problems:
            if share and record.settings["device"] != device.type:
                raise ValueError(
                    f"{path} must be drawn again on a {record.settings['device']}, got {device.type}: or set share to 0"
                )
            sigma = record.settings["sigma"]
            target = target_from_folder(
                path.parent, device=device, sigma=sigma, data=data, root=root, progress=progress
            )
            problems += _target(record, target, drawn=bool(share))
            if not problems:
                redrawn = _choose(record.rows, share, seed)
                if procedure is not None and smoothing is not None:
                    problems += _redrawn(record, redrawn, target, procedure, smoothing, progress)
                else:
                    problems += _shift(record, redrawn, target, progress)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path} must hold the settings and rows of {record.kind}, but {error!r} is missing or wrong"
        ) from None
    return {
        "record": str(path),
        "finished": record.summary is not None,
        "examples": len(record.rows),
        "redrawn": len(redrawn),
        "draws": sum(row["n"] + record.settings["n0"] if "n" in row else row["draws"] for row in redrawn),
        "problems": problems,
    }


def _shift(record: Record, rows: list[Row], target: Target, progress: ProgressCallback | None) -> Iterator[str]:
    """What the rows of a certificate for distributions do not bear out, and what is otherwise drawn again."""
    settings = record.settings
    claim = ShiftClaim(
        **{name: settings[name] for name in ("classifier", "loss", "cost")},
        estimator=settings["way"],
        votes=settings["votes"] if settings["classifier"] == "k-vote" else None,
        bound=None if settings["loss"] == "0-1" else settings["bound"],
    )
    procedure = shift_procedure(
        target,
        claim,
        points=len(target.data.places(settings["limit"], settings["stride"])),
        **{name: settings[name] for name in ("draws", "alpha", "dtype", "seed")},
    )
    if settings["noise"] != procedure.smoothing.noise:
        yield f"the record is of {settings['noise']} noise, the images ask for {procedure.smoothing.noise}"
        return
    for row in record.rows:
        if row["draws"] != settings["draws"] or not 0 <= row["errors"] <= row["draws"]:
            yield f"example {row['index']}: impossible counts, {row['errors']} of {row['draws']}"
            return
    if record.summary is not None:
        found = shift_summary(record.rows, procedure, settings["eps"], baselines=settings["beside"])
        yield from (
            f"the rows give another {key} than the summary"
            for key, value in found.items()
            if not same(record.summary.get(key), value)
        )
    with progress_or_default(progress) as notify:
        for start in range(0, len(rows), BLOCK):
            block = rows[start : start + BLOCK]
            again = shift_rows(target, procedure, [row["index"] for row in block])
            yield from (problem for row, found in zip(block, again, strict=True) for problem in _otherwise(row, found))
            notify(ProgressEvent(f"audit {record.path.name}", start + len(block), len(rows), "examples"))


def _procedure(settings: Row) -> AnyProcedure:
    procedure: Any = PROCEDURES[PROCEDURE_FROM_DISK[settings["way"]]]
    fields = {field.name: settings[field.name] for field in dataclasses.fields(procedure)}
    return procedure(**{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})


def _smoothing(settings: Row) -> Smoothing:
    keys = ("sigma", "num_classes", "noise", "seed", "dtype", "compiled")
    return Smoothing(**{key: settings[key] for key in keys})


def _header(record: Record) -> Iterator[str]:
    name = record.path.name.removesuffix(COMPRESSED).removesuffix(PLAIN)
    if not name.endswith(settings_hash(record.settings)):
        yield "the header is not that of the file's name: it was changed, or the file was renamed"


def _rows(record: Record, procedure: AnyProcedure, smoothing: Smoothing) -> Iterator[str]:
    settings, rows = record.settings, record.rows
    plan = certification_plan(procedure, smoothing, dimension=settings["dimension"], alpha=settings["alpha"])
    seen: set[int] = set()
    for row in rows:
        name, evidence = f"example {row['index']}", [tuple(step) for step in row.get("evidence", [])]
        if row["index"] in seen:
            yield f"{name} stands twice"
        seen.add(row["index"])
        if not (0 <= row["count"] <= row["n"] <= settings["n"] and 0 <= row["top"] <= settings["n0"]):
            yield f"{name}: impossible counts, {row['count']} of {row['n']} and {row['top']} of {settings['n0']}"
            continue
        reason = plan.audit(row["top"], row["count"], row["n"], evidence)
        if reason is not None:
            yield f"{name}: {reason}"
            continue
        claims = plan.claims(*(np.array([value]) for value in (row["count"], row["n"], len(evidence))))
        prediction = row["selected"] if claims.proved[0] else None
        told = [("prediction", row["prediction"], prediction)]
        told += [
            ("radius", row["radius"], float(claims.radius[0])),
            ("p_lower", row["p_lower"], float(claims.p_lower[0])),
        ]
        for what, said, found in told:
            if not same(said, found):
                yield f"{name}: the counts give the {what} {found}, the record says {said}"


def _summary(record: Record) -> Iterator[str]:
    if record.summary is None:
        return
    for key, found in certified_summary(record.rows, record.settings).items():
        said = record.summary.get(key)
        if key == "statement" and said == found.removesuffix(scope_of_validity(record.settings["noise"])):
            continue  # older records lack the last sentence
        if not same(said, found):
            yield f"the rows give another {key} than the summary"


def _target(record: Record, target: Target, *, drawn: bool) -> Iterator[str]:
    settings, labels = record.settings, target.data.labels
    for key, found in target.identity().items():
        # On another device nothing is drawn again, and the rows are what they are.
        if key != "dtype" and (drawn or key != "device") and settings[key] != found:
            yield f"the record is of the {key} {settings[key]}, here it is {found}"
            return
    expected = set(target.data.places(settings["limit"], settings["stride"]))
    found = {row["index"] for row in record.rows}
    if found - expected or (record.summary is not None and expected - found):
        yield f"{len(found - expected)} examples are not those of the settings, and {len(expected - found)} are missing"
        return
    wrong = [row for row in record.rows if int(labels[row["index"]]) != row["label"]]
    if wrong:
        yield f"example {wrong[0]['index']}: the label is {int(labels[wrong[0]['index']])}, not {wrong[0]['label']}"


def _redrawn(
    record: Record,
    rows: list[Row],
    target: Target,
    procedure: AnyProcedure,
    smoothing: Smoothing,
    progress: ProgressCallback | None,
) -> Iterator[str]:
    counter = VoteCounter(target.model, target.data.images.to(target.device), smoothing)
    inputs = [(row["index"], row["index"]) for row in rows]
    stream = certify_stream(counter, procedure, inputs, alpha=record.settings["alpha"])
    with progress_or_default(progress) as notify:
        for number, (row, certificate) in enumerate(zip(rows, stream, strict=True), start=1):
            yield from _otherwise(row, certificate_row(row["index"], row["label"], certificate))
            notify(ProgressEvent(f"audit {record.path.name}", number, len(rows), "examples"))


def _otherwise(row: Row, again: Row) -> Iterator[str]:
    """What is not as a row says when it is drawn again."""
    for key, found in again.items():
        if not same(row[key], found):
            yield f"example {row['index']}: drawn again, its {key} is {found}, the record says {row[key]}"


def _choose(rows: list[Row], share: float, seed: int) -> list[Row]:
    order = np.random.default_rng(seed).permutation(len(rows))
    return [rows[place] for place in sorted(order[: math.ceil(share * len(rows))])]
