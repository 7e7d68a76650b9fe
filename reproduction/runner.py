"""Train, attack and certify what tables and figures lack, then write what the records give."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from reproduction import ablations, claims, main_experiment, our_tables, paper_figures, paper_tables, variant_tables
from reproduction.documents import Gap, Question, answers, faults, fill, questions
from reproduction.metrics import Reader
from reproduction.plots import draw, to_bytes
from reproduction.render import comma_separated, markdown
from reproduction.scales import Scale
from reproduction.specs import AnySpec, CostTable, Figure, Job, Matrix, Table
from rhobust.data import load
from rhobust.evaluation import Certify, Target, Untargeted, find_record, run
from rhobust.files import write_json, write_whole
from rhobust.measurements import read_finished
from rhobust.progress import ProgressCallback
from rhobust.records import Record, is_finished
from rhobust.training import Run, TrainConfig, train

CLAIMS = "claims"
"""Folder of the records that need no network."""


def table_cost(scale: Scale) -> CostTable:
    """Compute cost of our tables."""
    makers = (
        *(main_experiment.table_main, main_experiment.table_autoattack, our_tables.table_certified),
        *(our_tables.table_mnist, ablations.table_variations, ablations.table_tiny),
    )
    notes = (
        "A run or an evaluation that several tables need is counted in each of them, and once in the last row.",
        "Wall time is summed over the work; what ran side by side on one device took less time together. The wall time "
        "of resumed evaluations is unknown and counts as 0.",
    )
    tables = tuple(table for table in (make(scale) for make in makers) if isinstance(table, Table))
    return CostTable("table-cost", "compute cost of the tables", tables, notes)


PAPER: dict[str, Callable[[Scale], AnySpec]] = {
    "table1": paper_tables.table1,
    "table2": paper_tables.table2,
    "table-pgd100": paper_tables.table_pgd100,
    "table-sigma": paper_tables.table_sigma,
    "table-kr": paper_tables.table_kr,
    "table-sigma-kr": paper_tables.table_sigma_kr,
    "table-gamma": paper_tables.table_gamma,
    "table-elu": paper_tables.table_elu,
    "fig-training": paper_figures.fig_training,
    "fig1a": paper_figures.fig1a,
    "fig1b": paper_figures.fig1b,
    "fig1c": paper_figures.fig1c,
    "fig-certified": paper_figures.fig_certified,
    "fig1d": paper_figures.fig1d,
    "fig-elu": paper_figures.fig_elu,
    "fig2": paper_figures.fig2,
    "fig-transfer": paper_figures.fig_transfer,
    "lemma1": claims.lemma1,
    "theorem2": claims.theorem2,
    "corollary": claims.corollary,
}
"""Every table, figure and checked claim of the paper, by its name on the command line."""
OURS: dict[str, Callable[[Scale], AnySpec]] = {
    "table-main": main_experiment.table_main,
    "table-pairs": main_experiment.table_pairs,
    "table-autoattack": main_experiment.table_autoattack,
    "table-certified": our_tables.table_certified,
    "table-certified-pairs": our_tables.table_certified_pairs,
    "table-mnist": our_tables.table_mnist,
    "table-variations": ablations.table_variations,
    "table-variations-pairs": ablations.table_variations_pairs,
    "fig-transfer-short": ablations.fig_transfer_short,
    "table-tiny": ablations.table_tiny,
    "table-tiny-pairs": ablations.table_tiny_pairs,
    "table-summary": main_experiment.table_summary,
    "fig-summary": main_experiment.fig_summary,
    "fig-pareto": main_experiment.fig_pareto,
    "table-pareto": main_experiment.table_pareto,
    "table-cost": table_cost,
}
"""Tables and figures that the paper does not have."""
VARIANTS: dict[str, Callable[[Scale], AnySpec]] = {
    "table-variants": variant_tables.table_variants,
    "table-variants-pairs": variant_tables.table_variants_pairs,
    "table-variants-pareto": variant_tables.table_variants_pareto,
    "table-variants-onecycle": variant_tables.table_variants_onecycle,
}
"""Variants of NAL that were tried."""
GROUPS = {"all": PAPER, "ours": OURS, "variants": VARIANTS}
"""Words for many names: the tables and figures of the paper, our own, and the variants of NAL."""
SPECS = PAPER | OURS | VARIANTS | {"protocol-variants": paper_tables.protocol_variants}
"""Everything that has a name; the variants of the paper's protocol are in no group."""


@dataclass(frozen=True)
class Plan:
    """What is to be made, and the jobs and runs behind it, each once."""

    scale: Scale
    specs: tuple[AnySpec, ...]
    jobs: tuple[Job, ...]
    runs: tuple[TrainConfig, ...]


def plan(names: Sequence[str], scale: Scale) -> Plan:
    """The plan of some tables and figures, or groups of them, at a scale.

    A spec that the scale leaves empty, because it has no surrogate for its data set, is left out.
    """
    chosen = dict.fromkeys(name for asked in names for name in GROUPS.get(asked, (asked,)))
    specs = tuple(spec for spec in (SPECS[name](scale) for name in chosen) if spec.jobs)
    jobs = tuple(dict.fromkeys(job for spec in specs for job in spec.jobs))
    return Plan(scale, specs, jobs, tuple(dict.fromkeys(one for job in jobs for one in job.runs)))


class AbsentError(ValueError):
    """What is asked for was not made yet; nothing is wrong with what is there."""


@dataclass
class Store:
    """An experiment store: a folder of runs and their records, and the device to work on."""

    out: Path
    """Where tables and figures go, and new runs, into `runs/`."""
    device: torch.device
    root: Path | None = None
    """Folder of the data sets."""
    progress: ProgressCallback | None = None
    _target: tuple[tuple[Any, ...], Target] | None = None

    def folder(self, config: TrainConfig) -> Path:
        """The run folder of a config; packed records may be of a second training, whose name ends with a letter."""
        folder = self.out / "runs" / config.run_id
        return folder if folder.exists() else min(folder.parent.glob(f"{config.run_id}-[b-z]"), default=folder)

    def run(self, config: TrainConfig) -> Run:
        """The run of a config."""
        return Run(self.folder(config), config)

    def trained(self, config: TrainConfig) -> bool:
        """Whether a run is finished, with its weights or published without them."""
        found = self.run(config)
        return found.finished or found.published

    def target(self, job: Job) -> Target | Untargeted:
        """The network of a job with its data; the last one is kept, since jobs come run by run."""
        if job.run is None:
            return Untargeted(self.out / CLAIMS)
        key = (job.run, job.sigma, job.split, job.skip)
        if self._target is None or self._target[0] != key:
            # The plan names the network and its data itself, so the folder may use them.
            target = Target.from_run(
                self.folder(job.run),
                device=self.device,
                sigma=job.sigma,
                data=job.run.data,
                root=self.root,
                progress=self.progress,
                model=job.run.model,
            )
            if job.split == "train":
                target = replace(target, data=load(target.data.name, "train", root=self.root, progress=self.progress))
            if job.skip:
                images = len(target.data)
                target = replace(target, data=target.data.select(torch.arange(min(job.skip, images // 2), images)))
            self._target = (key, target)
        target = self._target[1]
        if job.source is None:
            return target
        return target.with_source(self.folder(job.source), model=job.source.model)

    def find(self, job: Job) -> Path | None:
        """Where the record of a job is, finished or not; None if there is none."""
        if job.evaluation is None:
            assert job.run is not None
            return self.folder(job.run) if self.trained(job.run) else None
        if job.run is None:
            return find_record(job.evaluation, self.out / CLAIMS, model_hash=None)
        if not all(map(self.trained, job.runs)):
            return None
        return find_record(
            job.evaluation,
            self.folder(job.run),
            model_hash=self.run(job.run).model_hash,
            sigma=job.sigma,
            split=job.split,
            source_hash=None if job.source is None else self.run(job.source).model_hash,
        )

    def done(self, job: Job) -> bool:
        """Whether the record of a job is there and finished."""
        path = self.find(job)
        return path is not None and (job.evaluation is None or is_finished(path))

    def read(self, job: Job) -> Record:
        """The finished record of a job, or one line that says why not; `AbsentError` if it was not made yet."""
        for config in job.runs:
            if not self.trained(config):
                raise AbsentError(f"{self.folder(config)} must hold a finished run, but it is not trained")
        path = self.find(job)
        if path is None:
            folder = self.out / CLAIMS if job.run is None else self.folder(job.run)
            raise AbsentError(f"{folder} must hold the record of this {job.word}, but it was not evaluated")
        if job.evaluation is None:
            assert job.run is not None
            return Record(path / "metrics.jsonl", "training", {}, self.run(job.run).metrics(), {})
        return read_finished(path)

    def perform(self, job: Job) -> Record:
        """Train what the job needs, evaluate what is missing, and return the record; a finished one is read."""
        if self.done(job):
            return self.read(job)
        for config in job.runs:
            # Trained again, a run that was published without weights would have records of two networks.
            if self.run(config).published:
                folder = self.folder(config)
                raise AbsentError(f"{folder} must hold its weights for more records, but it was published without them")
            train(config, self.folder(config), device=self.device, root=self.root, resume=True, progress=self.progress)
        if job.evaluation is None:
            return self.read(job)
        evaluation = job.evaluation
        if isinstance(evaluation, Certify) and self.device.type == "cuda":
            evaluation = replace(evaluation, dtype="bfloat16", compiled=True)
        return run(evaluation, self.target(job), progress=self.progress)


@dataclass(frozen=True)
class Outcome:
    """What was written, and what is missing in it."""

    files: tuple[Path, ...]
    faults: tuple[str, ...]
    """One line each."""


def reproduce(
    plan: Plan,
    store: Store,
    *,
    draw_only: bool = False,
    minutes: float = math.inf,
    to: Path | None = None,
    failed: Mapping[Job, Gap] | None = None,
) -> Outcome:
    """Make every table and figure of a plan.

    What is finished is not done again, and interrupted work continues. The work goes run by run, so that what is there
    after a while is whole rows. An evaluation that fails, or a record that cannot be read, leaves its cells empty with
    one line that says why; everything else is made.

    Args:
        plan: What to make.
        store: Where.
        draw_only: Train and evaluate nothing: show what is there.
        minutes: Start no training and no evaluation after this time; what is then missing is left out.
        to: Folder whose `tables` and `figures` are written; default: that of the store.
        failed: Jobs that are known to have failed, and why (`perform_all`).
    """
    if not minutes > 0:
        raise ValueError(f"minutes must be > 0, got {minutes:g}")
    end = -math.inf if draw_only else time.monotonic() + 60 * minutes
    if not draw_only:
        check_data(plan, store)
    files: list[Path] = []
    found: dict[str, None] = {}
    for spec, document in documents(plan, store, end, failed):
        files += write(spec, document, to or store.out)
        found |= dict.fromkeys(faults(document))
    return Outcome(tuple(files), tuple(found))


def check_data(plan: Plan, store: Store) -> None:
    """Load the data sets of a plan: missing data stops everything before hours of work."""
    for name in dict.fromkeys(config.data for config in plan.runs):
        load(name, "test", root=store.root, progress=store.progress)


def documents(
    plan: Plan, store: Store, end: float = -math.inf, failed: Mapping[Job, Gap] | None = None
) -> Iterator[tuple[AnySpec, dict[str, Any]]]:
    """Each table and figure of a plan with its numbers, as soon as they are there; a record is read once.

    No more work is started after `end`, by the monotonic clock; minus infinity shows only what is there.
    """
    asked: dict[Job, dict[Question, None]] = {}
    for spec in plan.specs:
        for question in questions(spec):
            asked.setdefault(question.metric.job, {})[question] = None
    found: dict[Question, dict[str, Any]] = {}
    diverged: dict[TrainConfig, Gap] = {}
    waiting = list(plan.specs)
    for job in _run_by_run(asked):
        result = (failed or {}).get(job) or _result(job, store, diverged, end)
        place = "" if isinstance(result, Gap) else result.path.relative_to(store.out).as_posix()
        new = answers(asked.pop(job), result if isinstance(result, Gap) else Reader(result), place)
        for answer in new.values():
            if "fault" in answer:
                # Paths relative to the store read the same wherever it is.
                answer["fault"] = answer["fault"].replace(f"{store.out}/", "")
        found |= new
        while waiting and not asked.keys() & set(waiting[0].jobs):
            spec = waiting.pop(0)
            yield spec, fill(spec, found)


def _run_by_run(jobs: Iterable[Job]) -> list[Job]:
    """All evaluations of a run after each other, runs in the order in which they are first met."""
    groups: dict[TrainConfig | None, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.run, []).append(job)
    return [job for group in groups.values() for job in group]


def _result(job: Job, store: Store, diverged: dict[TrainConfig, Gap], end: float) -> Record | Gap:
    """The record of a job, or why there is none; a run that diverged is not trained again."""
    for config in job.runs:
        if config in diverged:
            return diverged[config]
    try:
        return store.perform(job) if time.monotonic() < end else store.read(job)
    except FloatingPointError as error:
        config = next(config for config in job.runs if not store.trained(config))
        diverged[config] = Gap(f"{store.folder(config)} did not converge: {error}")
        return diverged[config]
    except (ValueError, OSError) as error:
        return Gap(" ".join(str(error).split()), absent=isinstance(error, AbsentError))


def write(spec: AnySpec, document: dict[str, Any], out: Path) -> list[Path]:
    """Write a document and what people look at: Markdown and CSV of a table, SVG and PDF of a figure."""
    if isinstance(spec, Figure | Matrix):
        figure = draw(document)
        contents: dict[str, str | bytes] = {"svg": to_bytes(figure, "svg"), "pdf": to_bytes(figure, "pdf")}
    else:
        contents = {"md": markdown(document), "csv": comma_separated(document)}
    path = place(spec.name, out)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, document)
    for ending, content in contents.items():
        write_whole(path.with_suffix(f".{ending}"), content)
    return [path.with_suffix(f".{ending}") for ending in ("json", *contents)]


def place(name: str, out: Path) -> Path:
    """Where the document of a table or figure is; what people look at is next to it."""
    return out / ("figures" if name.startswith("fig") else "tables") / f"{name}.json"
