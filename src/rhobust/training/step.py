"""One weight update: the reference step, the compiled bf16 step in one CUDA graph, weight perturbation, optimizer."""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from rhobust.attacks.gradient import label_losses
from rhobust.methods import Loss, Method, RepeatableLoss
from rhobust.models.folding import EvalCopy, for_noisy_copies
from rhobust.models.inference import CompiledCopy, WithEvalCopy, autotuned, compiled_anew
from rhobust.noise import BatchNoise, Noise
from rhobust.training.config import TrainConfig
from rhobust.training.distributed import ProcessGroup, ShardNoise
from rhobust.user_code import UserCode, first_words

WARM_UP = 3
"""Steps before the capture, for compilation, choice of algorithms and allocation; their updates are undone."""
EXAMPLES = 4
"""Inputs on which an evaluation copy is compared with the network."""
RISE = 0.3
"""Fraction of a one-cycle run in which the learning rate rises."""


@dataclass
class TrainingStep:
    """The reference update, in the precision of the weights; `CompiledStep` is tested against it."""

    model: nn.Module
    method: Method
    optimizer: torch.optim.Optimizer
    noise: Noise
    processes: ProcessGroup
    clip: float | None
    """Largest gradient norm; None: no clipping."""
    perturbation: float = 0.0
    """Relative size of the adversarial weight perturbation; 0: none."""

    def __call__(self, x: torch.Tensor, y: torch.Tensor, share: torch.Tensor) -> Loss:
        """Update the weights once.

        Args:
            x: This process's inputs.
            y: Their labels.
            share: This process's fraction of the whole batch, a scalar; 1 for a single process.
        """
        self.optimizer.zero_grad(set_to_none=True)
        with UserCode("the network, or the training method, raised", x):
            loss = _check_loss(self.loss(x, y))
            self._differentiate(loss, share)
            if self.perturbation:
                if not isinstance(loss, RepeatableLoss):
                    raise ValueError(
                        "the method's loss must be a rhobust.methods.RepeatableLoss to perturb the weights"
                    )
                with perturbed(self.model, self.perturbation):
                    self.optimizer.zero_grad(set_to_none=True)
                    with self.arithmetic():
                        again = loss.again()
                    self._differentiate(again, share)
        if self.clip is not None:
            clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return Loss(loss.value.detach(), loss.squared_distance.detach())

    def use(self, method: Method, perturbation: float) -> None:
        """Change the method and the weight perturbation of the following steps."""
        self.method, self.perturbation = method, perturbation

    def _differentiate(self, loss: Loss, share: torch.Tensor) -> None:
        """The gradients of the whole batch's loss."""
        (loss.value * share).backward()
        self.processes.add_gradients(self.model)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> Loss:
        """The method's loss of a batch."""
        with self.arithmetic():
            return self.method.loss(self.network(x), x, y, self.noise)

    def network(self, x: torch.Tensor) -> nn.Module:
        """The form of the network for these inputs."""
        return self.model

    def arithmetic(self) -> AbstractContextManager:
        """The precision of forward passes."""
        return nullcontext()

    def state(self) -> "StepState":
        """Copies of everything that a step changes."""
        weights = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        moments = {key: value.clone() for key, value in self._moments()}
        return StepState(weights, moments, self._generator().get_state())

    def restore(self, kept: "StepState") -> None:
        """Undo all steps since `state`, in place: a CUDA graph uses these addresses."""
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                tensor.copy_(kept.weights[name])
            for key, value in self._moments():
                # An optimizer that had not stepped has no tensors yet; they start at zero.
                value.copy_(kept.moments[key]) if key in kept.moments else value.zero_()
        self._generator().set_state(kept.noise)

    def _moments(self) -> list[tuple[tuple[Tensor, str], Tensor]]:
        return [
            ((parameter, name), value)
            for parameter, state in self.optimizer.state.items()
            for name, value in state.items()
            if isinstance(value, Tensor)
        ]

    def _generator(self) -> torch.Generator:
        whole = self.noise.whole if isinstance(self.noise, ShardNoise) else self.noise
        if not isinstance(whole, BatchNoise):
            raise ValueError(f"noise must come from one generator to be restored, got {type(whole).__name__}")
        return whole.generator


class StepState(NamedTuple):
    """What a step changes."""

    weights: dict[str, Tensor]
    """Weights and buffers."""
    moments: dict[tuple[Tensor, str], Tensor]
    """The optimizer's tensors."""
    noise: Tensor
    """The state of the noise generator."""


def _check_loss(loss: Loss) -> Loss:
    """Raise if a user-defined method returned an invalid loss."""
    if not isinstance(loss, Loss):
        raise ValueError(f"a method's loss must return a rhobust.methods.Loss, got a {type(loss).__name__}")
    if loss.value.dim() or not loss.value.requires_grad:
        shape = f"the shape {tuple(loss.value.shape)}" if loss.value.dim() else "one without a gradient"
        raise ValueError(f"a loss's value must be a scalar that depends on the weights, got {shape}")
    return loss


@dataclass
class CompiledStep(TrainingStep):
    """The same update as `TrainingStep`, with forward passes in bf16 and one CUDA graph launch per step.

    Weights, their gradients and the optimizer stay in float32. The first batch of full size compiles the network
    and captures inner loop, outer step and optimizer in one graph; its noise comes from a generator registered with
    the graph, so the seed determines the run. Batches of another size run without the graph. Inner loops run on a bf16
    evaluation copy with batch norm folded, for any network that has one. What a network does not allow falls back
    alone, with one warning: the copy, the compilation or the graph.
    """

    size: int = 0
    """Rows of a full batch."""
    compiled: nn.Module = field(init=False)
    graph: torch.cuda.CUDAGraph | None = field(default=None, init=False)
    capture: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self.compiled = cast(nn.Module, torch.compile(self.model, dynamic=False))

    def _eval_copy(self, x: Tensor) -> Callable[[], nn.Module]:
        """A compiled bf16 copy for inner loops with batch norm folded, refreshed once per step."""
        source = EvalCopy(self.model, torch.bfloat16, example=x[:EXAMPLES])

        def make(copies: int = 1) -> CompiledCopy:
            network = for_noisy_copies(source.network, copies)
            return CompiledCopy(
                cast(nn.Module, torch.compile(network, dynamic=False)),
                torch.compile(partial(label_losses, network), dynamic=False),
                # A two-stage reduction per example would need one kernel for each stage.
                partial(torch.compile, dynamic=False, options={"split_reductions": False}),
                make if copies == 1 else None,
            )

        network, refresh = make(), torch.compile(source.refresh, dynamic=False)

        def copy() -> nn.Module:
            with torch.autocast("cuda", enabled=False):
                refresh()
            return network

        return copy

    def __call__(self, x: Tensor, y: Tensor, share: Tensor) -> Loss:
        # A graph is captured on the current device: on another one than that of the network it would hold nothing.
        with torch.cuda.device(x.device):
            return self._step(x, y, share)

    def _step(self, x: Tensor, y: Tensor, share: Tensor) -> Loss:
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

    def use(self, method: Method, perturbation: float) -> None:
        if (method, perturbation) != (self.method, self.perturbation):
            self.graph = None  # captured with the old ones; its compiled parts are used again
        super().use(method, perturbation)

    def network(self, x: Tensor) -> nn.Module:
        # Batches of another size run uncompiled: a second shape would cost a second compilation for one step per epoch.
        return self.compiled if len(x) == self.size else self.model

    def arithmetic(self) -> AbstractContextManager:
        # The cast cache outlives a capture and would give the replay stale weights.
        return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)

    def _prepare(self, x: Tensor, y: Tensor, share: Tensor) -> None:
        """Compile, let cuDNN try all its algorithms on these shapes, and capture what it chose."""
        # Torch's limit of ten algorithms misses the best ones for small batches: 2 to 3% of a step.
        with autotuned(), compiled_anew():
            self._compile_and_capture(x, y, share)

    def _compile_and_capture(self, x: Tensor, y: Tensor, share: Tensor) -> None:
        self.inputs = tuple(value.clone() for value in (x, y, share))
        kept = self.state()
        with_copy = self.compiled if isinstance(self.compiled, WithEvalCopy) else None  # of another method
        compiled = self.compiled if with_copy is None else with_copy.network
        ways: list[tuple[str, Callable[[], nn.Module]]] = [
            ("compiled with an evaluation copy", lambda: with_copy or WithEvalCopy(compiled, self._eval_copy(x))),
            ("compiled", lambda: compiled),
            ("captured", lambda: self.model),
        ]
        for name, make in ways:
            try:
                self.compiled = make()
                self._warm_up()
                break
            except Exception as error:  # whatever a compiler, or a copy of the network, raises
                self.restore(kept)
                self._warn(name, error)
        else:
            self.capture = False
            return
        default = torch.cuda.default_generators[x.device.index]
        before = default.get_state()
        try:
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self._generator())
            # Other threads may use the device meanwhile, such as those that load somebody's data.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.outputs = super().__call__(*self.inputs)
            self.graph = graph
        except Exception as error:
            self.capture = False
            _release(default, before)
            _release(self._generator(), kept.noise)
            self._warn("captured", error)
        self.restore(kept)

    def _warm_up(self) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    super().__call__(*self.inputs)
        finally:
            # Steps still running when one fails must not overwrite the restored state.
            torch.cuda.synchronize()

    def _warn(self, what: str, error: Exception) -> None:
        warnings.warn(f"the training step could not be {what} and runs slower: {first_words(error)}", stacklevel=4)


def _release(generator: torch.Generator, state: Tensor) -> None:
    """Reset a generator after a failed capture; otherwise torch raises at every use outside a graph."""
    fresh = torch.Generator(device=generator.device)
    fresh.set_state(state)
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


def learning_rate(config: TrainConfig, done: int, updates: int) -> float:
    """The learning rate after `done` of `updates` updates."""
    progress = done / updates
    match config.schedule:
        case "cosine":
            factor = 0.5 * (1 + math.cos(math.pi * progress))
        case "onecycle":
            fall = 0.5 * (1 + math.cos(math.pi * (progress - RISE) / (1 - RISE)))
            # Starts just above zero, so that the first update of a short run counts.
            factor = min(1.0, (done + 1) / (RISE * updates)) if progress < RISE else fall
        case "step":
            factor = 0.1 ** int(3 * progress)
        case "constant":
            factor = 1.0
    return cast(float, config.lr) * factor


def make_optimizer(config: TrainConfig, model: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """The config's optimizer, capturable in a CUDA graph if the compiled step is used."""
    options: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay}
    if config.fast and device.type == "cuda":
        # A graph replays captured addresses: the learning rate must be a tensor to change over time.
        options |= {"lr": torch.tensor(cast(float, config.lr), device=device), "fused": True}
        if config.optimizer == "adam":
            options["capturable"] = True
    if config.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), **options)
    return torch.optim.SGD(model.parameters(), momentum=0.9, nesterov=True, **options)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameter groups."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


@contextmanager
def perturbed(model: nn.Module, size: float) -> Iterator[None]:
    """The network with each weight tensor w moved to w + size ||w|| g / ||g||, for its gradient g; then as before.

    Vectors (biases, scales of norms) keep their values. On exit all weights are the old ones to the last bit, and so
    are the buffers: running statistics stay those of the weights that are evaluated.

    Args:
        model: The network, with the gradients of the loss that the perturbation is to increase.
        size: Size of the perturbation relative to the norm of the tensor.
    """
    moved = [(weight, weight.grad) for weight in model.parameters() if weight.dim() > 1 and weight.grad is not None]
    changed = [*(weight for weight, _ in moved), *model.buffers()]
    with torch.no_grad():
        before = [tensor.clone() for tensor in changed]
        for weight, gradient in moved:
            length = gradient.norm().clamp_min(torch.finfo(gradient.dtype).tiny)
            weight.add_(gradient * (size * weight.norm() / length))
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, old in zip(changed, before, strict=True):
                tensor.copy_(old)
