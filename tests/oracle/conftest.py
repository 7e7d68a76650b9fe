"""What the comparisons share: peers that may use the global generators, and networks to attack."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from oracle.networks import trained
from rhobust import methods
from rhobust.data import load


@pytest.fixture
def _lent_generators() -> Iterator[None]:
    """The global generators, seeded for other packages and restored."""
    numpy_state = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    np.random.set_state(numpy_state)  # noqa: NPY002


@pytest.fixture
def foolbox(_lent_generators):
    return pytest.importorskip("foolbox")


@pytest.fixture
def autopgd(_lent_generators):
    return pytest.importorskip("pyautoattack.autopgd_base")


@pytest.fixture
def torchattacks(_lent_generators):
    return pytest.importorskip("torchattacks")


@pytest.fixture(scope="session")
def hardened():
    """A network trained on digits against PGD of small steps, which flatter it."""
    return trained(methods.AdversarialTraining(eps=0.7, steps=3), load("digits", "train"), epochs=4)


@pytest.fixture(scope="session")
def noise_trained():
    """A network trained on digits under noise of standard deviation 0.25."""
    return trained(methods.Gaussian(sigma=0.25), load("digits", "train"), epochs=6)
