"""Robust surrogate of a smoothed loss in probit space: Psi, Psi1, and the surrogate of k votes."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from rhobust.bounds.smoothness import BEND, PEAK
from rhobust.bounds.validation import MARGIN, Array, FloatOrArray, one_count, positive, result, unit_interval

FAR = 40.0
"""Distance in standard deviations at which the normal density underflows in float64."""
Cost: TypeAlias = Literal["w1", "w2", "winf"]
EDGE = 8.0
"""Probit beyond which a probability is within 1e-15 of 0 or 1."""
CELLS = 512
"""Smallest number of grid cells for the maximisation over t of a k-vote classifier."""


def _density(a: Array) -> Array:
    return PEAK * np.exp(-(a**2) / 2)


def _root(u: Array, kappa: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Bracket the root of phi(a) - kappa (a - u), decreasing through zero, by bisection."""
    # A bracket is at most 80 wide; after 62 bisections it is narrower than the spacing of floats near 1.
    for _ in range(62):
        middle = (low + high) / 2
        rising = _density(middle) > kappa * (middle - u)
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    return low, high


def psi_probit(u: Array, kappa: Array) -> tuple[Array, Array]:
    """Return a guaranteed upper value of Psi and its maximiser tau, from u = Phi^{-1}(p).

    The objective Phi(a) - kappa (a - u)^2 / 2 in a = u + tau has slope h(a) = phi(a) - kappa (a - u).
    For kappa >= phi(1), h is decreasing and has one root. For kappa < phi(1), h decreases up to a1,
    increases to a2 and decreases again, where a1 < -1 < a2 < 0 solve -a phi(a) = kappa, so there are at most
    two local maxima, one on [u, a1] and one beyond a2. On a bracket [low, high] around a maximiser
    the objective is at most Phi(high) - kappa (low - u)^2 / 2.
    """
    single = kappa >= BEND
    inner = -2 * math.pi * np.where(single, 0.1, kappa) ** 2
    first = np.where(single, -np.inf, -np.sqrt(-special.lambertw(inner, -1).real))
    second = np.where(single, -np.inf, -np.sqrt(-special.lambertw(inner, 0).real))
    u, kappa, first, second = np.broadcast_arrays(u, kappa, first, second)

    finite = np.isfinite(u)
    value, tau = np.array(special.ndtr(u)), np.zeros(u.shape)
    start = np.maximum(u, second)
    top = np.maximum(np.minimum(u + PEAK / np.maximum(kappa, 1e-300), np.maximum(u, 0) + FAR), start)
    with np.errstate(invalid="ignore"):  # infinities of u and of the absent critical points
        near = finite & (u < first) & (_density(first) <= kappa * (first - u))
        beyond = finite & (_density(start) >= kappa * (start - u))
    # If rounding excludes both, the critical points are so close that h is flat between them, and zero.
    between = finite & ~near & ~beyond
    for chosen, left, right in ((near, u, first), (beyond, start, top), (between, np.maximum(u, first), start)):
        at, penalty = u[chosen], kappa[chosen]
        low, high = _root(at, penalty, left[chosen], right[chosen])
        reached = special.ndtr(high) - penalty * np.maximum(low - at, 0) ** 2 / 2
        better = reached > value[chosen]
        tau[chosen] = np.where(better, high - at, tau[chosen])
        value[chosen] = np.where(better, reached, value[chosen])
    return np.where(finite, np.minimum(value + MARGIN, 1.0), value), tau


def psi1_probit(u: Array, lam: Array) -> tuple[Array, Array]:
    """Return a guaranteed upper value of Psi1 and its maximiser tau, from u = Phi^{-1}(p)."""
    u, lam = np.broadcast_arrays(u, lam)
    finite = np.isfinite(u)
    # phi(a) = lam for a >= 0; above phi(0) the maximiser is t = 0.
    a = np.sqrt(2 * np.maximum(math.log(PEAK) - np.log(lam), 0.0))
    stay = special.ndtr(u)
    tau = np.where(finite & (a > u), a - np.where(finite, u, 0.0), 0.0)
    shifted = special.ndtr(a) - lam * tau
    tau = np.where((tau > 0) & (shifted > stay), tau, 0.0)
    value = np.where(tau > 0, shifted, stay)
    return np.where(finite, np.minimum(value + MARGIN, 1.0), value), tau


def psi(p: ArrayLike, kappa: ArrayLike) -> FloatOrArray:
    """Return a guaranteed upper value of Psi(p, kappa) = sup_{t >= 0} Phi(Phi^{-1}(p) + t) - kappa t^2/2.

    Guarantee: for every loss with values in [0, M] and every p >= lhat(x0) / M,
    sup_x lhat(x) - gamma ||x - x0||^2 <= M Psi(p, kappa) with kappa = 2 gamma sigma^2 / M. It is an
    equality for half-spaces. The returned value exceeds Psi by about 1e-12.

    Args:
        p: Smoothed loss divided by its bound, in [0, 1], broadcast against `kappa`.
        kappa: Penalty per squared distance in units of the noise, > 0.

    Example:
        >>> f"{psi(0.1, 0.3):.10f}"
        '0.2539860032'
    """
    value, _ = psi_probit(special.ndtri(unit_interval("p", p)), positive("kappa", kappa))
    return result(value)


def psi_slope(p: ArrayLike, kappa: ArrayLike) -> FloatOrArray:
    """Return dPsi/dp = exp((u^2 - a^2) / 2), with u = Phi^{-1}(p) and a = u + t at the maximiser t.

    By the envelope theorem this is the weight of a change of p in the certificate. If two maximisers tie,
    Psi is not differentiable and one of its two one-sided derivatives is returned; at p = 0 and p = 1 the
    limit 1. A derivative, not a bound: it is not rounded.

    Args:
        p: Smoothed loss divided by its bound, in [0, 1], broadcast against `kappa`.
        kappa: Penalty per squared distance in units of the noise, > 0.
    """
    u = special.ndtri(unit_interval("p", p))
    _, tau = psi_probit(u, positive("kappa", kappa))
    return result(np.exp(-tau * (2 * np.where(np.isfinite(u), u, 0.0) + tau) / 2))


def psi1(p: ArrayLike, lam: ArrayLike) -> FloatOrArray:
    """Return a guaranteed upper value of Psi1(p, lam) = sup_{t >= 0} Phi(Phi^{-1}(p) + t) - lam t.

    Guarantee: for every loss with values in [0, M] and every p >= lhat(x0) / M,
    sup_x lhat(x) - gamma ||x - x0|| <= M Psi1(p, lam) with lam = gamma sigma / M. Closed form: the
    larger of p and Phi(a) - lam (a - u), where a >= 0 solves phi(a) = lam.

    Args:
        p: Smoothed loss divided by its bound, in [0, 1], broadcast against `lam`.
        lam: Penalty per distance in units of the noise, > 0.
    """
    value, _ = psi1_probit(special.ndtri(unit_interval("p", p)), positive("lam", lam))
    return result(value)


@dataclass(frozen=True)
class Surrogate:
    """T(u) = sup_{t >= 0} H(u + t) - penalty t^q / q, and H(u + t) for a fixed t.

    H(u) is the loss of the classifier if the base classifier errs with probability Phi(u): Phi(u)
    for one vote, P(Bin(k, Phi(u)) >= c) for k votes of which c are needed for a wrong answer (half of them, if they
    vote by majority), 1{u >= 0} for the exact majority. q is 2 for "w2" and 1 for "w1".
    """

    cost: Cost
    votes: int | None = 1
    """Noisy votes per prediction; None for the most probable class under noise, the limit of many votes."""
    agree: int | None = None
    """c, the wrong votes that a wrong answer needs; None for half of them, a tie included."""

    def __post_init__(self) -> None:
        if self.cost not in get_args(Cost):
            raise ValueError(f"cost must be one of {', '.join(get_args(Cost))}, got {self.cost!r}")
        if self.votes is not None:
            one_count("votes", self.votes, least=1)
        if self.agree is not None and not 1 <= one_count("agree", self.agree) <= (self.votes or 0):
            raise ValueError(f"agree must be in 1..votes ({self.votes}), got {self.agree}")

    @property
    def curvature(self) -> float:
        """A number c with H'' >= -c; it is preserved by suprema, so T + c u^2 / 2 is convex.

        One vote has H = Phi. With k votes H(u) is a [0, 1]-valued function on R^k smoothed by unit
        noise and shifted along the diagonal by u sqrt(k), so the sharp smoothness constant applies. The
        exact majority is discontinuous: c is infinite.
        """
        if self.votes is None:
            return math.inf
        return BEND if self.votes == 1 else 2 * BEND * self.votes

    @property
    def power(self) -> int:
        """q, the power of the distance in the transport cost."""
        return 1 if self.cost == "w1" else 2

    @property
    def tolerance(self) -> float:
        """Tolerance of the minimisation over the penalty; T of k votes is an upper bound, not exact."""
        return MARGIN if self.votes in (1, None) else 1e-6

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """Nodes between which the chord of H, raised by the curvature term, is an upper bound of H."""
        nodes = np.linspace(-EDGE, EDGE, 20_001)
        width = nodes[1] - nodes[0]
        return nodes, self._votes_lost(nodes) + self.curvature * width**2 / 8 + MARGIN

    def _votes_lost(self, u: Array) -> Array:
        assert self.votes is not None
        needed = self.agree or (self.votes + 1) // 2
        return special.betainc(needed, self.votes - needed + 1, special.ndtr(u))

    def shifted(self, u: Array, distance: float) -> Array:
        """Return an upper value of H(u + distance), distance in units of the noise."""
        if self.votes is None:
            return np.where(u >= -distance - MARGIN, 1.0, 0.0)
        value = special.ndtr(u + distance) if self.votes == 1 else self._votes_lost(u + distance)
        return np.where(np.isfinite(u), np.minimum(value + MARGIN, 1.0), value)

    def penalised(self, u: Array, penalty: Array) -> tuple[Array, Array]:
        """Return an upper value of T(u) and the cost t^q / q of the maximiser."""
        if self.votes is None:
            # The loss jumps from 0 to 1 when the majority changes.
            spent = np.maximum(-u - MARGIN, 0.0) ** self.power / self.power
            value = 1 - penalty * np.where(np.isfinite(spent), spent, 0.0)
            gains = np.isfinite(spent) & (value > 0)
            return np.where(gains, np.minimum(value + MARGIN, 1.0), 0.0), np.where(gains, spent, 0.0)
        if self.votes > 1:
            return self._penalised_votes(u, penalty, self.votes)
        if self.cost == "w1":
            return psi1_probit(u, penalty)
        value, tau = psi_probit(u, penalty)
        return value, tau**2 / 2

    def _penalised_votes(self, u: Array, penalty: Array, votes: int) -> tuple[Array, Array]:
        u, penalty = np.broadcast_arrays(u, penalty)
        power = self.power
        # Beyond `reach` the penalty exceeds the largest loss, or its derivative exceeds that of H, or
        # H is 1 up to rounding; a point below -EDGE is treated as -EDGE.
        at = np.clip(u, -EDGE, EDGE)
        reach = np.minimum((power / penalty) ** (1 / power), EDGE - at)
        if power == 2:
            reach = np.minimum(reach, _largest_slope(votes) / penalty)
        # On a cell the objective exceeds the larger end value by at most its curvature times width^2 / 8.
        cells = max(CELLS, math.ceil(100 * math.sqrt(votes)))
        widths = reach / cells
        slack = (self.curvature + (penalty if power == 2 else 0.0)) * widths**2 / 8
        value, spent = np.zeros(u.shape), np.zeros(u.shape)
        nodes, heights = self._table
        for cell in range(cells + 1):
            cost = (widths * cell) ** power / power
            reached = np.interp(at + widths * cell, nodes, heights) - penalty * cost
            better = reached > value
            value, spent = np.where(better, reached, value), np.where(better, cost, spent)
        value = np.minimum(value + slack + MARGIN, 1.0)
        return np.where(np.isneginf(u), 0.0, np.where(np.isposinf(u), 1.0, value)), spent

    def budgets(self, distances: Array) -> Array:
        """Return the transport budget of each Wasserstein radius in units of the noise."""
        return distances if self.cost == "w1" else distances**2 / 2

    def penalties(self, distances: Array) -> Array:
        """Return increasing penalties that bracket the minimiser for every distance."""
        if self.votes is None:
            # Unless every point can be misclassified, the farthest one misclassified is at least as far as the budget.
            top = self.power / distances.min() ** self.power
        else:
            # The maximiser t satisfies penalty t^(q - 1) = H'(u + t) <= largest slope, hence the upper end.
            top = _largest_slope(self.votes) / (1.0 if self.cost == "w1" else distances.min())
        low = min(1e-3, top / 10)
        return np.geomspace(low, top, max(int(3 * math.log10(top / low)), 4))


def _largest_slope(votes: int) -> float:
    """The largest derivative of H, from the sharp gradient bound as in `Surrogate.curvature`."""
    return PEAK * math.sqrt(votes)
