"""One call from a live network and arrays to numbers and a page."""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import rhobust
from rhobust.assessment.plan import SECONDS, STEPS, first_evaluation, plan
from rhobust.certificates import ShiftClaim
from rhobust.cli import parse
from rhobust.cli import run as command
from rhobust.commands.evaluate import Evaluate
from rhobust.evaluation import AttackShift, CertifyShift
from rhobust.measurements import BASE, CERTIFIED, ROBUST, UNDER_NOISE, measurements
from rhobust.models import build_model
from rhobust.progress import no_progress

PRETRAINED = Path(__file__).parents[2] / "results" / "pretrained" / "mnist-nal"


@pytest.fixture(scope="module")
def network():
    return build_model(
        "cnn-small", shape=(1, 8, 8), classes=10, mean=[0.3], deviation=[0.35], activation="relu", seed=0
    ).eval()


@pytest.fixture(scope="module")
def digits():
    return rhobust.load("digits", "test").select(range(60))


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setitem(SECONDS, "quick", 0.0)  # the fewest images that a plan takes


@pytest.fixture(scope="module")
def assessed(network, digits, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SECONDS, "quick", 0.0)
        out = tmp_path_factory.mktemp("door") / "out"
        return rhobust.evaluate(network, digits.images.numpy(), digits.labels.numpy(), effort="quick", out=out)


def test_named_data_are_looked_for_under_the_root(network, tmp_path):
    root = tmp_path / "sets"
    for call in (
        lambda: rhobust.evaluate(network, "mnist", root=root, out=tmp_path / "out"),
        lambda: rhobust.evaluate(PRETRAINED, root=root),
        lambda: rhobust.as_dataset("mnist", root=root),
        lambda: parse(Evaluate, "evaluate", [str(PRETRAINED), "--root", str(root)]).run(),
    ):
        with pytest.raises(ValueError, match=re.escape(f"must be under {root}, but it is not")):
            call()


def test_every_number_is_on_the_page_and_in_the_frame(assessed):
    assert {record.kind for record in assessed.records} == {
        "accuracy",
        "attack",
        "certify",
        "certify-shift",
        "corruptions",
    }
    quantities = {one.quantity for one in assessed.measurements}
    assert {BASE, UNDER_NOISE, CERTIFIED} <= quantities
    page = assessed.page.read_text()
    assert "Robustness of Normalised" in page
    assert len(assessed.rows()) == len(assessed.measurements)
    assert re.search(r"base network, clean +\d\.\d+ +[\d,]+ images? +estimate", str(assessed))
    assert "<table>" in assessed._repr_html_()
    if importlib.util.find_spec("pandas") or importlib.util.find_spec("polars"):
        assert len(assessed.to_frame()) == len(assessed.rows())
    else:
        with pytest.raises(ValueError, match="needs pandas or polars"):
            assessed.to_frame()
    assert "images of images" not in page


def test_reasons_not_to_trust_a_number_are_below_the_numbers(assessed, monkeypatch):
    unknown = "certify-shift, corruptions: it is not known whether test images were trained on"
    attacks = [one for one in assessed.records if one.kind == "attack"]
    for shown in (str(assessed), assessed._repr_html_()):
        assert shown.count(unknown) == 1
        assert "Contradiction" not in shown
    assert all(any(text in line for line in assessed.warnings) for one in attacks for text in one.summary["warnings"])
    masked = replace(attacks[0], summary=attacks[0].summary | {"warnings": ["zero gradients: the attack fails"]})
    with_it = replace(assessed, records=tuple(masked if one is attacks[0] else one for one in assessed.records))
    assert "Warning: attack-pgd: zero gradients: the attack fails" in str(with_it)
    monkeypatch.setattr("rhobust.assessment.assessment.contradictions", lambda records, found: ["the one is wrong"])
    assert "Contradiction: the one is wrong" in str(replace(assessed, name="another"))


def test_the_plot_shows_no_more_than_is_proved_between_two_radii(assessed):
    axes = assessed.plot().axes[0]
    assert axes.get_xlabel() == "L2 radius"
    styles = {line.get_label(): line.get_drawstyle() for line in axes.get_lines()}
    assert styles.pop("certified, smoothed classifier (proved)") == "steps-pre"
    assert set(styles.values()) == {"default"}
    assert all(label.endswith("(upper bound)") for label in styles)
    assert len(axes.collections) == len(styles), "a band is an interval of what was measured"


def test_it_is_shown_without_the_rows_of_its_records(assessed):
    assert len(repr(assessed)) < 5_000
    assert len(repr(assessed.records[0])) < 5_000


def test_the_base_accuracy_is_that_of_the_network(assessed, network, digits):
    with torch.no_grad():
        right = (network(digits.images / 255).argmax(1) == digits.labels).float().mean()
    (found,) = (one.value for one in assessed.measurements if one.quantity == BASE)
    assert found == pytest.approx(float(right))


def test_an_untrained_network_is_diagnosed(assessed):
    assert [finding.cause for finding in assessed.findings] == ["weights"]
    assert "Diagnosis: The base network is right on" in str(assessed)


def test_the_same_call_again_computes_nothing(assessed, network, digits):
    before = {record.path: record.path.read_bytes() for record in assessed.records}
    told = []
    again = rhobust.evaluate(
        network, digits.images, digits.labels, effort="quick", out=assessed.folder, progress=told.append
    )
    assert {record.path: record.path.read_bytes() for record in again.records} == before
    steps = [one for one in told if isinstance(one, str) and " of 5: " in one]
    assert len(steps) == 5
    assert all(re.search(r", about \d+ (s|min) left$", one) for one in steps)


def test_the_line_of_an_attack_tells_how_many_of_its_own_images_are_right_before_it(assessed):
    for kind, label in (("attack-pgd", "base network, PGD"), ("attack-eot", "smoothed classifier, EOT")):
        (record,) = (one for one in assessed.records if one.path.name.startswith(kind))
        before = next(one for one in measurements(record) if one.quantity == ROBUST and one.at == 0)
        (images,) = (images for named, _, images, _ in assessed.headline() if named.startswith(label))
        assert images == f"{before.value:.3f} before attack, {before.n} images"
    assert all("before" not in images for label, _, images, _ in assessed.headline() if " at 0.25" not in label)


def test_another_network_in_the_folder_is_refused(assessed, digits):
    other = build_model(
        "cnn-small", shape=(1, 8, 8), classes=10, mean=[0.3], deviation=[0.35], activation="relu", seed=1
    )
    with pytest.raises(ValueError, match="must hold records of one network"):
        rhobust.evaluate(other, digits.images, digits.labels, effort="quick", out=assessed.folder)


def test_a_folder_of_single_commands_is_evaluated_by_its_name(network, digits, tmp_path):
    (tmp_path / "config.json").write_text('{"rhobust": "0.1.0", "model": "net.py:make", "weights": null}')
    with pytest.raises(ValueError, match="single commands: evaluate it by its name, without model and out"):
        rhobust.evaluate(network, digits.images, digits.labels, out=tmp_path)


class Output:
    def __init__(self, logits):
        self.logits = logits


class LikeTransformers(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return Output(self.network(x))


def test_outputs_with_logits_a_normalisation_and_class_names(network, digits, tmp_path, assessed):
    found = rhobust.evaluate(
        LikeTransformers(network.network),
        digits.images.permute(0, 2, 3, 1).numpy(),
        digits.labels.tolist(),
        mean=np.array([0.3], dtype=np.float32),
        std=torch.tensor([0.35]),
        class_names=[f"digit-{number}" for number in range(10)],
        out=tmp_path / "out",
    )
    assert "digit-7" in found.page.read_text(encoding="utf-8")
    ours, theirs = ({one.quantity: one.value for one in each.measurements} for each in (found, assessed))
    assert ours[BASE] == theirs[BASE]
    assert [record.settings["limit"] for record in found.records] == [
        record.settings["limit"] for record in assessed.records
    ]


def test_a_batch_dependent_network_is_refused_before_a_number_is_made(digits, tmp_path):
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            with torch.random.fork_rng(devices=[]):
                self.out = nn.Linear(64, 10)

        def forward(self, x):
            x = x.flatten(1)
            return self.out(x - x.mean(0))

    with pytest.raises(ValueError, match="batch"):
        rhobust.evaluate(Centred(), digits.images, digits.labels, effort="quick", out=tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.jsonl"))


def test_mistakes(network, digits, tmp_path):
    with pytest.raises(ValueError, match="effort must be one of quick, standard, full"):
        rhobust.evaluate(network, digits.images, digits.labels, effort="fast", out=tmp_path / "o")
    for wrong, given in ((None, "a NoneType"), (nn.Linear, "the class Linear"), ({}, "a dict"), (len, "a builtin")):
        with pytest.raises(ValueError, match=f"model must be a torch.nn.Module, .*, got {given}"):
            rhobust.evaluate(wrong, digits.images, digits.labels, out=tmp_path / "o")
    with pytest.raises(ValueError, match="returns 10 logits per image, got 2 classes; name all 10 in the order"):
        rhobust.evaluate(network, digits.images[:2], ["cat", "dog"], out=tmp_path / "o")
    with pytest.raises(ValueError, match="images must be given"):
        rhobust.evaluate(network, out=tmp_path / "o")
    with pytest.raises(ValueError, match="weights must be left out"):
        rhobust.evaluate(network, digits.images, digits.labels, weights="w.pt", out=tmp_path / "o")
    with pytest.raises(ValueError, match="mean and std must be given together"):
        rhobust.evaluate(network, digits.images, digits.labels, mean=[0.5], out=tmp_path / "o")
    (tmp_path / "file").touch()
    single = nn.Sequential(nn.Flatten(), nn.AvgPool1d(64))
    with pytest.raises(ValueError, match="Sequential must return a logit for each class, two at least, got one"):
        rhobust.evaluate(single, digits.images, digits.labels % 2, out=tmp_path / "o")
    with pytest.raises(ValueError, match="must have two classes at least, for Sequential is built for as many"):
        rhobust.evaluate(single, digits.images, digits.labels * 0, class_names=["cat"], out=tmp_path / "o")
    for given, message in (
        ({"out": tmp_path / "file"}, "out must name a folder, but .*file is none"),
        ({"name": 3}, "name must be a string, got a int"),
        ({"seed": 1.5}, "seed must be an int, got a float"),
        ({"seed": None}, "seed must be an int, got a NoneType"),
        ({"claim": "k-vote"}, r"claim must be a ShiftClaim such as .*, got a str"),
        ({"executor": "processes"}, r"executor must be Local\(\), Processes\(\) or Ray\(\), got a str"),
        ({"executor": rhobust.Processes}, "got the class Processes"),
    ):
        with pytest.raises(ValueError, match=message):
            rhobust.evaluate(network, digits.images, digits.labels, **{"out": tmp_path / "o", **given})


def test_numbers_of_numpy_and_the_order_in_memory_change_no_number(network, digits, tmp_path):
    some = digits.select(range(6))
    turned = np.asfortranarray(some.images.numpy())
    options = [{"sigma": 0.25, "seed": 3}, {"sigma": np.float32(0.25), "seed": np.int64(3)}]
    results = [
        rhobust.evaluate(network, images, some.labels, out=tmp_path / str(number), progress=no_progress, **given)
        for number, (images, given) in enumerate(zip((some.images, turned), options, strict=True))
    ]
    assert results[0].rows() == results[1].rows()


@pytest.mark.parametrize("effort", ["quick", "standard", "full"])
def test_a_plan_takes_more_images_of_a_faster_network(network, digits, monkeypatch, effort):
    monkeypatch.setitem(SECONDS, "quick", 80.0)
    target = rhobust.Target(network, digits, sigma=0.5)
    slow, fast = ([one.limit for one in plan(target, effort, seconds, 0)] for seconds in (1.0, 1e-6))
    assert all(few <= many <= len(digits) for few, many in zip(slow, fast, strict=True))
    first = [first_evaluation(target, effort, seconds, 0).limit for seconds in (1.0, 1e-6)]
    assert first == [60, 60], "all of a small test set, whatever the speed"
    many = rhobust.Target(network, rhobust.load("digits", "test"), sigma=0.5)
    few, most = (first_evaluation(many, effort, seconds, 0).limit for seconds in (1.0, 1e-6))
    assert (few, most) == {"quick": (200, 797), "standard": (200, 797), "full": (797, 797)}[effort]
    attack, certify = plan(target, effort, 1e-6, 0)[1:3]
    assert attack.limit == certify.limit, "the same images"
    assert certify.radii == tuple(0.5 * step for step in STEPS)


def test_the_command(network, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {f"module.{name}": t for name, t in network.network.state_dict().items()}}, "net.pt")
    (tmp_path / "net.py").write_text(
        "from rhobust.models import build_model\n"
        "def make():\n"
        "    return build_model('cnn-small', shape=(1, 8, 8), classes=10, mean=[0], deviation=[1],"
        " activation='relu', seed=1).network\n"
    )
    digits = rhobust.load("digits", "test")
    np.savez("few.npz", x_test=digits.images[:40, 0].numpy(), y_test=digits.labels[:40].numpy())
    options = ["--model", "net.py:make", "--weights", "net.pt", "--data", "few.npz", "--quiet"]
    options += ["--mean", "0.3", "--std", "0.35", "--out", "out", "--name", "mine", "--title", "My page"]
    assert command(["evaluate", *options]) == 0
    shown = capsys.readouterr().out
    assert "mine, sigma 0.25" in shown
    assert "Diagnosis:" in shown
    assert "My page" in (tmp_path / "out" / "report.html").read_text()
    monkeypatch.setattr("rhobust.assessment.assessment.contradictions", lambda records, found: ["the one is wrong"])
    assert command(["evaluate", *options]) == 1
    assert "rhobust: the one is wrong" in capsys.readouterr().err
    for wrong in (["evaluate"], ["evaluate", "--model", "net.py:make"], ["evaluate", "no-folder"]):
        assert command(wrong) == 2


def test_the_deployed_classifier_and_subpopulations_are_carried_through(network, digits):
    target, claim = rhobust.Target(network, digits, sigma=0.5), ShiftClaim(classifier="k-vote", votes=5)
    quick = plan(target, "quick", 1e-3, 0, claim, (1.0, 2.0))
    (shift,) = [one for one in quick if isinstance(one, CertifyShift)]
    assert (shift.claim, shift.gamma, shift.draws) == (claim, (1.0, 2.0), 20)
    assert not any(isinstance(one, AttackShift) for one in quick)
    standard = plan(target, "standard", 1e-3, 0, claim)
    (shift,) = [one for one in standard if isinstance(one, CertifyShift)]
    (ceiling,) = [one for one in standard if isinstance(one, AttackShift)]
    assert (shift.gamma, ceiling.votes, ceiling.eps) == ((1.0, 2.0, 5.0, 10.0), 5, shift.eps)
    majority = plan(target, "standard", 1e-3, 0, ShiftClaim(classifier="majority"))
    assert [one.draws for one in majority if isinstance(one, CertifyShift)] == [200]
    assert not any(isinstance(one, AttackShift) for one in majority)


@pytest.mark.slow
def test_headline_and_page_name_the_deployed_classifier(network, digits, tmp_path):
    found = rhobust.evaluate(
        *(network, digits.images, digits.labels),
        effort="quick",
        out=tmp_path / "o",
        claim=ShiftClaim(classifier="k-vote", votes=3),
        gamma=[1, 2],
    )
    assert any(label.endswith("majority of 3 noisy votes") for label, *_ in found.headline())
    assert any(label == "the same for every 50.0% of the data" for label, *_ in found.headline())
    page = found.page.read_text()
    assert "takes the majority of 3 noisy votes" in page
    assert "every subpopulation, W2 shift" in page
