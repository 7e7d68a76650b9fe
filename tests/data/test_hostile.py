"""Files that lie, burst, block or start other programs: one line each, before memory or time is spent."""

import io
import os
import re
import struct
import subprocess
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from rhobust.data import SUFFIXES, load, load_pairs, read_image
from rhobust.data.tiny_imagenet import FolderTree

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n0 0 4 4 rectfill\nshowpage\n%%EOF\n"


def refuse(act: Callable[[], object], *words: str) -> str:
    with pytest.raises(ValueError, match="must") as caught:
        act()
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 800
    for word in words:
        assert word in line, line
    return line


def png(depth: int, colour: int, channels: int, size: tuple[int, int] = (4, 4)) -> bytes:
    """A PNG with samples of this depth, written by hand: Pillow writes no 16-bit colour."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    width, height = size
    row = b"\0" + bytes(channels * depth // 8 * 4)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(row * 4))
        + chunk(b"IEND", b"")
    )


def test_no_name_makes_pillow_start_ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs, ran = tmp_path / "programs", tmp_path / "ran"
    programs.mkdir()
    (programs / "gs").write_text(f"#!/bin/sh\necho ran > {ran}\nexit 1\n")
    (programs / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # looked for once
    folder = tmp_path / "data" / "a"
    folder.mkdir(parents=True)
    for suffix in SUFFIXES:
        path = folder / f"x{suffix}"
        path.write_bytes(EPS)
        refuse(lambda: load(str(tmp_path / "data"), "train"), str(path), "in none of the formats PNG, JPEG, BMP")
        refuse(lambda path=path: read_image(path, 3), str(path), "in none of the formats")
        refuse(lambda: load_pairs(folder, folder), str(path), "in none of the formats")
        assert not ran.exists()
        path.unlink()
    (tmp_path / "x.eps").write_bytes(EPS)
    with pytest.raises(subprocess.CalledProcessError), Image.open(tmp_path / "x.eps") as image:
        image.load()
    assert ran.exists(), "the stand-in is one that Pillow would start"


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "ICO", "TGA", "PCX", "PDF"])
def test_other_formats_are_refused_under_any_name(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    Image.new("RGB", (16, 16)).save(path, format=kind)
    refuse(lambda: read_image(path), str(path), "none of the formats")


@pytest.mark.parametrize(
    "content",
    [
        png(16, 0, 1),
        png(16, 2, 3),
        png(16, 4, 2),
        png(16, 6, 4),
        b"P6 2 2 65535\n" + bytes(24),
        b"P5 2 2 65535\n" + bytes(8),
        b"P6 2 2 1023\n" + bytes(24),
        b"P5 2 2 256\n" + bytes(8),
        b"P3 1 1 65535\n1 2 3\n",
        b"Pf 2 2 -1.0\n" + bytes(16),
    ],
    ids=["grey", "rgb", "grey-alpha", "rgba", "ppm", "pgm", "ppm-10", "pgm-9", "plain", "float"],
)
def test_more_than_8_bits_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    path.write_bytes(content)
    refuse(lambda: read_image(path), str(path), "more than 8 bits per channel")


@pytest.mark.parametrize("content", [png(8, 2, 3), b"P6 2 2 255\n" + bytes(12), b"P5 2 2 15\n" + bytes(4)])
def test_8_bits_and_fewer_are_read(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "whole.png"
    path.write_bytes(content)
    assert read_image(path).max() == 0


@pytest.mark.parametrize(
    "content", [png(8, 2, 3, (30_000, 30_000)), png(8, 2, 3, (10_000, 7_000)), b"P6 99999 99999 255\n"]
)
def test_an_image_that_promises_too_many_pixels_is_not_decoded(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a" / "large.png"
    path.parent.mkdir()
    path.write_bytes(content)
    refuse(lambda: load(str(tmp_path), "train"), str(path), "pixels")


def header(shape: str, kind: str = "|u1", version: bytes = b"\1\0") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    length = struct.pack("<H" if version == b"\1\0" else "<I", len(text))
    return b"\x93NUMPY" + version + length + text


def archive(path: Path, x: bytes, compression: int = zipfile.ZIP_DEFLATED) -> str:
    """An .npz file whose x has this content."""
    labels = io.BytesIO()
    np.save(labels, np.zeros(4, np.int64))
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("x.npy", x)
        file.writestr("y.npy", labels.getvalue())
    return str(path)


@pytest.mark.parametrize(
    ("x", "word"),
    [
        (header("(1000000000000, 28, 28)") + bytes(100), "promises 784,000,000,000,000 bytes, but 100 are there"),
        (header("(4, 8, 8)"), "promises 256 bytes, but 0 are there"),
        (header("(4, 2, 2)") + bytes(20), "promises 16 bytes, but 20 are there"),
        (header("(-4, -8, 8)") + bytes(256), "sides >= 0"),
        (header("(1000000000000,)", "|V0"), "must hold numbers"),
        (header("(1000000000000,)", "<U0"), "must hold numbers"),
        (header("(4, 8, 8)", "|O") + bytes(2048), "pickled objects"),
        (header("(4,)", "<M8[s]") + bytes(32), "must hold numbers"),
        (header("(" * 3000 + ")" * 3000), "must be a whole .npz"),
        (
            header("(4, 8, 8)", version=b"\2\0")[:8] + struct.pack("<I", 2**32 - 1) + b"x",
            "4,294,967,295 bytes, at most",
        ),
        (header("(4, 8, 8)", version=b"\3\0"), "version 3.0"),
        (b"\x93NUMPY\1\0", "must be a whole .npz"),
        (b"", "must be a whole .npz"),
    ],
)
def test_an_array_that_lies_about_its_size_takes_no_memory(x: bytes, word: str, tmp_path: Path) -> None:
    name = archive(tmp_path / "set.npz", x)
    refuse(lambda: load(name, "train"), name, word)


def test_an_array_that_cannot_be_in_memory_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = archive(tmp_path / "set.npz", header("(4, 1000, 1000)") + bytes(4_000_000))
    assert os.path.getsize(name) < 10_000  # noqa: PTH202
    monkeypatch.setattr(os, "sysconf", lambda key: 1000)
    refuse(lambda: load(name, "train"), name, "must fit into half of the memory")


def test_an_encrypted_archive_and_an_unknown_compression_are_refused(tmp_path: Path) -> None:
    content = header("(4, 8, 8)") + bytes(256)
    for compression in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        name = archive(tmp_path / "set.npz", content, compression)
        refuse(lambda name=name: load(name, "train"), name, "which numpy does not write")
    plain = Path(archive(tmp_path / "set.npz", content, zipfile.ZIP_STORED)).read_bytes()
    for place, value, word in ((6, 1, "is encrypted"), (8, 97, "compressed by method 97")):
        changed = bytearray(plain)
        for magic, shift in ((b"PK\3\4", 0), (b"PK\1\2", 2)):
            for found in re.finditer(re.escape(magic), plain):
                changed[found.start() + place + shift] = value
        (tmp_path / "set.npz").write_bytes(changed)
        refuse(lambda: load(str(tmp_path / "set.npz"), "train"), word)


def test_arrays_by_columns_and_of_version_2_are_read(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (40, 6, 5), np.uint8)
    np.savez_compressed(tmp_path / "set.npz", x=np.asfortranarray(x), y=np.arange(40, dtype=">i4") % 2)
    train = load(str(tmp_path / "set.npz"), "train")
    assert {image.tobytes() for image in train.images.numpy()} <= {image.tobytes() for image in x}
    name = archive(tmp_path / "two.npz", header("(4, 8, 8)", version=b"\2\0") + bytes(256))
    assert len(load(name, "test")) == 4


def test_what_is_no_regular_file_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("a/x.png", "set.npz", "one.png", "x.npy"):
        os.mkfifo(tmp_path / name)
    refuse(lambda: load(str(tmp_path), "train"), str(tmp_path / "a/x.png"), "must be a regular file")
    refuse(lambda: load(str(tmp_path / "set.npz"), "train"), "it is no regular file")
    refuse(lambda: read_image(tmp_path / "one.png"), "it is no regular file")
    refuse(lambda: load_pairs(tmp_path / "x.npy", tmp_path / "x.npy"), "it is no regular file")
    refuse(lambda: load_pairs(tmp_path, tmp_path), "must be a regular file")


def test_a_deep_tree_is_refused(tmp_path: Path) -> None:
    (tmp_path / "/".join("abcdefghijkl")).mkdir(parents=True)
    refuse(lambda: FolderTree(tmp_path), "must be at most 8 levels below")


def test_an_empty_name_is_no_data_set() -> None:
    refuse(lambda: load("", "test"), "got an empty name")
