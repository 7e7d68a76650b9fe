"""Options that say which network is evaluated, on which examples."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.commands.options import Common
from rhobust.evaluation import Target, target_from_folder, target_from_weights
from rhobust.training import resolve_device


@dataclass(frozen=True)
class Sample:
    """On which examples networks are evaluated, with which noise."""

    sigma: float | None = None
    """Smoothing noise; a run's own where none is given."""
    data: str | None = None
    """Test data; a run's own where none is given."""
    root: Path | None = None
    """Where the data sets lie."""
    limit: int | None = None
    """Examples at most: the first ones. A claim about the data's distribution needs them in no order."""
    stride: int = 1
    """Take every stride-th example."""
    seed: int = 0
    """Names the noise."""

    def sample(self, common: Common) -> dict[str, Any]:
        """What every walk over the test data takes."""
        return {"limit": self.limit, "stride": self.stride, "seed": self.seed, "progress": common.progress}


@dataclass(frozen=True)
class Choice(Sample):
    """Which network is evaluated, on which examples."""

    run: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None
    """A run folder, or the folder of your own network's records; or give --model, --weights, --data and --out."""
    model: str | None = None
    """The user's own network, package.module:factory."""
    weights: Path | None = None
    """Its weights, a safetensors file."""
    out: Path | None = None
    """Folder for the records of the user's own network."""

    def target(self, common: Common) -> Target:
        """Load the network and its test data."""
        if self.run is not None:
            if self.model or self.weights or self.out:
                raise ValueError("a run folder must stand alone, but --model, --weights or --out was given with it")
            return _target_from_folder(self.run, self, common)
        if self.model is None or self.weights is None or self.data is None or self.out is None:
            missing = [name for name in ("model", "weights", "data", "out") if getattr(self, name) is None]
            raise ValueError(
                "a run folder, or all of --model, --weights, --data and --out must be given,"
                f" got no --{', no --'.join(missing)}"
            )
        return target_from_weights(
            self.model,
            self.weights,
            data=self.data,
            folder=self.out,
            device=resolve_device(common.device),
            sigma=self.sigma,
            root=self.root,
            progress=common.progress,
        )


@dataclass(frozen=True)
class Several(Sample):
    """Which runs are evaluated together, on which examples."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")] = ()
    """Run folders."""

    def targets(self, common: Common) -> list[Target]:
        """Load the networks and their test data."""
        if not self.runs:
            raise ValueError("at least one run folder must be given, got none")
        return [_target_from_folder(folder, self, common) for folder in self.runs]


def _target_from_folder(folder: Path, of: Sample, common: Common) -> Target:
    return target_from_folder(
        folder,
        device=resolve_device(common.device),
        sigma=of.sigma,
        data=of.data,
        root=of.root,
        progress=common.progress,
    )


ChoiceOptions = Annotated[Choice, tyro.conf.arg(name="")]
SeveralOptions = Annotated[Several, tyro.conf.arg(name="")]
