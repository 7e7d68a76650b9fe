import numpy as np
import pytest
from scipy import stats

from rhobust.bounds import betting_upper, clopper_pearson, shuffled
from rhobust.bounds.majorant import count_bounds, jumps


def test_bounds_by_hand():
    # Steps at 1, 2, 3, 4 share 5/8 of alpha as 12 : 6 : 4 : 3; P(K = 1) has 1/8 and the mean 1/4.
    errors = np.repeat([0.0, 1.0, 2.0, 4.0], [900, 40, 50, 10])
    found = count_bounds(errors, 4, 0.008)
    shares = np.array([12, 6, 4, 3]) / 25
    steps = clopper_pearson([100, 60, 10, 10], 1000, 0.005 * shares, "upper")
    assert found.survival[:3] == pytest.approx(steps[:3], abs=1e-12)
    # The fourth step's own bound is at a smaller level, so the third's serves it too.
    assert steps[3] > steps[2] == found.survival[3]
    assert found.once == clopper_pearson(40, 1000, 0.001, "upper")
    assert found.mean == betting_upper(shuffled(errors) / 4, 0.002)


def test_many_draws_have_few_jumps():
    assert jumps(20).tolist() == list(range(1, 21))
    assert jumps(1000).size < 130
    assert jumps(1000)[[0, -1]].tolist() == [1, 1000]
    assert np.all(np.diff(jumps(1000)) >= 1)


@pytest.mark.parametrize("draws", [1, 6])
def test_all_bounds_hold_together(draws):
    # False-alarm rate 1e-6. Half the points have p = 0.02, the others 0.4.
    rng = np.random.default_rng(3)
    law = np.array([0.02, 0.4])
    survival = np.mean(stats.binom.sf(np.arange(draws)[:, None], draws, law), axis=1)
    once, alpha, misses = np.mean(stats.binom.pmf(1, draws, law)), 0.2, 0
    for _ in range(150):
        found = count_bounds(rng.binomial(draws, rng.choice(law, 150)).astype(float), draws, alpha)
        missed = found.survival < survival
        misses += bool(missed.any() or found.once < once or found.mean < law.mean())
    assert 0 < misses <= stats.binom.isf(1e-6, 150, alpha)
