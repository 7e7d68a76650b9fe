"""A run is evaluated on exactly the images that it held out, and what is said of them is not said of test images."""

import html
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import rhobust
from rhobust.attacks import EOT, PGD
from rhobust.certificates import ShiftClaim
from rhobust.data import ImageSet, load
from rhobust.data.source import HELD_OUT_IMAGES, TRAINING_IMAGES
from rhobust.evaluation import Accuracy, Attack, Certify, CertifyShift, Target, audit_record, find_record, run
from rhobust.evaluation.engine import UNKNOWN
from rhobust.executors import Processes
from rhobust.files import read_json, write_json
from rhobust.measurements.quantities import CHOSEN, SEEN_BEFORE
from rhobust.methods import Gaussian
from rhobust.progress import no_progress
from rhobust.publish import publish_run
from rhobust.report import write_report
from rhobust.report.comparisons import transfer_tables
from rhobust.report.gather import gather
from rhobust.training import TrainConfig, train
from rhobust.training.loop import split_validation

CONFIG = TrainConfig(
    Gaussian(sigma=0.25), data="digits", model="cnn-small", epochs=1, batch_size=100, validation=120, seed=3
)
CERTIFY = Certify(n=100, limit=20)
SHIFT = CertifyShift(eps=(0.0, 0.1), draws=5, limit=20)


def made(folder, config=CONFIG):
    return train(config, folder, device="cpu", progress=no_progress).folder


def opened(folder, split="validation", **options):
    return Target.from_run(folder, split=split, device="cpu", progress=no_progress, **options)


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    return made(tmp_path_factory.mktemp("held-out") / "run")


@pytest.fixture
def folder(trained_once, tmp_path):
    return shutil.copytree(trained_once, tmp_path / "run")


def test_the_images_are_those_that_the_training_measured_on(folder):
    fitting, held = split_validation(load("digits", "train"), CONFIG)
    target = opened(folder)
    assert (target.data.name, target.data.split, len(target.data)) == ("digits", "validation", 120)
    assert torch.equal(target.data.images, held.images)
    assert torch.equal(target.data.labels, held.labels)
    assert target.trained_on.to_bytes() == ImageSet.of(fitting.images).to_bytes()
    accuracy = rhobust.evaluation.Accuracy(draws=2)
    record = run(accuracy, target, progress=no_progress)
    right = np.mean([row["prediction"] == row["label"] for row in record.rows])
    assert right == pytest.approx(target_accuracy(folder))


def target_accuracy(folder):
    """The accuracy on held-out images that the training wrote down."""
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["accuracy"]


def test_records_of_the_two_splits_are_two(folder):
    held, test = (run(CERTIFY, opened(folder, split), progress=no_progress) for split in ("validation", "test"))
    assert held.path.name != test.path.name
    assert (held.settings["data"], held.settings["split"]) == ("digits", "validation")
    weights = held.settings["model_hash"]
    names = {
        one: find_record(CERTIFY, folder, model_hash=weights, split=one) for one in ("validation", "test", "train")
    }
    assert names == {"validation": held.path, "test": test.path, "train": None}
    assert find_record(CERTIFY, folder, model_hash=weights) in (held.path, test.path)
    page = write_report([folder], folder / "report.html").path.read_text()
    assert "digits (validation)" in page


def test_nothing_that_is_shown_of_held_out_images_calls_them_test_images(folder, tmp_path, capsys):
    attacks = [
        Attack(attack=one, radii=(0.0, 0.1), limit=20, probe=False) for one in (EOT(steps=1, draws=1), PGD(steps=1))
    ]
    sample = replace(SHIFT, claim=ShiftClaim(estimator="sample"))
    for evaluation in (Accuracy(draws=2), replace(CERTIFY, radii=(0.0, 0.1)), SHIFT, sample, *attacks):
        run(evaluation, opened(folder), progress=no_progress)
    page = html.unescape(write_report([folder], folder / "report.html").path.read_text())
    assert not re.search(r"\btest (images|inputs)", page)
    assert "smoothed, σ\xa00.25, on digits (validation)" in page
    assert "base network, on digits (validation)" in page
    assert "Certified accuracy, held-out images" in page
    publish_run(folder, tmp_path / "published")
    card = (tmp_path / "published" / "README.md").read_text()
    for line in (
        "of 120 held-out images.",
        "%, held-out images.",
        "distributions, from held-out images",
        "noise 0.25, held-out",
    ):
        assert line in card
    assert len(re.findall(r"of 20 held-out images right at L2", card)) == 2
    records = [str(path) for path in sorted(folder.glob("certify-grid-*.jsonl"))]
    assert rhobust.cli.run(["compare", *records, *records]) == 0
    assert capsys.readouterr().out.count(".jsonl, held-out images") == 4


def test_tables_of_transfer_attacks_do_not_mix_the_splits(folder, tmp_path):
    other = made(tmp_path / "other", replace(CONFIG, epochs=2))
    attack = Attack(attack=EOT(steps=1, draws=1), radii=(0.0, 0.1), limit=4, probe=False)
    for split in ("test", "validation"):
        for one, another in ((folder, other), (other, folder)):
            run(attack, opened(one, split).with_source(another), progress=no_progress)
    tables = transfer_tables(gather([folder, other]).runs)
    assert [table.title for table in tables] == ["EOT-PGD, radius 0.1", "EOT-PGD, radius 0.1, held-out images"]


def test_held_out_images_are_not_counted_as_trained_on(folder):
    target = opened(folder)
    assert ImageSet.in_folder(folder).contains(target.data.images).all()
    for evaluation in (CERTIFY, SHIFT):
        summary = run(evaluation, target, progress=no_progress).summary
        assert (summary["trained_on"], summary["warnings"]) == (0, [])


def test_a_held_out_image_that_was_also_trained_on_is_counted(tmp_path):
    digits = load("digits", "train")
    images, labels = digits.images[:200].numpy(), digits.labels[:200].numpy()
    twice = np.concatenate([images, images]), np.concatenate([labels, labels])
    test = load("digits", "test")
    np.savez(tmp_path / "twice.npz", x_train=twice[0], y_train=twice[1], x_test=test.images, y_test=test.labels)
    config = replace(CONFIG, data=str(tmp_path / "twice.npz"))
    folder = made(tmp_path / "run", config)
    target = opened(folder, data=config.data)
    fitting, held = split_validation(load(config.data, "train"), config)
    again = ImageSet.of(fitting.images).contains(held.images)
    assert 0 < again.sum() < len(held)
    record = run(replace(CERTIFY, limit=None), target, progress=no_progress)
    assert record.summary["trained_on"] == again.sum()
    assert "of the 120 held-out images were trained on" in record.summary["warnings"][0]
    with pytest.raises(ValueError, match=f"{again[:20].sum()} of 20 of twice.npz were trained on: pass unseen"):
        run(SHIFT, target, progress=no_progress)
    assert len(opened(folder, data=config.data, unseen=True).data) == len(held) - again.sum()


def test_images_that_chose_the_epoch_are_not_new(tmp_path):
    config = replace(CONFIG, keep="best-clean")
    target = opened(made(tmp_path / "run", config))
    summary = run(CERTIFY, target, progress=no_progress).summary
    assert (summary["trained_on"], summary["warnings"]) == (0, [CHOSEN])
    line = "test images must be new .*, but those that gaussian-.* held out chose the epoch that it kept: take test"
    with pytest.raises(ValueError, match=line):
        run(SHIFT, target, progress=no_progress)
    forged = run(SHIFT, replace(target, chose_epoch=False), progress=no_progress)
    problems = audit_record(forged.path, device="cpu", share=0.1, progress=no_progress)["problems"]
    assert problems == ["its images chose the epoch that was kept: it proves nothing about other images"]
    published = shutil.copytree(target.folder, tmp_path / "published")  # without its weights
    (published / "model.safetensors").unlink()
    path = published / forged.path.name
    assert audit_record(path, device="cpu", share=0, progress=no_progress)["problems"] == problems
    assert run(SHIFT, opened(target.folder, "test"), progress=no_progress).summary["warnings"] == []


def test_of_a_teachers_images_nothing_is_known(folder, tmp_path):
    config = replace(CONFIG, teacher=str(folder))
    student = made(tmp_path / "student", config)
    assert run(SHIFT, opened(student), progress=no_progress).summary["warnings"] == [UNKNOWN]
    assert run(CERTIFY, opened(student), progress=no_progress).summary["warnings"] == [SEEN_BEFORE]
    for evaluation in (SHIFT, CERTIFY):
        assert run(evaluation, opened(student, "test"), progress=no_progress).summary["warnings"] == []


def test_a_teacher_may_have_been_trained_on_test_images_of_ones_own(folder, tmp_path):
    # The teacher's training images are the student's test images, and the student's list does not say so.
    ours, theirs = load("digits", "test"), load("digits", "train")
    data = tmp_path / "mine.npz"
    np.savez(data, x_train=ours.images, y_train=ours.labels, x_test=theirs.images[:50], y_test=theirs.labels[:50])
    student = made(tmp_path / "student", replace(CONFIG, data=str(data), teacher=str(folder)))
    assert run(SHIFT, opened(student, "test", data=str(data)), progress=no_progress).summary["warnings"] == [UNKNOWN]


def test_a_teacher_of_other_data_may_have_been_trained_on_published_test_images(folder, tmp_path):
    test, data = load("digits", "test"), tmp_path / "mine.npz"
    np.savez(data, x=test.images, y=test.labels)
    made(tmp_path / "leaky", replace(CONFIG, data=str(data)))
    teacher, warnings = str(tmp_path / "leaky"), []
    for name in ("student", "its-student"):
        student = made(tmp_path / name, replace(CONFIG, teacher=(str(folder), teacher)))
        warnings += run(SHIFT, opened(student, "test"), progress=no_progress).summary["warnings"]
        teacher = str(student)
    assert warnings == [UNKNOWN] * 2


def test_a_student_whose_folder_does_not_say_who_taught_it_may_have_seen_published_test_images(folder, tmp_path):
    student = made(tmp_path / "student", replace(CONFIG, teacher=str(folder)))
    environment = read_json(student / "environment.json")
    write_json(student / "environment.json", {**environment, "teachers_data": None})
    assert run(SHIFT, opened(student, "test"), progress=no_progress).summary["warnings"] == [UNKNOWN]


def test_without_a_list_the_split_of_a_published_data_set_is_known(folder):
    (folder / TRAINING_IMAGES).unlink()
    target = opened(folder)
    assert target.trained_on is None
    assert run(SHIFT, target, progress=no_progress).summary["warnings"] == []


def test_the_audit_finds_the_images_again(folder):
    for evaluation in (CERTIFY, SHIFT):
        record = run(evaluation, opened(folder), progress=no_progress)
        found = audit_record(record.path, device="cpu", share=0.2, progress=no_progress)
        assert (found["problems"], found["redrawn"]) == ([], 4)
    held_out = run(CERTIFY, opened(folder), progress=no_progress)
    lines = held_out.path.read_text().replace('"split": "validation"', '"split": "test"')
    held_out.path.write_text(lines)
    assert audit_record(held_out.path, device="cpu", share=0.2, progress=no_progress)["problems"]


def test_workers_take_the_same_images(folder, tmp_path):
    again = shutil.copytree(folder, tmp_path / "again")
    alone = run(CERTIFY, opened(folder), progress=no_progress)
    with Processes(2) as executor:
        spread = run(CERTIFY, opened(again), executor=executor, progress=no_progress)
    assert (spread.path.name, spread.rows) == (alone.path.name, alone.rows)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"split": "train"}, "split must be 'test' or 'validation', got 'train'"),
        ({"data": "mnist"}, "data must be the run's own, digits, to evaluate its held-out images, got mnist"),
        ({"resize": 8}, "resize and crop must be as in the training, None and None, .*, got 8 and None"),
    ],
)
def test_other_images_are_refused(folder, options, line):
    with pytest.raises(ValueError, match=line):
        opened(folder, **options)


def test_a_run_that_held_nothing_out_is_refused(tmp_path):
    folder = made(tmp_path / "run", replace(CONFIG, validation=0))
    with pytest.raises(ValueError, match=r"validation must be > 0 in the training of .*run to evaluate .*, got 0"):
        opened(folder)


def test_changed_training_data_are_refused(tmp_path):
    digits = load("digits", "train")

    def save(rows):
        np.savez(tmp_path / "data.npz", x=digits.images[rows].numpy(), y=digits.labels[rows].numpy())

    save(slice(300))
    folder = made(tmp_path / "run", replace(CONFIG, data=str(tmp_path / "data.npz")))
    save(slice(1, 301))
    with pytest.raises(ValueError, match=r"must be evaluated with the training images that it was begun with"):
        opened(folder, data=str(tmp_path / "data.npz"))


@pytest.fixture
def reordered(tmp_path):
    """A run on images in a file, and what puts them into another order: the same images, at other places."""
    digits, path = load("digits", "train"), tmp_path / "data.npz"

    def save(order):
        np.savez(path, x=digits.images[order].numpy(), y=digits.labels[order].numpy())

    save(torch.arange(300))
    return made(tmp_path / "run", replace(CONFIG, data=str(path))), str(path), lambda: save(torch.arange(300).flip(0))


def test_images_in_another_order_are_refused(reordered):
    # Places decide which images are held out: in another order they are others, which were trained on.
    folder, data, reorder = reordered
    before = opened(folder, data=data)
    assert ImageSet.in_folder(folder, HELD_OUT_IMAGES).to_bytes() == ImageSet.of(before.data.images).to_bytes()
    reorder()
    with pytest.raises(ValueError, match=r"must be evaluated with the images that it held out, but of .* are new"):
        opened(folder, data=data)
    assert run(CERTIFY, opened(folder, "test", data=data), progress=no_progress).summary["trained_on"] == 0


def test_a_run_is_not_continued_with_other_images_held_out(reordered, tmp_path, monkeypatch):
    class KilledError(Exception):
        pass

    def die(*_):
        raise KilledError

    _, data, reorder = reordered
    monkeypatch.setattr("rhobust.training.loop.save_weights", die)
    with pytest.raises(KilledError):
        made(tmp_path / "killed", replace(CONFIG, data=data))
    monkeypatch.undo()
    reorder()
    with pytest.raises(ValueError, match=r"must be continued with the images that it held out, .*: restore the names"):
        train(replace(CONFIG, data=data), tmp_path / "killed", resume=True, device="cpu", progress=no_progress)


def test_without_a_list_of_them_nothing_is_known_of_images_in_any_order(reordered):
    folder, data, reorder = reordered
    (folder / HELD_OUT_IMAGES).unlink()
    reorder()
    summary = run(SHIFT, opened(folder, data=data), progress=no_progress).summary
    assert ("trained_on" in summary, summary["warnings"]) == (False, [UNKNOWN])


def test_without_a_list_of_them_the_order_of_a_published_data_set_is_known(folder):
    (folder / HELD_OUT_IMAGES).unlink()
    assert run(SHIFT, opened(folder), progress=no_progress).summary["trained_on"] == 0


def test_a_network_that_is_no_training_run_is_refused(tmp_path, capsys):
    own = ["certify", "--model", "rhobust:mnist-nal", "--data", "digits", "--out", str(tmp_path / "own")]
    assert rhobust.cli.run([*own, "--split", "validation"]) == 2
    line = "split must be 'test' for rhobust:mnist-nal, which is no training run and held nothing out, got 'validation'"
    assert capsys.readouterr().err == f"rhobust: {line}\n"
    config = {"model": "net:make", "weights": "w.pt", "data": "digits", "sigma": None}
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"split must be 'test' for .*own, which is no training run"):
        opened(tmp_path / "own")


def test_the_commands_take_the_split_and_say_so(folder, capsys):
    ask = ["--split", "validation", "--limit", "20", "--device", "cpu", "--quiet"]
    assert rhobust.cli.run(["certify", str(folder), "--n", "100", *ask]) == 0
    assert "no held-out image was trained on" in capsys.readouterr().out
    assert rhobust.cli.run(["certify-shift", str(folder), "--draws", "5", "--eps", "0.1", *ask]) == 0
    assert "if the 20 held-out images of digits are independent draws" in capsys.readouterr().out
    attack = ["attack", str(folder), "--radii", "0", "0.25", "--no-probe", "attack:eot", "--attack.steps", "2"]
    assert rhobust.cli.run([*attack, *ask]) == 0
    assert "no held-out image was trained on" in capsys.readouterr().out
    splits = [json.loads(path.read_text().splitlines()[0])["settings"]["split"] for path in folder.glob("*-*.jsonl")]
    assert splits == ["validation"] * 3
    assert rhobust.cli.run(["certify", str(folder), "image.png", "--split", "validation"]) == 2
    assert "--split must be left out with image files, got validation" in capsys.readouterr().err


def test_a_transfer_attack_is_crafted_for_the_same_images(folder, tmp_path):
    other = made(tmp_path / "other", replace(CONFIG, seed=4))
    attack = Attack(attack=EOT(steps=1, draws=1), radii=(0.0, 0.1), limit=4, probe=False)
    record = run(attack, opened(folder).with_source(other), progress=no_progress)
    assert record.settings["split"] == "validation"
    with pytest.raises(ValueError, match="the same"):
        rhobust.evaluation.transfer_matrix(
            rhobust.evaluation.Transfer(radii=(0.0,), limit=2), [opened(folder), opened(other)], progress=no_progress
        )
