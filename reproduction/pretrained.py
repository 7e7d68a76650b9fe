"""Publish a trained network with its weights: rounded to bf16, which halves the file."""

import hashlib
import shutil
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file, save

from rhobust.files import read_json, write_json, write_whole
from rhobust.training import ENVIRONMENT, FINGERPRINT, WEIGHTS, open_run

COPIED = ("config.json", ENVIRONMENT, "metrics.jsonl", "training-images.bin")


def publish(run: Path, folder: Path) -> str:
    """Copy a finished run without its records, with weights rounded to bf16, and return their SHA-256.

    Matrices and convolutions are rounded; vectors (biases, batch norm) stay in float32. The rounded network is another
    one than that of the run: its records are made in the new folder.
    """
    if not open_run(run).finished:
        raise ValueError(f"{run} must be finished to be published")
    if folder.exists():
        raise ValueError(f"{folder} must not exist yet, but it does")
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
    write_whole(folder / WEIGHTS, content)
    write_json(folder / FINGERPRINT, {**read_json(run / FINGERPRINT), "model_hash": digest[:16]})
    return digest
