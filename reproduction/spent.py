"""What a training or an evaluation took, from its record alone."""

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from reproduction.specs import Reading
from rhobust.records import Record, read_json
from rhobust.training.run import CONFIG, ENVIRONMENT


@dataclass(frozen=True)
class Cost:
    """One training or evaluation."""

    run: str
    """The name of the run's folder."""
    work: str
    """What was done: "training", or the kind of the evaluation."""
    seconds: float | None
    """None where an interruption hides them."""
    rate: float | None
    """Of a training the median of its images a second after the first epoch, which compiles."""
    draws: float | None
    """Of a certificate the mean draws an image."""
    setting: dict[str, Any] | None
    """Of a training the device, torch, the epochs, the seed and the command."""


def cost(_: Reading, record: Record) -> Cost:
    """What the work behind a record took."""
    run = record.path.parent
    if record.kind == "training":
        return _training(run, record)
    summary = record.summary or {}
    return Cost(run.name, _work(record), summary["seconds"], None, summary.get("mean_draws"), None)


def _training(run: Path, record: Record) -> Cost:
    environment, config = read_json(run / ENVIRONMENT), read_json(run / CONFIG)
    rates = [row["images_per_second"] for row in record.rows]
    setting = {
        "device": environment["device_name"],
        "torch": environment["torch"],
        "epochs": config["epochs"],
        "seed": config["seed"],
        "command": environment["command"],
    }
    seconds = math.fsum(row["seconds"] for row in record.rows)
    return Cost(run.name, "training", seconds, median(rates[1:] or rates), None, setting)


def _work(record: Record) -> str:
    match record.kind:
        case "attack":
            return f"attack {record.settings['attack']['kind']}"
        case "certify":
            return f"certify {record.settings['way']}"
    return record.kind
