"""Evaluation copies of networks, with batch norm folded into the convolutions: of rhobust's own and of any other."""

import copy
import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from rhobust.foreign import first_words
from rhobust.models.fused import ConvNorm, Folded, Residual, fold

CHANGE = 0.2
"""Change of the logits by folding, relative to the largest one, that rounding to bf16 explains."""
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
        for name, child in source.named_children():
            if folded and isinstance(child, ConvNorm):
                # The shortcut's bias is folded into the second convolution of the block: one pass less.
                added = source.shortcut if isinstance(source, Residual) and child is source.second else None
                layer = Folded(child, dtype, shortcut=added if isinstance(added, ConvNorm) else None)
                setattr(target, name, layer)
                self.folds.append(layer)
            else:
                self._replace(child, getattr(target, name), dtype, folded)
        if isinstance(target, Residual) and isinstance(target.shortcut, Folded):
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
            traced, folds = fold_traced(model, self.network, dtype)
            if folds and _same(traced, self.network, example, dtype):
                self.network, self.folds = traced, folds
        except Exception:  # whatever a network raises when it is traced: then it stays as it is
            return

    def refresh(self) -> None:
        """Copy the network's current weights and statistics."""
        for folded in self.folds:
            folded.refresh()
        with torch.no_grad():
            for source, target in self.copies:
                target.copy_(source)


@dataclass
class TracedPair:
    """A convolution and its batch norm in a traced network, and the activation that follows."""

    conv: nn.Conv2d
    norm: nn.BatchNorm2d
    activation: nn.Module | None

    def folded(self) -> tuple[Tensor, Tensor]:
        """Weights and bias of the equivalent convolution in evaluation mode."""
        return fold(self.conv, self.norm)


def fold_traced(model: nn.Module, copied: nn.Module, dtype: torch.dtype) -> tuple[fx.GraphModule, list[Folded]]:
    """Trace a copy of a network, and fold each convolution, batch norm, sum and ReLU into one layer.

    Args:
        model: The network, whose weights `refresh` reads.
        copied: Its copy in evaluation mode.
        dtype: Dtype of the folded weights.

    Raises:
        ValueError: The network has hooks, which a trace would lose; or whatever the trace raises.
    """
    modules = list(model.modules())
    if any(module._forward_hooks or module._forward_pre_hooks for module in modules):
        raise ValueError("the network must have no hooks to be traced")
    if not any(type(module) is nn.BatchNorm2d for module in modules):
        raise ValueError("the network must have batch norm to be folded")
    traced = fx.symbolic_trace(copied)
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
        last, shortcut = _followers(traced, norm)
        source = TracedPair(own, own_norm, None if last is norm else nn.ReLU())
        name = f"folded_{len(folds)}"
        folds.append(Folded(source, dtype))
        traced.add_module(name, folds[-1])
        with graph.inserting_before(last):
            new = graph.call_module(name, (conv.args[0],) if shortcut is None else (conv.args[0], shortcut))
        last.replace_all_uses_with(new)
        for node in _chain(last, norm, conv):
            graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced.eval().requires_grad_(False), folds


def _foldable(conv: nn.Module, norm: nn.Module) -> bool:
    """Whether a convolution and a batch norm are torch's own, in their usual form."""
    return (
        type(conv) is nn.Conv2d
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
        and type(norm) is nn.BatchNorm2d
        and norm.running_mean is not None
        and isinstance(conv.weight, nn.Parameter)
    )


def _followers(traced: fx.GraphModule, norm: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """The last node that can be part of the layer, and what is added before it: a ReLU, perhaps of a sum."""
    user = _only_user(norm)
    if user is not None and _is_relu(traced, user):
        return user, None
    if user is not None and user.op == "call_function" and user.target in _SUMS and not user.kwargs:
        after = _only_user(user)
        others = [argument for argument in user.args if argument is not norm]
        if after is not None and _is_relu(traced, after) and len(others) == 1 and isinstance(others[0], fx.Node):
            return after, others[0]
    return norm, None


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


def _same(one: nn.Module, other: nn.Module, example: Tensor, dtype: torch.dtype) -> bool:
    """Whether two networks answer an example alike, up to rounding."""
    with torch.no_grad(), torch.autocast(example.device.type, dtype, enabled=dtype in (torch.bfloat16, torch.float16)):
        ours, theirs = one(example.clone()).double(), other(example.clone()).double()
    allowed = CHANGE if dtype in (torch.bfloat16, torch.float16) else 1e-3
    return ours.shape == theirs.shape and bool((ours - theirs).abs().max() <= allowed * theirs.abs().max())


class FastCopy(nn.Module):
    """Evaluation copy of a network in bf16, without gradients in the weights; inputs and logits are float32.

    bf16 has the range of float32, so that small gradients do not vanish, and three digits, enough for a direction.
    """

    def __init__(self, model: nn.Module, example: Tensor | None = None) -> None:
        super().__init__()
        self.network = EvalCopy(model, torch.bfloat16, example=example).network

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.network(x).float()


class CompiledFastCopy(nn.Module):
    """A fast copy, compiled at its first call for the shape of its inputs; where it cannot be, plain with a warning."""

    def __init__(self, plain: FastCopy) -> None:
        super().__init__()
        self.plain = plain
        self.call: Callable[[Tensor], Tensor] = torch.compile(plain, dynamic=False)

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.call(x)
        except Exception as error:  # whatever a compiler raises
            if self.call is self.plain:
                raise
            warnings.warn(
                f"gradients could not be compiled, and attacks are slower: {first_words(error)}", stacklevel=2
            )
            self.call = self.plain
            return self.plain(x)
