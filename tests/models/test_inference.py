"""Frozen networks for inner loops."""

import contextlib
import threading

import pytest
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


def test_threads_that_wrap_one_network_leave_it_as_the_first_one_found_it():
    # As two calls of `evaluate` with a normalisation do: each has a module of its own around the same network.
    with torch.random.fork_rng(devices=[]):
        network = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    first, second = frozen(nn.Sequential(network)), frozen(nn.Sequential(network))
    with contextlib.ExitStack() as stack:
        first.__enter__()
        stack.enter_context(second)
        first.__exit__(None, None, None)
        assert not any(module.training for module in network.modules()), "the other one still needs it"
        assert not network[0].weight.requires_grad
    assert all(module.training for module in network.modules())
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_a_network_that_was_put_into_training_mode_meanwhile_is_evaluated_in_evaluation_mode():
    network = nn.Sequential(nn.Dropout())
    with frozen(network):
        network.train()
        with frozen(network):
            assert not network[0].training
    assert network[0].training


def test_a_network_that_has_no_evaluation_mode_is_left_as_it_was():
    class Trained(nn.Linear):
        def train(self, mode=True):
            raise RuntimeError("always in training")

    with torch.random.fork_rng(devices=[]):
        network = nn.Sequential(nn.Dropout(), Trained(2, 2))
    with pytest.raises(ValueError, match=r"cannot be put into evaluation mode: .*always in training"), frozen(network):
        pass
    assert all(module.training for module in network.modules())
    with pytest.raises(ValueError, match="cannot be put into evaluation mode"), frozen(network):
        pass


def test_a_network_without_its_weights_yet_is_left_as_it_was():
    with torch.random.fork_rng(devices=[]):
        network = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"cannot be put into evaluation mode: .*uninitialized"), frozen(network):
        pass
    assert all(module.training for module in network.modules())
    assert all(parameter.requires_grad for parameter in network.parameters())


@pytest.mark.parametrize("mode", [False, True], ids=["at the beginning", "at the end"])
def test_an_interrupt_leaves_a_network_as_it_was(mode):
    class Interrupted(nn.Linear):
        armed = False

        def __setattr__(self, name, value):
            if name == "training" and value is mode and Interrupted.armed:
                Interrupted.armed = False
                raise KeyboardInterrupt
            super().__setattr__(name, value)

    with torch.random.fork_rng(devices=[]):
        network = nn.Sequential(nn.Dropout(), Interrupted(2, 2), nn.Linear(2, 2))
    for _ in range(2):  # the second time shows what the first one left behind
        Interrupted.armed = True
        with pytest.raises(KeyboardInterrupt), frozen(network):
            pass
        assert all(module.training for module in network.modules())
        assert all(parameter.requires_grad for parameter in network.parameters())
