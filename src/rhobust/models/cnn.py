"""The three-layer convolutional network of Sinha et al. (WRM), and a smaller one for 8x8 digits."""

from collections.abc import Callable

from torch import nn

from rhobust.models.layers import InputConv, WholeConv


def cnn(channels: int, height: int, width: int, classes: int, activation: Callable[[], nn.Module]) -> nn.Module:
    """WRM's network: conv 64 8x8 stride 2 (same), conv 128 6x6 stride 2, conv 128 5x5, dense.

    On 28x28 images the last feature map is 1x1x128.
    """
    if min(height, width) < 28:
        raise ValueError(f"images must be at least 28x28 for the model cnn, got {height}x{width}; cnn-small takes less")
    side_h, side_w = (((size // 2) - 6) // 2 + 1 - 4 for size in (height, width))
    return nn.Sequential(
        InputConv(channels, 64, 8, stride=2, padding=3),
        activation(),
        nn.Conv2d(64, 128, 6, stride=2),
        activation(),
        WholeConv(128, 128, 5),
        activation(),
        nn.Flatten(),
        nn.Linear(128 * side_h * side_w, classes),
    )


def cnn_small(channels: int, height: int, width: int, classes: int, activation: Callable[[], nn.Module]) -> nn.Module:
    """Three 3x3 convolutions (16, 32, 32 channels, the second with stride 2) and a dense layer."""
    features = 32 * ((height + 1) // 2) * ((width + 1) // 2)
    return nn.Sequential(
        InputConv(channels, 16, 3, padding=1),
        activation(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        activation(),
        nn.Conv2d(32, 32, 3, padding=1),
        activation(),
        nn.Flatten(),
        nn.Linear(features, classes),
    )
