"""One row per published network: what it is, how it is trained, where its records are, and its headline numbers.

Every number is counted from the records (`rhobust.measurements`), none is written by hand.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from reproduction.other_authors import write_other_authors
from reproduction.plan_tables import write_plan_tables
from reproduction.render import csv_table, markdown_table, write_table
from reproduction.routed import write_routed
from reproduction.seeds import write_seeds
from reproduction.shift_tables import write_shift_tables
from reproduction.unfinished import read_counted
from rhobust.archives import ENDING, opened
from rhobust.files import read_json
from rhobust.formatting import format_interval, format_number
from rhobust.measurements import CERTIFIED, ROBUST, Measurement, measurements, read_finished
from rhobust.records import Record, Row, read_head, record_paths
from rhobust.training import ENVIRONMENT, FINGERPRINT, WEIGHTS, file_hash, open_run, train_command

RADIUS = {"mnist": 0.84, "cifar10": 0.92, "tiny-imagenet-50": 0.93}
"""The L2 radius of the paper's main comparison on each data set, at which the white-box attack is quoted."""
CERTIFIED_RADIUS = {"mnist": 0.1, "cifar10": 0.25, "tiny-imagenet-50": 0.25}
"""The L2 radius at which certified accuracy is quoted; where it was not decided, the smallest that was, but 0."""
HELD_OUT, TRAINED_ON = "cifar10-validation-part", "cifar10-training-part"
"""What older records, of the search for a recipe, call the training images that were held out, and those that were
not; others call held-out images the split `validation`."""
VARIANTS_COMMAND = "python -m reproduction variants --scale gpu"
"""Trains the methods of `reproduction/variants.py`, which have no command line of their own."""
WHITE_BOX = ("eot", "pgd")
"""Attacks that know the network and its noise; AutoAttack was run on fewer images, the paper's attack is weaker."""
METHOD = {key: key for key in ("sigma", "gamma", "eps", "rho", "inner", "steps", "draws")} | {
    "consistency": "agreement"
}
"""Columns of a method's settings, and the keys of config.json."""
TRAINING = (
    *("data", "model", "activation", "epochs", "optimizer", "lr", "schedule", "batch_size", "weight_decay"),
    *("average", "weight_perturbation", "cutmix", "attack_after", "teacher", "teacher_weight", "mirror"),
    *("validation", "seed"),
)
COLUMNS = (
    *("name", "method", *METHOD, *TRAINING, "weights", "records", "device"),
    *("natural", "radius", "white_box", "attacked", "certified_radius", "certified_0", "certified", "certified_images"),
    "certified_on",
    "command",
)
"""Columns of index.csv; results/README.md says what they mean."""


def write_index(results: Path) -> list[Path]:
    """Write index.csv and index.md of a folder of results, and the tables of the search and of pretrained networks."""
    table = rows(results)
    written = write_table(results / "index.csv", page(table), csv_table([COLUMNS, *(line.values() for line in table)]))
    tables = (write_search, write_pretrained, write_seeds, write_routed, write_other_authors, write_shift_tables)
    tables += (write_plan_tables,)
    return written + [path for write in tables for path in write(results)]


SEARCH_RADII = (0.0, 0.25, 0.5, 0.75)


def write_search(results: Path) -> list[Path]:
    """Write the table of the search for a recipe: certified accuracy on held-out training images, best first."""
    found = []
    with opened([results / "records" / f"recipe-search{ENDING}"]) as here:
        for run in here.paths:
            for record in map(read_finished, record_paths(run, "certify")):
                if record.settings["data"] == HELD_OUT or record.settings["split"] == "validation":
                    proved = _at(record, CERTIFIED)
                    cells = {f"certified at {radius:g}": _shown(proved[radius]) for radius in SEARCH_RADII}
                    score = math.fsum(proved[radius].value for radius in SEARCH_RADII[1:]) / 3
                    config = read_json(run / "config.json")
                    cells |= {"mean": format_number(score, 4, "down"), "images": str(proved[0.0].n)}
                    cells["samples up to"] = f"{record.settings['n']:,}"
                    named = {"name": run.name, "epochs": str(config["epochs"]), "with": _helps(config)}
                    found.append(((-config["epochs"], -score), {**named, **cells}))
    table = [cells for _, cells in sorted(found, key=lambda one: one[0])]
    title = "Search for a training recipe: certified accuracy on held-out training images"
    page = f"# {title}\n\n{markdown_table(_rows(table), 3)}"
    return write_table(results / "tables" / "recipe-search.csv", page, csv_table(_rows(table)))


def write_pretrained(results: Path) -> list[Path]:
    """Write the table of certified accuracy of the pretrained models whose folders hold a record of it."""
    lines, table = [], []
    for run in sorted(path.parent for path in results.glob(f"pretrained/*/{WEIGHTS}")):
        for record in map(read_finished, record_paths(run, "certify-grid")):
            if record.settings["data"] == TRAINED_ON:
                continue
            found = [one for one in measurements(record) if one.quantity == CERTIFIED]
            cells = {"name": run.name, "sigma": f"{record.settings['sigma']:g}"}
            for one in found:
                assert one.low is not None
                assert one.high is not None
                cells[f"{one.at:g}"] = f"{_shown(one)} ({format_interval(one.low, one.high, 3)})"
                numbers = {"value": one.value, "low": one.low, "high": one.high, "n": one.n}
                table.append({"name": run.name, "column": f"{one.at:g}", **{key: str(numbers[key]) for key in numbers}})
            lines.append(cells | {"n": str(found[0].n)})
    note = "In brackets: the 95% interval over the choice of images; another training may differ by more."
    radii = sorted({float(column) for line in lines for column in line if column not in ("name", "sigma", "n")})
    columns = ["name", "sigma", *(f"{radius:g}" for radius in radii), "n"]
    shown = markdown_table([columns, *([line.get(column, "") for column in columns] for line in lines)], 2)
    page = f"# Certified accuracy of the pretrained models\n\n{shown}\n{note}\n"
    return write_table(results / "tables" / "table-pretrained.csv", page, csv_table(_rows(table)))


HELPS = {
    "weight_perturbation": "AWP {:g}",
    "cutmix": "CutMix {:g}",
    "average": "averaged weights {:g}",
    "attack_after": "attack after epoch {}",
    "teacher": "a teacher",
    "mirror": "mirror image",
}
"""Settings of a training that the table of the search names."""


def _helps(config: Row) -> str:
    return ", ".join(words.format(config[key]) for key, words in HELPS.items() if config.get(key))


def _rows(table: Sequence[dict[str, str]]) -> list[list[str]]:
    """The columns of a table, which are the same in all its lines, then its lines."""
    return [list(table[0]), *([*line.values()] for line in table)]


def rows(results: Path) -> list[dict[str, str]]:
    """One row per network of the packed records and of `pretrained`, in the order of archives and names."""
    found = []
    for archive in sorted((results / "records").glob(f"*{ENDING}")):
        with opened([archive]) as here:
            found += [row(run, archive.relative_to(results).as_posix()) for run in here.paths]
    for weights in sorted(results.glob(f"pretrained/*/{WEIGHTS}")):
        found.append(row(weights.parent, weights.parent.relative_to(results).as_posix()))
    return found


def row(run: Path, records: str) -> dict[str, str]:
    """What the index says of one run folder.

    `records` is where it is published, relative to the folder of results.
    """
    config, settings = open_run(run).config, read_json(run / "config.json")
    environment = read_json(run / ENVIRONMENT)
    weights = read_json(run / FINGERPRINT)["model_hash"] if (run / FINGERPRINT).exists() else file_hash(run / WEIGHTS)
    cells = {column: _plain(settings["method"].get(key)) for column, key in METHOD.items()}
    cells |= {key: _plain(settings.get(key)) for key in TRAINING}
    command = train_command(config) or (VARIANTS_COMMAND if "nal-variants" in records else "")
    named = run.name if run.name.startswith(config.run_id) else config.run_id
    found = {
        "name": named,
        "method": settings["method"]["kind"].rpartition(":")[2].lower(),
        **cells,
        "weights": weights,
        "records": records,
        "device": environment.get("device_name") or environment["device"],
        "command": command,
        **_headline(run, settings),
    }
    return {column: found.get(column, "") for column in COLUMNS}


def _headline(run: Path, settings: Row) -> dict[str, str]:
    """Natural accuracy, accuracy under the white-box attack and certified accuracy, each with its images."""
    cells: dict[str, str] = {}
    radius = RADIUS.get(settings["data"])
    attacks = {path: read_head(path)["settings"] for path in record_paths(run, "attack")}
    attacks = {path: one for path, one in attacks.items() if one["split"] == "test" and _own_attack(one, settings)}
    if attacks:
        # A white-box attack comes before the paper's attack, and the one on the most images first.
        images = {path: (_white_box(header), header["limit"] or math.inf) for path, header in attacks.items()}
        record = read_counted(max(images, key=images.__getitem__))
        robust = _at(record, ROBUST)
        cells |= {"natural": _shown(robust[0.0]), "attacked": str(robust[0.0].n)}
        if _white_box(record.settings) and radius in robust:
            cells |= {"radius": f"{radius:g}", "white_box": _shown(robust[radius])}
    found = [read_counted(path) for path in record_paths(run, "certify-[!s]*")]
    certificates = [record for record in found if record.settings["data"] != TRAINED_ON]
    for record in sorted(certificates, key=_telling)[:1]:
        proved = _at(record, CERTIFIED)
        wanted = CERTIFIED_RADIUS.get(settings["data"])
        at = wanted if wanted in proved else min((one for one in proved if one), default=0.0)
        cells |= {"certified_radius": f"{at:g}", "certified": _shown(proved[at]), "certified_images": str(proved[at].n)}
        cells["certified_0"] = _shown(proved.get(0.0))
        cells["certified_on"] = f"{record.settings['data']} {record.settings['split']}"
    return cells


def _telling(record: Record) -> tuple[bool, bool]:
    """Test images before held-out ones, and a procedure that decides given radii before others."""
    return record.settings["split"] != "test", record.settings["way"] != "grid"


def _own_attack(header: Row, settings: Row) -> bool:
    """Whether a record attacks the network itself, as its training means it to be used."""
    smoothed = settings["method"].get("sigma") is not None
    known = _white_box(header) or header["attack"]["kind"] == "paper"
    return known and header["source"] is None and header["scored"] == ("smoothed" if smoothed else "base")


def _white_box(header: Row) -> bool:
    return header["attack"]["kind"] in WHITE_BOX


def _at(record: Record, quantity: str) -> dict[float | None, Measurement]:
    return {one.at: one for one in measurements(record) if one.quantity == quantity}


def _shown(one: Measurement | None) -> str:
    return "" if one is None else format_number(one.value, 4, one.direction)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_plain, value))
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


TITLES = {
    "records/cifar10-certified.tar.xz": "CIFAR-10: other seeds of a pretrained network, and SmoothAdv with its teacher",
    "records/cifar10-certified-0.5.tar.xz": "CIFAR-10: the settings of sigma 0.25 at sigma 0.5",
    "records/cifar10.tar.xz": "CIFAR-10: the main comparison, seeds and variations",
    "records/mnist-routed.tar.xz": "MNIST: classifiers of different noise, and routers among them",
    "records/mnist.tar.xz": "MNIST: three seeds per method and penalty",
    "records/mnist-small.tar.xz": "MNIST on a laptop: Figures 1a and 1c of the paper",
    "records/nal-variants.tar.xz": "CIFAR-10: variants of NAL that were tried",
    "records/recipe-search.tar.xz": "CIFAR-10: search for a training recipe, on held-out training images",
    "records/tiny-imagenet-50.tar.xz": "Tiny ImageNet, 50 classes",
    "records/attacked.tar.xz": "CIFAR-10: networks trained against attacks",
    "records/certified.tar.xz": "CIFAR-10: certified accuracy of seven methods, sigma 0.25",
    "records/certified-0.5.tar.xz": "CIFAR-10: certified accuracy at sigma 0.5, three seeds",
    "records/certified-noise.tar.xz": "CIFAR-10: certified accuracy at sigma 0.12 and 1, three seeds",
    "records/search-0.5.tar.xz": "CIFAR-10: search for settings at sigma 0.5, on held-out training images",
    "records/search-attacked.tar.xz": "CIFAR-10: search for settings under attack, on held-out training images",
    "records/taught.tar.xz": "CIFAR-10: three teachers, sigma 0.25",
    "pretrained/cifar10-nal-0.25": "CIFAR-10: a network with its weights",
    "pretrained/cifar10-nal-distilled-0.25": "CIFAR-10: a network with its weights, taught by cifar10-nal-taught-0.25",
    "pretrained/cifar10-nal-taught-0.25": "CIFAR-10: a network with its weights, taught by cifar10-nal-0.25",
    "pretrained/mnist-nal": "MNIST: a network with its weights",
}
"""What each archive holds, those of plans that have none yet among them."""
HEADS = ("name", "weights", "natural", "white-box attack", "certified", "command")


def page(table: Sequence[dict[str, str]]) -> str:
    """The index as people read it: one table per archive."""
    lines = ["# Published networks", "", f"{len(table)} networks; [README.md](README.md) says what the columns mean."]
    for records in dict.fromkeys(one["records"] for one in table):
        group = [one for one in table if one["records"] == records]
        lines += ["", f"## {TITLES.get(records, records)}", "", f"[{records}]({records})", "", _table(group)]
    return "\n".join(lines) + "\n"


def _table(group: Iterable[dict[str, str]]) -> str:
    rows: list[Sequence[str]] = [HEADS]
    for one in group:
        attack = f"{one['white_box']} at {one['radius']}" if one["white_box"] else ""
        proved = f"{one['certified']} at {one['certified_radius']}" if one["certified"] else ""
        proved += " (held-out training images)" if proved and not one["certified_on"].endswith(" test") else ""
        command = f"`{one['command']}`" if one["command"] else ""
        rows.append([f"`{one['name']}`", one["weights"], one["natural"], attack, proved, command])
    return markdown_table(rows, len(HEADS)).removesuffix("\n")
