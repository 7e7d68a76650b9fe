"""Bracket the worst-case loss under shift: certified from above, attacked from below, and the paper's estimate."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Self

import numpy as np
from torch import Tensor, nn
from tyro.conf import arg

from rhobust.certificates import (
    BoundedLoss,
    ClippedCrossEntropy,
    Repeats,
    ShiftClaim,
    ShiftProcedure,
    ZeroOne,
    loss_smoothness,
    robust_surrogate,
    sample_losses,
    wrm_surrogate,
)
from rhobust.data import to_unit
from rhobust.evaluation.base import NoisyEvaluation
from rhobust.evaluation.target import Target
from rhobust.measurements.proved import worst_case_summary
from rhobust.noise import LEVELS, ExampleNoise
from rhobust.progress import ProgressCallback
from rhobust.proofs.claim import LossName
from rhobust.records import Row
from rhobust.settings import AUTO, LARGEST, SMALLEST, check_at_least, check_declared, check_level

WRM_FACTORS = (0.55, 1.0, 4.0)
"""Penalties of WRM in units of the network's smoothness: above one half its inner problem is concave."""


@dataclass(frozen=True)
class Ascent:
    """The attack behind the estimate and the lower curve: damped ascent on the smoothed loss minus the penalty."""

    gammas: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    """Penalties per unit of squared distance; each gives one point of the lower curve."""
    steps: int = 15
    """Damped steps after the first, full one."""
    inner_draws: int = 4
    """Noise samples per input and step."""

    def __post_init__(self) -> None:
        check_declared(self)
        if len(self.gammas) == 0 or not all(SMALLEST <= gamma <= LARGEST for gamma in self.gammas):
            shown = " ".join(f"{gamma:g}" for gamma in self.gammas)
            raise ValueError(f"gammas must be from {SMALLEST:g} to {LARGEST:,}, at least one, got {shown or 'none'}")
        check_at_least(1, self, "steps", "inner_draws")


@dataclass(frozen=True, kw_only=True)
class WorstCaseCurves(NoisyEvaluation):
    """Bracket the worst mean loss of one noisy prediction under every W2 shift up to eps.

    The summary holds, for each eps:

    - `certified`: an upper bound for the population, from noise samples at the test points (theory, sections 4 to 7);
    - `lower`: what the attack proves: its points are a distribution within eps, whose cost is bounded from above and
      whose loss, under fresh noise, from below;
    - `estimate`: the paper's gamma rho + mean phi_gamma, minimised over the gammas. Ascent need not reach the supremum
      in phi_gamma, so this may be on either side of the truth: it is not a bound.

    Guarantee: `certified` and `lower` hold with probability 1 - alpha each, each for all eps at once. With `wrm` the
    summary also has WRM's certificate of the base network's cross-entropy near the test points, if the network is
    smooth.
    """

    kind: ClassVar[str] = "curves"

    ascent: Annotated[Ascent, arg(name="")] = Ascent()
    """The attack."""
    eps: tuple[float, ...] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
    """Increasing W2 distances; both bounds hold for all of them at once."""
    loss: LossName = "cross-entropy"
    """Loss of one noisy prediction: cross-entropy clipped at --bound, or 0-1."""
    bound: float | None = field(default=None, metadata=AUTO)
    """Where the cross-entropy is clipped, part of the claim; default: log(classes)."""
    draws: int = 20
    """Noise samples per point that estimate a loss."""
    alpha: float = 1e-3
    """Probability that the certified curve is false, and that the lower one is."""
    wrm: bool = False
    """Compute WRM's certificate of the base network too; it needs a smooth activation (--activation elu)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._increasing("eps")
        check_at_least(1, self, "draws")
        check_level(self.alpha)
        _ = self.claim  # checks the loss and its bound

    @property
    def label(self) -> str:
        return self.loss

    @property
    def claim(self) -> ShiftClaim:
        """The certified curve's claim."""
        return ShiftClaim(loss=self.loss, bound=self.bound)

    def population(self, target: Target) -> bool:
        return True

    def resolve(self, target: Target) -> Self:
        claim = self.claim.resolve(target.data.num_classes)
        evaluation = replace(super().resolve(target), bound=claim.bound)
        evaluation.procedure(target)
        return evaluation

    def procedure(self, target: Target) -> ShiftProcedure:
        """How the test points are sampled."""
        return ShiftProcedure(
            self.claim,
            self.smoothing(target),
            points=len(self.examples(target)),
            dimension=target.data.dimension,
            draws=self.draws,
            alpha=self.alpha,
        )

    def derived(self, target: Target) -> Row:
        procedure = self.procedure(target)
        return {
            "bound": procedure.claim.loss_bound,
            "classifier": procedure.claim.classifier,
            "cost": procedure.claim.cost,
            "noise": procedure.smoothing.noise,
        }

    @classmethod
    def from_settings(cls, settings: Row) -> Self:
        return super().from_settings({**settings, "bound": None if settings["loss"] == "0-1" else settings["bound"]})

    def rows(self, target: Target, examples: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
        procedure, examples = self.procedure(target), list(examples)
        repeats = self.check_network(target)
        valued: BoundedLoss = ZeroOne() if self.loss == "0-1" else ClippedCrossEntropy(procedure.claim.loss_bound)
        smoothness, _ = self._smoothness(target)
        images = target.data.images[examples].to(target.device)
        y = target.data.labels[examples].to(target.device)
        counts = procedure.sample(target.model, images, y, indices=examples, repeats=repeats)
        clean = counts.errors / self.draws if counts.losses is None else counts.losses
        counted = counts.errors if counts.rounded_losses is None else counts.rounded_losses
        attacks = [
            _attack(target.model, images, y, valued, gamma, self.ascent, procedure, examples, repeats)
            for gamma in self.ascent.gammas
        ]
        upper = [[] for _ in examples]
        if smoothness is not None:
            x = to_unit(images)
            found = [wrm_surrogate(target.model, x, y, f * smoothness, smoothness=smoothness) for f in WRM_FACTORS]
            upper = np.stack(found, axis=1).tolist()
        for i, (index, label) in enumerate(zip(examples, y, strict=True)):
            yield {
                "index": index,
                "label": int(label),
                "draws": self.draws,
                "errors": int(counts.errors[i]),
                "counted": int(counted[i]),
                "loss": float(clean[i]),
                "attacks": [{name: float(column[i]) for name, column in attack.items()} for attack in attacks],
                "wrm": upper[i],
            }

    def summarise(self, target: Target, rows: list[Row]) -> Row:
        summary: Row = {**self.proved(worst_case_summary, target, rows), "wrm": None}
        smoothness, reason = self._smoothness(target)
        if self.wrm:
            summary["wrm"] = {"smoothness": smoothness, "reason": reason}
        if smoothness is not None:
            phi = np.mean([row["wrm"] for row in rows], axis=0)
            rho = np.square(np.asarray(self.eps, dtype=float))
            base = np.min(np.outer(rho, np.array(WRM_FACTORS) * smoothness) + phi, axis=1)
            for point, value in zip(summary["curve"], base, strict=True):
                point["wrm"] = float(value)
        return summary

    def _smoothness(self, target: Target) -> tuple[float | None, str | None]:
        """The base network's smoothness, or why there is none."""
        if not self.wrm:
            return None, "not asked for"

        def find() -> tuple[float | None, str | None]:
            try:
                return loss_smoothness(target.model, target.data.shape), None
            except ValueError as error:
                return None, str(error)

        return target.once("smoothness", find)


def _attack(
    model: nn.Module,
    images: Tensor,
    y: Tensor,
    loss: BoundedLoss,
    gamma: float,
    ascent: Ascent,
    procedure: ShiftProcedure,
    block: list[int],
    repeats: Repeats,
) -> dict[str, np.ndarray]:
    """Where the ascent ends at one penalty: phi, and cost and loss of the nearest point on the 8-bit grid."""
    x = to_unit(images)
    smoothing = procedure.smoothing
    found = robust_surrogate(
        model,
        x,
        y,
        gamma,
        sigma=smoothing.sigma,
        steps=ascent.steps,
        draws=ascent.inner_draws,
        loss=loss,
        rng=ExampleNoise(smoothing.seed, f"curves:{gamma!r}", block),
    )
    reach = math.sqrt(loss.bound / gamma)
    shrink = (reach / found.distance.clamp_min(1e-12)).clamp_max(1.0).view(-1, *[1] * (x.dim() - 1))
    # A point of the images' grid takes the same exact noise as they do, and is within the claim.
    levels = ((x + shrink * (found.maximiser - x)).clamp(0, 1) * LEVELS).round()
    perturbed, offset = levels / LEVELS, (levels - images).double() / LEVELS
    purpose = f"curves:fresh:{gamma!r}"
    drawn = sample_losses(
        model, perturbed, y, loss, smoothing, indices=block, draws=procedure.draws, purpose=purpose, repeats=repeats
    )
    return {
        "phi": found.phi.double().cpu().numpy(),
        "squared_distance": offset.flatten(1).square().sum(1).cpu().numpy(),
        "loss": drawn.values.mean(axis=1),
    }
