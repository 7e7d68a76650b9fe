"""Linear programme over majorants of the robust surrogate, and simultaneous bounds on the law of error counts."""

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from rhobust.bounds.confidence import betting_upper, clopper_pearson, shuffle
from rhobust.bounds.smoothness import BEND
from rhobust.bounds.surrogate import EDGE, Surrogate
from rhobust.bounds.validation import MARGIN, Array, counts, level, one_count

SLACK = 3e-5
"""Largest discretisation error of the grid, per unit of the range of h."""
WIDTH = 0.004
"""Grid spacing in probits for a discontinuous loss."""
STEPS = 128
"""Largest number of thresholds; with more noise samples, neighbouring counts share a threshold."""
MEAN, ONCE = 1 / 4, 1 / 8
"""Fractions of alpha for the mean and for P(K = 1); the thresholds get the rest."""
SECOND, SECOND_ONCE, SECOND_STEPS = 1 / 2, 1 / 4, 16
"""Fraction of alpha for the second stage, of that the fraction for a single further error, and its thresholds."""


class SecondStage(NamedTuple):
    """Further noise samples at a random part of the points, spent where the first ones gave no error."""

    draws: int
    """Further noise samples per point."""
    chosen: ArrayLike
    """Whether a point is in the second stage; chosen at random, independent of the points and their noise."""
    errors: ArrayLike
    """Errors among the further samples; not used where the point is not chosen or had an error before."""


class CountBounds(NamedTuple):
    """Simultaneous upper bounds about K, the number of errors among the noise samples at a random point."""

    survival: Array
    """P(K >= i) for each i in `jumps`."""
    once: float = 1.0
    """P(K = 1)."""
    mean: float = 1.0
    """E K / draws."""
    second: Array = np.empty(0)
    """P(K = 0, L >= j) for each j in `second_jumps`, and P(K = 0, L = 1), for L further errors; empty without a
    second stage."""


@dataclass(frozen=True)
class Majorant:
    """h(k) = base + slope k / draws + once 1{k = 1} + the heights of all jumps at counts up to k.

    Guarantee of every instance made by `MajorantProblem.solve`: E h(K) >= T(p) for K ~ Bin(draws, p)
    and every p in [0, 1]; slope, once and heights are nonnegative. (With fewer jumps than counts, k / draws
    is replaced by a step function that rises at the jumps.) With a second stage h is a function of K and of the
    errors L among further samples: it also has the terms `second` of the events in `CountBounds.second`.
    """

    base: float
    heights: Array
    once: float = 0.0
    slope: float = 0.0
    second: Array = field(default_factory=lambda: np.empty(0))

    @property
    def span(self) -> float:
        """Upper bound of the range of h."""
        return self.slope + self.once + float(self.heights.sum()) + float(self.second.sum())

    def mean_upper(self, bounds: CountBounds) -> float:
        """Return an upper bound of the mean of h(K)."""
        increase = float(self.heights @ bounds.survival) + self.once * bounds.once + self.slope * bounds.mean
        increase += float(self.second @ bounds.second)
        return self.base + increase + MARGIN * (1 + self.span)


class MajorantProblem:
    """The majorant of T with the smallest mean, by linear programming, then corrected to hold for all p.

    Write p = Phi(u) on a uniform grid of u with spacing w. Two facts extend a check on the grid to all p.
    For h with range D, u -> E h(Bin(m, Phi(u))) is a function on R^m with range D,
    smoothed by unit noise and shifted along the diagonal, so its second derivative is at most
    2 phi(1) m D. And T is a supremum of translates of one function H, so T'' >= -c whenever H'' >= -c.
    Hence the slack E h - T on a cell is at least its smaller end value minus
    (2 phi(1) m D + c) w^2 / 8. Below the grid E h is at least h(0); above it the monotone part of h
    is at least its value at the last grid point.

    If T has no such c (the exact majority is discontinuous), monotonicity is used: on a cell the monotone part
    of E h is at least its value at the lower end, P(K = 1), which is unimodal, at least its smaller end
    value, and T at most its value at the upper end. No slack is needed.

    With `second` further samples h depends on m + second votes, which takes the place of m above. The probability of
    K = 0 falls and that of L >= j rises with p: on a cell their product is at least the one of the upper end times
    the other of the lower end.
    """

    def __init__(self, draws: int, curvature: float, second: int = 0) -> None:
        self.draws = draws
        self.jumping = math.isinf(curvature)
        sampled = draws + second
        width = WIDTH if self.jumping else math.sqrt(8 * SLACK / (2 * BEND * sampled + curvature))
        self.u = np.linspace(-EDGE, EDGE, 2 * math.ceil(EDGE / width) + 1)
        width = float(self.u[1] - self.u[0])
        # Discretisation error of a cell: a constant part, and a part per unit of the range of h.
        self.fixed_slack = 0.0 if self.jumping else curvature * width**2 / 8
        self.range_slack = 0.0 if self.jumping else 2 * BEND * sampled * width**2 / 8
        steps = jumps(draws)
        # P(Bin(m, p) >= i) on the grid; the first row is p = 0.
        p = special.ndtr(self.u)
        reached = np.vstack([np.zeros(steps.size), special.betainc(steps, draws - steps + 1, p[:, None])])
        # The mean of k / draws, or of its step function.
        ramp = reached @ (np.diff(steps, prepend=0.0) / draws)
        bumps = np.column_stack([self._once(draws), self._second(second)])
        # P(K = 1) is 0 at p = 0, and its lower bound is 0 in the last row, which covers all p up to 1.
        bumps = np.vstack([np.zeros(bumps.shape[1]), bumps[:-1], np.zeros(bumps.shape[1])])
        # Contributions of base, once, slope, heights and the second stage to E h in each row.
        self.columns = np.column_stack([np.ones(ramp.size), bumps[:, :1], ramp, reached, bumps[:, 1:]])
        self.active = np.empty(0, np.intp)

    def _once(self, draws: int) -> Array:
        """P(Bin(draws, p) = 1) on the grid, or its least value on the cell above."""
        once = draws * special.ndtr(self.u) * special.ndtr(-self.u) ** (draws - 1)
        return np.minimum(once, np.append(once[1:], 0.0)) if self.jumping else once

    def _second(self, further: int) -> Array:
        """P(K = 0, L >= j) and P(K = 0, L = 1) on the grid, or lower bounds on the cell above."""
        if not further:
            return np.empty((self.u.size, 0))
        none = special.ndtr(-self.u) ** self.draws
        if self.jumping:
            none = np.append(none[1:], 0.0)
        steps = second_jumps(further)
        reached = special.betainc(steps, further - steps + 1, special.ndtr(self.u)[:, None])
        return none[:, None] * np.column_stack([reached, self._once(further)])

    def targets(self, upper: Array, top: float = 1.0) -> Array:
        """Return the smallest valid E h in each row, from upper values of T on the grid.

        The row of p = 0 covers all p up to the first grid point, and the last row all p up to 1,
        where T may be `top`. If T is discontinuous, every row covers the cell above it.
        """
        return np.concatenate([upper[:1], upper[1:] if self.jumping else upper[:-1], [top]])

    def _violation(self, found: Majorant, targets: Array) -> Array:
        return targets - self.columns @ np.array([found.base, found.once, found.slope, *found.heights, *found.second])

    def _lift(self, found: Majorant, violation: float) -> Majorant:
        """Raise h by its largest violation, so that validity does not depend on the solver's tolerance."""
        slack = self.fixed_slack + self.range_slack * found.span + MARGIN * (1 + found.span)
        return replace(found, base=found.base + violation + slack)

    def solve(self, upper: Array, bounds: CountBounds, top: float = 1.0) -> tuple[Majorant, Array]:
        """Return the majorant of least mean, and the dual variable of each grid value of T.

        Args:
            upper: Upper values of T at `self.u`, nondecreasing.
            bounds: Bounds on the law of the counts: the weights of the objective.
            top: The largest value of T.
        """
        targets = self.targets(upper, top)
        rows = np.arange(targets.size)
        active = np.union1d(rows[:: max(rows.size // 160, 1)], [0, 1, rows.size - 1])
        # Warm start with the active rows of the last solution: it saves iterations and does not change the result.
        active = np.union1d(active, self.active)
        weights = np.array([bounds.once, bounds.mean, *bounds.survival, *bounds.second])
        last = 2 + bounds.survival.size
        best = Majorant(top, np.zeros(bounds.survival.size), second=np.zeros(bounds.second.size))
        duals = np.zeros(targets.size)
        for _ in range(6):
            solution = optimize.linprog(
                # The slack for the range of h is part of the objective.
                np.append(1.0, weights + self.range_slack),
                A_ub=-self.columns[active],
                b_ub=-targets[active],
                bounds=[(None, None), *[(0, None)] * weights.size],
                method="highs",
                options={"presolve": False},  # slower on so small a programme
            )
            if solution.x is None:
                break  # numerical failure: the best majorant so far is valid
            rises = np.maximum(solution.x[1:], 0.0)
            found = Majorant(float(solution.x[0]), rises[2:last], float(rises[0]), float(rises[1]), rises[last:])
            violation = self._violation(found, targets)
            lifted = self._lift(found, float(violation.max()))
            if lifted.mean_upper(bounds) < best.mean_upper(bounds):
                best, duals = lifted, np.zeros(targets.size)
                duals[active] = -solution.ineqlin.marginals
                self.active = np.flatnonzero(duals)
            violated = self._violated(violation)
            if violated.size == 0:
                break
            active = np.union1d(active, violated)
        if self.jumping:
            return best, duals[:-1]
        # Rows 0 and 1 both require T at the first grid point; the last row requires a constant.
        return best, np.concatenate([[duals[0] + duals[1]], duals[2:-1], [0.0]])

    def moved(self, surrogate: Surrogate, bounds: CountBounds, distance: float) -> float:
        """Return an upper bound of the mean of the surrogate where every point moves by one distance."""
        majorant, _ = self.solve(surrogate.shifted(self.u, distance), bounds)
        value = majorant.mean_upper(bounds)
        # Of one vote at rest T(p) = p is the mean of h(k) = k / draws exactly, without discretisation error.
        return min(value, bounds.mean) if distance == 0 and surrogate.votes == 1 else value

    def penalised(self, surrogate: Surrogate, bounds: CountBounds, penalties: Array) -> tuple[Array, Array]:
        """Return an upper bound of the mean of the surrogate at each penalty, and its derivative by the penalty."""
        values, slopes = np.empty(penalties.size), np.empty(penalties.size)
        for i, penalty in enumerate(penalties):
            upper, spent = surrogate.penalised(self.u, penalty)
            majorant, weights = self.solve(upper, bounds)
            values[i], slopes[i] = majorant.mean_upper(bounds), -(weights @ spent)
        return values, slopes

    def _violated(self, violation: Array) -> NDArray[np.intp]:
        """Return the rows with the locally largest violation, one per interval of violated rows."""
        inner = np.concatenate([[-np.inf], violation, [-np.inf]])
        peak = (inner[1:-1] >= inner[:-2]) & (inner[1:-1] >= inner[2:])
        return np.flatnonzero(peak & (violation > 5e-6))


def jumps(draws: int) -> Array:
    """Return the counts at which a majorant may jump: all, or at most `STEPS` that are dense at the ends."""
    if draws <= STEPS:
        return np.arange(1.0, draws + 1)
    spread = np.sin(np.linspace(0, math.pi / 2, STEPS + 1)) ** 2
    return np.unique(np.maximum(np.round(draws * spread), 1.0))


def second_jumps(draws: int) -> Array:
    """Return the counts of further errors at which a majorant may jump: all up to a few, then further apart."""
    # A point without an error among the first samples hardly errs at a fourth of the further ones.
    return np.unique(np.round(np.geomspace(1, max(draws / 4, 1), SECOND_STEPS)))


def count_bounds(errors: Array, draws: int, alpha: float, second: SecondStage | None = None) -> CountBounds:
    """Return simultaneous bounds about the number of errors at a random point.

    Guarantee: if `errors` are independent samples of K, all the bounds hold with probability at least
    1 - alpha. The probabilities have Clopper-Pearson bounds, the mean a betting bound. The i-th threshold
    gets a fraction of alpha proportional to 1 / i: these sum to a logarithm, so the bounds at the first
    thresholds, where most majorants rise most, are almost as sharp as individual ones.

    Args:
        errors: Errors at each point, whole numbers up to `draws`.
        draws: Noise samples per point.
        alpha: Probability that any of the bounds fails.
        second: The second stage, which has `SECOND` of alpha: points are chosen for it independently of everything
            else, so those of them without an error among the first samples and with so many among the further ones
            are a binomial number too. Default: none.
    """
    alpha = level("alpha", alpha)
    if second is not None:
        further = _second_bounds(errors, second, SECOND * alpha)
        return count_bounds(errors, draws, (1 - SECOND) * alpha)._replace(second=further)
    steps = jumps(draws)
    reached = errors.size - np.searchsorted(np.sort(errors), steps, side="left")
    shares = 1 / np.arange(1, steps.size + 1)
    each = (1 - MEAN - ONCE) * alpha * shares / shares.sum()
    survival = np.asarray(clopper_pearson(reached, errors.size, each, "upper"))
    once = clopper_pearson(np.count_nonzero(errors == 1), errors.size, ONCE * alpha, "upper")
    mean = betting_upper(shuffle(errors) / draws, MEAN * alpha)
    # P(K >= i) decreases in i, so a bound at a threshold is valid at every larger one.
    return CountBounds(np.minimum.accumulate(survival), float(once), float(mean))


def _second_bounds(errors: Array, second: SecondStage, alpha: float) -> Array:
    """Clopper-Pearson bounds of P(K = 0, L >= j) and P(K = 0, L = 1), which hold together."""
    chosen = np.asarray(second.chosen, dtype=bool)
    further, draws = counts("errors of the second stage", second.errors), one_count("draws", second.draws, least=1)
    if chosen.shape != errors.shape or further.shape != errors.shape or not chosen.any():
        raise ValueError(f"the second stage must say of each of {errors.size} points whether it is in, at least one")
    if further[chosen].max() > draws:
        raise ValueError(f"errors of the second stage must be in 0..{draws}, got {further[chosen].max():g}")
    last = further[chosen & (errors == 0)]
    steps, tried = second_jumps(draws), int(chosen.sum())
    shares = 1 / np.arange(1, steps.size + 1)
    reached = np.append([(last >= step).sum() for step in steps], (last == 1).sum())
    each = alpha * np.append((1 - SECOND_ONCE) * shares / shares.sum(), SECOND_ONCE)
    found = np.asarray(clopper_pearson(reached, tried, each, "upper"))
    return np.append(np.minimum.accumulate(found[:-1]), found[-1])
