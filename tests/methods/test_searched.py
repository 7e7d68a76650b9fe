"""The search for the worst soft error finds what a fine grid finds, and leaves alone what is not worth its price."""

import pytest
import torch
from torch import nn

from rhobust.attacks.base import l2_step
from rhobust.methods import NAL
from rhobust.methods.base import best_iterate
from rhobust.models.inference import frozen
from rhobust.noise import DrawnNoise


class Wall(nn.Module):
    """Two classes, a wall at the mean pixel value 0.5: images below it are of class 0."""

    def __init__(self):
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        value = 60 * (x.flatten(1).mean(1) - 0.5) + self.anchor
        return torch.stack([-value / 2, value / 2], dim=1)


def flat(*levels):
    """Images of one colour each: a step of length d along the gradient changes the mean by d / 4."""
    return torch.stack([torch.full((1, 4, 4), level, dtype=torch.float64) for level in levels])


def searched_by(method, x, y):
    network = Wall()
    with frozen(network):
        return method.maximise(network, x, y, DrawnNoise(torch.zeros(1, *x.shape, dtype=x.dtype)))


def distance(worst, x):
    return (worst - x).flatten(1).norm(dim=1)


def test_it_is_the_best_point_of_a_fine_grid():
    # The error at distance d is sigmoid(60 (level + d / 4 - 0.5)): the wall is 0.4, 0.8 and 2 away.
    x, y = flat(0.4, 0.3, 0.0), torch.zeros(3, dtype=torch.long)
    gamma, steps = 0.5, 400
    found = distance(searched_by(NAL(gamma=gamma, draws=1, steps=steps, inner="search"), x, y), x)
    reach = torch.linspace(0, gamma**-0.5, 100_001, dtype=torch.float64)
    for level, moved in zip((0.4, 0.3, 0.0), found, strict=True):
        worth = torch.sigmoid(60 * (level + reach / 4 - 0.5)) - gamma * reach.square()
        assert moved.item() == pytest.approx(reach[worth.argmax()].item(), abs=gamma**-0.5 / steps)
    assert found[0] > 0.4
    assert found[1] > 0.8
    assert found[2] == 0, "beyond 1 / sqrt(gamma) no error is worth the way"


def test_it_passes_where_the_loss_is_flat_and_the_damped_ascent_stays():
    x, y = flat(0.3), torch.tensor([0])
    damped, search = (
        distance(searched_by(NAL(gamma=0.5, draws=1, inner=inner), x, y), x) for inner in ("damped", "search")
    )
    assert damped < 1e-3
    assert search > 0.8


def test_a_lost_input_stays():
    x, y = flat(0.9, 0.6), torch.zeros(2, dtype=torch.long)
    assert (searched_by(NAL(gamma=0.5, draws=1, inner="search"), x, y) == x).all()


@pytest.mark.parametrize("gamma", [0.1, 1.0, 10.0])
def test_no_input_goes_further_than_a_whole_error_is_worth(gamma):
    x, y = flat(*torch.linspace(0, 0.9, 10).tolist()), torch.zeros(10, dtype=torch.long)
    assert distance(searched_by(NAL(gamma=gamma, draws=1, steps=7, inner="search"), x, y), x).max() <= gamma**-0.5


def test_the_end_of_the_way_is_looked_at():
    x = torch.zeros(1, 1, dtype=torch.float64)
    seen = []

    def objective(point):
        seen.append(point.item())
        return point.sum(1)

    found = best_iterate(objective, x, gamma=0.1, steps=3, step=l2_step(x, 0.9, 0.3))
    assert seen == pytest.approx([0, 0.3, 0.6, 0.9])
    assert found.item() == pytest.approx(0.9)


def test_points_are_compared_under_one_draw():
    calls = []

    class Counting:
        def normal(self, x, draws):
            calls.append(draws)
            return torch.zeros(draws, *x.shape, dtype=x.dtype)

    network, x, y = Wall(), flat(0.4), torch.tensor([0])
    NAL(steps=5, draws=3, inner="search").loss(network, x, y, Counting())
    assert calls == [3, 3], "one draw for the search, one for the weights"
    calls.clear()
    NAL(steps=5, draws=3, inner="search", noise="shared").loss(network, x, y, Counting())
    assert calls == [3]


def test_a_step_of_ones_own_is_refused():
    with pytest.raises(ValueError, match=r"step_size must be None where inner is search, got 0\.3"):
        NAL(inner="search", step_size=0.3)


def test_the_price_from_which_nothing_is_worth_moving_for():
    x, y = flat(0.3), torch.tensor([0])
    away = torch.linspace(0.01, 3, 100_001, dtype=torch.float64)
    price = (torch.sigmoid(60 * (away / 4 - 0.2)) / away.square()).max().item()
    for gamma, moves in ((0.97 * price, True), (1.03 * price, False)):
        method = NAL(gamma=gamma, draws=1, steps=256, inner="search")
        assert bool(distance(searched_by(method, x, y), x) > 0.5) == moves
