"""Run folders to runs: what is in a folder, and one line for whatever cannot be used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rhobust.files import read_json
from rhobust.measurements import READERS, is_record, measurements, read_compared
from rhobust.measurements.reader import check_written
from rhobust.records import Record, Row, is_own, read_record, read_rows, record_paths
from rhobust.report.kept import CHECKS, read_kept
from rhobust.report.labels import with_names
from rhobust.report.runs import PageRecord, PageRun

ELSEWHERE = ("match", "curvature", "counterexample")
"""Records of the paper's claims: they say nothing of robustness, and the reproduction shows them."""


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
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise ValueError(f"{folder / 'config.json'} must hold a JSON object, got {type(config).__name__}")
    notes: list[str] = []
    left_out: list[str] = []
    records: list[PageRecord] = []
    kept: dict[str, Row] = {}
    for path in sorted({*folder.glob("*.jsonl"), *record_paths(folder)} - {folder / "metrics.jsonl"}):
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
    if not (folder / "diagnosis.json").exists():
        return ()
    try:
        document = read_json(folder / "diagnosis.json")
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
