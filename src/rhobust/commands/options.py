"""Options that every command takes, and how results are printed."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rhobust.files import read_json
from rhobust.formatting import format_percent, name_split, printable
from rhobust.process import ExecutorName
from rhobust.progress import ProgressCallback, no_progress
from rhobust.records import CONFIG, Record, network_folder

if TYPE_CHECKING:
    from rhobust.executors import Executor


@dataclass(frozen=True)
class Output:
    """What every command takes."""

    json: bool = False
    """Print one JSON document and nothing else on standard output."""
    quiet: bool = False
    """Show no progress."""
    debug: bool = False
    """Show the traceback of an error."""

    @property
    def progress(self) -> ProgressCallback | None:
        """Where progress goes."""
        return no_progress if self.quiet else None

    def check(self) -> None:
        """Refuse what cannot be had here, before work begins."""


@dataclass(frozen=True)
class Common(Output):
    """What every command takes that computes with a network."""

    device: str = "auto"
    """auto (the GPU where there is one), cpu, cuda, cuda:1, ..."""

    def check(self) -> None:
        from rhobust.training.distributed import resolve_device  # commands without a network need no torch

        resolve_device(self.device)


@dataclass(frozen=True)
class Writing(Common):
    """What every command takes that trains or writes records."""

    wait: bool = False
    """Wait for another process that is writing the same record or run; default: leave with one line and exit code 2."""


@dataclass(frozen=True)
class Spreading(Writing):
    """What every command takes whose work can be spread over processes and machines."""

    executor: ExecutorName | None = None
    """Where the work is done: local (this process), processes (of this machine), ray (a cluster, or this machine);
    default: local, or all processes that torchrun or srun started."""
    workers: int | None = None
    """Number of workers of processes or ray; default: one per GPU, or per core."""
    address: str | None = None
    """ray: auto, HOST or HOST:PORT of a running cluster; default: RAY_ADDRESS, else a new one on this machine."""
    gpus: float = 1.0
    """GPUs per worker; 0.25 puts four workers on one GPU."""

    def check(self) -> None:
        self.chosen()
        super().check()

    def chosen(self) -> "Executor | None":
        """The executor; None where none is named."""
        from rhobust.executors import choose_executor  # commands without a network need no torch

        return choose_executor(self.executor, workers=self.workers, address=self.address, gpus=self.gpus)


@dataclass(frozen=True)
class Counting(Spreading):
    """What every command takes that counts votes under noise."""

    batch_size: int | None = None
    """Noisy inputs that the network evaluates at once; default: 256 on a CPU, as many as fill a GPU and fit into it."""

    def check(self) -> None:
        super().check()
        if self.batch_size is not None and self.batch_size < 8:
            raise ValueError(f"batch_size must be >= 8, got {self.batch_size}")


OutputOptions = Annotated[Output, tyro.conf.arg(name="")]
CommonOptions = Annotated[Common, tyro.conf.arg(name="")]
WritingOptions = Annotated[Writing, tyro.conf.arg(name="")]
SpreadingOptions = Annotated[Spreading, tyro.conf.arg(name="")]
CountingOptions = Annotated[Counting, tyro.conf.arg(name="")]


def record_document(record: Record) -> dict[str, Any]:
    """What a command prints of a record under --json."""
    return {"record": str(record.path), "kind": record.kind, "settings": record.settings, "summary": record.summary}


def print_table(columns: list[str], rows: list[list[str]], *, left: int = 1) -> None:
    """Print a table to standard output; the first `left` columns are words, the rest numbers."""
    columns, *rows = ([printable(cell) for cell in row] for row in [columns, *rows])
    widths = [max(len(row[number]) for row in [columns, *rows]) for number in range(len(columns))]
    for row in [columns, *rows]:
        words = [cell.ljust(width) for cell, width in zip(row[:left], widths[:left], strict=True)]
        numbers = [cell.rjust(width) for cell, width in zip(row[left:], widths[left:], strict=True)]
        print("  ".join([*words, *numbers]).rstrip())


def print_claim(statement: str, result: dict[str, Any], points: int) -> None:
    """Print a certificate's statement with the network, the data and the assumptions; `points` are its images."""
    from rhobust.proofs.claim import claim_in_full  # commands without a certificate need no scipy

    settings, record = result["settings"], result["record"]
    network = Path(record).resolve().parent.name if record is not None and "model_hash" in settings else None
    print(printable(claim_in_full(statement, settings, points, network)))


def print_trained(*results: dict[str, Any]) -> None:
    """Print that no image of the evaluation was trained on, as far as that is known; otherwise a warning says how many.

    Args:
        results: Documents of records of one split, whose folders say whether their networks had been trained before, or
            by a teacher.
    """
    if any(result["summary"].get("trained_on") != 0 for result in results):
        return
    split = name_split(results[0]["settings"].get("split"))
    configs = [_config(network_folder(Path(result["record"]))) for result in results]
    known = ""
    if any(config.get("init") is not None for config in configs):
        known = " in the fine-tuning; what came before it is not known"
    elif any(config.get("teacher") is not None for config in configs):
        known = "; what the teacher was trained on is not known"
    print(f"no {split} image was trained on{known}")


def _config(folder: Path) -> dict[str, Any]:
    """What a folder of records says of the training of its network."""
    path = folder / CONFIG
    config = read_json(path) if path.exists() else None
    return config if isinstance(config, dict) else {}


def print_diagnosis(found: dict[str, Any]) -> None:
    """Print the accuracy of the base network next to that under noise, and what explains low numbers."""
    base, noisy = (format_percent(found[name], "nearest") for name in ("base_accuracy", "accuracy_under_noise"))
    print(f"base network {base}% right without noise, {noisy}% under noise (estimates, {found['n']} of these images)")
    for finding in found["findings"]:
        print(printable(f"diagnosis: {finding['text']} {finding['remedy']}".rstrip()))


def print_warnings(warnings: Iterable[str]) -> None:
    """Print reasons not to trust a result, one per line."""
    for warning in warnings:
        print(f"warning: {printable(warning)}")
