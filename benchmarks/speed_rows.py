"""The speed benchmark's rows of certification, and what its other rows share: what is timed, and against what."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor, nn

from benchmarks.benchmark import Setting, generators_kept, timed
from benchmarks.known_votes import voting_by
from benchmarks.peers import load_peer, without_cuda
from benchmarks.reference import reference_network
from rhobust.certificates import Certificate, SmoothedClassifier, Smoothing, VoteCounter
from rhobust.certificates.blocks import next_block
from rhobust.data import to_unit
from rhobust.models import build_model
from rhobust.models.weights import fill_weights
from rhobust.noise import stream
from rhobust.proofs.plan import CHUNK

ALPHA, N0 = 1e-3, 100
SMALL = {"cuda": "resnet18", "cpu": "cnn-small"}
"""Our own network for small images; on a CPU the benchmark is only tried out: fixed costs decide its ratios there."""
LARGE = {"cuda": "resnet50", "cpu": "resnet18"}
TIMES = ("s", "ms", "ms per image")
"""Units of which less is better."""
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
    decided_large: int
    """Large images whose radii are decided."""
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
        64,
        256,
        10,
        (1, 10, 100, 1000, 10_000),
        (32, 64, 128, 224, 384),
    ),
    "cpu": Sizes(300, (200, 20, 10), (2, 1, 1), 32, 3, 2, 2, 4, 2, (1, 3), (32, 40)),
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
            "decisions50": self.decisions_large,
            "images": self.over_images,
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
            found = torch.from_numpy(np.load(self.setting.images)["x_test"])
            return found[torch.arange(count) % len(found)].to(self.device)
        generator = stream(0, "bench")
        found = torch.randint(256, (min(count, 256), 3, side, side), generator=generator, dtype=torch.uint8)
        return found[torch.arange(count) % len(found)].to(self.device)

    def _fixed(
        self, name: str, network: nn.Module, classes: int, side: int, place: int, *, batch: int, wanted: float
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
        counter = VoteCounter(network, images, smoothed.smoothing(images, 0))
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
        self._row(f"{name}: fixed n", ours, "samples/s", f"{COHEN} core.py, TF32", theirs, wanted, details)
        self._row(f"{name}: graphs compiled in a second call", compiled, "", "", 0, 0, {})
        if place == 2 and self.device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True
            try:
                faster = self._peer_rate(network, images[0], classes, sigma, sizes.theirs[place] * 4, batch)
            finally:
                torch.backends.cuda.matmul.allow_tf32 = False
            against = f"{COHEN} core.py, TF32 in products too"
            self._row(f"{name}: fixed n", ours, "samples/s", against, faster, "-", {})

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
        same = more = total = 0
        for one, other in zip(found, fixed, strict=False):
            for radius in radii:
                holds = one.prediction is not None and one.radius >= radius
                held = other.prediction is not None and other.radius >= radius
                same, more, total = same + (holds == held), more + (holds and not held), total + 1
        name = "ResNet-18, 32x32"
        if name not in self.rates:
            self.rates[name] = self._peer_rate(network, images[0], 10, sigma, sizes.theirs[0], 1000)
        theirs = (N0 + sizes.fixed) / self.rates[name]
        draws = float(np.mean([certificate.n for certificate in found]))
        details: dict[str, Any] = {
            "mean_draws": draws,
            "same": same / total,
            "more": more / total,
            "decisions": total,
            "seconds_per_image": seconds,
        }
        details["draws"] = [certificate.n for certificate in found]
        name = f"ResNet-18, 32x32: radii {', '.join(f'{radius:g}' for radius in radii)} decided"
        self._row(name, 1e3 * seconds, "ms per image", f"{COHEN} core.py, TF32", 1e3 * theirs, 100, details)
        self._row(
            "radii decided as with the fixed number, or proved besides",
            100 * (same + more) / total,
            "%",
            "",
            100,
            99.5,
            {},
        )

    def decisions_large(self) -> None:
        """Decide the radii 0, 0.5, 1 and 1.5 by a ResNet-50 at 224x224, with votes as in published records.

        Its weights are random. A linear term of the input decides the vote, so that p_A of an image is known; images
        are made such that the p_A are evenly spaced quantiles of what the records of sigma 0.5 leave possible.
        """
        sizes, sigma, radii, side = self.sizes, 0.5, (0.0, 0.5, 1.0, 1.5), self.sizes.large
        name = f"torchvision ResNet-50, {side}"
        network, images, p = voting_by(_torchvision(LARGE[self.device.type]), sizes.decided_large, side, sigma)
        smoothed = SmoothedClassifier(network.to(self.device).eval(), sigma, 1000)
        x = images.to(self.device)
        smoothed.certify(x[:1], radii=radii, n=sizes.fixed)
        found: list[Certificate] = []
        seconds = self._timed(lambda: found.extend(smoothed.certify(x, radii=radii, n=sizes.fixed))) / len(x)
        same = sum(
            (one.prediction is not None and one.radius >= radius) == (sigma * special.ndtri(max(q, 1 - q)) > radius)
            for one, q in zip(found, p, strict=True)
            for radius in radii
        )
        if name not in self.rates:
            plain = _torchvision(LARGE[self.device.type]).to(self.device).eval()
            self.rates[name] = self._peer_rate(plain, x[0], 1000, sigma, sizes.theirs[1], 400)
        theirs = (N0 + sizes.fixed) / self.rates[name]
        details: dict[str, Any] = {
            "mean_draws": float(np.mean([certificate.n for certificate in found])),
            "draws": [certificate.n for certificate in found],
            "p": p.tolist(),
            "as_by_p": same / len(x) / len(radii),
            "images": len(x),
        }
        self._row(
            f"{name}: radii 0, 0.5, 1, 1.5 decided, sigma 0.5, p_A as in published records",
            1e3 * seconds,
            "ms per image",
            f"{COHEN} core.py, TF32",
            1e3 * theirs,
            40,
            details,
        )

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
        return timed(work, self.device)[0]

    def _peak(self) -> float | None:
        return torch.cuda.max_memory_allocated(self.device) / 2**30 if self.device.type == "cuda" else None

    def _row(
        self,
        name: str,
        value: float,
        unit: str,
        against: str,
        theirs: float,
        wanted: float | str,
        details: dict[str, Any],
    ) -> None:
        """Add a row; the ratio says how many times as fast ours is, or how large its share is."""
        ratio = 1.0 if not theirs else theirs / value if unit in TIMES else value / theirs
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
