"""The worst loss near one point, as a function of its probit, for each transport cost and classifier."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import numpy as np
from scipy import special

from rhobust.bounds.arguments import MARGIN, Array, one_count
from rhobust.bounds.curvature import BEND, PEAK
from rhobust.bounds.psi import psi1_probit, psi_probit

Cost: TypeAlias = Literal["w1", "w2", "winf"]

EDGE = 8.0
"""Probit beyond which a probability differs from 0 or 1 by less than 1e-15."""

CELLS = 512
"""Cells, at least, on which the movement of a k-vote classifier is searched: more where it bends more."""


@dataclass(frozen=True)
class Surrogate:
    """T(u) = sup_{t >= 0} H(u + t) - price t^q / q, and H(u + t) for a fixed t.

    H(u) is the loss of the classifier where the base classifier errs with probability Phi(u): Phi(u)
    itself for one vote, P(Bin(k, Phi(u)) >= k/2) for k votes, 1{u >= 0} for the exact majority. q is 2
    for "w2" and 1 for "w1".
    """

    cost: Cost
    votes: int | None = 1
    """Noisy votes of an answer; None for the class most probable under noise, the limit of many votes."""

    def __post_init__(self) -> None:
        if self.cost not in get_args(Cost):
            raise ValueError(f"cost must be one of {', '.join(get_args(Cost))}, got {self.cost!r}")
        if self.votes is not None:
            one_count("votes", self.votes, least=1)

    @property
    def bend(self) -> float:
        """A number c such that H'' >= -c; suprema keep it, so that T'' >= -c in the sense of chords.

        One vote has H = Phi. With k votes H(u) is a [0, 1]-valued function on R^k smoothed by unit
        noise and moved along the diagonal by u sqrt(k), so the sharp smoothness constant applies. The
        majority jumps: no such number exists, and infinity says so.
        """
        if self.votes is None:
            return math.inf
        return BEND if self.votes == 1 else 2 * BEND * self.votes

    @property
    def power(self) -> int:
        """q, the power of the distance that is paid for."""
        return 1 if self.cost == "w1" else 2

    @property
    def tolerance(self) -> float:
        """How closely a price search over T is worth while: T of a few votes is not exact."""
        return MARGIN if self.votes in (1, None) else 1e-6

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """Nodes between which the chord of H, raised by the bend, is an upper bound of H."""
        nodes = np.linspace(-EDGE, EDGE, 20_001)
        width = nodes[1] - nodes[0]
        return nodes, self._votes_lost(nodes) + self.bend * width**2 / 8 + MARGIN

    def _votes_lost(self, u: Array) -> Array:
        assert self.votes is not None
        half = (self.votes + 1) // 2
        return special.betainc(half, self.votes - half + 1, special.ndtr(u))

    def moved(self, u: Array, distance: float) -> Array:
        """Return an upper value of H(u + distance), distance in units of the noise."""
        if self.votes is None:
            return np.where(u >= -distance - MARGIN, 1.0, 0.0)
        value = special.ndtr(u + distance) if self.votes == 1 else self._votes_lost(u + distance)
        return np.where(np.isfinite(u), np.minimum(value + MARGIN, 1.0), value)

    def priced(self, u: Array, price: Array) -> tuple[Array, Array]:
        """Return an upper value of T(u) and the t^q / q spent at the maximiser."""
        if self.votes is None:
            # Nothing is gained before the majority turns, and nothing after.
            spent = np.maximum(-u - MARGIN, 0.0) ** self.power / self.power
            value = 1 - price * np.where(np.isfinite(spent), spent, 0.0)
            pays = np.isfinite(spent) & (value > 0)
            return np.where(pays, np.minimum(value + MARGIN, 1.0), 0.0), np.where(pays, spent, 0.0)
        if self.votes > 1:
            return self._priced_votes(u, price, self.votes)
        if self.cost == "w1":
            return psi1_probit(u, price)
        value, tau = psi_probit(u, price)
        return value, tau**2 / 2

    def _priced_votes(self, u: Array, price: Array, votes: int) -> tuple[Array, Array]:
        u, price = np.broadcast_arrays(u, price)
        power = self.power
        # Beyond `reach` either the penalty exceeds the whole loss, or it grows faster than H can, or
        # H is 1 up to rounding; below -EDGE the point is treated as if it stood at -EDGE.
        at = np.clip(u, -EDGE, EDGE)
        reach = np.minimum((power / price) ** (1 / power), EDGE - at)
        if power == 2:
            reach = np.minimum(reach, _steepest(votes) / price)
        # On a cell the objective exceeds the larger of its ends by at most its bend times width^2 / 8.
        cells = max(CELLS, math.ceil(100 * math.sqrt(votes)))
        widths = reach / cells
        slack = (self.bend + (price if power == 2 else 0.0)) * widths**2 / 8
        value, spent = np.zeros(u.shape), np.zeros(u.shape)
        nodes, heights = self._table
        for cell in range(cells + 1):
            paid = (widths * cell) ** power / power
            reached = np.interp(at + widths * cell, nodes, heights) - price * paid
            better = reached > value
            value, spent = np.where(better, reached, value), np.where(better, paid, spent)
        value = np.minimum(value + slack + MARGIN, 1.0)
        return np.where(np.isneginf(u), 0.0, np.where(np.isposinf(u), 1.0, value)), spent

    def budgets(self, distances: Array) -> Array:
        """Return what each Wasserstein radius, in units of the noise, allows to be spent."""
        return distances if self.cost == "w1" else distances**2 / 2

    def prices(self, distances: Array) -> Array:
        """Return prices that surround the best price of every distance."""
        if self.votes is None:
            # Unless every point can be turned, the dearest one turned lies at least as far as the budget.
            top = self.power / distances.min() ** self.power
        else:
            # The maximiser t satisfies price t^(q - 1) = H'(u + t) <= steepest, hence the upper end.
            top = _steepest(self.votes) / (1.0 if self.cost == "w1" else distances.min())
        low = min(1e-3, top / 10)
        return np.geomspace(low, top, max(int(3 * math.log10(top / low)), 4))


def _steepest(votes: int) -> float:
    """The largest slope of H, by the argument of `Surrogate.bend` from the sharp gradient bound."""
    return PEAK * math.sqrt(votes)
