"""Change single bytes of finished records, and see that audit, report and compare refuse each.

Every kind of record, plain, compressed (.gz) and packed in an archive (.tar.xz). The tests take a sample; all bytes:

    python -m tests.fuzz.changed_bytes
"""

import random
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from rhobust.archives import opened
from rhobust.evaluation import audit_file
from rhobust.measurements import read_compared
from rhobust.measurements.corruptions import corruption_summary
from rhobust.measurements.counting import base_accuracy
from rhobust.records import RecordWriter, compress
from rhobust.report.gather import gather
from tests.report.folders import (
    write_attack,
    write_certificate,
    write_losses,
    write_measured,
    write_shift,
    write_transfer,
)

MARGIN = np.array([0.1, 0.3, 0.6])


def _write_accuracy(folder: Path) -> Path:
    writer = RecordWriter(folder, "accuracy", "", {"draws": 20, "sigma": 0.25})
    writer.append({"index": i, "label": 0, "prediction": i % 2, "draws": 20, "errors": i} for i in range(4))
    writer.finish({**base_accuracy(writer.rows), "warnings": []})
    return writer.path


def _write_corruptions(folder: Path) -> Path:
    settings = {"corruptions": ["blur"], "severities": [1], "levels": [0.5], "alpha": 0.001, "sigma": 0.25}
    writer = RecordWriter(folder, "corruptions", "", {**settings, "draws": 10, "seed": 0, "noise": "grid"})
    cells = (("none", 0, 0.0), ("blur", 1, 0.1))
    writer.append(
        {"index": i, "label": 0, "corruption": name, "severity": severity, "distance": distance, "prediction": i % 2}
        | {"draws": 10, "errors": i}
        for name, severity, distance in cells
        for i in range(3)
    )
    writer.finish({**corruption_summary(writer.rows, writer.settings, 64), "warnings": []})
    return writer.path


def _write_other(folder: Path) -> Path:
    writer = RecordWriter(folder, "counterexample", "", {"gamma": 1.0})
    writer.append([{"index": 0, "gamma": 1.0, "claimed": 0.5, "worst": 0.75}])
    writer.finish({"worst": 0.75})
    return writer.path


KINDS: dict[str, Callable[[Path], Path]] = {
    "accuracy": _write_accuracy,
    "attack": lambda folder: write_attack(folder, "eot", MARGIN, scored="smoothed", sigma=0.25),
    "certify fixed": lambda folder: write_certificate(folder, MARGIN, sigma=0.25),
    "certify sequential": lambda folder: write_certificate(folder, MARGIN, sigma=0.25, way="grid"),
    "certify-shift": lambda folder: write_shift(folder, np.array([0, 1, 2, 9]), sigma=0.25),
    "certify-shift of a loss": lambda folder: write_losses(folder, attacked=False, n=5),
    "corruptions": _write_corruptions,
    "curves": lambda folder: write_losses(folder, n=5),
    "measure-shift": lambda folder: write_measured(folder, pairs=5),
    "measure-shift of distances": lambda folder: write_measured(folder, pairs=5, network=False),
    "transfer": lambda folder: write_transfer(folder, "beef", {"beef": MARGIN, "f00d": MARGIN}),
    "of the reproduction": _write_other,
}
"""How a record of each kind is written."""
ALL = frozenset({"audit", "report", "compare"})


def write_folder(folder: Path) -> Path:
    """An empty run folder that is complete otherwise."""
    folder.mkdir(parents=True)
    for name, content in (("config.json", "{}"), ("environment.json", "{}"), ("metrics.jsonl", "")):
        (folder / name).write_text(content)
    return folder


def refusals(path: Path) -> set[str]:
    """Which of audit, report and compare refuse a record."""
    found = set()
    if audit_file(path, device="cpu", share=0)["problems"]:
        found.add("audit")
    [page] = gather([path.parent]).runs
    if any(note.startswith(f"{path.name} is left out") for note in page.left_out) and not page.records:
        found.add("report")
    try:
        read_compared(path)
    except ValueError:
        found.add("compare")
    return found


def archive_refusals(path: Path) -> set[str]:
    """All three for an archive that cannot be opened: each of them opens it in the same way."""
    try:
        with opened([path]):
            return set()
    except ValueError:
        return set(ALL)


def pack(folder: Path) -> Path:
    """An archive of a run folder."""
    archive = folder.parent / "runs.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(folder, f"runs/{folder.name}")
    return archive


def changes(content: bytes, places: Iterable[int], rng: random.Random) -> Iterator[tuple[int, bytes]]:
    """The content with the byte at each place changed: one bit of it, to any byte, and to white space."""
    for place in places:
        space = rng.choice(b"\n \t\r")
        for byte in {content[place] ^ 1 << rng.randrange(8), rng.randrange(256), space} - {content[place]}:
            yield place, content[:place] + bytes([byte]) + content[place + 1 :]


def accepted(path: Path, places: Iterable[int] | None = None, seed: int = 0) -> Iterator[tuple[int, set[str]]]:
    """Change a file byte by byte: each place that was changed, and who takes the changed file nevertheless.

    Args:
        path: A record or an archive of one; it is put back at the end.
        places: Places to change; default: all.
        seed: Random seed.
    """
    original, check = path.read_bytes(), archive_refusals if path.suffix == ".xz" else refusals
    try:
        for place, content in changes(original, places or range(len(original)), random.Random(seed)):
            path.write_bytes(content)
            yield place, set(ALL) - check(path)
    finally:
        path.write_bytes(original)


def files(name: str, folder: Path) -> Iterator[Path]:
    """A record of a kind, plain, then compressed, then packed; each alone in its folder."""
    path = KINDS[name](write_folder(folder / "plain"))
    yield path
    yield compress(path, write_folder(folder / "compressed"))
    yield pack(path.parent)


def main(names: list[str]) -> int:
    """Change every byte of every kind of file, or of some kinds, and say how many changes were refused."""
    total = missed = 0
    for name in names or KINDS:
        with tempfile.TemporaryDirectory(prefix="rhobust-fuzz-") as temporary:
            for path in files(name, Path(temporary)):
                found = list(accepted(path))
                taken = [f"byte {place} by {', '.join(sorted(takers))}" for place, takers in found if takers]
                total, missed = total + len(found), missed + len(taken)
                sys.stdout.write(f"{name}, {path.suffix}: {len(found):,} changes, taken: {taken[:5] or 'none'}\n")
                sys.stdout.flush()
    sys.stdout.write(f"changed bytes: {total:,} changes, {missed:,} not refused\n")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
