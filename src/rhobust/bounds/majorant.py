"""Linear programme over majorants of the worst-case loss, and simultaneous bounds on the law of error counts."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from rhobust.bounds.confidence import betting_upper, clopper_pearson, shuffled
from rhobust.bounds.smoothness import BEND
from rhobust.bounds.surrogate import EDGE
from rhobust.bounds.validation import MARGIN, Array, level

SLACK = 3e-5
"""Largest loss of tightness that the grid may cause, for each unit of the range of h."""

WIDTH = 0.004
"""Spacing of the grid of probits where the loss jumps."""


class CountBounds(NamedTuple):
    """Upper bounds about the count K of wrong answers among the draws at a random point; they hold together."""

    survival: Array
    """P(K >= i) for each i of `jumps`."""
    once: float = 1.0
    """P(K = 1)."""
    mean: float = 1.0
    """E K / draws."""


@dataclass(frozen=True)
class Majorant:
    """h(k) = base + slope k / draws + once 1{k = 1} + the heights of all jumps at counts up to k.

    Guarantee of every instance made by `MajorantProblem.solve`: E h(K) >= T(p) for K ~ Bin(draws, p)
    and every p in [0, 1]; slope, once and heights are not negative. (Where there are fewer jumps than
    counts, k / draws rises at the jumps only.)
    """

    base: float
    heights: Array
    once: float = 0.0
    slope: float = 0.0

    @property
    def span(self) -> float:
        """The range of h, or more."""
        return self.slope + self.once + float(self.heights.sum())

    def mean_upper(self, bounds: CountBounds) -> float:
        """Return an upper bound of the mean of h(K)."""
        rising = float(self.heights @ bounds.survival) + self.once * bounds.once + self.slope * bounds.mean
        return self.base + rising + MARGIN * (1 + self.span)


class MajorantProblem:
    """The cheapest majorant of T, by linear programming, made valid for all p afterwards.

    Write p = Phi(u) on a uniform grid of u with spacing w. Two facts carry a finite check to all p.
    For h with range D, u -> E h(Bin(m, Phi(u))) is a function on R^m with range D,
    smoothed by unit noise and moved along the diagonal, so its second derivative is at most
    2 phi(1) m D. And T is a supremum of translates of one function H, so T'' >= -c whenever H'' >= -c.
    Hence the slack E h - T on a cell is at least its smaller end value minus
    (2 phi(1) m D + c) w^2 / 8. Below the grid E h is at least h(0); above it the monotone part of h
    is at least what it is at the last grid point.

    If T has no such c (the majority vote jumps), monotonicity alone is used: on a cell the monotone part
    of E h is at least its value at the lower end, P(K = 1), which rises and then falls, at least the
    smaller of its ends, and T at most its value at the upper end. No slack is needed.
    """

    def __init__(self, draws: int, bend: float) -> None:
        self.draws = draws
        self.jumping = math.isinf(bend)
        width = WIDTH if self.jumping else math.sqrt(8 * SLACK / (2 * BEND * draws + bend))
        self.u = np.linspace(-EDGE, EDGE, 2 * math.ceil(EDGE / width) + 1)
        width = float(self.u[1] - self.u[0])
        # What the cells cost: at once, and for each unit of the range of h.
        self.fixed_slack = 0.0 if self.jumping else bend * width**2 / 8
        self.range_slack = 0.0 if self.jumping else 2 * BEND * draws * width**2 / 8
        steps = jumps(draws)
        # P(Bin(m, p) >= i) on the grid; the first row is p = 0, where every jump is out of reach.
        p = special.ndtr(self.u)
        reached = np.vstack([np.zeros(steps.size), special.betainc(steps, draws - steps + 1, p[:, None])])
        # The mean of k / draws, as far as the jumps follow it.
        ramp = reached @ (np.diff(steps, prepend=0.0) / draws)
        once = draws * p * special.ndtr(-self.u) ** (draws - 1)
        if self.jumping:
            once = np.minimum(once, np.append(once[1:], 0.0))
        # Neither p = 0 nor the last row, which serves all p up to 1, may count on it.
        once = np.concatenate([[0.0], once[:-1], [0.0]])
        # What base, once, slope and heights contribute to E h in each row.
        self.columns = np.column_stack([np.ones(ramp.size), once, ramp, reached])
        self.mattered = np.empty(0, np.intp)

    def targets(self, upper: Array) -> Array:
        """Return what E h must reach in each row, from upper values of T on the grid.

        The row of p = 0 must serve all p up to the first grid point, and the last row all p up to 1,
        where T may be 1. Where T jumps, every row serves the cell above it.
        """
        return np.concatenate([upper[:1], upper[1:] if self.jumping else upper[:-1], [1.0]])

    def _lack(self, found: Majorant, targets: Array) -> Array:
        return targets - self.columns @ np.array([found.base, found.once, found.slope, *found.heights])

    def _repaired(self, found: Majorant, lack: float) -> Majorant:
        """Lift h by what it lacks anywhere, whatever the solver's tolerance was."""
        slack = self.fixed_slack + self.range_slack * found.span + MARGIN * (1 + found.span)
        return replace(found, base=found.base + lack + slack)

    def solve(self, upper: Array, bounds: CountBounds) -> tuple[Majorant, Array]:
        """Return the majorant of least mean, and how much each grid value of T costs.

        Args:
            upper: Upper values of T at `self.u`, nondecreasing.
            bounds: What is known about the law of the counts, the objective's weights.
        """
        targets = self.targets(upper)
        rows = np.arange(targets.size)
        active = np.union1d(rows[:: max(rows.size // 160, 1)], [0, 1, rows.size - 1])
        # What mattered at the last price mostly matters at the next: it saves rounds, and decides nothing else.
        active = np.union1d(active, self.mattered)
        weights = np.array([bounds.once, bounds.mean, *bounds.survival])
        best, prices = Majorant(1.0, np.zeros(bounds.survival.size)), np.zeros(targets.size)
        for _ in range(6):
            answer = optimize.linprog(
                # The slack for the range of h is part of the price, lest h grow without need.
                np.append(1.0, weights + self.range_slack),
                A_ub=-self.columns[active],
                b_ub=-targets[active],
                bounds=[(None, None), *[(0, None)] * weights.size],
                method="highs",
                options={"presolve": False},  # takes longer than it saves on so small a programme
            )
            if answer.x is None:
                break  # numerical trouble: what has been found so far is valid
            once, slope, *heights = np.maximum(answer.x[1:], 0.0)
            found = Majorant(float(answer.x[0]), np.array(heights), float(once), float(slope))
            lack = self._lack(found, targets)
            repaired = self._repaired(found, float(lack.max()))
            if repaired.mean_upper(bounds) < best.mean_upper(bounds):
                best, prices = repaired, np.zeros(targets.size)
                prices[active] = -answer.ineqlin.marginals
                self.mattered = np.flatnonzero(prices)
            lacking = self._lacking(lack)
            if lacking.size == 0:
                break
            active = np.union1d(active, lacking)
        if self.jumping:
            return best, prices[:-1]
        # Rows 0 and 1 both ask for T at the first grid point; the last row asks for a constant.
        return best, np.concatenate([[prices[0] + prices[1]], prices[2:-1], [0.0]])

    def _lacking(self, lack: Array) -> NDArray[np.intp]:
        """Return the rows that miss their target most, one for each stretch of missing rows."""
        inner = np.concatenate([[-np.inf], lack, [-np.inf]])
        peak = (inner[1:-1] >= inner[:-2]) & (inner[1:-1] >= inner[2:])
        return np.flatnonzero(peak & (lack > 5e-6))


STEPS = 128
"""Most thresholds that are watched; with more draws than this, some counts are not told apart."""

MEAN, ONCE = 1 / 4, 1 / 8
"""Shares of alpha for the mean and for P(K = 1); the thresholds have the rest."""


def jumps(draws: int) -> Array:
    """Return the counts at which a majorant may jump: all of them, or few that are dense at the ends."""
    if draws <= STEPS:
        return np.arange(1.0, draws + 1)
    spread = np.sin(np.linspace(0, math.pi / 2, STEPS + 1)) ** 2
    return np.unique(np.maximum(np.round(draws * spread), 1.0))


def count_bounds(errors: Array, draws: int, alpha: float) -> CountBounds:
    """Return bounds about the count of wrong answers at a random point.

    Guarantee: if `errors` are independent draws of K, all the bounds hold with probability at least
    1 - alpha. The probabilities have Clopper-Pearson bounds, the mean a betting bound. The i-th threshold
    has a share of alpha that falls as 1 / i: the sum of these is a logarithm, so the first thresholds, where
    most majorants do most of their rising, are almost as sharp as if they were alone.

    Args:
        errors: Wrong answers at each point, whole numbers up to `draws`.
        draws: Noise draws at each point.
        alpha: Probability that any of the bounds fails.
    """
    alpha = level("alpha", alpha)
    steps = jumps(draws)
    reached = errors.size - np.searchsorted(np.sort(errors), steps, side="left")
    shares = 1 / np.arange(1, steps.size + 1)
    each = (1 - MEAN - ONCE) * alpha * shares / shares.sum()
    survival = np.asarray(clopper_pearson(reached, errors.size, each, "upper"))
    once = clopper_pearson(np.count_nonzero(errors == 1), errors.size, ONCE * alpha, "upper")
    mean = betting_upper(shuffled(errors) / draws, MEAN * alpha)
    # P(K >= i) falls with i, so a bound at a smaller threshold also serves the larger ones.
    return CountBounds(np.minimum.accumulate(survival), float(once), float(mean))
