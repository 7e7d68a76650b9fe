"""Distillation: a trained network whose predictions become part of the labels."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rhobust.attacks.gradient import smoothed_logits
from rhobust.data import Dataset
from rhobust.models.folding import FastCopy
from rhobust.noise import Noise
from rhobust.training.run import open_run

DRAWS = 2
"""Noise samples per image. Cross-entropy is linear in the label, so few samples add variance but no bias."""


@dataclass(frozen=True)
class Teacher:
    """A trained network that says how sure one can be of each image's class.

    An image that is hard to classify even without an attack gets a soft label; an easy one keeps its own.
    """

    network: nn.Module
    """From inputs in [0, 1] to logits, in evaluation mode."""
    sigma: float | None
    """Noise under which it predicts; None: none."""

    @classmethod
    def load(cls, folder: str, data: Dataset, sigma: float | None, device: torch.device, *, fast: bool) -> "Teacher":
        """The network of a finished run.

        Args:
            folder: The run folder.
            data: The images that it is to label.
            sigma: Noise of its predictions.
            device: Where it predicts.
            fast: Predict in bf16 on a GPU.
        """
        run = open_run(folder)
        if (run.shape, run.classes) != (data.shape, data.classes):
            raise ValueError(
                f"teacher must be trained on images of shape {data.shape} and the same {data.num_classes} classes, got"
                f" {folder} for {run.shape} and {len(run.classes)} classes"
            )
        network = run.load_model(device).requires_grad_(False)
        return cls(FastCopy(network) if fast and device.type == "cuda" else network, sigma)

    @torch.no_grad()
    def __call__(self, x: Tensor, rng: Noise) -> Tensor:
        """The mean softmax prediction under noise, `(n, classes)`."""
        if self.sigma is None:
            return self.network(x).softmax(1)
        return smoothed_logits(self.network, x, sigma=self.sigma, draws=DRAWS, rng=rng).softmax(1)
