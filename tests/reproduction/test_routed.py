"""The example of input-dependent noise from training to certificates, and the published table of what it gains."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from reproduction.routed import check_same, faults, read_routed, write_routed
from rhobust.cli import run
from rhobust.records import Record
from tests.conftest import load_script

ROOT = Path(__file__).parents[2]
TRAINING = "--data digits --model cnn-small --epochs 15 --lr 0.005 --validation 200 --quiet"


@pytest.fixture(scope="module")
def example():
    module = load_script("examples/routed.py")

    def call(*options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["routed.py", *map(str, options)])
            module.main()

    return call


@pytest.fixture(scope="module")
def certified(example, tmp_path_factory):
    """A file of certificates on held-out images, by two classifiers of different noise and a trained router."""
    folder = tmp_path_factory.mktemp("routed")
    runs = [folder / "little", folder / "much"]
    for sigma, out in zip((0.1, 0.25), runs, strict=True):
        command = f"train method:gaussian --method.sigma {sigma} {TRAINING} --out {out}"
        assert run(command.split()) == 0
    routes = folder / "routes.npz"
    example("routes", *runs, "--out", routes)
    command = f"train method:gaussian --method.sigma 0.25 {TRAINING} --out {folder / 'router'}"
    assert run(command.replace("--data digits", f"--data {routes}").replace("--epochs 15", "--epochs 30").split()) == 0
    out = folder / "routed.json.gz"
    options = ("--router", folder / "router", "--out", out, "--limit", 30, "--n", 1000, "--split", "validation")
    example("certify", *runs, *options)
    return out


def test_every_certificate_follows_from_the_counts_of_its_parts(certified):
    document = read_routed(certified)
    assert document["split"] == "validation"
    assert len(document["rows"]) == 30
    assert [one["sigma"] for one in document["classifiers"]] == [0.1, 0.25]
    right = [row for row in document["rows"] if row["prediction"] == row["label"]]
    assert len(right) > 20
    assert {row["prediction"] for row in document["router"]["rows"]} >= {0, 1}


def test_a_changed_count_or_radius_is_a_fault(certified):
    document = read_routed(certified)
    place, row = next((place, row) for place, row in enumerate(document["rows"]) if row["radius"] > 0)
    row["radius"] += 0.25
    found = list(faults(document))
    assert len(found) == 1
    assert found[0].startswith(f"example {row['index']}: its parts give {row['prediction']} within ")
    row["radius"] -= 0.25
    document["router"]["rows"][place]["radius"] += 0.25
    assert any("the counts give the radius" in fault for fault in faults(document))


def test_rows_that_are_not_those_of_their_parts_are_faults(certified):
    document = read_routed(certified)
    row = document["rows"][0]
    twice = document | {"rows": [*document["rows"], row]}
    once = f"example {row['index']} must occur once in the file and in its router"
    assert list(faults(twice)) == [once]
    assert list(faults(document | {"router": document["router"] | {"rows": document["router"]["rows"][1:]}})) == [once]
    fewer = document | {"rows": document["rows"][1:]}
    assert list(faults(fewer)) == [f"example {row['index']} must have a row, as it has in the router: it was left out"]
    other = document | {"rows": [row | {"label": row["label"] + 1}, *document["rows"][1:]]}
    assert list(faults(other)) == [f"example {row['index']}: its parts must have the label {row['label'] + 1}"]


@pytest.mark.parametrize(("key", "value"), [("split", "test"), ("sigma", 1.0), ("alpha", 0.01)])
def test_a_classifiers_own_record_must_be_of_the_same_images_noise_and_level(certified, key, value):
    document = read_routed(certified) | {"sigma": 0.1}
    settings = {name: document[name] for name in ("data", "split", "data_fingerprint", "sigma", "alpha")}
    check_same(document, Record(Path("own.jsonl"), "certify", settings, [], None))
    with pytest.raises(ValueError, match=f"own.jsonl must have the {key} "):
        check_same(document, Record(Path("own.jsonl"), "certify", settings | {key: value}, [], None))


def test_the_images_were_trained_on_by_nobody(certified):
    document = read_routed(certified)
    assert (document["trained_on"], document["dtype"], document["device"]) == (0, "float32", "cpu")


def test_runs_that_held_out_other_images_are_refused(example, certified, tmp_path):
    runs = [certified.parent / "little", tmp_path / "other"]
    once = TRAINING.replace("--epochs 15", "--epochs 1")
    assert run(f"train method:gaussian {once} --seed 1 --out {runs[1]}".split()) == 0
    line = "runs must have the same data, and hold out the same images"
    with pytest.raises(SystemExit, match=line):
        example("routes", *runs, "--out", tmp_path / "routes.npz")
    options = ("--router", certified.parent / "router", "--out", tmp_path / "routed.json", "--split", "validation")
    with pytest.raises(SystemExit, match=line):
        example("certify", *runs, *options)


def test_the_parts_share_alpha(certified):
    # What was proved at a third of alpha is not proved at less.
    document = read_routed(certified)
    assert not list(faults(document))
    assert list(faults(document | {"alpha": document["alpha"] / 1000}))


RESULTS = ROOT / "results"


def test_the_published_table_is_what_the_certificates_give(redrawn):
    assert redrawn(write_routed, "records", "routed")


@pytest.mark.parametrize(("name", "named"), [("lead", {0: 288, 1: 12}), ("votes", {1: 300})])
def test_the_published_routers_name_one_classifier_nearly_always(name, named):
    document = read_routed(RESULTS / "routed" / f"{name}.json.gz")
    assert Counter(row["prediction"] for row in document["router"]["rows"]) == named
    assert (document["split"], document["trained_on"]) == ("test", 0)
