"""Masked networks and weak attacks set off the right warning; sound ones set off none."""

from dataclasses import replace

import pytest
import torch

from evaluation.networks import Masked, Randomised, Saturated, Slab
from rhobust.attacks import EOT, PGD, PaperPGD
from rhobust.evaluation import Attack, Target, diagnostics, run
from rhobust.evaluation.diagnostics import Attacked, probe_size, stronger
from rhobust.evaluation.sweep import Predictor, Sweep
from rhobust.measurements import stronger_attacks
from rhobust.progress import no_progress
from rhobust.records import RecordWriter, finished_records

RADII = (0.0, 0.25, 0.5, 1.0)


def beaten(record):
    """Warnings about attacks in the folder that are stronger."""
    return stronger_attacks(record, finished_records(record.path.parent, "attack"))


def heads(record):
    """What the warnings are about."""
    return [warning.partition(":")[0] for warning in record.summary["warnings"]]


@pytest.mark.parametrize("attack", [PGD(), EOT(draws=8), PGD(norm="linf"), PGD(loss="margin", restarts=1)], ids=repr)
def test_a_sound_half_space_sets_off_no_warning(target, attack):
    radii = (0.0, 0.05, 0.1) if attack.norm == "linf" else RADII
    record = run(Attack(attack=attack, radii=radii), target, progress=no_progress)
    assert record.summary["warnings"] == []
    assert record.summary["contradictions"] == []
    assert record.summary["probe"]["stronger"]["examples"] == 16
    assert record.summary["probe"]["larger"]["standing"] == 0


def test_a_sound_network_sets_off_no_warning(folder, tmp_path):
    target = replace(Target.from_run(folder, device=torch.device("cpu")), folder=tmp_path)
    record = run(Attack(attack=EOT(steps=10, draws=8), radii=(0.0, 0.25, 0.5), limit=60), target, progress=no_progress)
    assert record.summary["warnings"] == []
    probe = record.summary["probe"]["stronger"]
    assert (probe["attack"]["steps"], probe["attack"]["draws"]) == (20, 16)
    assert probe["gain"] < 0.02


def test_other_noise_than_in_training_is_told_where_it_votes(target):
    other = replace(target, trained_sigma=0.5)
    told = ["the network was trained with noise 0.5 and is smoothed with 0.25"]
    assert run(Attack(attack=EOT(draws=8), radii=RADII), other, progress=no_progress).summary["warnings"] == told
    assert run(Attack(attack=PGD(), radii=RADII), other, progress=no_progress).summary["warnings"] == []


def test_zero_gradients_are_told(wrapped, half_space):
    record = run(Attack(attack=PGD(), radii=RADII), wrapped(Masked(half_space)), progress=no_progress)
    assert heads(record) == ["zero gradients", "vanishing gradients"]
    assert "at 40 of 40 inputs" in record.summary["warnings"][0]
    assert "at radius 0.25 the attack perturbed 40 of 40 robust" in record.summary["warnings"][1]


def test_gradients_too_small_for_raw_steps_are_told(wrapped, half_space):
    small = wrapped(Masked(half_space, 0.01))
    assert run(Attack(attack=PGD(), radii=RADII), small, progress=no_progress).summary["warnings"] == []
    warnings = heads(run(Attack(attack=PGD(gradient="raw"), radii=RADII), small, progress=no_progress))
    assert warnings[0] == "vanishing gradients"
    assert warnings[1].startswith("a stronger attack gains")


def test_randomised_outputs_are_told(wrapped, half_space):
    assert "randomised outputs" in heads(
        run(Attack(attack=PGD(), radii=RADII), wrapped(Randomised(half_space)), progress=no_progress)
    )


def test_outputs_that_sum_to_one_are_told(wrapped, half_space):
    assert "outputs sum to one" in heads(
        run(Attack(attack=PGD(), radii=RADII), wrapped(Saturated(half_space)), progress=no_progress)
    )


@pytest.fixture
def shallow(wrapped, half_space):
    """Gradients too small for raw steps to use the whole radius, not so small that they vanish."""
    return wrapped(Masked(half_space, 0.4))


def test_a_weak_attack_is_told_by_a_stronger_one(shallow):
    record = run(
        Attack(attack=PaperPGD(gradient="raw"), radii=(0.0, 0.4, 0.8), predictor="base"), shallow, progress=no_progress
    )
    (warning,) = record.summary["warnings"]
    assert warning.startswith("a stronger attack gains ")
    probe = record.summary["probe"]["stronger"]
    assert probe["broken"] >= 3
    standing = sum(not row["broken"] for row in record.rows if row["radius"] == probe["radius"])
    assert probe["gain"] == pytest.approx(probe["broken"] / probe["examples"] * standing / 40)
    off = run(
        Attack(attack=PaperPGD(gradient="raw"), radii=(0.0, 0.4, 0.8), predictor="base", probe=False),
        shallow,
        progress=no_progress,
    )
    assert off.summary["warnings"] == []
    assert "probe" not in off.summary


def test_accuracy_that_rises_with_the_radius_is_told(wrapped, grey_images):
    """One long step leaps over a thin slab: what succeeds on at 0.2 stands at 1."""
    slab = wrapped(Slab())
    right = Slab()(grey_images.images / 255).argmax(1)
    slab = replace(slab, data=replace(grey_images, labels=right))
    leap = PGD(steps=1, warm=False)
    nested = run(Attack(attack=leap, radii=(0.0, 0.3, 2.0)), slab, progress=no_progress)
    assert any(warning.startswith("accuracy rises with the radius: ") for warning in nested.summary["warnings"])
    anew = run(Attack(attack=leap, radii=(0.0, 0.3, 2.0), nested=False, probe=False), slab, progress=no_progress)
    assert any(
        warning.startswith("accuracy rises with the radius: by ") and warning.endswith("from radius 0.3 to 2")
        for warning in anew.summary["warnings"]
    )


def test_a_transfer_attack_that_is_stronger_than_the_white_box_one_is_told(target, wrapped, half_space):
    masked = wrapped(Masked(half_space))
    transfer = run(Attack(attack=PGD(), radii=RADII), masked.with_source(target), progress=no_progress)
    assert transfer.summary["warnings"] == []
    assert "probe" not in transfer.summary
    white = run(Attack(attack=PGD(), radii=RADII), masked, progress=no_progress)
    told = [warning for warning in white.summary["warnings"] if warning.startswith("a transfer attack is stronger")]
    assert len(told) == 1
    assert transfer.path.name in told[0]
    again = run(Attack(attack=PGD(steps=19), radii=RADII), masked.with_source(target), progress=no_progress)
    assert [warning.partition(":")[0] for warning in again.summary["warnings"]] == [
        "a transfer attack is stronger than the white-box one"
    ]


def test_another_record_that_breaks_more_is_told(shallow):
    strong = run(Attack(attack=PGD(), radii=(0.0, 0.4, 0.8)), shallow, progress=no_progress)
    weak = run(
        Attack(attack=PaperPGD(gradient="raw"), radii=(0.4, 0.8), predictor="base", probe=False),
        shallow,
        progress=no_progress,
    )
    (warning,) = weak.summary["warnings"]
    assert warning.startswith(f"another attack is stronger: {strong.path.name} breaks ")
    elsewhere = run(
        Attack(attack=PaperPGD(gradient="raw"), radii=(0.4, 0.8), probe=False, votes=9), shallow, progress=no_progress
    )
    assert elsewhere.settings["scored"] == "smoothed"  # another classifier: not compared
    assert not any("another attack" in warning for warning in elsewhere.summary["warnings"])


@pytest.mark.parametrize(("radius", "broken", "told"), [(0.5, 3, True), (0.5, 2, False), (0.6, 40, False)])
def test_three_examples_that_break_at_the_same_radius_are_enough(tmp_path, radius, broken, told):
    def record(name, at, count):
        writer = RecordWriter(tmp_path, "attack", name, {"radii": [at], "name": name})
        writer.append({"index": index, "radius": at, "broken": index < count} for index in range(40))
        writer.finish({})
        return writer.record()

    record("other", radius, broken)
    assert bool(beaten(record("own", 0.5, 0))) == told


@pytest.mark.parametrize(("label_votes", "told"), [(48, False), (10, True)])
def test_what_another_record_broke_in_doubt_is_not_held_against_one(tmp_path, label_votes, told):
    def record(name, count, radii):
        writer = RecordWriter(tmp_path, "attack", name, {"radii": list(radii), "name": name})
        votes = {"votes": 100, "label_votes": label_votes, "rival_votes": 100 - label_votes}
        writer.append(
            {"index": index, "radius": radius, "broken": index < count, **votes}
            for index in range(40)
            for radius in radii
        )
        writer.finish({})
        return writer.record()

    # What is broken at 0.25 stays broken at 0.5, and is held against a record that ends at 0.25.
    record("other", 5, (0.25, 0.5))
    assert bool(beaten(record("own", 0, (0.25,)))) == told


def test_probes_draw_anew(target, monkeypatch):
    stages = []

    def noted(*arguments, stage="", **options):
        stages.append(stage)
        return Sweep(*arguments, stage=stage, **options)

    monkeypatch.setattr(diagnostics, "Sweep", noted)
    probe = run(Attack(attack=EOT(draws=8), radii=RADII), target, progress=no_progress).summary["probe"]
    assert set(probe) == {"stronger", "larger"}
    assert stages == ["probe:", "probe:"]


def test_a_smoothed_classifier_is_probed_by_an_attack_that_sees_the_noise(target):
    for attack, draws in ((PaperPGD(steps=7), 16), (PGD(steps=7), 16), (EOT(steps=7, draws=20), 40)):
        probe = stronger(Attacked(target, Predictor(target, "smoothed", 10), attack, RADII, 0))
        assert isinstance(probe, EOT)
        assert (probe.steps, probe.draws, probe.random_start) == (14, draws, True)
    assert isinstance(stronger(Attacked(target, Predictor(target, "base", 10), EOT(), RADII, 0)), PGD)


def test_a_probe_is_a_tenth_within_limits():
    assert [probe_size(examples) for examples in (5, 200, 500, 10_000)] == [16, 20, 50, 100]
    assert diagnostics.spread([3, 5, 8, 9, 11], 2) == [3, 8]
    assert diagnostics.spread([3], 16) == [3]
