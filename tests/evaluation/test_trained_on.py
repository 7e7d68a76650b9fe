"""Test images that a network was trained on are counted, and no statement about a population rests on them."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import rhobust
from rhobust.attacks import PGD
from rhobust.data import Dataset, ImageSet, Pairs, load
from rhobust.data.source import TRAINING_IMAGES
from rhobust.evaluation import (
    Attack,
    Certify,
    CertifyShift,
    Corruptions,
    MeasureShift,
    Target,
    Transfer,
    WorstCaseCurves,
    audit_record,
    run,
    transfer_matrix,
)
from rhobust.evaluation.engine import UNKNOWN
from rhobust.methods import ERM, Gaussian
from rhobust.progress import no_progress
from rhobust.records import read_record
from rhobust.training import TrainConfig, train

CPU = torch.device("cpu")
POPULATION = {
    "certify-shift": CertifyShift(eps=(0.0, 0.1), draws=5, limit=20),
    "curves": WorstCaseCurves(eps=(0.0, 0.1), draws=5, limit=20),
    "measure-shift": MeasureShift(draws=5, limit=20),
    "corruptions": Corruptions(corruptions=("jpeg",), severities=(1,), draws=5, limit=20),
}
OTHER = {
    "certify-shift": CertifyShift(claim=rhobust.ShiftClaim(estimator="sample"), eps=(0.0, 0.1), draws=5, limit=20),
    "certify": Certify(n=100, limit=20),
    "attack": Attack(attack=PGD(steps=1), radii=(0.0, 0.1), limit=20, probe=False),
}


def trained(folder, data, *, epochs=1, resume=False, **options):
    config = TrainConfig(Gaussian(sigma=0.25), data=data, model="cnn-small", epochs=epochs, batch_size=50, **options)
    return train(config, folder, device=CPU, resume=resume, progress=no_progress)


def save(path, data, rows, **more):
    np.savez(path, x=data.images[rows].numpy(), y=data.labels[rows].numpy(), **more)
    return str(path)


@pytest.fixture(scope="module")
def digits():
    return load("digits", "train")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("run") / "run", "digits").folder


@pytest.fixture
def leaky(folder, digits, tmp_path):
    """The run on test data of which 3 of the first 20 images were trained on."""
    run_folder = shutil.copytree(folder, tmp_path / "run")
    test = load("digits", "test")
    images, labels = test.images[:40].clone(), test.labels[:40].clone()
    for place, source in ((0, 5), (7, 6), (19, 7), (30, 8)):
        images[place], labels[place] = digits.images[source], digits.labels[source]
    target = Target.from_run(run_folder, device=CPU)
    pairs = Pairs("pairs", test.images[:40], test.images[:40], None)
    return replace(target, data=Dataset("mixed", "test", images, labels, test.classes), pairs=pairs)


@pytest.mark.parametrize("kind", POPULATION)
def test_a_statement_about_a_population_is_refused(leaky, kind):
    with pytest.raises(
        ValueError,
        match=r"^test images must be new to the network .* 3 of (20 of mixed|40 of mixed, pairs) were trained",
    ):
        run(POPULATION[kind], leaky, progress=no_progress)
    assert not list(leaky.folder.glob(f"{kind}-*"))
    record = run(POPULATION[kind], leaky.unseen(), progress=no_progress)
    assert len(leaky.unseen().data) == 36
    assert record.summary["trained_on"] == 0
    assert record.summary["warnings"] == []


@pytest.mark.parametrize("kind", OTHER)
def test_other_evaluations_say_how_many(leaky, kind):
    summary = run(OTHER[kind], leaky, progress=no_progress).summary
    assert summary["trained_on"] == 3
    assert "3 of the 20 test images were trained on: the numbers say little of other images" in summary["warnings"]
    clean = run(OTHER[kind], leaky.unseen(), progress=no_progress).summary
    assert clean["trained_on"] == 0
    assert not any("trained on" in warning for warning in clean["warnings"])


def test_a_transfer_matrix_says_it_of_each_network(leaky, tmp_path):
    other = replace(leaky, model_hash="1" * 16, folder=tmp_path / "other", trained_on=None, name="other")
    records = transfer_matrix(
        Transfer(attack=PGD(steps=1), radii=(0.0, 0.1), limit=20), [leaky, other], progress=no_progress
    )
    assert [record.summary.get("trained_on") for record in records] == [3, None]


def test_pairs_without_labels_must_be_new_too(leaky, digits):
    pairs = Pairs("frames", digits.images[:4], digits.images[:4], None)
    with pytest.raises(
        ValueError, match=r"4 of 40 of mixed, frames were trained on: pass unseen, and take such pairs out"
    ):
        run(MeasureShift(draws=5), leaky.unseen().with_pairs(pairs), progress=no_progress)


def test_labelled_pairs_are_the_test_images(leaky, digits):
    pairs = Pairs("frames", digits.images[:4], digits.images[:4], tuple(map(str, digits.labels[:4].tolist())))
    with pytest.raises(ValueError, match=r"4 of 4 of frames were trained on: take these pairs out"):
        run(MeasureShift(draws=5), leaky.with_pairs(pairs), progress=no_progress)


def test_where_nothing_is_known_only_a_population_needs_a_word(leaky, tmp_path):
    (leaky.folder / TRAINING_IMAGES).unlink()
    unknown = replace(leaky, trained_on=None, published_split=False)
    for evaluation in POPULATION.values():
        summary = run(evaluation, unknown, progress=no_progress).summary
        assert "trained_on" not in summary
        assert summary["warnings"] == [UNKNOWN]
    assert run(OTHER["certify"], unknown, progress=no_progress).summary["warnings"] == []
    with pytest.raises(ValueError, match="unseen needs the list of the training images"):
        unknown.unseen()
    # The split of a published data set is its publisher's.
    published = Target.from_run(leaky.folder, device=CPU)
    assert published.trained_on is None
    assert run(POPULATION["certify-shift"], published, progress=no_progress).summary["warnings"] == []
    test = load("digits", "test")
    np.savez(tmp_path / "own.npz", x_test=test.images.numpy(), y_test=test.labels.numpy())
    own = Target.from_run(leaky.folder, device=CPU, data=str(tmp_path / "own.npz"))
    assert run(POPULATION["certify-shift"], own, progress=no_progress).summary["warnings"] == [UNKNOWN]


def test_of_a_fine_tuned_network_only_a_part_is_known(leaky):
    tuned = replace(leaky.unseen(), fine_tuned=True)
    summary = run(POPULATION["certify-shift"], tuned, progress=no_progress).summary
    assert (summary["trained_on"], summary["warnings"]) == (0, [UNKNOWN])


def test_the_audit_counts_again(leaky, folder):
    record = run(OTHER["certify"], Target.from_run(leaky.folder, device=CPU), progress=no_progress)
    assert record.summary["trained_on"] == 0
    assert audit_record(record.path, device=CPU, share=0.1)["problems"] == []
    (leaky.folder / TRAINING_IMAGES).write_bytes(ImageSet.of(load("digits", "test").images[:8]).to_bytes())
    problems = audit_record(record.path, device=CPU, share=0.1)["problems"]
    assert problems == ["8 of the 20 test images were trained on, the record says 0"]
    # A record without those images is found to be of the others.
    unseen = run(OTHER["certify"], Target.from_run(leaky.folder, device=CPU, unseen=True), progress=no_progress)
    assert unseen.path != record.path
    assert audit_record(unseen.path, device=CPU, share=0.1)["problems"] == []
    shift = run(
        POPULATION["certify-shift"], Target.from_run(leaky.folder, device=CPU, unseen=True), progress=no_progress
    )
    assert audit_record(shift.path, device=CPU, share=0.1)["problems"] == []


def test_a_run_lists_its_images_and_is_continued_with_them_alone(digits, tmp_path, monkeypatch):
    name = save(tmp_path / "data.npz", digits, slice(200))
    found = trained(tmp_path / "one", name).training_images()
    assert (found.count, len(found.keys)) == (len(load(name, "train")), len(load(name, "train")))
    assert found.contains(load(name, "train").images).all()
    assert not found.contains(load(name, "test").images).any()
    # With validation images the list is the same: they choose the epoch that is kept.
    held = trained(tmp_path / "held", name, validation=50, keep="best-clean").training_images()
    assert held.to_bytes() == found.to_bytes()

    class KilledError(Exception):
        pass

    def die(*_):
        raise KilledError

    monkeypatch.setattr("rhobust.training.loop.save_weights", die)
    with pytest.raises(KilledError):
        trained(tmp_path / "two", name)
    monkeypatch.undo()
    save(tmp_path / "data.npz", digits, slice(1, 201))
    with pytest.raises(ValueError, match=r"must be continued with the training images .* 0 are new and 1 are gone"):
        trained(tmp_path / "two", name, resume=True)
    save(tmp_path / "data.npz", digits, slice(200))
    assert trained(tmp_path / "two", name, resume=True).finished


def test_a_failed_start_leaves_no_list(digits, tmp_path, monkeypatch):
    name = save(tmp_path / "data.npz", digits, slice(100))
    config = TrainConfig(ERM(), data=name, model="cnn-small", epochs=1)
    monkeypatch.setattr("rhobust.training.trainer.Trainer.epoch", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(config, tmp_path / "run", device=CPU, progress=no_progress)
    assert not (tmp_path / "run" / TRAINING_IMAGES).exists()


@pytest.mark.parametrize("damage", ["flip", "cut", "long", "empty", "order", "huge", "count"])
def test_a_damaged_list_is_refused(damage, digits, tmp_path):
    path = tmp_path / TRAINING_IMAGES
    content = bytearray(ImageSet.of(digits.images[:5]).to_bytes())
    match damage:
        case "flip":
            content[-1] ^= 1
        case "cut":
            del content[-8:]
        case "long":
            content += bytes(8)
        case "empty":
            content = bytearray()
        case "order":
            content[-16:] = content[-8:] + content[-16:-8]
        case "huge":
            content[16:24] = b"\xff" * 8
        case "count":
            content[8:16] = bytes(8)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{path} must list the training images as it was written"):
        ImageSet.read(path)


def test_repeated_and_grey_images_are_one(digits):
    images = digits.images[:10]
    found = ImageSet.of(torch.cat([images, images[:3]]))
    assert (found.count, len(found.keys)) == (13, 10)
    assert found.contains(images.repeat(1, 3, 1, 1)).all()
    assert not found.contains(images.flip(3)).any()


def numbered(tmp_path, digits):
    """A folder of classes 0 to 11, whose order by name is 0, 1, 10, 11, 2, ..."""
    for place in range(60):
        path = tmp_path / "nums" / ("train" if place % 2 else "test") / str(place // 2 % 12) / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.images[place, 0].numpy()).save(path)
    return str(tmp_path / "nums")


def test_labels_are_matched_by_name_and_numbers_only_with_numbers(digits, tmp_path):
    nums = numbered(tmp_path, digits)
    folder = trained(tmp_path / "run", nums).folder
    test = load(nums, "test")
    assert test.classes[:3] == ("0", "1", "10")
    own = Target.from_run(folder, device=CPU, data=nums)
    arrays = {"x_test": test.images.numpy(), "y_test": test.labels.numpy()}
    np.savez(tmp_path / "bare.npz", **arrays)
    with pytest.raises(ValueError, match=r"bare.npz must name its classes, as .* got class numbers: add the array"):
        Target.from_run(folder, device=CPU, data=str(tmp_path / "bare.npz"))
    np.savez(tmp_path / "named.npz", **arrays, classes=np.array(test.classes))
    named = Target.from_run(folder, device=CPU, data=str(tmp_path / "named.npz"))
    assert torch.equal(named.data.labels, own.data.labels)
    order = np.array(sorted(test.classes, key=int))
    labels = np.array([int(test.classes[label]) for label in test.labels])
    np.savez(tmp_path / "sorted.npz", x_test=test.images.numpy(), y_test=labels, classes=order)
    again = Target.from_run(folder, device=CPU, data=str(tmp_path / "sorted.npz"))
    assert torch.equal(again.data.labels, own.data.labels)
    np.savez(tmp_path / "strange.npz", **arrays, classes=np.array([f"n{name}" for name in test.classes]))
    with pytest.raises(ValueError, match=r"strange.npz must hold classes that .* got n0, n1, n10: rename them"):
        Target.from_run(folder, device=CPU, data=str(tmp_path / "strange.npz"))


def test_the_command_line_says_it(folder, digits, tmp_path, capsys):
    run_folder = shutil.copytree(folder, tmp_path / "run")
    test = load("digits", "test")
    x, y = (
        torch.cat([one[:2], other[:18]]).numpy()
        for one, other in ((digits.images, test.images), (digits.labels, test.labels))
    )
    np.savez(tmp_path / "mixed.npz", x_test=x, y_test=y)
    own = ["--data", str(tmp_path / "mixed.npz"), "--quiet"]
    shift = ["certify-shift", str(run_folder), "--draws", "5", "--eps", "0", "0.1", *own]
    assert rhobust.cli.run(shift) == 2
    assert "2 of 20 of mixed.npz were trained on: pass unseen to leave" in capsys.readouterr().err
    assert rhobust.cli.run([*shift, "--unseen"]) == 0
    assert "no test image was trained on" in capsys.readouterr().out
    assert rhobust.cli.run(["certify", str(run_folder), "--n", "100", *own]) == 0
    assert "warning: 2 of the 20 test images were trained on" in capsys.readouterr().out
    assert rhobust.cli.run(["report", str(run_folder), "--out", str(tmp_path / "page.html"), "--quiet"]) == 0
    assert "2 of the 20 test images were trained on" in (tmp_path / "page.html").read_text()
    (record,) = run_folder.glob("certify-shift-*.jsonl")
    assert read_record(record).summary["trained_on"] == 0
    json.dumps(read_record(record).summary)


def test_evaluate_refuses_before_the_long_evaluations(folder, digits, tmp_path):
    run_folder = shutil.copytree(folder, tmp_path / "run")
    np.savez(tmp_path / "old.npz", x_test=digits.images[:30].numpy(), y_test=digits.labels[:30].numpy())
    with pytest.raises(ValueError, match=r"30 of 30 of old.npz were trained on: pass unseen"):
        rhobust.evaluate(run_folder, tmp_path / "old.npz", progress=no_progress)
    assert not list(run_folder.glob("certify-*"))
    with pytest.raises(ValueError, match="must have a test image that was not trained on, but all of them were"):
        rhobust.evaluate(run_folder, tmp_path / "old.npz", unseen=True, progress=no_progress)
