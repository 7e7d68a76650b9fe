"""rhobust bench."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from rhobust.bench import bench_training
from rhobust.commands.options import Common, CommonOptions, print_table
from rhobust.training import resolve_device


@dataclass(frozen=True)
class Bench:
    """Time our way against the textbook's, in one run on this machine."""

    names: Annotated[tuple[Literal["training"], ...], tyro.conf.Positional] = ("training",)
    """Benchmarks to run."""
    curve: int = 0
    """Steps over which NAL's losses are compared, default against float32."""
    common: CommonOptions = Common()

    def run(self) -> dict[str, Any]:
        device = resolve_device(self.common.device)
        return {"training": bench_training(device, curve=self.curve, report=self.common.report)}

    def show(self, result: dict[str, Any]) -> None:
        training = result["training"]
        shape = "x".join(map(str, training["shape"]))
        print(f"{training['model']}, {shape}, batch {training['batch']}, on {training['device']}")
        print(f"matrix product ceiling {training['matmul_tflops']:.3g} TFLOP/s, torch {training['torch']}")
        rows = [
            [
                row["method"],
                f"{row['textbook_ms']:.1f}",
                f"{row['ours_ms']:.1f}",
                f"{row['ratio']:.1f}",
                f"{row['images_per_second']:.0f}",
                f"{row['tflops']:.3g}",
                f"{row['share_of_matmul']:.2f}",
                "" if row["peak_gib"] is None else f"{row['peak_gib']:.2f}",
            ]
            for row in training["methods"]
        ]
        columns = ["method", "textbook ms", "ours ms", "times faster", "images/s", "TFLOP/s", "of ceiling", "GiB"]
        print_table(columns, rows)
        for name, losses in training.get("curve", {}).items():
            shown = " ".join(f"{loss:.4f}" for loss in losses[:: max(1, len(losses) // 10)])
            print(f"NAL loss, {name}: {shown}")


COMMAND = Bench
