import numpy as np
import torch
from torch import nn

from benchmarks.known_votes import voting_by
from rhobust.certificates import Smoothing, count_votes


def test_votes_have_the_probabilities_that_are_said():
    network, images, p = voting_by(nn.Sequential(nn.Flatten(), nn.LazyLinear(5, bias=False)), 6, 8, 0.5)
    with torch.random.fork_rng(), torch.no_grad():
        network(images[:1] / 255)
    assert (np.diff(p) >= -1e-2).all()
    assert 0.5 < p.max() <= 1
    votes = count_votes(network, images, Smoothing(0.5, 5), indices=range(6), draws=2000, purpose="test")
    assert votes[:, 2:].sum() == 0
    assert np.abs(votes[:, 0].numpy() / 2000 - p).max() < 5 * 0.5 / 2000**0.5
