"""Publish a trained network with its weights: rounded to bf16, which halves the file."""

import hashlib
import shutil
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save

from rhobust.files import read_json, write_json, write_whole
from rhobust.records import PLAIN, compress, is_finished, record_paths
from rhobust.training import ENVIRONMENT, FINGERPRINT, WEIGHTS, open_run

COPIED = ("config.json", ENVIRONMENT, "metrics.jsonl", "training-images.bin")


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
