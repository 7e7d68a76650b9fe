"""No walk certifies a network that looks at its neighbours: its votes in a batch say nothing of a vote alone."""

import pytest
from torch import nn

from rhobust.data import Pairs
from rhobust.evaluation import Ascent, Certify, CertifyShift, MeasureShift, WorstCaseCurves, run
from rhobust.progress import no_progress


class Crowd(nn.Module):
    """Answers what the batch answers on average: copies of an image vote before they are asked."""

    def __init__(self, base):
        super().__init__()
        self.base = base

    def forward(self, x):
        logits = self.base(x)
        return logits + logits.mean(0)


@pytest.mark.parametrize(
    "walk",
    [
        lambda target: run(Certify(n=100), target, progress=no_progress),
        lambda target: run(CertifyShift(eps=[0.1]), target, progress=no_progress),
        lambda target: run(
            WorstCaseCurves(eps=[0.1], ascent=Ascent(gammas=(2.0,), steps=1)), target, progress=no_progress
        ),
        lambda target: run(
            MeasureShift(), target.with_pairs(Pairs("same", *[target.data.images] * 2, None)), progress=no_progress
        ),
    ],
    ids=["certify", "certify-shift", "curves", "measure-shift"],
)
def test_a_network_that_looks_at_its_neighbours_is_refused(wrapped, half_space, walk):
    with pytest.raises(ValueError, match="the network must be batch-independent"):
        walk(wrapped(Crowd(half_space)))
