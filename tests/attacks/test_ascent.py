import contextlib

import torch
from torch import nn

from rhobust.attacks.base import project_l2, project_linf, unit
from rhobust.attacks.gradient import ascend
from rhobust.models.inference import frozen


def test_a_quadratic_is_climbed_to_its_top():
    top = torch.tensor([[1.0, 2.0], [-3.0, 0.5]])
    found = ascend(lambda x: -(x - top).square().sum(1), torch.zeros(2, 2), steps=60, step=lambda x, g, _: x + 0.2 * g)
    assert torch.allclose(found, top, atol=1e-5)


def test_an_examples_path_does_not_depend_on_the_batch():
    start = torch.arange(6.0).view(3, 2)
    climb = lambda x: ascend(  # noqa: E731
        lambda p: p.sin().sum(1), x, steps=5, step=lambda p, g, k: p + g / (k + 1)
    )
    assert torch.equal(climb(start), torch.cat([climb(row[None]) for row in start]))


def test_the_model_is_lent_and_given_back():
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
    model.train()
    model[2].eval()
    model[0].bias.requires_grad_(False)
    model[0].weight.grad = torch.ones(2, 2)
    with contextlib.suppress(InterruptedError), frozen(model):
        assert not any(module.training for module in model.modules())
        assert not any(parameter.requires_grad for parameter in model.parameters())
        raise InterruptedError
    assert [module.training for module in model] == [True, True, False]
    assert [parameter.requires_grad for parameter in model.parameters()] == [True, False, True, True]
    assert torch.equal(model[0].weight.grad, torch.ones(2, 2))


def test_projections():
    centre = torch.zeros(2, 1, 2)
    x = torch.tensor([[[3.0, 4.0]], [[0.1, 0.0]]])
    assert torch.allclose(project_l2(x, centre, 1.0), torch.tensor([[[0.6, 0.8]], [[0.1, 0.0]]]))
    assert torch.allclose(project_linf(x, centre, 1.0), torch.tensor([[[1.0, 1.0]], [[0.1, 0.0]]]))
    assert torch.equal(project_l2(x, x, 0.0), x)


def test_a_zero_gradient_stays_zero():
    assert torch.equal(unit(torch.tensor([[0.0, 0.0], [0.0, 2.0]])), torch.tensor([[0.0, 0.0], [0.0, 1.0]]))
