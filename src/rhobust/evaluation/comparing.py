"""Files of certificates and of attacks beside each other, each against the first image by image."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rhobust.evaluation.attacking import robust_curve
from rhobust.evaluation.certified import certified_curve
from rhobust.evaluation.paired import certified_differences, robust_differences
from rhobust.evaluation.tsv import read_tsv
from rhobust.pairing import SAME_ATTACK, SAME_CERTIFICATE
from rhobust.records import COMPRESSED, PLAIN, Row, read_head, read_record, record_paths

RADII = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Where a certificate that knows every radius is looked at."""


@dataclass(frozen=True)
class Kind:
    """How records of a kind are told and compared."""

    standing: str
    """What their numbers are."""
    alike: tuple[str, ...]
    """Settings that two of them must share to be compared."""
    told: Callable[[list[Row], list[float]], Row]
    differences: Callable[[list[Row], list[Row], list[float]], list[Row]]


KINDS = {
    "certify": Kind(
        "proved",
        SAME_CERTIFICATE,
        lambda rows, radii: {"n": len(rows), **certified_curve(rows, radii)},
        certified_differences,
    ),
    "attack": Kind(
        "attacked",
        SAME_ATTACK,
        lambda rows, radii: {"n": len({row["index"] for row in rows}), "robust_accuracy": robust_curve(rows, radii)},
        robust_differences,
    ),
}
TABLE = replace(KINDS["certify"], standing="claimed")
"""A table of Cohen et al. has no counts, so its radii are only claimed."""


@dataclass(frozen=True)
class Compared:
    """What a file says of each image, and how it was made where that is known."""

    path: Path
    kind: Kind
    rows: list[Row]
    settings: Row

    @property
    def decided(self) -> tuple[float, ...] | None:
        """The radii of an attack or of a grid, which say nothing of those between; None where every radius is known."""
        limited = self.settings.get("way") in (None, "grid")
        return tuple(self.settings["radii"]) if limited and "radii" in self.settings else None

    def known(self, radii: Sequence[float]) -> list[float]:
        """Those of the radii that were decided."""
        return [radius for radius in radii if self.decided is None or radius in self.decided]


def is_record(path: Path) -> bool:
    """Whether a file is a record, by its name; everything else is taken for a table."""
    return path.name.endswith((PLAIN, COMPRESSED))


def read_compared(path: Path) -> Compared:
    """Read a record of certify or attack, or a table of Cohen et al.; one that was changed by hand is refused."""
    if not is_record(path):
        return Compared(path, TABLE, read_tsv(path), {})
    record = read_record(path)
    if record.kind not in KINDS or not record.rows:
        raise ValueError(f"{path} must be a record of certify or attack with at least one example, got {record.kind}")
    kind = KINDS[record.kind]
    if not record.intact:
        raise ValueError(f"{path} must be as it was written to be called {kind.standing}, but it was changed")
    return Compared(path, kind, record.rows, record.settings)


def partners(folders: Sequence[Path]) -> list[list[Compared]]:
    """For each record of the first folder those of the other folders that were made in the same way, after it.

    Of several such records of a folder it is the one that shares most settings. What has no partner is left out.
    """
    heads = [{path: read_head(path) for path in record_paths(folder)} for folder in folders]
    found = []
    for path, head in heads[0].items():
        if (kind := KINDS.get(str(head.get("kind")))) is not None:
            group = [match for other in heads[1:] if (match := _closest(head, kind, other)) is not None]
            if group:
                found.append([read_compared(one) for one in (path, *group)])
    if not found:
        raise ValueError(
            f"{folders[0]} must hold a certificate or an attack that another folder has too, but it does not"
        )
    return found


def comparison(files: Sequence[Compared], radii: Sequence[float] | None) -> Row:
    """The accuracy of every file at each radius, and how far it lies above the first one's, or why that is not told.

    Args:
        files: At least one.
        radii: Where they are compared; where none are given, those that were decided.
    """
    if radii is None:
        radii = sorted({radius for file in files for radius in file.decided or RADII})
    told: list[Row] = []
    for file in files:
        known = file.known(radii)
        one = {"file": str(file.path), "standing": file.kind.standing, **file.kind.told(file.rows, known)}
        told.append({**one, **_against(file, files[0], known)} if told else one)
    return {"radii": list(radii), "files": told}


def _against(file: Compared, first: Compared, radii: list[float]) -> Row:
    if file.kind.differences is not first.kind.differences:
        return {"not_compared": "what is proved is not compared with what an attack left"}
    shared = file.settings.keys() & first.settings.keys()
    other = [key for key in file.kind.alike if key in shared and file.settings[key] != first.settings[key]]
    if other:
        return {"not_compared": f"another {other[0]} than the first"}
    try:
        return {"against_first": file.kind.differences(file.rows, first.rows, first.known(radii))}
    except ValueError as error:
        return {"not_compared": str(error)}


def _closest(head: Row, kind: Kind, others: dict[Path, Row]) -> Path | None:
    """The record that was made in the same way, and shares most settings."""
    settings = head["settings"]
    same = {path: other["settings"] for path, other in others.items() if other.get("kind") == head["kind"]}
    alike = {
        path: sum(own.get(key) == value for key, value in settings.items())
        for path, own in same.items()
        if all(own.get(key) == settings.get(key) for key in kind.alike)
    }
    return max(alike, key=lambda path: alike[path]) if alike else None
