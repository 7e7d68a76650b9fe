"""The three questions that a page answers first: how accurate, what is proved, what does an attack still break."""

from collections.abc import Sequence
from dataclasses import dataclass

from rhobust.formatting import format_distance
from rhobust.report.overview import ClassifierRow, Headline, ModelEntry
from rhobust.report.tables import shown_percent

MOST = 10
"""Lines per answer; the table below has them all."""


@dataclass(frozen=True)
class AnswerLine:
    """One classifier in an answer."""

    run: int
    label: str
    who: str
    shown: str
    """The number; nothing where there is none."""
    status: str
    note: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class AnswerPart:
    """A sentence that is true of every line below it."""

    text: str
    lines: tuple[AnswerLine, ...]
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
        _line(row, row.clean.shown, row.clean.status or "", row.clean.warnings)
        for row in rows
        if row.clean.number is not None
    ]
    text = "Share of the test images, unchanged, that it classifies right."
    return _part(text if lines else "No accuracy was measured.", lines)


def _proved(rows: Sequence[ClassifierRow]) -> tuple[AnswerPart, ...]:
    """Every sentence once, with the classifiers that it is true of; what is proved first."""
    groups: dict[str, list[AnswerLine]] = {}
    for row in sorted(rows, key=lambda row: not row.guarantee.proved):
        found = row.guarantee
        if found.proved:
            text = f"{found.lead}this often{found.rest.removeprefix(' of the time')}"
            if not found.rest.startswith(" of the time"):
                text = f"{found.lead}this share{found.rest}"
            groups.setdefault(text, []).append(_line(row, f"≥ {found.number}", "proved", found.warnings))
        else:
            groups.setdefault(found.lead, []).append(_line(row, "", ""))
    return tuple(_part(text, lines) for text, lines in groups.items())


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
        return AnswerPart("Nothing was attacked.", ())
    text = (
        f"Share of the attacked images that are right before and after an attack may change each by L2 length"
        f" {format_distance(at.radius)}. A stronger attack may break more."
    )
    return _part(text, lines)


def _part(text: str, lines: Sequence[AnswerLine]) -> AnswerPart:
    return AnswerPart(text, tuple(lines[:MOST]), max(0, len(lines) - MOST))


def _line(
    row: ClassifierRow, shown: str, status: str, warnings: tuple[str, ...] = (), *, note: str = ""
) -> AnswerLine:
    return AnswerLine(row.run, row.label, row.who, shown, status, note, warnings)
