"""rhobust bench."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.bench import BENCHMARKS, Setting
from rhobust.commands.options import Common, CommonOptions, print_table
from rhobust.training import resolve_device


@dataclass(frozen=True)
class Bench:
    """Time our way against the textbook's and against peers, in one run on this machine."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar=f"[{'|'.join(BENCHMARKS)} ...]")] = ()
    """Benchmarks to run; all where none is named."""
    root: Path | None = None
    """Where the data sets lie."""
    folder: Annotated[Path | None, tyro.conf.arg(name="run")] = None
    """A trained run, for benchmarks that compare on one."""
    limit: int | None = None
    """Test points of that run at most."""
    draws: int | None = None
    """Noise draws a point of the comparator."""
    curve: int = 0
    """training: steps over which NAL's losses are compared, default against float32."""
    common: CommonOptions = Common()

    def __post_init__(self) -> None:
        unknown = [name for name in self.names if name not in BENCHMARKS]
        if unknown:
            raise ValueError(f"a benchmark must be one of {', '.join(BENCHMARKS)}, got {unknown[0]}")

    def run(self) -> dict[str, Any]:
        setting = Setting(
            device=resolve_device(self.common.device),
            root=self.root,
            run=self.folder,
            limit=self.limit,
            draws=self.draws,
            curve=self.curve,
            progress=self.common.progress,
        )
        return {name: BENCHMARKS[name].run(setting) for name in self.names or BENCHMARKS}

    def show(self, result: dict[str, Any]) -> None:
        for number, (name, measured) in enumerate(result.items()):
            table = BENCHMARKS[name].table(measured)
            print(*([""] if number else []), *table.heading, sep="\n")
            print_table(table.columns, table.rows, left=table.left)
            for note in table.notes:
                print(note)


COMMAND = Bench
