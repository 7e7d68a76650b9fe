"""Networks so small that a smoke run of the whole paper takes minutes: dense layers for 8x8 images."""

from torch import nn

from rhobust.models import Activation

_ACTIVATIONS = {"relu": nn.ReLU, "elu": nn.ELU}


def shallow(num_classes: int = 10, activation: Activation = "relu") -> nn.Module:
    """One hidden layer of 32."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), _ACTIVATIONS[activation](), nn.Linear(32, num_classes))


def deep(num_classes: int = 10, activation: Activation = "relu") -> nn.Module:
    """Two hidden layers of 24."""
    act = _ACTIVATIONS[activation]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), act(), nn.Linear(24, 24), act(), nn.Linear(24, num_classes))
