"""Network architectures: the paper's CNN, ResNet-18, VGG-16, WideResNet-28-10; normalisation, mirror, denoiser."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rhobust.models.fused import ConvNorm, InputConv, Residual, WholeConv
from rhobust.models.inference import check_module
from rhobust.models.winograd import StridedConv
from rhobust.noise import stream_key
from rhobust.settings import check_count
from rhobust.user_code import UserCodeError

_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class Normalised(nn.Module):
    """A network with its input normalisation: takes inputs in [0, 1]; mean and deviation are saved with the weights."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        for name, values in (("mean", mean), ("deviation", deviation)):
            self.register_buffer(name, torch.as_tensor(values, dtype=torch.float32).clone().view(1, -1, 1, 1))
        if self.mean.shape != self.deviation.shape or not (self.deviation > 0).all():
            raise ValueError(
                "mean and deviation must hold one number per channel, deviations > 0, got"
                f" {self.mean.flatten().tolist()} and {self.deviation.flatten().tolist()}"
            )

    def forward(self, x: Tensor) -> Tensor:
        given, channels = self.mean.shape[1], x.shape[1]
        if given != channels and 1 not in (given, channels):
            raise ValueError(f"mean and std must have 1 or {channels} numbers, one per channel, got {given}")
        return self.network((x - self.mean) / self.deviation)

    def constants(self) -> tuple[list[float], list[float]]:
        """Mean and deviation per channel."""
        return self.mean.flatten().tolist(), self.deviation.flatten().tolist()


class Mirrored(nn.Module):
    """The mean logits of an image and of its mirror image, at twice the cost; in training mode the network itself.

    A function of the image alone, so a smoothed classifier of it is certified as that of any other network is.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.network(x)
        return self.network(torch.cat([x, x.flip(-1)])).unflatten(0, (2, len(x))).mean(0)


def cnn(channels: int, height: int, width: int, classes: int, activation: Callable[[], nn.Module]) -> nn.Module:
    """The CNN of WRM (Sinha et al.): conv 64 8x8 stride 2 (same), conv 128 6x6 stride 2, conv 128 5x5, dense.

    On 28x28 images the last feature map is 1x1x128.
    """
    if min(height, width) < 28:
        raise ValueError(
            f"images must be at least 28x28 for the model cnn, got {height}x{width}; cnn-small takes smaller ones"
        )
    side_h, side_w = (((size // 2) - 6) // 2 + 1 - 4 for size in (height, width))
    return nn.Sequential(
        InputConv(channels, 64, 8, stride=2, padding=3),
        activation(),
        StridedConv(64, 128),
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


def _block(inputs: int, outputs: int, stride: int, activation: Callable[[], nn.Module]) -> Residual:
    """A residual block of two 3x3 convolutions."""
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


class WideBlock(nn.Module):
    """Residual block of a wide ResNet (Zagoruyko and Komodakis): batch norm and activation before each convolution.

    The first convolution is followed by batch norm and activation, so the two can be folded.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.norm, self.activation = nn.BatchNorm2d(inputs), activation()
        self.first = ConvNorm(inputs, outputs, 3, stride, activation=activation())
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        plain = stride == 1 and inputs == outputs
        self.shortcut = None if plain else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = self.activation(self.norm(x))
        y = self.second(self.first(active))
        return y + (x if self.shortcut is None else self.shortcut(active))


def wide_resnet(channels: int, height: int, width: int, classes: int, activation: Callable[[], nn.Module]) -> nn.Module:
    """WideResNet-28-10: 160, 320, 640 channels, four blocks each, global average pooling."""
    if min(height, width) < 8:
        raise ValueError(f"images must be at least 8x8 for the model wrn-28-10, got {height}x{width}")
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1, bias=False)]
    inputs = 16
    for outputs, stride in ((160, 1), (320, 2), (640, 2)):
        layers.append(WideBlock(inputs, outputs, stride, activation))
        layers += [WideBlock(outputs, outputs, 1, activation) for _ in range(3)]
        inputs = outputs
    layers += [nn.BatchNorm2d(inputs), activation(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


def vgg16(channels: int, height: int, width: int, classes: int, activation: Callable[[], nn.Module]) -> nn.Module:
    """VGG-16: thirteen 3x3 convolutions in five stages, each followed by 2x2 max pooling."""
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


MODELS = {"cnn": cnn, "cnn-small": cnn_small, "resnet18": resnet18, "vgg16": vgg16, "wrn-28-10": wide_resnet}
"""The networks of this package by name."""
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "elu": nn.ELU}
"""Their activation functions by name."""


def own_network(name: str, shape: tuple[int, int, int], classes: int, activation: str) -> nn.Module:
    """A network of `MODELS`, by its name, with the weights that torch's global generator gives it."""
    network = MODELS[name](*shape, classes, ACTIVATIONS[activation])
    # Convolutions run in the layout of the weights; channels last is fastest on CPU and GPU.
    for parameter in network.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return network


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
            raise UserCodeError(f"the denoiser must return images of the shape {tuple(x.shape)}, got {given}")
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
