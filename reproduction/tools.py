"""Commands over published results: python -m reproduction pack | publish | index | figures | audit."""

import argparse
import hashlib
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from safetensors import safe_open
from safetensors.torch import load_file, save

from reproduction.archive import pack
from reproduction.certified_figures import write_figures
from reproduction.index import write_index
from reproduction.unfinished import unfinished
from rhobust.archives import ENDING, opened
from rhobust.evaluation import audit_file
from rhobust.files import read_json, write_json, write_whole
from rhobust.progress import no_progress
from rhobust.records import PLAIN, compress, is_finished, record_paths
from rhobust.training import ENVIRONMENT, FINGERPRINT, WEIGHTS, open_run

COPIED = ("config.json", ENVIRONMENT, "metrics.jsonl", "training-images.bin")
"""Files of a run that are published with its weights."""


class Parser(argparse.ArgumentParser):
    """A parser whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def pack_command(arguments: Sequence[str]) -> int:
    """Pack a reproduction's finished runs and records, without weights, into an archive."""
    parser = Parser(prog="reproduction pack", description=pack_command.__doc__)
    parser.add_argument("out", type=Path, help="folder of the reproduction; its run folders are in runs/")
    parser.add_argument("archive", type=Path, help="NAME.tar.xz; what it holds already stays")
    words = "pack stopped certificates and attacks too, with the images up to the first that they lack"
    parser.add_argument("--unfinished", action="store_true", help=words)
    given = parser.parse_args(arguments)
    print(*pack(given.out, given.archive, stopped=given.unfinished), sep="\n")
    for path in (path for run in sorted((given.out / "runs").iterdir()) for path in unfinished(run)):
        what = "was packed with the images that it has" if given.unfinished else "was left out: see --unfinished"
        sys.stderr.write(f"{path} is unfinished and {what}\n")
    return 0


def publish_command(arguments: Sequence[str]) -> int:
    """Copy a finished run into a folder for publication, with weights rounded to bf16, and print their SHA-256."""
    parser = Parser(prog="reproduction publish", description=publish_command.__doc__)
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("folder", type=Path, help="new folder, results/pretrained/NAME")
    given = parser.parse_args(arguments)
    print(publish(given.run, given.folder))
    return 0


def index_command(arguments: Sequence[str]) -> int:
    """Write index.csv and index.md of all published networks, counted from the records."""
    parser = Parser(prog="reproduction index", description=index_command.__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=Path("results"), help="folder (default: results)")
    print(*write_index(parser.parse_args(arguments).results), sep="\n")
    return 0


def figures_command(arguments: Sequence[str]) -> int:
    """Draw the figures of certified networks from their records, with other authors' numbers."""
    parser = Parser(prog="reproduction figures", description=figures_command.__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=Path("results"), help="folder (default: results)")
    print(*write_figures(parser.parse_args(arguments).results), sep="\n")
    return 0


def audit_command(arguments: Sequence[str]) -> int:
    """Recompute everything that the packed records certify from their counts; 1 if a record is wrong."""
    parser = Parser(prog="reproduction audit", description=audit_command.__doc__)
    default = Path("results") / "records"
    parser.add_argument("records", type=Path, nargs="?", default=default, help=f"archives (default: {default})")
    folder, failed = parser.parse_args(arguments).records, 0
    archives = sorted(folder.glob(f"*{ENDING}"))
    if not archives:
        raise ValueError(f"{folder} must hold archives *{ENDING}, got none")
    for archive in archives:
        count = 0
        with opened([archive]) as found:
            for path in (path for run in found.paths for path in record_paths(run)):
                audit = audit_file(path, device="cpu", share=0, progress=no_progress)
                count += audit["kind"] in ("certify", "certify-shift")
                for problem in audit["problems"]:
                    failed += 1
                    print(f"{found.original(path)}: {problem}")
        print(f"{archive.name}: {count} records of certificates recomputed")
    return 1 if failed else 0


def publish(run: Path, folder: Path) -> str:
    """Copy a finished run, with weights rounded to bf16, and return their SHA-256.

    Matrices and convolutions are rounded; vectors (biases, batch norm) stay in float32. The rounded network is another
    one than that of the run, whose records stay behind: its own are made in the new folder. A run that was trained with
    `round_weights` is copied unchanged, with its finished records, compressed.

    Args:
        run: The run folder.
        folder: The new folder, `results/pretrained/NAME`; its card is written by hand.
    """
    if not open_run(run).finished:
        raise ValueError(f"{run} must be finished to be published")
    if folder.exists():
        raise ValueError(f"{folder} must not exist yet, but it does")
    content, same = (run / WEIGHTS).read_bytes(), open_run(run).config.round_weights
    if not same:
        tensors = {
            name: tensor.bfloat16() if tensor.dim() > 1 and name.startswith("network.") else tensor
            for name, tensor in load_file(run / WEIGHTS).items()
        }
        with safe_open(run / WEIGHTS, framework="pt") as file:
            content = save(tensors, metadata=file.metadata())
    digest = hashlib.sha256(content).hexdigest()
    folder.mkdir(parents=True)
    for name in COPIED:
        shutil.copyfile(run / name, folder / name)
    for path in filter(is_finished, record_paths(run) if same else []):
        compress(path, folder) if path.name.endswith(PLAIN) else shutil.copyfile(path, folder / path.name)
    write_whole(folder / WEIGHTS, content)
    write_json(folder / FINGERPRINT, {**read_json(run / FINGERPRINT), "model_hash": digest[:16]})
    return digest


TOOLS: dict[str, Callable[[Sequence[str]], int]] = {
    "pack": pack_command,
    "publish": publish_command,
    "index": index_command,
    "figures": figures_command,
    "audit": audit_command,
}
"""What `python -m reproduction` takes in place of the names of tables and figures."""
