"""Certificates against truths that are known analytically, by the API and by the command.

A certificate is false if its radius is above the true radius of the smoothed classifier, or its class is another one.
Its lower bound of the class's probability is false if it is above the true probability. Each is false with probability
at most alpha, so the number of false ones among n is at most binomial(n, alpha) in distribution: the battery demands
that neither a cell nor their sum exceeds it significantly (exact test, `LEVEL` over all cells), and that at alpha 1e-9
none is false at all.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from scipy import optimize
from scipy.stats import binom, ncx2, norm
from torch import Tensor, nn

from rhobust.certificates import SmoothedClassifier
from rhobust.records import finished_records
from tests.zoo.runner import Cage

LEVEL = 1e-6
"""Probability that a sound program fails the battery."""
Truth = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Per input: the class of the smoothed classifier, its radius, and its probability under noise."""


class Strips(nn.Module):
    """Class 0 left of a line, class 2 right of another one, class 1 between them."""

    def __init__(self, left: float, right: float) -> None:
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x: Tensor) -> Tensor:
        t = x.flatten(1)[:, 0]
        return torch.stack([self.left - t, torch.minimum(t - self.left, self.right - t), t - self.right], 1)


class Region(nn.Module):
    """Class 1 in a region that a function describes, class 0 outside, class 2 never (or masked)."""

    def __init__(self, inside: Callable[[Tensor], Tensor], mask: float = -1e3) -> None:
        super().__init__()
        self.inside, self.mask = inside, mask

    def forward(self, x: Tensor) -> Tensor:
        distance = self.inside(x.flatten(1))
        return torch.stack([-distance, distance, torch.full_like(distance, self.mask)], 1)


@dataclass(frozen=True)
class Family:
    """Networks with a known smoothed classifier, and inputs for them."""

    name: str
    network: nn.Module
    inputs: Callable[[int, int], Tensor]
    """From a number and a seed to inputs."""
    truth: Callable[[np.ndarray, float], Truth]
    """From inputs, one row each, and sigma to the truth."""
    sigma: float = 0.25


def half_space(dimension: int, mask: float = -1e3) -> Family:
    """w.x > c for a unit normal w: P(class 1) = Phi((w.x - c) / sigma), and the radius is |w.x - c|."""
    generator = np.random.default_rng(dimension)
    normal = generator.standard_normal(dimension)
    normal = (normal / np.linalg.norm(normal)).astype(np.float32)
    offset = float(normal.sum() / 2)

    def truth(x: np.ndarray, sigma: float) -> Truth:
        distance = x @ normal.astype(float) - offset
        return (distance > 0).astype(int), np.abs(distance), norm.cdf(np.abs(distance) / sigma)

    def inputs(count: int, seed: int) -> Tensor:
        return _uniform(count, dimension, seed)

    weights = torch.from_numpy(normal)
    name = f"half-space in {dimension} dimensions" + (", a class masked" if mask == -np.inf else "")
    return Family(name, Region(lambda x: x @ weights - offset, mask), inputs, truth)


def slab(width: float) -> Family:
    """|x_1 - 1/2| < width: P(class 1) = Phi((w - t) / s) - Phi((-w - t) / s) with t = |x_1 - 1/2|, decreasing in t."""

    def probability(t: np.ndarray, sigma: float) -> np.ndarray:
        return norm.cdf((width - t) / sigma) - norm.cdf((-width - t) / sigma)

    def truth(x: np.ndarray, sigma: float) -> Truth:
        t = np.abs(x[:, 0].astype(float) - 0.5)
        edge = optimize.brentq(lambda at: float(probability(np.array(at), sigma)) - 0.5, 0, 9)
        inside = probability(t, sigma)
        return (inside > 0.5).astype(int), np.abs(t - edge), np.maximum(inside, 1 - inside)

    region = Region(lambda x: width - (x[:, 0] - 0.5).abs())
    return Family(f"slab of half-width {width:g}", region, lambda n, seed: _uniform(n, 3, seed), truth)


def strips(left: float, right: float) -> Family:
    """Three classes between parallel lines; near the middle one has fewer than half of the votes, and yet the most.

    P(class 0) = Phi((left - t) / s) and P(class 2) = Phi((t - right) / s), t = x_1. In a narrow middle class 1 never
    has the most votes: the outer classes change places half way between the lines. There Cohen's theorem with both
    probabilities gives the true radius, not a smaller one: a test at a wrong level would show.
    """

    def truth(x: np.ndarray, sigma: float) -> Truth:
        t = x[:, 0].astype(float)
        outer = norm.cdf(np.stack([left - t, t - right]) / sigma)
        assert (outer.max(0) > 1 - outer.sum(0)).all()
        return np.where(outer[0] > outer[1], 0, 2), np.abs(t - (left + right) / 2), outer.max(0)

    name = f"three strips, the middle one from {left:g} to {right:g}"
    return Family(name, Strips(left, right), lambda n, seed: _uniform(n, 2, seed), truth)


def ball(dimension: int, radius: float) -> Family:
    """||x - 1/2|| < r: P(class 1) is a noncentral chi square probability, decreasing in the distance to the centre."""

    def probability(t: np.ndarray, sigma: float) -> np.ndarray:
        return ncx2.cdf((radius / sigma) ** 2, dimension, np.maximum(t / sigma, 1e-9) ** 2)

    def truth(x: np.ndarray, sigma: float) -> Truth:
        t = np.linalg.norm(x.astype(float) - 0.5, axis=1)
        edge = optimize.brentq(lambda at: float(probability(np.array(at), sigma)) - 0.5, 0, 9)
        inside = probability(t, sigma)
        return (inside > 0.5).astype(int), np.abs(t - edge), np.maximum(inside, 1 - inside)

    region = Region(lambda x: radius - (x - 0.5).norm(dim=1))
    return Family(
        f"ball in {dimension} dimensions", region, lambda n, seed: _uniform(n, dimension, seed), truth, sigma=0.1
    )


def quadrant() -> Family:
    """x_1 > 1/2 and x_2 > 1/2, two half-spaces: P(class 1) = Phi(u) Phi(v) with u, v = (x - 1/2) / sigma.

    The smoothed classifier's boundary is the curve Phi(u) Phi(v) = 1/2; the radius is the distance to it.
    """
    along = np.linspace(-5.9, 6, 20_001)
    with np.errstate(divide="ignore"):
        u = along + 6
        curve = np.stack([u, norm.ppf(np.minimum(0.5 / norm.cdf(u), 1))], 1)
    curve = curve[np.isfinite(curve).all(1)]

    def truth(x: np.ndarray, sigma: float) -> Truth:
        point = (x[:, :2].astype(float) - 0.5) / sigma
        inside = norm.cdf(point[:, 0]) * norm.cdf(point[:, 1])
        both = np.concatenate([curve, curve[:, ::-1]])
        distance = np.array([np.sqrt(((both - one) ** 2).sum(1).min()) for one in point])
        return (inside > 0.5).astype(int), sigma * distance, np.maximum(inside, 1 - inside)

    region = Region(lambda x: (x[:, :2] - 0.5).amin(1))
    return Family("two half-spaces", region, lambda n, seed: _uniform(n, 2, seed), truth)


def constant() -> Family:
    """Class 1 everywhere: any radius is true."""

    def truth(x: np.ndarray, sigma: float) -> Truth:
        return np.ones(len(x), dtype=int), np.full(len(x), np.inf), np.ones(len(x))

    region = Region(lambda x: 0 * x[:, 0] + 1)
    return Family("constant", region, lambda n, seed: _uniform(n, 2, seed), truth)


def on_grid(name: str, label: Callable[[np.ndarray], np.ndarray], inside: Callable[[Tensor], Tensor]) -> Family:
    """A class that depends on the sum S of four 8-bit pixels: under rounded Gaussian noise all is a finite sum.

    The pixels' noise has P(k) = Phi((k + 1/2) / (255 sigma)) - Phi((k - 1/2) / (255 sigma)). The true radius is the
    distance to the nearest 8-bit image whose smoothed class differs: m steps of the sum over four pixels.
    """
    reach = 2000
    sums = np.arange(-reach, 1021 + reach)

    def truth(x: np.ndarray, sigma: float) -> Truth:
        k = np.arange(-600, 601)
        one = norm.cdf((k + 0.5) / 255 / sigma) - norm.cdf((k - 0.5) / 255 / sigma)
        four = np.convolve(np.convolve(one, one), np.convolve(one, one))
        inner = sums[2400:-2400] if len(sums) > 6000 else sums
        classes = label(np.arange(inner[0] - 2400, inner[-1] + 2401)).astype(float)
        probability = np.convolve(classes, four, mode="valid")
        smoothed = probability > 0.5
        total = np.rint(x * 255).astype(int).sum(1)
        place = total - inner[0]
        steps = np.array([_nearest(smoothed, one) for one in place], dtype=float)
        each, more = np.divmod(steps, 4)
        radius = np.sqrt(more * (each + 1) ** 2 + (4 - more) * each**2) / 255
        radius[np.isinf(steps)] = np.inf
        return smoothed[place].astype(int), radius, np.maximum(probability, 1 - probability)[place]

    return Family(name, Region(inside), _levels, truth)


def _nearest(smoothed: np.ndarray, place: int) -> float:
    others = np.flatnonzero(smoothed != smoothed[place])
    return float(np.abs(others - place).min()) if len(others) else np.inf


def _uniform(count: int, dimension: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random((count, dimension), dtype=np.float32))


def _levels(count: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, 1, 2, 2), dtype=np.uint8))


FAMILIES = [
    half_space(2),
    half_space(9),
    half_space(3, -np.inf),
    slab(0.25),
    slab(0.6),
    strips(0.45, 0.55),
    strips(0.4, 0.6),
    ball(3, 0.35),
    quadrant(),
    constant(),
    on_grid("half-space on the grid", lambda s: s > 510, lambda x: x.sum(1) - 2.002),
    on_grid("slab on the grid", lambda s: np.abs(s - 510) <= 140, lambda x: 0.551 - (x.sum(1) - 2).abs()),
]


@dataclass
class Cell:
    """Certificates of one kind."""

    name: str
    alpha: float
    certificates: int = 0
    false: int = 0
    """Radii above the truth."""
    above: int = 0
    """Probabilities above the truth."""

    def add(self, certificate: tuple[int | None, float, float], truth: tuple[int, float, float]) -> None:
        prediction, radius, lower = certificate
        label, true_radius, probability = truth
        self.certificates += 1
        if prediction is None:
            return
        # The truth is rounded too; 1e-9 is far below what distinguishes two counts.
        self.false += bool(prediction != label or radius > true_radius + 1e-9)
        self.above += bool(lower > (probability if prediction == label else 0.5) + 1e-9)

    @property
    def significance(self) -> float:
        """Probability of as many false bounds or radii, or more, if each is false with probability alpha."""
        return float(binom.sf(max(self.above, self.false) - 1, self.certificates, self.alpha))


PROCEDURES = {
    "fixed": {"n0": 32, "n": 256},
    "sequential": {"n0": 32, "n": 256, "radii": [0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5]},
    "sequential, one stream": {"n": 1024, "radii": [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5]},
    "two-stage": {"n0": 64, "n": 256, "tolerance": 0.05},
}


def by_api(family: Family, procedure: str, alpha: float, count: int, seed: int, *, at_once: bool) -> Cell:
    """Certificates of `SmoothedClassifier.certify`, of all inputs in one call or of one input per call."""
    cell = Cell(f"{family.name}, {procedure}, {'many' if at_once else 'one'}", alpha)
    inputs = family.inputs(count, seed)
    flat = inputs.flatten(1).numpy()
    truth = family.truth(flat / 255 if inputs.dtype == torch.uint8 else flat, family.sigma)
    smoothed = SmoothedClassifier(family.network, family.sigma, 3)
    options = {**PROCEDURES[procedure], "alpha": alpha}
    if at_once:
        found = smoothed.certify(inputs, **options, seed=seed)
    else:
        found = [smoothed.certify(inputs[at : at + 1], **options, seed=seed + at)[0] for at in range(count)]
    for one, *known in zip(found, *truth, strict=True):
        cell.add((one.prediction, one.radius, one.p_lower), tuple(known))
    return cell


def by_command(cage: Cage, alpha: float, count: int, noise: str, seed: int) -> Cell:
    """Certificates of the command, for the plain half-space of the zoo."""
    cell = Cell(f"half-space by the command, {noise} noise", alpha)
    generator = np.random.default_rng(seed)
    levels = generator.integers(90, 166, (count, 1, 1))
    x = (levels + generator.integers(-6, 7, (count, 4, 4))).astype(np.uint8)
    labels = (x.reshape(count, -1).astype(int).sum(1) > 2040).astype(np.int64)
    home = cage.folder / f"battery-{noise}-{alpha:g}-{seed}"
    home.mkdir()
    labels[:2] = 2
    np.savez(home / "data.npz", x=x[:60], y=labels[:60], x_test=x, y_test=labels)
    save_file(_plain(), home / "plain.safetensors")
    own = ["--model", "tests.zoo.factory:plain", "--weights", str(home / "plain.safetensors")]
    own += ["--data", str(home / "data.npz"), "--out", str(home / "records"), "--quiet", "--json"]
    settings = ["--sigma", "0.25", "--n0", "32", "--n", "256", "--alpha", str(alpha), "--noise", noise]
    ran = cage.command(["certify", *own, *settings, "--seed", str(seed)])
    assert ran.code == 0, ran.err
    (record,) = finished_records(home / "records", "certify")
    distance = (x.reshape(count, -1).astype(float).sum(1) - 2040.5) / 1020
    # The noise of the sum is that of 16 rounded pixels, or Gaussian; both are symmetric around the boundary.
    deviation = np.sqrt(0.25**2 + (1 / 255**2 / 12 if noise == "grid" else 0))
    for row in record.rows:
        at = row["index"]
        true = abs(distance[at]) + (0.5 / 1020 if noise == "grid" else 0)
        probability = norm.cdf((abs(distance[at])) / deviation) + (1e-6 if noise == "grid" else 0)
        cell.add((row["prediction"], row["radius"], row["p_lower"]), (int(distance[at] > 0), true, probability))
    return cell


def _plain() -> dict[str, Tensor]:
    from tests.zoo.cases import Plain

    return Plain().state_dict()


def battery(folder: Path, certificates: int) -> Iterator[Cell]:
    """All cells; together at least so many certificates at alpha 0.001, and about a tenth as many at 1e-9."""
    cage = Cage(folder)
    kinds = [(family, procedure) for family in FAMILIES for procedure in PROCEDURES]
    each = max(10, math.ceil(certificates / (len(kinds) + len(FAMILIES) // 10 + 4) / 10) * 10)
    for number, (family, procedure) in enumerate(kinds):
        yield by_api(family, procedure, 1e-3, each, 1000 + number, at_once=True)
        yield by_api(family, procedure, 1e-9, max(4, each // 10), 2000 + number, at_once=True)
    singles = max(2, each // 10)
    for number, family in enumerate(FAMILIES):
        yield by_api(family, "fixed", 1e-3, singles, 3000 + 100_000 * number, at_once=False)
    for number, noise in enumerate(("grid", "float")):
        yield by_command(cage, 1e-3, max(64, 2 * each), noise, 4000 + number)
        yield by_command(cage, 1e-9, max(64, each // 5), noise, 5000 + number)


def verdict(cells: list[Cell]) -> list[str]:
    """What a sound program would not show, except with probability `LEVEL`."""
    problems = [
        f"{cell.name}, alpha {cell.alpha:g}: of {cell.certificates} certificates {cell.above} bounds and {cell.false}"
        " radii are above the truth"
        for cell in cells
        if cell.significance < LEVEL / (len(cells) + 1) or (cell.alpha < 1e-6 and (cell.above or cell.false))
    ]
    usual = [cell for cell in cells if cell.alpha > 1e-6]
    total = sum(cell.certificates for cell in usual)
    for what in ("above", "false"):
        found = sum(getattr(cell, what) for cell in usual)
        if binom.sf(found - 1, total, 1e-3) < LEVEL:
            problems.append(f"{found} of {total} are {what}, more than alpha explains")
    return problems
