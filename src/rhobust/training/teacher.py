"""Distillation: trained networks whose predictions become part of the labels."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rhobust.attacks.gradient import smoothed_logits
from rhobust.data import Dataset
from rhobust.formatting import printable
from rhobust.models.folding import FastCopy
from rhobust.noise import Noise
from rhobust.training.run import open_run

DRAWS = 2
"""Noise samples per image. Cross-entropy is linear in the label, so few samples add variance but no bias."""


@dataclass(frozen=True)
class Teacher:
    """Trained networks that say how sure one can be of each image's class.

    An image that is hard to classify even without an attack gets a soft label; an easy one keeps its own.
    """

    networks: tuple[nn.Module, ...]
    """From inputs in [0, 1] to logits, in evaluation mode."""
    sigma: float | None
    """Noise under which they predict; None: none."""
    hashes: tuple[str, ...] = ()
    """Fingerprints of their weights."""
    data: tuple[str | None, ...] = ()
    """The data that each was trained on; None where there may have been more (`Run.only_data`)."""

    @classmethod
    def load(
        cls, folders: tuple[str, ...], data: Dataset, sigma: float | None, device: torch.device, *, fast: bool
    ) -> "Teacher":
        """The networks of finished runs.

        Args:
            folders: The run folders.
            data: The images that they are to label.
            sigma: Noise of their predictions.
            device: Where they predict.
            fast: Predict in bf16 on a GPU.
        """
        networks, hashes, sources = list[nn.Module](), list[str](), list[str | None]()
        for folder in folders:
            run = open_run(folder)
            if (run.shape, run.classes) != (data.shape, data.classes):
                raise ValueError(
                    f"teacher must be trained on images of shape {data.shape} and the same {data.num_classes} classes"
                    f" in the same order ({_few(data.classes)}), got {folder} for {run.shape} and {len(run.classes)}"
                    f" classes ({_few(run.classes)})"
                )
            network = run.load_model(device).requires_grad_(False)
            networks.append(FastCopy(network) if fast and device.type == "cuda" else network)
            hashes.append(run.model_hash)
            sources.append(run.only_data)
        return cls(tuple(networks), sigma, tuple(hashes), tuple(sources))

    @torch.no_grad()
    def __call__(self, x: Tensor, rng: Noise) -> Tensor:
        """The mean softmax prediction over the networks and their noise samples, `(n, classes)`."""
        return torch.stack([self._predict(network, x, rng) for network in self.networks]).mean(0)

    def _predict(self, network: nn.Module, x: Tensor, rng: Noise) -> Tensor:
        if self.sigma is None:
            return network(x).softmax(1)
        return smoothed_logits(network, x, sigma=self.sigma, draws=DRAWS, rng=rng).softmax(1)


def _few(classes: tuple[str, ...]) -> str:
    """The first names of some classes, as text: a run may come from others."""
    return printable(", ".join([*classes[:3], *(["..."] if len(classes) > 3 else [])]))
