"""VGG-16 with batch normalisation and one dense layer, for 32x32 and 64x64 images."""

from collections.abc import Callable

from torch import nn

from rhobust.models.layers import ConvNorm

_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(channels: int, height: int, width: int, classes: int, activation: Callable[[], nn.Module]) -> nn.Module:
    """VGG-16: thirteen 3x3 convolutions in five stages, each ended by 2x2 max pooling."""
    if min(height, width) < 32:
        raise ValueError(f"images must be at least 32x32 for the model vgg16, got {height}x{width}")
    layers: list[nn.Module] = []
    inputs = channels
    for stage in _STAGES:
        for outputs in stage:
            layers.append(ConvNorm(inputs, outputs, 3, bias=True, activation=activation()))
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
