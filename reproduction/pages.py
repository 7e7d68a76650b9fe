"""Tables and figures inside a page: each between two marks, everything else left as it is."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reproduction.accounting import NOTHING
from reproduction.writing import block
from rhobust.records import read_json, write_whole


def place(name: str, out: Path) -> Path:
    """Where the document of a table or figure lies; what people look at lies beside it."""
    return out / ("figures" if name.startswith("fig") else "tables") / f"{name}.json"


def places(page: Path) -> dict[str, str]:
    """What stands between the marks `<!-- NAME -->` and `<!-- /NAME -->` of a page, by name."""
    found = {}
    text = _text(page)
    for closing, name in re.findall(r"^<!-- (/?)([\w-]+) -->$", text, re.MULTILINE):
        if not closing:
            match = _place(name).search(text)
            if match is None or name in found:
                raise ValueError(f"{page} must have one <!-- {name} --> and one <!-- /{name} --> after it, but has not")
            found[name] = match[2].strip("\n")
    return found


def check(pages: Iterable[Path], names: Iterable[str]) -> None:
    """Refuse a page that has no place for any of these names."""
    names = list(names)
    for page in pages:
        if not any(name in places(page) for name in names):
            raise ValueError(f"{page} must have a place <!-- NAME --> for one of {', '.join(names)}, but has none")


def insert(page: Path, names: Iterable[str], out: Path) -> None:
    """Put tables and figures into their places in a page; other places stay as they are.

    Args:
        page: A Markdown file.
        names: What may be put there.
        out: The folder whose `tables` and `figures` hold them.
    """
    there, text = places(page), _text(page)
    for name in names:
        if name in there:
            content = shown(read_json(place(name, out)), out, page)
            text = _place(name).sub(lambda match, content=content: f"{match[1]}\n{content}\n\n{match[3]}", text)
    write_whole(page, text)


def shown(document: dict[str, Any], out: Path, page: Path) -> str:
    """What a page shows of a document: a table, or a link to the picture, told from the page."""
    if "lines" in document or "works" in document:
        return block(document)
    curves = [cell for row in document.get("cells", []) for cell in row]
    curves += [curve for panel in document.get("panels", []) for curve in panel["curves"] if not curve.get("printed")]
    # A picture of which most is missing tells nothing.
    if 2 * sum("fault" in curve for curve in curves) > len(curves):
        return NOTHING
    picture = Path(os.path.relpath(place(document["name"], out).with_suffix(".svg"), page.parent)).as_posix()
    return f"![{document['title']}]({picture})"


def _text(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ValueError(f"{page} must exist, but there is no such file") from None


def _place(name: str) -> re.Pattern[str]:
    return re.compile(rf"^(<!-- {name} -->\n)(.*?)^(<!-- /{name} -->)$", re.MULTILINE | re.DOTALL)
