"""The worst loss under shift from both sides: what is certified, what the paper estimates, what an attack reaches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from rhobust.bounds import shift_lower_bound, worst_case_lower_bound
from rhobust.certificates import (
    BoundedLoss,
    ClippedCrossEntropy,
    Dtype,
    ShiftClaim,
    ShiftProcedure,
    VoteCounts,
    ZeroOne,
    loss_smoothness,
    robust_surrogate,
    sample_losses,
    wrm_surrogate,
)
from rhobust.certificates.claim import LossName
from rhobust.data import to_unit
from rhobust.evaluation.attacking import check_radii
from rhobust.evaluation.shift import check_target, shift_procedure
from rhobust.evaluation.target import Target
from rhobust.evaluation.walk import walk
from rhobust.noise import LEVELS, ExampleNoise
from rhobust.progress import ProgressCallback
from rhobust.records import Record, Row
from rhobust.settings import check_declared

WRM_FACTORS = (0.55, 1.0, 4.0)
"""WRM's prices in units of the network's smoothness: above one half its inner problem is concave."""


@dataclass(frozen=True)
class Ascent:
    """The attack behind the estimate and the lower curve: damped ascent on the smoothed loss less a price."""

    gammas: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    """Prices of moving an input by one unit of squared distance; each gives one point of the lower curve."""
    steps: int = 15
    """Damped steps after the first, full one."""
    inner_draws: int = 4
    """Noise draws an input and a step."""

    def __post_init__(self) -> None:
        check_declared(self)
        if len(self.gammas) == 0 or not all(0 < gamma < math.inf for gamma in self.gammas):
            shown = " ".join(f"{gamma:g}" for gamma in self.gammas)
            raise ValueError(f"gammas must be > 0 and finite, at least one, got {shown or 'none'}")
        for name in ("steps", "inner_draws"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")


def curves_target(
    target: Target,
    *,
    eps: Sequence[float],
    loss: LossName = "cross-entropy",
    bound: float | None = None,
    ascent: Ascent | None = None,
    draws: int = 20,
    alpha: float = 1e-3,
    wrm: bool = False,
    dtype: Dtype | None = None,
    limit: int | None = None,
    stride: int = 1,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Record:
    """Bracket the worst mean loss of one noisy answer under every W2 shift up to eps.

    The summary holds, for each eps:

    - `certified`: an upper bound for the population, from the draws at the test points (theory, sections 4 to 7);
    - `lower`: what the attack proves: its points are a distribution within reach, whose cost is bounded from above and
      whose loss, under fresh noise, from below;
    - `estimate`: the paper's gamma rho + mean phi_gamma, least over the gammas. Ascent need not reach the supremum in
      phi_gamma, so this may lie on either side of the truth: it bounds nothing.

    `certified` and `lower` hold with probability 1 - alpha each, each for all eps at once. With `wrm`, WRM's
    certificate of the base network's cross-entropy near the test points stands beside them, if the network is smooth.

    Args:
        target: The network and its test data.
        eps: Increasing sizes of the shift.
        loss: "cross-entropy", clipped at `bound`, or "0-1".
        bound: Where the cross-entropy is clipped; log(classes) where none is given.
        ascent: The attack.
        draws: Noise draws a point that value a loss.
        alpha: Probability that the certified curve is false, and that the lower one is.
        wrm: Compute WRM's certificate too.
        dtype: Arithmetic of the network under noise, which is bracketed; the device's own where none is given.
        limit: Examples at most.
        stride: Take every stride-th example.
        seed: Names the noise.
        progress: Progress callback; default: shown on stderr.
    """
    eps = check_radii(eps, "eps")
    ascent = ascent or Ascent()
    indices = target.data.places(limit, stride)
    claim = ShiftClaim(loss=loss, bound=bound).resolve(target.data.num_classes)
    procedure = shift_procedure(target, claim, points=len(indices), draws=draws, alpha=alpha, dtype=dtype, seed=seed)
    valued: BoundedLoss = ZeroOne() if loss == "0-1" else ClippedCrossEntropy(claim.loss_bound)
    smoothness, reason = _smoothness(target) if wrm else (None, "not asked for")
    settings: Row = {
        "eps": list(eps),
        "draws": draws,
        "alpha": alpha,
        "loss": loss,
        "bound": claim.loss_bound,
        "classifier": claim.classifier,
        "cost": claim.cost,
        "gammas": list(ascent.gammas),
        "steps": ascent.steps,
        "inner_draws": ascent.inner_draws,
        "wrm": wrm,
        "noise": procedure.smoothing.noise,
        "limit": limit,
        "stride": stride,
        "seed": seed,
        **target.identity(),
        "sigma": procedure.smoothing.sigma,
        "dtype": procedure.smoothing.dtype,
    }

    def evaluate(block: list[int]) -> list[Row]:
        images = target.data.images[block].to(target.device)
        y = target.data.labels[block].to(target.device)
        counts = procedure.sample(target.model, images, y, indices=block)
        clean = counts.errors / draws if counts.losses is None else counts.losses
        counted = counts.errors if counts.rounded_losses is None else counts.rounded_losses
        attacks = [_attack(target.model, images, y, valued, gamma, ascent, procedure, block) for gamma in ascent.gammas]
        upper = [[] for _ in block]
        if smoothness is not None:
            x = to_unit(images)
            found = [wrm_surrogate(target.model, x, y, f * smoothness, smoothness=smoothness) for f in WRM_FACTORS]
            upper = np.stack(found, axis=1).tolist()
        return [
            {
                "index": index,
                "label": int(label),
                "draws": draws,
                "errors": int(counts.errors[i]),
                "counted": int(counted[i]),
                "loss": float(clean[i]),
                "attacks": [{name: float(column[i]) for name, column in attack.items()} for attack in attacks],
                "wrm": upper[i],
            }
            for i, (index, label) in enumerate(zip(block, y, strict=True))
        ]

    def summarise(rows: list[Row]) -> Row:
        rho = np.square(np.asarray(eps, dtype=float))
        errors, counted = (np.array([row[name] for row in rows]) for name in ("errors", "counted"))
        clean = np.array([row["loss"] for row in rows])
        certificate = procedure.certify(VoteCounts(errors, rounded_losses=counted, losses=clean), eps)
        rounds = 1 + len(ascent.gammas)
        each = procedure.level(rounds) / rounds
        _, start = shift_lower_bound(np.zeros(len(rows)), clean, each, limit=1.0, bound=claim.loss_bound)
        points = [
            _summed(rows, number, gamma, each, claim.loss_bound, _limit(gamma, procedure))
            for number, gamma in enumerate(ascent.gammas)
        ]
        spent = [0.0, *(point["rho_upper"] for point in points)]
        lower = np.maximum(worst_case_lower_bound(spent, [start, *(point["loss_lower"] for point in points)], rho), 0.0)
        estimate = np.min([point["gamma"] * rho + point["phi"] for point in points], axis=0)
        curve: list[dict[str, Any]] = [
            {"eps": at, "rho": float(r), "certified": c, "lower": float(low), "estimate": float(guess)}
            for at, r, c, low, guess in zip(eps, rho, certificate.certified_loss, lower, estimate, strict=True)
        ]
        summary: Row = {
            "points": len(rows),
            "accuracy_under_noise": certificate.accuracy_under_noise,
            "loss_under_noise": certificate.loss_under_noise,
            "curve": curve,
            "attacks": points,
            "wrm": None,
            "statement": certificate.statement(certificate.eps[len(eps) // 2]),
            "warnings": target.sigma_warnings(),
        }
        if wrm:
            summary["wrm"] = {"smoothness": smoothness, "reason": reason}
        if smoothness is not None:
            phi = np.mean([row["wrm"] for row in rows], axis=0)
            base = np.min(np.outer(rho, np.array(WRM_FACTORS) * smoothness) + phi, axis=1)
            for point, value in zip(curve, base, strict=True):
                point["wrm"] = float(value)
        return summary

    writer = target.writer("curves", loss, settings)
    if writer.summary is None:
        check_target(target, procedure.smoothing)
    return walk(writer, indices, evaluate, summarise, task=f"curves {target.name}", progress=progress)


def _smoothness(target: Target) -> tuple[float | None, str | None]:
    """The base network's smoothness, or why it has none."""
    try:
        return loss_smoothness(target.model, target.data.shape), None
    except ValueError as error:
        return None, str(error)


def _limit(gamma: float, procedure: ShiftProcedure) -> float:
    """The largest squared distance an attacked point may have; beyond sqrt(bound / gamma) moving cannot pay."""
    rounding = math.sqrt(procedure.dimension) / (2 * LEVELS)
    return (math.sqrt(procedure.claim.loss_bound / gamma) + rounding) ** 2 * (1 + 1e-6)


def _attack(
    model: nn.Module,
    images: Tensor,
    y: Tensor,
    loss: BoundedLoss,
    gamma: float,
    ascent: Ascent,
    procedure: ShiftProcedure,
    block: list[int],
) -> dict[str, np.ndarray]:
    """Where the ascent ends at one price: phi, and cost and loss of a point on the images' own grid beside it."""
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
    # A point of the images' grid takes the same exact noise as they do, and lies within the claim.
    levels = ((x + shrink * (found.maximiser - x)).clamp(0, 1) * LEVELS).round()
    moved, offset = levels / LEVELS, (levels - images).double() / LEVELS
    purpose = f"curves:fresh:{gamma!r}"
    drawn = sample_losses(model, moved, y, loss, smoothing, indices=block, draws=procedure.draws, purpose=purpose)
    return {
        "phi": found.phi.double().cpu().numpy(),
        "squared_distance": offset.flatten(1).square().sum(1).cpu().numpy(),
        "loss": drawn.values.mean(axis=1),
    }


def _summed(rows: list[Row], number: int, gamma: float, each: float, bound: float, limit: float) -> Row:
    """One attack over all points: what it proves, and the means it rests on."""
    columns = {
        name: np.array([row["attacks"][number][name] for row in rows]) for name in ("phi", "squared_distance", "loss")
    }
    spent, reached = shift_lower_bound(columns["squared_distance"], columns["loss"], each, limit=limit, bound=bound)
    return {
        "gamma": gamma,
        "phi": float(columns["phi"].mean()),
        "rho": float(columns["squared_distance"].mean()),
        "rho_upper": spent,
        "loss": float(columns["loss"].mean()),
        "loss_lower": reached,
    }
