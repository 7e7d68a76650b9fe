"""Certify the L2 radius of test examples."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from rhobust.certificates import (
    AnyProcedure,
    Certificate,
    NoiseKind,
    ProcedureName,
    Smoothing,
    certification_plan,
    certify_stream,
    check_batch_independence,
    choose_procedure,
)
from rhobust.evaluation.base import NoisyEvaluation
from rhobust.evaluation.pictures import keep_certified
from rhobust.evaluation.target import Target
from rhobust.evaluation.target_cache import vote_counter
from rhobust.formatting import format_duration
from rhobust.measurements.certified import certified_summary
from rhobust.measurements.comparison import RADII
from rhobust.progress import ProgressCallback
from rhobust.proofs.procedures import PROCEDURE_ON_DISK, procedure_settings
from rhobust.proofs.sequential import Stopping
from rhobust.records import Record, Row
from rhobust.settings import AUTO, check_level

LONG = 60.0
"""Seconds of certification that are announced beforehand."""


@dataclass(frozen=True, kw_only=True)
class Certify(NoisyEvaluation):
    """Certify the L2 radius within which the smoothed classifier keeps its class, example by example.

    Guarantee: each row alone is false with probability at most alpha over the noise (Cohen et al., 2019, with the
    sequential test of the theory page, section 8). Rows depend on nothing but the settings: not on batches, order,
    interruptions or the number of processes.
    """

    kind: ClassVar[str] = "certify"

    radii: tuple[float, ...] | None = field(default=None, metadata=AUTO)
    """Increasing radii to decide; sampling stops as soon as it is known which of them hold. Default: no such radii,
    and the certified accuracy at 0, 0.25, 0.5, 0.75, 1."""
    procedure: ProcedureName | None = field(default=None, metadata=AUTO)
    """Certification procedure: fixed sample size, sequential test over radii, or two-stage; default: two-stage with a
    tolerance, sequential with radii, otherwise fixed."""
    tolerance: float | None = field(default=None, metadata=AUTO)
    """two-stage: how much smaller than with n samples a radius may be expected to be; default: 0.05."""
    stopping: Stopping | None = field(default=None, metadata=AUTO)
    """sequential: pairwise (exact boundaries, and comparisons with each other class, which certify more where votes are
    spread over several classes), boundary (boundaries alone) or e-value (more samples, and almost always the decisions
    of n); default: pairwise."""
    futility: float | None = field(default=None, metadata=AUTO)
    """sequential: give a radius up when the predicted chance of proving it falls below this, for boundaries times
    sqrt(samples so far / n). Smaller values take more samples and give up less; default: 0.4 for boundaries, 0.005 for
    the e-value."""
    n0: int | None = field(default=None, metadata=AUTO)
    """Noise samples that select the class; 0: the first that are counted. Default: 0 for sequential, 100 for fixed, 500
    for two-stage, which also plans with them."""
    n: int | None = field(default=None, metadata=AUTO)
    """Largest number of noise samples that count it; default: 100,000. --samples is the same, for torchrun."""
    alpha: float = 1e-3
    """Probability that one example's certificate is false."""
    noise: NoiseKind = "grid"
    """grid: exact integer noise, for 8-bit images; float: float32 noise."""
    compiled: bool | None = field(default=None, metadata=AUTO)
    """Compile the network where it can be, part of what is certified too; default: on a GPU in half precision."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._increasing("radii")
        check_level(self.alpha)
        self.certification()  # checks n, n0 and the tolerance

    @property
    def label(self) -> str:
        return PROCEDURE_ON_DISK[self.certification().name]

    @property
    def title(self) -> str:
        return f"{self.kind} {self.certification().name}"

    def certification(self) -> AnyProcedure:
        """The certification procedure with its parameters."""
        return choose_procedure(
            self.procedure,
            radii=self.radii,
            tolerance=self.tolerance,
            n0=self.n0,
            n=self.n,
            stopping=self.stopping,
            futility=self.futility,
        )

    @classmethod
    def from_settings(cls, settings: Row) -> Self:
        # Before there were two ways to stop, a sequential test stopped by its e-value.
        stopping = "e-value" if settings.get("way") == PROCEDURE_ON_DISK["sequential"] else None
        return super().from_settings({"stopping": stopping, **settings})

    def with_defaults(self) -> Self:
        chosen = self.certification()
        return replace(
            self,
            radii=self.radii or RADII,
            procedure=chosen.name,
            stopping=getattr(chosen, "stopping", None),
            futility=getattr(chosen, "futility", None),
            n0=chosen.n0,
            n=chosen.n,
            tolerance=getattr(chosen, "tolerance", None),
        )

    def resolve(self, target: Target) -> Self:
        evaluation = replace(super().resolve(target).with_defaults(), compiled=self.smoothing(target).compiled)
        # Refuses an alpha that the sampler's correction exceeds.
        certification_plan(
            self.certification(), evaluation.smoothing(target), dimension=target.data.dimension, alpha=self.alpha
        )
        return evaluation

    def smoothing(self, target: Target) -> Smoothing:
        """The smoothed classifier that is certified."""
        return Smoothing.on(
            target.device,
            target.smoothing_sigma(),
            target.data.num_classes,
            noise=self.noise,
            seed=self.seed,
            dtype=self.dtype,
            compiled=self.compiled,
        )

    def derived(self, target: Target) -> Row:
        return {
            **procedure_settings(self.certification()),
            **dataclasses.asdict(self.smoothing(target)),
            "radii": list(self.radii or RADII),
            "dimension": target.data.dimension,
        }

    def block(self, target: Target) -> None:
        """Sampling is scheduled over all examples, and each has its rows as soon as it is decided."""
        return

    def samples(self, row: Row) -> int:
        return row["n"] + self.certification().n0

    def rows(self, target: Target, examples: Sequence[int], progress: ProgressCallback) -> Iterator[Row]:
        start = time.perf_counter()
        smoothing, chosen = self.smoothing(target), self.certification()
        counter = vote_counter(target, smoothing)
        # Once per process, and again in the end: a worker gets many small blocks.
        target.once(("independent", smoothing), lambda: check_batch_independence(counter))
        if chosen.name == "fixed":
            samples = chosen.n0 + chosen.n
            # Once per process too: it is a whole pass.
            each = target.once(("seconds per sample", smoothing), counter.seconds_per_sample)
            seconds = len(examples) * samples * each
            if seconds >= LONG:
                progress(
                    f"{len(examples):,} images with {samples:,} noise samples each take about"
                    f" {format_duration(seconds)}: radii or a tolerance stop sampling early, a limit or a stride takes"
                    " fewer images, a smaller n fewer samples"
                )
        inputs = [(index, index) for index in examples]
        for index, certificate in zip(examples, certify_stream(counter, chosen, inputs, alpha=self.alpha), strict=True):
            if start is not None and counter.passes.compiled:
                taken, compiling = (
                    format_duration(one) for one in (time.perf_counter() - start, counter.passes.seconds)
                )
                progress(f"first certificate after {taken}, of which {compiling} went into compiling the network")
            start = None
            yield certificate_row(index, int(target.data.labels[index]), certificate)

    def summarise(self, target: Target, rows: list[Row]) -> Row:
        warnings = [*target.sigma_warnings(), *check_batch_independence(vote_counter(target, self.smoothing(target)))]
        return {**certified_summary(rows, self.settings(target)), "warnings": warnings}

    def compare(self, target: Target, record: Record) -> Row:
        keep_certified(record.path, target.data, record.rows)
        return {}


def certificate_row(index: int, label: int, certificate: Certificate) -> Row:
    """What a record says of one example."""
    row: Row = {
        "index": index,
        "label": label,
        "prediction": certificate.prediction,
        "radius": certificate.radius,
        "count": certificate.count,
        "n": certificate.n,
        "p_lower": certificate.p_lower,
        "selected": certificate.selected,
        "top": certificate.top,
        "runner_up": certificate.runner_up,
        "runner_up_votes": certificate.runner_up_votes,
    }
    if certificate.procedure == "sequential":
        row["evidence"] = [list(step) for step in certificate.evidence]
    return row
