"""Every parser on mutated files: it returns, or raises one line; and images and data sets under the commands."""

import gzip
import io
import random
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.fuzz.edits import BYTES, TEXT, flip, odd_value
from tests.fuzz.harness import Case, anything, refused
from tests.fuzz.material import material

IMAGES = ("png", "jpeg", "bmp", "webp", "ppm", "pgm")
MUST_REFUSE = ("empty", "text", "zeros", "0xff", "fifo", "folder", "socket", "loop", "bomb")
"""Edits after which no file is an image, an array or an archive."""


def mutated(source: bytes, seed: int) -> bytes:
    """A few random edits: bytes changed, removed, repeated, inserted, or numbers made large."""
    rng, content = random.Random(seed), bytearray(source)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(content) + 1)
        match rng.randrange(6):
            case 0 if at < len(content):
                content[at] = rng.randrange(256)
            case 1:
                del content[at : at + rng.randrange(1, 64)]
            case 2:
                content[at:at] = content[at : at + rng.randrange(1, 64)]
            case 3:
                content[at:at] = rng.randbytes(rng.randrange(1, 16))
            case 4:
                content[at : at + 4] = rng.choice(
                    (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"9999", b"-1,[")
                )
            case 5:
                content[at : at + 8] = struct.pack("<Q", rng.choice((2**63, 2**40, 2**32 - 1)))
    return bytes(content)


def _sources() -> dict[str, tuple[str, Callable[[Path], Any]]]:
    """By parser: the file that it reads, in the material, and how."""
    import torch

    from rhobust.archives import opened
    from rhobust.data import load, read_image
    from rhobust.evaluation import Target, audit_file
    from rhobust.files import read_json
    from rhobust.measurements import measurements, read_tsv
    from rhobust.models import fill_weights
    from rhobust.models.weights import read_weights
    from rhobust.records import read_head, read_record, read_rows
    from rhobust.training import open_run
    from rhobust.training.run import load_checkpoint, weights_metadata

    def archive(path: Path) -> None:
        with opened([path]) as found:
            for run in found.paths:
                open_run(run)

    records = {
        f"record {path.name.rsplit('-', 1)[0]}": (
            f"run/{path.name}",
            lambda path: (read_head(path), measurements(read_record(path))),
        )
        for path in sorted((material() / "run").glob("*-*.jsonl"))
    }
    return (
        records
        | {
            "config": ("run/config.json", lambda path: open_run(path.parent)),
            "environment": ("run/environment.json", read_json),
            "metrics": ("run/metrics.jsonl", read_rows),
            "packed record": ("packed.jsonl.gz", lambda path: measurements(read_record(path))),
            "archive": ("packed.tar.xz", archive),
            "weights": ("run/model.safetensors", lambda path: (weights_metadata(path), read_weights(path))),
            "network": ("weights.safetensors", lambda path: fill_weights(__import__("fuzz_network").make(), path)),
            "checkpoint": ("unfinished/resume.pt", lambda path: load_checkpoint(path, torch.device("cpu"))),
            "answers": ("own/answers.json", lambda path: Target.from_run(path.parent, trust=True).check_unchanged()),
            "table": ("t.tsv", read_tsv),
            "array file": ("data.npz", lambda path: (load(str(path), "train"), load(str(path), "test"))),
            "image": ("image.png", read_image),
            "audit": (
                next(f"run/{path.name}" for path in (material() / "run").glob("certify-cohen*")),
                lambda path: audit_file(path, share=0.0, device=torch.device("cpu")),
            ),
        }
        | {f"image {kind}": (f"image.{kind}", read_image) for kind in IMAGES[1:]}
    )


def _provide() -> None:
    """Files of the material that only parsers need."""
    folder = material()
    record = next((folder / "run").glob("certify-cohen*.jsonl"))
    (folder / "packed.jsonl.gz").write_bytes(gzip.compress(record.read_bytes(), mtime=0))
    for kind in IMAGES[1:]:
        mode = "RGB" if kind in ("ppm", "webp", "jpeg") else "L"
        Image.open(folder / "image.png").convert(mode).save(
            folder / f"image.{kind}", format="PPM" if kind == "pgm" else kind
        )


def parser_cases(seeds: int = 30) -> Iterator[Case]:
    """Every parser with mutated copies of a good file in a copy of its folder."""
    _provide()
    for name, (source, parse) in _sources().items():
        for seed in range(seeds):
            yield _parser_case(name, source, parse, f"mutation {seed}", lambda raw, seed=seed: mutated(raw, seed))
        if source.endswith((".json", ".jsonl")):
            for seed in range(seeds):
                yield _edit_case(name, source, parse, f"odd value {seed}", odd_value(1000 + seed))
            for what, edit in TEXT.items():
                yield _edit_case(name, source, parse, what, edit)
        for what, edit in BYTES.items():
            yield _edit_case(name, source, parse, what, edit)


def _copied(at: Path, source: str) -> Path:
    whole = material() / source
    if whole.parent == material():
        return Path(shutil.copy(whole, at / whole.name))
    shutil.copytree(whole.parent, at / "folder", symlinks=True)
    return at / "folder" / whole.name


def _parser_case(
    name: str, source: str, parse: Callable[[Path], Any], what: str, change: Callable[[bytes], bytes]
) -> Case:
    def prepare(at: Path) -> Any:
        path = _copied(at, source)
        path.write_bytes(change(path.read_bytes()))
        return lambda: parse(path)

    return Case("parsers", f"{name} {what}", prepare, anything)


def _edit_case(name: str, source: str, parse: Callable[[Path], Any], what: str, edit: Callable[[Path], None]) -> Case:
    def prepare(at: Path) -> Any:
        path = _copied(at, source)
        edit(path)
        return lambda: parse(path)

    # Rows, settings and metrics may be empty; everything else is refused. An audit names what it cannot read.
    strict = what in MUST_REFUSE[1:] and name not in ("audit", "answers", "metrics") and not name.startswith("record")
    return Case("parsers", f"{name} {what}", prepare, refused if strict else anything)


def data_cases(seeds: int = 12) -> Iterator[Case]:
    """Data sets and images, edited, under the commands that read them."""
    _provide()
    readers: dict[str, Callable[[Path], list[object]]] = {
        "data check": lambda path: ["data", "check", path],
        "train": lambda path: [
            *("train", "method:erm", "--data", path, "--model", "cnn-small", "--epochs", 1, "--batch-size", 10),
            *("--out", "new"),
        ],
        "certify": lambda path: [
            *(
                "certify",
                material() / "second",
                "--data",
                path,
                "--n0",
                5,
                "--n",
                20,
                "--procedure",
                "fixed",
                "--limit",
                2,
            )
        ],
    }
    edits = {**BYTES, **{f"flip {seed}": flip(seed) for seed in range(seeds)}}
    for command, words in readers.items():
        for what, edit in edits.items():
            for source in ("data.npz", "images"):
                yield _data_case(command, words, source, what, edit)
        for what, make in ARRAYS.items():
            yield _array_case(command, words, what, make)
    for kind in IMAGES:
        for what, edit in edits.items():
            yield _image_case(kind, what, edit)
    for what, edit in edits.items():
        for source in ("before", "after"):
            yield _pair_case(source, what, edit)
        yield _idx_case(what, edit)


def _data_case(
    command: str, words: Callable[[Path], list[object]], source: str, what: str, edit: Callable[[Path], None]
) -> Case:
    def prepare(at: Path) -> list[object]:
        if source == "images":
            shutil.copytree(material() / source, at / source)
            edit(at / source / "a" / "0.png")
            return [*words(at / source), "--quiet"]
        edit(Path(shutil.copy(material() / source, at)))
        return [*words(at / source), "--quiet"]

    # A folder passes over links and what is no regular file; bytes of pixels have no digest.
    odd = source == "images" and what in ("fifo", "folder", "socket", "loop")
    strict = what in MUST_REFUSE and not odd
    return Case(f"data {command}", f"{source} {what}", prepare, refused if strict else anything)


def _image_case(kind: str, what: str, edit: Callable[[Path], None]) -> Case:
    def prepare(at: Path) -> list[object]:
        path = Path(shutil.copy(material() / f"image.{kind}", at))
        edit(path)
        return ["predict", material() / "run", path, "--n", 5, "--quiet"]

    return Case("data predict", f"{kind} {what}", prepare, refused if what in MUST_REFUSE else anything)


def _pair_case(source: str, what: str, edit: Callable[[Path], None]) -> Case:
    def prepare(at: Path) -> list[object]:
        for part in ("before", "after"):
            shutil.copytree(material() / part, at / part)
        edit(at / source / "0" / "1.png")
        return ["measure-shift", "before", "after", "--quiet"]

    return Case("data measure-shift", f"{source} {what}", prepare, refused if what in MUST_REFUSE else anything)


def _idx_case(what: str, edit: Callable[[Path], None]) -> Case:
    """Files with the names of MNIST and CIFAR-10, which are known by their digests."""

    def prepare(at: Path) -> list[object]:
        folder = at / "mnist"
        folder.mkdir()
        for part in ("train", "t10k"):
            for kind in ("images-idx3", "labels-idx1"):
                path = folder / f"{part}-{kind}-ubyte.gz"
                path.write_bytes(
                    gzip.compress(b"\0\0\x08\x03" + struct.pack(">III", 60000, 28, 28) + bytes(784), mtime=0)
                )
                edit(path)
        return ["data", "check", "mnist", "--root", at, "--quiet"]

    return Case("data data check", f"mnist {what}", prepare, refused)


def _saved(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _member(name: str, content: bytes, **how: Any) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), content, **how)
    return file.getvalue()


def _header(text: str) -> bytes:
    padded = text.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode()


def _directory(place: int, new: bytes) -> bytes:
    """An .npz file with two bytes changed in each entry of its directory."""
    pieces = _saved(x_train=_PIXELS, y_train=_LABELS).split(b"PK\x01\x02")
    changed = [piece[: place - 4] + new + piece[place - 2 :] for piece in pieces[1:]]
    return b"PK\x01\x02".join([pieces[0], *changed])


_PIXELS = np.zeros((10, 1, 8, 8), dtype=np.uint8)
_LABELS = np.arange(10) % 2
ARRAYS: dict[str, Callable[[], bytes]] = {
    "no arrays": lambda: _saved(),
    "other names": lambda: _saved(a=_PIXELS),
    "objects": lambda: _saved(x_train=np.array([{}, []], dtype=object), y_train=_LABELS),
    "nan": lambda: _saved(x_train=_PIXELS + np.nan, y_train=_LABELS),
    "floats above 1": lambda: _saved(x_train=_PIXELS + 3.5, y_train=_LABELS),
    "negative": lambda: _saved(x_train=_PIXELS.astype(int) - 1, y_train=_LABELS),
    "16 bits": lambda: _saved(x_train=_PIXELS.astype(np.uint16) + 999, y_train=_LABELS),
    "complex": lambda: _saved(x_train=_PIXELS + 1j, y_train=_LABELS),
    "strings": lambda: _saved(x_train=_PIXELS.astype("U3"), y_train=_LABELS),
    "labels nan": lambda: _saved(x_train=_PIXELS, y_train=_LABELS + np.nan),
    "labels -1": lambda: _saved(x_train=_PIXELS, y_train=_LABELS - 1),
    "labels huge": lambda: _saved(x_train=_PIXELS, y_train=_LABELS + 2**40),
    "labels fewer": lambda: _saved(x_train=_PIXELS, y_train=_LABELS[:3]),
    "labels square": lambda: _saved(x_train=_PIXELS, y_train=_LABELS.reshape(5, 2)),
    "no images": lambda: _saved(x_train=_PIXELS[:0], y_train=_LABELS[:0]),
    "no pixels": lambda: _saved(x_train=_PIXELS[:, :, :0], y_train=_LABELS),
    "one dimension": lambda: _saved(x_train=_PIXELS.ravel(), y_train=_LABELS),
    "seven channels": lambda: _saved(x_train=_PIXELS.repeat(7, 1), y_train=_LABELS),
    "claims 10^12 images": lambda: _member(
        "x_train.npy", _header("{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 1, 8, 8), }")
    ),
    "claims a negative shape": lambda: _member(
        "x_train.npy", _header("{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 8, 8), }")
    ),
    "header is code": lambda: _member("x_train.npy", _header("__import__('os').getcwd()")),
    "header nested": lambda: _member("x_train.npy", _header("(" * 100)),
    "bomb": lambda: _member("x_train.npy", bytes(1 << 27), compress_type=zipfile.ZIP_DEFLATED),
    "unknown compression": lambda: _directory(10, b"\x63\x00"),
    "encrypted": lambda: _directory(8, b"\x01\x00"),
}


def _array_case(command: str, words: Callable[[Path], list[object]], what: str, make: Callable[[], bytes]) -> Case:
    def prepare(at: Path) -> list[object]:
        (at / "data.npz").write_bytes(make())
        return [*words(at / "data.npz"), "--quiet"]

    return Case(f"data {command}", f"array {what}", prepare, refused)


def archive_cases() -> Iterator[Case]:
    """Archives with members that lead elsewhere, twice, too many, or are no files."""

    def member(name: str, content: bytes = b"{}", **fields: Any) -> Callable[[tarfile.TarFile], None]:
        def add(tar: tarfile.TarFile) -> None:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(content))

        return add

    bad = {
        "upwards": member("../../evil"),
        "upwards inside": member("a/../../evil"),
        "absolute": member("/tmp/fuzz-evil"),
        "hidden": member("a/b/.bashrc"),
        "a dash": member("a/b/-rf"),
        "too deep": member("a/b/c/d"),
        "link": member("a/b/c", b"", type=tarfile.SYMTYPE, linkname="/tmp"),
        "hard link": member("a/b/c", b"", type=tarfile.LNKTYPE, linkname="a/b/d"),
        "fifo": member("a/b/c", b"", type=tarfile.FIFOTYPE),
        "device": member("a/b/c", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
        "escape": member("a/\x1b[2J/c"),
        "long": member("a/b/" + "n" * 1000),
        "config": member("a/b/config.json"),
        "claims more": lambda tar: tar.fileobj.write(_claiming(10**9).tobuf()),
    }
    for what, add in bad.items():
        for command in ("audit", "report", "compare"):
            if (what, command) != ("config", "report"):  # shows what there is, and names what there is not
                yield _archive_case(command, what, [add])
    for command in ("audit", "report", "compare"):
        yield _archive_case(command, "twice", [member("a/b/config.json")] * 2)
        yield _archive_case(command, "no members", [])
        for path in ("no-such", "run/no-such.jsonl", "../run", "run/../../x", "."):
            yield Case(
                "archives",
                f"{command} inside {path}",
                lambda at, command=command, path=path: [command, material() / "packed.tar.xz" / path, "--quiet"],
                anything if path == "." else refused,
            )


def _claiming(size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo("a/b/c")
    info.size = size
    return info


def _archive_case(command: str, what: str, members: list[Callable[[tarfile.TarFile], None]]) -> Case:
    def prepare(at: Path) -> list[object]:
        with tarfile.open(at / "a.tar.xz", "w:xz") as tar:
            for add in members:
                add(tar)
        return [command, at / "a.tar.xz", "--quiet"]

    return Case("archives", f"{command} {what}", prepare, refused)
