"""The speed benchmark's rows of gradients: attacks on the smoothed classifier, and training steps."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.attacks import bench_attacks
from benchmarks.benchmark import generators_kept
from benchmarks.certify import bench_certify
from benchmarks.reference import reference_network
from benchmarks.speed_rows import SALMAN, SMALL, SpeedBench
from benchmarks.training import compare_step, peer_step_seconds
from rhobust.attacks import EOT
from rhobust.attacks.gradient import margin
from rhobust.data import Dataset, to_unit
from rhobust.evaluation import Attack, Target, run
from rhobust.evaluation.target_cache import compiled_copy, fast_copy
from rhobust.methods import NAL, WRM, SmoothAdv
from rhobust.models.inference import WithEvalCopy
from rhobust.noise import ExampleNoise
from rhobust.progress import no_progress
from rhobust.records import Record


class WholeBench(SpeedBench):
    """All rows of the table."""

    def parts(self) -> dict[str, Callable[[], None]]:
        return super().parts() | {
            "eot": self.eot,
            "attack": self.attack,
            "smoothadv": self.smoothadv,
            "nal": self.nal,
            "wrn": self.wide,
            "wrm": self.wrm,
            "packages": self.packages,
            "art": self.art,
        }

    def eot(self) -> None:
        """The attack on the smoothed ResNet-18: ours, and the same ascent written plainly."""
        sizes, sigma, eps = self.sizes, 0.25, 0.5
        network, attack = self._cifar(), EOT(steps=self.sizes.steps, draws=16, restarts=0)
        images = self._images(sizes.attacked, 32)
        x, y = to_unit(images), torch.zeros(len(images), dtype=torch.long, device=self.device)
        data = Dataset("bench", "test", images.cpu(), y.cpu(), tuple("0123456789"))
        target = Target(network, data, sigma=sigma, name="bench", device=self.device)
        copied = compiled_copy if self.device.type == "cuda" else fast_copy
        model = WithEvalCopy(network, lambda: copied(target))

        def ours() -> Tensor:
            rng = ExampleNoise(0, "bench", range(len(x)))
            return attack.ascend_from(model, x, y, eps=eps, sigma=sigma, rng=rng, start=x)

        plain = reference_network(copy.deepcopy(network)).eval()

        def theirs() -> Tensor:
            return plain_ascent(plain, attack, x, y, eps, sigma, x)

        with generators_kept(self.device):
            theirs()
            slow = self._timed(theirs)
        first = self._timed(ours)
        fast = min(self._timed(ours) for _ in range(2))
        details = {"first_call_seconds": first}
        name = f"one ascent of EOT on a smoothed ResNet-18, {len(x)} images, {attack.steps} steps, 16 draws"
        self._row(name, fast, "s", "the same, plainly, TF32", slow, 5, details)

    def attack(self) -> None:
        """The whole default attack on the smoothed ResNet-18 over radii: our evaluation, and one written plainly."""
        if self.setting.weights is None or self.setting.images is None:
            raise ValueError("give --weights and --images of a trained resnet18")
        sizes, sigma = self.sizes, self.setting.sigma
        radii = tuple(step * sigma for step in range(1, 5))
        images, network = self._images(sizes.attacked, 32), self._cifar()
        y = torch.from_numpy(np.load(self.setting.images)["y_test"])[: len(images)].long()
        attack = EOT() if self.device.type == "cuda" else EOT(steps=2, draws=4)
        wanted = Attack(attack=attack, radii=radii, probe=False)
        data = Dataset("bench", "test", images.cpu(), y, tuple("0123456789"))
        target = Target(network, data, sigma=sigma, name="bench", device=self.device)
        found: list[Record] = []

        def ours(seed: int) -> None:
            found.append(run(replace(wanted, seed=seed), target, progress=no_progress))

        first = self._timed(lambda: ours(1))
        fast = self._timed(lambda: ours(0))
        plain, x = reference_network(copy.deepcopy(network)).eval(), to_unit(images)
        robust: list[float] = []

        def theirs() -> None:
            for eps in radii:
                robust_so_far = torch.ones(len(x), dtype=torch.bool, device=self.device)
                for number in range(2):
                    start = x if number == 0 else random_start(x, eps)
                    point = plain_ascent(plain, attack.attempt(number), x, y.to(self.device), eps, sigma, start)
                    robust_so_far &= plain_votes(plain, point, sigma, wanted.votes) == y.to(self.device)
                robust.append(robust_so_far.double().mean().item())

        with generators_kept(self.device):
            plain_ascent(plain, replace(attack, steps=1), x, y.to(self.device), radii[0], sigma, x)
            slow = self._timed(theirs)
        summary = found[-1].summary
        assert summary is not None
        curve = summary["robust_accuracy"]
        details = {"first_call_seconds": first, "robust_accuracy": curve, "plain_robust_accuracy": robust}
        name = f"EOT attack of a smoothed ResNet-18, {len(x)} images, {len(radii)} radii, votes included"
        self._row(name, fast, "s", "the same, plainly, TF32", slow, 5, details)

    def smoothadv(self) -> None:
        """One training step of SmoothAdv: its authors' attack in their loop, and ours."""
        attacks = self.peers.get(SALMAN)
        if attacks is None:
            raise ValueError(f"give --peer {SALMAN}=FOLDER")
        method = SmoothAdv()
        row = compare_step(method, SMALL[self.device.type], self.device, reference=False)
        theirs = peer_step_seconds(attacks, method, SMALL[self.device.type], self.device)
        name, against = "SmoothAdv step, ResNet-18", f"{SALMAN} attacks.py, TF32"
        self._row(name, row["ours_ms"], "ms", against, 1e3 * theirs, 5.5, row)

    def nal(self) -> None:
        """One training step of NAL on ResNet-18: the plain loop, ours, and the share of a product's rate."""
        share = self._step(NAL(), SMALL[self.device.type], 16)["share_of_matmul"]
        self._row("NAL on ResNet-18", 100 * share, "% of a matrix product's rate", "", 100, 0.52, {})

    def wide(self) -> None:
        """One training step of NAL on WRN-28-10: the plain loop, and ours."""
        self._step(NAL(), "wrn-28-10" if self.device.type == "cuda" else "cnn-small", 8)

    def wrm(self) -> None:
        """One training step of WRM: the plain loop, and ours; its authors' files need TensorFlow 1 and Keras."""
        self._step(WRM(), SMALL[self.device.type], "-")

    def packages(self) -> None:
        """L2 attacks at seven radii by other packages, those that are installed, and AutoAttack by its authors."""
        found = bench_attacks(self.setting)
        radii, auto = len(found["radii"]), found["autoattack"]
        self._ways(f"robust accuracy of {found['images']} images of {found['data']} at {radii} radii", found["ways"])
        self._ways(f"AutoAttack standard of {auto['images']} images at one radius", auto["ways"])

    def _ways(self, name: str, ways: list[dict[str, Any]]) -> None:
        for way in [way for way in ways if not way["name"].startswith("rhobust")]:
            details = {"robust_accuracy": ways[0]["robust_accuracy"], "their_robust_accuracy": way["robust_accuracy"]}
            self._row(name, ways[0]["seconds"], "s", way["name"], way["seconds"], 2.5, details)

    def art(self) -> None:
        """Certificates from a fixed number of samples by ART, on a CPU."""
        rates = {rate["name"]: rate["samples_per_second"] for rate in bench_certify(self.setting)["rates"]}
        theirs = [name for name in rates if name.startswith("ART")]
        if not theirs:
            raise ValueError("install adversarial-robustness-toolbox, and run on a CPU")
        for name, rate in rates.items():
            if name.startswith("ours"):
                other = rates[theirs[0]]
                self._row(f"certify, {name}", rate, "samples/s", theirs[0], other, 2.5, {})

    def _step(self, method: NAL | WRM, model: str, wanted: float | str) -> dict[str, Any]:
        row = compare_step(method, model, self.device)
        name, against = f"{type(method).__name__} step, {model}", "the plain loop, float32"
        self._row(name, row["ours_ms"], "ms", against, row["textbook_ms"], wanted, row)
        if row["textbook_tf32_ms"] is not None:
            self._row(name, row["ours_ms"], "ms", "the plain loop, TF32", row["textbook_tf32_ms"], "-", {})
        return row


def plain_ascent(
    network: nn.Module, attack: EOT, x: Tensor, y: Tensor, eps: float, sigma: float, start: Tensor
) -> Tensor:
    """The ascent of EOT as one writes it: all noisy copies in a batch, torch's own layers, nothing compiled."""
    point = start.clone()
    for number in range(attack.steps):
        point.requires_grad_()
        noisy = point.repeat(attack.draws, 1, 1, 1)
        noisy = noisy + sigma * torch.randn_like(noisy)
        logs = F.softmax(network(noisy), dim=1).view(attack.draws, len(x), -1).mean(0).log()
        losses = F.nll_loss(logs, y, reduction="none") if attack.loss == "cross-entropy" else margin(logs, y)
        (slope,) = torch.autograd.grad(losses.sum(), point)
        slope = slope / slope.flatten(1).norm(dim=1).clamp_min(1e-30).view(-1, 1, 1, 1)
        moved = point.detach() + attack.size(eps, number) * slope - x
        moved = moved * (eps / moved.flatten(1).norm(dim=1).clamp_min(eps)).view(-1, 1, 1, 1)
        point = (x + moved).clamp(0, 1)
    return point


def random_start(x: Tensor, eps: float) -> Tensor:
    """A random point of the ball around each input."""
    direction = torch.randn_like(x)
    radius = torch.rand(len(x), device=x.device) ** (1 / x[0].numel())
    length = direction.flatten(1).norm(dim=1)
    return (x + direction * (eps * radius / length).view(-1, 1, 1, 1)).clamp(0, 1)


@torch.no_grad()
def plain_votes(network: nn.Module, x: Tensor, sigma: float, votes: int) -> Tensor:
    """The class with most votes of each input, in batches of 1,000 or so."""
    counts = torch.zeros(len(x), 10, dtype=torch.long, device=x.device)
    for _ in range(votes):
        predicted = network(x + sigma * torch.randn_like(x)).argmax(1)
        counts[torch.arange(len(x), device=x.device), predicted] += 1
    return counts.argmax(1)
