"""Tables of what the plans of this folder trained, from the packed records of each: networks, means, differences.

An archive has the name of its plan. Only what it holds is shown: a training, a record or an archive that is not there
has no line, and the note says how many trainings of the plan there are.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from reproduction.experiments import LARGEST
from reproduction.seeds import Cell, Line, Outcomes, average_radius, differences, means, shares, write_lines
from reproduction.unfinished import read_counted, unfinished
from rhobust.archives import ENDING, opened
from rhobust.files import read_json
from rhobust.measurements import AVERAGE_RADIUS, CERTIFIED, ROBUST, SHIFT, measurements, outcomes
from rhobust.records import CONFIG, Record, Row, is_finished, record_paths
from rhobust.stats import mean
from rhobust.sweeps import SweepPlan, read_plan
from rhobust.training import TrainConfig, open_run

PLANS = sorted(Path(__file__).parent.glob("*.toml"))
METHODS = {
    **{"nal": "NAL", "smoothadv": "SmoothAdv", "trades": "TRADES", "wrm": "WRM", "gaussian": "Smoothing"},
    **{"macer": "MACER", "smoothmix": "SmoothMix", "catrs": "CAT-RS"},
}
"""Names of methods in tables; others are shown as the plan has them."""
OURS = "nal"
"""The method whose difference to every other one is shown."""
WORDS = {"steps": "K", "draws": "r", "agreement": "consistency", "weight_decay": "decay"}
"""Names of settings in tables, where they have others."""
SAME = ("data", "model", "activation")
"""What two networks must share to be compared, besides the noise if both have one."""


@dataclass(frozen=True)
class Network:
    """One training, with its records on the images of the plan; certificates and attacks may be unfinished."""

    config: TrainConfig
    settings: Row
    """Its config.json, the method's settings among the others."""
    records: Mapping[str, Sequence[Record]]
    """By the first words of their files' names, and the distance of a shift."""

    @property
    def stopped(self) -> bool:
        """Whether a record is not finished."""
        return any(record.summary is None for several in self.records.values() for record in several)

    def record(self, *kinds: str) -> Record | None:
        """The record of these kinds with the most images; None where there is none."""
        found = [record for kind in kinds for record in self.records.get(kind, ())]
        return max(found, key=lambda record: len({row["index"] for row in record.rows}), default=None)


def write_plan_tables(results: Path) -> list[Path]:
    """Write the tables of every plan whose archive is in a folder of results."""
    written = []
    for path in PLANS:
        archive = results / "records" / f"{path.stem}{ENDING}"
        if archive.exists():
            with opened([archive]) as here:
                written += write_plan(read_plan(path), here.paths, results / "tables" / f"table-{path.stem}.csv")
    return written


def write_plan(plan: SweepPlan, runs: Sequence[Path], path: Path) -> list[Path]:
    """Write the tables of a plan, each with its topic behind the name.

    Args:
        plan: The plan.
        runs: Folders of its runs, finished or without their weights.
        path: The tables' path without their topics.
    """
    networks = read_networks(plan, runs)
    named = dict(zip(names(networks), networks, strict=True))
    images = "held-out training images" if plan.split == "validation" else "test images"
    there = f"{len(networks)} of the plan's {len(plan.cells)} trainings are there"
    early = [name for name, network in named.items() if network.stopped]
    stopped = f" Evaluations that were stopped before their last image, of: {'; '.join(early)}." if early else ""
    written = []
    for topic, (title, lines_of, note) in TOPICS.items():
        lines = lines_of(named)
        if plan.split == "validation":
            lines = {name: lines[name] for name in named if name in lines}
            lines = ranked(lines) if topic == "certified" else lines
        if lines:
            about = f"{plan.title}: {title}", f"{note} On {images}; {there}. ±: standard deviation over seeds.{stopped}"
            written += write_lines(path.with_stem(f"{path.stem}-{topic}"), *about, lines)
    return written


def ranked(lines: Mapping[str, Line]) -> dict[str, Line]:
    """The networks of a search for certificates, the best mean over the radii above 0 first."""
    scores = {name: [cell for radius, cell in line.items() if radius != "0"] for name, line in lines.items()}
    means = {name: Cell(fmean(cell.value for cell in cells), cells[0].n) for name, cells in scores.items()}
    best = sorted(lines, key=lambda name: means[name].value, reverse=True)
    return {name: {**lines[name], "mean above 0": means[name]} for name in best}


def read_networks(plan: SweepPlan, runs: Sequence[Path]) -> list[Network]:
    """The trainings of a plan that are there, in its order; a run that it does not name, or names twice, is refused."""
    by_config: dict[TrainConfig, Network] = {}
    for run in runs:
        config = open_run(run).config
        if config not in plan.configs:
            raise ValueError(f"{run.name} must be a training of the plan {plan.title!r}, but it names none like it")
        if config in by_config:
            raise ValueError(f"{run.name} must be the only network of its training to have a line, but there are two")
        settings = read_json(run / CONFIG)
        method = settings.pop("method")
        records: dict[str, list[Record]] = {}
        stopped = unfinished(run)
        for record in map(read_counted, (path for path in record_paths(run) if path in stopped or is_finished(path))):
            asked = {"split": plan.split, "sigma": config.sigma}
            if record.rows and asked.items() <= record.settings.items():
                kind = record.path.name.split(".")[0].rpartition("-")[0]
                kind += f" {record.settings['cost']}" if record.kind == "certify-shift" else ""
                records.setdefault(kind, []).append(record)
        by_config[config] = Network(config, {**settings, **method}, records)
    return [by_config[config] for config in plan.configs if config in by_config]


def names(networks: Sequence[Network]) -> list[str]:
    """Method and seed of each network, and between them the settings in which networks of the plan differ."""
    values: dict[str, set[str]] = {}
    for network in networks:
        for key, value in network.settings.items():
            values.setdefault(key, set()).add(str(value))
    apart = [key for key, found in values.items() if len(found) > 1 and key not in ("kind", "seed", "rhobust")]
    found = []
    for network in networks:
        kind = network.settings["kind"]
        own = {key: value for key in apart if (value := network.settings.get(key)) is not None}
        said = [f"{WORDS.get(key, key)} {_plain(value)}" for key, value in own.items()]
        found.append(", ".join([METHODS.get(kind, kind), *sorted(said), f"seed {network.config.seed}"]))
    return found


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def compared(curves: Mapping[str, Outcomes], networks: Mapping[str, Network]) -> dict[str, Line]:
    """A line per network, the mean over seeds, and the mean of each of ours minus that of every other method.

    Args:
        curves: Outcomes by network.
        networks: The networks by name, those without outcomes too.
    """
    lines, groups = {}, grouped(curves)
    for group, members in groups.items():
        lines |= {name: shares(curves[name]) for name in members}
        if len(members) > 1:
            lines[_mean_name(group, members)] = means([curves[name] for name in members])
    for ours, theirs in itertools.permutations(groups, 2):
        one, other = (networks[groups[group][0]] for group in (ours, theirs))
        if comparable(one, other):
            sides = ([curves[name] for name in groups[group]] for group in (ours, theirs))
            lines[f"{ours}, minus {theirs}"] = differences(*sides)
    return lines


def grouped(names: Iterable[str]) -> dict[str, list[str]]:
    """The networks that differ in their seed alone, by what they share."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(name.rpartition(", seed ")[0], []).append(name)
    return groups


def _mean_name(group: str, members: Sequence[str]) -> str:
    return f"{group}, mean of {len(members)} seeds"


def with_means(lines: Mapping[str, Line]) -> dict[str, Line]:
    """The lines of networks, and behind those of several seeds the mean of the columns that all have."""
    found = {}
    for group, members in grouped(lines).items():
        found |= {name: lines[name] for name in members}
        if len(members) > 1:
            columns = [column for column in lines[members[0]] if all(column in lines[name] for name in members)]
            cells = {column: [lines[name][column] for name in members] for column in columns}
            found[_mean_name(group, members)] = {column: mean_of(several) for column, several in cells.items()}
    return found


def mean_of(cells: Sequence[Cell]) -> Cell:
    """The mean of several trainings' numbers, with their deviation."""
    values = [cell.value for cell in cells]
    return Cell(fmean(values), min(cell.n for cell in cells), deviation=stdev(values))


def comparable(ours: Network, theirs: Network) -> bool:
    """Whether the first is of our method and the second of another, on the same data, network and noise."""
    kinds = ours.settings["kind"] == OURS != theirs.settings["kind"]
    noises = {one.config.sigma for one in (ours, theirs)} - {None}
    return kinds and len(noises) == 1 and all(ours.settings.get(key) == theirs.settings.get(key) for key in SAME)


def _certified(networks: Mapping[str, Network]) -> dict[str, Line]:
    found = {name: network.record("certify-grid") for name, network in networks.items()}
    curves = {name: _reachable(record) for name, record in found.items() if record is not None}
    return compared(curves, networks)


def _reachable(record: Record) -> Outcomes:
    """Whether each image is certified, at the radii that its noise samples can reach."""
    radii = [radius for radius in record.settings["radii"] if radius < LARGEST * record.settings["sigma"]]
    return {radius: outcomes(record, CERTIFIED, radius) for radius in radii}


def _radius(networks: Mapping[str, Network]) -> dict[str, Line]:
    lines = {}
    for name, network in networks.items():
        measured = network.record("certify-two-stage")
        if measured is not None:
            lines[name] = {"ACR": acr(measured, network.record("certify-grid"))}
    return with_means(lines)


def acr(measured: Record, decided: Record | None) -> Cell:
    """The average certified radius of a few images, or of all decided ones if there are two of each decided radius."""
    radii = outcomes(measured, AVERAGE_RADIUS)
    if decided is not None:
        curve = [outcomes(decided, CERTIFIED, radius) for radius in decided.settings["radii"]]
        held = {index: sum(one[index] for one in curve) for index in curve[0]}
        few = [held[index] for index in radii if index in held]
        if len(few) == len(radii) and all(few.count(one) > 1 for one in held.values()):
            return average_radius(decided, measured)
    one = mean(list(radii.values()))
    return Cell(one.value, one.n, max(0.0, one.low), one.high)


def _attacked(*kinds: str) -> Callable[[Mapping[str, Network]], dict[str, Line]]:
    def lines(networks: Mapping[str, Network]) -> dict[str, Line]:
        found = {name: network.record(*kinds) for name, network in networks.items()}
        curves = {
            name: {radius: outcomes(record, ROBUST, radius) for radius in record.settings["radii"]}
            for name, record in found.items()
            if record is not None
        }
        return compared(curves, networks)

    return lines


def _shifted(networks: Mapping[str, Network]) -> dict[str, Line]:
    lines: dict[str, Line] = {}
    for name, network in networks.items():
        found = [network.record(f"certify-shift {cost}") for cost in COSTS]
        if line := {column: cell for record in found if record is not None for column, cell in _shifts(record)}:
            lines[name] = line
    return with_means(lines)


def _shifts(record: Record) -> Iterator[tuple[str, Cell]]:
    for one in measurements(record):
        if one.quantity == SHIFT and not one.detail.get("baseline"):
            yield f"{COSTS[one.detail['cost']]} {one.at:g}", Cell(one.value, one.n)


COSTS = {"w2": "W2", "w1": "W1", "winf": "W-inf"}
"""Distances between distributions, in the order of the columns."""
INTERVALS = (
    "In brackets: the 95% interval over the choice of images. Differences are of the means over seeds, on the images"
    " that all have; their interval does not cover other trainings."
)
Topic = tuple[str, Callable[[Mapping[str, Network]], dict[str, Line]], str]
TOPICS: dict[str, Topic] = {
    "certified": (
        "certified accuracy by radius",
        _certified,
        f"Each certificate is false with probability at most alpha over the noise. {INTERVALS}",
    ),
    "radius": (
        "average certified radius",
        _radius,
        "n: the images that the average is about. Where few of them have a radius each, these are weighted by the radii"
        " at which all were decided: an estimate. In brackets: its 95% interval.",
    ),
    "white-box": (
        "accuracy under the white-box attack by radius",
        _attacked("attack-eot", "attack-pgd"),
        f"EOT-PGD on smoothed classifiers, PGD on networks without noise: upper bounds on robust accuracy. {INTERVALS}",
    ),
    "autoattack": (
        "accuracy under AutoAttack by radius",
        _attacked("attack-autoattack"),
        f"Rand on smoothed classifiers, standard on others: upper bounds on robust accuracy. {INTERVALS}",
    ),
    "shift": (
        "certified accuracy of one noisy vote under shift, by distance",
        _shifted,
        "All numbers of a network for one kind of distance hold together with probability 1 - alpha. A mean of"
        " certified numbers is no certificate.",
    ),
}
"""Of each topic its title, its lines and what is said below it."""
