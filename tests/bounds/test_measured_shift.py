"""The loss after a measured shift, against optimised couplings and simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special, stats

from rhobust.bounds import (
    betting_upper,
    eps_upper,
    excess_upper,
    k_vote_worst_case,
    majority_worst_case,
    measured_loss,
    measured_shift,
    population_loss,
    psi,
    recentred_loss,
    shuffle,
    worst_case_loss,
)

SIGMA = 0.5
ATOMS = np.array([0.01, 0.1, 0.45])
GRID = {"least": 1 / 255, "most": 8.0}


@given(st.floats(1e-6, 1 - 1e-6), st.floats(0, 4), st.floats(0, 3), st.floats(0.01, 5))
def test_the_charge_covers_every_move(p, distance, free, scale):
    # Phi(u + D / sigma) is what a half space loses: the two terms must cover it at every distance.
    worst = special.ndtr(special.ndtri(p) + distance / SIGMA)
    start = special.ndtr(special.ndtri(p) + free / SIGMA)
    charge = min((max(distance - free, 0) / scale) ** 2, 1)
    assert worst <= psi(start, 2 * (SIGMA / scale) ** 2) + charge + 1e-9


def worst_coupling(p, distances):
    """The largest mean of Phi(u + D / sigma) over couplings of uniform p and uniform distances: an assignment."""
    u = np.repeat(special.ndtri(p), math.lcm(len(p), len(distances)) // len(p))
    d = np.repeat(distances, len(u) // len(distances))
    gain = special.ndtr(u[:, None] + d / SIGMA)
    return gain[optimize.linear_sum_assignment(gain, maximize=True)].mean()


@pytest.mark.parametrize(
    "distances",
    [
        np.full(10, 0.2),
        np.linspace(0.1, 0.4, 10),
        np.r_[np.full(9, 0.05), 1.0],
    ],
)
def test_no_coupling_of_these_distances_costs_more_and_not_much_less(distances):
    rng = np.random.default_rng(0)
    truth = worst_coupling(ATOMS, distances)
    errors = rng.binomial(20, rng.permutation(np.repeat(ATOMS, 5000)))
    found = measured_loss(errors, 20, rng.permutation(np.repeat(distances, 1000)), SIGMA, 1e-3, **GRID)
    assert truth <= found.loss <= truth + 0.08


def test_distances_of_one_size_cost_less_than_their_eps_alone():
    # The W2 ball of the same eps lets the adversary spend all of it on a few points; equal distances do not.
    errors = np.random.default_rng(1).binomial(10, np.repeat(ATOMS, 3000))
    found = measured_loss(errors, 10, np.full(9000, 0.3), SIGMA, 1e-3, **GRID)
    assert found.loss < population_loss(errors, 10, 0.3**2, SIGMA, 1e-3) - 0.01
    assert found.free > 0


def test_an_outlier_costs_its_share_and_not_its_distance():
    errors = np.random.default_rng(2).binomial(8, np.repeat(ATOMS, 1000))
    near = np.random.default_rng(3).permutation(np.r_[np.full(2990, 0.1), np.full(10, 0.2)])
    far = np.where(near > 0.15, 8.0, near)
    without, with_outliers = (measured_loss(errors, 8, d, SIGMA, 1e-3, **GRID).loss for d in (near, far))
    assert without < with_outliers < without + 0.015
    assert eps_upper(far, 8.0, 1e-3, least=1 / 255).uncapped > eps_upper(near, 8.0, 1e-3, least=1 / 255).uncapped > 0.1


def test_no_change_costs_the_confidence_alone():
    errors = np.random.default_rng(4).binomial(8, np.repeat(ATOMS, 1000))
    found = measured_loss(errors, 8, np.zeros(3000), SIGMA, 1e-3, **GRID)
    still = population_loss(errors, 8, 0.0, SIGMA, 5e-4)
    assert still < found.loss < still + 0.01


def test_the_loss_is_the_sum_that_the_record_can_check():
    errors = np.random.default_rng(5).binomial(10, np.repeat(ATOMS, 200))
    distances = np.random.default_rng(6).uniform(0, 0.3, 600)
    found = measured_loss(errors, 10, distances, SIGMA, 0.02, **GRID)
    pairs = 4 * len(measured_shift.caps(**GRID))
    assert found.excess == excess_upper(distances, found.free, found.scale, 0.01 / pairs)
    charge = np.minimum((np.maximum(distances - found.free, 0) / found.scale) ** 2, 1)
    assert found.excess == betting_upper(shuffle(charge), 0.01 / pairs)
    # What is left is the bound of the population's loss, at least its plain mean.
    shifted = psi(special.ndtr(special.ndtri(ATOMS) + found.free / SIGMA), 2 * (SIGMA / found.scale) ** 2)
    assert np.mean(shifted) < found.loss - found.excess < np.mean(shifted) + 0.2


def test_far_moves_leave_nothing_certified():
    found = measured_loss(np.zeros(100), 10, np.full(100, 8.0), SIGMA, 1e-3, **GRID)
    assert found == (1.0, 0.0, math.inf, 0.0)


def test_eps_upper_is_betting_on_the_first_cap_that_no_distance_exceeds():
    distances = np.random.default_rng(7).uniform(0.1, 0.3, 500)
    caps = measured_shift.caps(1 / 255, 8.0)
    found = eps_upper(distances, 8.0, 0.01, least=1 / 255)
    assert found.cap == caps[caps >= distances.max()][0]
    for cap, bound in ((found.cap, found.capped), (8.0, found.uncapped)):
        scaled = np.minimum(distances / cap, 1) ** 2
        assert bound == pytest.approx(cap * math.sqrt(betting_upper(shuffle(scaled), 0.01 / len(caps))), rel=1e-9)
    assert math.sqrt(np.mean(distances**2)) < found.capped < 0.23 < found.uncapped
    assert (np.diff(np.log2(caps)) <= 0.25 + 1e-9).all()
    assert (caps[0], caps[-1]) == (1 / 255, 8.0)


def test_sorted_distances_do_not_sway_the_bounds():
    # Sorted from near to far, bets on the distances as they come are won by the order alone: the bound is below
    # the very mean.
    distances = np.sort(np.random.default_rng(12).uniform(0, 1, 2000))
    truth = np.mean(distances**2)
    assert betting_upper(distances**2, 0.01) < truth
    for values in (distances, distances[::-1]):
        assert excess_upper(values, 0.0, 1.0, 0.01) > truth
        assert eps_upper(values, 4.0, 0.01, least=0.1).capped > math.sqrt(truth)


def test_eps_upper_covers():
    # A change that moves one image in fifty very far; 150 repetitions at alpha = 0.1, false-alarm rate below 1e-6.
    rng = np.random.default_rng(8)
    misses = 0
    for _ in range(150):
        distances = np.where(rng.random(100) < 0.02, 3.0, rng.uniform(0, 0.4, 100))
        found = eps_upper(distances, 4.0, 0.1, least=0.1)
        low, top = min(found.cap, 0.4), min(found.cap, 3.0)
        capped = 0.98 * low**3 / 3 / 0.4 + 0.98 * (0.4 - low) / 0.4 * low**2 + 0.02 * top**2
        misses += found.capped < math.sqrt(capped) or found.uncapped < math.sqrt(0.98 * 0.4**2 / 3 + 0.02 * 9)
    assert misses <= stats.binom.isf(1e-6, 150, 0.1)


def check_coverage(repetitions, points, alpha, seed):
    """Points move along their gradient, the weak ones further, some all the way; the truth is known."""
    rng = np.random.default_rng(seed)
    distance = np.array([0.05, 0.2, 0.3])
    truth = 0.98 * special.ndtr(special.ndtri(ATOMS) + distance / SIGMA).mean() + 0.02
    misses, slack = 0, []
    for _ in range(repetitions):
        kind = rng.integers(3, size=points)
        shifted = np.where(rng.random(points) < 0.02, 8.0, distance[kind])
        found = measured_loss(rng.binomial(4, ATOMS[kind]), 4, shifted, SIGMA, alpha, **GRID)
        misses += found.loss < truth
        slack.append(found.loss - truth)
    assert misses <= stats.binom.isf(1e-6, repetitions, alpha)
    assert np.median(slack) < 0.45


def test_measured_loss_covers(monkeypatch):
    monkeypatch.setattr(measured_shift, "TRIED", 2)
    check_coverage(16, 200, 0.3, seed=9)


@pytest.mark.slow
def test_measured_loss_covers_often():
    check_coverage(300, 200, 0.3, seed=10)
    check_coverage(100, 1000, 0.05, seed=11)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"errors": [11]}, "errors must be <= draws = 10, got 11"),
        ({"distances": [-0.1]}, "distances must be >= 0"),
        ({"distances": [math.nan]}, "distances must be >= 0 and finite, got nan"),
        ({"distances": [9.0]}, "distances must be <= most = 8, got 9"),
        ({"distances": []}, r"distances must hold one number per pair, got shape \(0,\)"),
        ({"sigma": 0.0}, "sigma must be > 0"),
        ({"alpha": 1.0}, r"alpha must be in \(0, 1\)"),
        ({"least": 9.0}, "most must be >= least = 9, got 8"),
    ],
)
def test_bad_arguments_are_refused(changes, message):
    good = {"errors": [1], "draws": 10, "distances": [0.1], "sigma": 0.5, "alpha": 0.01, **GRID}
    with pytest.raises(ValueError, match=message):
        measured_loss(**(good | changes))


def test_bad_prices_are_refused():
    with pytest.raises(ValueError, match="free must be >= 0"):
        excess_upper([0.1], -1.0, 1.0, 0.1)
    with pytest.raises(ValueError, match="scale must be > 0"):
        excess_upper([0.1], 0.0, 0.0, 0.1)


def changed_half_space(rng, n, share, draws, margins=(2.5, 0.8), moved=0.4):
    """Votes of a half-space at inputs with these margins, before and after moving a share of them to the border.

    Returns the counts of `recentred_loss` and the error probabilities after the change; margins in units of sigma.
    """
    before = rng.choice(margins, n)
    after = before - moved * (rng.random(n) < share)
    noise, others = rng.standard_normal((n, draws)), rng.standard_normal((n, draws))
    votes, changed = (noise < margin[:, None] for margin in (before, after))
    pseudo = 2 * (others < before[:, None]).sum(1) > draws
    return {
        "disagreements": (changed != pseudo[:, None]).sum(1),
        "mislabelled": ~pseudo,
        "errors": (~votes).sum(1),
        "differing": (votes != changed).sum(1),
        "errors_after": (~changed).sum(1),
    }


def after_change(share, margins=(2.5, 0.8), moved=0.4):
    atoms = [margin - shift for margin in margins for shift in (moved, 0.0)]
    weights = [mass / len(margins) for _ in margins for mass in (share, 1 - share)]
    return special.ndtr(-np.repeat(atoms, np.rint(np.array(weights) * 1000).astype(int)))


@pytest.mark.parametrize(("margins", "source"), [((2.5, 2.0), "pseudo-labels"), ((0.6, 0.3), "disagreement")])
def test_around_the_changed_data_no_label_is_needed(margins, source):
    counts = changed_half_space(np.random.default_rng(5), 20_000, 0.5, 20, margins, moved=0.1)
    rho = np.square([0.0, 0.1])
    truth = worst_case_loss(after_change(0.5, margins, 0.1), rho, SIGMA)
    del counts["errors_after"]
    found = recentred_loss(counts.pop("disagreements"), 20, rho, SIGMA, 1e-3, **counts)
    assert (found.loss >= truth).all()
    assert found.source[0] == source
    assert found.loss[0] < truth[0] + (0.03 if source == "pseudo-labels" else 0.09)
    # The change moved inputs by 0.1 sigma; that it was measured by votes costs less than any bound from its size
    # would, if it had moved them along the border and not across.
    still = recentred_loss(
        np.zeros(5000),
        20,
        rho,
        SIGMA,
        1e-3,
        mislabelled=np.zeros(5000),
        errors=np.zeros(5000),
        differing=np.zeros(5000),
    )
    assert still.loss[0] < 0.004


def test_labels_of_changed_inputs_are_used_where_they_are():
    counts = changed_half_space(np.random.default_rng(6), 4000, 0.5, 10, (1.0, 0.5))
    against = counts.pop("disagreements")
    all_of_them = recentred_loss(against, 10, [0.0, 0.01], SIGMA, 0.01, **counts)
    assert all_of_them.source == ("labels", "labels")
    direct = population_loss(counts["errors_after"], 10, [0.0, 0.01], SIGMA, 0.01)
    assert all_of_them.loss == pytest.approx(direct, abs=1e-11)
    counts["errors_after"] = counts["errors_after"][:1500]
    some = recentred_loss(against, 10, [0.0, 0.01], SIGMA, 0.01, **counts)
    assert some.source == ("labels", "labels")
    assert (all_of_them.loss < some.loss).all()


@pytest.mark.parametrize("votes", [3, None])
def test_around_the_changed_data_for_several_votes(votes):
    counts = changed_half_space(np.random.default_rng(7), 4000, 0.5, 30, (2.5, 1.5))
    del counts["errors_after"]
    rho = np.square([0.0, 0.1])
    found = recentred_loss(counts.pop("disagreements"), 30, rho, SIGMA, 0.01, votes=votes, **counts)
    p = after_change(0.5, (2.5, 1.5))
    truth = majority_worst_case(p, rho, SIGMA) if votes is None else k_vote_worst_case(p, votes, rho, SIGMA)
    assert (found.loss >= truth).all()
    assert (found.loss < truth + 0.2).all()


def test_counts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="mislabelled must hold 0 or 1"):
        recentred_loss([1, 2], 5, 0.0, SIGMA, 0.1, mislabelled=[0, 2], errors=[1], differing=[0, 0])
