"""Fill the numbers, tables and figures of the pages from `results/`; with `--check`, only say which are stale.

A number in a sentence is followed by a comment that names its source, which readers of the page do not see:

    The same protocol leaves 59.9%<!--= table-main / NAL / PGD-20 / 0.92 --> of our run.

The parts after the table name select one row of its CSV file, by the values of its key columns (`0.25`, or `sigma=0.25`
if two columns may hold it). A last part `reported`, `low`, `high` or `n` selects that column in place of `value`. For a
JSON file the parts are keys, one or more values that distinguish an element of a list, or places in it. For an archive
of records they are a network, the beginning of a file's name and a path in its lines (`-1` is the last). `A over B`
divides two numbers. A format may follow a colon:

    %         percent, one digit, rounded to nearest (the default)    %2        percent, two digits
    % down    percent, rounded down: for certified bounds             points    percentage points, signed
    behind    percentage points, sign reversed                        .3        the number itself, three digits
    ,.0       with thousands separators                               .4 down   four digits, rounded down
    ms        seconds shown as milliseconds

A table or figure is put between the lines `<!-- NAME -->` and `<!-- /NAME -->`; `headline` is the summary in one small
table, `workers` one of all measurements of several workers on one machine (`scale-workers-*.json`).
"""

import csv
import io
import json
import lzma
import os
import re
import sys
import tarfile
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
NUMBER = re.compile(r"(?<![\w.,-])(-?[\d.,]*\d%?|\?)<!--= (.+?) -->")
PLACE = re.compile(r"^<!-- ([\w.-]+) -->\n(.*?)^<!-- /\1 -->$", re.MULTILINE | re.DOTALL)
SUMMARY = "table-summary"
HEADLINE = {
    "natural accuracy": ("natural", "value", "%"),
    "PGD-20, eps 0.92, reported in the paper": ("PGD-20 at 0.92", "reported", "%"),
    "PGD-20, eps 0.92": ("PGD-20 at 0.92", "value", "%"),
    "white-box attack (EOT-PGD), eps 0.92": ("white-box (EOT-PGD) at 0.92", "value", "%"),
    "AutoAttack, eps 0.92": ("AutoAttack at 0.92", "value", "%"),
    "certified accuracy at radius 0.25": ("certified at 0.25", "value", "%"),
    "certified accuracy under every shift up to W2 0.1": ("certified, W2 0.1", "value", "% down"),
}
"""Columns of the headline table: column of the summary, field and format."""
VALUES = ("reported", "value", "low", "high", "n", "record", "fault")


def pages() -> list[Path]:
    """The pages that may quote results."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def _result(name: str) -> Path:
    """The one file of this name under `results/`."""
    found = sorted(RESULTS.rglob(name))
    if len(found) != 1:
        raise ValueError(f"{name} must be one file under results/, found {len(found)}")
    return found[0]


@cache
def _packed(archive: str, network: str, start: str) -> list[Any]:
    """The lines of the one file of a network, in an archive of records, whose name begins so."""
    packed = _archive(archive)
    members = [one for one in packed.getmembers() if f"/{network}/{start}" in one.name]
    if len(members) != 1:
        raise ValueError(f"{archive} must hold one file {network}/{start}..., found {len(members)}")
    file = packed.extractfile(members[0])
    assert file is not None
    return [json.loads(line) for line in file.read().splitlines()]


@cache
def _archive(name: str) -> tarfile.TarFile:
    """An archive, unpacked in memory once."""
    return tarfile.open(fileobj=io.BytesIO(lzma.decompress(_result(name).read_bytes())))


@cache
def _rows(table: str) -> list[dict[str, str]]:
    with _result(f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def look_up(source: str) -> Any:
    """The number that a source names, as stored."""
    name, *parts = source.split(" / ")
    if name.endswith((".json", ".tar.xz")):
        if name.endswith(".json"):
            found: Any = json.loads(_result(name).read_text(encoding="utf-8"))
        else:
            network, start, *parts = parts
            found = _packed(name, network, start)
        for part in parts:
            if isinstance(found, dict):
                found = found[part]
            elif isinstance(found[0], dict) and part != "-1":
                found = [one for one in found if part in map(str, one.values())]
                found = found[0] if len(found) == 1 else found  # the next part chooses among several
            else:
                found = found[int(part)]
        return found
    field = parts.pop() if parts[-1] in VALUES else "value"
    rows = [row for row in _rows(name) if row[field] and all(_has(row, part) for part in parts)]
    numbers = {row[field] for row in rows}
    if len(numbers) != 1:
        raise ValueError(f"{source} must name one number of {name}.csv, but names {len(numbers)}")
    return numbers.pop()


def _has(row: dict[str, str], part: str) -> bool:
    """Whether a key column of the row has this value, or the column that is named in front of it."""
    key, _, value = part.rpartition("=")
    return row[key] == value if key else value in [row[key] for key in row if key not in VALUES]


def number(spec: str) -> str:
    """The text of a number, from its source and format."""
    source, _, style = spec.partition(" : ")
    over, _, under = source.partition(" over ")
    return text(Decimal(str(look_up(over))) / (Decimal(str(look_up(under))) if under else 1), style)


def text(stored: Decimal, style: str) -> str:
    """A stored number in a format."""
    if match := re.fullmatch(r"(,?)\.(\d)( down| up)?", style):
        direction = {" down": ROUND_FLOOR, " up": ROUND_CEILING}.get(match[3], ROUND_HALF_EVEN)
        return f"{_rounded(stored, int(match[2]), direction):{match[1]}f}"
    match style or "%":
        case "%":
            return f"{_rounded(100 * stored, 1, ROUND_HALF_UP)}%"
        case "%2":
            return f"{_rounded(100 * stored, 2, ROUND_HALF_UP)}%"
        case "% down":
            return f"{_rounded(100 * stored, 1, ROUND_FLOOR)}%"
        case "points":
            return f"{_rounded(100 * stored, 1, ROUND_HALF_UP)}"
        case "behind":
            return f"{_rounded(-100 * stored, 1, ROUND_HALF_UP)}"
        case "ms":
            return f"{_rounded(1000 * stored, 1, ROUND_HALF_UP)}"
    known = "%, %2, % down, points, behind, ms, .3, ,.3, .3 down or .3 up"
    raise ValueError(f"a format must be one of {known}, got {style!r}")


def _rounded(value: Decimal, digits: int, rule: str) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-digits), rounding=rule)


def headline() -> str:
    """The main experiment in one small table: percentages without intervals, columns named as in the field."""
    methods = dict.fromkeys(row["method"] for row in _rows(SUMMARY))
    lines = [["method", *HEADLINE], ["---", *["---:"] * len(HEADLINE)]]
    for method in methods:
        found = {row["column"]: row for row in _rows(SUMMARY) if row["method"] == method}
        cells = []
        for column, field, style in HEADLINE.values():
            known = column in found and found[column][field]
            cells.append(number(f"{SUMMARY} / {method} / {column} / {field} : {style}") if known else "")
        lines.append([method, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def workers() -> str:
    """Several workers on one machine, for every machine that was measured."""
    lines = [["machine", "network", "workers", "noise samples/s", "times one worker", "efficiency"]]
    lines.append(["---", "---", *["---:"] * 4])
    for path in sorted(RESULTS.rglob("scale-workers-*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        machine = f"{found['cores']} cores" if found["device"] == "cpu" else f"one {found['device']}"
        for line in found["workers"]:
            styles = {"samples_per_second": ",.0", "gain": ".2", "efficiency": ".2"}
            numbers = [text(Decimal(str(line[key])), style) for key, style in styles.items()]
            lines.append([machine, line["network"], str(line["workers"]), *numbers])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def place(name: str, page: Path) -> str:
    """What a page shows between the marks of a table or figure."""
    if name in ("headline", "workers"):
        return headline() if name == "headline" else workers()
    pictures = sorted(RESULTS.rglob(f"{name}.svg"))
    if pictures:
        title = json.loads(_result(f"{name}.json").read_text(encoding="utf-8"))["title"]
        return f"![{title}]({Path(os.path.relpath(pictures[0], page.parent)).as_posix()})"
    title, _, body = _result(f"{name}.md").read_text(encoding="utf-8").partition("\n")
    assert title.startswith("# ")
    return body.strip("\n")


def filled(page: Path) -> str:
    """The text of a page with all numbers, tables and figures from `results/`."""
    text = PLACE.sub(
        lambda match: f"<!-- {match[1]} -->\n\n{place(match[1], page)}\n\n<!-- /{match[1]} -->",
        page.read_text(encoding="utf-8"),
    )
    return NUMBER.sub(lambda match: f"{number(match[2])}<!--= {match[2]} -->", text)


def main() -> int:
    """Fill every page, or with `--check` name the stale ones; the exit status is then 1."""
    check, stale = "--check" in sys.argv[1:], 0
    for page in pages():
        text = filled(page)
        if text != page.read_text(encoding="utf-8"):
            stale += 1
            if check:
                print(f"{page.relative_to(ROOT)} is stale: run python docs/tools/fill.py", file=sys.stderr)
            else:
                page.write_text(text, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
