"""Synthetic run folders: small, made of nothing but numbers, and the same every time."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from rhobust.measurements import robust_curve
from rhobust.measurements.certified import certified_summary
from rhobust.measurements.corruptions import corruption_summary
from rhobust.measurements.proved import measured_summary, shift_summary, worst_case_summary
from rhobust.proofs.plan import ClassVotes
from rhobust.proofs.procedures import Fixed, corrected_plan
from rhobust.proofs.sequential import Sequential
from rhobust.records import RecordWriter, end_line, read_record

RADII = [0.0, 0.25, 0.5, 0.75, 1.0]
EPS = [0.05, 0.1, 0.25, 0.5]


def write_run(
    folder: Path,
    *,
    name: str = "nal-digits",
    kind: str = "nal",
    sigma: float | None = 0.25,
    strength: float = 0.6,
    examples: int = 200,
    epochs: int = 30,
    warnings: tuple[str, ...] = (),
) -> Path:
    """A run with all its records; `strength` is the typical distance to the decision boundary."""
    rng = np.random.default_rng(len(name) + examples)
    folder.mkdir(parents=True)
    method: dict[str, Any] = {"kind": kind}
    if sigma is not None:
        method["sigma"] = sigma
    if kind == "nal":
        method["gamma"] = 0.5
    config = {"rhobust": "0.1.0", "name": name, "method": method, "data": "digits", "model": "cnn-small"}
    config |= {"activation": "relu", "epochs": epochs, "batch_size": 128, "lr": 0.001, "seed": 0}
    environment = {"rhobust": "0.1.0", "python": "3.11.2", "torch": "2.11.0", "device": "cpu", "cpu_threads": 2}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "environment.json").write_text(json.dumps(environment))
    write_metrics(folder, epochs, distance=kind == "nal")
    margin = rng.gamma(3.0, strength / 3.0, examples) - strength / 6.0
    write_attack(folder, "pgd", margin * (0.45 if sigma else 0.3), scored="base", sigma=None, warnings=warnings)
    if sigma is not None:
        attack = write_attack(folder, "eot", margin, scored="smoothed", sigma=sigma, warnings=warnings)
        write_pictures(attack)
        write_certificate(folder, np.minimum(margin * 0.8, sigma * 2.4), sigma=sigma)
        write_shift(folder, np.clip(rng.normal(4.0 - 8.0 * margin, 1.5), 0, 20).astype(int), sigma=sigma)
    return folder


def write_metrics(folder: Path, epochs: int, *, distance: bool = True) -> None:
    with (folder / "metrics.jsonl").open("w") as file:
        for epoch in range(1, epochs + 1):
            row = {"epoch": epoch, "loss": 0.2 + 2.0 / epoch, "accuracy": 1 - 0.6 / (epoch + 0.5), "seconds": 0.5}
            file.write(json.dumps(row | ({"distance_rms": 0.7 - 0.5 / epoch} if distance else {})) + "\n")


def write_attack(
    folder: Path,
    kind: str,
    margin: np.ndarray,
    *,
    scored: str,
    sigma: float | None,
    warnings: tuple[str, ...] = (),
    finish: bool = True,
    **extra: Any,
) -> Path:
    """An attack that breaks every example further out than its margin; at radius 0.25 two votes are close."""
    settings = {"attack": {"kind": kind, "steps": 20}, "scored": scored, "sigma": sigma, "radii": RADII, "votes": 100}
    settings |= {"seed": 0, "data": "digits", "split": "test", "data_fingerprint": "f00d", "model_hash": "beef"}
    writer = RecordWriter(folder, "attack", kind, settings | extra)
    close = np.flatnonzero(margin > 0.25)[:2]
    writer.append(row for i, reach in enumerate(margin) for row in _swept(i, float(reach), scored, close=i in close))
    if finish:
        writer.finish(
            {"robust_accuracy": robust_curve(writer.rows, RADII), "seconds": 12.3, "warnings": list(warnings)}
        )
    return writer.path


def _swept(index: int, reach: float, scored: str, *, close: bool = False) -> list[dict[str, Any]]:
    rows = []
    for radius in RADII:
        broken = reach <= radius
        row = {"index": index, "label": index % 10, "radius": radius, "prediction": (index + broken) % 10}
        row |= {"broken": broken, "distance": radius}
        if scored == "smoothed":
            row |= {"votes": 100, "label_votes": 20 if broken else 90, "rival_votes": 70 if broken else 8}
            if close and radius == 0.25:
                row |= {"label_votes": 51, "rival_votes": 49}
        rows.append(row)
    return rows


def write_pictures(attack: Path, *, channels: int = 1, side: int = 8) -> Path:
    """The first six examples that broke above radius 0, as an attack keeps them."""
    broken: dict[int, dict[str, Any]] = {}
    for row in read_record(attack).rows:
        if row["broken"]:
            broken.setdefault(row["index"], row)
    kept = [row for row in broken.values() if row["radius"] > 0][:6]
    rng = np.random.default_rng(0)
    before = rng.integers(0, 256, (len(kept), channels, side, side), dtype=np.uint8)
    after = np.clip(before / 255 + rng.normal(0, 0.05, before.shape), 0, 1).astype(np.float32)
    columns = {key: np.array([row[key] for row in kept]) for key in kept[0]}
    path = attack.with_suffix(".npz")
    np.savez_compressed(path, **columns, before=before, after=after, classes=np.array([f"<{i}>" for i in range(10)]))
    return path


def write_certificate(
    folder: Path,
    radii: np.ndarray,
    *,
    sigma: float,
    way: str = "cohen",
    n: int = 10_000,
    listed: Sequence[float] = RADII,
    **extra: Any,
) -> Path:
    """Certificates with the smallest radii of these or more that counts prove, at most what n votes for one class do.

    A radius of 0 or less is an abstention. Of a grid the radii are rounded down to its own.
    """
    settings = {"sigma": sigma, "n0": 100, "n": n, "alpha": 0.001, "seed": 0, "noise": "grid", "dtype": "float32"}
    settings |= {"data": "digits", "split": "test", "data_fingerprint": "f00d", "model_hash": "beef", "radii": listed}
    settings |= {"dimension": 64, "num_classes": 10, "compiled": False, "device": "cpu", "limit": None, "stride": 1}
    writer = RecordWriter(folder, "certify", way, settings | {"way": way} | extra)
    procedure = Fixed(n=n) if way == "cohen" else Sequential(tuple(listed), n=n, stopping="e-value")
    plan = corrected_plan(procedure, sigma=sigma, noise="grid", dimension=64, alpha=0.001)
    counted = (_fixed_counts if way == "cohen" else _sequential_counts)(plan, radii, sigma, n)
    writer.append(
        {
            "index": i,
            "label": i % 10,
            "prediction": i % 10 if claims.proved[0] else None,
            "radius": float(claims.radius[0]),
            "count": count,
            "n": draws,
            "p_lower": float(claims.p_lower[0]),
            "selected": i % 10,
            "top": 100,
            "runner_up": (i + 1) % 10,
            "runner_up_votes": -(-(draws - count) // 2),
            **({} if way == "cohen" else {"evidence": evidence}),
        }
        for i, (count, draws, evidence) in enumerate(counted)
        for claims in [plan.claims(_votes(count, draws), [evidence])]
    )
    writer.finish(certified_summary(writer.rows, writer.settings) | {"seconds": 40.0})
    return writer.path


def write_certified_images(certificate: Path, *, channels: int = 1, side: int = 8, kept: int = 12) -> Path:
    """Images of the first certificates, as certify keeps them."""
    rng = np.random.default_rng(1)
    path = certificate.with_suffix(".npz")
    image = rng.integers(0, 256, (kept, channels, side, side), dtype=np.uint8)
    np.savez_compressed(path, index=np.arange(kept), image=image, classes=np.array([f"<{i}>" for i in range(10)]))
    return path


def write_corruptions(folder: Path, *, sigma: float | None = 0.25, scale: float = 1.0, side: int = 8) -> Path:
    """JPEG and fog at two severities, of 20 images, with the pictures of one."""
    cells = [("jpeg", 1), ("jpeg", 3), ("fog", 1), ("fog", 3)]
    settings = {"corruptions": ["jpeg", "fog"], "severities": [1, 3], "levels": [90, 50, 0.05, 0.3], "alpha": 0.001}
    settings |= {"sigma": sigma, "draws": 20, "seed": 0, "noise": "grid", "data": "digits", "split": "test"}
    writer = RecordWriter(folder, "corruptions", "", settings | {"data_fingerprint": "f00d", "model_hash": "beef"})
    rows = []
    for index in range(20):
        for place, (name, severity) in enumerate([("none", 0), *cells]):
            row = {"index": index, "label": index % 10, "corruption": name, "severity": severity}
            row |= {"distance": scale * place * (0.02 + 0.001 * index), "prediction": index % 10}
            rows.append(row | ({} if sigma is None else {"errors": place, "draws": 20}))
    writer.append(rows)
    writer.finish(corruption_summary(writer.rows, writer.settings, 64) | {"warnings": [], "seconds": 1.0})
    rng = np.random.default_rng(2)
    np.savez_compressed(
        writer.path.with_suffix(".npz"),
        index=np.array([3]),
        before=rng.integers(0, 256, (1, 1, side, side), dtype=np.uint8),
        corruption=np.array([name for name, _ in cells]),
        severity=np.array([severity for _, severity in cells]),
        after=rng.integers(0, 256, (4, 1, side, side), dtype=np.uint8),
        classes=np.array([f"<{i}>" for i in range(10)]),
    )
    return writer.path


def _votes(count: Any, draws: Any) -> ClassVotes:
    count, draws = np.atleast_1d(count), np.atleast_1d(draws)
    return ClassVotes(np.full(len(count), 100), count, draws - count, draws)


def _fixed_counts(plan: Any, radii: np.ndarray, sigma: float, n: int) -> list[tuple[int, int, list[Any]]]:
    """The fewest votes that prove each radius; half of them prove nothing."""
    counts = np.arange(n // 2, n + 1)
    proved = plan.claims(_votes(counts, np.full(len(counts), n)), [[]] * len(counts)).radius
    places = np.minimum(np.searchsorted(proved, radii), n - n // 2)
    return [(int(counts[place]) if radius > 0 else n // 2, n, []) for place, radius in zip(places, radii, strict=True)]


def _sequential_counts(plan: Any, radii: np.ndarray, sigma: float, n: int) -> list[tuple[int, int, list[Any]]]:
    """A course of the test that proves the grid's radii up to each radius and none above."""
    return [_course(plan, float(special.ndtr((radius + 0.1) / sigma)) if radius > 0 else 0.4) for radius in radii]


def _course(plan: Any, share: float) -> tuple[int, int, list[Any]]:
    reached, evidence, draws = np.array([0]), [], plan.first_look(np.array([100]))
    while True:
        count = np.floor(share * draws).astype(int)
        now, later = plan.look(_votes(count, draws), reached)
        evidence += [[int(draws[0]), int(count[0])]] * int(now[0] - reached[0])
        if later[0] == draws[0]:
            return int(count[0]), int(draws[0]), evidence
        reached, draws = now, later


def write_shift(
    folder: Path, errors: np.ndarray, *, sigma: float, draws: int = 20, baselines: bool = False, **extra: Any
) -> Path:
    settings = {"sigma": sigma, "draws": draws, "alpha": 0.001, "eps": EPS, "classifier": "randomised", "cost": "w2"}
    settings |= {"loss": "0-1", "bound": 1.0, "votes": 1, "way": "majorant", "beside": baselines}
    writer = RecordWriter(folder, "certify-shift", "", settings | {"seed": 0, "noise": "grid"} | extra)
    writer.append({"index": i, "label": i % 10, "errors": int(e), "draws": draws} for i, e in enumerate(errors))
    writer.finish(shift_summary(writer.rows, writer.settings, 64) | {"seconds": 3.2})
    return writer.path


def write_losses(
    folder: Path, *, attacked: bool = True, crossing: bool = False, n: int = 50, sigma: float = 0.25
) -> Path:
    """Curves of the cross-entropy clipped at 2: certified, and where it was attacked a lower curve and an estimate."""
    settings = {"sigma": sigma, "draws": 20, "alpha": 0.001, "loss": "cross-entropy", "bound": 2.0, "cost": "w2"}
    settings |= {"eps": EPS, "noise": "grid", "seed": 0, "classifier": "randomised", "gammas": [1.0, 8.0]}
    writer = RecordWriter(folder, "curves" if attacked else "certify-shift", "cross-entropy", settings)
    losses = [0.25 + 0.01 * (i % 11) for i in range(n)]
    # An attack that moves nothing and reaches the largest loss denies every certificate.
    reached = {"squared_distance": 0.0, "loss": 2.0} if crossing else {"squared_distance": 0.02, "loss": 0.5}
    more = {"counted": 3, "attacks": [{"phi": 0.35, **reached}] * 2, "wrm": []} if attacked else {"dithered": 3}
    writer.append(
        {"index": i, "label": i % 10, "errors": 1, "draws": 20, "loss": loss, **more} for i, loss in enumerate(losses)
    )
    summary = (worst_case_summary if attacked else shift_summary)(writer.rows, writer.settings, 64)
    writer.finish(summary | {"seconds": 3.2})
    return writer.path


def write_measured(
    folder: Path, *, labelled: bool = True, network: bool = True, after: int = 1, pairs: int = 30
) -> Path:
    """A measured change of some pairs, with a network's wrong votes before it and where they have labels after it."""
    settings = {"pairs": "before and after", "alpha": 0.001, "limit": None, "stride": 1, "seed": 0}
    if network:
        settings |= {"draws": 10, "sigma": 0.25, "noise": "grid", "points": "before" if labelled else "test data"}
    writer = RecordWriter(folder, "measure-shift", "", settings)
    distances = np.random.default_rng(0).uniform(0, 0.04, pairs).tolist()
    rows = [{"index": i, "distance": distance} for i, distance in enumerate(distances)]
    for row in rows if network else ():
        row |= {"label": 0, "errors": 1, "draws": 10} | ({"errors_after": after} if labelled else {})
    writer.append(rows)
    writer.finish(measured_summary(writer.rows, writer.settings, 64) | {"warnings": [], "seconds": 1.0})
    return writer.path


def write_transfer(folder: Path, own: str, others: dict[str, np.ndarray]) -> Path:
    """Attacks crafted on one network and judged by several, given by their hashes and margins."""
    targets = [{"name": f"run of {name}", "model_hash": name, "scored": "base"} for name in others]
    settings = {"attack": {"kind": "pgd", "steps": 20}, "norm": "l2", "radii": RADII, "targets": targets}
    writer = RecordWriter(folder, "transfer", "pgd", settings | {"model_hash": own, "seed": 0})
    writer.append(
        {"target": name} | row
        for name, margin in others.items()
        for i, reach in enumerate(margin)
        for row in _swept(i, float(reach), "base")
    )
    writer.finish({"targets": [], "warnings": ["the network is odd"]})
    return writer.path


def rewrite(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Change the lines of a record as a forger does: the end line has a digest that fits."""
    lines = path.read_text().splitlines()
    end = json.loads(lines[-1])
    end.pop("digest", None)
    *before, last = change([*lines[:-1], json.dumps(end)])
    text = "".join(f"{line}\n" for line in before)
    forged = json.loads(last).keys() == {"summary"}
    path.write_text(text + (end_line(text.encode(), json.loads(last)["summary"]) if forged else f"{last}\n"))


def change_summary(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the summary of a record as a forger does."""

    def apply(lines: list[str]) -> list[str]:
        end = json.loads(lines[-1])
        change(end["summary"])
        return [*lines[:-1], json.dumps(end)]

    rewrite(path, apply)
