"""Good files to start from: a small run with records of all kinds, images, tables, archives; made once per process."""

import gzip
import json
import os
import shutil
import socket
import tarfile
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from rhobust.cli import run
from rhobust.files import parse_json
from rhobust.records import end_line

NETWORK = """
from torch import nn

def make(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""
SMALL = ("--limit", "3", "--quiet")


def made(*arguments: object) -> None:
    """Run a command that must work."""
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()):
        assert run([str(word) for word in arguments]) == 0, arguments


@cache
def material() -> Path:
    """The folder with everything; read it, never write to it."""
    import torch
    from safetensors.torch import save_file

    folder = Path(tempfile.mkdtemp(prefix="fuzz-material-"))
    import atexit

    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    whole, image = folder / "run", folder / "image.png"
    train = ("train", "method:gaussian", "--method.sigma", 0.25, "--data", "digits", "--model", "cnn-small")
    made(*train, "--epochs", 1, "--batch-size", 250, "--lr", 0.003, "--out", whole, "--quiet")
    for name in ("other", "second", "sweep"):
        shutil.copytree(whole, folder / name)
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) * 3).save(image)
    for target in ("run", "other"):
        made(
            "certify",
            folder / target,
            "--n0",
            10,
            "--n",
            100,
            "--procedure",
            "fixed",
            *SMALL,
            "--tsv",
            folder / "t.tsv",
        )
        made("certify", folder / target, "--n", 200, "--radii", 0, 0.1, *SMALL)
        made("attack", folder / target, "attack:pgd", "--attack.steps", 2, "--radii", 0, 2, "--no-probe", *SMALL)
        made("certify-shift", folder / target, "--eps", 0, 0.1, "--draws", 4, "--limit", 20, "--quiet")
    made("curves", whole, "--eps", 0, 0.1, "--gammas", 1, "--steps", 1, "--draws", 2, *SMALL)
    for part in ("before", "after"):
        (folder / part / "0").mkdir(parents=True)
        for number in range(3):
            shade = np.full((8, 8), 40 * number + 5 * (part == "after"), dtype=np.uint8)
            Image.fromarray(shade).save(folder / part / "0" / f"{number}.png")
    made("measure-shift", folder / "before", folder / "after", "--run", whole, "--draws", 2, *SMALL)
    (folder / "fuzz_network.py").write_text(NETWORK)
    tensors = {"1.weight": torch.linspace(-1, 1, 640).view(10, 64), "1.bias": torch.zeros(10)}
    save_file(tensors, folder / "weights.safetensors")
    import sys

    sys.path.insert(0, str(folder))
    made("certify-shift", *own(folder), "--out", folder / "own", "--eps", 0, 0.1, "--draws", 2, *SMALL)
    unfinished(folder)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (40, 1, 8, 8), dtype=np.uint8)
    np.savez(
        folder / "data.npz", x_train=images, y_train=np.arange(40) % 2, x_test=images[:20], y_test=np.arange(20) % 2
    )
    for number in range(12):
        place = folder / "images" / "ab"[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[number, 0]).save(place)
    with tarfile.open(folder / "packed.tar.xz", "w:xz") as tar:
        tar.add(whole, "packed/run")
        tar.add(folder / "other", "packed/other")
    return folder


def own(folder: Path) -> tuple[object, ...]:
    """Options that name the user's own network."""
    return (
        "--model",
        "fuzz_network:make",
        "--weights",
        folder / "weights.safetensors",
        "--data",
        "digits",
        "--sigma",
        0.5,
    )


def unfinished(folder: Path) -> None:
    """A training that was stopped after an epoch, as a kill leaves it."""
    import contextlib
    import io

    from rhobust.training import loop

    first = loop.save_weights

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    loop.save_weights = stop
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            assert run(resumed(folder / "unfinished")[:-1]) == 130
    finally:
        loop.save_weights = first
    assert (folder / "unfinished" / "resume.pt").exists()


def resumed(folder: Path) -> list[str]:
    """The command that goes on with the unfinished training."""
    train = ["train", "method:erm", "--data", "digits", "--model", "cnn-small", "--epochs", "1", "--batch-size", "500"]
    return [*train, "--out", str(folder), "--quiet", "--resume"]


def place_special(path: Path, kind: str) -> None:
    """Put something that is not a regular file in the place of a file."""
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        before = Path.cwd()
        os.chdir(path.parent)  # the name of a socket may have 107 characters
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
        os.chdir(before)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "dangling":
        path.symlink_to(path.parent / "nowhere")


def reseal(path: Path) -> None:
    """Give an edited record the digest of its rows, as whoever forges one can."""
    packed = path.suffix == ".gz"
    content = gzip.decompress(path.read_bytes()) if packed else path.read_bytes()
    head, _, last = content.rstrip(b"\n").rpartition(b"\n")
    try:
        summary = parse_json(last)["summary"]
    except (ValueError, KeyError, TypeError):
        return
    content = head + b"\n" + end_line(head + b"\n", summary).encode()
    path.write_bytes(gzip.compress(content, mtime=0) if packed else content)


def document(path: Path) -> object:
    """The JSON document of a file."""
    return json.loads(path.read_text())
