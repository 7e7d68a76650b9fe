"""Linear programme over majorants of the robust surrogate, and simultaneous bounds on the law of error counts."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from rhobust.bounds.confidence import betting_upper, clopper_pearson, shuffle
from rhobust.bounds.smoothness import BEND
from rhobust.bounds.surrogate import EDGE
from rhobust.bounds.validation import MARGIN, Array, level

SLACK = 3e-5
"""Largest discretisation error of the grid, per unit of the range of h."""
WIDTH = 0.004
"""Grid spacing in probits for a discontinuous loss."""
STEPS = 128
"""Largest number of thresholds; with more noise samples, neighbouring counts share a threshold."""
MEAN, ONCE = 1 / 4, 1 / 8
"""Fractions of alpha for the mean and for P(K = 1); the thresholds get the rest."""


class CountBounds(NamedTuple):
    """Simultaneous upper bounds about K, the number of errors among the noise samples at a random point."""

    survival: Array
    """P(K >= i) for each i in `jumps`."""
    once: float = 1.0
    """P(K = 1)."""
    mean: float = 1.0
    """E K / draws."""


@dataclass(frozen=True)
class Majorant:
    """h(k) = base + slope k / draws + once 1{k = 1} + the heights of all jumps at counts up to k.

    Guarantee of every instance made by `MajorantProblem.solve`: E h(K) >= T(p) for K ~ Bin(draws, p)
    and every p in [0, 1]; slope, once and heights are nonnegative. (With fewer jumps than counts, k / draws
    is replaced by a step function that rises at the jumps.)
    """

    base: float
    heights: Array
    once: float = 0.0
    slope: float = 0.0

    @property
    def span(self) -> float:
        """Upper bound of the range of h."""
        return self.slope + self.once + float(self.heights.sum())

    def mean_upper(self, bounds: CountBounds) -> float:
        """Return an upper bound of the mean of h(K)."""
        increase = float(self.heights @ bounds.survival) + self.once * bounds.once + self.slope * bounds.mean
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
    """

    def __init__(self, draws: int, curvature: float) -> None:
        self.draws = draws
        self.jumping = math.isinf(curvature)
        width = WIDTH if self.jumping else math.sqrt(8 * SLACK / (2 * BEND * draws + curvature))
        self.u = np.linspace(-EDGE, EDGE, 2 * math.ceil(EDGE / width) + 1)
        width = float(self.u[1] - self.u[0])
        # Discretisation error of a cell: a constant part, and a part per unit of the range of h.
        self.fixed_slack = 0.0 if self.jumping else curvature * width**2 / 8
        self.range_slack = 0.0 if self.jumping else 2 * BEND * draws * width**2 / 8
        steps = jumps(draws)
        # P(Bin(m, p) >= i) on the grid; the first row is p = 0.
        p = special.ndtr(self.u)
        reached = np.vstack([np.zeros(steps.size), special.betainc(steps, draws - steps + 1, p[:, None])])
        # The mean of k / draws, or of its step function.
        ramp = reached @ (np.diff(steps, prepend=0.0) / draws)
        once = draws * p * special.ndtr(-self.u) ** (draws - 1)
        if self.jumping:
            once = np.minimum(once, np.append(once[1:], 0.0))
        # P(K = 1) is 0 at p = 0, and its lower bound is 0 in the last row, which covers all p up to 1.
        once = np.concatenate([[0.0], once[:-1], [0.0]])
        # Contributions of base, once, slope and heights to E h in each row.
        self.columns = np.column_stack([np.ones(ramp.size), once, ramp, reached])
        self.active = np.empty(0, np.intp)

    def targets(self, upper: Array, top: float = 1.0) -> Array:
        """Return the smallest valid E h in each row, from upper values of T on the grid.

        The row of p = 0 covers all p up to the first grid point, and the last row all p up to 1,
        where T may be `top`. If T is discontinuous, every row covers the cell above it.
        """
        return np.concatenate([upper[:1], upper[1:] if self.jumping else upper[:-1], [top]])

    def _violation(self, found: Majorant, targets: Array) -> Array:
        return targets - self.columns @ np.array([found.base, found.once, found.slope, *found.heights])

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
        weights = np.array([bounds.once, bounds.mean, *bounds.survival])
        best, duals = Majorant(top, np.zeros(bounds.survival.size)), np.zeros(targets.size)
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
            once, slope, *heights = np.maximum(solution.x[1:], 0.0)
            found = Majorant(float(solution.x[0]), np.array(heights), float(once), float(slope))
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


def count_bounds(errors: Array, draws: int, alpha: float) -> CountBounds:
    """Return simultaneous bounds about the number of errors at a random point.

    Guarantee: if `errors` are independent samples of K, all the bounds hold with probability at least
    1 - alpha. The probabilities have Clopper-Pearson bounds, the mean a betting bound. The i-th threshold
    gets a fraction of alpha proportional to 1 / i: these sum to a logarithm, so the bounds at the first
    thresholds, where most majorants rise most, are almost as sharp as individual ones.

    Args:
        errors: Errors at each point, whole numbers up to `draws`.
        draws: Noise samples per point.
        alpha: Probability that any of the bounds fails.
    """
    alpha = level("alpha", alpha)
    steps = jumps(draws)
    reached = errors.size - np.searchsorted(np.sort(errors), steps, side="left")
    shares = 1 / np.arange(1, steps.size + 1)
    each = (1 - MEAN - ONCE) * alpha * shares / shares.sum()
    survival = np.asarray(clopper_pearson(reached, errors.size, each, "upper"))
    once = clopper_pearson(np.count_nonzero(errors == 1), errors.size, ONCE * alpha, "upper")
    mean = betting_upper(shuffle(errors) / draws, MEAN * alpha)
    # P(K >= i) decreases in i, so a bound at a threshold is valid at every larger one.
    return CountBounds(np.minimum.accumulate(survival), float(once), float(mean))
