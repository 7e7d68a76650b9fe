"""Edits of files that somebody may have sent: bytes, lines, JSON values, and things that are no regular files."""

import gzip
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.fuzz.material import place_special, reseal

Edit = Callable[[Path], None]
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**30, 1e308, float("nan"), "", "x", "\x1b[2J", [], [None], {}, {"a": []}, [[1]]),
    *(["a", 1], "a" * 10_000, -0.5, "../../x", 2**63),
)
"""Values that the place of another value gets."""


def flip(seed: int) -> Edit:
    """Change one bit of one byte."""

    def edit(path: Path) -> None:
        rng, content = random.Random(seed), bytearray(path.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)

    return edit


def cut(share: float) -> Edit:
    """Keep the first part of a file."""

    def edit(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])

    return edit


def content(new: bytes) -> Edit:
    """Replace the content."""
    return lambda path: (path.write_bytes(new), None)[1]


def appended(new: bytes) -> Edit:
    """Add bytes at the end."""
    return lambda path: (path.write_bytes(path.read_bytes() + new), None)[1]


def special(kind: str) -> Edit:
    """Put a FIFO, a folder, a socket or a link in its place."""
    return lambda path: place_special(path, kind)


def link_out(path: Path) -> None:
    """Move the file out of its folder, and put a link to it in its place."""
    target = path.parent.parent / f"out-{path.name}"
    shutil.move(path, target)
    path.symlink_to(target)


BYTES: dict[str, Edit] = {
    "empty": content(b""),
    "a quarter": cut(0.25),
    "three quarters": cut(0.75),
    "text": content(b"text\n"),
    "zeros": content(bytes(1000)),
    "0xff": content(b"\xff" * 1000),
    "garbage at the end": appended(b"\x00{garbage"),
    "fifo": special("fifo"),
    "folder": special("folder"),
    "socket": special("socket"),
    "loop": special("loop"),
    "dangling": special("dangling"),
    "link out": link_out,
    "bomb": content(gzip.compress(bytes(1 << 22))),
}
"""Edits of any file."""
TEXT: dict[str, Edit] = {
    "null": content(b"null\n"),
    "list": content(b"[]\n"),
    "number": content(b"1\n"),
    "string": content(b'"x"\n'),
    "object": content(b"{}\n"),
    "nested lists": content(b"[" * 100_000 + b"]" * 100_000 + b"\n"),
    "nested objects": content(b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"\n"),
    "nested a little": content(b'{"kind": "certify", "settings": ' + b"[" * 100 + b"]" * 100 + b"}\n"),
    "digits": content(b'{"kind": ' + b"9" * 10_000 + b"}\n"),
    "byte order mark": lambda path: (path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes()), None)[1],
    "utf-16": lambda path: (path.write_bytes(path.read_bytes().decode().encode("utf-16")), None)[1],
    "doubled": lambda path: (path.write_bytes(2 * path.read_bytes()), None)[1],
    "no newlines": lambda path: (path.write_bytes(path.read_bytes().replace(b"\n", b" ")), None)[1],
}
"""Edits of JSON, whole or in lines."""


def places(document: Any) -> list[tuple[Any, Any]]:
    """Every place in a document that can get another value."""
    found: list[tuple[Any, Any]] = []
    entries = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in list(entries):
        found.append((document, key))
        if isinstance(value, dict | list):
            found += places(value)
    return found


def odd_value(seed: int, *, sealed: bool = False) -> Edit:
    """Put an odd value, or nothing, in one place of a JSON file or of one of its lines; sealed: with a new digest."""

    def edit(path: Path) -> None:
        rng = random.Random(seed)
        raw = path.read_bytes()
        packed = raw[:2] == b"\x1f\x8b"
        text = (gzip.decompress(raw) if packed else raw).decode()
        lines = [text] if path.suffix == ".json" else text.splitlines()
        number = rng.choice([0, len(lines) - 1, rng.randrange(len(lines))])
        document = json.loads(lines[number])
        holder, key = rng.choice(places(document))
        if rng.random() < 0.15 and isinstance(holder, dict):
            del holder[key]
        else:
            value = rng.choice(ODD)
            if value == holder[key]:
                value = "other"
            holder[key] = value
        lines[number] = json.dumps(document)
        new = ("\n".join(lines) + "\n").encode()
        path.write_bytes(gzip.compress(new, mtime=0) if packed else new)
        if sealed:
            reseal(path)

    return edit


def all_edits(path: Path, flips: int, values: int) -> Iterator[tuple[str, Edit]]:
    """The edits of a file, by its kind."""
    yield from BYTES.items()
    text = path.name.endswith((".json", ".jsonl"))
    if text:
        yield from TEXT.items()
    for seed in range(flips):
        yield f"flip {seed}", flip(seed)
    if text or path.name.endswith(".jsonl.gz"):
        for seed in range(values):
            yield f"odd value {seed}", odd_value(seed)
        if ".jsonl" in path.name and path.name != "metrics.jsonl":
            for seed in range(values):
                yield f"odd sealed value {seed}", odd_value(seed, sealed=True)
