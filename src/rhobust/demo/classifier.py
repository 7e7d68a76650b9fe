"""What the demo answers about one image: votes and a certified radius while samples come in, an attack, corruptions."""

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from rhobust.attacks import EOT
from rhobust.bounds import certified_radius, clopper_pearson
from rhobust.certificates import (
    Repeats,
    Smoothing,
    VoteCounter,
    certification_plan,
    check_batch_independence,
    native_dtype,
    predict_inputs,
)
from rhobust.certificates.schedule import AdaptiveSchedule, run_schedule, vote_counts
from rhobust.data import CORRUPTIONS, corrupt, pair_distances, to_unit
from rhobust.data.sizing import AS_STORED, Sizing
from rhobust.models.inference import device_of
from rhobust.noise import ExampleNoise
from rhobust.proofs.plan import Plan
from rhobust.proofs.sequential import Sequential
from rhobust.settings import check_count, check_level
from rhobust.training import open_run

STEPS = 50
"""Radii that are tested per sigma: the certified radius grows in steps of sigma / 50."""


@dataclass(frozen=True)
class LiveCertificate:
    """What is known of one image after some noise samples.

    Guarantee: with probability at least 1 - alpha over the noise, every radius that is shown while samples come in is a
    certified one: the test over radii is valid at any time (`rhobust.bounds.sequential.RadiusTest`).
    """

    votes: tuple[int, ...]
    """Votes of the samples so far, one number per class."""
    samples: int
    """Noise samples so far, those that selected the class not counted."""
    limit: int
    """The most noise samples that are taken."""
    selected: int | None
    """The class whose probability is tested; None while the first samples select it."""
    proved: bool
    """Whether the class is proved to be the smoothed classifier's."""
    radius: float
    """Certified L2 radius, unrounded; 0.0 if nothing is proved, or nothing beyond the image itself."""
    done: bool
    """Whether sampling has stopped: no larger radius is within reach of the samples."""

    @property
    def prediction(self) -> int | None:
        """The proved class; None while there is none, and at the end if the classifier abstains."""
        return self.selected if self.proved else None


@dataclass(frozen=True)
class PredictedImage:
    """A changed image with the smoothed classifier's prediction."""

    name: str
    """What changed it."""
    image: Tensor
    """uint8, (channels, height, width)."""
    distance: float
    """L2 distance from the image that was changed."""
    prediction: int | None
    """Class by majority vote; None if the vote is too close. Wrong with probability at most alpha."""
    votes: tuple[tuple[int, int], ...]
    """The two classes with most votes, and their votes."""


@dataclass(frozen=True, eq=False)
class DemoClassifier:
    """A smoothed classifier as the demo shows it.

    The noise of an image is named by the seed and by the image's own pixels, so each image has fresh noise, however it
    was chosen, and the same image always has the same answer: nobody can try again until a better one comes.
    """

    model: nn.Module
    """From inputs in [0, 1] to logits."""
    sigma: float
    """Standard deviation of the smoothing noise."""
    classes: tuple[str, ...]
    """Names of the classes."""
    shape: tuple[int, int, int]
    """Channels, height and width of the network's images."""
    name: str = ""
    """How the page calls the network."""
    examples: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    """A few images to try, uint8, (n, channels, height, width)."""
    sizing: Sizing = AS_STORED
    """How images come to the network's size; default: the largest central part of its ratio is resized."""
    warnings: tuple[str, ...] = ()
    """Reasons not to trust the answers."""
    n: int = 10_000
    """Noise samples per certificate, at most."""
    alpha: float = 1e-3
    """Probability that an answer is false."""
    seed: int = field(default_factory=lambda: secrets.randbits(62))
    """Random seed; default: from the operating system, so that no image can be made with knowledge of it."""

    def __post_init__(self) -> None:
        check_level(self.alpha)
        check_count("n", self.n)
        _ = self.smoothing  # checks the noise and the classes
        if len(self.shape) != 3 or self.shape[0] not in (1, 3):
            raise ValueError(f"shape must be 1 or 3 channels, height and width, got {self.shape}")

    @classmethod
    def from_run(cls, folder: Path | str, *, device: str = "auto", **settings: Any) -> Self:
        """The classifier of a run folder, or of a folder that `rhobust publish` wrote; no code that it names is run.

        Args:
            folder: The folder.
            device: Where to load the network.
            settings: Other fields than those of the run; `sigma` is needed where it was trained without noise.
        """
        run = open_run(folder)
        known: dict[str, Any] = {"sigma": run.config.sigma, "sizing": run.config.sizing, **settings}
        if known["sigma"] is None:
            raise ValueError(f"{folder} has no training noise on record: pass sigma")
        return cls(run.load_model(device), classes=run.classes, shape=run.shape, **known)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return device_of(self.model, torch.device("cpu"))

    @property
    def smoothing(self) -> Smoothing:
        """The noise and the arithmetic: exact integer noise, as images here have 8 bits."""
        return Smoothing(self.sigma, len(self.classes), seed=self.seed, dtype=native_dtype(self.device))

    @property
    def procedure(self) -> Sequential:
        """The sequential test: radii in steps of sigma / 50, up to the largest that n samples can prove."""
        largest = certified_radius(clopper_pearson(self.n, self.n, self.alpha, "lower"), self.sigma)
        radii = np.arange(1 + int(STEPS * largest / self.sigma)) * (self.sigma / STEPS)
        return Sequential(tuple(radii.tolist()), n0=min(100, self.n), n=self.n, stopping="e-value")

    def check(self) -> None:
        """Raise if the network is no function of one input; called once before the page opens."""
        image = self.examples[:1] if len(self.examples) else torch.full((1, *self.shape), 127, dtype=torch.uint8)
        check_batch_independence(VoteCounter(self.model, image.to(self.device), self.smoothing, Repeats()))

    def certify(self, image: Tensor) -> Iterator[LiveCertificate]:
        """The certificate of an image, again after each batch of noise samples.

        Args:
            image: uint8, (channels, height, width), of the network's shape.
        """
        images = self._batch([image])
        plan = certification_plan(self.procedure, self.smoothing, dimension=image.numel(), alpha=self.alpha)
        schedule = AdaptiveSchedule([(0, image_key(image))], plan, self.procedure.n0)
        counter = VoteCounter(self.model, images, self.smoothing, Repeats())
        for _ in run_schedule(counter, schedule):
            yield self._live(schedule, plan)

    def _live(self, schedule: AdaptiveSchedule, plan: Plan) -> LiveCertificate:
        state = schedule.active[0]
        counting = state.purpose == "count"
        claims = plan.claims(vote_counts([state]), [state.evidence])
        votes = np.zeros(len(self.classes), np.int64) if state.votes is None else state.votes
        return LiveCertificate(
            votes=tuple(votes.tolist()),
            samples=state.known if counting else 0,
            limit=self.n,
            selected=state.chosen if counting else None,
            proved=bool(claims.proved[0]),
            radius=float(claims.radius[0]),
            done=state.done,
        )

    def attack(self, image: Tensor, label: int, radius: float, *, votes: int = 1000) -> PredictedImage:
        """The image after EOT-PGD on the smoothed classifier, an 8-bit image within the radius.

        Args:
            image: uint8, (channels, height, width).
            label: The class that the attack leads away from.
            radius: Largest L2 distance.
            votes: Noise samples of the prediction.
        """
        noise = ExampleNoise(self.seed, "demo:attack", [image_key(image)])
        labels = torch.tensor([label], device=self.device)
        moved = EOT()(self.model, to_unit(self._batch([image])), labels, eps=radius, sigma=self.sigma, rng=noise)
        changed = round_within(image, moved[0].detach().cpu(), radius)
        return self._predicted(["attack"], image, [changed], votes)[0]

    def corruptions(self, image: Tensor, severity: int, *, votes: int = 200) -> list[PredictedImage]:
        """The image under each of the built-in corruptions.

        Args:
            image: uint8, (channels, height, width).
            severity: 1 to 5.
            votes: Noise samples per prediction.
        """
        key = image_key(image)
        noises = {name: ExampleNoise(self.seed, f"corruption:{name}", [key]) for name in CORRUPTIONS}
        changed = [corrupt(image[None], name, severity, rng=noise)[0] for name, noise in noises.items()]
        return self._predicted(list(noises), image, changed, votes)

    def _predicted(
        self, names: Sequence[str], image: Tensor, changed: Sequence[Tensor], votes: int
    ) -> list[PredictedImage]:
        keys, images = [image_key(one) for one in changed], torch.stack(list(changed))
        distances = pair_distances(image[None].expand_as(images), images).tolist()
        found = predict_inputs(
            self.model, images.to(self.device), self.smoothing, indices=keys, n=votes, alpha=self.alpha
        )
        return [
            PredictedImage(name, one, distance, answer.prediction, answer.votes)
            for name, one, distance, answer in zip(names, changed, distances, found, strict=True)
        ]

    def _batch(self, images: Sequence[Tensor]) -> Tensor:
        for image in images:
            if image.dtype != torch.uint8 or tuple(image.shape) != self.shape:
                raise ValueError(f"image must be uint8 {self.shape}, got {image.dtype} {tuple(image.shape)}")
        return torch.stack(list(images)).to(self.device)


def image_key(image: Tensor) -> int:
    """The name of an image's noise: a hash of its shape and pixels.

    >>> image_key(torch.zeros(1, 2, 2, dtype=torch.uint8)) == image_key(torch.ones(1, 2, 2, dtype=torch.uint8))
    False
    """
    content = repr(tuple(image.shape)).encode() + image.cpu().contiguous().numpy().tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def round_within(image: Tensor, perturbed: Tensor, radius: float) -> Tensor:
    """An 8-bit image next to a perturbed one, not further than a radius from the original.

    Rounding to the nearest level may lengthen a perturbation. Where it does, numbers that were rounded away from the
    original are rounded towards it, those with the smallest loss first, until the length is within the radius.

    Args:
        image: The original, uint8.
        perturbed: The perturbed image in [0, 1], within the radius of the original.
        radius: Largest L2 distance.
    """
    offset = (perturbed.double() * 255 - image.double()).flatten()
    nearest, inward = offset.round(), offset.trunc()
    excess = nearest**2 - inward**2
    over = (nearest**2).sum() - (255 * radius) ** 2
    if over > 0:
        order = torch.argsort(torch.where(excess > 0, (offset - inward).abs(), torch.inf))
        enough = int((excess[order].cumsum(0) < over).sum()) + 1
        nearest[order[:enough]] = inward[order[:enough]]
    return (image.double().flatten() + nearest).clamp(0, 255).to(torch.uint8).view(image.shape)
