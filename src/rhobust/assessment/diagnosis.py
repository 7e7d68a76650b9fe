"""Why a number is near zero: the known causes are tried one by one, and the one that fits is named with its remedy.

Nothing here is a result. Causes are tried on labelled images, and a remedy is a command to run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import norm
from torch import Tensor

from rhobust.certificates import Smoothing, count_votes, noise_kind
from rhobust.data import Dataset, to_unit
from rhobust.evaluation.target import Target
from rhobust.formatting import format_distance, format_percent
from rhobust.models.inference import frozen
from rhobust.models.networks import Normalised
from rhobust.noise import stream
from rhobust.records import Record, Row
from rhobust.stats import share

TRIED = 400
"""Images on which causes are tried."""
LOOKED = 100
"""Images of a first look, which comes with every certificate."""
SUSPECT = 0.9
"""Accuracy of the base network below which causes are tried; one is named only if its remedy gains `FITS`."""
FITS = 0.15
"""How much a remedy, or noise, must change the accuracy, beyond the 95% intervals, to be named."""
LEVEL = 0.01
"""Accuracies that differ by less are level: which of two similar normalisations fits better is chance."""
ALIKE = 0.95
"""Share of images with one and the same answer from which on the network is said to ignore them."""
DRAWS = 10
"""Noise samples per image at a smaller noise level."""

NORMALISATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "ImageNet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CIFAR-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "[-1, 1]": ((0.5,), (0.5,)),
    "MNIST": ((0.1307,), (0.3081,)),
}
"""Normalisations that networks are usually trained with, mean and deviation per channel."""


@dataclass(frozen=True)
class Finding:
    """One thing that explains the numbers."""

    cause: str
    """normalisation, value range, channel order, class order, weights, noise, samples, or nothing."""
    text: str
    """What was found, with the numbers that show it."""
    remedy: str = ""
    """What to do, a command where there is one."""

    def __str__(self) -> str:
        return f"{self.text} {self.remedy}".strip()


def diagnose_accuracy(
    target: Target,
    *,
    accuracy: float,
    under_noise: float | None,
    measured_on: Dataset | None = None,
    weights_named: bool = True,
) -> list[Finding]:
    """What explains a low accuracy of the base network, or a loss of it under noise.

    Args:
        target: The network and its data.
        accuracy: Accuracy of the base network.
        under_noise: Accuracy of one prediction under the target's noise; None where there is none.
        measured_on: The images of both; default: all of the target's.
        weights_named: Whether somebody said where the weights come from.
    """
    data, own = target.data.select(_spread(len(target.data), TRIED)), measured_on or target.data
    found: list[Finding] = []
    # A network that was trained under noise alone may be right only under noise: causes are tried where it is right.
    needs_noise = under_noise is not None and _gains(accuracy, under_noise, len(own))
    if accuracy < SUSPECT:
        # A run on the data of its training gets its images as in training.
        if not target.published_split:
            found = _of_the_base(target, data, target.smoothing_sigma() if needs_noise else 0.0)
        if not found and not needs_noise:
            found = _near_chance(target, data, weights_named)
    if not found and needs_noise and under_noise is not None:
        found = [_needs_noise(target.smoothing_sigma(), accuracy, under_noise)]
    trained_for_it = target.trained_sigma is not None and target.trained_sigma == target.sigma
    if not trained_for_it and under_noise is not None and _gains(under_noise, accuracy, len(own)):
        some = own.select(_spread(len(own), TRIED))
        found = found or [_not_trained_for_noise(target, some, accuracy, under_noise)]
    return found


def first_look(target: Target, examples: Sequence[int], *, weights_named: bool = True) -> Row:
    """Base accuracy and accuracy under noise on some of the certified examples, and what explains them.

    Causes are tried on test images that were not certified too: twenty images are too few to find a normalisation.
    """
    chosen = [examples[place] for place in _spread(len(examples), LOOKED)]
    some = replace(target, data=target.data.select(chosen))
    accuracy = float((_logits(some, some.data).argmax(1) == some.data.labels.numpy()).mean())
    under_noise = _accuracy_under(some, some.data, some.smoothing_sigma())
    findings = diagnose_accuracy(
        target, accuracy=accuracy, under_noise=under_noise, measured_on=some.data, weights_named=weights_named
    )
    return {
        "base_accuracy": accuracy,
        "accuracy_under_noise": under_noise,
        "n": len(chosen),
        "findings": [vars(finding) for finding in findings],
    }


def _spread(count: int, wanted: int) -> list[int]:
    return np.linspace(0, count - 1, min(count, wanted)).round().astype(int).tolist()


def _of_the_base(target: Target, data: Dataset, noise: float) -> list[Finding]:
    """The change of the inputs, or of the classes, that makes the network right; none if no change does."""
    labels = data.labels.numpy()
    usual = _logits(target, data, noise=noise)
    before = float((usual.argmax(1) == labels).mean())
    found: list[tuple[float, Finding]] = []
    for finding, change in _changes(target, data):
        try:
            after = float((_logits(target, data, change, noise).argmax(1) == labels).mean())
        except ValueError:
            continue
        if _gains(before, after, len(labels)) and _leaves_chance(after, len(labels), data.num_classes):
            found.append((after, finding))
    best = None if not found else _best_change(found, before)
    if len(labels) < 2:  # an order of the classes is chosen on some images and tested on others
        return [] if best is None else [best[1]]
    matched, order = matched_accuracy(usual, labels, data.num_classes)
    half = len(labels) // 2
    fits = _gains(before, matched, half) and _leaves_chance(matched, half, data.num_classes)
    if fits and (best is None or matched > best[0]):
        moved = [(place, to) for place, to in enumerate(order) if place != to][:4]
        pairs = ", ".join(f"output {place} is right for class {to} ({data.classes[to]})" for place, to in moved)
        return [
            Finding(
                "class order",
                f"The classes are in another order than the network's outputs: accuracy {_shown(before)} as given,"
                f" {_shown(matched)} after renaming ({pairs}).",
                "Number the labels as in training: class folders are sorted by name.",
            )
        ]
    return [] if best is None else [best[1]]


def _best_change(found: Sequence[tuple[float, Finding]], before: float) -> tuple[float, Finding]:
    """The change that gains most, the earlier of two that are level, and others of its cause that do almost as much."""
    after, best = found[0]
    for accuracy, finding in found[1:]:
        if accuracy > after + LEVEL:
            after, best = accuracy, finding
    text = f"{best.text}: accuracy {_shown(before)} as given, {_shown(after)} with it."
    near = [
        f"{_shown(accuracy)} with {finding.text[finding.text.index('(') + 1 : -1]}"
        for accuracy, finding in found
        if finding is not best and finding.cause == best.cause == "normalisation" and accuracy > after - 5 * LEVEL
        if finding.text.endswith(")")
    ]
    others = f" ({', '.join(near)}: take that of the training.)" if near else ""
    return after, Finding(best.cause, f"{text}{others}", best.remedy)


def _changes(target: Target, data: Dataset) -> list[tuple[Finding, Callable[[Tensor], Tensor]]]:
    """Changes of the inputs that are often forgotten."""
    channels = data.shape[0]
    changes: list[tuple[Finding, Callable[[Tensor], Tensor]]] = []
    flat = to_unit(data.images).transpose(0, 1).flatten(1)
    own = tuple(flat.mean(1).tolist()), tuple(flat.std(1).clamp_min(1e-3).tolist())
    # What --mean and --std give takes the place of a normalisation that is there, so its effect is undone first.
    given = target.model.constants() if isinstance(target.model, Normalised) else None
    mean, std = given or ([0.0], [1.0])
    wide = max(*mean, *std) > 1  # those of a normalisation for [0, 1] are smaller
    if given is not None:
        finding = Finding(
            "normalisation",
            "The network was trained without this normalisation, or normalises itself",
            f"Leave mean and std out, or pass {_options([0.0], [1.0], channels)} for a hub's network.",
        )
        changes.append((finding, _replaced(mean, std, [0.0], [1.0])))
    for name, usual in {**NORMALISATIONS, "the data's own": own}.items():
        if wide or len(usual[0]) not in (1, channels):
            continue
        finding = Finding(
            "normalisation",
            f"The network was trained on {'normalised images' if given is None else 'images normalised otherwise'}"
            f" ({name})",
            f"Pass mean and std: {_options(*usual, channels)}.",
        )
        changes.append((finding, _replaced(mean, std, *usual)))
    finding = Finding(
        "value range",
        f"{'Mean and std are those of' if wide else 'The network was trained on'} values from 0 to 255",
        f"Pass {_options([value / 255 for value in mean], [value / 255 for value in std], channels)}.",
    )
    changes.append((finding, lambda x: x * 255))
    if channels == 3:
        finding = Finding("channel order", "The network was trained on BGR images", "Pass images in its channel order.")
        changes.append((finding, lambda x: x.flip(1)))
    if channels == 1:
        finding = Finding("value range", "The network was trained on inverted images", "Pass inverted images, 255 - x.")
        changes.append((finding, lambda x: 1 - x))
    return changes


def _column(values: Sequence[float], x: Tensor) -> Tensor:
    return torch.tensor(values, dtype=x.dtype, device=x.device).view(1, -1, 1, 1)


def _replaced(
    mean: Sequence[float], std: Sequence[float], by_mean: Sequence[float], by_std: Sequence[float]
) -> Callable[[Tensor], Tensor]:
    """The change of the inputs that puts one normalisation into the place of another one."""
    return lambda x: (x - _column(by_mean, x)) / _column(by_std, x) * _column(std, x) + _column(mean, x)


def _options(mean: Sequence[float], std: Sequence[float], channels: int) -> str:
    """A normalisation as the options that give it, with a number for each channel."""
    numbers = [
        " ".join(f"{value:.6g}" for value in (tuple(values) * channels if len(values) == 1 else values))
        for values in (mean, std)
    ]
    return f"--mean {numbers[0]} --std {numbers[1]}"


def matched_accuracy(logits: np.ndarray, labels: np.ndarray, classes: int) -> tuple[float, list[int]]:
    """The accuracy after the best renaming of the outputs, and the renaming: output to class.

    The renaming is chosen on every second image of each class and tested on the others, so that chance is not taken for
    order.
    """
    predicted = logits.argmax(1)
    by_class = np.argsort(labels, kind="stable")
    chosen, tested = by_class[::2], by_class[1::2]
    counts = np.zeros((max(classes, logits.shape[1]),) * 2)
    np.add.at(counts, (predicted[chosen], labels[chosen]), 1)
    # Of equally good renamings the one that moves least.
    _, order = linear_sum_assignment(-counts - 1e-6 * np.eye(len(counts)))
    return float((order[predicted[tested]] == labels[tested]).mean()), order.tolist()


def _near_chance(target: Target, data: Dataset, weights_named: bool) -> list[Finding]:
    """No known change helps: the answers themselves say something, if they are near chance."""
    answered, chance = _logits(target, data).argmax(1), 1 / data.num_classes
    right = int((answered == data.labels.numpy()).sum())
    if share(right, len(data)).low >= 2 * chance:
        return []
    accuracy, answers = right / len(data), np.bincount(answered, minlength=data.num_classes)
    text = f"The base network is right on {_shown(accuracy)} of the images, chance is {_shown(chance)}"
    if answers.max() / len(data) >= ALIKE:
        text += f", and it answers class {int(answers.argmax())} for {_shown(answers.max() / len(data))} of them"
    cause = f"No usual normalisation, channel order or class order explains it on {len(data)} images"
    remedy = (
        "Look at the weights: are they this network's, and trained?"
        if weights_named
        else "No weights were given: pass --weights FILE, unless the factory loads them itself."
    )
    return [Finding("weights", f"{text}. {cause}.", remedy)]


def _not_trained_for_noise(target: Target, data: Dataset, accuracy: float, under_noise: float) -> Finding:
    sigma = target.smoothing_sigma()
    smaller = {part: _accuracy_under(target, data, sigma * part) for part in (0.5, 0.25)}
    others = ", ".join(f"{_shown(value)} under {sigma * part:g}" for part, value in smaller.items())
    trained = "was not" if target.trained_sigma is not None else "seems not to be"
    return Finding(
        "noise",
        f"The base network is right on {_shown(accuracy)} of the images and under noise {sigma:g} on"
        f" {_shown(under_noise)} ({others}): it {trained} trained for this noise, so little can be certified.",
        f"Fine-tune it under noise: rhobust train method:nal --method.sigma {sigma:g} --init MODEL, or take a smaller"
        " --sigma.",
    )


def _needs_noise(sigma: float, accuracy: float, under_noise: float) -> Finding:
    return Finding(
        "noise",
        f"The base network is right on {_shown(accuracy)} of the images and under noise {sigma:g} on"
        f" {_shown(under_noise)}: it was trained under noise alone. Its numbers without noise (clean, PGD) do not speak"
        " about the smoothed classifier, whose numbers are valid.",
        "Deploy the smoothed classifier: rhobust predict.",
    )


def _accuracy_under(target: Target, data: Dataset, sigma: float) -> float:
    smoothing = Smoothing(sigma, data.num_classes, noise=noise_kind(data.images))
    images = data.images.to(target.device)
    votes = count_votes(
        target.model, images, smoothing, indices=range(len(data)), draws=DRAWS, purpose="diagnosis"
    ).cpu()
    return float(votes.gather(1, data.labels[:, None]).sum()) / (DRAWS * len(data))


def _logits(
    target: Target, data: Dataset, change: Callable[[Tensor], Tensor] = lambda x: x, noise: float = 0.0
) -> np.ndarray:
    """The network's logits for changed inputs, in small batches, with the same noise for every change."""
    rng = stream(0, "diagnosis")
    parts = []
    with torch.no_grad(), frozen(target.model) as network:
        for at in range(0, len(data), 100):
            x = to_unit(data.images[at : at + 100])
            x = x + noise * torch.randn(x.shape, generator=rng, dtype=torch.float32)
            parts.append(network(change(x.to(target.device))).float().cpu())
    return torch.cat(parts).nan_to_num(neginf=-1e30, posinf=1e30).numpy()


def _gains(before: float, after: float, n: int) -> bool:
    """Whether a change gains more than `FITS` and more than its images explain."""
    if after - before < FITS:
        return False
    return share(round(before * n), n).high < share(round(after * n), n).low


def _leaves_chance(accuracy: float, n: int, classes: int) -> bool:
    """Whether an accuracy is well above chance: what ends near it explains nothing."""
    chance = 1 / classes
    return share(round(accuracy * n), n).low > min(2 * chance, (1 + chance) / 2)


def _shown(value: float) -> str:
    return f"{format_percent(value, 'nearest')}%"


def diagnose_certificates(records: Sequence[Record]) -> list[Finding]:
    """A line where the number of noise samples, not the network, ends the certified radius."""
    for record in records:
        if record.kind != "certify":
            continue
        alpha, n = record.settings["alpha"], record.settings["n"]
        largest = record.settings["sigma"] * float(norm.ppf(alpha ** (1 / n)))
        radii = [row["radius"] for row in record.rows if row.get("prediction") == row["label"]]
        if radii and np.mean(np.array(radii) > 0.9 * largest) > 0.5:
            return [
                Finding(
                    "samples",
                    f"Half of the certified radii are near {format_distance(largest)}, the largest that {n:,} noise"
                    " samples can prove.",
                    "More samples prove more: --effort standard or full.",
                )
            ]
    return []
