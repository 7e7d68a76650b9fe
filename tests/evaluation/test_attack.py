"""Walks over a half space, where every answer is known."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from rhobust.attacks import EOT, PGD, AttackMethod
from rhobust.data import Dataset, to_unit
from rhobust.data.labels import match_classes
from rhobust.evaluation import Attack, Certify, CertifyShift, Target, run
from rhobust.progress import no_progress
from rhobust.records import read_record

RADII = (0.0, 0.25, 0.5, 1.0)


@pytest.fixture
def distance(half_space, grey_images):
    return half_space(to_unit(grey_images.images))[:, 1].abs()


@pytest.mark.parametrize("attack", [PGD(steps=10), EOT(steps=10, draws=8)])
def test_what_breaks_is_what_lies_within_the_radius(target, distance, attack):
    record = run(Attack(attack=attack, radii=RADII, votes=400), target, progress=no_progress)
    assert len(record.rows) == 40 * len(RADII)
    slack = 0.0 if isinstance(attack, PGD) else 0.04
    for row in record.rows:
        true = distance[row["index"]].item()
        if abs(true - row["radius"]) > slack + 1e-4:
            assert row["broken"] == (true < row["radius"]), row
        assert row["distance"] <= row["radius"] + 1e-5
    curve = record.summary["robust_accuracy"]
    assert [point["radius"] for point in curve] == list(RADII)
    assert all(point["low"] <= point["accuracy"] <= point["high"] for point in curve)
    assert all(point["n"] == 40 for point in curve)
    assert read_record(record.path) == record


@dataclass(frozen=True)
class Grey(AttackMethod):
    """An attack of one's own: towards the other side of grey, as far as it is told to."""

    share: float = 1.0

    @property
    def attacks_smoothed(self):
        return False

    def perturb(self, model, x, y, *, eps, sigma, rng):
        side = 1 - 2 * y.view(-1, *[1] * (x.dim() - 1))
        return (x + self.share * eps / x[0].numel() ** 0.5 * side).clamp(0, 1)


def test_an_attack_of_ones_own_is_asked_the_same_questions_and_walks_like_any_other(target, distance):
    record = run(Attack(attack=Grey(), radii=RADII), target, progress=no_progress)
    assert all(row["broken"] == (distance[row["index"]].item() < row["radius"]) for row in record.rows)
    assert run(Attack(attack=Grey(share=0.5), radii=RADII), target, progress=no_progress).path != record.path
    named = {"kind": f"{__name__}:Grey", "share": 1.0}
    assert record.settings["attack"] == named, "a class of this name in another module has another record"
    x, y = to_unit(target.data.images), target.data.labels
    assert torch.equal(Grey()(target.model, x, y.int(), eps=0.5), Grey()(target.model, x, y, eps=0.5))
    with pytest.raises(ValueError, match="eps must be >= 0 and finite, got -1"):
        Grey()(target.model, x, y, eps=-1)


def test_what_is_broken_stays_broken(target):
    rows = run(Attack(attack=PGD(steps=3), radii=RADII), target, progress=no_progress).rows
    for index in range(40):
        broken = [row["broken"] for row in rows if row["index"] == index]
        assert broken == sorted(broken)
        assert [row["radius"] for row in rows if row["index"] == index] == list(RADII)


def cut(path, lines):
    """Leave a record as a kill would: some whole lines and a half one."""
    content = path.read_text().splitlines(keepends=True)
    path.write_text("".join(content[:lines]) + content[lines][:7])


@pytest.mark.parametrize(
    "walk",
    [
        lambda target: run(Attack(attack=EOT(steps=3, draws=4), radii=RADII), target, progress=no_progress),
        lambda target: run(Certify(radii=RADII, n0=10, n=200), target, progress=no_progress),
        lambda target: run(CertifyShift(eps=(0.0, 0.1), draws=5), target, progress=no_progress),
    ],
)
def test_an_interrupted_walk_ends_as_the_uninterrupted_one(target, walk, monkeypatch):
    monkeypatch.setattr("rhobust.evaluation.base.BLOCK", 11)
    whole = walk(target)
    rows_a_block = 11 * len(whole.rows) // 40
    cut(whole.path, 1 + 2 * rows_a_block)
    again = walk(target)
    assert again.rows == whole.rows
    without = [{k: v for k, v in record.summary.items() if k != "seconds"} for record in (whole, again)]
    assert without[0] == without[1]
    before = again.path.read_bytes()
    assert walk(target) == again
    assert again.path.read_bytes() == before


def test_certified_accuracy_counts_right_and_certified(target, distance):
    record = run(Certify(radii=RADII, n0=50, n=1000), target, progress=no_progress)
    curve = {point["radius"]: point["accuracy"] for point in record.summary["certified_accuracy"]}
    certified = [row["radius"] for row in record.rows if row["prediction"] == row["label"]]
    assert curve[0.0] == len(certified) / 40
    assert curve[0.5] == sum(radius >= 0.5 for radius in certified) / 40
    # Each of 40 claims fails with probability 1e-3 at most: a false alarm of 4% over seeds.
    assert curve[0.5] <= (distance >= 0.5 - 0.5 / 255).float().mean().item()
    assert record.settings["noise"] == "grid"
    assert record.settings["model_hash"] == "0" * 16


def test_the_shift_record_carries_its_claim(target):
    record = run(CertifyShift(eps=(0.0, 0.1, 0.2), draws=10, alpha=0.05), target, progress=no_progress)
    claim = {"classifier": "randomised", "cost": "w2", "loss": "0-1", "bound": 1.0, "alpha": 0.05, "draws": 10}
    assert claim.items() <= record.settings.items()
    curve = [point["certified_accuracy"] for point in record.summary["curve"]]
    assert curve == sorted(curve, reverse=True)
    assert record.summary["statement"] == record.summary["curve"][1]["statement"]


def test_a_shift_record_says_that_the_network_was_trained_with_other_noise(target):
    target = replace(target, published_split=True)
    assert run(CertifyShift(eps=(0.0,), draws=5), target, progress=no_progress).summary["warnings"] == []
    other = run(CertifyShift(eps=(0.0,), draws=5, seed=1), replace(target, trained_sigma=0.5), progress=no_progress)
    assert other.summary["warnings"] == ["the network was trained with noise 0.5 and is smoothed with 0.25"]


def test_certificates_beside_pay_for_the_sampler_too(target, monkeypatch):
    monkeypatch.setattr("rhobust.bounds.confidence.grid_deviation", lambda sigma: 1e-6)
    levels = []
    monkeypatch.setattr(
        "rhobust.measurements.proved.baseline_certificates", lambda *_, level, **__: levels.append(level) or []
    )
    run(CertifyShift(eps=(0.1,), draws=5, alpha=0.01, baselines=True), target, progress=no_progress)
    assert levels == pytest.approx([0.01 - 40 * 5 * 16 * 1e-6])


def test_a_run_says_with_which_noise_it_was_trained(folder):
    cpu = torch.device("cpu")
    assert Target.from_run(folder, device=cpu).sigma_warnings() == []
    (warning,) = Target.from_run(folder, device=cpu, sigma=0.5).sigma_warnings()
    assert warning == "the network was trained with noise 0.25 and is smoothed with 0.5"


def test_limit_and_stride_choose_examples(target):
    rows = run(Attack(attack=PGD(steps=1), radii=(0.0,), limit=5, stride=3), target, progress=no_progress).rows
    assert [row["index"] for row in rows] == [0, 3, 6, 9, 12]
    with pytest.raises(ValueError, match="limit must be >= 1, got 0"):
        run(Attack(attack=PGD(), radii=(0.0,), limit=0), target)
    with pytest.raises(ValueError, match="stride must be >= 1, got 0"):
        run(Attack(attack=PGD(), radii=(0.0,), stride=0), target)


def test_settings_decide_the_file(target):
    one = run(Attack(attack=PGD(steps=1), radii=(0.0,)), target, progress=no_progress)
    other = run(Attack(attack=PGD(steps=2), radii=(0.0,)), target, progress=no_progress)
    assert one.path != other.path
    header = json.loads(one.path.read_text().splitlines()[0])
    assert header["settings"]["attack"] == {
        "kind": "pgd",
        "steps": 1,
        "norm": "l2",
        "schedule": "falling",
        "relative_step": 2.0,
        "gradient": "normalised",
        "loss": "cross-entropy",
        "random_start": False,
        "warm": True,
        "restarts": 1,
    }


def test_a_plain_network_needs_a_sigma_to_be_smoothed(target):
    plain = replace(target, sigma=None)
    assert run(Attack(attack=PGD(steps=1), radii=(0.0,)), plain, progress=no_progress).settings["sigma"] is None
    for walk in (
        lambda: run(Attack(attack=EOT(), radii=(0.0,)), plain),
        lambda: run(Attack(attack=PGD(), radii=(0.0,), predictor="smoothed"), plain),
        lambda: run(Certify(radii=(0.0,)), plain),
        lambda: run(CertifyShift(eps=(0.0,)), plain),
    ):
        with pytest.raises(ValueError, match="pass sigma"):
            walk()


@pytest.mark.parametrize(
    ("radii", "message"),
    [((-0.1, 0.2), "radii must be >= 0, got -0.1"), ((0.5, 0.2), "radii must increase, got 0.5 0.2"), ((), "got none")],
)
def test_bad_radii_are_refused(target, radii, message):
    with pytest.raises(ValueError, match=message):
        run(Attack(attack=PGD(), radii=radii), target)


@pytest.mark.parametrize(
    ("names", "classes", "labels"),
    [
        (("0", "1", "2"), ("0", "1", "2", "3"), [0, 1, 2]),
        (("3", "1"), ("0", "1", "2", "3"), [3, 1]),
        (("cat", "owl"), ("cat", "dog", "owl"), [0, 2]),
        (("10", "7"), ("10", "2", "7"), [0, 2]),
    ],
)
def test_classes_are_those_of_the_run(names, classes, labels):
    data = Dataset("mine", "test", torch.zeros(len(names), 1, 2, 2).byte(), torch.arange(len(names)), names)
    found = match_classes(data, classes, Path("run"))
    assert (found.classes, found.labels.tolist()) == (classes, labels)


@pytest.mark.parametrize("names", [("cat", "cow"), ("1", "10"), ("0", "1", "2")])
def test_classes_that_a_run_does_not_know_are_refused(names):
    data = Dataset("mine", "test", torch.zeros(len(names), 1, 2, 2).byte(), torch.arange(len(names)), names)
    with pytest.raises(
        ValueError, match=f"^mine must hold classes that run was trained for.* {names[-1]}: rename them"
    ):
        match_classes(data, ("cat", "dog", "owl"), Path("run"))


@pytest.mark.parametrize("classes", [("cat", "dog", "owl"), ("0", "1", "10", "2"), ("1", "2", "3")])
def test_class_numbers_fit_numbers_only(classes):
    names = ("0", "1", "2")
    data = Dataset("mine", "test", torch.zeros(3, 1, 2, 2).byte(), torch.arange(3), names, named=False)
    with pytest.raises(ValueError, match="mine must name its classes, as run was trained for named ones"):
        match_classes(data, classes, Path("run"))
    assert match_classes(data, ("0", "1", "2", "3"), Path("run")).labels.tolist() == [0, 1, 2]


def test_networks_that_do_not_fit_are_refused(target, grey_images):
    more = replace(grey_images, labels=grey_images.labels + 1, classes=("dark", "grey", "bright"))
    with pytest.raises(ValueError, match=r"labels must be in \[0, 2\), got 1 to 2"):
        run(Attack(attack=PGD(), radii=(0.0,)), replace(target, data=more))
    wide = replace(grey_images, images=grey_images.images.repeat(1, 1, 2, 2))
    with pytest.raises(ValueError, match=r"half-space: the network raised RuntimeError: .* of shape 1x8x8"):
        run(Attack(attack=PGD(), radii=(0.0,)), replace(target, data=wide))
    deaf = torch.nn.Sequential(target.model, Deaf())
    with pytest.raises(ValueError, match=r"half-space must be differentiable.*certify-shift need none"):
        run(Attack(attack=PGD(), radii=(0.0,)), replace(target, model=deaf))


class Deaf(torch.nn.Module):
    def forward(self, x):
        return x.detach()


@pytest.mark.parametrize(("attack", "given"), [("eot", "a str"), (EOT, "the class EOT")])
def test_what_is_no_attack_is_refused(target, attack, given):
    with pytest.raises(ValueError, match=rf"attack must be an attack such as EOT\(steps=20\), got {given}"):
        run(Attack(attack=attack), target)
