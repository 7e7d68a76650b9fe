"""rhobust demo."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from torch import Tensor

from rhobust.commands.images import OpenedImages, open_network
from rhobust.commands.options import Common, CommonOptions
from rhobust.commands.target import FLAT, NetworkOptions
from rhobust.data import load
from rhobust.data.registry import KNOWN
from rhobust.data.sizing import Sizing
from rhobust.demo import DemoClassifier, NamedNetwork, build_app, serve, write_space
from rhobust.demo.app import import_gradio
from rhobust.evaluation.own_network import OwnNetwork
from rhobust.models.sources import known_network
from rhobust.process import say
from rhobust.settings import check_at_least, check_declared, check_level
from rhobust.training import open_run

EXAMPLES = 8
"""Images of the test data that the page offers."""


@dataclass(frozen=True)
class ShownNetwork(NetworkOptions):
    """Which network answers, and where its examples come from."""

    data: str | None = None
    """Data whose test images are offered as examples; of the user's own network, also its classes and size of images.
    Default: that of the run, where it is a published data set and is found."""
    resize: int | None = None
    """Pixels of the shorter side that images are resized to; default: as in the run's training."""


@dataclass(frozen=True)
class Demo:
    """Open a local web page: drop an image or draw one, see votes, answer and certified radius, attack it."""

    run_folder: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None
    """A run folder, a published one, or the folder of your own network's records; or give --model."""
    network: Annotated[ShownNetwork, FLAT] = field(default_factory=ShownNetwork)
    classes: tuple[str, ...] | None = None
    """Names of the classes of the user's own network, without --data; default: their numbers, or the hub's names."""
    n: int = 10_000
    """Noise samples per image, at most."""
    alpha: float = 1e-3
    """Probability that an answer is false."""
    seed: int | None = None
    """Random seed; default: from the operating system, so that no image can be made with knowledge of it."""
    host: str = "127.0.0.1"
    """Address to listen on; the default is reached from this machine only."""
    port: int | None = None
    """Port; default: the first free one from 7860."""
    share: bool = False
    """Let gradio open a tunnel through its own servers, so that others can reach the page."""
    space: Path | None = None
    """Write the demo into this new folder, ready to be pushed to a Space, and open no page."""
    common: CommonOptions = Common()

    def __post_init__(self) -> None:
        check_declared(self)
        check_at_least(1, self, "n")
        check_at_least(0, self, "seed")
        check_level(self.alpha)
        if self.port is not None and not 1 <= self.port <= 65_535:
            raise ValueError(f"port must be in 1..65535, got {self.port}")

    def run(self) -> dict[str, Any]:
        if self.space is None:
            import_gradio()  # before the network is loaded: it may be missing
        classifier = self._classifier()
        if self.space is not None:
            return {"space": str(self.space), "files": write_space(self.space, classifier, self._source())}
        app = build_app(classifier)
        local, public = serve(app, host=self.host, port=self.port, share=self.share, block=False)
        say(f"the demo is at {public or local}; Ctrl-C ends it")
        try:
            while True:
                time.sleep(3600)
        except KeyboardInterrupt:  # how a server ends
            app.close(verbose=False)
        return {"url": local, "public_url": public}

    def _classifier(self) -> DemoClassifier:
        folder = self.run_folder
        training = folder is not None and OwnNetwork.read(folder) is None
        # Data of a training run are examples only: its shape and classes are those of the training.
        asked = replace(self.network, data=None) if training else self.network
        named = None if self.classes is None else len(self.classes)
        opened = open_network(asked, folder, self._blank, self.common, num_classes=named)
        classes = opened.classes if self.classes is None else self.classes
        if len(classes) != len(opened.classes):
            raise ValueError(f"classes must name {len(opened.classes)} classes, got {len(classes)}")
        channels, height, width = opened.images.shape[1:]
        fixed = {} if self.seed is None else {"seed": self.seed}
        return DemoClassifier(
            opened.model,
            opened.sigma,
            classes,
            (channels, height, width),
            name=str(self.network.model) if folder is None else folder.resolve().name,
            examples=self._examples(opened, training),
            sizing=opened.sizing,
            warnings=opened.warnings,
            n=self.n,
            alpha=self.alpha,
            **fixed,
        )

    def _blank(self, shape: tuple[int, ...] | None, channels: int | None, sizing: Sizing) -> Tensor:
        """An image of the network's shape; of a network by name the size must be given."""
        if shape is None:
            side = sizing.crop or sizing.resize
            if side is None:
                raise ValueError("the size of images must be known: pass --data, --resize or --crop")
            shape = (channels or 3, side, side)
        return torch.full((1, *shape), 127, dtype=torch.uint8)

    def _examples(self, opened: OpenedImages, training: bool) -> Tensor:
        """Test images of different classes; none where the data are not found, or where only the folder names them."""
        name = self.network.data
        if name is None and training and self.run_folder is not None:
            config = open_run(self.run_folder).config
            name = config.data if any(config.data == source.name for source in KNOWN) else None
        if name is None:
            return torch.empty(0, dtype=torch.uint8)
        try:
            test = load(name, "test", root=self.network.root, progress=self.common.progress, **vars(opened.sizing))
        except (ValueError, OSError):
            if self.network.data is not None:
                raise
            return torch.empty(0, dtype=torch.uint8)
        if tuple(test.shape) != tuple(opened.images.shape[1:]) or test.images.dtype != torch.uint8:
            raise ValueError(
                f"{name} must hold 8-bit images of shape {tuple(opened.images.shape[1:])}, got {test.shape}"
            )
        labels = test.labels.tolist()
        firsts = [labels.index(label) for label in sorted(set(labels))[:EXAMPLES]]
        return test.images[firsts].clone()

    def _source(self) -> NamedNetwork | Path:
        """What a Space is written from."""
        if self.run_folder is None:
            assert self.network.model is not None
            known = known_network(self.network.model, self.network.weights)
            if known is not None and self.network.mean is None and self.classes is None:
                return known.path.parent
            return NamedNetwork(self.network.model, self.network.weights, self.network.mean, self.network.std)
        own = OwnNetwork.read(self.run_folder)
        if own is None:
            return self.run_folder
        weights = self.network.weights or (None if own.weights is None else Path(own.weights))
        return NamedNetwork(own.model, weights, own.mean, own.std)

    def show(self, result: dict[str, Any]) -> None:
        if "space" in result:
            print("\n".join(f"{result['space']}/{name}" for name in result["files"]))
            return
        print("the demo has ended")


COMMAND = Demo
