"""The page itself: one HTML file that holds its style, its script, its figures, its pictures and its data."""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from rhobust.files import write_whole
from rhobust.records import Row
from rhobust.report.answers import answers
from rhobust.report.chart import COLOURS, colour, markers
from rhobust.report.comparisons import peer_table, transfer_tables
from rhobust.report.distances import distances
from rhobust.report.figures import ChartFigure, LineKind, figures
from rhobust.report.gather import Gathered, gather, method_name, unbroken
from rhobust.report.guarantee import beyond_tables, full_statement
from rhobust.report.images import class_table, image_summaries
from rhobust.report.overview import Headline, entries, headline, subjects
from rhobust.report.pictures import galleries
from rhobust.report.runs import PageRun
from rhobust.report.tables import DifferenceTable, difference_tables, table_rows
from rhobust.settings import flatten
from rhobust.version import VERSION


@dataclass(frozen=True)
class WrittenReport:
    """A page that was written, and what could not be shown on it."""

    path: Path
    problems: tuple[str, ...]
    """One line for each run, record or file that is missing, unfinished, changed or damaged."""
    left_out: tuple[str, ...]
    """Of these the ones of folders, records and pictures that could not be shown, though they are there."""
    contradictions: tuple[str, ...]
    """One line for each pair of numbers that cannot both be right."""


def write_report(
    runs: Sequence[Path | str],
    out: Path | str,
    *,
    title: str = "Robustness report",
    names: Mapping[Path, str] | None = None,
) -> WrittenReport:
    """Write one self-contained HTML page about some runs.

    The page is self-contained: it needs no internet access. The same records give the same bytes.

    Args:
        runs: Run folders, in the order they are shown; and tables of other programs, in the format of Cohen et al.
        out: The HTML file to write; its folder is made if it is missing.
        title: The page's heading.
        names: What some of these are called on the page, by path.

    Raises:
        ValueError: No folder is given, or none has a readable config.json.
    """
    if isinstance(runs, Path | str):
        raise ValueError(f"runs must be a list of run folders, got {str(runs)!r}")
    gathered, out = gather([Path(run) for run in runs], names), Path(out)
    errors = tuple(error for run in gathered.runs for error in run.contradictions)
    page = render(gathered, errors, title=title)
    out.parent.mkdir(parents=True, exist_ok=True)
    # A name from a file may hold half a surrogate pair, which UTF-8 cannot.
    write_whole(out, page.encode("utf-8", errors="replace"))
    return WrittenReport(out, tuple(gathered.problems), tuple(gathered.left_out), errors)


@dataclass(frozen=True)
class Section:
    """A part of the page: its template shows `content`; a section without content is left out."""

    anchor: str
    nav: str
    """Its name in the menu."""
    template: str
    content: Any


def page_sections(gathered: Gathered, at: Headline) -> list[Section]:
    """The sections of the page in their order. A new one is a line here and a template that shows its content."""
    runs = gathered.runs
    drawn, found, rows = figures(runs), entries(runs, at), table_rows(runs)
    curves = [figure for figure in drawn if not figure.name.startswith("training-")]
    training = [figure for figure in drawn if figure.name.startswith("training-")]
    models = {"answers": answers(found, at), "diagnoses": _diagnoses(runs)}
    warned = (w for entry in found for row in entry.rows for number in row.numbers for w in number.warnings)
    shared = [note for note in found[0].notes if len(found) > 1 and all(note in entry.notes for entry in found)]
    own = [replace(entry, notes=tuple(note for note in entry.notes if note not in shared)) for entry in found]
    shared = [note.replace("Not in this folder", "In none of these folders") for note in shared]
    table = {"entries": own, "shared": shared, "footnotes": _numbered(warned)}
    facts = {"facts": _facts(runs), "runs": [_settings(run) for run in runs]}
    sections = [
        Section("models", "In short", "models", models),
        Section("table", "Numbers", "table", table),
        *(Section(f"figure-{figure.name}", figure.nav, "figure", figure) for figure in curves),
        Section("distances", "Distances", "distances", distances(runs, at)),
        Section("images", "Images", "images", image_summaries(runs)),
        Section("classes", "Classes", "classes", class_table(runs, at)),
        Section("examples", "Attacked images", "examples", galleries(runs)),
        Section("versus", "Head to head", "versus", model_differences(runs, at)),
        Section("beyond", "More certificates", "beyond", beyond_tables(runs)),
        Section("peers", "Other programs", "peers", peer_table(runs, gathered.tables)),
        Section("transfer", "Transfer", "transfer", transfer_tables(runs)),
        Section("training", "Training", "training", training),
        Section(
            "numbers",
            "All numbers",
            "numbers",
            {"rows": rows, "footnotes": _numbered(w for row in rows for w in row.warnings)},
        ),
        Section("words", "Words", "words", True),
        Section("settings", "Settings", "settings", facts),
    ]
    return [section for section in sections if section.content]


def render(gathered: Gathered, errors: Sequence[str], *, title: str) -> str:
    """The page as text."""
    runs = gathered.runs
    at = headline(runs)
    sections = page_sections(gathered, at)
    drawn = [one for section in sections for one in _figures_of(section)]
    data = {
        "title": title,
        "models": [{"label": run.label, "method": method_name(run)} for run in runs],
        "colours": len(COLOURS),
        "start": {"radius": at.radius, "eps": at.eps},
        "charts": {figure.name: figure.document for figure in drawn},
    }
    script = _resource("script.js")
    return (
        _templates()
        .get_template("page")
        .render(
            title=title,
            style=_resource("style.css"),
            script=script,
            script_hash=_script_hash(script),
            lead=_lead(runs),
            at=at,
            missing=gathered.missing,
            errors=errors,
            sections=sections,
            drawn=bool(drawn),
            labels=[run.label for run in runs],
            colours=len(COLOURS),
            version=VERSION,
            data=data,
        )
    )


@cache
def _templates() -> Environment:
    """The compiled templates, which all pages of a process share."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda name: _resource(f"{name}.html.jinja")),
    )
    environment.filters |= {"unbroken": unbroken, "swatch": _swatch, "dashes": _dashes}
    return environment


def _figures_of(section: Section) -> list[ChartFigure]:
    found = section.content if section.template == "training" else [section.content]
    return [one for one in found if isinstance(one, ChartFigure)]


def _resource(name: str) -> str:
    return files("rhobust.report").joinpath("templates", name).read_text(encoding="utf-8")


def model_differences(runs: Sequence[PageRun], at: Headline) -> list[DifferenceTable]:
    """Model against model at the page's radius; a run whose numbers contradict each other is left out."""
    if (radius := at.radius) is None:
        return []
    # One classifier per model, the first of its rows: the smoothed one if there is one.
    first = [subjects(run)[0] for run in runs if not run.contradictions]
    certificates = [(one.run.place, found) for one in first if (found := one.certificate) is not None]
    attacks = [(one.run.place, found) for one in first if (found := one.strongest(radius)) is not None]
    return difference_tables(certificates, attacks, radius)


def _lead(runs: Sequence[PageRun]) -> str:
    models = "1 model" if len(runs) == 1 else f"{len(runs)} models"
    data = sorted({str(run.config["data"]) for run in runs if "data" in run.config})
    versions = sorted({str(run.config["rhobust"]) for run in runs if "rhobust" in run.config})
    parts = [f"{models} on {', '.join(data)}" if data else models]
    if versions:
        parts.append(f"rhobust {', '.join(versions)}")
    return " · ".join(parts)


def _numbered(warnings: Iterable[str]) -> dict[str, int]:
    """Every warning once, numbered as a table refers to it."""
    return {warning: number for number, warning in enumerate(dict.fromkeys(warnings), start=1)}


def _diagnoses(runs: Sequence[PageRun]) -> dict[str, str]:
    """What explains low numbers, each once, with the models that it is about; what is about few comes first."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for line in run.diagnosis:
            found.setdefault(line, []).append(run.label)
    return {line: "; ".join(found[line]) for line in sorted(found, key=lambda line: len(found[line]))}


def _script_hash(script: str) -> str:
    """What the page's security policy lets run: this script and no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _swatch(run: int) -> str:
    return (
        f'<svg class="swatch" viewBox="-9 -9 18 18" aria-hidden="true" style="color:{colour(run)}">'
        f'<path d="M-9 0H9" stroke="currentColor" stroke-width="2"/>{markers(run, [("0", "0")])}</svg>'
    )


def _dashes(kind: LineKind) -> str:
    dash = f' stroke-dasharray="{kind.dash}"' if kind.dash else ""
    drawing = (
        '<circle cx="16" cy="5" r="3.5" fill="none" stroke="currentColor" stroke-width="1.5"/>'
        if kind.name == "noise"
        else f'<path d="M0 5H32" stroke="currentColor" stroke-width="2"{dash}/>'
    )
    return f'<svg class="dashes" viewBox="0 0 32 10" aria-hidden="true">{drawing}</svg>'


_FACTS = {
    "Data": ("config", "data"),
    "Network": ("config", "model"),
    "Epochs": ("config", "epochs"),
    "Seed": ("config", "seed"),
    "Device": ("environment", "device_name"),
    "torch": ("environment", "torch"),
    "Python": ("environment", "python"),
}
"""What the table of runs shows of each, and where it is written."""


def _facts(runs: Sequence[PageRun]) -> dict[str, Any]:
    """Settings, seeds, hardware and versions of all runs at a glance."""
    rows = []
    for run in runs:
        documents = {"config": run.config, "environment": run.environment}
        cells = [documents[place].get(key) for place, key in _FACTS.values()]
        cells[4] = cells[4] or run.environment.get("device")
        seeds = {str(record.settings["seed"]) for record in run.records if "seed" in record.settings}
        tested = ", ".join(sorted(seeds))
        rows.append([*("–" if cell is None else str(cell) for cell in cells), tested or "–"])
    return {"columns": [*_FACTS, "Seed of the tests"], "rows": rows}


def _settings(run: PageRun) -> dict[str, Any]:
    """The folded-in part about a run: how it was trained, where, and from which records the numbers are."""
    flat = [_flat(record.settings) for record in run.records]
    shared = [pair for pair in flat[0] if all(pair in pairs for pairs in flat)] if len(flat) > 1 else []
    records = [
        {
            "file": record.file,
            "settings": [pair for pair in pairs if pair not in shared],
            "statement": full_statement(run, record),
            "seconds": _seconds(record.summary.get("seconds")),
        }
        for record, pairs in zip(run.records, flat, strict=True)
    ]
    return {
        "run": run.place,
        "label": run.label,
        "folder": run.folder,
        "config": _flat(run.config),
        "environment": _flat(run.environment),
        "shared": shared,
        "records": records,
    }


def _seconds(took: Any) -> str:
    return f"{took:.1f} s" if isinstance(took, int | float) else "–"


def _flat(document: Row) -> list[tuple[str, str]]:
    return [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in flatten(document)]
