"""Input-dependent noise: a smoothed router decides which of several smoothed classifiers answers.

    rhobust sweep reproduction/routed.toml --out runs/routed
    python examples/routed.py routes runs/routed/runs/* --out routes.npz
    rhobust train method:nal --method.sigma 0.5 --method.gamma 0.5 --data routes.npz --model cnn --out runs/router
    python examples/routed.py certify runs/routed/runs/* --router runs/router --out routed.json.gz

`routes` labels training images by the classifier with the largest radius there, which makes a data set for the router:
any training method will do. `certify` certifies test images under the routed classifier, and writes the certificates
of the router and of the classifiers, from which its own follow. Give the run folders in the same order both times.
"""

import argparse
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rhobust
from rhobust import RoutedClassifier, SmoothedClassifier
from rhobust.attacks.gradient import margin
from rhobust.certificates import Certificate, Sequential
from rhobust.data import Dataset, to_unit
from rhobust.evaluation.certify import certificate_row
from rhobust.files import format_json, write_whole
from rhobust.training import open_run
from rhobust.training.loop import split_validation

BATCH = 256
RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5)


def smoothed(target: rhobust.Target) -> SmoothedClassifier:
    """The smoothed classifier of a run, in evaluation mode."""
    if target.sigma is None:
        raise SystemExit(f"{target.name} must be trained with noise")
    return SmoothedClassifier(target.model.eval(), target.sigma, target.data.num_classes)


def fitted(folder: Path, root: Path | None) -> Dataset:
    """The images that a run was trained on, without those that it held out."""
    config = open_run(folder).config
    return split_validation(rhobust.load(config.data, "train", root=root, **vars(config.sizing)), config)[0]


def check_same(data: Sequence[Dataset]) -> None:
    """Exit unless all runs have the same images: those that one held out another may have been trained on."""
    if len({one.fingerprint() for one in data}) > 1:
        raise SystemExit("runs must have the same data, and hold out the same images: equal seed and validation")


def routes(options: argparse.Namespace) -> None:
    """Write images and, as their labels, the place of the run with the largest radius; none where all runs err.

    The radius is an estimate (`estimated_radii`), which needs no guarantee: the router is certified as it comes out.
    """
    everything = [fitted(folder, options.root) for folder in options.runs]
    check_same(everything)
    _, data = everything[0].take(options.limit)
    targets = [rhobust.Target.from_run(folder, device=options.device, root=options.root) for folder in options.runs]
    radius = np.stack([estimated_radii(target, data, options.draws) for target in targets])
    known = radius.max(axis=0) > 0
    labels = radius.argmax(axis=0)
    for number, target in enumerate(targets):
        right, chosen = np.mean(radius[number] > 0), np.mean(labels[known] == number)
        print(f"{target.name}: {right:.3f} right, best for {chosen:.3f}")
    np.savez_compressed(options.out, x=data.images.numpy()[known], y=labels[known])


@torch.no_grad()
def estimated_radii(target: rhobust.Target, data: Dataset, draws: int) -> np.ndarray:
    """Certified radii as if the label's lead under noise were normal: sigma times its mean over its deviation.

    Votes would do for small radii only: all of 100 votes are right at any radius beyond 2.3 sigma, where the classifier
    with the most noise would always look best.
    """
    sigma, found = smoothed(target).sigma, []
    rng = torch.Generator(target.device).manual_seed(0)
    for images, labels in zip(data.images.split(BATCH), data.labels.to(target.device).split(BATCH), strict=True):
        x = to_unit(images.to(target.device))
        lead = torch.stack(
            [
                -margin(target.model(x + sigma * torch.randn(x.shape, generator=rng, device=x.device)), labels)
                for _ in range(draws)
            ]
        )
        found.append(sigma * lead.mean(0) / lead.std(0))
    return torch.cat(found).double().cpu().numpy()


def certify(options: argparse.Namespace) -> None:
    """Certify images under the routed classifier. `rhobust certify RUN` does so under one classifier alone."""
    where: dict[str, Any] = {"device": options.device, "root": options.root, "split": options.split}
    targets = [rhobust.Target.from_run(run, **where) for run in options.runs]
    check_same([target.data for target in targets])
    examples, test = targets[0].data.take(options.limit, options.stride)
    classifiers = [smoothed(target) for target in targets]
    run = open_run(options.router)
    router = SmoothedClassifier(run.load_model(targets[0].device).eval(), run.config.sigma or 0.0, len(classifiers))
    ask: dict[str, Any] = {"radii": RADII, "n": options.n, "alpha": options.alpha, "seed": options.seed}
    found = RoutedClassifier(router, classifiers).certify(test.images.to(targets[0].device), **ask)
    pairs = [*zip(map(int, examples), test.labels.tolist(), strict=True)]
    for radius in RADII:
        right = [one.prediction == label and one.radius >= radius for one, (_, label) in zip(found, pairs, strict=True)]
        print(f"certified at {radius:g}: {np.mean(right):.3f}")
    lists = [*(target.trained_on for target in targets), run.training_images()]
    known = [images.contains(test.images) for images in lists if images is not None]
    smoothing = router.smoothing(test.images.to(targets[0].device), options.seed)
    document = {
        "data": test.name,
        "split": test.split,
        "data_fingerprint": targets[0].data.fingerprint(),
        "trained_on": int(np.any(known, axis=0).sum()) if len(known) == len(lists) else None,
        "device": targets[0].device.type,
        "dtype": smoothing.dtype,
        "compiled": smoothing.compiled,
        "noise": smoothing.noise,
        "dimension": test.images[0].numel(),
        **ask,
        "stopping": Sequential.stopping,
        "rows": [
            {"index": index, "label": label, "prediction": one.prediction, "radius": one.radius}
            for one, (index, label) in zip(found, pairs, strict=True)
        ],
        "router": part(run.config.run_id, run.model_hash, router, pairs, [one.route for one in found]),
        "classifiers": [
            part(target.name, target.model_hash, classifier, pairs, [one.answers[number] for one in found])
            for number, (target, classifier) in enumerate(zip(targets, classifiers, strict=True))
        ],
    }
    content = format_json(document)
    write_whole(options.out, gzip.compress(content, mtime=0) if options.out.suffix == ".gz" else content)


def part(
    name: str,
    model_hash: str,
    classifier: SmoothedClassifier,
    pairs: Sequence[tuple[int, int]],
    certificates: Sequence[Certificate | None],
) -> dict[str, Any]:
    """The certificates of one network as rows of a record; there is none where the network was not needed."""
    rows = [certificate_row(*pair, one) for pair, one in zip(pairs, certificates, strict=True) if one is not None]
    about = {"sigma": classifier.sigma, "num_classes": classifier.num_classes}
    return {"name": name, "model_hash": model_hash, **about, "rows": rows}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for command in (routes, certify):
        one = commands.add_parser(command.__name__, help=command.__doc__.splitlines()[0])
        one.set_defaults(command=command)
        one.add_argument("runs", type=Path, nargs="+", help="run folders of the classifiers, trained with noise")
        one.add_argument("--out", type=Path, required=True, help="file to write")
        one.add_argument("--root", type=Path, help="folder of the data sets")
        one.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
        one.add_argument("--limit", type=int, help="images at most")
        if command is routes:
            one.add_argument("--draws", type=int, default=30, help="noise samples per image")
        else:
            one.add_argument("--router", type=Path, required=True, help="run folder of the router")
            one.add_argument("--stride", type=int, default=1, help="take every stride-th test image")
            one.add_argument("--split", default="test", help="validation: the images that the runs held out, to choose")
            one.add_argument("--n", type=int, default=100_000, help="noise samples per image and network, at most")
            one.add_argument("--alpha", type=float, default=1e-3, help="probability that a certificate is false")
            one.add_argument("--seed", type=int, default=0, help="random seed")
    options = parser.parse_args()
    options.command(options)


if __name__ == "__main__":
    main()
