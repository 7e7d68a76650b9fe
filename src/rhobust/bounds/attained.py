"""What shifts that were found prove: lower bounds of the worst case."""

import numpy as np
from numpy.typing import ArrayLike

from rhobust.bounds.arguments import MARGIN, FloatOrArray, level, nonnegative, one_positive, points, result
from rhobust.bounds.confidence import betting_upper, shuffled


def moved_loss(
    squared_distances: ArrayLike, losses: ArrayLike, alpha: float, *, limit: float, bound: float
) -> tuple[float, float]:
    """Return what moving each point proves: an upper bound of the cost, and a lower bound of the loss reached.

    Guarantee: let (x_i, x_i') be independent pairs, x_i drawn from P0 and x_i' with the same label, and let
    `losses[i]` have mean lhat(x_i') given the pair, from fresh noise. With probability at least 1 - alpha the law
    of x' lies within the squared radius of the first number and has a mean loss of at least the second: both
    are betting bounds at alpha / 2.

    Args:
        squared_distances: ||x_i' - x_i||^2.
        losses: Mean loss at x_i' under a few draws, in [0, bound].
        alpha: Probability that one of the two fails.
        limit: The largest possible squared distance, known beforehand.
        bound: M, the largest loss.
    """
    limit, bound, half = one_positive("limit", limit), one_positive("bound", bound), level("alpha", alpha) / 2
    cost = points("squared_distances / limit", nonnegative("squared_distances", squared_distances) / limit)
    gain = points("1 - losses / bound", 1 - np.asarray(losses, dtype=np.float64) / bound)
    spent = limit * float(betting_upper(shuffled(cost), half)) * (1 + MARGIN)
    return spent, max(bound * (1 - float(betting_upper(shuffled(gain), half))) - MARGIN, 0.0)


def attained_loss(spent: ArrayLike, reached: ArrayLike, rho: ArrayLike) -> FloatOrArray:
    """Return a lower bound of the worst loss within each budget, from shifts of known cost and loss.

    Guarantee: if some distribution within the budget `spent[i]` has a loss of at least `reached[i]`, for
    every i, then the worst loss within `rho` is at least the returned value. The worst loss never falls
    and is concave in the budget, since a mixture of two shifts costs the mixture of their costs: so it
    lies above the least concave nondecreasing curve through the given points.

    Args:
        spent: Squared radii that the shifts need, upper bounds of them; one must be 0.
        reached: Lower bounds of the losses reached.
        rho: Squared radii asked for.
    """
    cost, loss = nonnegative("spent", spent).reshape(-1), np.asarray(reached, dtype=np.float64).reshape(-1)
    if cost.shape != loss.shape or not np.any(cost == 0):
        raise ValueError(f"spent must hold one budget for each loss, one of them 0, got {cost.size} for {loss.size}")
    order = np.lexsort((-loss, cost))
    hull: list[tuple[float, float]] = []
    for x, y in zip(cost[order], loss[order], strict=True):
        if hull and y <= hull[-1][1]:
            continue  # no more loss for no less money
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x0) > (y - y0) * (x1 - x0):
                break
            hull.pop()
        hull.append((float(x), float(y)))
    budgets, losses = (np.array(side) for side in zip(*hull, strict=True))
    return result(np.interp(nonnegative("rho", rho), budgets, losses) - MARGIN)
