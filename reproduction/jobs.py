"""What the tables and figures rest on: evaluations as pure data, each with an id that its settings alone decide."""

from dataclasses import dataclass
from typing import TypeAlias

from rhobust.attacks import AnyAttack
from rhobust.certificates import ProcedureName
from rhobust.evaluation.judging import Scored
from rhobust.methods import AnyMethod
from rhobust.records import settings_hash
from rhobust.settings import kind_of, to_json
from rhobust.training import TrainConfig


@dataclass(frozen=True)
class Training:
    """The training itself: its loss and accuracy, epoch by epoch."""

    run: TrainConfig


@dataclass(frozen=True)
class Attack:
    """An attack over nested radii."""

    run: TrainConfig
    attack: AnyAttack
    radii: tuple[float, ...]
    scored: Scored
    sigma: float | None
    """Noise of the classifier under attack; None for the network without noise."""
    votes: int
    limit: int | None
    probe: bool
    """Whether some images are attacked again, harder, to see whether the attack was strong enough."""
    source: TrainConfig | None = None
    """The run on which the attack is crafted; the attacked one itself where none is given."""


@dataclass(frozen=True)
class Certify:
    """The certified L2 radius of test images."""

    run: TrainConfig
    sigma: float
    n: int
    images: int
    """Test images, spread evenly over the test set."""
    procedure: ProcedureName = "fixed"
    """Cohen et al.'s test, a grid of radii, or two stages."""
    radii: tuple[float, ...] = ()
    """Of the grid."""


@dataclass(frozen=True)
class Shift:
    """The certified accuracy under every W2 shift up to eps."""

    run: TrainConfig
    sigma: float
    eps: tuple[float, ...]
    draws: int


@dataclass(frozen=True)
class Match:
    """How far the inner maximiser moves training images: the eps of the run's gamma."""

    run: TrainConfig
    inner: str
    steps: int
    images: int


@dataclass(frozen=True)
class Curves:
    """The worst loss over rho: certified, the paper's estimate, and what an ascent attains."""

    run: TrainConfig
    sigma: float
    eps: tuple[float, ...]
    gammas: tuple[float, ...]
    """Prices at which the inner problem is solved."""
    draws: int
    images: int


@dataclass(frozen=True)
class Curvature:
    """The largest curvature of the smoothed loss that is found at test images."""

    run: TrainConfig
    sigma: float
    images: int
    draws: int


@dataclass(frozen=True)
class Counterexample:
    """Theorem 2's left and right side for a constant loss on the line."""

    sigma: float
    gammas: tuple[float, ...]


Job: TypeAlias = Training | Attack | Certify | Shift | Match | Curves | Curvature | Counterexample


def job_id(job: Job) -> str:
    """A readable name that only these settings have; equal jobs of two tables share it."""
    settings = to_json(job, AnyMethod, AnyAttack)
    run = "" if isinstance(job, Counterexample) else f"{job.run.run_id}-"
    return f"{kind_of(type(job))}-{run}{settings_hash(settings)}"


def runs_of(job: Job) -> tuple[TrainConfig, ...]:
    """The runs that must be trained before a job, the evaluated one last."""
    match job:
        case Counterexample():
            return ()
        case Attack(source=TrainConfig() as source):
            return (source, job.run)
        case _:
            return (job.run,)
