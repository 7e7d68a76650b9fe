"""AutoAttack (Croce and Hein, 2020), with the components of the package pyautoattack."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rhobust.attacks.base import AttackMethod, Norm, normalise, pad_batch
from rhobust.attacks.gradient import margin, smoothed_logits
from rhobust.models.inference import frozen
from rhobust.noise import DrawnNoise, Noise, stream
from rhobust.settings import check_at_least, check_declared

_LOG = logging.getLogger(__name__)
# DLR has a zero gradient at examples that are misclassified by far: pyautoattack's warning about it is not useful.
_LOG.addHandler(logging.NullHandler())

LogitsFunction = Callable[[Tensor], Tensor]
"""From inputs `(n, ...)` to logits `(n, classes)`."""
SELECTION = 5
"""Points are compared with this many times the noise samples of a gradient."""
TARGETS = 9
"""Largest number of target classes."""


@dataclass(frozen=True)
class AutoAttack(AttackMethod):
    """AutoAttack: of the points found by its components, the one with the largest margin of another class.

    "rand" attacks the smoothed classifier by APGD on cross-entropy and on DLR. The noise samples of a step form one
    batch, so that -log of the mean softmax is maximised; pyautoattack itself averages the gradients of single samples
    and classifies with a single sample. "standard" attacks the base network by APGD, targeted APGD, targeted FAB and
    Square, each on the examples that are still robust. DLR needs three classes, its targeted form four, and Square
    images of 5x5 pixels, in L2 of a size that its first tiles fit in (32x32 and 224x224 are, 24x24 and 24x32 are not);
    otherwise these components are skipped.

    Starts and noise come from the example's named stream. Square's random numbers are the same for all examples and
    seeds. So an example's result does not depend on the rest of its batch, up to the order of floating-point sums.
    """

    version: Literal["rand", "standard"] = "rand"
    """rand: attack the smoothed classifier; standard: the base network without noise."""
    norm: Norm = "l2"
    """Norm of the ball: L2 or L-infinity."""
    steps: int = 100
    """Gradients per component, and per target class if targeted."""
    draws: int = 20
    """rand: noise samples per gradient."""
    queries: int = 5000
    """standard: queries of Square."""

    def __post_init__(self) -> None:
        check_declared(self)
        check_at_least(1, self, "steps", "draws", "queries")

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
                return self._standard(_in_padded_batches(network, x), x, y, eps, rng)
            if sigma is None:
                raise ValueError("sigma must be given for AutoAttack's version rand, got None; standard needs none")
            return self._rand(network, x, y, eps, sigma, rng)

    def _rand(self, model: nn.Module, x: Tensor, y: Tensor, eps: float, sigma: float, rng: Noise) -> Tensor:
        selection = DrawnNoise(rng.normal(x, SELECTION * self.draws))

        def selection_logits(points: Tensor) -> Tensor:
            return smoothed_logits(model, points, sigma=sigma, draws=SELECTION * self.draws, rng=selection)

        def logits(point: Tensor) -> Tensor:
            return smoothed_logits(model, point.to(x.dtype), sigma=sigma, draws=self.draws, rng=rng)

        worst = _Worst(x, y, selection_logits)
        for loss in ("ce", "dlr")[: worst.classes - 1]:
            # Misclassification depends on the noise samples, so every component attacks every example.
            for points in self._apgd(logits, x, y, eps, self._start(x, eps, rng), loss=loss):
                worst.update(points)
        return worst.points

    def _standard(self, logits: LogitsFunction, x: Tensor, y: Tensor, eps: float, rng: Noise) -> Tensor:
        fab, square = _components("fab_pt.FABAttack_PT", "square.SquareAttack")
        worst = _Worst(x, y, logits)
        for points in self._apgd(logits, x, y, eps, self._start(x, eps, rng), loss="ce"):
            worst.update(points)
        for nearest in range(2, 2 + self._targets(worst.classes) if worst.classes > 3 else 2):
            left = worst.robust()
            if not len(left):
                return worst.points
            start = self._start(x, eps, rng)[left]
            target = logits(x[left]).sort(dim=1).indices[:, -nearest]
            for points in self._apgd(logits, x[left], y[left], eps, start, target=target):
                worst.update(points, left)
        targets = self._targets(worst.classes)
        components = [fab(logits, **self._common(x, eps), n_iter=self.steps, targeted=True, n_target_classes=targets)]
        if x.dim() == 4 and _takes_square(*x.shape[2:], norm=self.norm):
            options = {**self._common(x, eps), "n_queries": self.queries, "resc_schedule": False}
            components.append(_with_shared_random(square)(logits, **options))
        for component in components:
            left = worst.robust()
            if len(left):
                with torch.no_grad():
                    worst.update(component.perturb(x[left].float(), y[left]), left)
        return worst.points

    def _apgd(
        self,
        logits: LogitsFunction,
        x: Tensor,
        y: Tensor,
        eps: float,
        start: Tensor,
        *,
        loss: str | None = None,
        target: Tensor | None = None,
    ) -> Sequence[Tensor]:
        """The point of APGD's largest loss, and the last misclassified point (the start if there was none)."""
        plain, targeted = _components("autopgd_base.APGDAttack", "autopgd_base.APGDAttack_targeted")
        options = {**self._common(x, eps), "n_iter": self.steps, "logger": _LOG}
        attack = plain(logits, **options, loss=loss) if target is None else targeted(logits, **options)
        attack.y_target = target
        attack.init_hyperparam(x)
        best, _, _, wrong = attack.attack_single_run(x.float(), y, x_init=start.float())
        return best, wrong

    def _start(self, x: Tensor, eps: float, rng: Noise) -> Tensor:
        """A random point on the ball's surface, with pyautoattack's distribution."""
        (direction,) = rng.normal(x, 1)
        if self.norm == "l2":
            return x + eps * normalise(direction)
        uniform = (direction / 2**0.5).erf()
        return x + eps * uniform / uniform.flatten(1).abs().amax(1).view(-1, *[1] * (x.dim() - 1))

    def _common(self, x: Tensor, eps: float) -> dict[str, Any]:
        return {"norm": {"l2": "L2", "linf": "Linf"}[self.norm], "eps": eps, "seed": 0, "device": x.device}

    def _targets(self, classes: int) -> int:
        return min(TARGETS, classes - 1)


def _in_padded_batches(model: nn.Module, x: Tensor) -> LogitsFunction:
    """The network's logits, computed in padded batches and in the dtype of x."""
    return lambda point: model(pad_batch(point).to(x.dtype))[: len(point)]


class _Worst:
    """Per example the point found so far with the largest margin of another class."""

    def __init__(self, x: Tensor, y: Tensor, logits: LogitsFunction) -> None:
        self.y, self.logits = y, logits
        self.points = x.clone()
        self.margin = x.new_full((len(x),), -torch.inf)
        self.classes = self.update(x).shape[1]

    @torch.no_grad()
    def update(self, points: Tensor, rows: Tensor | None = None) -> Tensor:
        """Keep the points with a larger margin than those before; returns the logits of all given points."""
        rows = torch.arange(len(self.y), device=self.y.device) if rows is None else rows
        points = points.to(self.points.dtype)
        logits = self.logits(points)
        margins = margin(logits, self.y[rows])
        worse = margins > self.margin[rows]
        self.points[rows[worse]], self.margin[rows[worse]] = points[worse], margins[worse].to(self.margin.dtype)
        return logits

    def robust(self) -> Tensor:
        """The examples that are classified correctly at every point found."""
        return (self.margin < 0).nonzero().squeeze(1)


class _SharedRandom(TorchFunctionMode):
    """Replaces torch.rand by a named stream, with the same numbers for all rows of a batch of images."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = stream(0, "square")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.rand:
            return func(*args, **(kwargs or {}))
        (shape,) = args
        one = torch.rand([1, *shape[1:]] if len(shape) == 4 else shape, generator=self.generator)
        return one.expand(shape)


def _takes_square(height: int, width: int, *, norm: Norm) -> bool:
    """Whether Square can attack images of this size.

    In L2 it starts with tiles, a fifth of the height wide, as many as there is room for in the whole image, but leaves
    a margin before the first of them: one that then crosses the border makes it fail.
    """
    if min(height, width) < 5:
        return False
    tile = height // 5
    margin = (height - 5 * tile) // 2
    # Tiles of one pixel beyond the border are empty, and so harmless.
    return norm != "l2" or tile == 1 or all(margin + size // tile * tile <= size for size in (height, width))


def _with_shared_random(square: Any) -> Any:
    """The class of Square with random numbers of a named stream.

    They are replaced where it draws and nowhere else: every operation under such a mode, the network's included, would
    take several times as long to start.
    """

    class SharedSquare(square):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            self.shared, self.rectangles = _SharedRandom(), dict[tuple[int, int], Tensor]()

        def eta_rectangles(self, x: int, y: int) -> Tensor:
            if (x, y) not in self.rectangles:  # the same at thousands of queries, and never written to
                self.rectangles[x, y] = super().eta_rectangles(x, y)
            return self.rectangles[x, y]

        def random_choice(self, *given: Any) -> Any:
            with self.shared:
                return super().random_choice(*given)

        def random_int(self, *given: Any) -> Any:
            with self.shared:
                return super().random_int(*given)

        def eta(self, *given: Any) -> Any:
            with self.shared:
                return super().eta(*given)

    return SharedSquare


def _components(*names: str) -> list[Any]:
    """Classes of pyautoattack, by module and name."""
    from importlib import import_module

    try:
        modules = [import_module(f"pyautoattack.{name.partition('.')[0]}") for name in names]
    except ImportError:
        raise ValueError(
            "attack:autoattack needs pyautoattack: python -m pip install '.[attacks]' in the checkout"
        ) from None
    return [getattr(module, name.partition(".")[2]) for module, name in zip(modules, names, strict=True)]
