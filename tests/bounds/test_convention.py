import numpy as np
import pytest

from rhobust.bounds import clean_rho, noisy_rho, psi


def test_there_and_back():
    assert noisy_rho(0.25, 3072, 0.1) == pytest.approx(30.97)
    assert clean_rho(noisy_rho([0.0, 0.25], 3072, 0.1), 3072, 0.1) == pytest.approx([0.0, 0.25], abs=1e-12)
    assert clean_rho(7 * 0.1**2, 7, 0.1) == 0.0


def test_both_conventions_give_the_same_number():
    # gamma rho + mean of the surrogate, with and without the noise in its cost.
    sigma, gamma, dimension, rho = 0.1, 5.0, 784, 0.04
    surrogate = np.mean(psi([0.01, 0.2], 2 * gamma * sigma**2))
    noisy = gamma * noisy_rho(rho, dimension, sigma) + surrogate - gamma * dimension * sigma**2
    assert noisy == pytest.approx(gamma * rho + surrogate, abs=1e-12)


def test_theorem_2_as_stated_is_refused():
    # The constant loss 1, P0 two atoms at +-a, P the atom between them: W_c(P * N, P0) = sigma^2 (1 - 2 / pi).
    sigma, gamma = 0.1, 25.0
    rho_noisy = sigma**2 * (1 - 2 / np.pi)
    surrogate = 1 - gamma * sigma**2
    assert gamma * rho_noisy + surrogate == pytest.approx(0.8408, abs=1e-4)  # "bounds" a loss that is 1
    assert 1000 * rho_noisy + 1 - 1000 * sigma**2 == pytest.approx(-5.37, abs=0.01)
    with pytest.raises(ValueError, match=r"rho_noisy must be >= dimension \* sigma\^2 = 0.01, .* got 0.0036338"):
        clean_rho(rho_noisy, 1, sigma)


@pytest.mark.parametrize(("dimension", "sigma", "eps"), [(784, 0.05, 0.84), (3072, 0.1, 0.92), (12288, 0.1, 0.93)])
def test_the_papers_eps_cannot_be_noisy(dimension, sigma, eps):
    with pytest.raises(ValueError, match="the cost of the noise"):
        clean_rho(eps**2, dimension, sigma)
