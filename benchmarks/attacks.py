"""A sweep over radii against the same sweep by other packages, in one process."""

import copy
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.benchmark import Setting, Table, generators_kept
from benchmarks.peers import load_peer
from benchmarks.reference import reference_network
from rhobust.attacks import PGD, AnyAttack, AutoAttack
from rhobust.data import Dataset, load, to_unit
from rhobust.evaluation import Attack, Target, run
from rhobust.measurements import robust_curve
from rhobust.methods import Gaussian
from rhobust.models import build_model
from rhobust.noise import BatchNoise, stream
from rhobust.progress import ProgressCallback, no_progress, progress_or_default
from rhobust.settings import member_to_json

RADII = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
IMAGES = 256
STEPS = 20
"""Gradients that the others take at each radius."""
ATTACK = PGD(steps=4)
"""Ours: two ascents of four gradients per radius on robust examples, from the end points of the smaller radius."""
AUTOATTACK, RADIUS, FEW = "fra31/auto-attack", 0.75, 32
"""The repository of AutoAttack's authors, and the radius and the images on which it is compared."""
ROUNDS = 2
"""Everything is timed this often, in turn; the shortest time counts."""
Sweep = Callable[[nn.Module, Tensor, Tensor], list[float]]
"""From a network, images and labels to the robust accuracy at each radius."""


def bench_attacks(setting: Setting) -> dict[str, Any]:
    """Time the robust accuracy of 256 images at seven L2 radii: our sweep, and PGD of 20 steps by other packages.

    The network is the paper's CNN after a hundred steps under noise on MNIST, or a smaller one on digits where MNIST is
    not available. The others get the same network; foolbox is timed a second time on one of torch's own layers. A
    package that is not installed is left out. Our default attack, which takes five times the steps, comes last. With
    `--peer fra31/auto-attack=FOLDER`, AutoAttack by its authors' files and by ours, at one radius on fewer images.
    """
    with progress_or_default(setting.progress) as notify:
        notify("bench attacks: train a network")
        train, test = _data(setting.root)
        network = _network(train, setting.device)
        x = to_unit(test.images[:IMAGES]).to(setting.device)
        y = test.labels[:IMAGES].to(setting.device)
        sweeps: dict[str, tuple[nn.Module, Sweep]] = {"rhobust": (network, _ours(test, setting.device, ATTACK))}
        if find_spec("foolbox"):
            sweeps["foolbox"] = network, by_foolbox
            sweeps["foolbox, torch's layers"] = reference_network(copy.deepcopy(network)), by_foolbox
        if find_spec("torchattacks"):
            sweeps["torchattacks"] = network, by_torchattacks
        if find_spec("art"):
            sweeps["ART"] = network, by_art
        sweeps["rhobust by default"] = network, _ours(test, setting.device, PGD())
        ways = _timed(sweeps, x, y, notify)
        auto = setting.peers.get(AUTOATTACK)
        pairs: dict[str, tuple[nn.Module, Sweep]] = {}
        if auto is not None:
            attack = AutoAttack(version="standard")
            pairs["rhobust"] = network, _ours(test, setting.device, attack, radii=(RADIUS,), images=FEW)
            pairs["the authors' files"] = network, by_autoattack(load_peer(auto))
        few = _timed(pairs, x[:FEW], y[:FEW], notify)
    return {
        **setting.machine(),
        "data": test.name,
        "images": len(x),
        "radii": list(RADII),
        "attack": member_to_json(ATTACK, AnyAttack),
        "their_steps": STEPS,
        "ways": ways,
        "autoattack": {"images": len(x[:FEW]), "radius": RADIUS, "ways": few},
    }


def _timed(
    sweeps: dict[str, tuple[nn.Module, Sweep]], x: Tensor, y: Tensor, notify: ProgressCallback
) -> list[dict[str, Any]]:
    """What each sweep finds, and the shortest time it took in any round; the first is what others are compared with."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sweeps}
    curves: dict[str, list[float]] = {}
    for number in range(ROUNDS):
        for name, (model, sweep) in sweeps.items():
            notify(f"bench attacks: {name}, round {number + 1} of {ROUNDS}")
            with generators_kept(x.device):
                start, worked = time.perf_counter(), time.process_time()
                curves[name] = sweep(model, x, y)
                times[name].append((time.perf_counter() - start, time.process_time() - worked))
    best = {name: [min(kind) for kind in zip(*rounds, strict=True)] for name, rounds in times.items()}
    return [
        {
            "name": name,
            "seconds": best[name][0],
            "cpu_seconds": best[name][1],
            "ratio": best[name][0] / best["rhobust"][0],
            "robust_accuracy": curves[name],
        }
        for name in sweeps
    ]


def attacks_table(result: dict[str, Any]) -> Table:
    """The attack benchmark's result for people."""
    own, *others = result["ways"]
    notes = []
    for other in others:
        above = max(a - b for a, b in zip(own["robust_accuracy"], other["robust_accuracy"], strict=True))
        verdict = "no higher at any radius" if above <= 0 else f"higher by up to {100 * above:.1f} points"
        notes.append(f"rhobust {other['ratio']:.1f} times as fast as {other['name']}; robust accuracy {verdict}")
    auto = result["autoattack"]
    notes += [
        f"AutoAttack standard, radius {auto['radius']:g}, {auto['images']} images, {way['name']}:"
        f" {way['robust_accuracy'][0]:.3f} robust, {way['seconds']:.1f} s ({way['ratio']:.1f} times ours)"
        for way in auto["ways"]
    ]
    return Table(
        heading=[
            f"{result['images']} images of {result['data']} on {result['device']}, {result['threads']} threads, torch"
            f" {result['torch']}; other packages: L2 PGD of {result['their_steps']} steps at each radius"
        ],
        columns=["robust accuracy at radius", *(f"{radius:g}" for radius in result["radii"]), "seconds", "CPU seconds"],
        rows=[
            [
                row["name"],
                *(f"{value:.3f}" for value in row["robust_accuracy"]),
                f"{row['seconds']:.2f}",
                f"{row['cpu_seconds']:.2f}",
            ]
            for row in result["ways"]
        ],
        notes=notes,
    )


def by_foolbox(network: nn.Module, x: Tensor, y: Tensor) -> list[float]:
    """Foolbox's L2PGD from the centre, with all radii in one call."""
    foolbox = import_module("foolbox")
    model = foolbox.PyTorchModel(network, bounds=(0, 1), device=x.device)
    attack = foolbox.attacks.L2PGD(rel_stepsize=2 / STEPS, steps=STEPS, random_start=False)
    _, _, broken = attack(model, x, y, epsilons=list(RADII))
    return (1 - broken.float().mean(dim=1)).tolist()


def by_torchattacks(network: nn.Module, x: Tensor, y: Tensor) -> list[float]:
    """PGDL2 of torchattacks from the centre, radius by radius."""
    torchattacks = import_module("torchattacks")
    robust = []
    for eps in RADII:
        attack = torchattacks.PGDL2(network, eps=eps, alpha=2 * eps / STEPS, steps=STEPS, random_start=False)
        adversarial = attack(x, y)
        robust.append(_accuracy(network, adversarial, y))
    return robust


def by_art(network: nn.Module, x: Tensor, y: Tensor) -> list[float]:
    """ART's L2 PGD from the centre, radius by radius, in batches as large as its default for a whole call."""
    classifiers = import_module("art.estimators.classification")
    evasion = import_module("art.attacks.evasion")
    with torch.no_grad():
        classes = network(x[:1]).shape[1]
    estimator = classifiers.PyTorchClassifier(
        model=network,
        loss=nn.CrossEntropyLoss(),
        input_shape=tuple(x.shape[1:]),
        nb_classes=classes,
        clip_values=(0.0, 1.0),
        device_type="gpu" if x.is_cuda else "cpu",
    )
    images, labels = x.cpu().numpy(), y.cpu().numpy()
    robust = []
    for eps in RADII:
        attack = evasion.ProjectedGradientDescent(
            estimator, norm=2, eps=eps, eps_step=2 * eps / STEPS, max_iter=STEPS, batch_size=len(x), verbose=False
        )
        adversarial = torch.from_numpy(attack.generate(images, labels)).to(x.device)
        robust.append(_accuracy(network, adversarial, y))
    return robust


def by_autoattack(package: Any) -> Sweep:
    """AutoAttack's standard version at one radius, by its authors' own package."""

    def sweep(network: nn.Module, x: Tensor, y: Tensor) -> list[float]:
        attack = package.AutoAttack(network, norm="L2", eps=RADIUS, seed=0, verbose=False, device=str(x.device))
        adversarial = attack.run_standard_evaluation(x, y, bs=len(x))
        return [_accuracy(network, adversarial, y)]

    return sweep


@torch.no_grad()
def _accuracy(network: nn.Module, x: Tensor, y: Tensor) -> float:
    return (network(x).argmax(1) == y).float().mean().item()


def _ours(
    test: Dataset,
    device: torch.device,
    attack: PGD | AutoAttack,
    *,
    radii: Sequence[float] | None = None,
    images: int | None = None,
) -> Sweep:
    """Our sweep, by default over all radii and images."""
    radii, images = tuple(radii or RADII), images or IMAGES

    def sweep(network: nn.Module, x: Tensor, y: Tensor) -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            target = Target(network, test, name="bench", folder=Path(folder), device=device, model_hash="bench")
            evaluation = Attack(attack=attack, radii=radii, limit=images, probe=False)
            record = run(evaluation, target, progress=no_progress)
        return [at["accuracy"] for at in robust_curve(record.rows, radii)]

    return sweep


def _data(root: Path | None) -> Sequence[Dataset]:
    """MNIST if it is available, else the embedded digits: training and test images."""
    try:
        return [load("mnist", split, root=root, progress=no_progress) for split in ("train", "test")]
    except (ValueError, OSError):
        return [load("digits", split) for split in ("train", "test")]


def _network(data: Dataset, device: torch.device) -> nn.Module:
    mnist = data.name == "mnist"
    network = build_model(
        "cnn" if mnist else "cnn-small",
        shape=data.shape,
        classes=data.num_classes,
        mean=[0.3],
        deviation=[0.35],
        activation="relu",
        seed=0,
    ).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3 if mnist else 3e-3)
    noise, method = BatchNoise(stream(0, "bench", device=device)), Gaussian(sigma=0.25)
    size = 128 if mnist else 50
    for number in range(100):
        rows = torch.arange(number * size, (number + 1) * size) % len(data)
        x, y = to_unit(data.images[rows]).to(device), data.labels[rows].to(device)
        optimizer.zero_grad(set_to_none=True)
        method.loss(network, x, y, noise).value.backward()
        optimizer.step()
    return network.eval()
