"""The configuration of a training run, and what the config of a folder that somebody sent may make this process do."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from rhobust.data.registry import KNOWN
from rhobust.data.sizing import Sizing
from rhobust.formatting import printable
from rhobust.methods import AnyMethod
from rhobust.models import MODELS, Activation, check_model_name
from rhobust.models.weights import SCHEME
from rhobust.records import settings_hash
from rhobust.settings import (
    OMIT_IF_DEFAULT,
    check_at_least,
    check_declared,
    check_positive,
    from_json,
    kind_of,
    to_json,
)

_STRENGTH = ("sigma", "gamma", "eps", "rho")
"""Hyper-parameters in a run's name: noise, penalty, radius, budget."""
_WITH_BATCH_NORM = ("resnet18", "vgg16", "wrn-28-10")
"""Networks that are trained by SGD by default; the CNN of the paper, without batch norm, diverges at its rate."""
_RATE_AND_DECAY = {"sgd": (0.2, 1e-3), "adam": (2e-3, 0.0)}
"""Largest learning rate and weight decay by optimizer. SGD's were chosen on held-out images of CIFAR-10."""


@dataclass(frozen=True)
class TrainConfig:
    """Everything that determines the weights: equal configs give equal runs."""

    method: AnyMethod
    """The training method and its hyper-parameters."""
    data: str
    """Name of a data set, a folder with one subfolder of images per class, an .npz file or hf-datasets:FOLDER-or-ID."""
    model: str = ""
    """cnn, cnn-small, resnet18, vgg16, wrn-28-10, package.module:factory, file.py:factory, rhobust:NAME, hf:ID,
    timm:NAME or torchvision:NAME; may be left out with init."""
    init: str | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    """Fine-tune this network, named as for the model, from its own weights or from those of `weights`."""
    weights: str | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    """Weights that fine-tuning starts from: safetensors or a file of torch.save."""
    mean: tuple[float, ...] | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    """Mean per channel that the network expects to be subtracted from images in [0, 1]; default: see the model."""
    std: tuple[float, ...] | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    """Deviation per channel that it expects to be divided by."""
    activation: Activation = "relu"
    """Activation function of the network."""
    epochs: int = 25
    """Number of epochs."""
    batch_size: int = 128
    """Images per weight update."""
    optimizer: Literal["adam", "sgd"] | None = None
    """adam, or sgd with Nesterov momentum 0.9; default: sgd to train resnet18, vgg16 and wrn-28-10, which have batch
    norm, adam for other networks and to fine-tune."""
    lr: float | None = None
    """Largest learning rate, the paper's eta2 (there 0.0001); default: 0.2 for sgd, 0.002 for adam."""
    schedule: Literal["constant", "step", "cosine", "onecycle"] = "onecycle"
    """Learning rate schedule: constant, divided by ten after each third, cosine to zero, or one cycle (30% warm-up)."""
    weight_decay: float | None = None
    """L2 penalty of the weights; default: 0.001 for sgd, 0 for adam."""
    clip: float | None = None
    """Largest gradient norm; default: no clipping."""
    label_smoothing: float = 0.0
    """Label smoothing: fraction of each label spread evenly over all classes."""
    average: float = 0.0
    """Decay of the exponential moving average of the weights, which is saved in their place; 0: no averaging."""
    weight_perturbation: float = field(default=0.0, metadata=OMIT_IF_DEFAULT)
    """Adversarial weight perturbation (Wu et al.): size relative to the norm of each weight tensor; 0: none."""
    cutmix: float = field(default=0.0, metadata=OMIT_IF_DEFAULT)
    """CutMix (Yun et al.): probability that an image gets a rectangle of another one, and part of its label."""
    attack_after: int = field(default=0, metadata=OMIT_IF_DEFAULT)
    """Epochs before the first attack, on inputs or on weights: nal and smoothadv train there on noisy copies of the
    inputs themselves, at less than half of the cost."""
    teacher: tuple[str, ...] = field(default=(), metadata=OMIT_IF_DEFAULT)
    """Distillation: one or several run folders of trained networks, whose mean prediction under the method's noise
    becomes part of each label."""
    teacher_weight: float = field(default=0.5, metadata=OMIT_IF_DEFAULT)
    """Fraction of each label that is the teachers'."""
    mirror: bool = field(default=False, metadata=OMIT_IF_DEFAULT)
    """True: the trained network answers with the mean logits of an image and of its mirror image, at twice the cost;
    its training is not changed."""
    round_weights: bool = field(default=False, metadata=OMIT_IF_DEFAULT)
    """True: save the trained network with its convolutions and dense layers rounded to bf16, at half the size; all that
    is evaluated is this network."""
    augment: bool = True
    """False: train on unchanged images, without the data set's random crops and flips."""
    resize: int | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    """Pixels of the shorter side that images are resized to; default: as stored."""
    crop: int | None = field(default=None, metadata=OMIT_IF_DEFAULT)
    """Side of the central square that is kept of each image, after resizing; default: all of it."""
    crop_padding: int = field(default=0, metadata=OMIT_IF_DEFAULT)
    """Random crops in training: reflection padding by so many pixels, then a crop to the image's size; default: the
    data set's own (cifar10 and cifar100: 4, tiny-imagenet: 8, others: none)."""
    flip: bool = field(default=False, metadata=OMIT_IF_DEFAULT)
    """True: random horizontal flips in training; default: the data set's own (cifar10, cifar100 and tiny-imagenet)."""
    validation: int = 0
    """Training images held out to measure accuracy after each epoch."""
    measure_eps: float | None = None
    """L2 radius at which robust accuracy is measured after each epoch; default: not measured."""
    keep: Literal["last", "best-clean", "best-robust"] = "last"
    """Epoch whose weights are saved: the last, or the best by clean or robust accuracy on the validation images."""
    fast: bool = True
    """False: train in float32 (TF32 where torch allows) on a GPU, not compiled in bf16 with one CUDA graph per step."""
    seed: int = 0
    """Random seed of initial weights, order, augmentation and noise."""

    def __post_init__(self) -> None:
        check_declared(self)
        if is_dataclass(self.method):
            check_declared(self.method)
        self._check_start()
        self._check_teacher()
        for name, value in self.usual_optimisation().items():
            if getattr(self, name) is None:
                object.__setattr__(
                    self, name, value
                )  # a config is read again as it was, whatever the defaults are then
        _ = self.sizing  # checks the sides
        check_at_least(1, self, "epochs", "batch_size")
        check_at_least(0, self, "weight_decay", "validation", "seed", "crop_padding")
        if not self.augment and (self.crop_padding or self.flip):
            raise ValueError("augment must be True with crop_padding or flip, got False")
        check_positive(self, "lr", "clip", "measure_eps")
        for name in ("label_smoothing", "average", "weight_perturbation"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        for name in ("cutmix", "teacher_weight"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        self._check_attack_after()
        if self.keep != "last" and not self.validation:
            raise ValueError(f"validation must be > 0 to keep the {self.keep} epoch, got {self.validation}")
        if self.keep == "best-robust" and self.measure_eps is None:
            raise ValueError("measure_eps must be given to keep the best-robust epoch, got None")

    def _check_start(self) -> None:
        """The network and where it starts from."""
        if self.init is not None and self.model in ("", self.init):
            object.__setattr__(self, "model", self.init)
        elif self.init is not None:
            raise ValueError(f"model and init must not be two different networks, got {self.model!r} and {self.init!r}")
        elif not self.model:
            raise ValueError("model, or init for a network that is fine-tuned, must be given, got neither")
        check_model_name(self.model)
        if self.weights is not None and self.init is None:
            raise ValueError(f"weights must be given with init, the network that they are of, got {self.weights}")
        if self.init in MODELS and self.weights is None:
            raise ValueError(f"weights must be given to fine-tune {self.init}, got None")
        if (self.mean is None) != (self.std is None):
            raise ValueError("mean and std must be given together, got one of them")

    def _check_teacher(self) -> None:
        if isinstance(self.teacher, str):
            object.__setattr__(self, "teacher", (self.teacher,))
        if not isinstance(self.teacher, tuple | list) or not all(isinstance(run, str) for run in self.teacher):
            raise ValueError(f"teacher must be a run folder, or a list of them, got {self.teacher!r}")
        object.__setattr__(self, "teacher", tuple(self.teacher))
        if len(set(self.teacher)) < len(self.teacher):
            raise ValueError(f"teacher must name each run folder once, got {' '.join(self.teacher)}")

    def usual_optimisation(self) -> dict[str, Any]:
        """The defaults of optimizer, rate and weight decay: the first by the network, the others by the optimizer."""
        usual = "sgd" if self.init is None and self.model in _WITH_BATCH_NORM else "adam"
        lr, decay = _RATE_AND_DECAY[self.optimizer or usual]
        return {"optimizer": usual, "lr": lr, "weight_decay": decay}

    def _check_attack_after(self) -> None:
        check_at_least(0, self, "attack_after")
        if self.attack_after:
            try:
                self.method_of(1)
            except (TypeError, ValueError):
                raise ValueError(
                    "attack_after must be 0 for a method whose attack cannot be left out (it can for nal and"
                    f" smoothadv), got {self.attack_after}"
                ) from None

    def method_of(self, epoch: int) -> AnyMethod:
        """The method of an epoch, counted from 1: without its attack in the first ones if `attack_after` says so."""
        if epoch > self.attack_after:
            return self.method
        return replace(cast(Any, self.method), steps=0)

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Mean and deviation per channel that the network expects; None: see `build_model`."""
        return None if self.mean is None or self.std is None else (self.mean, self.std)

    @property
    def sizing(self) -> Sizing:
        """How images are resized and cropped."""
        return Sizing(self.resize, self.crop)

    @property
    def sigma(self) -> float | None:
        """The smoothing noise of the method; None for a method without one."""
        return getattr(self.method, "sigma", None)

    @property
    def factory(self) -> str | None:
        """The user's factory of the network, package.module:factory; None for a network of this package."""
        return None if self.model in MODELS else self.model

    @property
    def run_id(self) -> str:
        """A readable name, unique for this config: method and its strength, data, model, epochs, seed, hash."""
        settings = config_to_json(self)
        method = settings["method"]
        strength = [f"{key}{method[key]:g}" for key in _STRENGTH if isinstance(method.get(key), int | float)]
        words = [
            method["kind"].rpartition(":")[2].lower(),
            *([method["inner"]] if method.get("inner") in ("paper", "search") else []),
            *strength,
            self.data.rstrip("/").rsplit("/", 1)[-1].removesuffix(".npz").replace(":", "-") + str(self.sizing),
            self.model.rsplit("/", 1)[-1].replace(":", "-"),
            *([] if self.activation == "relu" else [self.activation]),
            f"epochs{self.epochs}",
            f"seed{self.seed}",
            settings_hash(settings),
        ]
        return "-".join(words)


def config_to_json(config: TrainConfig) -> dict[str, Any]:
    """The config as JSON values, as in `config.json`."""
    document = to_json(config, AnyMethod)
    if len(config.teacher) == 1:
        document["teacher"] = config.teacher[0]  # as in published configs, whose names have their hash
    return document


def train_command(config: TrainConfig) -> str | None:
    """The command line that trains this run; None for a user-defined method."""
    if type(config.method) not in get_args(AnyMethod):
        return None
    words = ["rhobust", "train", f"method:{kind_of(type(config.method))}"]
    for prefix, part in (("method.", config.method), ("", config)):
        usual = {declared.name: declared.default for declared in fields(part)}
        if part is config:
            usual |= config.usual_optimisation()
        for declared in fields(part):
            value = getattr(part, declared.name)
            name = prefix + declared.name.replace("_", "-")
            if declared.name == "method" or (usual[declared.name] is not MISSING and value == usual[declared.name]):
                continue
            values = value if isinstance(value, tuple) else (value,)
            flags = {False: [f"--no-{name}"], True: [f"--{name}"]}
            words += flags[value] if isinstance(value, bool) else [f"--{name}", *map(str, values)]
    return shlex.join(words)


def config_from_json(document: Any, where: str) -> TrainConfig:
    """The config from the JSON values of `config.json`; errors name the file."""
    if isinstance(document, dict) and isinstance(document.get("teacher"), str):
        document = {**document, "teacher": [document["teacher"]]}
    return from_json(TrainConfig, document, where, AnyMethod)


class UntrustedError(ValueError):
    """A folder names code that would run, or files that would be read, which the user neither named nor trusts."""

    def __init__(self, folder: Path, named: dict[str, str]) -> None:
        acts = [f"run {named['model']}"] if "model" in named else []
        if paths := [path for name, path in named.items() if name != "model"]:
            acts.append(f"read {' and '.join(paths)}")
        self.refusal = f"{folder} would {' and '.join(acts)}, which its config names and you did not"
        """What would happen, without the remedy."""
        self.untrusted = named
        """By argument what the user would have to name."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in named.items())
        super().__init__(f"{self.refusal}: if you trust it, pass {arguments}, or trust=True")


def check_received(
    folder: Path,
    *,
    code: str | None = None,
    files: Mapping[str, str] | None = None,
    trust: bool = False,
    model: str | None = None,
) -> None:
    """Raise `UntrustedError` if a folder's config names code or files that the user neither named nor trusts.

    Guarantee: no module that a folder's config names is imported, and no file outside the folder that it names is read,
    unless the user named the same code or file, or trusts the folder. Everything that opens a network or data of a
    folder asks here first.

    Args:
        folder: The folder.
        code: The network in its config; one of `MODELS`, or `rhobust:NAME`, runs no code of others.
        files: Paths in its config that would be read, by the option with which the user names them herself. Names of
            published data sets and files inside the folder are allowed.
        trust: Whether the user trusts the folder: everything is allowed.
        model: The code that the user named.
    """
    if trust:
        return
    wanted: dict[str, str] = {}
    if code is not None and code != model and code not in MODELS and not code.startswith(f"{SCHEME}:"):
        wanted["model"] = code
    known = {source.name for source in KNOWN}
    wanted |= {name: path for name, path in (files or {}).items() if path not in known and _outside(path, folder)}
    if not wanted:
        return
    raise UntrustedError(folder, {name: printable(value) for name, value in wanted.items()})


def _outside(path: str, folder: Path) -> bool:
    """Whether a path leads out of the folder; nothing outside is touched to find out."""
    named, inside = (Path(os.path.normpath(Path(name).absolute())) for name in (path, folder))
    if path.startswith("~") or not named.is_relative_to(inside):
        return True
    return not Path(path).resolve().is_relative_to(folder.resolve())
