"""Validation of arguments."""

import math

import numpy as np
import pytest
import torch

from rhobust import bounds

NAN = math.nan

REFUSED = [
    (bounds.clopper_pearson, (1, 10, 1.5, "upper"), {}, r"alpha must be in \(0, 1\), got 1.5"),
    (bounds.clopper_pearson, (11, 10, 0.1, "upper"), {}, "k must be <= n, got 11 of 10"),
    (bounds.clopper_pearson, (-1, 10, 0.1, "upper"), {}, "k must be a whole number >= 0, got -1"),
    (bounds.clopper_pearson, (1.5, 10, 0.1, "upper"), {}, "k must be a whole number >= 0, got 1.5"),
    (bounds.clopper_pearson, (NAN, 10, 0.1, "upper"), {}, "k must be a whole number >= 0, got nan"),
    (bounds.clopper_pearson, (0, 0, 0.1, "upper"), {}, "n must be a whole number >= 1, got 0"),
    (bounds.clopper_pearson, (1, 10, 0.1, "both"), {}, "side must be 'lower' or 'upper', got 'both'"),
    (bounds.betting_upper, ([0.2, 1.2], 0.1), {}, r"x must be in \[0, 1\], got 1.2"),
    (bounds.betting_upper, ([0.2, NAN], 0.1), {}, r"x must be in \[0, 1\], got nan"),
    (bounds.betting_upper, ([], 0.1), {}, "x must hold at least one value"),
    (bounds.dkw_margin, (10, 0.6), {}, r"alpha must be in \(0, 1/2\], got 0.6"),
    (bounds.dkw_margin, (10, NAN), {}, r"alpha must be in \(0, 1/2\], got nan"),
    (bounds.survival_upper, ([1.0], [2, 1], 0.1), {}, "thresholds must be increasing"),
    (bounds.survival_upper, ([1.0], [1, 1], 0.1), {}, "thresholds must be increasing"),
    (bounds.survival_upper, ([NAN], [1], 0.1), {}, "values must hold at least one number and no NaN"),
    (bounds.failure_quantile, (10, 0.1, 0.0), {}, r"delta must be in \(0, 1\), got 0"),
    (bounds.certified_radius, (1.1, 0.5), {}, r"p_lower must be in \[0, 1\], got 1.1"),
    (bounds.certified_radius, (0.9, 0.0), {}, "sigma must be > 0 and finite, got 0"),
    (bounds.certified_radius, (0.9, math.inf), {}, "sigma must be > 0 and finite, got inf"),
    (bounds.log_e_value, (1, 1, 1.0), {}, r"p0 must be in \(0, 1\), got 1"),
    (bounds.psi, (0.5, 0.0), {}, "kappa must be > 0 and finite, got 0"),
    (bounds.psi, (NAN, 1.0), {}, r"p must be in \[0, 1\], got nan"),
    (bounds.psi1, (0.5, -1.0), {}, "lam must be > 0 and finite, got -1"),
    (bounds.smoothness, (0.0, 1.0), {}, "bound must be > 0 and finite, got 0"),
    (bounds.worst_case_loss, (0.5, -1.0, 1.0), {}, "rho must be >= 0 and finite, got -1"),
    (bounds.worst_case_loss, (0.5, 1.0, NAN), {}, "sigma must be > 0 and finite, got nan"),
    (bounds.worst_case_loss, (0.5, 1.0, [1.0, 2.0]), {}, "sigma must be one number, got an array"),
    (bounds.worst_case_loss, ([], 1.0, 1.0), {}, "p must hold one number per point"),
    (bounds.worst_case_loss, (0.5, 1.0, 1.0), {"cost": "w3"}, "cost must be one of w1, w2, winf, got 'w3'"),
    (bounds.worst_case_loss, (0.5, 1.0, 1.0), {"bound": "big"}, "bound must be a number"),
    (bounds.k_vote_worst_case, (0.5, 0, 1.0, 1.0), {}, "votes must be a whole number >= 1, got 0"),
    (bounds.population_loss, ([21], 20, 0.1, 1.0, 0.1), {}, "errors must be <= draws = 20, got 21"),
    (bounds.population_loss, ([], 20, 0.1, 1.0, 0.1), {}, "errors must hold one count per point"),
    (bounds.population_loss, ([1], 20, 0.1, 1.0, 0.0), {}, r"alpha must be in \(0, 1\), got 0"),
    (bounds.sample_loss, ([1], 0, 0.1, 1.0, 0.1), {}, "draws must be a whole number >= 1, got 0"),
]


@pytest.mark.parametrize(("function", "args", "keywords", "message"), REFUSED)
def test_refuses_with_one_clear_sentence(function, args, keywords, message):
    with pytest.raises(ValueError, match=message):
        function(*args, **keywords)


def test_a_number_gives_a_number_and_an_array_an_array():
    assert type(bounds.psi(0.1, 0.3)) is float
    assert type(bounds.clopper_pearson(1, 10, 0.1, "lower")) is float
    assert type(bounds.worst_case_loss([0.1, 0.2], 0.3, 1.0)) is float
    assert type(bounds.population_loss([1, 2], 5, 0.3, 1.0, 0.1)) is float
    shaped = bounds.worst_case_loss([0.1, 0.2], [[0.0, 0.3], [0.1, 1.0]], 1.0)
    assert isinstance(shaped, np.ndarray)
    assert shaped.shape == (2, 2)
    assert shaped.dtype == np.float64
    assert np.shape(bounds.psi([[0.1], [0.2]], [0.3, 0.4, 0.5])) == (2, 3)


def test_a_tensor_with_a_gradient_is_named() -> None:
    with pytest.raises(ValueError, match="p must be a number or an array of numbers, got tensor"):
        bounds.psi(torch.tensor([0.5], requires_grad=True), 1.0)
