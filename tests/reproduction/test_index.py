"""The index has one row per published network, counted from its records."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest

from reproduction.index import COLUMNS, TITLES, page, row, write_pretrained, write_search
from reproduction.shift_tables import write_shift_tables
from rhobust.archives import ENDING
from rhobust.attacks import EOT
from rhobust.evaluation import Attack, Certify, Target
from rhobust.evaluation import run as evaluate
from rhobust.files import read_json
from rhobust.methods import Gaussian
from rhobust.progress import no_progress
from rhobust.training import TrainConfig, train

RESULTS = Path(__file__).parents[2] / "results"
ARCHIVES = sorted((RESULTS / "records").glob(f"*{ENDING}"))


@pytest.fixture(scope="module")
def table():
    with (RESULTS / "index.csv").open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    assert tuple(reader.fieldnames) == COLUMNS
    return rows


def name_of(archive):
    return archive.name.removesuffix(ENDING)


def test_a_name_and_a_fingerprint_mean_one_network(table):
    # The same weights with and without the mirror image are two networks.
    fingerprints = {(one["weights"], one["mirror"]) for one in table}
    assert len({one["name"] for one in table}) == len(fingerprints) == len(table)


def test_every_published_network_has_its_row(table, published):
    listed = {(one["records"], one["name"], one["weights"]) for one in table}
    found = {
        (f"records/{archive.name}", run.name, read_json(run / "weights.json")["model_hash"])
        for archive in ARCHIVES
        for run in (published(name_of(archive)) / "runs").iterdir()
    }
    assert {one for one in listed if one[0].startswith("records/")} == found
    assert [one["records"] for one in table if not one["records"].startswith("records/")] == [
        "pretrained/cifar10-nal-0.25",
        "pretrained/cifar10-nal-distilled-0.25",
        "pretrained/cifar10-nal-taught-0.25",
        "pretrained/mnist-nal",
    ]


@pytest.mark.parametrize("archive", ARCHIVES, ids=name_of)
def test_the_rows_are_what_the_records_give(table, published, archive):
    """Every fourth network here; `python -m reproduction index` counts all."""
    ours = [one for one in table if one["records"] == f"records/{archive.name}"]
    assert ours
    for one in ours[::4]:
        found = row(published(name_of(archive)) / "runs" / one["name"], one["records"])
        assert found == one, "index.csv is stale: run python -m reproduction index"


def test_the_pretrained_networks_have_their_rows(table):
    for one in table[-4:]:
        assert row(RESULTS / one["records"], one["records"]) == one
        assert one["records"] in TITLES


def test_the_table_of_pretrained_networks_is_what_the_records_give(redrawn):
    assert redrawn(write_pretrained, "pretrained")


def test_pretrained_networks_of_other_noises_have_other_radii(tmp_path):
    """A network for sigma 0.5 is certified at radii that one for 0.25 is not: its numbers stay in their columns."""
    for name, radii in (("a", (0.0, 0.1)), ("b", (0.0, 0.05, 0.2))):
        config = TrainConfig(Gaussian(sigma=0.25), data="digits", model="cnn-small", epochs=1)
        folder = train(config, tmp_path / "pretrained" / name, device="cpu", progress=no_progress).folder
        evaluate(Certify(radii=radii, n=300, limit=5), Target.from_run(folder, device="cpu"), progress=no_progress)
    (tmp_path / "tables").mkdir()
    _, page = write_pretrained(tmp_path)
    head, _, *lines = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("|")]
    assert head == ["| name", "sigma", "0", "0.05", "0.1", "0.2", "n |"]
    first, second = (dict(zip(head, line, strict=True)) for line in lines)
    assert (first["| name"], first["0.05"], first["0.2"]) == ("| a", "", "")
    assert (second["| name"], second["0.1"]) == ("| b", "")
    assert first["0.1"]
    assert second["0.2"]
    assert {line["n |"] for line in (first, second)} == {"5 |"}


@pytest.mark.slow
def test_the_tables_of_shifts_are_what_the_records_give(redrawn):
    written = redrawn(write_shift_tables, "pretrained", place="shift")
    assert {path.stem for path in written} >= {"table-corruptions", "table-subpopulations"}


def test_the_table_of_the_search_is_what_the_records_give(table, redrawn):
    assert redrawn(write_search, "records")
    searched = [one for one in table if one["records"] == "records/recipe-search.tar.xz"]
    # One was trained on all images: the pretrained network without its mirror image.
    assert [one["weights"] for one in searched if one["validation"] != "5000"] == [table[-2]["weights"]]
    assert sum(one["certified_on"] == "cifar10 test" for one in searched) == 4
    assert {one["certified_on"] for one in searched} == {"cifar10 test", "cifar10-validation-part train"}


def test_records_of_held_out_images_are_told_from_those_of_test_images(tmp_path):
    config = TrainConfig(Gaussian(sigma=0.25), data="digits", model="cnn-small", epochs=1, validation=100)
    folder = train(config, tmp_path, device="cpu", progress=no_progress).folder
    certify = Certify(n0=10, n=50, limit=3)
    attack = Attack(attack=EOT(steps=1, draws=1), radii=(0.0,), probe=False)
    held_out, test = (Target.from_run(folder, split=split, device="cpu") for split in ("validation", "test"))
    evaluate(certify, held_out, progress=no_progress)
    evaluate(replace(attack, limit=5), held_out, progress=no_progress)
    before = row(folder, "here")
    assert (before["certified_on"], before["attacked"]) == ("digits validation", "")
    evaluate(certify, test, progress=no_progress)
    evaluate(replace(attack, limit=4), test, progress=no_progress)
    after = row(folder, "here")
    assert (after["certified_on"], after["attacked"]) == ("digits test", "4")


def test_the_page_shows_the_same(table):
    assert (RESULTS / "index.md").read_text(encoding="utf-8") == page(table)


def test_the_readme_names_every_archive_and_how_many_networks_it_holds(table):
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    for archive in ARCHIVES:
        count = sum(one["records"] == f"records/{archive.name}" for one in table)
        assert re.search(rf"^\| \[{re.escape(archive.name)}\].*\| {count} \|$", text, re.MULTILINE)
        assert f"records/{archive.name}" in TITLES
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (RESULTS / link).exists(), link


def test_the_archives_stay_small():
    assert sum(archive.stat().st_size for archive in ARCHIVES) < 15e6
