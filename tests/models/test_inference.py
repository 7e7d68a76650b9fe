"""Frozen networks for inner loops."""

import contextlib

import torch
from torch import nn

from rhobust.models.inference import frozen


def test_a_frozen_model_is_restored():
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
