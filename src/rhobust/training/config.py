"""What decides a training run."""

from dataclasses import dataclass
from typing import Any, Literal

from rhobust.configs import from_json, to_json
from rhobust.methods import AnyMethod
from rhobust.models import Activation, check_model_name
from rhobust.records import settings_hash


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides the weights: equal configs give equal runs."""

    method: AnyMethod
    """The training method and its hyper-parameters."""
    data: str
    """A data set's name, a folder of images with one subfolder a class, or an .npz file."""
    model: str
    """cnn, cnn-small, resnet18, vgg16, or package.module:factory."""
    activation: Activation = "relu"
    """The network's activation."""
    epochs: int = 25
    """Passes over the training images."""
    batch_size: int = 128
    """Images a weight update."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """adam, or sgd with Nesterov momentum 0.9."""
    lr: float = 1e-4
    """Learning rate at the start, the paper's eta2."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate over time: constant, or cosine to zero."""
    weight_decay: float = 0.0
    """L2 penalty of the weights."""
    augment: bool = True
    """Random crop and flip where the data set defines them."""
    validation: int = 0
    """Training images held out to measure accuracy after each epoch."""
    seed: int = 0
    """Decides initial weights, order, augmentation and noise."""

    def __post_init__(self) -> None:
        check_model_name(self.model)
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if not self.lr > 0:
            raise ValueError(f"lr must be > 0, got {self.lr}")
        for name in ("weight_decay", "validation", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")

    @property
    def sigma(self) -> float | None:
        """The smoothing noise that the method trains for; None for a method without one."""
        return getattr(self.method, "sigma", None)

    @property
    def run_id(self) -> str:
        """A readable name that only this config has."""
        data = self.data.rstrip("/").rsplit("/", 1)[-1].removesuffix(".npz")
        model = self.model.replace(":", "-")
        method = config_to_json(self)["method"]["kind"].rpartition(":")[2].lower()
        return f"{method}-{data}-{model}-{settings_hash(config_to_json(self))}"


def config_to_json(config: TrainConfig) -> dict[str, Any]:
    """The config as it stands in `config.json`."""
    return to_json(config, AnyMethod)


def config_from_json(document: Any, where: str) -> TrainConfig:
    """The config back from `config.json`; a fault is named with the file."""
    return from_json(TrainConfig, document, where, AnyMethod)
