"""Psi and the surrogate of k votes against quadrature, brute force and exact errors."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from rhobust.bounds import psi, psi1, psi_slope
from rhobust.bounds.surrogate import Surrogate, psi_probit


def lost(votes, u):
    """The error of so many votes where one errs with probability Phi(u): a tie is an error."""
    return stats.binom.sf((votes + 1) // 2 - 1, votes, special.ndtr(u))


@pytest.mark.parametrize("votes", [1, 2, 3, 5, 11, 101])
def test_no_loss_bends_down_more_than_its_bend(votes):
    u, width = np.linspace(-5, 5, 10_001, retstep=True)
    second = np.diff(lost(votes, u), 2) / width**2
    assert -Surrogate("w2", votes).curvature <= second.min() + 1e-6
    assert second.min() < -0.2


@pytest.mark.parametrize("votes", [2, 3, 11])
@pytest.mark.parametrize(("cost", "penalty"), [("w2", 0.05), ("w2", 1.0), ("w2", 1e3), ("w1", 0.1), ("w1", 0.5)])
def test_few_votes_lose_no_more_than_the_penalised_value(votes, cost, penalty):
    surrogate = Surrogate(cost, votes)
    u = np.concatenate([np.random.default_rng(0).uniform(-4, 3, 60), [-12.0, 9.0]])
    value, _ = surrogate.penalised(u, np.float64(penalty))
    # A fine grid of distances, up to where the penalty exceeds every gain, reaches almost the supremum.
    far = (surrogate.power / penalty) ** (1 / surrogate.power)
    t = np.concatenate([np.linspace(0, min(far, 12.0), 20_001), np.linspace(0, min(far, 12.0) / 100, 2001)])
    reached = np.max(lost(votes, u[:, None] + t) - penalty * t**surrogate.power / surrogate.power, axis=1)
    assert np.all(value >= reached)
    # Far below the grid a point counts as if it stood at its end.
    assert np.all(value[u > -8] <= reached[u > -8] + 3e-4)


@pytest.mark.parametrize("votes", [1, 2, 3, 11])
def test_a_move_without_a_price_is_exact(votes):
    u = np.linspace(-6, 6, 101)
    shifted = Surrogate("winf", votes).shifted(u, 0.7)
    assert np.all(shifted >= lost(votes, u + 0.7))
    assert shifted == pytest.approx(lost(votes, u + 0.7), abs=2e-12)


def test_a_majority_that_is_just_reached_is_turned():
    # At distance |u| the vote is a tie, which counts as an error; rounding must not make it a right answer.
    u = np.array([-3.0, -0.7, -0.1, -1e-3])
    for cost in ("w1", "w2", "winf"):
        surrogate = Surrogate(cost, None)
        assert all(surrogate.shifted(u[i : i + 1], -u[i])[0] == 1.0 for i in range(len(u)))
        exact = surrogate.power / np.abs(u) ** surrogate.power  # the penalty at which a turned vote gains nothing
        value, _ = surrogate.penalised(u, exact / 2)
        assert np.all(value >= 0.5)
        assert value == pytest.approx(np.full(4, 0.5), abs=1e-8)


PHI1 = math.exp(-0.5) / math.sqrt(2 * math.pi)

# p, kappa, Psi, maximiser: 40-digit arithmetic, reported to 14 digits.
TABLE = [
    (0.001, 0.02, 0.72597982115533, 4.78051942145),
    (0.001, 0.1, 0.04706248035672, 3.5647090923),
    (0.001, 0.3, 0.0010195820040616, 0.011633685551),
    (0.001, 1.0, 0.001005728440146, 0.00340266218315),
    (0.01, 0.02, 0.79384136102227, 4.10454354909),
    (0.01, 0.1, 0.30024179142563, 3.05632504139),
    (0.01, 0.3, 0.011522149613753, 0.115437182433),
    (0.01, 1.0, 0.010379100021772, 0.0284652629067),
    (0.1, 0.02, 0.87007442604259, 3.19538395969),
    (0.1, 0.1, 0.58134999554705, 2.32196683031),
    (0.1, 0.3, 0.2539860032298, 1.3283520683),
    (0.1, 1.0, 0.12005282944587, 0.229351045203),
    (0.3, 0.02, 0.91357239345732, 2.55225924822),
    (0.3, 0.1, 0.73696676050861, 1.79030690626),
    (0.3, 0.3, 0.53612220072216, 1.11619387991),
    (0.3, 1.0, 0.3705080710691, 0.395649339845),
    (0.5, 0.02, 0.93805322715789, 2.1178649565),
    (0.5, 0.1, 0.821396907617, 1.43165379001),
    (0.5, 0.3, 0.69445408176252, 0.89274089982),
    (0.5, 1.0, 0.57586160781445, 0.372238898036),
    (0.9, 0.02, 0.97929319950078, 1.11879513406),
    (0.9, 0.1, 0.95219129980304, 0.635341407414),
    (0.9, 0.3, 0.93023818189165, 0.350864128676),
    (0.9, 1.0, 0.91263316001901, 0.144347390619),
]


@pytest.mark.parametrize(("p", "kappa", "value", "tau"), TABLE)
def test_psi_table(p, kappa, value, tau):
    assert psi(p, kappa) == pytest.approx(value, rel=0, abs=2e-12)
    u = special.ndtri(p)
    # dPsi/dp = exp((u^2 - a^2) / 2) holds the maximiser: a = u + tau.
    assert psi_slope(p, kappa) == pytest.approx(math.exp(-tau * (2 * u + tau) / 2), rel=1e-9)


def test_psi_at_twice_the_sharp_threshold():
    found = psi([0.01, 0.1, 0.5], 2 * PHI1)
    assert found == pytest.approx([0.010846860508284, 0.161874896571, 0.63997217454541], rel=0, abs=2e-12)


@pytest.mark.parametrize(
    ("bound", "sigma", "gamma", "p", "value", "distance"),
    [
        (1, 0.1, 1.5, 0.05, 0.7877171920896, 0.331219227073),
        (1, 0.1, 5, 0.05, 0.4923237535309, 0.257894712779),
        (1, 0.1, 25, 0.05, 0.06707149723108, 0.0341039488434),
        (1, 0.25, 1.5, 0.05, 0.2637603333211, 0.499656649258),
        (1, 0.25, 0.25, 0.2, 0.8550730171615, 0.655267012034),
        (1, 0.5, 1, 0.01, 0.01081544943802, 0.0306843023781),
        (math.log(10), 0.1, 1.5, 0.1, 2.089927439581, 0.338084903709),
        (math.log(100), 0.25, 5, 0.03, 1.419039985473, 0.617611763742),
        (1, 0.5, 0.25, 0.001, 0.001049591394802, 0.0147471936376),
    ],
)
def test_psi_in_units_of_the_loss(bound, sigma, gamma, p, value, distance):
    kappa = 2 * gamma * sigma**2 / bound
    assert bound * psi(p, kappa) == pytest.approx(value, rel=0, abs=1e-11)
    _, tau = psi_probit(special.ndtri(p), np.float64(kappa))
    assert sigma * tau == pytest.approx(distance, rel=1e-10)


def test_no_maximiser_lies_between_the_critical_points():
    # Between them, at kappa = 0.1, the objective is convex; the maximiser jumps across as p grows.
    u = np.linspace(-6, 3, 4001)
    a = u + psi_probit(u, np.float64(0.1))[1]
    low, high = -2.050151286334, -0.259228087220
    assert np.all((a <= low) | (a >= high))
    assert np.any(a <= low - 0.1)
    assert np.any(a >= high + 0.1)
    for critical in (low, high):
        assert -critical * math.exp(-(critical**2) / 2) / math.sqrt(2 * math.pi) == pytest.approx(0.1, abs=1e-12)


def test_psi_slope_values():
    assert psi_slope([0.1, 0.3, 0.01], [0.3, 1.0, 0.1]) == pytest.approx(
        [2.27070887856, 1.13792851411, 11.4674648592], rel=1e-11
    )
    assert psi_slope([0.0, 1.0], 0.3).tolist() == [1.0, 1.0]


def test_psi1_values():
    found = psi1([0.01, 0.1, 0.5, 0.1], [0.1, 0.2, 0.05, 0.39])
    assert found == pytest.approx([0.5529090171968, 0.3886923319644, 0.8773250336272, 0.1], rel=0, abs=2e-12)
    assert psi1([0.3, 0.3], [0.4, 7.0]) == pytest.approx([0.3, 0.3], abs=2e-12)


@pytest.mark.parametrize("penalty", [1e-300, 1e-310, 5e-324])
def test_next_to_free_transport_brings_certain_loss(penalty):
    assert psi([1e-300, 0.1], penalty).tolist() == psi1([1e-300, 0.1], penalty).tolist() == [1.0, 1.0]


def test_certain_losses_stay_certain():
    for kappa in (1e-200, 1e-6, PHI1, 3.0, 1e8):
        assert psi([0.0, 1.0], kappa).tolist() == [0.0, 1.0]
        assert psi1([0.0, 1.0], kappa).tolist() == [0.0, 1.0]


def exact_psi(p, kappa):
    """The supremum in 40 digits: refine every local maximum of a fine grid by Newton's method."""
    u = special.ndtri(p)
    tau = np.linspace(0, min(math.sqrt(2 / kappa), 12 + abs(u)), 4001)
    height = special.ndtr(u + tau) - kappa * tau**2 / 2
    padded = np.concatenate([[-1.0], height, [-1.0]])
    peaks = np.flatnonzero((padded[1:-1] >= padded[:-2]) & (padded[1:-1] >= padded[2:]))
    best, start, kappa = mp.mpf(p), probit(p), mp.mpf(kappa)
    for peak in peaks:
        a = start + mp.mpf(float(tau[peak]))
        # Newton on the slope doubles its digits; at kappa = phi(1) the root is nearly triple and takes more steps.
        for _ in range(40):
            density = mp.npdf(a)
            curvature = -a * density - kappa
            step = (density - kappa * (a - start)) / curvature if curvature else mp.mpf(0)
            a = max(a - max(min(step, mp.mpf("0.01")), mp.mpf("-0.01")), start)
            if abs(step) < 1e-12:  # the value's error is of the order of its square
                break
        best = max(best, mp.ncdf(a) - kappa * (a - start) ** 2 / 2)
    return best


def probit(p):
    """Phi^{-1} in 40 digits by Newton's method, also where p is close to 0 or 1."""
    u = mp.mpf(float(special.ndtri(p)))
    for _ in range(2):  # 16 digits to start with, then 32, then 64
        u -= (mp.ncdf(u) - mp.mpf(p)) / mp.npdf(u)
    return u


def test_psi_is_never_below_the_truth():
    # 2,000 random inputs, a fifth of them where two local maxima merge.
    rng = np.random.default_rng(0)
    p = special.ndtr(rng.uniform(-6, 4, 2000))
    kappa = 10 ** rng.uniform(-3, 1.3, 2000)
    kappa[::10] = PHI1 * (1 + 1e-9)
    kappa[5::10] = PHI1 * (1 - 1e-9)
    found = psi(p, kappa)
    with mp.workdps(40):
        for i in range(2000):
            truth = exact_psi(float(p[i]), float(kappa[i]))
            assert found[i] >= truth, (p[i], kappa[i])
            assert found[i] <= truth + 2e-12, (p[i], kappa[i])


@pytest.mark.parametrize("tail", [1e-300, 1e-30, 1e-17])
def test_psi_far_in_the_tail(tail):
    for kappa in (1e-4, 0.02, PHI1, 2.0):
        value = psi(tail, kappa)
        tau = np.linspace(0, 60, 200_001)
        grid = np.max(special.ndtr(special.ndtri(tail) + tau) - kappa * tau**2 / 2)
        assert grid <= value <= grid + 1e-8


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1), st.floats(1e-4, 50), st.floats(1e-4, 50))
def test_psi_is_monotone_and_convex(p, q, kappa, other):
    low, high = sorted((p, q))
    assert low <= psi(low, kappa) <= psi(high, kappa) + 1e-13 <= 1 + 1e-13
    assert psi(p, max(kappa, other)) <= psi(p, min(kappa, other)) + 1e-13
    assert psi(p, (kappa + other) / 2) <= (psi(p, kappa) + psi(p, other)) / 2 + 2e-12
    assert psi1(low, kappa) <= psi1(high, kappa) + 1e-13
    assert psi1(p, (kappa + other) / 2) <= (psi1(p, kappa) + psi1(p, other)) / 2 + 2e-12


@settings(deadline=None)
@given(st.floats(0.001, 0.999), st.floats(0.01, 5))
def test_psi1_is_the_supremum(p, lam):
    tau = np.linspace(0, 12, 24_001)
    grid = np.max(special.ndtr(special.ndtri(p) + tau) - lam * tau)
    assert grid <= psi1(p, lam) <= grid + 1e-7


def test_half_space_attains_psi():
    # l(y) = 1{w.y >= c} in dimension d: lhat(x) = Phi((w.x - c) / sigma) for unit w, so along w the
    # supremum over x is the supremum over one number, here on a grid of steps 1e-4 sigma.
    sigma, gamma = 0.25, 3.0
    for dimension in (1, 3072):
        w = np.full(dimension, 1 / math.sqrt(dimension))
        x0 = np.linspace(0, 1, dimension)
        c = w @ x0 + 0.2
        t = np.linspace(0, 2, 80_001)
        supremum = np.max(special.ndtr((w @ x0 + t * (w @ w) - c) / sigma) - gamma * t**2)
        bound = psi(special.ndtr((w @ x0 - c) / sigma), 2 * gamma * sigma**2)
        assert supremum <= bound <= supremum + 1e-8


def checkerboard(edges, values, x, y, sigma):
    """The exact smoothed loss on a grid of (x, y) when the loss is constant on rectangles."""

    def share(at):
        walls = np.concatenate([[-np.inf], edges, [np.inf]])
        return np.diff(special.ndtr((walls[None] - at[:, None]) / sigma), axis=1)

    return share(x) @ values @ share(y).T


def test_no_loss_in_the_plane_exceeds_psi():
    rng = np.random.default_rng(7)
    sigma = 0.5
    edges = np.linspace(-1.2, 1.2, 6)
    x = np.linspace(-3, 3, 121)
    distance = x[:, None] ** 2 + x[None] ** 2
    for case in range(40):
        values = rng.random((7, 7)) if case % 2 else (rng.random((7, 7)) < rng.random()).astype(float)
        smoothed = checkerboard(edges, values, x, x, sigma)
        for kappa in (0.05, 0.2, 0.5, 2.0):
            supremum = np.max(smoothed - kappa / (2 * sigma**2) * distance)
            assert supremum <= psi(smoothed[60, 60], kappa)
    # A half-plane among the same losses is tight, so the check has teeth.
    half = np.repeat(np.arange(7) >= 4, 7).reshape(7, 7).astype(float)
    smoothed = checkerboard(edges, half, x, x, sigma)
    supremum = np.max(smoothed - 0.2 / (2 * sigma**2) * distance)
    assert supremum == pytest.approx(psi(smoothed[60, 60], 0.2), abs=1e-3)


def test_where_both_maxima_meet_none_is_lost():
    """Just below phi(1) rounding denied both brackets: tau = 1 attains more than p alone."""
    p, kappa = 0.022750131947873755, 0.24197072451777446
    supremum = special.ndtr(special.ndtri(p) + 1) - kappa / 2
    assert supremum > 0.0376
    assert psi(p, kappa) >= supremum
