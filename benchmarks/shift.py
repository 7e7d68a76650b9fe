"""The distributional certificate: what its bound costs, and a few noise samples per point against many."""

import time
import tracemalloc
from typing import Any

import numpy as np
from scipy import special

from benchmarks.benchmark import Setting, Table
from rhobust.bounds import population_loss, population_loss_intervals
from rhobust.certificates import Smoothing, corrected_alpha, count_errors, noise_kind
from rhobust.evaluation import Target
from rhobust.formatting import format_number
from rhobust.progress import ProgressCallback, ProgressEvent, progress_or_default

ALPHA, DRAWS = 1e-3, 20
POINTS = (10_000, 100_000, 1_000_000)
EPS = tuple(step / 10 for step in range(21))
"""Sizes of the shift in units of sigma."""
MANY = {"cpu": 500, "cuda": 10_000}
"""Noise samples per point of the comparator; default."""
FEW = {"cpu": 200, "cuda": None}
"""Default number of test points; None for all."""
LEVELS = (1e-2, 1e-3, 1e-4)
"""Levels of the comparator's intervals. They share its alpha, so that the best of them may be taken at each eps."""
BLOCK = 250


def bench_shift(setting: Setting) -> dict[str, Any]:
    """Time the bound for up to a million points, and compare few noise samples with many on a trained run.

    Without a run only the bound is timed: from counts that are there already, for a whole curve over eps. With one, the
    test points get 20 noise samples each for our certificate and thousands for Clopper-Pearson's, in one process; both
    are statements about the population at the same alpha.
    """
    target = None
    if setting.run is not None:  # before the work begins: its data may be missing
        target = Target.from_run(setting.run, device=setting.device, root=setting.root)
    with progress_or_default(setting.progress) as notify:
        bound = []
        for points in POINTS:
            notify(f"bench shift: the bound for {points:,} points")
            bound.append(_timed(points))
        result: dict[str, Any] = {"alpha": ALPHA, "draws": DRAWS, "eps_in_sigma": list(EPS), "bound": bound}
        result["run"] = None
        if target is not None:
            result["run"] = _against_intervals(setting, target, notify)
    return result


def _timed(points: int) -> dict[str, Any]:
    """Seconds and memory of one curve, for a population like that of a certified CIFAR-10 classifier."""
    rng = np.random.default_rng(0)
    margin = np.interp(rng.random(points), [0, 0.25, 0.40, 0.57, 0.74, 1], [-2.3, 0, 1, 2, 3, 5])
    errors = rng.binomial(DRAWS, special.ndtr(-margin))
    rho = np.square(EPS)
    start, busy = time.perf_counter(), time.process_time()
    population_loss(errors, DRAWS, rho, 1.0, ALPHA)
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    tracemalloc.start()
    population_loss(errors, DRAWS, rho, 1.0, ALPHA)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"points": points, "seconds": seconds, "cpu_seconds": busy, "peak_mib": peak / 2**20}


def _against_intervals(setting: Setting, target: Target, notify: ProgressCallback) -> dict[str, Any]:
    sigma = target.smoothing_sigma()
    limit = FEW[setting.device.type] if setting.limit is None else setting.limit
    indices = list(target.data.places(limit, 1))
    eps = [sigma * size for size in EPS if size <= 1]
    rho = np.square(eps)
    many = setting.draws or MANY[setting.device.type]
    compared: dict[str, dict[str, Any]] = {}
    for name, draws, seed in (("ours", DRAWS, 0), ("intervals", many, 1)):
        errors, seconds = _votes(target, indices, draws, seed, f"bench shift, {draws} samples", notify)
        dimension = target.data.images[0].numel()
        kind = noise_kind(target.data.images)
        level = corrected_alpha(ALPHA, sigma=sigma, dimension=dimension, draws=draws * len(indices), noise=kind)
        start = time.perf_counter()
        if name == "ours":
            loss = population_loss(errors, draws, rho, sigma, level)
        else:
            share = level / len(LEVELS)
            tried = [population_loss_intervals(errors, draws, rho, sigma, share, interval_alpha=a) for a in LEVELS]
            loss = np.min(np.stack([np.asarray(one) for one in tried]), axis=0)
        compared[name] = {
            "draws": draws,
            "forward_passes": draws * len(indices),
            "seconds": seconds,
            "bound_seconds": time.perf_counter() - start,
            "accuracy_under_noise": float(1 - errors.mean() / draws),
            "certified_accuracy": np.maximum(0.0, 1 - np.asarray(loss)).tolist(),
        }
    ours, intervals = (np.array(compared[name]["certified_accuracy"]) for name in ("ours", "intervals"))
    small = np.array(eps) <= sigma / 2 + 1e-12
    return {
        "name": target.name,
        "device": setting.device.type,
        "sigma": sigma,
        "points": len(indices),
        "eps": eps,
        **compared,
        "passes_ratio": compared["intervals"]["forward_passes"] / compared["ours"]["forward_passes"],
        "never_less_up_to_half_sigma": bool(np.all(ours[small] >= intervals[small])),
    }


def _votes(
    target: Target, indices: list[int], draws: int, seed: int, task: str, notify: ProgressCallback
) -> tuple[np.ndarray, float]:
    """Errors of each point, and the seconds they took after a warm-up."""
    images, labels = (part.to(target.device) for part in (target.data.images, target.data.labels))

    def count(block: list[int], number: int) -> np.ndarray:
        smoothing = Smoothing.for_images(images[block], target.smoothing_sigma(), target.data.num_classes, seed=seed)
        return count_errors(target.model, images[block], labels[block], smoothing, indices=block, draws=number)

    count(indices[:1], 1)
    start, found = time.perf_counter(), []
    for first in range(0, len(indices), BLOCK):
        found.append(count(indices[first : first + BLOCK], draws))
        notify(ProgressEvent(task, min(first + BLOCK, len(indices)), len(indices), "points"))
    return np.concatenate(found), time.perf_counter() - start


def shift_table(result: dict[str, Any]) -> Table:
    """The benchmark's result for people."""
    curve = len(result["eps_in_sigma"])
    heading = [
        f"bound for {one['points']:,} points, {curve} eps, {result['draws']} noise samples: {one['seconds']:.2f} s"
        f" ({one['cpu_seconds']:.2f} s of the CPU), {one['peak_mib']:.0f} MiB"
        for one in result["bound"]
    ]
    run = result["run"]
    if run is None:
        return Table(heading=heading, columns=["give a trained run with --run to compare noise samples"], rows=[])
    ours, intervals = run["ours"], run["intervals"]
    rows = [
        [f"{eps:.4g}", format_number(a, 4, "down"), format_number(b, 4, "down")]
        for eps, a, b in zip(run["eps"], ours["certified_accuracy"], intervals["certified_accuracy"], strict=True)
    ]
    return Table(
        heading=[*heading, f"{run['name']}, sigma {run['sigma']:g}, {run['points']:,} test points, on {run['device']}"],
        columns=["eps", f"certified, {ours['draws']} samples", f"Clopper-Pearson, {intervals['draws']:,} samples"],
        rows=rows,
        notes=[
            f"forward passes {ours['forward_passes']:,} against {intervals['forward_passes']:,}"
            f" ({run['passes_ratio']:.0f} times), {ours['seconds']:.1f} s against {intervals['seconds']:.1f} s",
            f"never less up to sigma / 2: {'yes' if run['never_less_up_to_half_sigma'] else 'no'}",
        ],
    )
