"""Training steps against the reference implementation, in one process."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.benchmark import Setting, Table, generators_kept, untrained
from benchmarks.reference import reference_loss, reference_network
from rhobust.methods import ERM, NAL, STN, TRADES, WRM, AdversarialTraining, AnyMethod, Gaussian, SmoothAdv
from rhobust.noise import BatchNoise, stream
from rhobust.progress import progress_or_default
from rhobust.settings import kind_of
from rhobust.training import ProcessGroup
from rhobust.training.step import CompiledStep, TrainingStep

METHODS = (NAL(), AdversarialTraining(), SmoothAdv(), TRADES(), WRM())
FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = 1, 2, 3
"""A pass in units of a forward pass; a weight gradient has both halves of the backward pass."""


@dataclass(frozen=True)
class Scale:
    """What is timed: the paper's CIFAR-10 setting on a GPU, its MNIST setting on a CPU."""

    model: str
    shape: tuple[int, int, int]
    batch: int
    reference_steps: int
    our_steps: int


SCALES = {
    "cuda": Scale("resnet18", (3, 32, 32), 128, reference_steps=8, our_steps=40),
    "cpu": Scale("cnn", (1, 28, 28), 64, reference_steps=9, our_steps=9),
}


def bench_training(setting: Setting) -> dict[str, Any]:
    """Time a training step of each method, ours against the reference, and measure the machine's ceiling."""
    device, curve = setting.device, setting.curve
    scale = SCALES[device.type]
    ceiling = matmul_rate(device)
    rows = []
    with progress_or_default(setting.progress) as notify:
        for method in METHODS:
            notify(f"bench training: {kind_of(type(method))}")
            rows.append(_compare(method, scale, device, ceiling))
        result: dict[str, Any] = {
            **setting.machine(),
            "model": scale.model,
            "shape": list(scale.shape),
            "batch": scale.batch,
            "matmul_tflops": ceiling / 1e12,
            "methods": rows,
        }
        if curve:
            notify(f"bench training: loss over {curve} steps")
            result["curve"] = loss_curves(NAL(), scale, device, curve)
    return result


def training_table(result: dict[str, Any]) -> Table:
    """The training benchmark's result for people."""
    shape = "x".join(map(str, result["shape"]))
    rows = [
        [
            row["method"],
            f"{row['textbook_ms']:.1f}",
            f"{row['ours_ms']:.1f}",
            f"{row['ratio']:.1f}",
            f"{row['images_per_second']:.0f}",
            f"{row['tflops']:.3g}",
            f"{row['share_of_matmul']:.2f}",
            "" if row["peak_gib"] is None else f"{row['peak_gib']:.2f}",
        ]
        for row in result["methods"]
    ]
    return Table(
        heading=[
            f"{result['model']}, {shape}, batch {result['batch']}, on {result['device']}",
            f"matrix product ceiling {result['matmul_tflops']:.3g} TFLOP/s, torch {result['torch']}",
        ],
        columns=["method", "reference ms", "ours ms", "times faster", "images/s", "TFLOP/s", "of ceiling", "GiB"],
        rows=rows,
        notes=[
            f"NAL loss, {name}: {' '.join(f'{loss:.4f}' for loss in losses[:: max(1, len(losses) // 10)])}"
            for name, losses in result.get("curve", {}).items()
        ],
    )


def matmul_rate(device: torch.device) -> float:
    """Operations per second of a large matrix product: bf16 on a GPU, float32 on a CPU."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (2048, torch.float32)
    generator = stream(0, "matmul", device=device)
    a, b = (torch.randn(size, size, generator=generator, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / _seconds(lambda: a @ b, device, repeats=10)


def loss_curves(method: NAL, scale: Scale, device: torch.device, steps: int) -> dict[str, list[float]]:
    """Losses of the same batches by the plain float32 step and by the default one, same seed."""
    batches = _batches(scale, device, 32)
    curves = {}
    for name in ("float32", "default"):
        step = _our_step(method, scale, device, fast=name == "default")
        values = [step(*batches[number % len(batches)]).value for number in range(steps)]
        curves[name] = torch.stack(values).tolist()
    return curves


def compare_step(method: Any, model: str, device: torch.device, *, reference: bool = True) -> dict[str, Any]:
    """A training step on 32x32 images, ours against the reference: on a GPU at the paper's batch, on a CPU tiny."""
    gpu = device.type == "cuda"
    scale = Scale(model, (3, 32, 32), 128 if gpu else 2, reference_steps=3 if gpu else 1, our_steps=20 if gpu else 1)
    return _compare(method, scale, device, matmul_rate(device), reference=reference)


def peer_step_seconds(attacks: ModuleType, method: SmoothAdv, model: str, device: torch.device) -> float:
    """Seconds of an update by SmoothAdv as its authors train, with their own attack on all noisy copies at once.

    As one mini-batch of their train_pgd.py with --train_multi_noise: copies of each image with their noise, the attack,
    one update.
    """
    gpu = device.type == "cuda"
    scale = Scale(model, (3, 32, 32), 128 if gpu else 2, reference_steps=8 if gpu else 1, our_steps=1)
    network, optimizer, _ = _parts(scale, device, fast=False)
    reference_network(network)
    x, y, _ = _batches(scale, device, 1)[0]
    attacker, draws = attacks.PGD_L2(steps=method.steps, device=device, max_norm=method.eps), method.draws

    def step() -> None:
        copies = x.repeat((1, draws, 1, 1)).view(-1, *x.shape[1:])
        noise = torch.randn_like(copies) * method.sigma
        network.requires_grad_(False).eval()
        attacked = attacker.attack(network, copies, y, noise=noise, num_noise_vectors=draws)
        network.requires_grad_(True).train()
        loss = F.cross_entropy(network(attacked.detach() + noise), y.repeat_interleave(draws))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    with generators_kept(device):
        return _seconds(step, device, repeats=scale.reference_steps)


def _compare(
    method: Any, scale: Scale, device: torch.device, ceiling: float, *, reference: bool = True
) -> dict[str, Any]:
    x, y, share = _batches(scale, device, 1)[0]
    plain = _reference_step(method, scale, device, x, y)
    strict = relaxed = None
    if device.type == "cuda" and not reference:
        strict = math.nan
    elif device.type == "cuda":
        with _strict_float32():
            strict = _seconds(plain, device, repeats=scale.reference_steps)
        relaxed = _seconds(plain, device, repeats=scale.reference_steps)
    before = _memory(device)
    step = _our_step(method, scale, device, fast=True)
    start = time.perf_counter()
    step(x, y, share)
    prepared = time.perf_counter() - start
    if strict is not None:
        seconds = _seconds(lambda: step(x, y, share), device, repeats=scale.our_steps)
    else:
        # On a CPU both in turn: other work on the same cores slows both.
        strict, seconds = _seconds_in_turn((plain, lambda: step(x, y, share)), repeats=scale.our_steps)
    _, passes = update_cost(method)
    work = passes * scale.batch * _forward_operations(scale, device)
    return {
        "method": kind_of(type(method)),
        "textbook_ms": 1e3 * strict,
        "textbook_tf32_ms": None if relaxed is None else 1e3 * relaxed,
        "ours_ms": 1e3 * seconds,
        "ratio": strict / seconds,
        "images_per_second": scale.batch / seconds,
        "tflops": work / seconds / 1e12,
        "share_of_matmul": work / seconds / ceiling,
        "peak_gib": None if before is None else (torch.cuda.max_memory_allocated(device) - before) / 2**30,
        "first_step_seconds": prepared,
    }


def _reference_step(method: Any, scale: Scale, device: torch.device, x: Tensor, y: Tensor) -> Callable[[], None]:
    model, optimizer, noise = _parts(scale, device, fast=False)
    reference_network(model).train()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        reference_loss(method, model, x, y, noise).backward()
        optimizer.step()

    return step


def _memory(device: torch.device) -> int | None:
    """Bytes that are in use on a GPU; the peak is counted from here."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _forward_operations(scale: Scale, device: torch.device) -> int:
    """Floating-point operations of one image's forward pass."""
    model, _, _ = _parts(scale, device, fast=False)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model.eval()(torch.zeros(1, *scale.shape, device=device))
    return counter.get_total_flops()


class _strict_float32:  # noqa: N801 - reads as a statement
    """Float32 convolutions without TF32, as in the reference implementation."""

    def __enter__(self) -> None:
        self.before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False

    def __exit__(self, *_: object) -> None:
        torch.backends.cudnn.allow_tf32 = self.before


def _parts(scale: Scale, device: torch.device, *, fast: bool) -> tuple[nn.Module, torch.optim.Optimizer, BatchNoise]:
    model = untrained(scale.model, scale.shape).to(device)
    options: dict[str, Any] = {"lr": 1e-4}
    if fast and device.type == "cuda":
        options = {"lr": torch.tensor(1e-4, device=device), "fused": True, "capturable": True}
    return model, torch.optim.Adam(model.parameters(), **options), BatchNoise(stream(0, "bench", device=device))


def _our_step(method: Any, scale: Scale, device: torch.device, *, fast: bool) -> TrainingStep:
    model, optimizer, noise = _parts(scale, device, fast=fast)
    model.train()
    if fast and device.type == "cuda":
        return CompiledStep(model, method, optimizer, noise, ProcessGroup(), None, size=scale.batch)
    return TrainingStep(model, method, optimizer, noise, ProcessGroup(), None)


def _batches(scale: Scale, device: torch.device, count: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Images with something to learn: each class is a fixed pattern under noise."""
    generator = stream(0, "batches", device=device)
    patterns = torch.rand(10, *scale.shape, generator=generator, device=device)
    share = torch.ones((), device=device)
    batches = []
    for _ in range(count):
        y = torch.randint(10, (scale.batch,), generator=generator, device=device)
        noise = torch.rand(scale.batch, *scale.shape, generator=generator, device=device)
        batches.append(((0.3 * patterns[y] + 0.7 * noise), y, share))
    return batches


def _seconds(work: Callable[[], Any], device: torch.device, *, repeats: int) -> float:
    """Median seconds of a call, after two that are not counted."""
    if device.type == "cpu":
        return _seconds_in_turn((work,), repeats=repeats)[0]
    for _ in range(2):
        work()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize(device)
        times.append(start.elapsed_time(end) / 1e3)
    return median(times)


def _seconds_in_turn(works: Sequence[Callable[[], Any]], *, repeats: int) -> list[float]:
    """Median seconds of each call on a CPU, after two rounds that are not counted."""
    times: list[list[float]] = [[] for _ in works]
    for number in range(-2, repeats):
        for work, taken in zip(works, times, strict=True):
            before = time.perf_counter()
            work()
            if number >= 0:
                taken.append(time.perf_counter() - before)
    return [median(taken) for taken in times]


def update_cost(method: AnyMethod) -> tuple[int, int]:
    """Calls of the network in one weight update, and what they cost per image in units of a forward pass."""
    match method:
        case ERM():
            return 1, WEIGHT_GRADIENT
        case Gaussian():
            return 1, WEIGHT_GRADIENT * method.draws
        case STN():
            return 1, WEIGHT_GRADIENT * 2
        case AdversarialTraining():
            return method.steps + 1, INPUT_GRADIENT * method.steps + WEIGHT_GRADIENT
        case TRADES():
            return method.steps + 2, FORWARD + INPUT_GRADIENT * method.steps + WEIGHT_GRADIENT * 2
        case WRM():
            return method.steps + 2, INPUT_GRADIENT * (method.steps + 1) + WEIGHT_GRADIENT
        case SmoothAdv() | NAL():
            return method.steps + 1, (INPUT_GRADIENT * method.steps + WEIGHT_GRADIENT) * method.draws
        case _:
            raise ValueError(f"method must be one of the paper's to be counted, got {type(method).__name__}")
