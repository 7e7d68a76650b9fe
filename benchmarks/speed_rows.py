"""The rows of the speed benchmark: what is timed, and against what."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.benchmark import Setting, generators_kept
from benchmarks.peers import load_peer, without_cuda
from benchmarks.reference import reference_network
from benchmarks.training import compare_step, peer_step_seconds
from rhobust.attacks import EOT
from rhobust.certificates import Certificate, SmoothedClassifier, Smoothing, VoteCounter
from rhobust.certificates.blocks import next_block
from rhobust.data import Dataset, to_unit
from rhobust.evaluation import Target
from rhobust.methods import NAL, SmoothAdv
from rhobust.models import build_model
from rhobust.models.inference import WithEvalCopy
from rhobust.models.weights import fill_weights
from rhobust.noise import ExampleNoise, stream
from rhobust.proofs.procedures import CHUNK

ALPHA, N0 = 1e-3, 100
SMALL = {"cuda": "resnet18", "cpu": "cnn-small"}
"""Our own network for small images; on a CPU the benchmark is only tried out."""
LARGE = {"cuda": "resnet50", "cpu": "resnet18"}
COHEN, SALMAN = "locuslab/smoothing", "Hadisalman/smoothing-adversarial"


@dataclass(frozen=True)
class Sizes:
    """How much is timed."""

    fixed: int
    """Noise samples per image of ours, at a fixed number."""
    theirs: tuple[int, int, int]
    """Noise samples that the peer takes: ResNet-18, ResNet-50, ViT."""
    images: tuple[int, int, int]
    """Images that ours certifies in the second call; the first has one."""
    large: int
    """Side of the large images."""
    decided: int
    """Images whose radii are decided."""
    compared: int
    """Of them, those that are certified with the fixed number too."""
    attacked: int
    """Images that are attacked together."""
    steps: int
    """Steps of the attack."""
    counts: tuple[int, ...]
    """Numbers of images over which wall time is shown."""
    sides: tuple[int, ...]
    """Sides of images over which the rate is shown."""


SIZES = {
    "cuda": Sizes(
        100_000,
        (200_000, 20_000, 4_000),
        (24, 2, 1),
        224,
        300,
        100,
        256,
        10,
        (1, 10, 100, 1000, 10_000),
        (32, 64, 128, 224, 384),
    ),
    "cpu": Sizes(300, (200, 20, 10), (2, 1, 1), 32, 3, 2, 4, 2, (1, 3), (32, 40)),
}


class SpeedBench:
    """The rows of the table; each adds to the result."""

    def __init__(self, setting: Setting, sizes: Sizes, result: dict[str, Any]) -> None:
        self.setting, self.sizes, self.device, self.result, self.part = setting, sizes, setting.device, result, ""
        self.peers = {name: load_peer(path) for name, path in setting.peers.items()}
        self.rates: dict[str, float] = {}
        """Samples per second of the peer, by network."""

    def parts(self) -> dict[str, Callable[[], None]]:
        """The parts of the benchmark, the most important first."""
        return {
            "resnet18": self.resnet18,
            "resnet50": self.resnet50,
            "vit": self.vit,
            "decisions": self.decisions,
            "eot": self.eot,
            "smoothadv": self.smoothadv,
            "images": self.over_images,
            "nal": self.nal,
            "sides": self.over_sides,
        }

    def resnet18(self) -> None:
        self._fixed("ResNet-18, 32x32", self._cifar(), 10, 32, 0, batch=1000, wanted=5)

    def resnet50(self) -> None:
        network = _torchvision(LARGE[self.device.type]).to(self.device).eval()
        side = self.sizes.large
        self._fixed(f"torchvision ResNet-50, {side}", network, 1000, side, 1, batch=400, wanted=3)

    def vit(self) -> None:
        network = _torchvision("vit_b_16", image_size=self.sizes.large).to(self.device).eval()
        side = self.sizes.large
        self._fixed(f"torchvision ViT-B/16, {side}", network, 1000, side, 2, batch=400, wanted=5)

    def _cifar(self) -> nn.Module:
        """A ResNet-18 of our own, with the trained weights that were given."""
        options: dict[str, Any] = {
            "mean": [0.49, 0.48, 0.45],
            "deviation": [0.25, 0.24, 0.26],
            "activation": "relu",
            "seed": 0,
        }
        network = build_model(SMALL[self.device.type], shape=(3, 32, 32), classes=10, **options)
        if self.setting.weights is not None:
            fill_weights(network, self.setting.weights)
        return network.to(self.device).eval()

    def _images(self, count: int, side: int) -> Tensor:
        if side == 32 and self.setting.images is not None:
            found = torch.from_numpy(np.load(self.setting.images))
            return found[torch.arange(count) % len(found)].to(self.device)
        generator = stream(0, "bench")
        found = torch.randint(256, (min(count, 256), 3, side, side), generator=generator, dtype=torch.uint8)
        return found[torch.arange(count) % len(found)].to(self.device)

    def _fixed(
        self,
        name: str,
        network: nn.Module,
        classes: int,
        side: int,
        place: int,
        *,
        batch: int,
        wanted: float,
    ) -> None:
        """Certify with a fixed number of samples: the peer's file, then ours by default, called twice."""
        sizes, sigma = self.sizes, 0.25 if side == 32 else 0.5
        count = sizes.images[place]
        images = self._images(count + 1, side)
        theirs = self._peer_rate(network, images[0], classes, sigma, sizes.theirs[place], batch)
        self.rates[name] = theirs
        smoothed = SmoothedClassifier(network, sigma, classes)
        first = self._timed(lambda: smoothed.certify(images[:1], n0=N0, n=1000))
        graphs = _graphs()
        again = self._timed(lambda: smoothed.certify(images[:2], n0=N0, n=1000))
        compiled = _graphs() - graphs
        seconds = self._timed(lambda: smoothed.certify(images[1:], n0=N0, n=sizes.fixed))
        ours = count * (N0 + sizes.fixed) / seconds
        counter = VoteCounter(network, images, smoothed._smoothing(images, 0))
        noise, whole = self._noise_share(counter)
        details = {
            "first_call_seconds": first,
            "second_call_seconds": again,
            "new_graphs_in_second_call": compiled,
            "rows": counter.rows,
            "captured": counter.passes.graph is not None,
            "pass_ms": 1e3 * whole,
            "noise_ms": 1e3 * noise,
            "noise_share": noise / whole,
            "pass_rate": counter.rows / whole,
            "peak_gib": self._peak(),
        }
        self._row(
            f"{name}: fixed n", ours, "samples/s", f"{COHEN} core.py, TF32", theirs, ours / theirs, wanted, details
        )
        self._row(f"{name}: graphs compiled in a second call", compiled, "", "", 0, 1, 0, {})
        if place == 2 and self.device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True
            try:
                faster = self._peer_rate(network, images[0], classes, sigma, sizes.theirs[place] * 4, batch)
            finally:
                torch.backends.cuda.matmul.allow_tf32 = False
            against = f"{COHEN} core.py, TF32 in products too"
            self._row(f"{name}: fixed n", ours, "samples/s", against, faster, ours / faster, "-", {})

    def _peer_rate(self, network: nn.Module, image: Tensor, classes: int, sigma: float, n: int, batch: int) -> float:
        """Samples per second of Cohen et al.'s file, on the network in torch's own layers and default layout."""
        plain = reference_network(copy.deepcopy(network)).eval()
        core = self.peers.get(COHEN)
        if core is None:
            raise ValueError(f"give --peer {COHEN}=FOLDER")
        smooth, x = core.Smooth(plain, classes, sigma), to_unit(image)
        with without_cuda(self.device), generators_kept(self.device):
            smooth.certify(x, N0, 2 * batch if self.device.type == "cuda" else 10, ALPHA, batch)
            seconds = self._timed(lambda: smooth.certify(x, N0, n, ALPHA, batch))
        return (N0 + n) / seconds

    def _noise_share(self, counter: VoteCounter) -> tuple[float, float]:
        """Seconds of the noise of a pass, and of the whole pass."""
        blocks = [
            next_block(0, 0, "bench", start=at, stop=counter.rows, room=counter.rows - at)
            for at in range(0, counter.rows, CHUNK)
        ]
        plan = counter._row_plan(blocks) if counter._noise_by_rows else None

        def noise() -> None:
            if plan is None:
                counter._fill(blocks)
            else:
                counter.tables.write_noisy(counter.passes.inputs, counter.base, plan)

        def whole() -> None:
            noise()
            with torch.no_grad():
                counter.passes.run(counter.model)

        repeats = 10 if self.device.type == "cuda" else 1
        once, all_of_it = (
            self._timed(lambda w=work: [w() for _ in range(repeats)]) / repeats for work in (noise, whole)
        )
        return once, all_of_it

    def decisions(self) -> None:
        """Decide four radii of a trained ResNet-18, and compare with the decisions of the fixed number of samples."""
        if self.setting.weights is None or self.setting.images is None:
            raise ValueError("give --weights and --images of a trained resnet18")
        sigma, sizes = self.setting.sigma, self.sizes
        network = self._cifar()
        smoothed = SmoothedClassifier(network, sigma, 10)
        radii = tuple(step * sigma for step in range(4))
        images = self._images(sizes.decided, 32)
        smoothed.certify(images[:1], radii=radii, n=sizes.fixed)
        found: list[Certificate] = []
        seconds = self._timed(lambda: found.extend(smoothed.certify(images, radii=radii, n=sizes.fixed))) / len(images)
        fixed = smoothed.certify(images[: sizes.compared], n0=N0, n=sizes.fixed)
        same = total = 0
        for one, other in zip(found, fixed, strict=False):
            for radius in radii:
                holds = one.prediction is not None and one.radius >= radius
                held = other.prediction is not None and other.radius >= radius
                same, total = same + (holds == held), total + 1
        theirs = (N0 + sizes.fixed) / self.rates["ResNet-18, 32x32"]
        draws = float(np.mean([certificate.n for certificate in found]))
        details: dict[str, Any] = {
            "mean_draws": draws,
            "same": same / total,
            "decisions": total,
            "seconds_per_image": seconds,
        }
        details["draws"] = [certificate.n for certificate in found]
        name = f"ResNet-18, 32x32: radii {', '.join(f'{radius:g}' for radius in radii)} decided"
        self._row(
            name, 1e3 * seconds, "ms per image", f"{COHEN} core.py, TF32", 1e3 * theirs, theirs / seconds, 100, details
        )
        self._row("decisions as with the fixed number", 100 * same / total, "%", "", 100, same / total, 99.5, {})

    def eot(self) -> None:
        """The attack on the smoothed ResNet-18: ours, and the same ascent written plainly."""
        sizes, sigma, eps = self.sizes, 0.25, 0.5
        network, attack = self._cifar(), EOT(steps=self.sizes.steps, draws=16, restarts=0)
        images = self._images(sizes.attacked, 32)
        x, y = to_unit(images), torch.zeros(len(images), dtype=torch.long, device=self.device)
        data = Dataset("bench", "test", images.cpu(), y.cpu(), tuple("0123456789"))
        target = Target(network, data, sigma=sigma, name="bench", folder=Path("bench"), device=self.device)
        copied = target.compiled_copy if self.device.type == "cuda" else target.fast_copy
        model = WithEvalCopy(network, copied)

        def ours() -> Tensor:
            rng = ExampleNoise(0, "bench", range(len(x)))
            return attack.ascend_from(model, x, y, eps=eps, sigma=sigma, rng=rng, start=x)

        plain = reference_network(copy.deepcopy(network)).eval()

        def theirs() -> Tensor:
            point = x.clone()
            for number in range(attack.steps):
                point.requires_grad_()
                noisy = point.repeat(attack.draws, 1, 1, 1)
                noisy = noisy + sigma * torch.randn_like(noisy)
                probability = F.softmax(plain(noisy), dim=1).view(attack.draws, len(x), -1).mean(0)
                (slope,) = torch.autograd.grad(F.nll_loss(probability.log(), y, reduction="sum"), point)
                slope = slope / slope.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
                moved = point.detach() + attack.size(eps, number) * slope - x
                moved = moved * (eps / moved.flatten(1).norm(dim=1).clamp_min(eps)).view(-1, 1, 1, 1)
                point = (x + moved).clamp(0, 1)
            return point

        with generators_kept(self.device):
            theirs()
            slow = self._timed(theirs)
        first = self._timed(ours)
        fast = min(self._timed(ours) for _ in range(2))
        details = {"first_call_seconds": first}
        name = f"EOT of a smoothed ResNet-18, {len(x)} images, {attack.steps} steps, 16 draws"
        self._row(name, fast, "s", "the same, plainly, TF32", slow, slow / fast, 5, details)

    def smoothadv(self) -> None:
        """One training step of SmoothAdv: its authors' attack in their loop, and ours."""
        attacks = self.peers.get(SALMAN)
        if attacks is None:
            raise ValueError(f"give --peer {SALMAN}=FOLDER")
        method = SmoothAdv()
        row = compare_step(method, SMALL[self.device.type], self.device, reference=False)
        theirs = peer_step_seconds(attacks, method, SMALL[self.device.type], self.device)
        ours = row["ours_ms"] / 1e3
        self._row(
            "SmoothAdv step, ResNet-18",
            1e3 * ours,
            "ms",
            f"{SALMAN} attacks.py, TF32",
            1e3 * theirs,
            theirs / ours,
            5.5,
            row,
        )

    def nal(self) -> None:
        """One training step of NAL: the plain loop, and ours; on ResNet-18 also the share of a product's rate."""
        for model, wanted in ((SMALL[self.device.type], 16), ("wrn-28-10", 8)):
            row = compare_step(NAL(), model, self.device)
            name = f"NAL step, {model}"
            self._row(
                name, row["ours_ms"], "ms", "the plain loop, float32", row["textbook_ms"], row["ratio"], wanted, row
            )
            if model != "wrn-28-10":
                share = row["share_of_matmul"]
                self._row("NAL on ResNet-18", 100 * share, "% of a matrix product's rate", "", 100, share, 0.52, {})

    def over_images(self) -> None:
        """Wall time over the number of images, 1,000 samples each."""
        smoothed = SmoothedClassifier(self._cifar(), 0.25, 10)
        most = self._images(max(self.sizes.counts), 32)
        smoothed.certify(most[:1], n=1000)
        self.result["curves"]["seconds over the number of images, 1,000 samples each"] = [
            {"at": count, "value": self._timed(lambda c=count: smoothed.certify(most[:c], n=1000)), "unit": "s"}
            for count in self.sizes.counts
        ]

    def over_sides(self) -> None:
        """Samples per second over the side of the images, for a torchvision ResNet-18."""
        points = self.result["curves"]["samples/s of a torchvision ResNet-18 over the side of the images"] = []
        for side in self.sizes.sides:
            network = _torchvision("resnet18").to(self.device).eval()
            images = self._images(2, side)
            counter = VoteCounter(network, images, Smoothing.for_images(images, 0.5, 1000))
            _, whole = self._noise_share(counter)
            points.append({"at": side, "value": counter.rows / whole, "unit": "samples/s", "rows": counter.rows})

    def _timed(self, work: Callable[[], Any]) -> float:
        self._wait()
        start = time.perf_counter()
        work()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _peak(self) -> float | None:
        return torch.cuda.max_memory_allocated(self.device) / 2**30 if self.device.type == "cuda" else None

    def _row(
        self,
        name: str,
        value: float,
        unit: str,
        against: str,
        theirs: float,
        ratio: float,
        wanted: float | str,
        details: dict[str, Any],
    ) -> None:
        row = {"part": self.part, "name": name, "value": value, "unit": unit, "against": against}
        self.result["rows"].append({**details, **row, "their_value": theirs, "ratio": ratio, "wanted": wanted})


def _torchvision(name: str, **options: Any) -> nn.Module:
    """A network of torchvision with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(import_module("torchvision.models"), name)(**options)


def _graphs() -> int:
    """Graphs that torch compiled in this process."""
    return import_module("torch._dynamo.utils").counters["stats"]["unique_graphs"]
