"""Projections, norms, random points and padded batches."""

import pytest
import torch

from rhobust.attacks.base import distances, normalise, pad_batch, project_l2, project_linf, random_point
from rhobust.models import build_model
from rhobust.noise import ExampleNoise


def test_projections():
    centre = torch.zeros(2, 1, 2)
    x = torch.tensor([[[3.0, 4.0]], [[0.1, 0.0]]])
    assert torch.allclose(project_l2(x, centre, 1.0), torch.tensor([[[0.6, 0.8]], [[0.1, 0.0]]]))
    assert torch.allclose(project_linf(x, centre, 1.0), torch.tensor([[[1.0, 1.0]], [[0.1, 0.0]]]))
    assert torch.equal(project_l2(x, x, 0.0), x)


def test_a_zero_gradient_stays_zero():
    assert torch.equal(normalise(torch.tensor([[0.0, 0.0], [0.0, 2.0]])), torch.tensor([[0.0, 0.0], [0.0, 1.0]]))


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_random_points_fill_the_ball(norm):
    x = torch.full((2000, 1, 2, 2), 0.5)
    offset = (random_point(x, 0.4, norm, ExampleNoise(0, "start", range(2000))) - x).flatten(1)
    size = offset.norm(dim=1) if norm == "l2" else offset.abs().amax(1)
    assert size.max() <= 0.4 + 1e-6
    # Half of a ball's volume in four dimensions lies beyond 2^(-1/4) of its radius.
    assert (size > 0.4 * 0.5**0.25).float().mean().item() == pytest.approx(0.5, abs=0.05)
    # To all sides alike, and in [0, 1] where the ball reaches beyond it.
    assert offset.mean(0).abs().max() < 0.03
    corner = random_point(torch.ones(50, 1, 2, 2), 0.4, norm, ExampleNoise(0, "start", range(50)))
    assert corner.max() <= 1
    assert corner.min() < 1


def test_distances_are_those_of_their_norm():
    x = torch.zeros(2, 1, 2, 2)
    perturbed = torch.tensor([[0.3, 0.0, -0.4, 0.0], [0.0, 0.0, 0.0, 0.2]]).view(2, 1, 2, 2)
    assert distances(perturbed, x, "l2").tolist() == pytest.approx([0.5, 0.2])
    assert distances(perturbed, x, "linf").tolist() == pytest.approx([0.4, 0.2])


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
