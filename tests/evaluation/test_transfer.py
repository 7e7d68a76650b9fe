"""The transfer matrix: crafted once a source, judged by all; its diagonal is the white-box attack."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from evaluation.networks import Masked
from rhobust.attacks import EOT, PGD
from rhobust.evaluation import Attack, Transfer, run, surprising_transfers, transfer_matrix
from rhobust.evaluation.transfer import rows_of
from rhobust.progress import no_progress
from rhobust.records import Record

RADII = (0.0, 0.3, 0.8)


@pytest.fixture
def networks(target, tmp_path):
    """The half space with noise, and a tilted one without."""
    tilted = torch.full((16,), 0.25) * torch.tensor([1.6, 0.4]).repeat(8)
    other = replace(
        target,
        name="tilted",
        model=type(target.model)(tilted, 2.0),
        model_hash="1" * 16,
        sigma=None,
        folder=tmp_path / "other",
    )
    other.folder.mkdir()
    return target, other


def without_target(rows):
    return [{key: value for key, value in row.items() if key != "target"} for row in rows]


def test_each_entry_is_the_attack_with_that_source(networks):
    records = transfer_matrix(Transfer(attack=PGD(steps=5), radii=RADII, votes=50), networks, progress=no_progress)
    assert [record.path.parent for record in records] == [network.folder for network in networks]
    for source, record in zip(networks, records, strict=True):
        assert record.kind == "transfer"
        assert len(record.rows) == 40 * len(RADII) * 2
        for judged, summed in zip(networks, record.summary["targets"], strict=True):
            scored = "base" if judged.sigma is None else "smoothed"
            alone = run(
                Attack(attack=PGD(steps=5), radii=RADII, predictor=scored, votes=50, probe=False),
                judged if judged is source else judged.with_source(source),
                progress=no_progress,
            )
            assert without_target(rows_of(record.rows, judged.model_hash)) == alone.rows
            assert summed["robust_accuracy"] == alone.summary["robust_accuracy"]
            assert (summed["model_hash"], summed["scored"]) == (judged.model_hash, scored)
    assert surprising_transfers(records) == []
    own, transferred = (record.summary["targets"][1]["robust_accuracy"][2]["accuracy"] for record in reversed(records))
    assert own < transferred  # the tilted half space falls to its own direction first


def test_each_source_is_attacked_once(networks, monkeypatch):
    crafted = []
    climb = PGD.ascend_from

    def noted(self, model, x, *rest, eps, rng, **more):
        crafted.append((model, eps))
        return climb(self, model, x, *rest, eps=eps, rng=rng, **more)

    monkeypatch.setattr(PGD, "ascend_from", noted)
    transfer_matrix(Transfer(attack=PGD(steps=2, restarts=0), radii=RADII), networks, progress=no_progress)
    assert crafted == [(network.model, radius) for network in networks for radius in RADII[1:]]


def test_a_record_with_a_source_names_it(networks):
    target, other = networks
    record = run(
        Attack(attack=EOT(steps=2, draws=2), radii=RADII, predictor="base"),
        other.with_source(target),
        progress=no_progress,
    )
    assert record.settings["source"] == {"name": "half-space", "model_hash": "0" * 16, "sigma": 0.25}
    assert record.settings["model_hash"] == "1" * 16
    with pytest.raises(ValueError, match="tilted has no training noise on record: pass sigma"):
        run(Attack(attack=EOT(), radii=RADII), target.with_source(other))


@pytest.mark.parametrize(("trained", "attacked"), [(0.25, 0.25), (None, 0.5)])
def test_a_source_is_attacked_under_its_own_noise_or_the_targets(target, half_space, monkeypatch, trained, attacked):
    config = SimpleNamespace(sigma=trained, run_id="source", factory=None, init=None, teacher=None)
    opened = SimpleNamespace(
        config=config,
        only_data="grey",
        classes=target.data.classes,
        folder=target.folder,
        load_model=lambda device, **trust: half_space,
        model_hash="2" * 16,
        training_images=lambda: None,
    )
    monkeypatch.setattr("rhobust.evaluation.target.open_run", lambda folder: opened)
    assert replace(target, sigma=0.5).with_source(target.folder).attacked.sigma == attacked


def test_a_masked_network_makes_a_surprising_transfer(target, wrapped, half_space, tmp_path):
    masked = replace(wrapped(Masked(half_space)), folder=tmp_path / "masked", sigma=None)
    masked.folder.mkdir()
    records = transfer_matrix(Transfer(attack=PGD(), radii=RADII), [target, masked], progress=no_progress)
    (warning,) = surprising_transfers(records)
    assert warning.startswith("a transfer attack is stronger than the white-box one: from half-space it succeeds on ")
    assert warning.endswith(" points of 1 that the attack on itself left robust at radius 0.8")
    assert any(text.startswith("zero gradients") for text in records[1].summary["warnings"])


@pytest.mark.parametrize(("label_votes", "told"), [(48, False), (10, True)])
def test_a_transfer_that_broke_in_doubt_is_no_surprise(tmp_path, label_votes, told):
    names = [{"model_hash": name, "name": name} for name in ("ours", "theirs")]

    def record(name, broken):
        votes = {"votes": 100, "label_votes": label_votes, "rival_votes": 100 - label_votes}
        rows = [
            {"target": "ours", "index": index, "radius": 0.5, "broken": broken and index < 5, **votes}
            for index in range(40)
        ]
        return Record(tmp_path, "transfer", {"model_hash": name, "radii": [0.5], "targets": names}, rows, {})

    assert bool(surprising_transfers([record("theirs", broken=True), record("ours", broken=False)])) == told


def test_runs_that_cannot_be_compared_are_refused(networks, grey_images):
    target, other = networks
    with pytest.raises(ValueError, match="needs at least two runs, got 1"):
        transfer_matrix(Transfer(attack=PGD(), radii=RADII), [target])
    with pytest.raises(ValueError, match="two have the same"):
        transfer_matrix(Transfer(attack=PGD(), radii=RADII), [target, replace(other, model_hash=target.model_hash)])
    negative = replace(grey_images, images=255 - grey_images.images)
    with pytest.raises(ValueError, match="must have the same test data"):
        transfer_matrix(Transfer(attack=PGD(), radii=RADII), [target, replace(other, data=negative)])
