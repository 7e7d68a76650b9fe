"""What the pages of results say beyond the numbers filled in from tables (`test_docs.py`) is in the records."""

import importlib.metadata
import json
import math
import shlex
from pathlib import Path
from statistics import mean

import pytest
import torch

from reproduction.filling import told_from
from reproduction.pages import place, places, shown
from reproduction.plan import BEYOND, SPECS, plan
from reproduction.readings import certified_radii, robust_shares
from reproduction.reproduce import documents
from reproduction.scales import SCALES
from reproduction.workshop import Workshop
from rhobust.cli import parse
from rhobust.commands import train
from rhobust.formatting import format_number
from rhobust.measurements import contradictions
from rhobust.records import read_head, read_json, read_record, read_rows, record_paths
from rhobust.stats import share
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


def test_the_sharper_bound_is_its_record(shift):
    curve = {point["eps"]: point["certified_accuracy"] for point in shift.summary["curve"]}
    shown = [format_number(curve[eps], 4, "down") for eps in (0.0, 0.05, 0.1)]
    assert f"the same network certifies {shown[0]} at 0, {shown[1]} at sigma / 2 and {shown[2]} at sigma" in PAGE
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
    shared = {row["name"]: row["seconds"] for row in document["while_the_cores_were_shared"]}
    ratios = [shared[name] / shared["rhobust"] for name in ("foolbox", "foolbox, torch's layers")]
    assert f"gave ratios of {ratios[0]:.1f} and {ratios[1]:.1f} for foolbox" in PAGE


SCALE = {**dict.fromkeys(BEYOND, "gpu"), "fig1a": "small", "fig1c": "small"}
"""The scale at which each table and figure was made."""
ARCHIVES = {"gpu": GPU, "small": SMALL}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CHANGES = {path.stem for path in (RESULTS / "tables").glob("table-changes*.json")}
"""Tables that reproduction/changes.py makes; its tests look at them."""


@pytest.fixture(scope="module")
def made(published):
    """What reproduce makes of the packed records now, by name."""
    return {
        spec.name: told_from(filled, published(*archives))
        for scale, archives in ARCHIVES.items()
        for spec, filled in documents(
            plan([name for name in SCALE if SCALE[name] == scale], SCALES[scale]),
            Workshop(published(*archives), torch.device("cpu")),
            -math.inf,
        )
    }


@pytest.fixture(scope="module")
def runs(published):
    """All run folders behind the tables and figures."""
    return sorted(run for archives in ARCHIVES.values() for run in (published(*archives) / "runs").iterdir())


def test_the_tables_in_the_results_are_what_the_records_give(made):
    for name, document in made.items():
        assert read_json(place(name, RESULTS)) == document, f"{name} is stale: results/README.md says how to draw it"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_places_in_a_page_hold_what_the_records_give(page, made):
    there = {name: text for name, text in places(page).items() if name != "headline"}
    assert there.keys() <= (SPECS | BEYOND).keys() | CHANGES
    for name, content in there.items():
        if name in CHANGES:
            continue
        fresh = shown(made[name], RESULTS, page)
        assert content == fresh, f"{name} is stale: results/README.md says how to draw it"


def test_the_pages_show_all_of_ours():
    shown_somewhere = {name for page in PAGES for name in places(page)} - {"headline"}
    assert shown_somewhere == SCALE.keys() | CHANGES


def test_the_pictures_are_drawn_from_the_records(made):
    """Only the version that drew them draws the same bytes."""
    from reproduction.drawing import draw, to_bytes

    for name in ("fig-story", "fig-front", "fig-across", "fig1a", "fig1c"):
        picture = place(name, RESULTS).with_suffix(".svg").read_bytes()
        if f"Matplotlib v{importlib.metadata.version('matplotlib')}".encode() in picture:
            assert picture == to_bytes(draw(made[name]), "svg"), f"{name}.svg is stale"


def told_by_its_command(folder):
    """The config that a run's command gives, which must be its own."""
    program, name, *arguments = shlex.split(read_json(folder / "environment.json")["command"])
    assert (program, name) == ("rhobust", "train")
    config = parse(train.COMMAND, name, arguments).config
    assert config == open_run(folder).config
    return config


def test_the_pretrained_network_says_how_it_was_made():
    assert told_by_its_command(PRETRAINED).data == "mnist"
    assert {read_head(path)["settings"]["model_hash"] for path in record_paths(PRETRAINED)} == {
        open_run(PRETRAINED).model_hash
    }


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


def test_every_evaluation_says_what_it_took(made, runs):
    works = [work for work in made["ledger"]["works"].values() if "fault" not in work]
    assert {work["run"] for work in works} <= {folder.name for folder in runs}
    assert all(work["seconds"] is None or work["seconds"] > 0 for work in works)
    assert all(work["seconds"] for work in works if work["work"] == "training")


def test_nothing_is_certified_above_what_an_attack_left(runs):
    for folder in runs:
        certificates = [read_record(path) for path in record_paths(folder, "certify-[!s]*")]
        for path in record_paths(folder, "attack") if certificates else []:
            attack = read_record(path)
            assert contradictions([attack, *certificates]) == []
            if attack.settings["scored"] == "smoothed":
                left = robust_shares(attack)
                for certificate in certificates:
                    radii = certified_radii(certificate)
                    for radius in left:
                        proved = share(sum(reach >= radius for reach in radii), len(radii))
                        assert proved.low <= left[radius].high, (certificate.path, path.name, radius)
