"""ResNet-18 with the CIFAR stem (one 3x3 convolution, no pooling), for 32x32 and 64x64 images."""

from collections.abc import Callable

from torch import nn

from rhobust.models.layers import ConvNorm, Residual


def _block(inputs: int, outputs: int, stride: int, activation: Callable[[], nn.Module]) -> Residual:
    """Two 3x3 convolutions around a shortcut."""
    plain = stride == 1 and inputs == outputs
    return Residual(
        ConvNorm(inputs, outputs, 3, stride, activation=activation()),
        ConvNorm(outputs, outputs, 3, activation=activation()),
        nn.Identity() if plain else ConvNorm(inputs, outputs, 1, stride),
    )


def resnet18(channels: int, height: int, width: int, classes: int, activation: Callable[[], nn.Module]) -> nn.Module:
    """ResNet-18: 64, 128, 256, 512 channels, two blocks each, global average pooling."""
    if min(height, width) < 8:
        raise ValueError(f"images must be at least 8x8 for the model resnet18, got {height}x{width}")
    layers: list[nn.Module] = [ConvNorm(channels, 64, 3, activation=activation())]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [_block(inputs, outputs, stride, activation), _block(outputs, outputs, 1, activation)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
