"""Where the runs and records of a reproduction lie, and how a job's record is found there."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rhobust.evaluation import Target, target_from_run
from rhobust.progress import ProgressCallback
from rhobust.records import COMPRESSED, Record, Row, read_head, read_json, read_record, record_paths
from rhobust.training import TrainConfig
from rhobust.training.run import FINGERPRINT, METRICS, WEIGHTS, Run, file_hash

TAIL = 65_536
"""Bytes at the end of a record in which its last line is looked for."""


@dataclass
class Workshop:
    """A folder of runs, the device to work on, and the network last looked at."""

    out: Path
    device: torch.device
    root: Path | None = None
    progress: ProgressCallback | None = None
    _target: tuple[tuple[str, float | None], Target] | None = None
    _hashes: dict[str, str | None] = field(default_factory=dict)

    @property
    def fast(self) -> bool:
        """Whether networks are evaluated in bf16, which pays on a GPU."""
        return self.device.type == "cuda"

    def folder(self, run: TrainConfig) -> Path:
        """The run folder of a config; packed records may be of a second training, whose name ends with a letter."""
        folder = self.out / "runs" / run.run_id
        return folder if folder.exists() else min(folder.parent.glob(f"{run.run_id}-[b-z]"), default=folder)

    def trained(self, run: TrainConfig) -> bool:
        """Whether a run is finished, though its weights may lie elsewhere."""
        return any((self.folder(run) / name).exists() for name in (WEIGHTS, FINGERPRINT))

    def given_away(self, run: TrainConfig) -> bool:
        """Whether a run is finished and its weights lie elsewhere."""
        return self.trained(run) and not (self.folder(run) / WEIGHTS).exists()

    def epochs_done(self, run: TrainConfig) -> int:
        """Epochs of a run that are on the disk."""
        try:
            return len(Run(self.folder(run), run).metrics())
        except ValueError:
            return 0

    def target(self, run: TrainConfig, sigma: float | None = None) -> Target:
        """A trained network with its test data; the last one is kept, since jobs come run by run."""
        name = (run.run_id, sigma)
        if self._target is None or self._target[0] != name:
            target = target_from_run(
                self.folder(run), device=self.device, sigma=sigma, root=self.root, progress=self.progress
            )
            self._target = (name, target)
        return self._target[1]

    def find(self, run: TrainConfig, kind: str, choices: Sequence[Row]) -> Path | None:
        """The record of a run whose header names the weights that lie there now, and has the settings of one choice.

        Of several a finished one.
        """
        wanted = json.loads(json.dumps([{**choice, "model_hash": self.model_hash(run)} for choice in choices]))
        heads = {path: read_head(path) for path in record_paths(self.folder(run), kind)}
        found = [
            path
            for path, head in heads.items()
            if head.get("kind") == kind
            and isinstance(own := head.get("settings"), dict)
            and any(_holds(own, choice) for choice in wanted)
        ]
        # One that another device left unfinished does not stand before a finished one.
        return next(filter(finished, found), found[0] if found else None)

    def model_hash(self, run: TrainConfig) -> str | None:
        """The hash of a run's weights; None where it is not trained."""
        if not self.trained(run):
            return None
        if run.run_id not in self._hashes:
            path = self.folder(run) / WEIGHTS
            self._hashes[run.run_id] = (
                file_hash(path) if path.exists() else read_json(path.with_name(FINGERPRINT))["model_hash"]
            )
        return self._hashes[run.run_id]

    def training_record(self, run: TrainConfig) -> Record:
        """The epochs of a run, as a record."""
        return Record(self.folder(run) / METRICS, "training", {}, Run(self.folder(run), run).metrics(), {})


def finished(path: Path) -> bool:
    """Whether a record has its end line, told from its last bytes; only finished ones are compressed."""
    if path.name.endswith(COMPRESSED):
        return True
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - TAIL))
        lines = file.read().split(b"\n")
    last = _parsed(lines[-2]) if len(lines) > 1 else None
    return isinstance(last, dict) and "summary" in last


def read_finished(path: Path) -> Record:
    """A record as it was finished, or one line that says what is wrong with it."""
    record = read_record(path)
    if record.summary is None:
        raise ValueError(f"{path} must be finished to be shown, but it holds {len(record.rows)} rows and no summary")
    if not record.intact:
        raise ValueError(f"{path} must be as it was written, but it was changed: delete it to evaluate it again")
    return record


def _holds(header: Row, wanted: Row) -> bool:
    """Whether a header has all that is wanted, inside its own parts too."""
    for key, value in wanted.items():
        own = header.get(key)
        if isinstance(value, dict) and isinstance(own, dict):
            if not _holds(own, value):
                return False
        elif own != value:
            return False
    return True


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None
