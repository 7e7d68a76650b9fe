"""Records of an evaluation: JSON lines that survive a kill and say what they rest on.

A record file is a header line (kind and settings), one line per result, and an end line with the summary.
A file without its end line is unfinished: the writer continues it, a reader sees `summary is None`.
A finished file may be compressed (`compress`); every reader takes both.
"""

import gzip
import hashlib
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rhobust.files import open_regular, parse_json, read_file, unzip, write_whole
from rhobust.lock import LostError, Ownership, identity, owned

Row = dict[str, Any]
PLAIN, COMPRESSED = ".jsonl", ".jsonl.gz"
"""How the names of record files end."""
RECORDS = "records"
"""Folder of the records in a published run folder."""
CONFIG, METRICS, RESUME = "config.json", "metrics.jsonl", "resume.pt"
"""Files of a network's folder: what it is, its epochs, and the last checkpoint."""
WEIGHTS = "model.safetensors"
"""Weights of the network."""
FINGERPRINT = "weights.json"
"""Weights fingerprint and metadata: shows damage of the weights, and is published in their place."""
ENVIRONMENT = "environment.json"
"""Versions, device and command."""
ANSWERS = "answers.json"
"""Ties a folder to one network of the user's own: its logits at fixed images."""
DIAGNOSIS = "diagnosis.json"
"""What explains low numbers, in words."""
_TAIL = 65_536
"""Bytes at the end of a record in which its last line is looked for."""
_LONGEST = 1 << 24
"""Bytes of a header line that are read."""
_SEALED = bytes([0x1F, 0x8B, 8, 4, 0, 0, 0, 0, 2, 255]) + struct.pack("<H2sH", 36, b"RB", 32)
"""A gzip header with one extra field (RFC 1952) of 32 bytes, without a time, a name or a system."""
_PLAIN_HEADER = 10
"""Bytes of a gzip header without fields."""


class DamagedRecordError(ValueError):
    """A file that looks like a record and cannot be read as one."""


@dataclass(frozen=True)
class Record:
    """One evaluation on disk."""

    path: Path
    kind: str
    """What was done: "attack", "certify", "certify-shift"."""
    settings: Row
    """Everything that decides the rows: attack, noise, seed, data, hash of the weights."""
    rows: list[Row] = field(repr=False)
    """One dictionary per result, in the order they were computed."""
    summary: Row | None
    """What the rows add up to; None while the evaluation is unfinished."""
    intact: bool = True
    """Whether the file is as its writer finished it; False where it was changed afterwards."""
    digest: str | None = field(default=None, compare=False)
    """The digest in its end line; None where it is unfinished, or where another program wrote it."""


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Eight hex digits that name these settings: equal settings, equal name."""
    canonical = json.dumps(settings, sort_keys=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def read_rows(path: Path) -> list[Row]:
    """Read JSON lines; a last line cut off by a kill is left out, any other damage is refused."""
    return _rows(path, read_file(path, own=True))


def _rows(path: Path, content: bytes) -> list[Row]:
    lines = content.split(b"\n")
    # A whole file ends with a newline, so what follows the last one is empty or half-written.
    rows = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = parse_json(line)
        except ValueError as error:
            raise DamagedRecordError(
                f"{path}, line {number} must be a JSON object, but it is damaged: {error}"
            ) from None
        if not isinstance(row, dict):
            raise DamagedRecordError(f"{path}, line {number} must be a JSON object, got {type(row).__name__}")
        rows.append(row)
    if _is_object(lines[-1][:-1]):
        # A kill leaves a part of a line, never a whole one and something else in place of its end.
        raise DamagedRecordError(f"{path} must end with a newline, but that was changed")
    return rows


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(parse_json(text), dict)
    except ValueError:
        return False


def record_paths(folder: Path | str, kind: str = "*") -> list[Path]:
    """The record files in a folder and in its `records`, plain or compressed, of one kind or of all."""
    places = (Path(folder), Path(folder) / RECORDS)
    return sorted(path for place in places for end in (PLAIN, COMPRESSED) for path in place.glob(f"{kind}-*{end}"))


def network_folder(path: Path) -> Path:
    """The folder of the network that a record file is about: its own folder, or the one above `records`."""
    return path.parent.parent if path.parent.name == RECORDS and not (path.parent / CONFIG).exists() else path.parent


def compress(path: Path, folder: Path) -> Path:
    """Write a finished record, compressed, into a folder; equal records give equal files, and any change shows."""
    target = folder / path.name.replace(PLAIN, COMPRESSED)
    write_whole(target, _seal(path.read_bytes()))
    return target


def read_record(path: Path | str) -> Record:
    """Read a record file, finished or not, plain or compressed."""
    path = Path(path)
    return _record(path, _content(path))


def finished_records(folder: Path | str, kind: str) -> list[Record]:
    """The finished records of a kind in a folder; damaged and unfinished ones are left out."""
    records = []
    for path in record_paths(folder, kind):
        try:
            record = read_record(path)
        except (ValueError, OSError):
            continue
        if record.kind == kind and isinstance(record.summary, dict):
            records.append(record)
    return records


def read_head(path: Path) -> Row:
    """The first line of a record file, plain or compressed, without the rest; nothing where it cannot be read."""
    try:
        with open_regular(path, own=True) as raw:
            head = parse_json((gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw).readline(_LONGEST))
    except (OSError, EOFError, zlib.error, ValueError):
        return {}
    return head if isinstance(head, dict) else {}


def is_finished(path: Path) -> bool:
    """Whether a record has its end line, by its last bytes; only finished ones are compressed."""
    if path.name.endswith(COMPRESSED):
        return True
    with open_regular(path, own=True) as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _TAIL))
        lines = file.read().split(b"\n")
    try:
        last = parse_json(lines[-2]) if len(lines) > 1 else None
    except ValueError:
        return False
    return isinstance(last, dict) and "summary" in last


def _record(path: Path, content: bytes) -> Record:
    lines = _rows(path, content)
    if not lines or "kind" not in lines[0] or "settings" not in lines[0]:
        raise DamagedRecordError(f"{path} must start with a header line (kind and settings), but it has none")
    rows, summary, intact, digest = lines[1:], None, True, None
    if rows and ("summary" in rows[-1] or "digest" in rows[-1]):
        end = rows.pop()
        if "summary" not in end:
            raise DamagedRecordError(f"{path} must have a summary in its last line, but that was changed")
        summary, last = end["summary"], _last_line(content)
        # Records of other programs have a summary alone: nothing is known of them.
        if end.keys() != {"summary"}:
            digest = str(end.get("digest", ""))
            intact = content[last:] == end_line(content[:last], summary).encode()
    if rows and rows[-1].keys() == {"void"}:
        raise DamagedRecordError(f"{path} is void and proves nothing, delete it to evaluate again: {rows[-1]['void']}")
    if any("summary" in row for row in rows):
        raise DamagedRecordError(f"{path} must end after its summary line, but more lines follow it")
    return Record(path, lines[0]["kind"], lines[0]["settings"], rows, summary, intact, digest)


def _content(path: Path) -> bytes:
    try:
        content = read_file(path, own=True)
        if path.suffix != ".gz":
            return content
        if _is_broken(content):
            raise ValueError(f"{path} must be as it was compressed, but it was changed")
        return unzip(content, path)
    except FileNotFoundError:
        raise ValueError(f"{path} must exist, but there is no such file") from None
    except ValueError as error:
        raise DamagedRecordError(str(error)) from None


def _seal(content: bytes) -> bytes:
    """A gzip file of some content whose header has a digest of all that follows, so that any changed byte shows.

    gzip itself checks the content only: its header has bytes that nobody reads, and its stream ends with bits that
    nobody uses. Equal content gives equal bytes.
    """
    rest = gzip.compress(content, mtime=0)[_PLAIN_HEADER:]
    return _SEALED + hashlib.sha256(rest).digest() + rest


def _is_broken(packed: bytes) -> bool:
    """Whether the bytes of a gzip file were changed after `_seal` made it; False for files of other programs."""
    # Of the flags and the field's name one may have been changed, not both.
    if packed[3:4] != _SEALED[3:4] and packed[12:16] != _SEALED[12:16]:
        return False
    digest, rest = packed[len(_SEALED) : len(_SEALED) + 32], packed[len(_SEALED) + 32 :]
    return not packed.startswith(_SEALED) or digest != hashlib.sha256(rest).digest()


def _last_line(content: bytes) -> int:
    """Start of the last whole line."""
    return content.rfind(b"\n", 0, content.rfind(b"\n")) + 1


def end_line(before: bytes, summary: Row) -> str:
    """The end line of a record: its summary, and a digest of that and of the lines before it, as they lie on the disk.

    A changed byte anywhere in a finished record shows. The digest has no key: whoever forges a record can compute it.
    """
    digest = hashlib.sha256(before + json.dumps(summary).encode()).hexdigest()[:16]
    return json.dumps({"summary": summary, "digest": digest}) + "\n"


class RecordWriter:
    """Writes one record file and continues it after a kill.

    The file's name is kind, label and the hash of the settings, so the same evaluation finds its own file again.
    Nothing is written before the first row: several processes may look at a record that one of them writes.

    Guarantee: rows are added by the owner of the record's lock only, and only to the file that this writer knows. If
    another process took the lock over, or changed the file, `append`, `rewrite` and `finish` raise `LostError` and the
    record stays as the other one left it.
    """

    def __init__(self, folder: Path, kind: str, label: str, settings: Row) -> None:
        settings = plain_settings(settings)
        name = "-".join(part for part in (kind, label, settings_hash(settings)) if part)
        places = [place / f"{name}{ending}" for place in (folder, folder / RECORDS) for ending in (PLAIN, COMPRESSED)]
        self.path = next((path for path in places if path.exists()), places[0])
        self.kind, self.settings = kind, settings
        self.rows: list[Row] = []
        self.summary: Row | None = None
        self._owner: Ownership | None = None
        self.read()

    def read(self) -> None:
        """Read the file again."""
        self.rows, self.summary, self._begun = [], None, False
        self._known = identity(self.path)
        content = self._held()
        if b"\n" not in content:
            return
        record = _record(self.path, content)
        if record.settings != self.settings:
            raise ValueError(f"{self.path} must hold the settings of its name, but its header was changed")
        if not record.intact:
            raise ValueError(
                f"{self.path} must be as it was written, but it was changed: delete it to evaluate it again"
            )
        self.rows, self.summary = record.rows, record.summary

    def _held(self) -> bytes:
        """Content of the file, empty if there is none; without a whole line it has no header yet."""
        return _content(self.path) if self.path.exists() else b""

    def _header(self) -> str:
        return json.dumps({"kind": self.kind, "settings": self.settings}, allow_nan=False) + "\n"

    def rewrite(self, rows: Iterable[Row]) -> None:
        """Replace all rows, atomically."""
        self._check_unfinished()
        rows = list(rows)
        with self._ownership() as owner:
            self._put(owner, (self._header() + _lines(rows)).encode())
        self.rows = rows

    def append(self, rows: Iterable[Row]) -> None:
        """Append rows and flush them to the disk."""
        self._check_unfinished()
        rows = list(rows)
        text = _lines(rows)
        with self._ownership() as owner:
            self._write(owner, text)
        self.rows += rows

    def finish(self, summary: Row) -> None:
        """Add the end line; the file is complete from then on, and a later change shows in its digest."""
        self._check_unfinished()
        json.dumps(summary, allow_nan=False)  # refuses what JSON has no word for
        with self._ownership() as owner:
            self._write(owner, "")
            self._write(owner, end_line(self.path.read_bytes(), summary))
        self.summary = summary

    def void(self, reason: str) -> None:
        """Add a last line after which no reader takes the rows, and no writer continues them."""
        with self._ownership() as owner:
            self._write(owner, _lines([{"void": reason}]))

    def _check_unfinished(self) -> None:
        if self.summary is not None:
            raise ValueError(f"{self.path} must be unfinished to take more rows, but it has its summary")

    def record(self, summary: Row | None = None) -> Record:
        """What the file holds now; with a summary that is not written yet, what it is going to hold."""
        return Record(self.path, self.kind, self.settings, self.rows, self.summary if summary is None else summary)

    @contextmanager
    def owned(self, *, wait: float = 0.0, notify: Callable[[str], None] | None = None) -> Iterator[None]:
        """Keep other processes from writing this record, and read what they left; arguments as of `lock.owned`."""
        with owned(self.lock, self.path, wait=wait, notify=notify) as self._owner:
            try:
                self.read()
                yield
            finally:
                self._owner = None

    def check_owner(self) -> None:
        """Raise `LostError` if another process took this record over."""
        if self._owner is not None:
            self._owner.check()

    @property
    def lock(self) -> Path:
        """One lock for the plain file and the compressed one."""
        return self.path.with_name(f"{self.path.name.removesuffix('.gz').replace(PLAIN, '')}.lock")

    def _ownership(self) -> AbstractContextManager[Ownership]:
        return owned(self.lock, self.path) if self._owner is None else nullcontext(self._owner)

    def _put(self, owner: Ownership, content: bytes) -> None:
        """Put a whole file in the place of the one that this writer knows."""
        if identity(self.path) != self._known:
            raise LostError(f"{self.path} was changed by another process while this one was writing it: stopped")
        owner.replace(self.path, content)
        self._known, self._begun = identity(self.path), True

    def _write(self, owner: Ownership, text: str) -> None:
        if not self._begun:
            # A copy of the whole lines: an earlier owner that wakes up writes to the file that was replaced.
            content = self._held()
            self._put(owner, content[: content.rfind(b"\n") + 1] or self._header().encode())
        if text and self._known is not None:
            self._known = owner.append(self.path, self._known, text.encode())


def plain_settings(settings: Row) -> Row:
    """Settings as they are read back from a file."""
    return json.loads(json.dumps(settings, default=_number))


def _number(value: Any) -> int | float:
    """A number of numpy's or torch's as Python's own: a seed of `np.arange` names the same record."""
    if not hasattr(value, "item"):
        raise ValueError(f"settings must hold what JSON can, got {value!r}")
    return value.item()


def _lines(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(_finite(row), allow_nan=False) + "\n" for row in rows)


def _finite(row: Row) -> Row:
    for key, value in row.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"a record's {key} must be finite, got {value}")
    return row


def is_own(config: Row) -> bool:
    """Whether a folder's config is about the user's own network, trained elsewhere.

    A run that was fine-tuned from somebody's weights names weights too, and the method that changed them.

    >>> is_own({"model": "net:make", "weights": "w.pt"}), is_own({"model": "cnn", "weights": "w.pt", "method": {}})
    (True, False)
    """
    return "weights" in config and "method" not in config
