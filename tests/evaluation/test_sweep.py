"""The sweep over radii: what is shared, what is packed, and that neither changes a row."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rhobust.attacks import EOT, PGD, AutoAttack, PaperPGD
from rhobust.evaluation import Attack, Target, run
from rhobust.evaluation.sweep import ROWS, Predictor, Sweep
from rhobust.noise import stream_key
from rhobust.progress import no_progress

RADII = (0.0, 0.25, 0.5, 1.0)


@pytest.fixture
def crafted(monkeypatch):
    """Every ascent of PGD: its radius, its examples, and whether it began at their centre."""
    calls = []
    climb = PGD.ascend_from

    def noted(self, model, x, y, *, eps, sigma, rng, start):
        calls.append((eps, sorted(set(rng.indices)), torch.equal(start, x)))
        return climb(self, model, x, y, eps=eps, sigma=sigma, rng=rng, start=start)

    monkeypatch.setattr(PGD, "ascend_from", noted)
    return calls


def broken_below(rows, radius):
    return {row["index"] for row in rows if row["broken"] and row["radius"] < radius}


def test_only_survivors_are_attacked_further(target, crafted):
    (rows,) = Sweep(target, PGD(steps=5, restarts=0), [Predictor(target, "base", 1)], list(range(40)), 0).over(RADII)
    assert [(eps, indices) for eps, indices, _ in crafted] == [
        (radius, sorted(set(range(40)) - broken_below(rows, radius))) for radius in RADII[1:]
    ]


def test_restarts_are_for_survivors(target, crafted):
    (rows,) = Sweep(target, PGD(steps=5, restarts=2), [Predictor(target, "base", 1)], list(range(40)), 0).over(
        RADII[:2]
    )
    standing = sorted({row["index"] for row in rows if row["radius"] == 0.25 and not row["broken"]})
    assert 0 < len(standing) < 40
    assert [indices for _, indices, _ in crafted] == [list(range(40)), standing, standing]
    assert [centre for _, _, centre in crafted] == [True, False, False]


def test_a_radius_begins_where_the_smaller_one_ended(target, crafted):
    judge = Predictor(target, "base", 1)
    Sweep(target, PGD(steps=2, restarts=0), [judge], list(range(40)), 0).over(RADII)
    Sweep(target, PGD(steps=2, warm=False, restarts=0), [judge], list(range(40)), 0).over(RADII)
    Sweep(target, PaperPGD(steps=2), [judge], list(range(40)), 0).over(RADII)
    assert [centre for _, _, centre in crafted] == [True, False, False] + [True] * 6


def test_without_nesting_every_radius_is_attacked_anew(target, crafted):
    judge = Predictor(target, "base", 1)
    (rows,) = Sweep(target, PGD(steps=5, restarts=0), [judge], list(range(40)), 0, nested=False).over(RADII)
    assert all(indices == list(range(40)) and centre for _, indices, centre in crafted)
    (nested,) = Sweep(target, PGD(steps=5), [judge], list(range(40)), 0).over(RADII)
    assert [row["broken"] for row in rows] == [row["broken"] for row in nested]


def test_without_nesting_a_radius_does_not_know_of_the_others(folder: Path):
    target, attack = Target.from_run(folder, device=torch.device("cpu")), EOT(steps=2, draws=4, restarts=1)
    judge, block = Predictor(target, "smoothed", 20), list(range(20))
    (rows,) = Sweep(target, attack, [judge], block, 0, nested=False).over((0.2, 0.5, 1.0))
    for radius in (0.2, 0.5, 1.0):
        (alone,) = Sweep(target, attack, [judge], block, 0).over((radius,))
        assert [row for row in rows if row["radius"] == radius] == alone


@pytest.mark.parametrize("attack", [EOT(steps=3, draws=4, restarts=1), PGD(steps=3), PGD(steps=3, norm="linf")])
def test_rows_do_not_depend_on_how_examples_are_batched(folder: Path, attack, monkeypatch):
    target = Target.from_run(folder, device=torch.device("cpu"))
    scored, indices = "smoothed" if attack.attacks_smoothed else "base", list(range(0, 90, 2))
    judges = [Predictor(target, scored, 20)]
    (whole,) = Sweep(target, attack, judges, indices, 3).over(RADII)
    monkeypatch.setitem(ROWS, "cpu", 33)
    blocks = [indices[first : first + 7] for first in range(0, len(indices), 7)]
    assert [row for block in blocks for row in Sweep(target, attack, judges, block, 3).over(RADII)[0]] == whole
    assert len({row["broken"] for row in whole}) == 2


@pytest.mark.parametrize(("attack", "rows"), [(PGD(steps=1), 32), (EOT(steps=1, draws=5), 7), (EOT(draws=40), 1)])
def test_few_examples_are_filled_up_so_that_a_pass_has_32_rows(target, monkeypatch, attack, rows):
    seen = []

    def noted(self, model, x, *_, **__):
        seen.append(len(x))
        return x

    monkeypatch.setattr(type(attack), "ascend_from", noted)
    Sweep(target, attack, [Predictor(target, "base", 1)], [3], 0).over((0.1,))
    assert set(seen) == {rows}


@pytest.mark.parametrize(("version", "most"), [("standard", 1024), ("rand", 1024 // 20)])
def test_only_an_attack_on_the_smoothed_classifier_has_noise_samples_in_its_batches(target, version, most):
    attack = AutoAttack(version=version, draws=20)
    assert Sweep(target, attack, [], list(range(40)), 0).size == most


def test_a_second_judge_changes_nothing(target, half_space):
    noisy, plain = Predictor(target, "smoothed", 50), Predictor(target, "base", 1)
    both = Sweep(target, PGD(steps=3), [noisy, plain], list(range(40)), 0).over(RADII)
    assert both[0] == Sweep(target, PGD(steps=3), [noisy], list(range(40)), 0).over(RADII)[0]
    assert both[1] == Sweep(target, PGD(steps=3), [plain], list(range(40)), 0).over(RADII)[0]


def test_attacks_restarts_stages_and_votes_draw_from_streams_of_their_own(target, monkeypatch):
    seen = {"attack": set(), "score": set()}

    def noted(kind):
        def key(seed, purpose, *rest):
            seen[kind].add(purpose)
            return stream_key(seed, purpose, *rest)

        return key

    monkeypatch.setattr("rhobust.noise.stream_key", noted("attack"))
    monkeypatch.setattr("rhobust.certificates.sampling.stream_key", noted("score"))
    far = replace(target, sigma=0.01)  # so little noise that some stand at every radius
    Sweep(far, EOT(steps=1, draws=2), [Predictor(far, "smoothed", 2)], list(range(40)), 0, stage="again:").over(
        (0.0, 0.1, 0.2)
    )
    attempts = {"0.1", "0.1:1", "0.2", "0.2:1"}
    assert seen["attack"] == {f"again:attack:{name}" for name in attempts}
    assert seen["score"] == {f"again:score:{name}" for name in {"0.0", *attempts}}


def test_of_two_attempts_that_fail_the_closer_one_is_kept(target, monkeypatch):
    votes = {"score:0.1": 90, "score:0.1:1": 70}
    seen = []

    def verdicts(self, x, labels, names, seed, purpose):
        seen.append(purpose)
        return [{"prediction": y, "broken": False, "label_votes": votes.get(purpose, 100)} for y in labels]

    monkeypatch.setattr(Predictor, "predict", verdicts)
    for expected in (70, 60):
        (rows,) = Sweep(target, PGD(steps=1), [Predictor(target, "base", 1)], [0, 1], 0).over((0.1,))
        assert [row["label_votes"] for row in rows] == [expected] * 2
        votes["score:0.1"] = 60
    assert seen == ["score:0.1", "score:0.1:1"] * 2


def test_what_a_later_attempt_breaks_is_broken_there_and_beyond(target, monkeypatch):
    def verdicts(self, x, labels, names, seed, purpose):
        return [{"prediction": y, "broken": purpose.endswith(":1")} for y in labels]

    monkeypatch.setattr(Predictor, "predict", verdicts)
    (rows,) = Sweep(target, PGD(steps=1), [Predictor(target, "base", 1)], [0, 1], 0).over((0.1, 0.2))
    assert [(row["radius"], row["broken"]) for row in rows] == [(0.1, True), (0.2, True)] * 2


def test_distances_are_those_of_the_attacks_norm(target):
    record = run(Attack(attack=PGD(norm="linf", steps=4), radii=(0.0, 0.1), probe=False), target, progress=no_progress)
    assert record.settings["norm"] == "linf"
    far = [row["distance"] for row in record.rows if row["radius"] == 0.1]
    assert far == pytest.approx([0.1] * 40, abs=1e-5)
