"""Synthetic run folders: small, made of nothing but numbers, and the same every time."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rhobust.measurements import robust_curve
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


def write_certificate(folder: Path, radii: np.ndarray, *, sigma: float, way: str = "cohen") -> Path:
    """Certificates with these radii; a radius of 0 or less is an abstention."""
    settings = {"sigma": sigma, "n0": 100, "n": 10000, "alpha": 0.001, "seed": 0, "noise": "grid", "dtype": "float32"}
    settings |= {"data": "digits", "split": "test", "data_fingerprint": "f00d", "model_hash": "beef"}
    writer = RecordWriter(folder, "certify", way, settings | {"way": way})
    writer.append(
        {
            "index": i,
            "label": i % 10,
            "prediction": i % 10 if radius > 0 else None,
            "radius": max(float(radius), 0.0),
            "count": 9000,
            "n": 10000,
            "p_lower": 0.9,
        }
        for i, radius in enumerate(radii)
    )
    curve = [
        {"radius": r, "accuracy": float(np.mean(radii >= r if r else radii > 0)), "n": len(radii)} for r in RADII[:4]
    ]
    average = float(np.mean(np.maximum(radii, 0.0)))
    writer.finish({"certified_accuracy": curve, "average_certified_radius": average, "seconds": 40.0})
    return writer.path


def write_shift(
    folder: Path,
    errors: np.ndarray,
    *,
    sigma: float,
    draws: int = 20,
    beside: list[dict[str, Any]] | None = None,
    **extra: Any,
) -> Path:
    settings = {"sigma": sigma, "draws": draws, "alpha": 0.001, "eps": EPS, "classifier": "randomised", "cost": "w2"}
    writer = RecordWriter(folder, "certify-shift", "", settings | {"seed": 0, "noise": "grid"} | extra)
    writer.append({"index": i, "label": i % 10, "errors": int(e), "draws": draws} for i, e in enumerate(errors))
    accuracy = 1 - float(errors.sum()) / (draws * len(errors))
    curve = [{"eps": eps, "certified_accuracy": max(0.0, accuracy - 0.04 - 0.55 * eps)} for eps in EPS]
    statement = "With probability 99.9% over test points and noise, one noisy vote is right at least so often."
    summary = {"accuracy_under_noise": accuracy, "curve": curve, "statement": statement, "seconds": 3.2}
    writer.finish(summary | ({} if beside is None else {"beside": beside}))
    return writer.path


def write_losses(folder: Path, *, attacked: bool = True, crossing: bool = False) -> Path:
    """Curves of the cross-entropy clipped at 2: certified, and where it was attacked a lower curve and an estimate."""
    settings = {"sigma": 0.25, "draws": 20, "alpha": 0.001, "loss": "cross-entropy", "bound": 2.0, "cost": "w2"}
    writer = RecordWriter(folder, "curves" if attacked else "certify-shift", "cross-entropy", settings | {"seed": 0})
    losses = [0.25 + 0.01 * (i % 11) for i in range(50)]
    writer.append(
        {"index": i, "label": i % 10, "errors": 1, "draws": 20, "loss": loss} for i, loss in enumerate(losses)
    )
    curve: list[dict[str, Any]] = []
    for eps in EPS:
        upper = 0.41234 + eps
        extra = {"certified": upper, "lower": upper + 0.1 if crossing else 0.30879 + 0.4 * eps, "estimate": 0.35 + eps}
        curve.append({"eps": eps, **(extra if attacked else {"certified_loss": upper})})
    summary = {"loss_under_noise": float(np.mean(losses)), "curve": curve, "statement": "The loss is at most so much."}
    writer.finish(summary | {"seconds": 3.2})
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
