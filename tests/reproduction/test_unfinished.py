"""A record that was stopped is closed with the images that it has, and nothing else of it changes."""

import pytest

from reproduction.__main__ import main
from rhobust import TrainConfig, train
from rhobust.archives import opened
from rhobust.attacks import EOT
from rhobust.evaluation import Attack, Certify, Target, audit_record
from rhobust.evaluation import run as evaluate
from rhobust.measurements import CERTIFIED, ROBUST, measurements, outcomes, read_finished
from rhobust.methods import Gaussian
from rhobust.progress import no_progress
from rhobust.records import read_record, record_paths

CERTIFY = Certify(radii=(0.0, 0.1), n=300, limit=9, stride=3)
ATTACK = Attack(attack=EOT(steps=2, draws=2), radii=(0.0, 0.5), votes=10, limit=6, probe=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    config = TrainConfig(Gaussian(sigma=0.25), "digits", "cnn-small", epochs=1)
    return train(config, tmp_path_factory.mktemp("out") / "runs" / "gaussian", device="cpu", progress=no_progress)


@pytest.fixture
def target(trained):
    for path in record_paths(trained.folder):
        path.unlink()
    return Target.from_run(trained.folder, device="cpu")


def stopped(record, rows):
    """The same record as a kill after so many rows leaves it."""
    record.path.write_text("".join(record.path.read_text().splitlines(keepends=True)[: 1 + rows]))
    return record.path


def closed(path, capsys):
    assert main(["close", str(path.parent)]) == 0
    return capsys.readouterr().out.split()


def test_a_stopped_certificate_is_that_of_fewer_images(target, capsys):
    whole = evaluate(CERTIFY, target, progress=no_progress)
    path = stopped(whole, 5)
    [name] = closed(path, capsys)
    record = read_finished(name)
    assert record.rows == whole.rows[:5]
    assert record.settings == {**whole.settings, "limit": 5}
    assert record.summary["seconds"] is None
    assert record.summary["warnings"] == [
        "stopped after 5 of 9 images and closed afterwards: the last check of the network, whether its logits depend on"
        " the batch, was not made"
    ]
    assert [one.n for one in measurements(record) if one.quantity == CERTIFIED] == [5, 5]
    assert audit_record(name, device="cpu", share=1, progress=no_progress)["problems"] == []


def test_what_was_closed_can_still_be_finished(target, capsys):
    whole = evaluate(CERTIFY, target, progress=no_progress)
    path = stopped(whole, 5)
    [name] = closed(path, capsys)
    assert evaluate(CERTIFY, target, progress=no_progress).rows == whole.rows
    assert closed(path, capsys) == []
    assert {one.name for one in record_paths(path.parent)} == {path.name, name.rpartition("/")[2]}


def test_a_stopped_attack_loses_the_image_that_was_cut(target, capsys):
    whole = evaluate(ATTACK, target, progress=no_progress)
    path = stopped(whole, 5)  # two radii per image
    [name] = closed(path, capsys)
    record = read_finished(name)
    assert (record.rows, record.settings["limit"]) == (whole.rows[:4], 2)
    assert outcomes(record, ROBUST, 0.5).keys() == {0, 1}
    assert {point["n"] for point in record.summary["robust_accuracy"]} == {2}


def test_images_after_a_gap_are_left_out(target, capsys):
    """Workers write blocks as they come: which images are there must not depend on how long one took."""
    whole = evaluate(CERTIFY, target, progress=no_progress)
    lines = stopped(whole, 9).read_text().splitlines(keepends=True)
    whole.path.write_text("".join([lines[0], *lines[5:8], *lines[1:4]]))
    [name] = closed(whole.path, capsys)
    assert read_record(name).rows == whole.rows[:3]
    whole.path.write_text("".join([lines[0], *lines[5:8]]))
    assert main(["close", str(whole.path.parent)]) == 2
    assert "must hold the first image of its evaluation to be closed" in capsys.readouterr().err


def test_packing_says_what_it_leaves_out(target, tmp_path, capsys):
    path = stopped(evaluate(CERTIFY, target, progress=no_progress), 5)
    out, archive = path.parents[2], tmp_path / "x.tar.xz"
    assert main(["pack", str(out), str(archive)]) == 0
    assert capsys.readouterr().err == (
        f"{path} was left out, for it is unfinished: python -m reproduction close {path.parent} keeps the images that"
        " it has\n"
    )
    closed(path, capsys)
    assert main(["pack", str(out), str(archive)]) == 0
    with opened([archive]) as found:
        [record] = record_paths(found.paths[0])
        assert len(read_finished(record).rows) == 5
