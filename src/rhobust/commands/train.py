"""rhobust train."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.commands.options import Writing, WritingOptions
from rhobust.files import check_folder
from rhobust.training import TrainConfig, resolve_device, train


@dataclass(frozen=True)
class Train:
    """Train a classifier into a run folder."""

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    out: Path | None = None
    """The run folder; default: runs/ and the id of the run."""
    root: Path | None = None
    """Folder of the data sets; default: $RHOBUST_DATA, else a cache folder."""
    resume: bool = False
    """Continue an unfinished run in the folder."""
    log: str | None = None
    """Also hand each epoch's numbers to tensorboard:FOLDER, trackio:PROJECT, wandb:PROJECT or mlflow:EXPERIMENT."""
    common: WritingOptions = Writing()

    def run(self) -> dict[str, Any]:
        out = Path("runs") / self.config.run_id if self.out is None else self.out
        check_folder("out", out)
        run = train(
            self.config,
            out,
            device=resolve_device(self.common.device),
            root=self.root,
            resume=self.resume,
            progress=self.common.progress,
            wait=self.common.wait,
            log=self.log,
        )
        return {"run": str(run.folder), "id": run.config.run_id, "model_hash": run.model_hash, "metrics": run.metrics()}

    def show(self, result: dict[str, Any]) -> None:
        last = result["metrics"][-1]
        noisy = f", under noise {last['accuracy_under_noise']:.3f}" if "accuracy_under_noise" in last else ""
        accuracy = f"accuracy {last['accuracy']:.3f}{noisy}"
        print(f"{result['run']}  epoch {last['epoch']}  loss {last['loss']:.4f}  {accuracy}")


COMMAND = Train
