"""One weight update: reference implementation, and the compiled bf16 step in one CUDA graph."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from rhobust.attacks.gradient import label_losses
from rhobust.methods import Loss, Method
from rhobust.models.fused import ConvNorm, EvalCopy
from rhobust.models.inference import CompiledCopy, WithEvalCopy
from rhobust.noise import BatchNoise, Noise
from rhobust.training.distributed import Processes, ShardNoise


@dataclass
class TrainingStep:
    """The plain update, in the weights' own precision; what the fast path must agree with."""

    model: nn.Module
    method: Method
    optimizer: torch.optim.Optimizer
    noise: Noise
    processes: Processes
    clip: float | None
    """Largest norm of the gradient; None leaves it as it is."""

    def __call__(self, x: torch.Tensor, y: torch.Tensor, share: torch.Tensor) -> Loss:
        """Update the weights once.

        Args:
            x: This process's inputs.
            y: Their labels.
            share: This process's share of the whole batch, a scalar; 1 for a single process.
        """
        self.optimizer.zero_grad(set_to_none=True)
        loss = _checked(self.loss(x, y))
        (loss.value * share).backward()
        self.processes.add_gradients(self.model)
        if self.clip is not None:
            clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return Loss(loss.value.detach(), loss.squared_distance.detach())

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> Loss:
        """The method's loss of a batch."""
        return self.method.loss(self.model, x, y, self.noise)


def _checked(loss: Loss) -> Loss:
    """Refuse what a method of the user's own may return in the place of a loss."""
    if not isinstance(loss, Loss):
        raise ValueError(f"a method's loss must return a rhobust.methods.Loss, got a {type(loss).__name__}")
    if loss.value.dim() or not loss.value.requires_grad:
        shape = f"the shape {tuple(loss.value.shape)}" if loss.value.dim() else "one without a gradient"
        raise ValueError(f"a loss's value must be a scalar that depends on the weights, got {shape}")
    return loss


WARM_UP = 3
"""Steps before the capture: compilation, choice of algorithms and allocation happen in them, and are undone."""


@dataclass
class CompiledStep(TrainingStep):
    """The same update as `TrainingStep`, with forward passes in bf16 and one launch a step.

    Weights, their gradients and the optimiser stay in float32. The first batch of full size compiles the network
    and captures inner loop, outer step and optimiser in one graph; its noise comes from a generator registered with
    the graph, so the seed decides the run as before. Batches of another size take the same step without the graph.
    A network that cannot be compiled or captured falls back to the next slower way with one warning.
    """

    size: int = 0
    """Rows of a full batch."""
    compiled: nn.Module = field(init=False)
    graph: torch.cuda.CUDAGraph | None = field(default=None, init=False)
    capture: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self.compiled = cast(nn.Module, torch.compile(self.model, dynamic=False))
        if any(isinstance(module, ConvNorm) for module in self.model.modules()):
            self.compiled = WithEvalCopy(self.compiled, self._eval_copy())

    def _eval_copy(self) -> Callable[[], nn.Module]:
        """A compiled bf16 copy for inner loops with batch norm folded, refreshed once per step."""
        source = EvalCopy(self.model, torch.bfloat16)
        network = CompiledCopy(
            cast(nn.Module, torch.compile(source.network, dynamic=False)),
            torch.compile(partial(label_losses, source.network), dynamic=False),
            # A norm of each example in two stages would need a kernel for each of them.
            partial(torch.compile, dynamic=False, options={"split_reductions": False}),
        )
        refresh = torch.compile(source.refresh, dynamic=False)

        def copy() -> nn.Module:
            with torch.autocast("cuda", enabled=False):
                refresh()
            return network

        return copy

    def __call__(self, x: Tensor, y: Tensor, share: Tensor) -> Loss:
        if len(x) != self.size or not self.capture:
            return super().__call__(x, y, share)
        if self.graph is None:
            self._prepare(x, y, share)
            if self.graph is None:
                return super().__call__(x, y, share)
        for static, value in zip(self.inputs, (x, y, share), strict=True):
            static.copy_(value)
        self.graph.replay()
        return Loss(self.outputs.value.clone(), self.outputs.squared_distance.clone())

    def loss(self, x: Tensor, y: Tensor) -> Loss:
        # Odd batches run uncompiled: a second shape would cost a second compilation for one step an epoch.
        network = self.compiled if len(x) == self.size else self.model
        # The cast cache outlives a capture and would hand the replay stale weights.
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            return self.method.loss(network, x, y, self.noise)

    def _prepare(self, x: Tensor, y: Tensor, share: Tensor) -> None:
        """Compile, let cuDNN try all its algorithms on these shapes, and capture what it chose."""
        cudnn = torch.backends.cudnn
        before = cudnn.benchmark, cudnn.benchmark_limit
        # Torch's limit of ten misses the best ones for small batches: 2 to 3% of a step.
        cudnn.benchmark, cudnn.benchmark_limit = True, 0
        try:
            self._compile_and_capture(x, y, share)
        finally:
            cudnn.benchmark, cudnn.benchmark_limit = before

    def _compile_and_capture(self, x: Tensor, y: Tensor, share: Tensor) -> None:
        self.inputs = tuple(value.clone() for value in (x, y, share))
        kept = self._state()
        try:
            self._warm_up()
        except Exception as error:
            self._restore(kept)
            self._warn("compiled", error)
            self.compiled = self.model
            try:
                self._warm_up()
            except Exception as again:
                self._restore(kept)
                self.capture = False
                self._warn("captured", again)
                return
        default = torch.cuda.default_generators[x.device.index]
        before = default.get_state()
        try:
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self._generator())
            with torch.cuda.graph(graph):
                self.outputs = super().__call__(*self.inputs)
            self.graph = graph
        except Exception as error:
            self.capture = False
            _release(default, before)
            _release(self._generator(), kept[2])
            self._warn("captured", error)
        self._restore(kept)

    def _warm_up(self) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    super().__call__(*self.inputs)
        finally:
            # Steps that are under way when one fails must not write over what is restored.
            torch.cuda.synchronize()

    def _warn(self, what: str, error: Exception) -> None:
        reason = " ".join(str(error).split()[:40]) or type(error).__name__
        warnings.warn(f"the training step could not be {what} and runs slower: {reason}", stacklevel=4)

    def _generator(self) -> torch.Generator:
        whole = self.noise.whole if isinstance(self.noise, ShardNoise) else self.noise
        if not isinstance(whole, BatchNoise):
            raise ValueError(f"noise must come from one generator to be captured, got {type(whole).__name__}")
        return whole.generator

    def _state(self) -> tuple[dict[str, Tensor], dict[tuple[Tensor, str], Tensor], Tensor]:
        """Copies of weights and buffers, of the optimiser's tensors, and the noise's place."""
        weights = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        moments = {key: value.clone() for key, value in self._moments()}
        return weights, moments, self._generator().get_state()

    def _restore(self, kept: tuple[dict[str, Tensor], dict[tuple[Tensor, str], Tensor], Tensor]) -> None:
        """Undo the warm-up in place: the graph holds the addresses."""
        weights, moments, noise = kept
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                tensor.copy_(weights[name])
            for key, value in self._moments():
                # An optimiser that has not stepped has no tensors yet; zeros are what it starts from.
                value.copy_(moments[key]) if key in moments else value.zero_()
        self._generator().set_state(noise)

    def _moments(self) -> list[tuple[tuple[Tensor, str], Tensor]]:
        return [
            ((parameter, name), value)
            for parameter, state in self.optimizer.state.items()
            for name, value in state.items()
            if isinstance(value, Tensor)
        ]


def _release(generator: torch.Generator, state: Tensor) -> None:
    """Free a generator from a capture that failed: torch would refuse to draw from it outside a graph ever after."""
    fresh = torch.Generator(device=generator.device)
    fresh.set_state(state)
    generator.graphsafe_set_state(fresh.graphsafe_get_state())
