import math

import numpy as np
import pytest
from scipy import optimize, special

from rhobust.bounds import concavity_threshold, curvature_lower, curvature_upper, gradient_bound, smoothness

PHI1 = 0.24197072451914337


def test_constants():
    assert smoothness(1.0, 1.0) == pytest.approx(0.4839414490382867, rel=2e-12)
    assert concavity_threshold(1.0, 1.0) == pytest.approx(PHI1, rel=2e-12)
    assert smoothness(3.0, 0.1) == pytest.approx(3 * 48.39414490382867, rel=2e-12)
    assert concavity_threshold([1.0, 2.0], 0.1) == pytest.approx([24.197072452, 48.394144904], rel=1e-10)
    # Rounded outward, by more than float64 can be off.
    assert smoothness(1.0, 1.0) > 2 * PHI1 * (1 + 1e-13)
    assert concavity_threshold(1.0, 1.0) > PHI1 * (1 + 1e-13)
    # The threshold published with the method, 2 M / sigma^2, is this many times larger.
    assert 2 / concavity_threshold(1.0, 1.0) == pytest.approx(8.265463, rel=1e-7)


def slab(x, sigma):
    """Smoothed 1{|y| >= sigma}."""
    return special.ndtr((x - sigma) / sigma) + special.ndtr((-x - sigma) / sigma)


@pytest.mark.parametrize("sigma", [0.05, 0.1, 0.25, 1.0])
def test_slab_attains_the_smoothness(sigma):
    h = 1e-3 * sigma
    second = (slab(h, sigma) - 2 * slab(0.0, sigma) + slab(-h, sigma)) / h**2
    assert second == pytest.approx(smoothness(1.0, sigma), rel=1e-5)


def test_concavity_flips_at_the_threshold():
    sigma = 0.1
    x = np.linspace(-0.1, 0.1, 200_001)
    for factor, farthest in ((0.99, 0.0174), (1.01, 0.0)):
        total = slab(x, sigma) - factor * concavity_threshold(1.0, sigma) * x**2
        assert abs(x[np.argmax(total)]) == pytest.approx(farthest, abs=1e-4)


def test_value_dependent_curvature():
    assert curvature_upper([0.01, 0.1, 0.5], 1.0, 1.0) == pytest.approx(
        [0.0744917, 0.3392861, 0.4286741], rel=0, abs=5e-8
    )
    assert curvature_lower([0.99, 0.9, 0.5], 1.0, 1.0) == pytest.approx(
        [-0.0744917, -0.3392861, -0.4286741], rel=0, abs=5e-8
    )
    assert curvature_upper([0.0, 1.0], 1.0, 1.0) == pytest.approx([0.0, 0.0], abs=2e-12)
    # The largest value over p is the uniform constant, at p = 2 (1 - Phi(1)).
    p = np.linspace(0, 1, 100_001)
    assert np.max(curvature_upper(p, 2.0, 0.5)) == pytest.approx(smoothness(2.0, 0.5), rel=1e-8)
    assert p[np.argmax(curvature_upper(p, 2.0, 0.5))] == pytest.approx(0.3173105, abs=1e-4)


def test_gradient_bound():
    assert gradient_bound(0.5, 1.0, 1.0) == pytest.approx(0.3989423, abs=5e-8)
    assert gradient_bound([0.0, 1.0], 1.0, 1.0) == pytest.approx([0.0, 0.0], abs=2e-12)
    # A half-space attains it.
    u, h = -1.3, 1e-6
    slope = (special.ndtr(u + h) - special.ndtr(u - h)) / (2 * h)
    assert gradient_bound(special.ndtr(u), 1.0, 1.0) == pytest.approx(slope, rel=1e-8)


def test_no_step_loss_bends_more():
    # Losses that are constant between random points, smoothed exactly; the second derivative of the
    # smoothed indicator of (-inf, c] at x is that of Phi(c - x).
    rng = np.random.default_rng(11)
    widest = 0.0
    for _ in range(300):
        edges = np.sort(rng.normal(0, 1.5, 6))
        heights = rng.integers(0, 2, 7).astype(float)
        jumps = np.diff(heights)
        x = rng.normal()
        density = np.exp(-((edges - x) ** 2) / 2) / math.sqrt(2 * math.pi)
        value = heights[0] + jumps @ special.ndtr(x - edges)
        second = jumps @ ((edges - x) * density)
        assert curvature_lower(value, 1.0, 1.0) <= second <= curvature_upper(value, 1.0, 1.0)
        assert abs(jumps @ density) <= gradient_bound(value, 1.0, 1.0)
        widest = max(widest, abs(second))
    assert 0.35 < widest <= smoothness(1.0, 1.0)


def test_no_loss_bends_more_at_a_given_value():
    # The largest second derivative at value p as a linear programme over losses on a fine grid.
    x = np.linspace(-6, 6, 601)
    mass = np.diff(special.ndtr(np.linspace(-6.01, 6.01, 602)))
    mass /= mass.sum()
    for p in (0.05, 0.3, 0.8):
        best = optimize.linprog(-mass * (x**2 - 1), A_eq=mass[None], b_eq=[p], bounds=(0, 1))
        assert -best.fun == pytest.approx(curvature_upper(p, 1.0, 1.0), abs=2e-3)
