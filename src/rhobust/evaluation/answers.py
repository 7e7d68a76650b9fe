"""Whether a folder's records are of the network at hand: the logits of the user's own network at fixed images."""

import math
from pathlib import Path

import torch
from torch import nn

from rhobust.files import read_json, write_json
from rhobust.models.inference import frozen

ANSWERS = "answers.json"
"""File that ties a folder to one network of the user's own: its logits at fixed images."""
TOLERANCE = 0.01
"""Largest difference of logits, relative to the largest one, that devices and versions of torch explain."""


def check_answers(
    folder: Path, model: nn.Module, shape: tuple[int, ...], device: torch.device, *, name: str, model_hash: str
) -> None:
    """Refuse a folder whose records are of a network that answers otherwise than this one.

    A record is found by its settings and by the fingerprint of the weights. A change of the user's code leaves both
    unchanged, and would be answered with the certificate of another network. So the folder keeps the logits of the
    user's own network at fixed images.

    Args:
        folder: Folder of the records.
        model: The network.
        shape: Shape of its images.
        device: Where it is.
        name: How messages call it.
        model_hash: Fingerprint of its weights.
    """
    path, key = folder / ANSWERS, "x".join(map(str, shape))
    known = read_json(path) if path.exists() else {"model_hash": model_hash, "logits": {}}
    here, there = _fixed_logits(model, shape, device), known["logits"].get(key)
    changed = here is not None and there is not None and _differ(here, there)
    if known["model_hash"] != model_hash or changed:
        raise ValueError(
            f"{folder} must hold records of one network, but {name} answers otherwise than the one that"
            f" they are about: its code or its weights were changed; choose another folder, or remove the records"
            f" and {ANSWERS}"
        )
    if key not in known["logits"]:
        known["logits"][key] = here
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, known)


def _fixed_logits(model: nn.Module, shape: tuple[int, ...], device: torch.device) -> list[list[float]] | None:
    """Logits at images that never change; None where they are not finite, or change from call to call.

    Noise leaves [0, 1], so what a network does to such inputs, for example a clamp, must show: two of the images
    are inside, two go beyond on either side.
    """
    ramp = torch.linspace(0, 1, math.prod(shape))
    inside = torch.stack([ramp, ramp * 7 % 1])
    images = torch.cat([inside, 3 * inside - 1]).view(4, *shape).to(device)
    with torch.no_grad(), frozen(model) as network:
        once, again = (network(images).double().cpu() for _ in range(2))
    return once.tolist() if once.isfinite().all() and torch.equal(once, again) else None


def _differ(here: list[list[float]], there: list[list[float]]) -> bool:
    ours, theirs = torch.tensor(here), torch.tensor(there)
    return ours.shape != theirs.shape or bool((ours - theirs).abs().max() > TOLERANCE * theirs.abs().max())
