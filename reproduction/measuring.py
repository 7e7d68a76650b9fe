"""Measurements of the paper's claims on a trained network, as records: the eps of a gamma, the smoothed curvature."""

import math
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from rhobust.bounds import smoothness
from rhobust.data import Dataset, load, to_unit
from rhobust.evaluation import Target
from rhobust.evaluation.walk import walk
from rhobust.methods import NAL
from rhobust.models.inference import frozen
from rhobust.noise import ExampleNoise, normal_block, stream_key
from rhobust.progress import ProgressCallback
from rhobust.records import Record, RecordWriter, Row

ROWS = 1024
"""Noisy images of one pass where a measurement takes many draws an image."""
POWER_STEPS = 8
"""Steps of the power iteration that looks for the direction of largest curvature."""


def match_target(
    target: Target,
    method: NAL,
    *,
    images: int,
    root: Path | None,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Record:
    """How far the inner maximiser of a NAL method moves training images, squared, without noise in the distance.

    Args:
        target: The trained network.
        method: The inner maximisation: gamma, noise, steps and solver.
        images: Training images, spread evenly over the training set.
        root: Where the data sets lie.
        seed: Names the noise.
        progress: Progress callback; default: shown on stderr.
    """
    data = load(target.data.name, "train", root=root, progress=progress)
    indices = spread(data, images)
    settings: Row = {
        "gamma": method.gamma,
        "inner": method.inner,
        "steps": method.steps,
        "draws": method.draws,
        "images": images,
        "seed": seed,
        **replace(target, data=data, sigma=method.sigma).identity(),
    }

    def evaluate(block: list[int]) -> list[Row]:
        x, y = to_unit(data.images[block]).to(target.device), data.labels[block].to(target.device)
        with frozen(target.model) as frozen_model:
            worst = method.maximise(frozen_model, x, y, ExampleNoise(seed, "matching", block))
        moved = (worst - x).flatten(1).double().square().sum(1)
        return [{"index": index, "squared_distance": float(far)} for index, far in zip(block, moved, strict=True)]

    def summarise(rows: list[Row]) -> Row:
        return {"eps": math.sqrt(math.fsum(row["squared_distance"] for row in rows) / len(rows))}

    writer = RecordWriter(target.folder, "match", method.inner, settings)
    return walk(writer, indices, evaluate, summarise, task=f"match {target.name}", progress=progress)


def curvature_target(
    target: Target, *, images: int, draws: int, seed: int = 0, progress: ProgressCallback | None = None
) -> Record:
    """The curvature of the smoothed loss at test images, in the direction where most of it was found.

    The loss is 1 less the probability of the label, in [0, 1]. A direction is chosen on a quarter as many draws: the
    better of the mean gradient and what a power iteration on the sampled Hessian leads to. On fresh draws w along the
    unit direction v the curvature times sigma^2 is E[(l(x + sigma w) - c) ((v.w)^2 - 1)] for any constant c (Stein), so
    the row is an unbiased estimate of one second derivative, hence of something at most the operator norm.
    """
    sigma = target.smoothing()
    indices = spread(target.data, images)
    settings: Row = {"images": images, "draws": draws, "loss": "1 - p(label)", "seed": seed, **target.identity()}

    def evaluate(block: list[int]) -> list[Row]:
        with frozen(target.model) as frozen_model:
            return [_curvature(frozen_model, target, index, sigma, draws, seed) for index in block]

    def summarise(rows: list[Row]) -> Row:
        largest = max(rows, key=lambda row: abs(row["curvature"]))
        return {"largest": abs(largest["curvature"]), "sharp": float(smoothness(1.0, 1.0))}

    writer = RecordWriter(target.folder, "curvature", "", settings)
    return walk(writer, indices, evaluate, summarise, task=f"curvature {target.name}", progress=progress)


def spread(data: Dataset, images: int) -> range:
    """So many images, evenly over a data set."""
    return data.places(images, max(1, len(data) // images))


def _curvature(model: nn.Module, target: Target, index: int, sigma: float, draws: int, seed: int) -> Row:
    """The row of one image; curvature and its standard error in units of 1 / sigma^2."""
    x = to_unit(target.data.images[index : index + 1]).to(target.device)
    label = int(target.data.labels[index])

    def noise(purpose: str, count: int) -> Tensor:
        key = stream_key(seed, f"curvature:{purpose}", index)
        return normal_block(key, (count, *x.shape[1:]), target.device)

    chosen = noise("choose", max(1, draws // 4))
    losses, gradients = _losses(model, x, label, sigma, chosen, with_gradient=True)
    direction = _direction(chosen.flatten(1), gradients.flatten(1))
    fresh = noise("measure", draws)
    values, _ = _losses(model, x, label, sigma, fresh, with_gradient=False)
    along = fresh.flatten(1).double() @ direction.double()
    terms = (values - losses.mean()) * (along.square() - 1)
    return {
        "index": index,
        "label": label,
        "loss": float(values.mean()),
        "curvature": float(terms.mean()),
        "standard_error": float(terms.std() / math.sqrt(draws)),
    }


def _losses(
    model: nn.Module, x: Tensor, label: int, sigma: float, noise: Tensor, *, with_gradient: bool
) -> tuple[Tensor, Tensor]:
    """1 less the probability of the label at each noisy copy, in float64; its gradients where asked for."""
    values, gradients = [], []
    for part in noise.split(ROWS):
        noisy = x + sigma * part
        with torch.set_grad_enabled(with_gradient):
            noisy.requires_grad_(with_gradient)
            loss = 1 - model(noisy).softmax(1)[:, label]
        if with_gradient:
            gradients.append(torch.autograd.grad(loss.sum(), noisy)[0])
        values.append(loss.detach().double())
    return torch.cat(values), torch.cat(gradients) if gradients else noise.new_zeros(0)


def _direction(w: Tensor, gradients: Tensor) -> Tensor:
    """The unit direction in which the sampled Hessian, mean of w g^T made symmetric, bends most."""

    def bent(v: Tensor) -> Tensor:
        return (w.T @ (gradients @ v) + gradients.T @ (w @ v)) / (2 * len(w))

    candidates = [_unit(gradients.mean(0))]
    v = candidates[0]
    for _ in range(POWER_STEPS):
        v = _unit(bent(v))
    candidates.append(v)
    return max(candidates, key=lambda v: abs(float(v @ bent(v))))


def _unit(v: Tensor) -> Tensor:
    norm = v.norm()
    # A network that is certain everywhere has no gradient: any direction is as good as another.
    return v / norm if norm > 0 else torch.eye(1, len(v), device=v.device)[0]
