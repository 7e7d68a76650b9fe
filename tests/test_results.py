"""What the pages of results say beyond the numbers filled in from tables (`test_docs.py`) is in the records."""

import csv
import hashlib
import importlib.metadata
import io
import json
import shlex
from contextlib import suppress
from pathlib import Path
from statistics import mean

import pytest
import torch

from reproduction import variant_tables
from reproduction.plots import draw, to_bytes
from reproduction.render import comma_separated, markdown
from reproduction.runner import OURS, VARIANTS, Store, documents, place, plan
from reproduction.scales import SCALES
from rhobust.cli import parse
from rhobust.commands import train
from rhobust.files import read_json
from rhobust.measurements import CERTIFIED, ROBUST, contradictions, measurements
from rhobust.records import read_head, read_record, read_rows, record_paths
from rhobust.training import open_run

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "results" / "speed.md").read_text()
METHOD = (ROOT / "docs" / "results" / "method.md").read_text()


GPU, SMALL = ("cifar10", "mnist", "tiny-imagenet-50"), ("mnist-small",)
"""The archives whose records the tables and figures of a scale are drawn from."""
RESULTS = ROOT / "results"
PRETRAINED = RESULTS / "pretrained" / "mnist-nal"
SHIFT = "nal-sigma0.1-gamma0.5-mnist-cnn-epochs25-seed0-"
"""The network of MNIST that was certified for distributions on a CPU; the hash of its config follows."""


def record(name):
    return json.loads((RESULTS / "speed" / name).read_text())


@pytest.fixture(scope="module")
def shift(published):
    """The record of the certificate for distributions that was made on a CPU."""
    (path,) = published(*GPU).glob(f"runs/{SHIFT}*/certify-shift-*")
    return read_record(path)


def test_the_epochs_and_the_curve_are_the_records():
    document = record("training-speed-h200.json")
    seconds = [row["seconds"] for row in document["cifar10_epochs"]["epochs"]]
    assert f"{mean(seconds[1:]):.2f} s per epoch" in PAGE
    assert f"{min(seconds[1:]):.2f} and {max(seconds[1:]):.2f}" in PAGE
    assert f"come to {100 * mean(seconds[1:]) / 60:.1f} minutes" in PAGE
    plain, fast = (document["curve_of_an_earlier_run"][name] for name in ("float32", "default"))
    apart = [abs(one - two) for one, two in zip(plain, fast, strict=True)]
    means = [abs(mean(plain[i : i + 10]) - mean(fast[i : i + 10])) for i in range(0, 200, 10)]
    assert len(plain) == 200
    assert max(apart[:20]) < 0.005
    assert max(means[:6]) < 0.015
    assert max(means[6:]) < 0.002


def test_few_noise_samples_certify_more_up_to_half_of_sigma(shift):
    curve = {point["eps"]: point["certified_accuracy"] for point in shift.summary["curve"]}
    run = record("shift-passes-h200.json")["run"]
    intervals = dict(zip((round(eps, 9) for eps in run["eps"]), run["intervals"]["certified_accuracy"], strict=True))
    assert all(curve[eps] >= intervals[eps] for eps in (0.0, 0.01, 0.02, 0.03, 0.04, 0.05))


def test_the_first_images_of_mnist_are_harder_by_what_the_page_says(shift):
    shares = {row["index"]: row["errors"] / row["draws"] for row in shift.rows}
    errors = [shares[index] for index in range(10_000)]
    parts = [f"{100 * mean(errors[part]):.2f}%" for part in map(slice, (0, 0, 5000, 0), (2000, 5000, 10_000, 10_000))]
    told = "{} of the first 2,000, on {} of the first 5,000, on {} of the last 5,000, and on {} of all".format(*parts)
    assert f"errs on {told}" in METHOD
    left = pretrained_model_robust(steps=20)
    assert len(left) == 10_000
    first = mean(left[index] for index in range(2000))
    assert f"leaves {100 * first:.2f}% of the first 2,000 and {100 * mean(left.values()):.2f}% of all" in METHOD


def pretrained_model_robust(steps):
    """By image whether it is robust at radius 0.84 under the paper's attack with so many steps."""
    records = map(read_record, record_paths(PRETRAINED, "attack-paper"))
    (record,) = (record for record in records if record.settings["attack"]["steps"] == steps)
    return {row["index"]: not row["broken"] for row in record.rows if row["radius"] == 0.84}


def test_a_hundred_steps_make_no_difference():
    twenty, hundred = (pretrained_model_robust(steps) for steps in (20, 100))
    assert list(hundred) == list(range(2000))
    robust = [mean(left[index] for index in hundred) for left in (hundred, twenty)]
    assert robust[0] == robust[1]
    assert "More steps make no difference" in (ROOT / "docs" / "holds.md").read_text()


def test_the_bound_of_a_curve_is_at_most_linear():
    bound = record("shift-bound-cpu.json")["bound"]
    assert all(one["peak_mib"] < 1024 for one in bound)
    assert [one["points"] for one in bound] == [10_000, 100_000, 1_000_000]
    assert bound[0]["cpu_seconds"] < 5
    # At most linear: a hundred times the points take less than a hundred times as long.
    assert bound[2]["cpu_seconds"] < 100 * bound[0]["cpu_seconds"]


def test_four_steps_are_as_strong_as_twenty_of_foolbox():
    document = record("attacks-speed-cpu.json")
    own, *others = document["ways"]
    for other in others:
        if other["name"].startswith("foolbox"):
            assert other["ratio"] >= 3
            assert all(a <= b for a, b in zip(own["robust_accuracy"], other["robust_accuracy"], strict=True))
    for row in document["standing_on_other_networks"]:
        assert f"`{row['method']}`" in PAGE
        assert all(a <= b for a, b in zip(row["rhobust"], row["foolbox"], strict=True))


DRAWN = (
    ("gpu", GPU, tuple(OURS)),
    ("small", SMALL, ("fig1a", "fig1c")),
    ("gpu", ("nal-variants",), tuple(VARIANTS)),
)
"""Scale, archives and names of the published tables and figures."""
NUMBERS = json.loads((ROOT / "tests" / "golden" / "published_numbers.json").read_text())
"""Digests of all numbers of the published tables and figures, computed once from the files of version 1."""


@pytest.fixture(scope="module")
def made(published):
    """What the reproduction makes of the packed records now, by name."""
    return {
        spec.name: document
        for scale, archives, names in DRAWN
        for spec, document in documents(plan(names, SCALES[scale]), Store(published(*archives), torch.device("cpu")))
    }


@pytest.fixture(scope="module")
def runs(published):
    """All run folders behind the tables and figures."""
    return sorted(run for archives in (GPU, SMALL) for run in (published(*archives) / "runs").iterdir())


def rounded(value):
    """A document whose numbers have nine digits: the last ones of a bound depend on the processor."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    if isinstance(value, str):
        with suppress(ValueError):
            return f"{float(value):.9g}"
    return f"{value:.9g}" if isinstance(value, float) else value


@pytest.mark.slow
def test_the_tables_in_the_results_are_what_the_records_give(made):
    for name, document in made.items():
        path, stale = place(name, RESULTS), f"{name} is stale: results/README.md says how to draw it"
        assert rounded(read_json(path)) == rounded(document), stale
        if not name.startswith("fig"):
            written = (path.with_suffix(".csv").read_text(encoding="utf-8"), comma_separated(document))
            kept, made_now = (
                [[rounded(cell) for cell in row] for row in csv.reader(io.StringIO(text))] for text in written
            )
            assert kept == made_now, stale
            assert path.with_suffix(".md").read_bytes() == markdown(document).encode(), stale


@pytest.mark.slow
def test_nothing_else_is_published_as_a_table_or_figure(made):
    found = {path.stem for folder in ("tables", "figures") for path in (RESULTS / folder).iterdir()}
    index = {"recipe-search", "table-pretrained", "table-seeds", "table-routed", "table-other-authors"}
    assert found == made.keys() | index | {"fig-certified-radii", "fig-certified-votes"}


def digest(document):
    """Digest of every number of a document, in order, to ten digits; words and records may change."""
    ours = ("value", "low", "high", "n")
    axes = ("x", "y", "low", "high", "left", "right")

    def short(value):
        return None if value is None else f"{value:.10g}"

    if "lines" in document:
        cells = [cell for line in document["lines"] for cell in line["cells"]]
        found = [
            [short(cell["reported"]), *([short(one.get(key)) for key in ours] for one in cell["ours"])]
            for cell in cells
        ]
    elif "panels" in document:
        curves = [curve for panel in document["panels"] for curve in panel["curves"]]
        found = [
            [*([short(value) for value in curve.get(key) or []] for key in axes), curve.get("n")] for curve in curves
        ]
    else:
        found = [[[short(cell.get(key)) for key in ours] for cell in row] for row in document["cells"]]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]


@pytest.mark.slow
def test_no_published_number_has_changed(made):
    assert {name: digest(document) for name, document in made.items()} == NUMBERS


@pytest.mark.slow
def test_the_pictures_are_drawn_from_the_records(made):
    """Only the version that drew them draws the same bytes."""
    for name in ("fig-summary", "fig-pareto", "fig-transfer-short", "fig1a", "fig1c"):
        picture = place(name, RESULTS).with_suffix(".svg").read_bytes()
        if f"Matplotlib v{importlib.metadata.version('matplotlib')}".encode() in picture:
            assert picture == to_bytes(draw(made[name]), "svg"), f"{name}.svg is stale"


def told_by_its_command(folder):
    """The config that a run's command gives, which must be its own; adam was the default of the first ones."""
    program, name, *arguments = shlex.split(read_json(folder / "environment.json")["command"])
    assert (program, name) == ("rhobust", "train")
    own = open_run(folder).config
    if "--optimizer" not in arguments and own.optimizer == "adam":
        arguments += ["--optimizer", "adam"]
    config = parse(train.COMMAND, name, arguments).config
    assert config == own
    return config


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("mnist-nal", "mnist"),
        ("cifar10-nal-0.25", "cifar10"),
        ("cifar10-nal-taught-0.25", "cifar10"),
        ("cifar10-nal-distilled-0.25", "cifar10"),
    ],
)
def test_a_pretrained_network_says_how_it_was_made(name, data):
    folder = RESULTS / "pretrained" / name
    assert told_by_its_command(folder).data == data
    records = [read_head(path)["settings"]["model_hash"] for path in record_paths(folder)]
    assert set(records) == {open_run(folder).model_hash}


@pytest.mark.slow
def test_every_run_says_where_and_how_it_was_made(runs):
    for folder in runs:
        environment, config = read_json(folder / "environment.json"), read_json(folder / "config.json")
        on_gpu = "cnn-small" not in folder.name
        assert environment["device"] == ("cuda" if on_gpu else "cpu")
        assert environment["device_name"].startswith("NVIDIA") == on_gpu
        assert environment["torch"][0].isdigit()
        assert len(read_rows(folder / "metrics.jsonl")) == config["epochs"]
        assert isinstance(config["seed"], int)
        assert told_by_its_command(folder).run_id == folder.name.removesuffix("-b")
        assert not (folder / "model.safetensors").exists()


@pytest.mark.slow
def test_every_training_and_evaluation_says_what_it_took(runs):
    for folder in runs:
        assert all(row["seconds"] > 0 for row in read_rows(folder / "metrics.jsonl"))
        taken = [read_record(path).summary["seconds"] for path in record_paths(folder)]
        assert all(seconds is None or seconds > 0 for seconds in taken)


def test_every_run_of_a_variant_is_one_that_the_table_asks_for(published):
    asked = {config.run_id: config.epochs for config in variant_tables.runs().values()}
    for folder in (published("nal-variants") / "runs").iterdir():
        assert len(read_rows(folder / "metrics.jsonl")) == asked.pop(folder.name.removesuffix("-b"))
        assert read_json(folder / "environment.json")["device"] == "cuda"
    assert not asked


@pytest.mark.slow
def test_nothing_is_certified_above_what_an_attack_left(runs):
    for folder in runs:
        certificates = [read_record(path) for path in record_paths(folder, "certify-[!s]*")]
        for path in record_paths(folder, "attack") if certificates else []:
            attack = read_record(path)
            assert contradictions([attack, *certificates]) == []
            if attack.settings["scored"] == "smoothed":
                left = [one for one in measurements(attack) if one.quantity == ROBUST]
                for certificate in certificates:
                    proved = measurements(certificate, [one.at for one in left])
                    certified = [one for one in proved if one.quantity == CERTIFIED]
                    for attacked, one in zip(left, certified, strict=True):
                        assert one.low <= attacked.high, (certificate.path, path.name, one.at)
