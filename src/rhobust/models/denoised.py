"""Denoised smoothing (Salman et al., 2020): a denoiser in front of a classifier that was trained without noise."""

import torch
from torch import Tensor, nn

from rhobust.foreign import ForeignError
from rhobust.models.inference import check_module
from rhobust.noise import stream_key
from rhobust.settings import check_count


class Denoised(nn.Module):
    """A denoiser in front of a classifier: logits classifier(denoiser(x)).

    Smoothed by noise, it is certified like any other network: every guarantee is about the composition. The classifier
    stays unchanged: its weights get no gradients, and it is always in evaluation mode.

    Args:
        denoiser: From noisy images to images of the same shape; `dncnn` builds one.
        classifier: Any network from inputs in [0, 1] to logits.
        clamp: Whether to clip denoised images to [0, 1], the range that the classifier was trained on.
    """

    def __init__(self, denoiser: nn.Module, classifier: nn.Module, *, clamp: bool = False) -> None:
        super().__init__()
        check_module(denoiser)
        check_module(classifier)
        self.denoiser, self.classifier, self.clamp = denoiser, classifier.requires_grad_(False), clamp
        self.classifier.eval()

    def train(self, mode: bool = True) -> "Denoised":
        """Set the mode of the denoiser; the classifier stays in evaluation mode."""
        super().train(mode)
        self.classifier.eval()
        return self

    def denoise(self, x: Tensor) -> Tensor:
        """Denoised images."""
        images = self.denoiser(x)
        if not isinstance(images, Tensor) or images.shape != x.shape:
            given = tuple(images.shape) if isinstance(images, Tensor) else f"a {type(images).__name__}"
            raise ForeignError(f"the denoiser must return images of the shape {tuple(x.shape)}, got {given}")
        return images.clamp(0, 1) if self.clamp else images

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.denoise(x))


class Residual3x3(nn.Module):
    """DnCNN without batch norm (Zhang et al., 2017): convolutions that predict the noise, which is subtracted."""

    def __init__(self, channels: int, width: int, depth: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
        for _ in range(depth - 2):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
        self.noise = nn.Sequential(*layers, nn.Conv2d(width, channels, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return x - self.noise(x)


def dncnn(channels: int, *, width: int = 64, depth: int = 8, seed: int = 0) -> nn.Module:
    """A convolutional denoiser for images of any size; the seed determines its weights.

    Args:
        channels: Channels of the images.
        width: Channels of the inner layers.
        depth: Number of 3x3 convolutions, at least 2.
        seed: Random seed of the initial weights.
    """
    for name, value in (("channels", channels), ("width", width), ("depth", depth)):
        check_count(name, value)
    if depth < 2:
        raise ValueError(f"depth must be >= 2, got {depth}")
    # torch initialises weights from its global generator: seed it and restore its state afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_key(seed, "denoiser") % 2**63)
        return Residual3x3(channels, width, depth)
