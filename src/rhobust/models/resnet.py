"""ResNet-18 with the CIFAR stem (one 3x3 convolution, no pooling), for 32x32 and 64x64 images."""

from collections.abc import Callable

from torch import Tensor, nn

from rhobust.models.layers import ConvNorm


class _Block(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first = ConvNorm(inputs, outputs, 3, stride, activation=activation())
        self.second = ConvNorm(outputs, outputs, 3, activation=activation())
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = ConvNorm(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x), self.shortcut(x))


def resnet18(channels: int, height: int, width: int, classes: int, activation: Callable[[], nn.Module]) -> nn.Module:
    """ResNet-18: 64, 128, 256, 512 channels, two blocks each, global average pooling."""
    if min(height, width) < 8:
        raise ValueError(f"images must be at least 8x8 for the model resnet18, got {height}x{width}")
    layers: list[nn.Module] = [ConvNorm(channels, 64, 3, activation=activation())]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [_Block(inputs, outputs, stride, activation), _Block(outputs, outputs, 1, activation)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, classes))
