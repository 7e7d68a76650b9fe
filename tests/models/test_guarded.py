"""Calls of the user's own code."""

import json
import warnings
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from rhobust.attacks import EOT, PGD
from rhobust.attacks.base import AttackMethod
from rhobust.certificates import SmoothedClassifier
from rhobust.models.inference import Guarded, frozen, output_width, own_inputs
from rhobust.user_code import UserCode, UserCodeError


class Odd(nn.Module):
    """A linear network that does something else first, from its second call on."""

    def __init__(self, act, calls=1):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            self.linear = nn.Linear(4, 3)
        self.act, self.left = act, calls

    def forward(self, x):
        if self.left:
            self.left -= 1
            return self.linear(x)
        answer = self.act(x)
        return self.linear(x) if answer is None else answer


class MuteError(Exception):
    def __str__(self):
        raise KeyError("no message")


def fail(error):
    raise error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(""),
        KeyError("x"),
        SystemExit(0),
        BrokenPipeError(),
        StopIteration(),
        GeneratorExit(),
        RecursionError("too\ndeep"),
        MemoryError(),
        NotImplementedError(),
        MuteError(),
        ValueError("mine"),
        type("Own", (BaseException,), {})("\x1b[31mred"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_error_of_a_network_is_one_line_that_names_the_place(error):
    network = Guarded(Odd(lambda x: fail(error)))
    network(torch.zeros(2, 4))
    with pytest.raises(
        UserCodeError, match=rf"the network raised {type(error).__name__}.* in test_guarded.py:\d+"
    ) as line:
        network(torch.zeros(2, 4))
    assert "(fail), for 2 inputs of shape 4 (float32)" in str(line.value)
    assert str(line.value).isprintable()
    assert line.value.__cause__ is error


def test_an_interruption_passes():
    network = Guarded(Odd(lambda x: fail(KeyboardInterrupt()), calls=0))
    with pytest.raises(KeyboardInterrupt):
        network(torch.zeros(2, 4))


def test_the_place_is_in_the_users_code_not_in_the_library_that_it_calls():
    with pytest.raises(UserCodeError, match=r"JSONDecodeError: .* in test_guarded.py:\d+ \(<lambda>\)"):
        Guarded(Odd(lambda x: json.loads("{"), calls=0))(torch.zeros(2, 4))
    with pytest.raises(UserCodeError, match=r"RuntimeError: mat1 and mat2 .*, for 2 inputs of shape 5 \(float32\)$"):
        Guarded(Odd(None).linear)(torch.zeros(2, 5))


@pytest.mark.parametrize("narrow", [torch.float16, torch.bfloat16, torch.float64])
def test_a_network_of_another_precision_is_told_what_helps(narrow):
    name = str(narrow).removeprefix("torch.")
    network = Odd(lambda x: x, calls=-1).to(narrow)
    with pytest.raises(
        UserCodeError, match=rf"weights are {name} and images come as float32: call \.to\(torch\.float32\)"
    ):
        Guarded(network)(torch.zeros(2, 4))


def test_a_refusal_of_our_own_passes_unchanged():
    with pytest.raises(ValueError, match=r"^sigma must be > 0"), UserCode("the network raised"):
        SmoothedClassifier(nn.Identity(), -1.0, 3)


@pytest.mark.parametrize(
    ("answer", "given"),
    [
        (lambda x: (x, x), "a tuple"),
        (lambda x: x.numpy(), "a ndarray"),
        (lambda x: x[:1, :3], r"the shape \(1, 3\)"),
        (lambda x: x[None], r"the shape \(1, 2, 4\)"),
        (lambda x: x[:, :3].long(), "the dtype int64"),
        (lambda x: x[:, :3].to(torch.complex64), "the dtype complex64"),
        (lambda x: x[:, :3].to_sparse(), "a sparse tensor"),
        (lambda x: x[:, :3].to("meta"), "logits on the device meta"),
        (lambda x: torch.nested.nested_tensor([x[0], x[1, :3]], layout=torch.jagged), "a nested tensor"),
    ],
)
def test_other_answers_than_logits_are_refused_at_any_call(answer, given):
    network = Guarded(Odd(answer))
    network(torch.zeros(2, 4))
    with pytest.raises(ValueError, match=f"logits of shape \\(n, classes\\), got {given} for 2 inputs"):
        network(torch.zeros(2, 4))


def test_another_number_of_logits_is_refused():
    network = Guarded(Odd(lambda x: x))
    network(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="must return 3 logits per input, as at its first call, got 4"):
        network(torch.zeros(2, 4))


def test_a_network_may_get_another_head():
    network = Odd(lambda x: None)
    x, y = torch.full((2, 4), 0.5), torch.zeros(2, dtype=torch.int64)
    PGD(steps=1)(network, x, y, eps=0.1)
    with torch.random.fork_rng(devices=[]):
        network.linear = nn.Linear(4, 2)
    assert output_width(network, x) == 2
    SmoothedClassifier(network, 0.1, 2).certify(x, n=100)


def test_a_class_that_gets_lost_is_one_line():
    network = Odd(lambda x: x[:, :2])
    with pytest.raises(ValueError, match="the network's loss raised IndexError"):
        PGD(steps=1)(network, torch.full((2, 4), 0.5), torch.full((2,), 2), eps=0.1)


def set_everything(x):
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(torch.get_num_threads() + 1)
    warnings.simplefilter("error")


def test_global_settings_are_restored():
    state = torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads()
    with torch.no_grad(), frozen(Odd(set_everything, calls=0)) as network:
        assert not network(torch.zeros(2, 4)).requires_grad
        assert not torch.is_grad_enabled()
    assert (torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads()) == state
    with pytest.warns(UserWarning, match="still a warning"):
        warnings.warn("still a warning", stacklevel=1)


@pytest.mark.parametrize("hidden", [False, True])
def test_a_network_may_work_in_place(hidden):
    def halve(x):
        (x.data if hidden else x).mul_(0.5)

    network = Odd(halve, calls=0)
    x = torch.rand(40, 4, generator=torch.Generator().manual_seed(0))
    kept = x.clone()
    expected = network.linear(x * 0.5).detach()
    assert output_width(network, x) == 3
    with torch.no_grad(), frozen(network) as evaluated:
        assert torch.allclose(evaluated(x), expected)
    for attack, sigma in ((PGD(steps=3), None), (EOT(steps=3, draws=2), 0.1)):
        found = attack(network, x, torch.zeros(40, dtype=torch.int64), eps=0.1, sigma=sigma)
        assert (found - x).flatten(1).norm(dim=1).max() <= 0.1 + 1e-6
    own_inputs(network)
    network(x)
    assert torch.equal(x, kept)


def test_a_network_that_works_in_place_now_and_then_is_refused():
    network = Guarded(Odd(lambda x: x.zero_()[:, :3]))
    network(torch.full((2, 4), 0.5))
    with pytest.raises(ValueError, match="must not change its inputs in place at some calls only"):
        network(torch.full((2, 4), 0.5))


def test_two_calls_never_share_memory():
    memory = torch.zeros(2, 3)
    network = Guarded(Odd(lambda x: memory.copy_(x[:, :3]), calls=0))
    first = network(torch.zeros(2, 4))
    assert not torch.equal(first, network(torch.ones(2, 4)))


def test_a_gradient_that_raises_is_one_line():
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise KeyError("gradient")

    network = nn.Sequential(Odd(Bad.apply, calls=0))
    with pytest.raises(ValueError, match=r"the network's gradient raised KeyError: 'gradient' in test_guarded.py:\d+"):
        PGD(steps=2)(network, torch.full((2, 4), 0.5), torch.zeros(2, dtype=torch.int64), eps=0.1)
    silent = nn.Sequential(Odd(None).linear, Odd(lambda x: x.detach(), calls=0))
    with pytest.raises(ValueError, match="the network's gradient raised RuntimeError: element 0 of tensors"):
        PGD(steps=2)(silent, torch.full((2, 4), 0.5), torch.zeros(2, dtype=torch.int64), eps=0.1)


@dataclass(frozen=True)
class OwnAttack(AttackMethod):
    """An attack of the user's own that raises."""

    attacks_smoothed = False

    def perturb(self, model, x, y, *, eps, sigma, rng):
        raise KeyError("mine")


def test_an_attack_of_the_users_own_that_raises_is_one_line():
    with pytest.raises(ValueError, match=r"the attack raised KeyError: 'mine' in test_guarded.py:\d+ \(perturb\)"):
        OwnAttack()(Odd(None), torch.full((2, 4), 0.5), torch.zeros(2, dtype=torch.int64), eps=0.1)
