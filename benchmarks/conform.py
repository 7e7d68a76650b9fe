"""Prediction sets under shift: certified for distributions, robust at every input (RSCP, BinCP), and plain conformal.

All sets come from one network and the same noise samples. The peers' procedures are written from their papers:

- split conformal (Vovk et al.): 1 - softmax of the image without noise, quantile of the calibration scores.
- RSCP (Gendler et al., 2022) with the Monte Carlo correction of RSCP+ (Yan et al., 2024): the mean score under noise is
  1 / sigma-Lipschitz on the probit scale, so a threshold raised by eps / sigma covers every input perturbed by eps.
  Hoeffding's inequality, at `ETA` for the calibration point and the test point each, covers the sampling.
- BinCP (Zargarbashi and Bojchevski, 2025): a class is in the set if enough noise samples have a score of at most tau;
  tau is the quantile at which a share `SHARE` of a calibration point's samples passes, and at a perturbed input this
  share is at least Phi(Phi^-1(share) - eps / sigma). Clopper-Pearson and binomial quantiles at `ETA` cover sampling.

RSCP and BinCP hold for every input perturbed by up to eps, marginally over calibration and test points. Ours holds for
every distribution within W2 distance eps, where an input may move further than eps, with probability 1 - alpha over
calibration points; it takes one noisy pass per test image.
"""

import math
from typing import Any

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor, nn

from benchmarks.benchmark import Setting, Table
from rhobust.attacks import PGD
from rhobust.bounds import clopper_pearson, spend_budget
from rhobust.certificates import Smoothing
from rhobust.certificates.losses import sample_logits
from rhobust.data import Dataset, corrupt, load, to_unit
from rhobust.formatting import format_number
from rhobust.models import load_model
from rhobust.noise import ExampleNoise
from rhobust.progress import ProgressEvent, progress_or_default
from rhobust.proofs.claim import NoiseSamples
from rhobust.proofs.conformal import ConformalCertificate, SetCounts, threshold_grid

NETWORK, DATA, SIGMA = "rhobust:mnist-nal", "mnist", 0.25
CALIBRATION, TESTED, DRAWS, OURS = 1000, 300, 150, 20
"""Calibration points, test images, noise samples of the peers per image, and of our calibration per point."""
ALPHA, ETA, SHARE = 1e-2, 1e-3, 0.6
"""Our probability of failure; the peers' share of the miss rate for sampling; and BinCP's share of samples."""
CLAIMS = ((0.9, 0.5), (0.95, 0.5), (0.9, 1.0))
"""Coverage, and eps in units of sigma."""
CHANGES = (("jpeg", 5), ("gaussian-blur", 5), ("gaussian-noise", 5), ("brightness", 5))
"""Corruptions under which sets are tried, with severities."""
FAR = (2.0, 3.0, 4.0, 6.0, 8.0)
"""Radii of the attack that spends one W2 budget over all images, in units of the largest eps."""
BLOCK = 100


def bench_conform(setting: Setting) -> dict[str, Any]:
    """Calibrate all sets on the same points and try them on clean, corrupted and attacked images."""
    model = load_model(NETWORK).to(setting.device).eval()
    data = load(DATA, "test", root=setting.root)
    draws, tested = setting.draws or DRAWS, setting.limit or TESTED
    known = list(data.places(CALIBRATION + tested, max(1, len(data) // (CALIBRATION + tested))))
    order = np.random.default_rng(0).permutation(len(known))
    known = [known[place] for place in order]
    first, last = known[:CALIBRATION], known[CALIBRATION:]
    with progress_or_default(setting.progress) as notify:

        def scores(images: Tensor, indices: list[int], task: str) -> tuple[np.ndarray, np.ndarray]:
            """1 - softmax under each noise sample, `(images, draws, classes)`, and without noise."""
            found = []
            for start in range(0, len(indices), BLOCK):
                part = slice(start, start + BLOCK)
                found.append(_noisy_scores(model, images[part].to(setting.device), indices[part], draws))
                notify(
                    ProgressEvent(f"bench conform, {task}", min(start + BLOCK, len(indices)), len(indices), "images")
                )
            with torch.no_grad():
                clean = 1 - model(to_unit(images.to(setting.device))).double().softmax(1)
            return np.concatenate(found), clean.cpu().numpy()

        calibration = scores(data.images[first], first, "calibration")
        labels = data.labels[first].numpy()
        images, y = data.images[last], data.labels[last].numpy()
        conditions = {"clean": images}
        for name, severity in CHANGES:
            noise = ExampleNoise(0, f"corrupt:{name}", last)
            conditions[f"{name} {severity}"] = corrupt(images, name, severity, rng=noise)
        radius = max(eps for _, eps in CLAIMS) * SIGMA
        conditions[f"PGD, radius {radius:g}"] = _attacked(model, data, last, [radius], setting.device)
        far = [radius * step for step in FAR]
        conditions[f"W2 attack, {radius:g}"] = _attacked(model, data, last, far, setting.device, radius)
        tried = {name: scores(changed, last, name) for name, changed in conditions.items()}
    result = {
        "network": NETWORK,
        "sigma": SIGMA,
        "calibration": len(first),
        "tested": len(last),
        "draws": draws,
        "alpha": ALPHA,
        "distances_in_sigma": {name: _distance(images, changed) / SIGMA for name, changed in conditions.items()},
        "claims": [_claim(coverage, eps, calibration, labels, tried, y) for coverage, eps in CLAIMS],
    }
    setting.write(result)
    return result


def _noisy_scores(model: nn.Module, images: Tensor, indices: list[int], draws: int) -> np.ndarray:
    smoothing = Smoothing.for_images(images, SIGMA, 10, seed=0, dtype="float32")
    parts = sample_logits(model, images, smoothing, indices=indices, draws=draws, purpose="bench-conform")
    found = torch.cat([logits.double().softmax(1) for _, logits in parts])
    return 1 - found.view(len(images), draws, -1).cpu().numpy()


def _attacked(
    model: nn.Module,
    data: Dataset,
    indices: list[int],
    radii: list[float],
    device: torch.device,
    eps: float | None = None,
) -> Tensor:
    """Images attacked at a radius; with an eps, each at one of the radii or not at all, within that W2 distance."""
    before = data.images[indices].to(device)
    x, y = to_unit(before), data.labels[indices].to(device)
    places = [before]
    for radius in radii:
        found = PGD(steps=20, restarts=0)(model, x, y, eps=radius, rng=ExampleNoise(0, f"conform:{radius!r}", indices))
        places.append((found * 255).round().clamp(0, 255).to(torch.uint8))
    if eps is None:
        return places[-1].cpu()
    with torch.no_grad():
        lost = torch.stack([1 - model(to_unit(one)).softmax(1).gather(1, y[:, None]).squeeze(1) for one in places], 1)
    costs = torch.stack([(to_unit(one).double() - x.double()).flatten(1).square().sum(1) for one in places], 1)
    shares = spend_budget(costs.cpu().numpy(), lost.double().cpu().numpy(), eps**2)[0]
    # One image would split its mass: it goes to the nearer place, which keeps the budget.
    chosen = torch.from_numpy(np.argmax(shares > 0, axis=1)).to(device)
    return torch.stack(places, 1)[torch.arange(len(x), device=device), chosen].cpu()


def _distance(before: Tensor, after: Tensor) -> float:
    """Root mean square L2 distance."""
    return float((to_unit(after).double() - to_unit(before).double()).flatten(1).square().sum(1).mean().sqrt())


def _claim(
    coverage: float,
    eps: float,
    calibration: tuple[np.ndarray, np.ndarray],
    labels: np.ndarray,
    tried: dict[str, tuple[np.ndarray, np.ndarray]],
    y: np.ndarray,
) -> dict[str, Any]:
    """The sets of every method at one coverage and eps: coverage and size under each condition."""
    noisy, clean = calibration
    ours = _our_threshold(noisy[:, :OURS], labels, coverage, eps)
    split = split_threshold(clean, labels, coverage)
    draws = noisy.shape[1]
    raised = rscp_threshold(noisy, labels, coverage, eps)
    tau, passing = bincp_threshold(noisy, labels, coverage, eps)
    methods = {
        # Every noise sample is a set of its own: its mean coverage and size have less chance in them.
        "ours": (1, lambda many, one: (many <= ours) if ours is not None else np.ones_like(many, dtype=bool)),
        "split conformal": (1, lambda many, one: (one <= split)[:, None]),
        "RSCP": (draws, lambda many, one: (many.mean(axis=1) <= raised)[:, None]),
        "BinCP": (draws, lambda many, one: ((many <= tau).sum(axis=1) >= passing)[:, None]),
    }
    found = []
    for name, (passes, sets) in methods.items():
        conditions = []
        for condition, (many, one) in tried.items():
            held = sets(many, one)
            right = held[np.arange(len(y)), :, y].mean()
            conditions.append({"images": condition, "coverage": float(right), "size": float(held.sum(axis=2).mean())})
        found.append({"method": name, "passes": passes, "conditions": conditions})
    return {"coverage": coverage, "eps_in_sigma": eps, "methods": found}


def _our_threshold(noisy: np.ndarray, labels: np.ndarray, coverage: float, eps: float) -> float | None:
    """The threshold that `rhobust conform --score probability` certifies; None for the sets of all classes."""
    grid = threshold_grid("probability", noisy.shape[2])
    rising = grid[::-1].copy()
    places = grid.size - 1 - np.searchsorted(rising, noisy)
    last = places[np.arange(len(labels)), :, labels]
    certificate = ConformalCertificate.from_counts(
        {"probability": SetCounts(last, places[:, 0])},
        labels,
        NoiseSamples(sigma=SIGMA, noise="grid", dimension=784, draws=noisy.shape[1], alpha=ALPHA),
        num_classes=noisy.shape[2],
        coverage=coverage,
        eps=eps * SIGMA,
        conditional=False,
    )
    return certificate.thresholds[0]


def split_threshold(clean: np.ndarray, labels: np.ndarray, coverage: float) -> float:
    """The calibration score that at least a share of `coverage` of exchangeable scores does not exceed."""
    return _quantile(clean[np.arange(len(labels)), labels], coverage)


def rscp_threshold(noisy: np.ndarray, labels: np.ndarray, coverage: float, eps: float) -> float:
    """The largest mean score under noise of a class in the set, at an input that may be perturbed by eps."""
    means = noisy.mean(axis=1)[np.arange(len(labels)), labels]
    slack = math.sqrt(math.log(1 / ETA) / (2 * noisy.shape[1]))
    limit = min(_quantile(means, coverage + 2 * ETA) + slack, 1.0)
    return float(special.ndtr(special.ndtri(limit) + eps)) + slack


def bincp_threshold(noisy: np.ndarray, labels: np.ndarray, coverage: float, eps: float) -> tuple[float, int]:
    """The score tau, and how many noise samples must have at most that for a class to be in the set."""
    draws = noisy.shape[1]
    scores = np.sort(noisy[np.arange(len(labels)), :, labels], axis=1)
    needed = math.ceil(SHARE * draws)
    tau = _quantile(scores[:, needed - 1], coverage + 2 * ETA)
    least = float(clopper_pearson(needed, draws, ETA, "lower"))
    moved = float(special.ndtr(special.ndtri(least) - eps))
    # Of so many samples, each passing with this probability, fewer pass with probability at most ETA.
    return tau, int(stats.binom.ppf(ETA, draws, moved))


def _quantile(values: np.ndarray, coverage: float) -> float:
    """The smallest value that a new exchangeable one does not exceed with probability at least `coverage`."""
    place = math.ceil(coverage * (len(values) + 1))
    return float(np.sort(values)[place - 1]) if place <= len(values) else math.inf


def conform_table(result: dict[str, Any]) -> Table:
    """One line per claim and method: coverage and size on clean images, and the coverage under each change."""
    names = [one["images"] for one in result["claims"][0]["methods"][0]["conditions"]]
    rows = []
    for claim in result["claims"]:
        for method in claim["methods"]:
            found = {one["images"]: one for one in method["conditions"]}
            shown = [[(found[name]["coverage"], 3), (found[name]["size"], 2)] for name in names]
            cells = [" / ".join(format_number(*one, "nearest") for one in pair) for pair in shown]
            asked = f"{claim['coverage']:g} at {claim['eps_in_sigma']:g} sigma"
            rows.append([asked, method["method"], f"{method['passes']}", *cells])
    notes = [
        f"coverage / mean size of sets; {result['network']}, sigma {result['sigma']:g}, {result['calibration']}"
        f" calibration points, {result['tested']} test images; ours at alpha {result['alpha']:g}",
        "ours: every distribution within W2 eps; RSCP, BinCP: every input perturbed by eps; split conformal: no shift",
    ]
    titles = [f"{name} ({result['distances_in_sigma'][name]:.1f} sigma)" if name != "clean" else name for name in names]
    return Table(["coverage at eps", "method", "passes per image", *titles], rows, notes=notes, left=2)
