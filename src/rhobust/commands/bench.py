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
    curve: int = 0
    """training: steps over which NAL's losses are compared, default against float32."""
    run_folder: Annotated[Path | None, tyro.conf.arg(name="run")] = None
    """certify: run folder whose network is timed; a small one on digits where none is given."""
    images: int | None = None
    """certify: images of which a grid of radii is decided; as many as the device does in minutes."""
    common: CommonOptions = Common()

    def __post_init__(self) -> None:
        unknown = [name for name in self.names if name not in BENCHMARKS]
        if unknown:
            raise ValueError(f"a benchmark must be one of {', '.join(BENCHMARKS)}, got {unknown[0]}")

    def run(self) -> dict[str, Any]:
        device = resolve_device(self.common.device)
        setting = Setting(device, self.root, self.curve, self.run_folder, self.images, self.common.report)
        return {name: BENCHMARKS[name].run(setting) for name in self.names or BENCHMARKS}

    def show(self, result: dict[str, Any]) -> None:
        for number, (name, measured) in enumerate(result.items()):
            table = BENCHMARKS[name].table(measured)
            print(*([""] if number else []), *table.heading, sep="\n")
            print_table(table.columns, table.rows, left=table.left)
            for note in table.notes:
                print(note)


COMMAND = Bench
