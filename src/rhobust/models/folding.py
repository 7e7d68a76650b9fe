"""Evaluation copies of networks, with batch norm folded into the convolutions: of rhobust's own and of any other."""

import copy
import operator
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from rhobust.models.fused import ConvNorm, Folded, Residual, copy_all, fold
from rhobust.models.inference import compiled_anew
from rhobust.models.networks import Normalised
from rhobust.user_code import first_words

CHANGE = 0.2
"""Change of the logits by folding, relative to the largest one, that rounding to bf16 explains."""
REPEATED = 0.01
"""Change of the logits from call to call, relative to the largest one, above which a trace would miss what changes."""
_SUMS = (operator.add, operator.iadd, torch.add)
_RELUS = (F.relu, torch.relu, F.relu_, torch.relu_)


class EvalCopy:
    """Evaluation copy of a network for inner loops: evaluation mode, no gradients for the weights, batch norm folded.

    It computes the network's evaluation mode at the last `refresh`, with the weights of convolutions and dense layers
    in one dtype. Other parameters keep their dtype and need autocast; norms keep the dtype of their statistics.

    Args:
        model: The network.
        dtype: Dtype of its convolutions and dense layers in the copy.
        example: A few inputs. With them the batch norm of a network that is not rhobust's own is folded too, if torch
            can trace it and the copy answers the example as before.
        folded: Whether to fold at all.
    """

    def __init__(
        self, model: nn.Module, dtype: torch.dtype, *, example: Tensor | None = None, folded: bool = True
    ) -> None:
        self.network = copy.deepcopy(model).eval().requires_grad_(False)
        self.folds: list[Folded] = []
        self.copies: list[tuple[Tensor, Tensor]] = []
        self._replace(model, self.network, dtype, folded)
        if folded and example is not None and not self.folds:
            self._fold_traced(model, dtype, example)

    def _replace(self, source: nn.Module, target: nn.Module, dtype: torch.dtype, folded: bool) -> None:
        for name, child in source._modules.items():  # one module may be there under two names
            if child is None:
                continue
            if folded and _is_plain(child):
                # The shortcut's bias is folded into the second convolution of the block: one pass less.
                added = source.shortcut if isinstance(source, Residual) and child is source.second else None
                layer = Folded(child, dtype, shortcut=added if _is_plain(added) else None)
                setattr(target, name, layer)
                self.folds.append(layer)
            else:
                self._replace(child, getattr(target, name), dtype, folded)
        if isinstance(target, Residual) and isinstance(target.shortcut, Folded) and isinstance(target.second, Folded):
            target.shortcut.bias = None
        lowered = isinstance(source, nn.Linear | nn.modules.conv._ConvNd)
        for name, parameter in source.named_parameters(recurse=False):
            copied = parameter.detach().to(dtype if lowered else parameter.dtype, copy=True)
            if copied.is_cuda and copied.dim() == 4:
                copied = copied.contiguous(memory_format=torch.channels_last)
            own = nn.Parameter(copied, requires_grad=False)
            setattr(target, name, own)
            self.copies.append((parameter, own))
        self.copies += [(buffer, getattr(target, name)) for name, buffer in source.named_buffers(recurse=False)]

    def _fold_traced(self, model: nn.Module, dtype: torch.dtype, example: Tensor) -> None:
        try:
            traced, folds = fold_traced(model, self.network, dtype, example)
            # A trace keeps what changes from call to call as it is at one.
            repeated = folds and _same(self.network, self.network, example, dtype, REPEATED)
            allowed = CHANGE if dtype in (torch.bfloat16, torch.float16) else 1e-3
            if repeated and _same(traced, self.network, example, dtype, allowed):
                self.network, self.folds = traced, folds
        except Exception:  # whatever a network raises when it is traced: then it stays as it is
            return

    def refresh(self) -> None:
        """Copy the network's current weights and statistics."""
        with torch.no_grad():
            copy_all([*(pair for layer in self.folds for pair in layer.present()), *self.copies])


@dataclass
class TracedPair:
    """A convolution and its batch norm in a traced network, and the activation that follows."""

    conv: nn.Conv2d
    norm: nn.BatchNorm2d
    activation: nn.Module | None

    def folded(self) -> tuple[Tensor, Tensor]:
        """Weights and bias of the equivalent convolution in evaluation mode."""
        return fold(self.conv, self.norm)


def fold_traced(
    model: nn.Module, copied: nn.Module, dtype: torch.dtype, example: Tensor
) -> tuple[fx.GraphModule, list[Folded]]:
    """Trace a copy of a network, and fold each convolution, batch norm, sum and ReLU into one layer.

    Args:
        model: The network, whose weights `refresh` reads.
        copied: Its copy in evaluation mode.
        dtype: Dtype of the folded weights.
        example: A few inputs, which show the shapes of what is added.

    Raises:
        ValueError: The network has hooks, which a trace would lose, or draws random numbers, which it would keep; or
            whatever the trace raises.
    """
    modules = list(model.modules())
    if any(map(_has_hooks, modules)):
        raise ValueError("the network must have no hooks to be traced")
    if not any(type(module) is nn.BatchNorm2d for module in modules):
        raise ValueError("the network must have batch norm to be folded")
    with _NoDraws():
        traced = fx.GraphModule(copied, _Tracer().trace(copied))
    with torch.no_grad(), _arithmetic(example, dtype):
        _Shapes(traced).run(example.clone())
    graph, folds = traced.graph, []
    calls = [node.target for node in graph.nodes if node.op == "call_module"]
    for norm in [node for node in graph.nodes if node.op == "call_module"]:
        conv = norm.args[0] if norm.args else None
        if not isinstance(conv, fx.Node) or conv.op != "call_module" or len(conv.users) != 1:
            continue
        if calls.count(norm.target) > 1 or calls.count(conv.target) > 1:
            continue
        names = str(conv.target), str(norm.target)
        if not _foldable(*map(traced.get_submodule, names)):
            continue
        own, own_norm = (model.get_submodule(name) for name in names)
        assert isinstance(own, nn.Conv2d)
        assert isinstance(own_norm, nn.BatchNorm2d)
        last, shortcut = _followers(traced, conv, norm)
        source = TracedPair(own, own_norm, None if last is norm else nn.ReLU())
        name = f"folded_{len(folds)}"
        folds.append(Folded(source, dtype).eval())
        traced.add_module(name, folds[-1])
        # A sum is computed where it was, everything else where the convolution was: its input may change afterwards.
        with graph.inserting_before(conv if shortcut is None else last):
            new = graph.call_module(name, (conv.args[0],) if shortcut is None else (conv.args[0], shortcut))
        new.meta = last.meta  # its shape
        last.replace_all_uses_with(new)
        for node in _chain(last, norm, conv):
            graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    # Each module keeps its mode: one that overrides `train` may want statistics of the batch.
    return traced.requires_grad_(False), folds


class _Value(fx.Proxy):
    """A value in a trace: torch's own takes `x += y` for `x = x + y`, which leaves other names of x as they were."""


class _Tracer(fx.Tracer):
    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Value(node, self)


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda value, other: value.tracer.create_proxy("call_function", function, (value, other), {})


for _function in (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.ipow):
    setattr(_Value, f"__{_function.__name__}__", _in_place(_function))


class _NoDraws(TorchDispatchMode):
    """Refuses random numbers that a trace would take for constants."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise ValueError("the network must draw no random numbers of a fixed shape to be traced")
        return func(*args, **(kwargs or {}))


def _has_hooks(module: nn.Module) -> bool:
    """Whether a call of a module does more than its class says."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "forward" in vars(module)


def _is_plain(module: nn.Module | None) -> TypeGuard[ConvNorm]:
    """Whether a module can be folded: one of rhobust's own, whose parts do what they usually do."""
    return isinstance(module, ConvNorm) and not any(map(_has_hooks, module.modules()))


def _foldable(conv: nn.Module, norm: nn.Module) -> bool:
    """Whether a convolution and a batch norm are torch's own, in their usual form."""
    return (
        type(conv) is nn.Conv2d
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
        and type(norm) is nn.BatchNorm2d
        and norm.running_mean is not None
        and not norm.training
        and isinstance(conv.weight, nn.Parameter)
    )


def _followers(traced: fx.GraphModule, conv: fx.Node, norm: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """The last node that can be part of the layer, and what is added before it: a ReLU, perhaps of a sum."""
    user = _only_user(norm)
    if user is not None and _is_relu(traced, user):
        return user, None
    if user is not None and user.op == "call_function" and user.target in _SUMS and not user.kwargs:
        after = _only_user(user)
        others = [argument for argument in user.args if argument is not norm]
        if after is not None and _is_relu(traced, after) and len(others) == 1 and isinstance(others[0], fx.Node):
            chain = norm, user, after
            between = (node for node in _after(conv, after) if node not in chain)
            changed = user.target is operator.iadd and user.args[0] is not norm  # the sum is written over the other one
            if (
                not changed
                and others[0].meta["shape"] == norm.meta["shape"]
                and not any(_writes(traced, one) for one in between)
            ):
                return after, others[0]
    return norm, None


def _after(first: fx.Node, last: fx.Node) -> Iterator[fx.Node]:
    """The nodes after one, up to another one."""
    while first is not last:
        first = first.next
        yield first


class _Shapes(fx.Interpreter):
    """Runs a trace, and notes the shape of every value."""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        n.meta["shape"] = value.shape if isinstance(value, Tensor) else None
        return value


def _writes(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a node may change a tensor that is there already."""
    if node.op == "call_module":
        return bool(getattr(traced.get_submodule(str(node.target)), "inplace", False))
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    given = any(one is True for one in (*node.args, node.kwargs.get("inplace"))) or "out" in node.kwargs
    in_place = getattr(node.target, "__module__", "") == "_operator" and name.startswith(("i", "set", "del"))
    return name.endswith("_") or in_place or given


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_relu(traced: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return type(traced.get_submodule(str(node.target))) is nn.ReLU
    if node.op == "call_function":
        return node.target in _RELUS
    return node.op == "call_method" and node.target in ("relu", "relu_")


def _chain(last: fx.Node, norm: fx.Node, conv: fx.Node) -> list[fx.Node]:
    """The nodes that a layer replaces, the last one first."""
    found = [last]
    while found[-1] is not norm:
        found.append(next(node for node in found[-1].all_input_nodes if node is norm or norm in node.all_input_nodes))
    return [*found, conv]


def _arithmetic(example: Tensor, dtype: torch.dtype) -> AbstractContextManager:
    return torch.autocast(example.device.type, dtype, enabled=dtype in (torch.bfloat16, torch.float16))


def _same(one: nn.Module, other: nn.Module, example: Tensor, dtype: torch.dtype, allowed: float) -> bool:
    """Whether two networks answer an example alike, up to a change relative to the largest logit."""
    with torch.no_grad(), _arithmetic(example, dtype):
        ours, theirs = one(example.clone()).double(), other(example.clone()).double()
    return ours.shape == theirs.shape and bool((ours - theirs).abs().max() <= allowed * theirs.abs().max())


def for_noisy_copies(network: nn.Module, copies: int) -> nn.Module:
    """The same evaluation copy, tensors included, for inputs of which some are noisy copies of the same images.

    Of their gradients only the sum over the copies of an image is right. It is taken in the first layer, before the
    backward pass of its convolution, which then is that of one image instead of all its copies. Other networks than
    rhobust's own are returned as they are.

    Args:
        network: The network of an `EvalCopy`.
        copies: Noisy copies of each image: the first one of all images, then the second one of all, and so on.
    """
    layers = network.network if isinstance(network, Normalised) else None
    if copies == 1 or not isinstance(layers, nn.Sequential) or any(map(_has_hooks, (network, layers))):
        return network
    name, first = next(layers.named_children(), ("", None))
    if not isinstance(first, Folded) or not first.reads_patches:
        return network
    other = copy.copy(first)
    other.copies = copies
    return _with(network, "network", _with(layers, name, other))


def _with(module: nn.Module, name: str, child: nn.Module) -> nn.Module:
    """The same module with another child."""
    other = copy.copy(module)
    other._modules = {**module._modules, name: child}
    return other


class FastCopy(nn.Module):
    """Evaluation copy of a network in bf16, without gradients in the weights; inputs and logits are float32.

    bf16 has the range of float32, so that small gradients do not vanish, and three digits, enough for a direction.

    Args:
        model: The network.
        example: A few inputs. With them, batch norm is folded into the convolutions of other networks than rhobust's
            own, and a network that cannot run in bf16 is refused at once: what it raises is raised.
    """

    def __init__(self, model: nn.Module, example: Tensor | None = None) -> None:
        super().__init__()
        self.network = EvalCopy(model, torch.bfloat16, example=example).network
        if example is not None and not self._runs(example):
            # Where a network computes with its weights itself, they must have the dtype of the others.
            self.network = EvalCopy(model, torch.float32, folded=False).network
            with torch.no_grad():
                self(example.clone())

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.network(x).float()

    @torch.no_grad()
    def _runs(self, example: Tensor) -> bool:
        try:
            self(example.clone())
        except Exception:  # whatever a network raises in another precision
            return False
        return True

    def for_noisy_copies(self, copies: int) -> "FastCopy":
        """The same for noisy copies of images: see `for_noisy_copies`."""
        return cast(FastCopy, _with(self, "network", for_noisy_copies(self.network, copies)))


class CompiledFastCopy(nn.Module):
    """A fast copy, compiled at its first call for the shape of its inputs; where it cannot be, plain with a warning."""

    def __init__(self, plain: FastCopy) -> None:
        super().__init__()
        self.plain = plain
        self.call: Callable[[Tensor], Tensor] = torch.compile(plain, dynamic=False)
        self.known: set[Any] = set()
        """Kinds of inputs that it was called with."""

    def forward(self, x: Tensor) -> Tensor:
        kind = x.shape, x.requires_grad, torch.is_grad_enabled()
        try:
            with nullcontext() if kind in self.known else compiled_anew():
                logits = self.call(x)
            self.known.add(kind)
            return logits
        except Exception as error:  # whatever a compiler raises
            if self.call is self.plain:
                raise
            warnings.warn(
                f"gradients could not be compiled, and attacks are slower: {first_words(error)}", stacklevel=2
            )
            self.call = self.plain
            return self.plain(x)
