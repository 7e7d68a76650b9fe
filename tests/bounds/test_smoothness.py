"""Hessian and gradient bounds, and the gap certificate of the concave regime."""

import math

import numpy as np
import pytest
from scipy import optimize, special, stats

from rhobust.bounds import (
    concavity_threshold,
    curvature_lower,
    curvature_upper,
    gap_bound,
    gradient_blocks,
    gradient_bound,
    psi,
    smoothness,
    squared_gradient_upper,
)

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


SIGMA, DIMENSION = 0.25, 300


class Ramp:
    """l(x) = Phi(slope w.x + b) for a unit vector w: its smoothed loss is known, and much flatter than the worst."""

    def __init__(self, slope, p):
        self.slope, self.scale = slope, np.sqrt(1 + (slope * SIGMA) ** 2)
        self.offset = special.ndtri(p) * self.scale

    def smoothed(self, t):
        """Value, and derivative along w, at distance t along w."""
        a = (self.offset + self.slope * t) / self.scale
        return special.ndtr(a), self.slope / self.scale * stats.norm.pdf(a)

    def surrogate(self, gamma):
        t = np.linspace(0, 1, 100_001)
        return np.max(self.smoothed(t)[0] - gamma * t**2)


def products(ramp, t, gamma, blocks, half, rng):
    """Products of two independent estimates of grad F at distance t along w, the first axis."""
    found = []
    for _ in range(blocks):
        z = rng.normal(0, SIGMA, (2, half, DIMENSION))
        loss = special.ndtr(ramp.offset + ramp.slope * (t + z[..., 0]))
        scores = np.einsum("bh,bhd->bd", loss - 0.5, z) / (half * SIGMA**2)
        scores[:, 0] -= 2 * gamma * t
        found.append(scores[0] @ scores[1])
    return np.array(found)


def test_blocks():
    # P(Bin(3, 1/5) >= 2) = 0.104 and P(Bin(5, 1/5) >= 3) = 0.058.
    assert [gradient_blocks(alpha) for alpha in (0.2, 0.11, 0.1, 0.06)] == [1, 3, 5, 5]
    assert gradient_blocks(1e-3) % 2 == 1
    assert stats.binom.sf(gradient_blocks(1e-3) // 2, gradient_blocks(1e-3), 0.2) <= 1e-3


def test_a_vanishing_gradient_proves_the_maximum():
    ramp, gamma = Ramp(0.5, 0.382969), 2 * concavity_threshold(1.0, SIGMA)
    truth = ramp.surrogate(gamma)
    value, slope = ramp.smoothed(0.0)
    at_x0 = gap_bound(value, slope**2, gamma, bound=1.0, sigma=SIGMA)
    assert truth == pytest.approx(0.38413, abs=1e-5)
    assert at_x0 == pytest.approx(0.38529, abs=1e-5)
    # The bound from the value alone is far off for so flat a loss.
    assert psi(value, 2 * gamma * SIGMA**2) == pytest.approx(0.46336, abs=1e-5)
    # One exact fixed-point step x0 + grad / (2 gamma) nearly closes the gap.
    t = slope / (2 * gamma)
    value, slope = ramp.smoothed(t)
    after = gap_bound(value - gamma * t**2, (slope - 2 * gamma * t) ** 2, gamma, bound=1.0, sigma=SIGMA)
    assert truth <= after < truth + 1e-6


def test_near_the_threshold_the_gap_is_wide():
    ramp, gamma = Ramp(0.5, 0.38), 1.01 * concavity_threshold(1.0, SIGMA)
    value, slope = ramp.smoothed(0.0)
    assert gap_bound(value, slope**2, gamma, bound=1.0, sigma=SIGMA) > psi(value, 2 * gamma * SIGMA**2)


def test_the_sampled_gradient_bound_covers_and_is_useful():
    # 60 repetitions at alpha = 0.1; false-alarm rate below 1e-6.
    rng = np.random.default_rng(0)
    ramp, gamma, half = Ramp(0.5, 0.38), 2 * concavity_threshold(1.0, SIGMA), 200
    truth = ramp.smoothed(0.0)[1] ** 2
    found = np.array([products(ramp, 0.0, gamma, gradient_blocks(0.1), half, rng) for _ in range(60)])
    upper = squared_gradient_upper(found, half, DIMENSION, 0.1, bound=1.0, sigma=SIGMA)
    assert np.count_nonzero(upper < truth) <= stats.binom.isf(1e-6, 60, 0.1)
    # sqrt(d) v / half, the standard deviation of a product, decides how much is lost.
    assert np.median(upper) < truth + 6 * np.sqrt(DIMENSION) / (4 * SIGMA**2) / half


def test_solves_its_equation():
    values = np.array([0.3, 0.5, 0.9, 0.7, 0.1])
    upper = squared_gradient_upper(values, 50, 10, 0.06, bound=2.0, sigma=0.5)
    variance = 4 / (4 * 0.25)
    spread = np.sqrt(10 * variance**2 / 2500 + 2 * variance * upper / 50)
    assert upper == pytest.approx(0.5 + 2 * spread, rel=1e-9)
    assert squared_gradient_upper([-1e6], 50, 10, 0.2, bound=2.0, sigma=0.5) == 0.0


def test_refuses():
    with pytest.raises(ValueError, match=r"gamma must exceed the concavity threshold 3\.87153, got 3\.8"):
        gap_bound(0.1, 0.0, 3.8, bound=1.0, sigma=SIGMA)
    with pytest.raises(ValueError, match="an odd number of at least 5 values"):
        squared_gradient_upper([1.0, 2.0, 3.0], 50, 10, 0.06, bound=1.0, sigma=SIGMA)
