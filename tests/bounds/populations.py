"""A population of error probabilities that several tests share."""

import numpy as np
from scipy import special


def certified_like(number):
    """Error probabilities whose certified curve at sigma = 0.25 is .75/.60/.43/.26 at 0/.25/.5/.75.

    Between those radii the margins are spread evenly; beyond, they are fitted to the reported worst cases.
    """
    ranks = [0, 0.12, 0.25, 0.40, 0.57, 0.74, 0.876, 1]
    margins = [-3.16, -1.087, 0, 1, 2, 3, 4.044, 6.08]
    return special.ndtr(-np.interp((np.arange(number) + 0.5) / number, ranks, margins))
