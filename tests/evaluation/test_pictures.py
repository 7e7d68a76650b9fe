"""Kept examples are the very points that the rows speak of."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rhobust.attacks import EOT, PGD, PaperPGD
from rhobust.data import Dataset, to_unit
from rhobust.evaluation import Attack, Certify, Corruptions, pictures, run
from rhobust.evaluation.attack import PICTURES
from rhobust.evaluation.sweep import Predictor
from rhobust.progress import no_progress

RADII = (0.0, 0.25, 0.5, 1.0)
FEW = Corruptions(corruptions=("brightness", "gaussian-noise"), severities=(1, 3), draws=4, alpha=0.2)


def kept(record) -> dict[str, np.ndarray]:
    with np.load(record.path.with_suffix(".npz"), allow_pickle=False) as file:
        return dict(file)


@pytest.mark.parametrize(
    ("attack", "nested"),
    [
        (PGD(steps=5), True),
        (EOT(steps=5, draws=4, restarts=2), True),
        (EOT(steps=5, draws=4), False),
        (PaperPGD(), False),
    ],
)
def test_each_kept_point_is_that_of_its_row(target, attack, nested):
    record = run(Attack(attack=attack, radii=RADII, votes=60, nested=nested, probe=False), target, progress=no_progress)
    examples = kept(record)
    assert 0 < len(examples["index"]) <= PICTURES
    columns = [key for key in examples if key not in ("before", "after", "classes")]
    for place, index in enumerate(examples["index"]):
        own = [row for row in record.rows if row["index"] == index]
        first = next(row for row in own if row["broken"])
        assert first["radius"] > 0
        assert {key: examples[key][place] for key in columns} == first
        before = target.data.images[index]
        assert np.array_equal(examples["before"][place], before.numpy())
        moved = examples["after"][place] - to_unit(before).numpy()
        assert np.linalg.norm(moved) == pytest.approx(first["distance"], abs=1e-6)


def test_what_was_wrong_without_an_attack_is_not_kept(target):
    labels = target.data.labels.clone()
    labels[::2] = 1 - labels[::2]
    mislabelled = replace(target, data=replace(target.data, labels=labels))
    record = run(Attack(attack=PGD(steps=5), radii=RADII, probe=False), mislabelled, progress=no_progress)
    assert sum(row["broken"] for row in record.rows if row["radius"] == 0) == 20
    examples = kept(record)
    assert (examples["radius"] > 0).all()
    assert (examples["index"] % 2 == 1).all()


def test_the_judge_says_of_a_kept_point_what_the_row_says(target):
    record = run(Attack(attack=EOT(steps=5, draws=4), radii=RADII, votes=60), target, progress=no_progress)
    examples = kept(record)
    for place, index in enumerate(examples["index"].tolist()):
        point, label = torch.from_numpy(examples["after"][place : place + 1]), int(examples["label"][place])
        name = f"score:{float(examples['radius'][place])!r}"
        (verdict,) = Predictor(target, "smoothed", 60).predict(point, [label], [index], 0, name)
        assert verdict["label_votes"] == examples["label_votes"][place]
        assert verdict["rival_votes"] == examples["rival_votes"][place]


def test_the_same_evaluation_keeps_the_same_bytes(target):
    def walk():
        return run(Attack(attack=EOT(steps=3, draws=4), radii=RADII), target, progress=no_progress)

    pictures = walk().path.with_suffix(".npz")
    before = pictures.read_bytes()
    lines = walk().path.read_text().splitlines(keepends=True)
    walk().path.write_text("".join(lines[:9]) + lines[9][:5])
    pictures.unlink()
    walk()
    assert pictures.read_bytes() == before


def test_without_a_broken_example_nothing_is_kept(target):
    record = run(Attack(attack=PGD(steps=1), radii=(0.0, 1e-6)), target, progress=no_progress)
    assert not any(row["broken"] for row in record.rows)
    assert not record.path.with_suffix(".npz").exists()


def test_kept_certificates_are_spread_from_wrong_to_the_largest_radius(target, monkeypatch):
    monkeypatch.setattr(pictures, "KEPT", 10)
    labels = target.data.labels.clone()
    labels[-2:] = 1 - labels[-2:]
    mislabelled = replace(target, data=replace(target.data, labels=labels))
    record = run(Certify(n=1000, procedure="fixed"), mislabelled, progress=no_progress)
    examples, rows = kept(record), {row["index"]: row for row in record.rows}
    chosen = [rows[index] for index in examples["index"]]
    assert len(chosen) == 10
    right = [row["radius"] if row["prediction"] == row["label"] else -1.0 for row in chosen]
    assert right == sorted(right)
    assert right[0] == -1.0 < right[-1]
    for index, image in zip(examples["index"], examples["image"], strict=True):
        assert np.array_equal(image, target.data.images[index].numpy())


def test_the_runner_up_has_the_most_votes_besides(target):
    for row in run(Certify(n=1000, procedure="fixed", limit=5), target, progress=no_progress).rows:
        # Of two classes the other one has all the other votes.
        assert row["runner_up"] == 1 - row["selected"]
        assert row["runner_up_votes"] == row["n"] - row["count"]


def test_the_corrupted_image_is_a_typical_one_and_its_own_row(target):
    record = run(FEW, target, progress=no_progress)
    examples = kept(record)
    [index] = examples["index"]
    own = {(row["corruption"], row["severity"]): row["distance"] for row in record.rows if row["index"] == index}
    for place, cell in enumerate(FEW.cells):
        assert (examples["corruption"][place], examples["severity"][place]) == cell
        moved = examples["after"][[place]].astype(float) - examples["before"].astype(float)
        assert np.linalg.norm(moved) / 255 == pytest.approx(own[cell], abs=1e-9)
    typical = {cell: measured["eps"] for cell, measured in zip(FEW.cells, record.summary["table"], strict=True)}
    apart = {
        index: np.mean(
            [
                abs(np.log(row["distance"] / typical[row["corruption"], row["severity"]]))
                for row in record.rows
                if row["index"] == index and row["severity"]
            ]
        )
        for index in {row["index"] for row in record.rows}
    }
    assert apart[index] == pytest.approx(min(apart.values()))


def test_large_images_are_kept_small_and_odd_inputs_not_at_all(tmp_path):
    rows = [{"index": i, "label": 0, "prediction": 0, "radius": 0.1 * i} for i in range(3)]
    images, labels = torch.full((3, 3, 200, 100), 7, dtype=torch.uint8), torch.zeros(3, dtype=torch.long)
    large = Dataset("photos", "test", images, labels, ("a", "b"))
    pictures.keep_certified(tmp_path / "large.jsonl", large, rows)
    with np.load(tmp_path / "large.npz") as file:
        assert file["image"].shape == (3, 3, 96, 48)
        assert (file["image"] == 7).all()
        assert file["classes"].tolist() == ["a", "b"]
    odd = replace(large, images=large.images[:, :2])
    pictures.keep_certified(tmp_path / "odd.jsonl", odd, rows)
    assert not (tmp_path / "odd.npz").exists()
