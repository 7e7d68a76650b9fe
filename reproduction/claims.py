"""The paper's claims, checked with numbers: evaluations, and tables for Lemma 1, Theorem 2 and Corollary 1."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from reproduction.experiments import (
    attacked_otherwise,
    both_solvers,
    eot_attack,
    paper_attack,
    run_of,
    shift_certificate,
)
from reproduction.scales import Scale
from reproduction.settings import CIFAR_R, GAMMA, MNIST, SIGMA, SMOOTHED, Setup
from reproduction.specs import Cell, Job, Line, Metric, Table, scale_notes
from rhobust.bounds import smoothness
from rhobust.data import to_unit
from rhobust.evaluation import Evaluation, Target
from rhobust.measurements import READERS, Measurement
from rhobust.methods import NAL
from rhobust.models import frozen
from rhobust.noise import ExampleNoise, normal_block, stream_key
from rhobust.progress import ProgressCallback
from rhobust.records import Record, Row
from rhobust.stats import mean
from rhobust.training import TrainConfig

LEMMA1_SMOOTHNESS = 2.0
"""Lemma 1's constant, in units of M / sigma^2."""
CLAIM_SETUPS = (MNIST, CIFAR_R)
"""Where the claims are measured."""
ROWS = 1024
"""Noisy images per forward pass of a measurement with many noise samples per image."""
POWER_STEPS = 8
"""Steps of the power iteration that searches for the direction of largest curvature."""


@dataclass(frozen=True, kw_only=True)
class MatchEps(Evaluation):
    """Squared distance that NAL's inner maximiser moves images, without noise in the distance: the eps of a gamma."""

    kind: ClassVar[str] = "match"

    gamma: float
    """Penalty."""
    inner: Literal["paper", "damped"]
    """Inner solver."""
    steps: int
    """Gradient steps."""
    draws: int
    """Noise samples per gradient."""

    @property
    def label(self) -> str:
        return self.inner

    def rows(self, target: Target, examples: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
        indices = list(examples)
        method = NAL(
            sigma=target.smoothing_sigma(), gamma=self.gamma, steps=self.steps, draws=self.draws, inner=self.inner
        )
        x, y = (part[indices].to(target.device) for part in (target.data.images, target.data.labels))
        x = to_unit(x)
        with frozen(target.model) as model:
            worst = method.maximise(model, x, y, ExampleNoise(self.seed, "matching", indices))
        squares = (worst - x).flatten(1).double().square().sum(1)
        for index, square in zip(indices, squares, strict=True):
            yield {"index": index, "squared_distance": float(square)}

    def summarise(self, target: Target, rows: list[Row]) -> Row:
        return {"eps": math.sqrt(math.fsum(row["squared_distance"] for row in rows) / len(rows))}


@dataclass(frozen=True, kw_only=True)
class Curvature(Evaluation):
    """Curvature of the smoothed loss at test images, in the direction where most of it was found.

    The loss is 1 - p(label), in [0, 1]. The direction is chosen on a quarter of the noise samples: the better of the
    mean gradient and the result of a power iteration on the sampled Hessian. On fresh samples w along the unit
    direction v the curvature times sigma^2 is E[(l(x + sigma w) - c) ((v.w)^2 - 1)] for any constant c (Stein), so the
    row is an unbiased estimate of one second derivative, which is at most the operator norm.
    """

    kind: ClassVar[str] = "curvature"

    draws: int
    """Noise samples per image."""

    def rows(self, target: Target, examples: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
        sigma = target.smoothing_sigma()
        with frozen(target.model) as model:
            for index in examples:
                yield _curvature(model, target, index, sigma, self.draws, self.seed)

    def summarise(self, target: Target, rows: list[Row]) -> Row:
        largest = max(rows, key=lambda row: abs(row["curvature"]))
        return {"largest": abs(largest["curvature"]), "sharp": float(smoothness(1.0, 1.0))}


@dataclass(frozen=True, kw_only=True)
class Counterexample(Evaluation):
    """Both sides of Theorem 2 for the constant loss 1, P0 two atoms at +-sigma sqrt(2 / pi) and P the atom at 0.

    P with noise is N(0, sigma^2). Each half of it goes to the atom on its side: that costs sigma^2 (1 - 2 / pi) and is
    optimal on the line. The surrogate of the paper is 1 - gamma sigma^2.
    """

    kind: ClassVar[str] = "counterexample"

    sigma: float
    """Noise."""
    gammas: tuple[float, ...]
    """Penalties."""

    @property
    def rho(self) -> float:
        """The squared distance between P with noise and P0."""
        return self.sigma**2 * (1 - 2 / math.pi)

    def examples(self, target: Any) -> Sequence[int]:
        return range(len(self.gammas))

    def rows(self, target: Any, examples: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
        for index in examples:
            gamma = self.gammas[index]
            claimed = gamma * self.rho + 1 - gamma * self.sigma**2
            yield {"index": index, "gamma": gamma, "claimed": claimed, "loss": 1.0}

    def summarise(self, target: Any, rows: list[Row]) -> Row:
        return {"rho": self.rho, "refuted": sum(row["claimed"] < row["loss"] for row in rows)}


def lemma1(scale: Scale) -> Table:
    """Lemma 1: the curvature of the smoothed loss on the trained networks, in units of M / sigma^2."""
    lines = []
    for setup, row, run, sigma in _smoothed(scale):
        job = Job(run, Curvature(draws=scale.curvature_draws, limit=scale.measured, stride=None), sigma)
        ours = (Metric(job, "largest curvature"), Metric(job, "curvature bound"))
        lines.append(Line((setup.name, row), (Cell("largest curvature", LEMMA1_SMOOTHNESS, ours),)))
    notes = (
        "The reported number is the constant 2 of the lemma; all numbers are in units of M / sigma^2. The loss is "
        "1 - p(label), so M is 1.",
        "Found by power iteration on some noise samples and measured on others: an estimate at these images, with its "
        "standard error. The sharp bound holds for every network.",
    )
    sources = ("largest found", "sharp bound")
    return _claim_table("lemma1", "curvature of the smoothed loss", ("setting", "method"), sources, lines, notes, scale)


def theorem2(scale: Scale) -> Table:
    """Theorem 2 as stated: a bound below the true loss, on the line and on the trained networks."""
    example = Counterexample(sigma=SIGMA, gammas=(5.0, 25.0, 1000.0))
    lines = [
        Line(("two atoms", "constant loss", f"{gamma:g}"), (_claim(Job(None, example), gamma),))
        for gamma in example.gammas
    ]
    lines += [
        Line((setup.name, row, f"{gamma:g}"), (_claim(shift_certificate(scale, run), gamma),))
        for setup, row, run, _ in _smoothed(scale)
        for gamma in (GAMMA, 5.0)
    ]
    notes = (
        "On the networks P0 is the law of the test images with noise, and P that of the images themselves: then P "
        "with noise is P0 and every rho >= 0 admits it. With a loss in [0, 1] the bound that the theorem claims at "
        "rho = 0 is at most 1 - gamma d sigma^2; the true loss is the error under noise.",
        "Where the claimed bound is below the true loss, the theorem fails. It holds for distances between clean "
        "distributions.",
    )
    keys, sources = ("setting", "method", "gamma"), ("claimed bound", "true loss")
    return _claim_table("theorem2", "Theorem 2 as stated", keys, sources, lines, notes, scale)


def corollary(scale: Scale) -> Table:
    """Corollary 1 at equal clean budget: the worst error of the smoothed classifier against the network's own."""
    lines = []
    for setup, row, run, sigma in _smoothed(scale):
        budgets = (0.0, sigma, 2 * sigma)
        certificate = shift_certificate(scale, run)
        smoothed = attacked_otherwise(eot_attack(scale, run, setup, sigma), radii=budgets)
        base = attacked_otherwise(paper_attack(scale, run, setup, None), radii=budgets)
        cells = tuple(
            Cell(
                title,
                None,
                (
                    Metric(certificate, "certified error under shift", eps),
                    Metric(smoothed, "error under attack", eps),
                    Metric(base, "error under attack", eps),
                ),
            )
            for title, eps in zip(("eps 0", "eps sigma", "eps 2 sigma"), budgets, strict=True)
        )
        lines.append(Line((setup.name, row), cells))
    notes = (
        "The corollary gives the smoothed classifier and the network one rho, noise included in the distance: the "
        "smoothed side has d sigma^2 less to spend. Here both have the same eps for clean inputs.",
        "An attack perturbs every input by at most eps, so its perturbed images are a distribution within W2 distance "
        "eps: its error is a lower bound on the worst error on these images. The certified error is an upper bound for "
        "one noisy prediction.",
        "The corollary's conclusion is proved for a network at an eps where the certified error of the smoothed "
        "classifier is at most the network's error under attack; at eps 0 it is refuted where the smoothed error "
        "exceeds the network's.",
    )
    sources = ("smoothed, certified upper bound", "smoothed, under EOT", "base network, under PGD-20")
    return _claim_table(
        "corollary", "worst error at equal clean budget", ("setting", "method"), sources, lines, notes, scale
    )


def _claim(job: Job, gamma: float) -> Cell:
    return Cell("loss", None, (Metric(job, "claimed bound", gamma), Metric(job, "true loss", gamma)))


def _smoothed(scale: Scale) -> list[tuple[Setup, str, TrainConfig, float]]:
    """The runs trained with noise on which the claims are measured."""
    return [
        (setup, row, run_of(scale, surrogate, row), setup.sigma)
        for setup in CLAIM_SETUPS
        if (surrogate := scale.surrogate(setup))
        for row in both_solvers(SMOOTHED)
    ]


def _claim_table(
    name: str,
    title: str,
    keys: tuple[str, ...],
    sources: tuple[str, ...],
    lines: list[Line],
    notes: tuple[str, ...],
    scale: Scale,
) -> Table:
    return Table(name, title, keys, sources, tuple(lines), (*notes, *scale_notes(scale, CLAIM_SETUPS)))


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
    """1 - p(label) at each noisy copy, in float64, and its gradients if asked for."""
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
    """The unit direction in which the sampled Hessian, mean of w g^T made symmetric, has the largest curvature."""

    def hessian(v: Tensor) -> Tensor:
        return (w.T @ (gradients @ v) + gradients.T @ (w @ v)) / (2 * len(w))

    candidates = [_unit(gradients.mean(0))]
    v = candidates[0]
    for _ in range(POWER_STEPS):
        v = _unit(hessian(v))
    candidates.append(v)
    return max(candidates, key=lambda v: abs(float(v @ hessian(v))))


def _unit(v: Tensor) -> Tensor:
    norm = v.norm()
    # A saturated network has no gradient: any direction will do.
    return v / norm if norm > 0 else torch.eye(1, len(v), device=v.device)[0]


def _read_match(record: Record, _: Sequence[float] | None) -> Iterator[Measurement]:
    squares = mean([row["squared_distance"] for row in record.rows])
    low, value, high = (math.sqrt(max(0.0, one)) for one in (squares.low, squares.value, squares.high))
    _check(record, "eps", value)
    yield Measurement("matched eps", None, value, low, high, squares.n, "estimate")


def _read_curvature(record: Record, _: Sequence[float] | None) -> Iterator[Measurement]:
    largest = max(record.rows, key=lambda row: abs(row["curvature"]))
    value, margin = abs(largest["curvature"]), 1.96 * largest["standard_error"]
    _check(record, "largest", value)
    n = len(record.rows)
    yield Measurement("largest curvature", None, value, value - margin, value + margin, n, "estimate")
    yield Measurement("curvature bound", None, (record.summary or {})["sharp"], None, None, n, "proved")


def _read_counterexample(record: Record, _: Sequence[float] | None) -> Iterator[Measurement]:
    for row in record.rows:
        yield Measurement("claimed bound", row["gamma"], row["claimed"], None, None, 1, "proved")


def _check(record: Record, key: str, found: float) -> None:
    """Refuse a record whose summary has another number than its rows give."""
    said = (record.summary or {})[key]
    if abs(said - found) > 1e-9:
        raise ValueError(
            f"{record.path} must have the summary that its rows give, but its {key} is {said}, and by the rows {found}"
        )


READERS["match"] = _read_match
READERS["curvature"] = _read_curvature
READERS["counterexample"] = _read_counterexample
