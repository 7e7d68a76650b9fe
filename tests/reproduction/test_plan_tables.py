"""The tables of a plan are counted from what its archive holds, and show nothing that is not there."""

import csv
import shutil
from pathlib import Path
from statistics import fmean, stdev

import pytest

from reproduction import plan_tables
from reproduction.archive import pack
from reproduction.plan_tables import names, read_networks, write_plan, write_plan_tables
from rhobust.archives import opened
from rhobust.evaluation import Certify, Target
from rhobust.evaluation import run as evaluate
from rhobust.measurements import CERTIFIED, outcomes, read_finished
from rhobust.progress import no_progress
from rhobust.records import record_paths
from rhobust.stats import mean_difference
from rhobust.sweeps import read_plan, run_sweep

RECORDS = Path(__file__).parents[2] / "results" / "records"
PACKED = [path.stem for path in plan_tables.PLANS if (RECORDS / f"{path.stem}.tar.xz").exists()]
PLAN = """
title = "Small"
[train]
data = "digits"
model = "cnn-small"
epochs = 1
[[grid]]
seed = [0, 1]
method = [
    { kind = "nal", sigma = 0.25, steps = 1, draws = 1 },
    { kind = "smoothadv", sigma = 0.25, steps = 1, draws = 1 },
]
[[grid]]
seed = [0]
method = [{ kind = "nal", sigma = 0.1, steps = 1, draws = 1 }, { kind = "trades", steps = 1 }]
[[evaluate]]
kind = "certify"
methods = ["nal"]
radii = [0.0, 0.25, 0.5]
n = 500
limit = 12
[[evaluate]]
kind = "certify"
methods = ["smoothadv"]
radii = [0.0, 0.25, 0.5]
n = 500
limit = 6
stride = 2
[[evaluate]]
kind = "certify"
methods = ["nal"]
procedure = "two-stage"
n0 = 20
n = 200
limit = 4
[[evaluate]]
kind = "certify-shift"
methods = ["nal"]
eps = [0.0, 0.1]
[[evaluate]]
kind = "certify-shift"
methods = ["nal"]
cost = "w1"
eps = [0.0, 0.1]
[[evaluate]]
kind = "attack"
methods = ["nal", "smoothadv"]
attack = { kind = "eot", steps = 1, draws = 1 }
radii = [0.0, 0.5]
limit = 4
probe = false
[[evaluate]]
kind = "attack"
methods = ["trades"]
attack = { kind = "pgd", steps = 1 }
radii = [0.0, 0.5]
limit = 4
probe = false
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "small.toml"
    path.write_text(PLAN)
    return read_plan(path)


@pytest.fixture(scope="module")
def archive(plan, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    outcome = run_sweep(plan, out / "swept", device="cpu", progress=no_progress)
    assert not outcome.failures
    path = out / "results" / "records" / "small.tar.xz"
    pack(out / "swept", path)
    return path


@pytest.fixture
def runs(archive):
    with opened([archive]) as found:
        yield found.paths


def written(plan, runs, folder):
    """The tables by topic, as programs read them and as people do."""
    (folder / "tables").mkdir()
    tables, pages = {}, {}
    for path in write_plan(plan, runs, folder / "tables" / "table-small.csv"):
        topic = path.stem.removeprefix("table-small-")
        if path.suffix == ".md":
            pages[topic] = path.read_text()
            continue
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        tables[topic] = {(row["name"], row["column"]): row for row in rows}
    return tables, pages


def test_networks_are_named_by_what_they_differ_in(plan, runs):
    assert names(read_networks(plan, runs)) == [
        *("NAL, sigma 0.25, seed 0", "SmoothAdv, sigma 0.25, seed 0"),
        *("NAL, sigma 0.25, seed 1", "SmoothAdv, sigma 0.25, seed 1"),
        *("NAL, sigma 0.1, seed 0", "TRADES, seed 0"),
    ]


def test_numbers_are_those_of_the_records(plan, runs, tmp_path):
    tables, pages = written(plan, runs, tmp_path)
    assert tables.keys() == pages.keys() == {"certified", "radius", "white-box", "shift"}
    found = {}
    for method, seed in (("nal", 0), ("nal", 1), ("smoothadv", 0), ("smoothadv", 1)):
        (run,) = (run for run in runs if run.name.startswith(f"{method}-sigma0.25") and f"-seed{seed}-" in run.name)
        (path,) = record_paths(run, "certify-grid")
        found[method, seed] = outcomes(read_finished(path), CERTIFIED, 0.25)
    ours, theirs = ([found[method, seed] for seed in (0, 1)] for method in ("nal", "smoothadv"))
    table = tables["certified"]
    for seed in (0, 1):
        row = table[f"NAL, sigma 0.25, seed {seed}", "0.25"]
        assert (float(row["value"]), int(row["n"])) == (fmean(ours[seed].values()), 12)
    values = [fmean(one.values()) for one in ours]
    row = table["NAL, sigma 0.25, mean of 2 seeds", "0.25"]
    assert (float(row["value"]), float(row["deviation"])) == (fmean(values), stdev(values))
    # On the images that all four have.
    shared = sorted(theirs[0])
    means = [[fmean(one[index] for one in side) for index in shared] for side in (ours, theirs)]
    apart = mean_difference(*means)
    row = table["NAL, sigma 0.25, minus SmoothAdv, sigma 0.25", "0.25"]
    assert (float(row["value"]), float(row["low"]), float(row["high"]), int(row["n"])) == (
        *(apart.value, apart.low, apart.high),
        6,
    )


def test_only_networks_of_one_noise_are_compared(plan, runs, tmp_path):
    tables, _ = written(plan, runs, tmp_path)
    lines = {name for name, _ in tables["white-box"] if "minus" in name}
    assert lines == {
        "NAL, sigma 0.25, minus SmoothAdv, sigma 0.25",
        "NAL, sigma 0.25, minus TRADES",
        "NAL, sigma 0.1, minus TRADES",
    }
    # The smallest noise cannot certify the largest radius.
    columns = {column for name, column in tables["certified"] if name == "NAL, sigma 0.1, seed 0"}
    assert columns == {"0", "0.25"}


def test_what_is_not_there_has_no_line(plan, runs, tmp_path):
    left = [run for run in runs if run.name.startswith("nal-sigma0.25") and "-seed0-" in run.name]
    for path in (*record_paths(left[0], "certify-shift"), *record_paths(left[0], "attack")):
        path.unlink()
    tables, pages = written(plan, left, tmp_path)
    assert tables.keys() == {"certified", "radius"}
    assert {name for name, _ in tables["certified"]} == {"NAL, seed 0"}
    assert "On test images; 1 of the plan's 6 trainings are there." in pages["certified"]


def test_a_record_of_more_images_replaces_that_of_the_plan_and_one_of_other_noise_does_not(archive, plan, tmp_path):
    shutil.copytree(archive.parents[2] / "swept" / "runs", tmp_path / "runs")
    runs = sorted((tmp_path / "runs").iterdir())
    (run,) = (run for run in runs if run.name.startswith("nal-sigma0.25") and "-seed0-" in run.name)
    own, other = (Target.from_run(run, device="cpu", sigma=sigma) for sigma in (0.25, 0.3))
    evaluate(Certify(radii=(0.0, 0.25), n=300, limit=20), own, progress=no_progress)
    evaluate(Certify(radii=(0.0, 0.25), n=300, limit=30), other, progress=no_progress)
    tables, _ = written(plan, runs, tmp_path)
    ours = "NAL, sigma 0.25, seed 0"
    counts = {column: row["n"] for (name, column), row in tables["certified"].items() if name == ours}
    assert counts == {"0": "20", "0.25": "20"}
    assert tables["certified"]["NAL, sigma 0.25, mean of 2 seeds", "0.25"]["n"] == "12"


def test_a_run_that_the_plan_does_not_name_is_refused(plan, runs, tmp_path):
    other = tmp_path / "other.toml"
    other.write_text(PLAN.replace("epochs = 1", "epochs = 2"))
    with pytest.raises(ValueError, match=r"must be a training of the plan 'Small', but it names none like it"):
        read_networks(read_plan(other), runs)
    with pytest.raises(ValueError, match="must be the only network of its training to have a line, but there are two"):
        read_networks(plan, [runs[0], runs[0]])


@pytest.mark.skipif(not PACKED, reason="no plan has an archive yet")
def test_the_published_tables_of_plans_are_what_the_records_give(redrawn):
    assert redrawn(write_plan_tables, "records")


def test_plans_without_an_archive_have_no_table(archive, plan, tmp_path, monkeypatch):
    results = archive.parents[1]
    (results / "tables").mkdir(exist_ok=True)
    absent, there = tmp_path / "absent.toml", tmp_path / "small.toml"
    for path in (absent, there):
        path.write_text(PLAN)
    monkeypatch.setattr(plan_tables, "PLANS", [absent, there])
    found = {path.name for path in write_plan_tables(results)}
    assert found == {
        f"table-small-{topic}.{end}" for topic in ("certified", "radius", "white-box", "shift") for end in ("csv", "md")
    }


def test_a_search_is_ranked_and_compares_nothing(tmp_path):
    path = tmp_path / "search.toml"
    path.write_text("""
title = "Search"
split = "validation"
[train]
data = "digits"
model = "cnn-small"
epochs = 1
validation = 100
[[grid]]
method = [{ kind = "nal", sigma = 0.25, steps = 1, draws = 1 }, { kind = "gaussian", sigma = 0.25 }]
[[evaluate]]
kind = "certify"
radii = [0.0, 0.1, 0.2]
n = 300
limit = 20
""")
    plan = read_plan(path)
    run_sweep(plan, tmp_path / "swept", device="cpu", progress=no_progress)
    tables, pages = written(plan, sorted((tmp_path / "swept" / "runs").iterdir()), tmp_path)
    table = tables["certified"]
    names = list(dict.fromkeys(name for name, _ in table))
    means = [float(table[name, "mean above 0"]["value"]) for name in names]
    assert means == sorted(means, reverse=True)
    assert sorted(names) == ["NAL, seed 0", "Smoothing, seed 0"]
    for name, score in zip(names, means, strict=True):
        assert score == fmean(float(table[name, radius]["value"]) for radius in ("0.1", "0.2"))
    assert "On held-out training images" in pages["certified"]
