"""The state of a run after a whole epoch: what a kill cannot take."""

import io
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rhobust.records import write_whole
from rhobust.training.run import METRICS, RESUME, Run


def save_checkpoint(
    run: Run,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: dict[str, Tensor],
    kept: dict[str, Tensor],
    metrics: list[dict[str, Any]],
) -> None:
    """Write the state, whole."""
    buffer = io.BytesIO()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "metrics": metrics}
    torch.save({**state, "average": average, "kept": kept}, buffer)
    write_whole(run.folder / RESUME, buffer.getvalue())


def save_metrics(run: Run, metrics: list[dict[str, Any]]) -> None:
    """Write the metrics of all epochs so far, whole."""
    write_whole(run.folder / METRICS, "".join(json.dumps(row) + "\n" for row in metrics))


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any] | None:
    """The state after the last whole epoch, or None; nothing in the file is executed."""
    if not path.exists():
        return None
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise ValueError(f"{path} must be a checkpoint of this run, but {str(error).splitlines()[0]}") from None
