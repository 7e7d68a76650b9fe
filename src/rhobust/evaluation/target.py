"""What is evaluated: a network, its smoothing noise, its test data, and the folder for the records."""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import nn

from rhobust.certificates import native_dtype
from rhobust.data import Dataset, EvaluationSplit, ImageSet, Pairs, load
from rhobust.data.labels import check_shape, match_classes
from rhobust.data.registry import KNOWN
from rhobust.data.sizing import Sizing
from rhobust.evaluation.held_out import check_split, held_out
from rhobust.evaluation.own_network import IN_MEMORY, OwnNetwork, check_answers, check_stateless, fixed_logits
from rhobust.models.inference import check_module, device_of, move_to
from rhobust.models.sources import check_names
from rhobust.progress import ProgressCallback
from rhobust.records import CONFIG, Row
from rhobust.settings import check_instance, check_positive_number, sizes
from rhobust.training.config import check_received
from rhobust.training.distributed import resolve_device
from rhobust.training.run import Run, open_run, weights_fingerprint

T = TypeVar("T")

WHERE_IT_IS = torch.device("meta")
"""Stands for the device that holds a network's weights."""


class NoNoiseError(ValueError):
    """A smoothed classifier is needed, but the noise of its network's training is not known, and none was passed."""

    def __init__(self, name: str) -> None:
        self.unsmoothed = f"{name} has no training noise on record"
        """What is missing, without the remedy."""
        super().__init__(f"{self.unsmoothed}: pass sigma, or attack the base network by PGD()")


class _TemporaryFolder:
    """A folder that is removed with the last target that uses it, without a ResourceWarning."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="rhobust-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True, eq=False)
class Target:
    """A network with everything an evaluation needs; a module and a data set are enough.

    `Target.from_run` makes one of a run folder, `Target.from_weights` one of weights and the code that builds the
    network.
    """

    model: nn.Module
    """From inputs in [0, 1] to logits; moved to `device`, and evaluated in evaluation mode with frozen weights."""
    data: Dataset
    """Test images and labels, or those that a run held out of its training, on the CPU."""
    sigma: float | None = None
    """Smoothing noise; None for a base network without smoothing."""
    name: str = ""
    """How messages call the network; default: its class."""
    folder: Path = Path()
    """Where the records are; default: a temporary folder that is removed with the target."""
    device: torch.device = WHERE_IT_IS
    """Where the network is evaluated; default: where its weights are."""
    model_hash: str = ""
    """Fingerprint of the weights; default: computed from the module's parameters and buffers."""
    trained_sigma: float | None = None
    """Noise that the network was trained with; None where there was none, or where it is unknown."""
    trained_on: ImageSet | None = None
    """The images that the network was trained on; None where that is not known."""
    fine_tuned: bool = False
    """Whether it was trained before, or by a teacher, on images that `trained_on` does not list."""
    chose_epoch: bool = False
    """Whether the evaluated images were held out and chose the epoch that was kept: they are not new to the network."""
    published_split: bool = False
    """Whether the network was trained on the training split of the published data set whose test split is evaluated."""
    factory: str | None = None
    """The user's own code that builds the network; None for a network of this package."""
    source: "Target | None" = None
    """Another network on which attacks are crafted: a transfer attack. None for a white-box attack."""
    predictors: tuple["Target", ...] = ()
    """Networks whose predictions count for inputs that were perturbed on this one: a row of a transfer matrix."""
    pairs: Pairs | None = None
    """Images before and after a change whose size is measured."""
    _cache: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    """Compiled copies and the temporary folder, made once per target."""

    def __post_init__(self) -> None:
        check_module(self.model)
        check_instance("data", self.data, Dataset, "a Dataset, as of as_dataset(images, labels) or load")
        set_field = object.__setattr__
        if self.sigma is not None:
            check_positive_number("sigma", self.sigma)
            set_field(self, "sigma", float(self.sigma))
        if self.device != WHERE_IT_IS:
            set_field(self, "device", resolve_device(self.device))
            move_to(self.device, self.model)
        else:
            set_field(self, "device", device_of(self.model, torch.device("cpu")))
        if not self.model_hash:
            own = f"{type(self.model).__module__}:{type(self.model).__qualname__}"
            set_field(self, "factory", self.factory or own)
            set_field(self, "model_hash", weights_fingerprint(self.model))
        if not self.name:
            set_field(self, "name", type(self.model).__name__)
        if self.folder == Path():
            self._cache["folder"] = _TemporaryFolder()
            set_field(self, "folder", self._cache["folder"].path)
        set_field(self, "folder", Path(self.folder))

    @classmethod
    def from_run(
        cls,
        folder: Path | str,
        *,
        device: torch.device | str = "auto",
        sigma: float | None = None,
        data: str | None = None,
        split: EvaluationSplit = "test",
        root: Path | str | None = None,
        progress: ProgressCallback | None = None,
        trust: bool = False,
        model: str | None = None,
        weights: Path | str | None = None,
        unseen: bool = False,
        resize: int | None = None,
        crop: int | None = None,
    ) -> Self:
        """The network of a run folder, with the noise and the test data of its training unless others are given.

        The folder may also be one of `from_weights`: its config names the user's own network.

        A folder is data. Code that its config names runs only if `model` names it too; weights and data at paths
        outside the folder are read only if `weights` or `data` name what to read. `trust` allows all of it.

        `split="validation"` takes exactly the images that the run held out of its training, in place of test data:
        what is chosen on them is not chosen on test images.

        `unseen` leaves out the test images that the network was trained on. `resize` and `crop` are those of `load`;
        without either, images are resized and cropped as in training.
        """
        folder = Path(folder)
        check_split(split)
        if (own := OwnNetwork.read(folder)) is not None:
            check_split(split, own=folder)
            if own.weights == IN_MEMORY:
                raise ValueError(f"{folder} must name its network, but that was in memory: evaluate it from Python")
            files = {} if weights or own.weights is None else {"weights": own.weights}
            files |= {} if data else {"data": own.data}
            check_received(folder, code=own.model, files=files, trust=trust, model=model)
            # Paths that the user gave lead from here.
            given = {name: str(Path(path).absolute()) for name, path in (("data", data), ("weights", weights)) if path}
            given |= {"data": data} if data and not Path(data).exists() else {}
            asked = replace(
                own,
                weights=given.get("weights", own.weights),
                data=given.get("data", own.data),
                sigma=own.sigma if sigma is None else sigma,
                sizing=Sizing(resize, crop) or own.sizing,
            )
            root = None if root is None else Path(root).absolute()
            with own.where_made(trust=trust):
                test = load(asked.data, "test", root=root, progress=progress, **vars(asked.sizing))
                target = cls.of_network(asked, test, folder, resolve_device(device))
            return target.unseen() if unseen else target
        if weights is not None:
            raise ValueError(f"weights must be left out for {folder}, a training run, got {weights}")
        run, device = open_run(folder), resolve_device(device)
        files = {} if data else {"data": run.config.data}
        check_received(run.folder, code=run.config.model, files=files, trust=trust, model=model)
        network = run.load_model(device, trust=trust, model=model)
        sizing, seen = Sizing(resize, crop), run.training_images()
        if split == "validation":
            test, seen = held_out(run, data=data, sizing=sizing, root=root, progress=progress)
        else:
            resized = vars(sizing or run.config.sizing)
            test = load(data or run.config.data, "test", root=root, progress=progress, **resized)
        check_shape(test, run.shape, folder)
        sigma = run.config.sigma if sigma is None else sigma
        test = match_classes(test, run.classes, run.folder)
        published = data in (None, run.config.data) and any(run.config.data == source.name for source in KNOWN)
        target = cls._of_run(run, network, test, sigma, device, seen, published_split=published)
        return target.unseen() if unseen else target

    @classmethod
    def _of_run(
        cls,
        run: Run,
        model: nn.Module,
        data: Dataset,
        sigma: float | None,
        device: torch.device,
        trained_on: ImageSet | None,
        *,
        published_split: bool = False,
    ) -> Self:
        validating = data.split == "validation"
        # A teacher may have been trained on what its student held out, and on test images of unpublished data.
        taught = bool(run.config.teacher) and (validating or not published_split)
        fine_tuned = run.only_data is None or taught
        return cls(
            model,
            data,
            sigma=sigma,
            name=run.config.run_id,
            folder=run.folder,
            device=device,
            model_hash=run.model_hash,
            trained_sigma=run.config.sigma,
            trained_on=trained_on,
            fine_tuned=fine_tuned,
            chose_epoch=validating and run.config.keep != "last",
            published_split=published_split and not fine_tuned,
            factory=run.config.factory,
        )

    @classmethod
    def from_weights(
        cls,
        factory: str,
        weights: Path | str | None = None,
        *,
        data: str,
        folder: Path | str,
        device: torch.device | str = "auto",
        sigma: float | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        root: Path | str | None = None,
        progress: ProgressCallback | None = None,
        resize: int | None = None,
        crop: int | None = None,
    ) -> Self:
        """The user's own network, by a name and weights as in `load_model`.

        The folder gets a small `config.json` that says so, which the report and `from_run` read: `from_run` needs
        neither the noise nor the normalisation again. Of a network of this project, `rhobust:NAME`, the noise and the
        images of its training are known. `resize` and `crop` are those of `load`.
        """
        folder, device = Path(folder), resolve_device(device)
        known = OwnNetwork.read(folder)
        if (folder / CONFIG).exists() and (known is None or known.live):
            raise ValueError(f"{folder} must not be the folder of a training run or of evaluate: choose another")
        check_names(factory, weights, mean, std)
        sizing = Sizing(resize, crop)
        test = load(data, "test", root=root, progress=progress, **vars(sizing))
        own = OwnNetwork(
            factory,
            None if weights is None else str(weights),
            data,
            sigma,
            None if mean is None else sizes("mean", mean),
            None if std is None else sizes("std", std),
            sizing,
            str(Path.cwd()),
        )
        target = cls.of_network(own, test, folder, device)
        target.check_unchanged()
        # An evaluation without noise, such as an attack on the base network, does not make the folder forget it.
        noise = known.sigma if known is not None and target.sigma is None else target.sigma
        replace(own, sigma=noise).write(folder, device)
        return target

    @classmethod
    def of_network(
        cls,
        own: OwnNetwork,
        test: Dataset,
        folder: Path,
        device: torch.device,
        *,
        module: nn.Module | None = None,
        name: str = "",
    ) -> Self:
        """The user's own network, data for it, and the folder of its records.

        `module` and `name` are those of `OwnNetwork.fit`.
        """
        fitted = own.fit(test, device, module=module, name=name)
        sigma = fitted.trained_sigma if own.sigma is None else own.sigma
        return cls(**fitted._asdict(), sigma=sigma, folder=folder, device=device, factory=own.model)

    def with_source(self, source: "Target | Path | str", *, trust: bool = False, model: str | None = None) -> "Target":
        """This target for transfer attacks: crafted on another network, on this one's data.

        Args:
            source: The other network, or its run folder. One without a noise of its own is attacked with this one's.
            trust: Run the code that the run folder names, whatever it is.
            model: The code that the run folder may run; not needed for a network of this package.
        """
        if not isinstance(source, Target):
            run = open_run(source)
            if run.classes != self.data.classes:
                ours, theirs = (", ".join(classes[:3]) for classes in (self.data.classes, run.classes))
                raise ValueError(
                    f"{source} must have the classes of {self.data.name} in their order ({ours}, ...), got {theirs},"
                    " ...: a transfer attack needs equal classes"
                )
            sigma = self.sigma if run.config.sigma is None else run.config.sigma
            network = run.load_model(self.device, trust=trust, model=model)
            source = Target._of_run(run, network, self.data, sigma, self.device, run.training_images())
        return self._with(source=source)

    def with_predictors(self, predictors: Sequence["Target"]) -> "Target":
        """This target as a row of a transfer matrix: inputs are perturbed on it, and predicted by each of these."""
        return self._with(predictors=tuple(predictors))

    def with_pairs(self, pairs: Pairs) -> "Target":
        """This target with images before and after a change."""
        return self._with(pairs=pairs)

    def unseen(self) -> Self:
        """This target without the test images that its network was trained on."""
        if self.trained_on is None:
            raise ValueError(f"unseen needs the list of the training images, which is not there for {self.name}")
        new = ~self.trained_on.contains(self.data.images)
        if not new.any():
            raise ValueError(f"{self.data.name} must have a test image that was not trained on, but all of them were")
        target = replace(self, data=self.data.select(new.nonzero()[0].tolist())) if not new.all() else self
        if "folder" in self._cache:
            target._cache["folder"] = self._cache["folder"]
        return target

    def _with(self, **changes: Any) -> "Target":
        target = replace(self, **changes)
        target._cache.update(self._cache)  # the same network and folder: a temporary folder lives as long as either
        return target

    def __getstate__(self) -> dict[str, Any]:
        """What travels to a worker: not what was made of the network here, nor the folder's removal."""
        return {**self.__dict__, "_cache": {}, "device": self.device.type}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The target on the worker's own device of the same kind, in evaluation mode as it was."""
        device = resolve_device(state["device"])
        self.__dict__.update(state, device=device)
        move_to(device, self.model)

    @property
    def attacked(self) -> "Target":
        """The network on which attacks are crafted: the source of a transfer attack, else this one."""
        return self if self.source is None else self.source

    def smoothing_sigma(self) -> float:
        """The smoothing noise; refused where the network has none."""
        if self.sigma is None:
            raise NoNoiseError(self.name)
        return self.sigma

    def sigma_warnings(self) -> list[str]:
        """A line where the network was trained with other noise than it is smoothed with."""
        if self.trained_sigma is None or self.trained_sigma == self.sigma:
            return []
        return [f"the network was trained with noise {self.trained_sigma:g} and is smoothed with {self.sigma:g}"]

    def identity(self) -> Row:
        """What every record says of its target."""
        return {
            "model_hash": self.model_hash,
            "data": self.data.name,
            "split": self.data.split,
            "data_fingerprint": self.once("data", self.data.fingerprint),
            "sigma": self.sigma,
            "device": self.device.type,
            "dtype": native_dtype(self.device),
        }

    def source_identity(self) -> Row:
        """What a record says of a network on which, or by which, the examples of another one were evaluated."""
        return {"name": self.name, "model_hash": self.model_hash, "sigma": self.sigma}

    def once(self, name: Hashable, make: Callable[[], T]) -> T:
        """What a function makes for this target, made at the first call: compiled copies, checks, fingerprints."""
        if name not in self._cache:
            self._cache[name] = make()
        return self._cache[name]

    def check_unchanged(self) -> None:
        """Refuse a network of the user's own that answers otherwise than before, or than that of the folder's records.

        Raises:
            BatchDependenceError: It answers otherwise than at the first call: its logits depend on earlier passes.
            ValueError: It answers otherwise than the network that the folder's records are about.
        """
        if self.factory is None:
            return
        here = fixed_logits(self.model, self.data.shape, self.device)
        check_stateless(self.once(("answers", self.data.shape), lambda: here), here)
        check_answers(self.folder, here, self.data.shape, name=self.name, model_hash=self.model_hash)


@dataclass(frozen=True)
class Untargeted:
    """In the place of a target for an evaluation that needs no network: the folder of its record."""

    folder: Path
    name: str = ""
    pairs: Pairs | None = None
    """Images before and after a change whose size is measured."""

    def identity(self) -> Row:
        """Nothing: there is no network, and no test data."""
        return {}

    def check_unchanged(self) -> None:
        """There is nothing that could have changed."""
