"""Input-dependent noise: a smoothed router decides which of several smoothed classifiers answers.

    rhobust sweep reproduction/routed.toml --out runs/routed
    python examples/routed.py routes runs/routed/runs/* --out routes.npz
    rhobust train method:nal --method.sigma 0.5 --method.gamma 0.5 --data routes.npz --model cnn --out runs/router
    python examples/routed.py certify runs/routed/runs/* --router runs/router --out routed.json

`routes` labels training images by the classifier with the largest radius there, which makes a data set for the router:
any training method will do. `certify` certifies test images under the routed classifier, and under each classifier
alone. Give the run folders in the same order both times.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import rhobust
from rhobust import RoutedClassifier, SmoothedClassifier
from rhobust.bounds import certified_radius
from rhobust.certificates import Certificate, Smoothing, count_votes
from rhobust.data import Dataset
from rhobust.evaluation.certify import certificate_row
from rhobust.files import write_json
from rhobust.training import open_run
from rhobust.training.loop import split_validation

RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5)


def smoothed(target: rhobust.Target) -> SmoothedClassifier:
    """The smoothed classifier of a run, in evaluation mode."""
    if target.sigma is None:
        raise SystemExit(f"{target.name} must be trained with noise")
    return SmoothedClassifier(target.model.eval(), target.sigma, target.data.num_classes)


def fitted(folder: Path, root: Path | None) -> Dataset:
    """The images that a run was trained on, without those that it held out."""
    config = open_run(folder).config
    return split_validation(rhobust.load(config.data, "train", root=root), config)[0]


def routes(options: argparse.Namespace) -> None:
    """Write images and, as their labels, the place of the run with the largest radius; none where all runs err.

    The radius is that of the share of votes for the right class, plus half a vote of each kind: an estimate, which
    needs no guarantee, since the router is certified as it comes out.
    """
    estimates = []
    for folder in options.runs:
        target = rhobust.Target.from_run(folder, device=options.device, root=options.root)
        _, data = fitted(folder, options.root).take(options.limit)
        classifier = smoothed(target)
        smoothing = Smoothing(classifier.sigma, classifier.num_classes)
        images = data.images.to(target.device)
        votes = count_votes(
            target.model, images, smoothing, indices=range(len(data)), draws=options.draws, purpose="routes"
        )
        right = votes.cpu().gather(1, data.labels[:, None])[:, 0].numpy()
        estimates.append(certified_radius((right + 0.5) / (options.draws + 1), classifier.sigma))
        print(f"{target.name}: {np.mean(right > options.draws / 2):.3f} right", flush=True)
    radius = np.stack(estimates)
    known = radius.max(axis=0) > 0
    labels = radius.argmax(axis=0)
    print("routes:", *(f"{np.mean(labels[known] == number):.3f}" for number in range(len(radius))))
    np.savez_compressed(options.out, x=data.images.numpy()[known], y=labels[known])


def certify(options: argparse.Namespace) -> None:
    """Certify images under the routed classifier, and under each classifier alone at the same alpha."""
    where: dict[str, Any] = {"device": options.device, "root": options.root}
    where["split"] = "validation" if options.held_out else "test"
    targets = [rhobust.Target.from_run(run, **where) for run in options.runs]
    examples, test = targets[0].data.take(options.limit, options.stride)
    classifiers = [smoothed(target) for target in targets]
    run = open_run(options.router)
    router = SmoothedClassifier(run.load_model(targets[0].device).eval(), run.config.sigma or 0.0, len(classifiers))
    images, labels = test.images.to(targets[0].device), test.labels.tolist()
    ask: dict[str, Any] = {"radii": RADII, "n": options.n, "alpha": options.alpha, "seed": options.seed}
    found = RoutedClassifier(router, classifiers).certify(images, **ask)
    document = {
        "data": test.name,
        "held_out": options.held_out,
        "examples": [int(index) for index in examples],
        "labels": labels,
        **ask,
        "networks": [
            {"name": target.name, "model_hash": target.model_hash, "sigma": one.sigma}
            for target, one in zip(targets, classifiers, strict=True)
        ]
        + [{"name": run.config.run_id, "model_hash": run.model_hash, "sigma": router.sigma}],
        "routed": [{"prediction": one.prediction, "radius": one.radius, "draws": one.draws} for one in found],
        "router": rows(labels, [one.route for one in found]),
        "answers": [rows(labels, [one.answers[place] for one in found]) for place in range(len(classifiers))],
        "alone": [],
    }
    show("routed", labels, found)
    for target, classifier in zip(targets, classifiers, strict=True):
        alone = classifier.certify(images, **ask)
        show(target.name, labels, alone)
        document["alone"].append(rows(labels, alone))
    write_json(options.out, document)


def rows(labels: Sequence[int], certificates: Sequence[Certificate | None]) -> list[dict[str, Any] | None]:
    """Certificates as rows of a record, by their place among the images; None where none was needed."""
    return [
        None if one is None else certificate_row(place, label, one)
        for place, (label, one) in enumerate(zip(labels, certificates, strict=True))
    ]


def show(name: str, labels: Sequence[int], certificates: Sequence[Any]) -> None:
    """Print the certified accuracy at each radius."""
    pairs = list(zip(certificates, labels, strict=True))
    shares = [np.mean([one.prediction == label and one.radius >= radius for one, label in pairs]) for radius in RADII]
    print(f"{name}: " + "  ".join(f"{radius:g} {share:.3f}" for radius, share in zip(RADII, shares, strict=True)))


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
            one.add_argument("--draws", type=int, default=100, help="noise samples per image")
        else:
            one.add_argument("--router", type=Path, required=True, help="run folder of the router")
            one.add_argument("--stride", type=int, default=1, help="take every stride-th test image")
            one.add_argument("--held-out", action="store_true", help="training images that were held out, to choose")
            one.add_argument("--n", type=int, default=100_000, help="noise samples per image and network, at most")
            one.add_argument("--alpha", type=float, default=1e-3, help="probability that a certificate is false")
            one.add_argument("--seed", type=int, default=0, help="random seed")
    options = parser.parse_args()
    options.command(options)


if __name__ == "__main__":
    main()
