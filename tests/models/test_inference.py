"""Frozen networks for inner loops."""

import contextlib
import threading

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


def test_threads_that_share_a_model_leave_it_as_the_first_one_found_it():
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    inside, leave = threading.Event(), threading.Event()

    def work():
        with frozen(model):
            inside.set()
            leave.wait()

    thread = threading.Thread(target=work)
    with frozen(model):
        thread.start()
        inside.wait()
    assert not model.training, "the other one still needs it"
    assert not model[0].weight.requires_grad
    leave.set()
    thread.join()
    assert model.training
    assert model[0].weight.requires_grad


def test_modules_that_compare_by_value_are_frozen_one_by_one():
    class Valued(nn.Linear):
        def __hash__(self):
            return 0

        def __eq__(self, other):
            return isinstance(other, Valued)

    with torch.random.fork_rng(devices=[]):
        one, other = Valued(2, 2), Valued(2, 2)
    with frozen(one):
        with frozen(other):
            assert not other.training
        assert other.training
        assert not one.training
    assert one.training
