"""What ties the records of a folder to one network of the user's own, whose code is not in its weights."""

import math
from typing import TYPE_CHECKING

import torch

from rhobust.models.inference import frozen
from rhobust.records import read_json, write_json

if TYPE_CHECKING:
    from rhobust.evaluation.target import Target

ANSWERS = "answers.json"
TOLERANCE = 0.01
"""How far logits may lie apart, as a share of the largest: devices and versions of torch differ by less."""


def check_answers(target: "Target") -> None:
    """Note in a folder how its network answers to fixed images; refuse a network that answers otherwise.

    A record is found again by its settings and by the hash of the weights. A change of the user's code leaves both as
    they are, and would be answered with the certificate of another network.
    """
    if target.factory is None:
        return
    path, shape = target.folder / ANSWERS, "x".join(map(str, target.data.shape))
    known = read_json(path) if path.exists() else {"model_hash": target.model_hash, "logits": {}}
    here = _logits(target)
    there = known["logits"].get(shape)
    if known["model_hash"] != target.model_hash or (here is not None and there is not None and _differ(here, there)):
        raise ValueError(
            f"{target.folder} must hold records of one network, but {target.name} answers otherwise than the one that"
            f" they are about: its code or its weights were changed; choose another folder, or remove the records and"
            f" {ANSWERS}"
        )
    if shape not in known["logits"]:
        known["logits"][shape] = here
        write_json(path, known)


def _logits(target: "Target") -> list[list[float]] | None:
    """The network's answers to images that never change; None where they are no numbers, or are drawn anew.

    Noise leads out of [0, 1], so what a network does to such inputs, a clamp for example, must show: two of the images
    lie within, two go beyond on either side.
    """
    ramp = torch.linspace(0, 1, math.prod(target.data.shape))
    within = torch.stack([ramp, ramp * 7 % 1])
    images = torch.cat([within, 3 * within - 1]).view(4, *target.data.shape).to(target.device)
    with torch.no_grad(), frozen(target.model) as frozen_model:
        once, again = (frozen_model(images).double().cpu() for _ in range(2))
    return once.tolist() if once.isfinite().all() and torch.equal(once, again) else None


def _differ(here: list[list[float]], there: list[list[float]]) -> bool:
    ours, theirs = torch.tensor(here), torch.tensor(there)
    return ours.shape != theirs.shape or bool((ours - theirs).abs().max() > TOLERANCE * theirs.abs().max())
