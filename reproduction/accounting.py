"""A filled ledger as Markdown for people and as CSV for programs."""

import csv
import io
import math
from collections.abc import Iterable
from typing import Any

NOTHING = "Not measured yet."
SETTING = ("device", "torch", "epochs", "seed", "command")
Works = dict[str, dict[str, Any]]


def accounts(document: dict[str, Any]) -> str:
    """The minutes of each table, and folded below them the seconds of each run."""
    works = _there(document["works"])
    if not works:
        return NOTHING
    head = ["table", "trainings", "evaluations", "training, min", "evaluation, min", "all, min"]
    rows = [[name, *_totals(ids, works)] for name, ids in document["tables"].items()]
    rows.append(["all of these, each once", *_totals(document["works"], works)])
    notes = list(document["notes"])
    if unknown := sum(work["seconds"] is None for work in works.values()):
        notes.append(f"Evaluations that were interrupted do not know their seconds, and count as 0: {unknown}.")
    parts = [_markdown(head, rows, 1), "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join([*parts, "<details><summary>Each run</summary>", _runs(works), "</details>"])


def accounts_csv(document: dict[str, Any]) -> str:
    """One line a training or evaluation, unrounded."""
    keys = ("run", "work", "seconds", "rate", "draws", "record")
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*keys, *SETTING])
    for work in _there(document["works"]).values():
        setting = work["setting"] or {}
        found = [*(work[key] for key in keys), *(setting.get(key) for key in SETTING)]
        writer.writerow(["" if value is None else value for value in found])
    return buffer.getvalue()


def _there(works: Works) -> Works:
    return {name: work for name, work in works.items() if "fault" not in work}


def _totals(ids: Iterable[str], works: Works) -> list[str]:
    """How many trainings and evaluations of the planned ones are there, and their minutes."""
    ids = list(ids)
    counts, minutes = [], []
    for training in (True, False):
        planned = [name for name in ids if name.startswith("training-") == training]
        seconds = [works[name]["seconds"] or 0.0 for name in planned if name in works]
        counts.append(f"{len(seconds)} of {len(planned)}")
        minutes.append(math.fsum(seconds) / 60)
    return [*counts, *(f"{number:.1f}" for number in (*minutes, math.fsum(minutes)))]


def _runs(works: Works) -> str:
    """A row a run: where and how it was trained, how fast, and what its evaluations took."""
    kinds = list(dict.fromkeys(work["work"] for work in works.values() if work["setting"] is None))
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for work in works.values():
        runs.setdefault(work["run"], {}).setdefault(work["work"], []).append(work)
    head = ["run", "device", "torch", "epochs", "seed", "images/s", *(f"{kind}, s" for kind in ("training", *kinds))]
    rows = []
    for name, own in runs.items():
        words = [name, *[""] * 5]
        # The record of a training can be damaged while those of its evaluations are whole.
        for trained in own.get("training", []):
            setting = trained["setting"]
            words = [
                f"`{setting['command'].removeprefix('rhobust train ')}`, {name}",
                *(str(setting[key]) for key in ("device", "torch", "epochs", "seed")),
                f"{trained['rate']:,.0f}",
            ]
        rows.append([*words, *(", ".join(map(_seconds, own.get(kind, []))) for kind in ("training", *kinds))])
    return _markdown(head, rows, 3)


def _seconds(work: dict[str, Any]) -> str:
    if work["seconds"] is None:
        return "not known"
    draws = "" if work["draws"] is None else f" ({work['draws']:,.0f} draws an image)"
    return f"{work['seconds']:.1f}{draws}"


def _markdown(head: list[str], rows: list[list[str]], words: int) -> str:
    """A table whose first columns are words and whose others are numbers."""
    rule = ["---"] * words + ["---:"] * (len(head) - words)
    return table_lines([head, rule, *rows])


def table_lines(rows: Iterable[list[str]]) -> str:
    """Rows, the rule among them, as a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
