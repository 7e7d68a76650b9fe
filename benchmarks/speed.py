"""All of the promised speed in one table: ours by default against the peers' own files and against plain loops."""

import platform
import time
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.benchmark import Setting, Table
from benchmarks.speed_gradients import WholeBench
from benchmarks.speed_rows import SIZES
from rhobust.progress import ProgressCallback, progress_or_default

PACKAGES = ("torch", "torchvision", "numpy", "triton", "foolbox", "torchattacks", "adversarial-robustness-toolbox")


def bench_speed(setting: Setting) -> dict[str, Any]:
    """Measure every row of the table; the JSON document is written after each of them."""
    result: dict[str, Any] = {**setting.machine(), "python": platform.python_version(), "versions": _versions()}
    result |= {"rows": [], "curves": {}, "failed": {}}
    bench = WholeBench(setting, SIZES[setting.device.type], result)
    with progress_or_default(setting.progress) as notify:
        for name, part in bench.parts().items():
            if setting.parts and name not in setting.parts:
                continue
            start, bench.part = time.perf_counter(), name
            try:
                part()
            except Exception as error:  # the other rows are still worth their time
                result["failed"][name] = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
                if setting.debug:
                    raise
            _report(notify, name, time.perf_counter() - start, result)
            if setting.device.type == "cuda":
                torch.cuda.empty_cache()
            setting.write(result)
    return result


def _report(notify: ProgressCallback, name: str, seconds: float, result: dict[str, Any]) -> None:
    rows = [
        f"{row['name']}: {row['value']:.4g} {row['unit']}, {row['ratio']:.2f} times (wanted {row['wanted']})"
        for row in result["rows"]
        if row["part"] == name
    ]
    notify(f"bench speed: {name} after {seconds:.0f} s; " + "; ".join(rows or [result["failed"].get(name, "done")]))


def speed_table(result: dict[str, Any]) -> Table:
    """The table for people."""
    rows = [
        [
            row["name"],
            f"{row['value']:,.4g}",
            row["unit"],
            row["against"],
            f"{row['their_value']:,.4g}",
            f"{row['ratio']:.2f}",
            str(row["wanted"]),
        ]
        for row in result["rows"]
    ]
    notes = [f"not measured: {name}: {why}" for name, why in result["failed"].items()]
    for name, points in result["curves"].items():
        notes.append(f"{name}: " + ", ".join(f"{one['at']}: {one['value']:,.4g} {one['unit']}" for one in points))
    return Table(
        heading=[f"on {result['device']}, torch {result['torch']}, {result['threads']} threads, default options"],
        columns=["what", "ours", "", "against", "theirs", "times", "wanted"],
        rows=rows,
        notes=notes,
        left=1,
    )


def plot_curves(result: dict[str, Any], path: Path) -> None:
    """Draw how cost grows: each curve in a panel of its own, on logarithmic axes. Needs matplotlib."""
    figures = import_module("matplotlib.figure")
    curves = {name: points for name, points in result["curves"].items() if points}
    figure = figures.Figure(figsize=(5 * max(1, len(curves)), 3.6), layout="constrained")
    for number, (name, points) in enumerate(curves.items(), start=1):
        panel = figure.add_subplot(1, len(curves), number)
        places = [one["at"] for one in points]
        panel.loglog(places, [one["value"] for one in points], "o-")
        panel.set_xticks(places, labels=[f"{at:,}" for at in places])
        panel.set_xticks([], minor=True)
        value, _, over = name.partition(" over ")
        panel.set_xlabel(over)
        panel.set_ylabel(value)
        panel.grid(alpha=0.3)
    figure.suptitle(f"{result['device']}, torch {result['torch']}", fontsize=9)
    figure.savefig(path)


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
