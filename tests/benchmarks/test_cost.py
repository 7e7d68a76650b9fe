"""What is counted as the work of an update is what the network is asked for."""

import pytest
import torch
from torch import nn

from benchmarks.training import update_cost
from rhobust.methods import ERM, NAL, STN, TRADES, WRM, AdversarialTraining, Gaussian, SmoothAdv
from rhobust.models import build_model
from rhobust.noise import BatchNoise, stream

METHODS = [
    *(ERM(), Gaussian(draws=2), STN(), AdversarialTraining(steps=3), TRADES(steps=3), WRM(steps=3)),
    *(SmoothAdv(steps=3, draws=2), NAL(steps=3, draws=2)),
]


class Counting(nn.Module):
    """A network that counts its calls and rows."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.calls = self.rows = 0

    def forward(self, x):
        self.calls, self.rows = self.calls + 1, self.rows + len(x)
        return self.network(x)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_an_update_asks_the_network_as_often_as_counted(method):
    network = build_model(
        "cnn-small", shape=(1, 8, 8), classes=10, mean=[0.3], deviation=[0.3], activation="elu", seed=0
    )
    model = Counting(network)
    x, y = torch.full((4, 1, 8, 8), 0.5), torch.arange(4)
    method.loss(model, x, y, BatchNoise(stream(0, "cost")))
    calls, rows = update_cost(method)
    assert calls == model.calls
    # Forward passes alone: a gradient for the input doubles one, a gradient for the weights trebles it.
    assert model.rows / 4 <= rows <= 3 * model.rows / 4


def test_an_update_is_counted_in_forward_passes():
    # K = r = 4: 4 draws, each with 4 input gradients (2 passes) and one weight gradient (3 passes).
    assert update_cost(NAL(steps=4, draws=4)) == (5, 44)
    assert update_cost(AdversarialTraining(steps=7)) == (8, 17)
    assert update_cost(WRM(steps=15)) == (17, 35)
    assert update_cost(TRADES(steps=4)) == (6, 15)


def test_a_method_of_somebody_elses_has_no_known_cost():
    with pytest.raises(ValueError, match="method must be one of the paper's to be counted, got object"):
        update_cost(object())
