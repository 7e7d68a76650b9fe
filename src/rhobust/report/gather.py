"""Run folders to runs: what is in a folder, one line for whatever cannot be used, and the labels of runs."""

import re
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rhobust.files import open_regular, read_json
from rhobust.formatting import format_distance
from rhobust.measurements import READERS, ROBUST, is_record, measurements, outcomes, read_compared
from rhobust.measurements.reader import check_written
from rhobust.records import (
    CONFIG,
    DIAGNOSIS,
    ENVIRONMENT,
    METRICS,
    Record,
    Row,
    is_own,
    read_record,
    read_rows,
    record_paths,
)
from rhobust.report.runs import PageRecord, PageRun, name_kind

ELSEWHERE = ("match", "curvature", "counterexample")
"""Records of the paper's claims: they say nothing of robustness, and the reproduction shows them."""
LARGEST = 1 << 26
"""Bytes that the arrays of one record may take."""
_ATTACKED = ("index", "label", "radius", "prediction", "distance")
_NAMES = {"gaussian": "Gaussian", "smoothadv": "SmoothAdv", "consistency": "Consistency", "smoothmix": "SmoothMix"}
"""Names of methods that are not written in capitals."""
_SOLVERS = {"paper": "the paper’s solver", "search": "best iterate"}
"""Inner solvers that are not the default."""
_SYMBOLS = {"sigma": "σ", "gamma": "γ", "eps": "ε", "beta": "β", "lam": "λ"}
_NOT_NAMED = {*_SYMBOLS, "kind", "inner", "method", "rhobust", "seed", "weights", "witness"}
"""Settings that a label says already, or that are none of the training."""


@dataclass(frozen=True)
class Gathered:
    """The runs, in the order given, tables of other programs, and a line for each path with neither."""

    runs: tuple[PageRun, ...]
    missing: tuple[str, ...]
    tables: tuple[tuple[str, Record], ...] = ()
    """Tables of Cohen et al. with their labels, as records without settings."""

    @property
    def problems(self) -> list[str]:
        """Everything that could not be used, one line each, with the folder's name."""
        return [*self.missing, *(f"{run.folder}: {note}" for run in self.runs for note in run.notes)]

    @property
    def left_out(self) -> list[str]:
        """Of these the folders, records and pictures that could not be shown, though they are there."""
        return [*self.missing, *(f"{run.folder}: {note}" for run in self.runs for note in run.left_out)]


def gather(paths: Sequence[Path], names: Mapping[Path, str] | None = None) -> Gathered:
    """The runs in some folders, with distinct labels, and tables of other programs.

    Args:
        paths: Run folders, each of which should hold a config.json; files are taken for tables of Cohen et al.
        names: What some of them are called; default: what their config says, else the names of folders and files.

    Raises:
        ValueError: No path is given, or none of them is a run folder. Other damage becomes a line.
    """
    if not paths:
        raise ValueError("runs must name at least one run folder, got none")
    runs: list[PageRun] = []
    tables: list[tuple[str, Record]] = []
    missing: list[str] = []
    for path in paths:
        name = (names or {}).get(path)
        if not path.exists():
            missing.append(f"{path} is left out: there is no such file or folder")
            continue
        try:
            if path.is_file() and not is_record(path):
                tables.append((name or path.stem, read_compared(path)))
            else:
                runs.append(_gather_run(path, {run.label for run in runs}, name))
        except (ValueError, OSError) as error:
            missing.append(f"{path} is left out: {error}")
    if not runs:
        raise ValueError("; ".join(missing) or "runs must name at least one run folder, got tables alone")
    return Gathered(with_names(runs), tuple(missing), tuple(tables))


def _gather_run(folder: Path, taken: set[str], name: str | None) -> PageRun:
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict):
        raise ValueError(f"{folder / CONFIG} must hold a JSON object, got {type(config).__name__}")
    notes: list[str] = []
    left_out: list[str] = []
    records: list[PageRecord] = []
    kept: dict[str, Row] = {}
    for path in sorted({*folder.glob("*.jsonl"), *record_paths(folder)} - {folder / METRICS}):
        try:
            record = _page_record(read_record(path))
        except (ValueError, OSError) as error:
            reason = str(error).replace(f"{path}, ", "").replace(f"{path} ", "it ").replace(f"{folder}/", "")
            left_out.append(f"{path.name} is left out: {reason}")
            continue
        if record is None:
            continue
        if record.kind == "measure-shift" and len(record.found) == 1:
            notes.append(f"{path.name} measures distances only, without a network: it is not shown.")
            continue
        records.append(record)
        if record.kind in CHECKS and (pictures := path.with_suffix(".npz")).exists():
            try:
                kept[path.name] = read_kept(pictures, record.record)
            except (ValueError, OSError) as error:
                left_out.append(f"{pictures.name} is damaged and left out: {error}")
    environment, epochs = _environment(folder, notes), _epochs(folder, config, notes)
    diagnosis = _diagnosis(folder, notes)
    return PageRun(
        folder=folder.name,
        label=_label(config if name is None else {"name": name}, folder, taken),
        config=config,
        environment=environment,
        epochs=epochs,
        records=tuple(records),
        notes=(*left_out, *notes),
        left_out=tuple(left_out),
        diagnosis=diagnosis,
        kept=kept,
    )


def _diagnosis(folder: Path, notes: list[str]) -> tuple[str, ...]:
    """What an assessment found to explain low numbers, in words."""
    if not (folder / DIAGNOSIS).exists():
        return ()
    try:
        document = read_json(folder / DIAGNOSIS)
    except (ValueError, OSError) as error:
        notes.append(f"diagnosis.json is damaged and left out: {error}")
        return ()
    found = document.get("findings") if isinstance(document, dict) else None
    findings = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return tuple(f"{one.get('text', '')} {one.get('remedy', '')}".strip() for one in findings)


def _page_record(record: Record) -> PageRecord | None:
    """What the page shows of a record; nothing for those that are shown elsewhere."""
    check_written(record)
    if record.kind in ELSEWHERE:
        return None
    if not isinstance(record.kind, str) or record.kind not in READERS:
        raise ValueError(f"it is of kind {record.kind!r}, which this report does not know")
    return PageRecord(record, tuple(measurements(record)))


def _label(config: Row, folder: Path, taken: set[str]) -> str:
    name = str(config.get("name") or folder.resolve().name)
    # A run of the user's own network is named by its whole module; its last word says as much.
    module, _, factory = str(config.get("model")).rpartition(":")
    if module:
        name = name.replace(f"{module}-{factory}", factory)
    label, number = name, 1
    while label in taken:
        number += 1
        label = f"{name} ({number})"
    return label


def _environment(folder: Path, notes: list[str]) -> Row:
    try:
        environment = read_json(folder / ENVIRONMENT)
    except (ValueError, OSError):
        environment = None
    if not isinstance(environment, dict):
        notes.append("environment.json is missing or damaged: hardware and versions are not known.")
        return {}
    return environment


def _epochs(folder: Path, config: Row, notes: list[str]) -> tuple[Row, ...]:
    try:
        rows = read_rows(folder / METRICS)
    except (ValueError, OSError) as error:
        if is_own(config) and isinstance(error, FileNotFoundError):
            return ()  # the user's own network was not trained here
        reason = "is missing" if isinstance(error, FileNotFoundError) else "is damaged and left out"
        notes.append(f"metrics.jsonl {reason}: there are no training curves.")
        return ()
    rows = [row for row in rows if isinstance(row.get("epoch"), int)]
    planned = config.get("epochs")
    if isinstance(planned, int) and len(rows) < planned:
        notes.append(f"metrics.jsonl holds {len(rows)} of {planned} epochs: the training is not finished.")
    return tuple(rows)


def read_kept(path: Path, record: Record) -> Row:
    """The arrays of the .npz file that an evaluation wrote next to its record.

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
                arrays: Row = {name: file[name] for name in file.files}
    except Exception as error:  # an archive can be wrong in every way
        raise ValueError(f"it must be an .npz file of arrays: {str(error) or type(error).__name__}") from None
    CHECKS[record.kind](arrays, record)
    return arrays


def _check_attacked(arrays: Row, attack: Record) -> None:
    _must_hold(arrays, (*_ATTACKED, "before", "after", "classes"))
    before, after = arrays["before"], arrays["after"]
    _check_images(before)
    if before.shape != after.shape:
        raise ValueError(
            f"its images must be uint8 and of one shape before and after, got {before.shape}, {after.shape}"
        )
    _check_columns(arrays, _ATTACKED, len(before))
    if not ((after >= 0) & (after <= 1)).all():
        raise ValueError("its attacked images must be in [0, 1]")
    for index, radius in zip(arrays["index"].tolist(), arrays["radius"].tolist(), strict=True):
        if outcomes(attack, ROBUST, radius).get(index) != 0:
            raise ValueError(f"example {index} must be misclassified at radius {format_distance(radius)} in its record")
    if max(arrays["label"].max(), arrays["prediction"].max()) >= len(arrays["classes"]):
        raise ValueError(f"its labels must be below {len(arrays['classes'])}")


def _check_certified(arrays: Row, certificate: Record) -> None:
    _must_hold(arrays, ("index", "image", "classes"))
    _check_images(arrays["image"])
    _check_columns(arrays, ("index",), len(arrays["image"]))
    if strange := set(arrays["index"].tolist()) - {row["index"] for row in certificate.rows}:
        raise ValueError(f"its images must be in its record, but example {min(strange)} is not")


def _check_corrupted(arrays: Row, record: Record) -> None:
    _must_hold(arrays, ("index", "before", "corruption", "severity", "after", "classes"))
    for name in ("before", "after"):
        _check_images(arrays[name])
    _check_columns(arrays, ("index",), 1)
    _check_columns(arrays, ("corruption", "severity"), len(arrays["after"]))
    if arrays["index"].tolist()[0] not in {row["index"] for row in record.rows}:
        raise ValueError("its image must be in its record, but it is not")


def _must_hold(arrays: Row, names: Sequence[str]) -> None:
    if missing := [name for name in names if name not in arrays]:
        raise ValueError(f"it must hold {', '.join(missing)}")


def _check_images(images: np.ndarray) -> None:
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape:
        raise ValueError(f"its images must be uint8 (n, 1 or 3, height, width), got {images.dtype} {images.shape}")


def _check_columns(arrays: Row, names: Sequence[str], count: int) -> None:
    if any(arrays[name].shape != (count,) for name in names):
        raise ValueError(f"it must hold one number per image, {count}")


CHECKS: dict[str, Callable[[Row, Record], None]] = {
    "attack": _check_attacked,
    "certify": _check_certified,
    "corruptions": _check_corrupted,
}
"""Kinds of records with pictures, and what these must be like."""


def method_name(run: PageRun) -> str:
    """The training method with its main settings, such as "NAL, σ 0.25, γ 0.5"; the user's own network by its name."""
    kind = str(run.method.get("kind", "unknown method"))
    parts = [f"{run.config.get('model')}, trained elsewhere" if is_own(run.config) else name_kind(kind, _NAMES)]
    if solver := _SOLVERS.get(str(run.method.get("inner"))):
        parts.append(solver)
    for key, symbol in _SYMBOLS.items():
        value: Any = run.method.get(key)
        if isinstance(value, int | float):
            parts.append(f"{symbol} {format_distance(value)}")
    if "sigma" not in run.method and run.sigmas:
        parts.append(f"smoothed with σ {', '.join(format_distance(sigma) for sigma in run.sigmas)}")
    return ", ".join(parts)


def unbroken(label: str) -> str:
    """A label that a narrow column breaks between its parts only, not between a symbol and its value."""
    return re.sub(rf"([{''.join(_SYMBOLS.values())}]) ", "\\1\u00a0", label)


def with_names(runs: Sequence[PageRun]) -> tuple[PageRun, ...]:
    """The runs with their places and readable labels: a name that a user gave is kept, a name with a hash is replaced.

    The new label is the method with its main settings. Models that have these in common differ by the other settings in
    which they differ, and by the hash where they differ in none.
    """
    hashes = [_name_hash(run) for run in runs]
    words = [method_name(run) if found else run.label for run, found in zip(runs, hashes, strict=True)]
    settings = [_named_settings(run) if found else {} for run, found in zip(runs, hashes, strict=True)]
    every = dict.fromkeys(key for own in settings for key in own)
    for setting in sorted(every, key=lambda key: key == "seed"):
        # A page about several data sets says of every model which is its own.
        groups = [setting if setting == "data" else word for word in words]
        values: dict[str, set[str]] = {}
        for group, own in zip(groups, settings, strict=True):
            if own:
                values.setdefault(group, set()).add(own.get(setting, ""))
        words = [
            f"{word}, {own[setting]}" if setting in own and len(values[group]) > 1 else word
            for word, group, own in zip(words, groups, settings, strict=True)
        ]
    times = Counter(words)
    labels = [
        f"{word}, {found}" if found and times[word] > 1 else word for word, found in zip(words, hashes, strict=True)
    ]
    named = enumerate(zip(runs, labels, strict=True))
    return tuple(replace(run, label=label, place=place) for place, (run, label) in named)


def _named_settings(run: PageRun) -> dict[str, str]:
    """What a label may say besides the method's main settings, the most important first."""
    found = {key: str(run.config.get(key)) for key in ("data", "model", "activation")}
    for place in (run.method, run.config):
        found |= {
            key: f"{key.replace('_', ' ')} {format_distance(value) if isinstance(value, float) else value}"
            for key, value in place.items()
            if key not in found and key not in _NOT_NAMED
        }
    return found | {"seed": f"seed {run.config.get('seed')}"}


def _name_hash(run: PageRun) -> str | None:
    """The hash at the end of a name that a training chose, METHOD-...-DATA-MODEL-...-HASH; None for any other name."""
    method, model = (str(word).rpartition(":")[2] for word in (run.method.get("kind"), run.config.get("model")))
    pattern = rf"{re.escape(method.lower())}-.+-{re.escape(model)}-(?:.+-)?([0-9a-f]{{8}}(?:-[b-z])?)"
    found = re.fullmatch(pattern, run.label)
    return found[1] if found else None
