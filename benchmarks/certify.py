"""Certification timed: the reference loop, a peer's and ours, and what the sequential procedure saves."""

import copy
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.benchmark import Setting, Table, generators_kept, timed, untrained
from benchmarks.reference import reference_network, reference_votes
from rhobust.certificates import Certificate, Dtype, Fixed, Sequential, Smoothing, VoteCounter, certify_stream
from rhobust.data import Dataset, to_unit
from rhobust.evaluation import Target
from rhobust.methods import Gaussian
from rhobust.noise import stream
from rhobust.progress import progress_or_default
from rhobust.training import TrainConfig, train

N0, N, ALPHA = 100, 100_000, 1e-3
STEPS = (0.0, 1.0, 2.0, 3.0)
"""Radii of the sequential procedure, in units of sigma."""
BATCH = 1000
"""Rows per forward pass in the reference loop and the peer's."""


@dataclass(frozen=True)
class Scale:
    """How much is timed on a device."""

    loops: int
    """Images that the reference loop and the peer certify with N noise samples."""
    fixed: int
    """Images that ours certifies."""
    grid: int
    """Images whose radii are decided sequentially, and compared with the decisions of N noise samples."""


SCALES = {"cuda": Scale(loops=4, fixed=64, grid=500), "cpu": Scale(loops=2, fixed=2, grid=20)}


def bench_certify(setting: Setting) -> dict[str, Any]:
    """Time N noise samples per image by the reference loop, by ART if installed, and by ours; then sequential tests.

    All use the same network, images, sigma, alpha, n0 and n in one process. What compiles or warms up is not timed.
    """
    device, scale = setting.device, SCALES[setting.device.type]
    count = setting.limit or scale.grid
    with progress_or_default(setting.progress) as notify, tempfile.TemporaryDirectory() as scratch:
        target = _target(setting, Path(scratch))
        sigma, shape = target.smoothing_sigma(), target.data.shape
        images = target.data.images[: max(count, scale.fixed)].to(device)
        result: dict[str, Any] = {
            **setting.machine(),
            "network": target.name,
            "data": target.data.name,
            "shape": list(shape),
            "sigma": sigma,
            "alpha": ALPHA,
            "n0": N0,
            "n": N,
            "rates": [],
        }

        def rate(name: str, inputs: int, times: tuple[float, float]) -> None:
            wall, cpu = (inputs * (N0 + N) / seconds for seconds in times)
            result["rates"].append(
                {"name": name, "images": inputs, "samples_per_second": wall, "samples_per_cpu_second": cpu}
            )
            notify(f"bench certify: {name} {result['rates'][-1]['samples_per_second']:.0f} samples/s")

        for name, strict in _loops(device):
            rate(name, scale.loops, _reference_seconds(target, images[: scale.loops], strict=strict))
        if device.type == "cpu":
            try:
                rate(f"ART, batch {BATCH}", scale.loops, _art_seconds(target, images[: scale.loops]))
            except ImportError as error:
                notify(f"bench certify: ART is left out: {error}")
        counters = {name: _counter(target, images, dtype) for name, dtype in _arithmetics(device)}
        for name, counter in counters.items():
            rate(name, scale.fixed, timed(lambda c=counter: _certify(c, Fixed(N0, N), scale.fixed), device))
        trained = setting.run is not None or device.type == "cpu"
        by_default = next(iter(counters.values()))
        result["decisions"] = _decisions(by_default, count, result["rates"], device) if trained else None
    return result


def certify_table(result: dict[str, Any]) -> Table:
    """The certification benchmark's result for people."""
    first = result["rates"][0]["samples_per_second"]
    rows = [
        [
            rate["name"],
            f"{rate['samples_per_second']:.0f}",
            f"{rate['samples_per_second'] / first:.2f}",
            f"{rate['samples_per_cpu_second']:.0f}",
        ]
        for rate in result["rates"]
    ]
    return Table(
        heading=[
            f"{result['network']} on {result['data']}, sigma {result['sigma']:g}, alpha {result['alpha']:g},"
            f" n {result['n']}, on {result['device']}, torch {result['torch']}"
        ],
        columns=["certify with n samples", "samples/s", "times the reference", "samples per CPU second"],
        rows=rows,
        notes=_notes(result["decisions"]),
    )


def _notes(decisions: dict[str, Any] | None) -> list[str]:
    if decisions is None:
        return ["radii are decided for a trained network only: give --run"]
    radii = " ".join(f"{radius:g}" for radius in decisions["radii"])
    return [
        f"radii {radii} of {decisions['images']} images: {decisions['mean_draws']:.0f} noise samples per image,"
        f" {decisions['times_fewer_draws']:.1f} times fewer than n;"
        f" {100 * decisions['same']:.2f}% decided as with n samples, and of {100 * decisions['more']:.2f}% more proved",
        f"{decisions['seconds_per_image']:.4g} s per image; "
        + ", ".join(f"{name}: {times:.1f} times longer" for name, times in decisions["times_longer"].items()),
    ]


def _target(setting: Setting, scratch: Path) -> Target:
    """The run's network; without one a small network for digits, and on a GPU a random ResNet-18 for CIFAR-10."""
    if setting.run is not None:
        return Target.from_run(setting.run, device=setting.device, root=setting.root, progress=setting.progress)
    if setting.device.type == "cuda":
        model = untrained("resnet18", (3, 32, 32))
        images = torch.randint(256, (64, 3, 32, 32), generator=stream(0, "bench"), dtype=torch.uint8)
        labels = torch.zeros(len(images), dtype=torch.int64)
        data = Dataset("random images", "test", images, labels, tuple("0123456789"))
        return Target(model.eval(), data, sigma=0.25, name="random resnet18", folder=scratch, device=setting.device)
    config = TrainConfig(Gaussian(sigma=0.25), data="digits", model="cnn-small", epochs=10, batch_size=64, lr=2e-3)
    run = train(config, scratch / "run", device=setting.device, progress=setting.progress)
    return Target.from_run(run.folder, device=setting.device)


def _loops(device: torch.device) -> list[tuple[str, bool]]:
    """The reference loop in strict float32 and, on a GPU, with the TF32 convolutions that torch allows."""
    strict = [(f"reference, float32, batch {BATCH}", True)]
    return [*strict, (f"reference, tf32, batch {BATCH}", False)] if device.type == "cuda" else strict


def _arithmetics(device: torch.device) -> list[tuple[str, Dtype]]:
    """Ours, the default first; on a CPU with instructions for bfloat16 that too, which `--dtype` asks for."""
    if device.type == "cuda":
        return [("ours, bfloat16, compiled", "bfloat16")]
    found: list[tuple[str, Dtype]] = [("ours, float32", "float32")]
    has = torch.cpu.get_capabilities()
    return [*found, ("ours, bfloat16", "bfloat16")] if has.get("avx512_bf16") or has.get("amx_bf16") else found


def _counter(target: Target, images: Tensor, dtype: Dtype) -> VoteCounter:
    smoothing = Smoothing(
        target.smoothing_sigma(), target.data.num_classes, dtype=dtype, compiled=images.device.type == "cuda"
    )
    counter = VoteCounter(target.model, images, smoothing)
    counter.warm_up()
    return counter


def _certify(counter: VoteCounter, procedure: Fixed | Sequential, images: int) -> list[Certificate]:
    return list(certify_stream(counter, procedure, [(place, place) for place in range(images)], alpha=ALPHA))


def _decisions(counter: VoteCounter, images: int, rates: list[dict[str, Any]], device: torch.device) -> dict[str, Any]:
    """Decide the radii of many images sequentially, and compare with what N noise samples decide."""
    radii = tuple(step * counter.smoothing.sigma for step in STEPS)
    found: list[Certificate] = []
    seconds = timed(lambda: found.extend(_certify(counter, Sequential(radii, n=N), images)), device)[0] / images
    fixed = _certify(counter, Fixed(N0, N), images)
    held = [_rounded_down(other, radii) for other in fixed]
    same = [(one.prediction, one.radius) == other for one, other in zip(found, held, strict=True)]
    more = [
        (one.prediction is not None, one.radius) > (other[0] is not None, other[1])
        for one, other in zip(found, held, strict=True)
    ]
    draws = float(np.mean([certificate.n for certificate in found]))
    per_image = {rate["name"]: (N0 + N) / rate["samples_per_second"] for rate in rates}
    return {
        "images": images,
        "radii": list(radii),
        "mean_draws": draws,
        "median_draws": float(np.median([certificate.n for certificate in found])),
        "times_fewer_draws": N / draws,
        "same": float(np.mean(same)),
        "more": float(np.mean(more)),
        "seconds_per_image": seconds,
        "times_longer": {name: other / seconds for name, other in per_image.items()},
    }


def _rounded_down(certificate: Certificate, radii: tuple[float, ...]) -> tuple[int | None, float]:
    """What a certified radius says about some radii: the class, and the largest of them that it reaches."""
    reached = [radius for radius in radii if certificate.prediction is not None and certificate.radius >= radius]
    return (certificate.prediction, reached[-1]) if reached else (None, 0.0)


def _reference_seconds(target: Target, images: Tensor, *, strict: bool) -> tuple[float, float]:
    device = images.device
    model = reference_network(copy.deepcopy(target.model)).eval()
    rng = stream(0, "bench", device=device)

    def certify(n: int) -> None:
        for image in images:
            for draws in (N0, n):
                reference_votes(
                    model,
                    to_unit(image),
                    sigma=target.smoothing_sigma(),
                    n=draws,
                    batch=BATCH,
                    num_classes=target.data.num_classes,
                    rng=rng,
                )

    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = not strict
    try:
        certify(2 * BATCH)
        return timed(lambda: certify(N), device)
    finally:
        torch.backends.cudnn.allow_tf32 = allowed


def _art_seconds(target: Target, images: Tensor) -> tuple[float, float]:
    """Seconds of ART's randomised smoothing.

    Raises:
        ImportError: It is not installed, or a package that it needs is not.
    """
    art = import_module("art.estimators.certification.randomized_smoothing")
    smoothed = art.PyTorchRandomizedSmoothing(
        model=reference_network(copy.deepcopy(target.model)).eval(),
        loss=nn.CrossEntropyLoss(),
        input_shape=target.data.shape,
        nb_classes=target.data.num_classes,
        clip_values=(0.0, 1.0),
        device_type="cpu",
        sample_size=N0,
        scale=target.smoothing_sigma(),
        alpha=ALPHA,
    )
    x = to_unit(images.cpu()).numpy()
    with generators_kept(images.device):
        smoothed.certify(x[:1], n=2 * BATCH, batch_size=BATCH)
        return timed(lambda: smoothed.certify(x, n=N, batch_size=BATCH), images.device)
