"""What JPEG, blur and gamma correction can cost a smoothed classifier, at most.

    python examples/measure_shift.py quickstart/nal --draws 50

Each change is made to the run's test images with Pillow. The table shows how far it moves them (eps, the root mean
square distance, and its upper bound), the accuracy that is certified after it, and the accuracy that was measured.
The certificate holds for every change that moves images no further; the measurement is about this change only.
"""

import argparse
import io
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter

import rhobust
from rhobust.certificates import MeasuredCertificate, MeasuredShift, Smoothing, accuracy_under_noise, count_errors
from rhobust.data import pair_distances
from rhobust.files import write_json
from rhobust.formatting import format_number
from rhobust.proofs.claim import NoiseSamples

Change = Callable[[Image.Image], Image.Image]


def jpeg(quality: int) -> Change:
    """Write as JPEG and read again."""

    def change(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return change


def blur(radius: float) -> Change:
    """Blur with a Gaussian of this many pixels."""
    return lambda image: image.filter(ImageFilter.GaussianBlur(radius))


def gamma(power: float) -> Change:
    """Raise every value in [0, 1] to a power."""
    table = [round(255 * (value / 255) ** power) for value in range(256)]
    return lambda image: image.point(table * len(image.getbands()))


CHANGES: dict[str, Change] = {
    "none": lambda image: image,
    "JPEG, quality 95": jpeg(95),
    "JPEG, quality 75": jpeg(75),
    "JPEG, quality 50": jpeg(50),
    "JPEG, quality 25": jpeg(25),
    "blur, radius 0.3": blur(0.3),
    "blur, radius 0.5": blur(0.5),
    "gamma 0.9": gamma(0.9),
    "gamma 1.2": gamma(1.2),
}


def changed(images: torch.Tensor, change: Change) -> torch.Tensor:
    """8-bit images, (n, channels, height, width), after a change made by Pillow."""
    grey = images.shape[1] == 1
    after = []
    for pixels in images.permute(0, 2, 3, 1).numpy():
        moved = np.asarray(change(Image.fromarray(pixels[:, :, 0] if grey else pixels)))
        after.append(moved[None] if grey else moved.transpose(2, 0, 1))
    return torch.from_numpy(np.stack(after))


def main() -> None:
    """Print one line a change."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run folder, trained with noise")
    parser.add_argument("--trust", action="store_true", help="run the code and read the files that the folder names")
    parser.add_argument("--root", type=Path, help="where the data sets lie")
    parser.add_argument("--limit", type=int, help="test images at most")
    parser.add_argument("--draws", type=int, default=20, help="noise draws an image")
    parser.add_argument("--alpha", type=float, default=1e-3, help="probability that a line's statement is false")
    parser.add_argument("--out", type=Path, help="a JSON file for the table's numbers")
    options = parser.parse_args()

    target = rhobust.Target.from_run(options.run, device="cpu", root=options.root, trust=options.trust)
    model, sigma = target.model, target.sigma
    if sigma is None:
        parser.error(f"{options.run} must be trained with noise")
    _, test = target.data.take(options.limit)

    def wrong_votes(images: torch.Tensor) -> np.ndarray:
        smoothing = Smoothing.for_images(images, sigma, test.num_classes)
        return count_errors(model, images, test.labels, smoothing, indices=range(len(test)), draws=options.draws)

    errors = wrong_votes(test.images)
    common = {"dimension": test.images[0].numel(), "alpha": options.alpha}
    rows = []
    print(f"{'change':<18}{'eps':>8}{'at most':>9}{'certified':>11}{'measured':>10}   95% interval")
    for name, change in CHANGES.items():
        after = changed(test.images, change)
        distances = pair_distances(test.images, after)
        shift = MeasuredShift.from_distances(distances, **common)
        samples = NoiseSamples(sigma=sigma, noise="grid", draws=options.draws, **common)
        certificate = MeasuredCertificate.from_counts(errors, distances, samples)
        share = accuracy_under_noise(errors if name == "none" else wrong_votes(after), options.draws)
        rows.append({"change": name, "shift": asdict(shift), "certificate": asdict(certificate), "measured": share})
        print(line(rows[-1]), flush=True)
    print(f"{len(test)} images, {options.draws} draws, sigma {sigma:g}, alpha {options.alpha:g} a line")
    if options.out is not None:
        write_json(options.out, {"run": target.name, "model_hash": target.model_hash, "rows": rows})


def line(row: dict[str, Any]) -> str:
    """A row as it is printed: bounds rounded outward, what was measured to nearest."""
    shift, share = row["shift"], row["measured"]
    return (
        f"{row['change']:<18}{format_number(shift['eps'], 3, 'up'):>8}{format_number(shift['eps_capped'], 3, 'up'):>9}"
        f"{format_number(row['certificate']['certified_accuracy'], 3, 'down'):>11}"
        f"{format_number(share['accuracy'], 3, 'nearest'):>10}"
        f"   {format_number(share['low'], 3, 'down')} to {format_number(share['high'], 3, 'up')}"
    )


if __name__ == "__main__":
    main()
