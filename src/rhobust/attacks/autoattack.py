"""AutoAttack (Croce and Hein, 2020), by the package pyautoattack."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rhobust.attacks.base import AttackMethod, Norm, pad_batch, unit
from rhobust.attacks.gradient import smoothed_logits
from rhobust.models.inference import frozen
from rhobust.noise import DrawnNoise, Noise, stream
from rhobust.settings import check_declared

_LOG = logging.getLogger(__name__)
# DLR's gradient is zero where an example is broken beyond doubt: what pyautoattack warns of is no news by itself.
_LOG.addHandler(logging.NullHandler())

Answer = Callable[[Tensor], Tensor]
"""From inputs `(n, ...)` to logits `(n, classes)`."""
JUDGING = 5
"""A point of the smoothed classifier is judged by this many times the draws of a gradient."""
TARGETS = 9
"""Classes that the targeted parts aim at, at most."""


@dataclass(frozen=True)
class AutoAttack(AttackMethod):
    """AutoAttack: of the points that its parts find, the one that the classifier gets most wrong.

    "rand" attacks the smoothed classifier by APGD on cross-entropy and on DLR. The draws of a step go through the
    network in one batch, so that it climbs -log of the mean softmax; pyautoattack's own way is to average the gradients
    of single draws, and to believe a single draw's answer. "standard" attacks the base network by APGD, targeted APGD,
    targeted FAB and Square, each on what the parts before it left standing. DLR needs three classes, its targeted form
    four, and Square images of 5x5 pixels: without them these parts are left out.

    Starts and noise come from the example's own stream. Square alone draws otherwise: the same for all examples and
    whatever the seed. So the result of an example does not depend on the others of its batch, but for the order in
    which floating point numbers are added.
    """

    version: Literal["rand", "standard"] = "rand"
    """rand: the smoothed classifier; standard: the base network without noise."""
    norm: Norm = "l2"
    """The ball: L2 or L-infinity."""
    steps: int = 100
    """Gradients taken by each part, and for each class where it is targeted."""
    draws: int = 20
    """rand: noise draws a gradient."""
    queries: int = 5000
    """standard: answers that Square asks for."""

    def __post_init__(self) -> None:
        check_declared(self)
        for name in ("steps", "draws", "queries"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")

    @property
    def attacks_smoothed(self) -> bool:
        return self.version == "rand"

    def perturb(self, model: nn.Module, x: Tensor, y: Tensor, *, eps: float, sigma: float | None, rng: Noise) -> Tensor:
        if eps == 0:
            return x
        # pyautoattack seeds torch's global generators, those of every GPU included.
        devices = range(torch.cuda.device_count())
        with frozen(model) as network, torch.random.fork_rng(devices=devices):
            if not self.attacks_smoothed:
                return self._standard(_padded(network, x), x, y, eps, rng)
            if sigma is None:
                raise ValueError("sigma must be given for AutoAttack's version rand, got None; standard needs none")
            return self._rand(network, x, y, eps, sigma, rng)

    def _rand(self, model: nn.Module, x: Tensor, y: Tensor, eps: float, sigma: float, rng: Noise) -> Tensor:
        judging = DrawnNoise(rng.normal(x, JUDGING * self.draws))

        def judge(points: Tensor) -> Tensor:
            return smoothed_logits(model, points, sigma=sigma, draws=JUDGING * self.draws, rng=judging)

        def answer(point: Tensor) -> Tensor:
            return smoothed_logits(model, point.to(x.dtype), sigma=sigma, draws=self.draws, rng=rng)

        worst = _Worst(x, y, judge)
        for loss in ("ce", "dlr")[: worst.classes - 1]:
            # Who is broken is a matter of the draws, so every part attacks everybody.
            for points in self._apgd(answer, x, y, eps, self._start(x, eps, rng), loss=loss):
                worst.offer(points)
        return worst.points

    def _standard(self, answer: Answer, x: Tensor, y: Tensor, eps: float, rng: Noise) -> Tensor:
        fab, square = _parts("fab_pt.FABAttack_PT", "square.SquareAttack")
        worst = _Worst(x, y, answer)
        for points in self._apgd(answer, x, y, eps, self._start(x, eps, rng), loss="ce"):
            worst.offer(points)
        for nearest in range(2, 2 + self._targets(worst.classes) if worst.classes > 3 else 2):
            left = worst.standing()
            if not len(left):
                return worst.points
            start = self._start(x, eps, rng)[left]
            target = answer(x[left]).sort(dim=1).indices[:, -nearest]
            for points in self._apgd(answer, x[left], y[left], eps, start, target=target):
                worst.offer(points, left)
        targets = self._targets(worst.classes)
        parts = [fab(answer, **self._common(x, eps), n_iter=self.steps, targeted=True, n_target_classes=targets)]
        if x.dim() == 4 and min(x.shape[2:]) >= 5:
            parts.append(square(answer, **self._common(x, eps), n_queries=self.queries, resc_schedule=False))
        for part in parts:
            left = worst.standing()
            if len(left):
                with _SameForAll(), torch.no_grad():
                    worst.offer(part.perturb(x[left].float(), y[left]), left)
        return worst.points

    def _apgd(
        self,
        answer: Answer,
        x: Tensor,
        y: Tensor,
        eps: float,
        start: Tensor,
        *,
        loss: str | None = None,
        target: Tensor | None = None,
    ) -> Sequence[Tensor]:
        """Where APGD's loss was largest, and the last point with a wrong answer (the start where there was none)."""
        plain, targeted = _parts("autopgd_base.APGDAttack", "autopgd_base.APGDAttack_targeted")
        options = {**self._common(x, eps), "n_iter": self.steps, "logger": _LOG}
        attack = plain(answer, **options, loss=loss) if target is None else targeted(answer, **options)
        attack.y_target = target
        attack.init_hyperparam(x)
        best, _, _, wrong = attack.attack_single_run(x.float(), y, x_init=start.float())
        return best, wrong

    def _start(self, x: Tensor, eps: float, rng: Noise) -> Tensor:
        """A random point on the ball's surface, by pyautoattack's law."""
        (direction,) = rng.normal(x, 1)
        if self.norm == "l2":
            return x + eps * unit(direction)
        uniform = (direction / 2**0.5).erf()
        return x + eps * uniform / uniform.flatten(1).abs().amax(1).view(-1, *[1] * (x.dim() - 1))

    def _common(self, x: Tensor, eps: float) -> dict[str, Any]:
        return {"norm": {"l2": "L2", "linf": "Linf"}[self.norm], "eps": eps, "seed": 0, "device": x.device}

    def _targets(self, classes: int) -> int:
        return min(TARGETS, classes - 1)


def _padded(model: nn.Module, x: Tensor) -> Answer:
    """The network's answers in padded batches, in the arithmetic of x."""
    return lambda point: model(pad_batch(point).to(x.dtype))[: len(point)]


class _Worst:
    """The point found so far that the classifier gets most wrong, for each example."""

    def __init__(self, x: Tensor, y: Tensor, judge: Answer) -> None:
        self.y, self.judge = y, judge
        self.points = x.clone()
        self.margin = x.new_full((len(x),), -torch.inf)
        self.classes = self.offer(x).shape[1]

    @torch.no_grad()
    def offer(self, points: Tensor, rows: Tensor | None = None) -> Tensor:
        """Take the points that are worse than those found before; returns the logits of all that were offered."""
        rows = torch.arange(len(self.y), device=self.y.device) if rows is None else rows
        points = points.to(self.points.dtype)
        logits = self.judge(points)
        label = self.y[rows, None]
        margin = logits.scatter(1, label, -torch.inf).amax(1) - logits.gather(1, label).squeeze(1)
        worse = margin > self.margin[rows]
        self.points[rows[worse]], self.margin[rows[worse]] = points[worse], margin[worse].to(self.margin.dtype)
        return logits

    def standing(self) -> Tensor:
        """The examples that every point found was answered rightly for."""
        return (self.margin < 0).nonzero().squeeze(1)


class _SameForAll(TorchFunctionMode):
    """Answers torch.rand by a stream of our own, with one draw for all rows of a batch of images."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = stream(0, "square")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.rand:
            return func(*args, **(kwargs or {}))
        (shape,) = args
        one = torch.rand([1, *shape[1:]] if len(shape) == 4 else shape, generator=self.generator)
        return one.expand(shape)


def _parts(*names: str) -> list[Any]:
    """Classes of pyautoattack, by module and name."""
    from importlib import import_module

    try:
        modules = [import_module(f"pyautoattack.{name.partition('.')[0]}") for name in names]
    except ImportError:
        raise ValueError(
            "attack:autoattack needs pyautoattack: python -m pip install '.[autoattack]' in the checkout"
        ) from None
    return [getattr(module, name.partition(".")[2]) for module, name in zip(modules, names, strict=True)]
