"""An example's answer does not depend on how many stand beside it."""

import pytest
import torch

from rhobust.attacks.base import pad_batch
from rhobust.models import build_model


@pytest.mark.parametrize("rows", [1, 31, 32, 33])
def test_a_batch_is_filled_up_to_32_rows_with_its_first(rows):
    x = torch.rand(rows, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    filled = pad_batch(x)
    assert len(filled) == max(rows, 32)
    assert torch.equal(filled[:rows], x)
    assert torch.equal(filled[rows:], x[:1].expand(len(filled) - rows, 1, 2, 2))


def test_a_networks_answer_is_the_same_in_every_padded_batch():
    network = build_model(
        "cnn-small", shape=(1, 8, 8), classes=10, mean=[0.5], deviation=[0.3], activation="relu", seed=0
    ).eval()
    x = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = network(x)
        assert all(torch.equal(network(pad_batch(x[:rows]))[:rows], whole[:rows]) for rows in range(1, 41))
