"""The three questions that a page answers first: how accurate, what is proved, what does an attack still break."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rhobust.formatting import format_distance
from rhobust.report.overview import ClassifierRow, Headline, ModelEntry
from rhobust.report.tables import shown_percent

MOST = 12
"""Lines per answer; the table below has them all."""
BASE_NETWORKS = "Nothing is guaranteed for a network without smoothing: an attack only shows what it failed to break."
"""Said once of all base networks."""


@dataclass(frozen=True)
class AnswerLine:
    """One classifier in an answer."""

    run: int
    label: str
    who: str
    shown: str
    status: str
    note: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class AnswerPart:
    """A sentence that is true of every line below it, and warnings about all of them."""

    text: str
    lines: tuple[AnswerLine, ...] = ()
    warnings: tuple[str, ...] = ()
    more: int = 0
    """Lines that are left out."""


@dataclass(frozen=True)
class Answer:
    """One question and what the records say."""

    question: str
    parts: tuple[AnswerPart, ...]


def answers(entries: Sequence[ModelEntry], at: Headline) -> tuple[Answer, ...]:
    """The three questions with their answers; base networks and smoothed classifiers in lines of their own."""
    rows = [row for entry in entries for row in entry.rows]
    return (
        Answer("How accurate is it?", (_accurate(rows),)),
        Answer("What is proved?", _proved(rows)),
        Answer("What does an attack still break?", (_attacked(rows, at),)),
    )


def _accurate(rows: Sequence[ClassifierRow]) -> AnswerPart:
    lines = [
        # What is certified at radius 0 bounds the accuracy from below.
        _line(
            row,
            f"≥ {row.clean.shown}" if row.clean.status == "proved" else row.clean.shown,
            row.clean.status or "",
            row.clean.warnings,
        )
        for row in rows
        if row.clean.number is not None
    ]
    text = "Share of the images, unchanged, that it classifies right."
    return _part(text if lines else "No accuracy was measured.", lines)


def _proved(rows: Sequence[ClassifierRow]) -> tuple[AnswerPart, ...]:
    """Every sentence once, with the classifiers that it is true of; what is proved first."""
    groups: dict[str, list[AnswerLine]] = {}
    nothing: dict[str, list[str]] = {}
    for row in rows:
        found = row.guarantee
        if found.proved:
            rest = found.rest.removeprefix(" of the time")
            text = f"{found.lead}this {'share' if rest == found.rest else 'often'}{rest}"
            groups.setdefault(text, []).append(_line(row, f"≥ {found.number}", "proved", found.warnings))
        elif row.smoothed:
            nothing.setdefault(found.lead, []).append(f"{row.label}, {row.who}")
    parts = [_part(text, lines) for text, lines in groups.items()]
    parts += [AnswerPart(f"{'; '.join(names)}: {lead[0].lower()}{lead[1:]}") for lead, names in nothing.items()]
    if not all(row.smoothed for row in rows):
        parts.append(AnswerPart(BASE_NETWORKS))
    return tuple(parts)


def _attacked(rows: Sequence[ClassifierRow], at: Headline) -> AnswerPart:
    lines = []
    for row in rows:
        number = row.robust.number
        if number is None or row.attack is None:
            continue
        before = row.attack.accuracy.get(0.0)
        shown = row.robust.shown if before is None else f"{shown_percent(before)} → {row.robust.shown}"
        lines.append(_line(row, shown, "upper bound", row.robust.warnings, note=row.attack.attack_name.split(",")[0]))
    if not lines or at.radius is None:
        return AnswerPart("Nothing was attacked.")
    text = (
        f"Share of the attacked images that are right before and after an attack may change each by L2 length"
        f" {format_distance(at.radius)}. A stronger attack may break more."
    )
    return _part(text, lines)


def _part(text: str, lines: Sequence[AnswerLine]) -> AnswerPart:
    """A sentence with its lines; a warning about all of them is shown once."""
    shared = [one for one in (lines[0].warnings if lines else ()) if all(one in line.warnings for line in lines)]
    own = [replace(line, warnings=tuple(one for one in line.warnings if one not in shared)) for line in lines]
    return AnswerPart(text, tuple(own[:MOST]), tuple(shared), max(0, len(own) - MOST))


def _line(row: ClassifierRow, shown: str, status: str, warnings: tuple[str, ...] = (), *, note: str = "") -> AnswerLine:
    return AnswerLine(row.run, row.label, row.who, shown, status, note, warnings)
