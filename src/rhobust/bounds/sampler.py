"""The integer sampler of grid noise: how far it is from its exact law, and what that takes from alpha."""

from typing import Literal

NoiseKind = Literal["grid", "float"]
"""grid: exact integer noise, for images on the 1/255 grid; float: float32 noise."""
LEVELS = 255
"""Steps of the pixel grid: the values of an 8-bit image are k / 255."""
BITS = 62
"""Resolution of the sampler's uniform variable."""


def grid_reach(sigma: float) -> int:
    """Integers on each side of 0 that the sampler's table holds: Phi(-9.2) < 2^-65 is beyond its resolution."""
    if not 0 < sigma <= 10:
        raise ValueError(f"sigma must be in (0, 10] for noise on the pixel grid, got {sigma}")
    return int(9.2 * LEVELS * sigma) + 1


def grid_deviation(sigma: float) -> float:
    """Upper bound of the total variation distance between `grid_block` and its distribution, per coordinate."""
    # Each threshold has an error of at most half a unit of 2^-62; the two tails beyond the table have less than a unit.
    return (2 * grid_reach(sigma) + 2) * 2.0**-BITS


def corrected_alpha(alpha: float, *, sigma: float, dimension: int, draws: int, noise: NoiseKind) -> float:
    """Alpha after the sampler's correction: alpha - draws * dimension * delta(sigma).

    delta is the total variation distance between the integer sampler and its exact law, per number. A statement that
    is false with probability at most the corrected alpha under exact noise is false with probability at most alpha
    under the sampler. Float noise is not corrected: its certificate holds for ideal Gaussian noise only, and says so.

    Args:
        alpha: Probability that the statement may be false.
        sigma: Standard deviation of the noise.
        dimension: Numbers per input.
        draws: Noise samples that the statement depends on.
        noise: "grid" or "float".
    """
    if noise == "float":
        return alpha
    left = alpha - draws * dimension * grid_deviation(sigma)
    if not left > 0:
        raise ValueError(f"alpha must exceed the sampler's deviation {alpha - left:.3g}, got {alpha}")
    return left
