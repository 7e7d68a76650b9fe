"""The search for the best transport price."""

from collections.abc import Callable

import numpy as np

from rhobust.bounds.arguments import Array


def lowest_total(
    evaluate: Callable[[Array], tuple[Array, Array]],
    budgets: Array,
    prices: Array,
    *,
    ceiling: float,
    tolerance: float,
) -> Array:
    """Return min over prices of price * budget + value(price), for each budget.

    Guarantee: every returned number is the total at a price that was evaluated, or at price zero, so it
    is a valid upper bound whenever each value is. `value` is convex, so its tangents bound it from
    below; the search adds the price where two of them cross until the best total is within `tolerance`
    of that bound. All evaluations serve all budgets.

    Args:
        evaluate: Maps prices to values and slopes; wrong slopes could only cost tightness.
        budgets: What may be spent, one number for each question.
        prices: Where to begin, increasing.
        ceiling: The value at price zero.
        tolerance: Distance from the best total at which to stop.
    """
    values, slopes = evaluate(prices)
    for _ in range(60):
        wanted = set()
        for budget in budgets:
            best = min(ceiling, np.min(prices * budget + values))
            rising = np.flatnonzero(slopes + budget >= 0)
            if rising.size == 0:
                continue  # the best price lies at the upper end, up to rounding
            right = int(rising[0])
            x1 = prices[right]
            if right == 0:
                # Between zero and the first price the total is at least the tangent's value at zero, and at least the
                # value at that price, from which the total there is no further than what is paid.
                if best - (values[0] - slopes[0] * x1) > tolerance and x1 * budget > tolerance:
                    wanted.add(float(x1) / 10)
                continue
            left = right - 1
            x0 = prices[left]
            cross = values[left] - slopes[left] * x0 - values[right] + slopes[right] * x1
            x = cross / (slopes[right] - slopes[left])
            floor = x * budget + values[left] + slopes[left] * (x - x0)
            if best - floor > tolerance and x1 - x0 > 1e-9 * x1:
                # Kept off the ends, so that the bracket shrinks even if rounding misplaces the crossing.
                wanted.add(float(np.clip(x, x0 + 0.02 * (x1 - x0), x1 - 0.02 * (x1 - x0))))
        if not wanted:
            break
        more = np.array(sorted(wanted))
        more_values, more_slopes = evaluate(more)
        order = np.argsort(np.concatenate([prices, more]))
        prices = np.concatenate([prices, more])[order]
        values = np.concatenate([values, more_values])[order]
        slopes = np.concatenate([slopes, more_slopes])[order]
    return np.minimum(np.min(prices * budgets[:, None] + values, axis=1), ceiling)
