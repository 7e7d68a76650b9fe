"""What is printed errs to the safe side: proved numbers go down, losses and distances up, intervals outward."""

import json
from pathlib import Path

from rhobust.commands import certify, certify_shift, curves, measure_shift
from rhobust.commands.compare import Compare
from rhobust.commands.options import print_trained
from rhobust.commands.quickstart import Quickstart
from rhobust.commands.target import RunsOptions
from rhobust.commands.transfer import TransferCommand
from rhobust.evaluation import Transfer

LOW, HIGH = 0.50049, 0.50051
"""Both lie a little off 0.5005: rounded to nearest, to 0.500 and 0.501."""


def shown(capsys, command, summary, settings=None):
    command.show({"kind": "measure-shift", "record": "r.jsonl", "summary": summary, "settings": settings or {}})
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_certificates_of_inputs(capsys):
    points = {"radius": 0.5, "accuracy": HIGH, "at_least": HIGH, "n": 7}
    summary = {
        "certified_accuracy": [points],
        "theorems": [{"certified_accuracy": [HIGH]} for _ in range(3)],
        "average_certified_radius": 0.12346,
        "mean_draws": 100.0,
        "abstained": 2,
        "statement": "said",
        "deduction": 0.12341,
        "warnings": ["careful"],
    }
    lines = shown(capsys, certify.COMMAND(), summary)
    assert lines[1] == ["0.5", "0.500", "0.500", "0.500", "0.500", "7"]
    assert lines[2][-1] == "0.1234"
    assert "0.1235" in lines[-3]
    assert lines[-2:] == [["warning:", "careful"], ["r.jsonl"]]


def test_certificates_of_distributions(capsys):
    common = {"points": 7, "statement": "said", "warnings": []}
    others = [{"name": "Kumar", "cost": "w1", "classifier": "one", "certified_accuracy": [HIGH]}]
    accuracy = {"curve": [{"eps": 0.1, "certified_accuracy": HIGH}], "accuracy_under_noise": 0.9, "beside": others}
    lines = shown(capsys, certify_shift.COMMAND(), {**common, **accuracy}, {"loss": "0-1"})
    assert lines[1] == ["0.1", "0.500", "0.500"]
    loss = {"curve": [{"eps": 0.1, "certified_loss": LOW}], "loss_under_noise": 0.9}
    assert shown(capsys, certify_shift.COMMAND(), {**common, **loss}, {"loss": "cross-entropy"})[1] == ["0.1", "0.501"]


def test_curves(capsys):
    at = {"eps": 0.1, "lower": HIGH, "estimate": HIGH, "certified": LOW, "wrm": LOW}
    summary = {"curve": [at], "points": 7, "wrm": None, "statement": "said", "warnings": []}
    lines = shown(capsys, curves.COMMAND(), summary, {"loss": "0-1"})
    assert lines[1] == ["0.1", "0.500", "0.501", "0.501", "0.501"]


def test_measured_shifts(capsys):
    shift = {"eps": 0.12341, "mean_distance": 0.12341, "largest_distance": 0.12341, "pairs": 3, "statement": "said"}
    share = {"accuracy": HIGH, "low": HIGH, "high": LOW}
    certificate = {"certified_accuracy": HIGH, "statement": "proved", "points": 3}
    point = {"eps": 0.1, "certified_accuracy": HIGH, "source": "labels", "statement": "proved"}
    summary = {"shift": shift, "certificate": certificate, "after": share, "before": None}
    lines = shown(capsys, measure_shift.COMMAND(Path("a"), Path("b")), {**summary, "recentred": {"curve": [point]}})
    assert [line[-1] for line in lines[1:4]] == ["0.1235"] * 3
    assert lines[6][-4:] == ["0.500", "proved,", "by", "labels"]
    assert lines[7][-4:] == ["0.500", "proved,", "by", "distances"]
    assert lines[8][-6:] == ["0.501", "estimate,", "95%", "0.500", "to", "0.501"]


def test_compared_files(capsys):
    one = {"file": "a.tsv", "status": "claimed", "certified_accuracy": [{"radius": 0.5, "accuracy": HIGH}], "n": 7}
    Compare(()).show(
        {"comparisons": [{"title": None, "radii": [0.5, 0.6], "files": [{**one, "average_certified_radius": 0.12346}]}]}
    )
    assert capsys.readouterr().out.splitlines()[1].split() == ["a.tsv", "claimed", "0.500", "–", "0.1234", "7"]


def test_a_difference_between_files_has_its_interval_rounded_outward(capsys):
    one = {"status": "proved", "certified_accuracy": [{"radius": 0.5, "accuracy": HIGH}], "n": 7}
    one |= {"average_certified_radius": 0.1}
    apart = [{"radius": 0.5, "difference": -0.01249, "low": -0.03601, "high": 0.01101, "n": 7}]
    files = [{**one, "file": "a/first.jsonl"}, {**one, "file": "a/b.jsonl", "against_first": apart}]
    files.append(
        {
            **one,
            "file": "a/c.jsonl",
            "not_compared": "records must have the same n",
        }
    )
    Compare(()).show({"comparisons": [{"title": None, "radii": [0.5, 0.6], "files": files}]})
    lines = capsys.readouterr().out.splitlines()
    assert lines[5] == "Above first.jsonl on the same images, with 95% intervals over images:"
    assert lines[7].split() == ["b.jsonl", "-0.012", "(-0.037", "to", "0.012)", "–"]
    assert lines[8:] == ["c.jsonl is not compared image by image: records must have the same n"]


def test_compared_attacks_are_named_from_the_folder_that_holds_them_all(capsys):
    points = [{"radius": 0.5, "accuracy": HIGH}]
    attacked = {"status": "upper bound", "robust_accuracy": points, "n": 7}
    files = [{**attacked, "file": f"runs/{run}/attack.jsonl"} for run in ("nal", "pgd")]
    Compare(()).show({"comparisons": [{"title": None, "radii": [0.5], "files": files}]})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["file", "status", "0.5", "n"], "an attack has no average radius"
    assert [line.split() for line in lines[1:]] == [
        ["nal/attack.jsonl", "upper", "bound", "0.501", "7"],
        ["pgd/attack.jsonl", "upper", "bound", "0.501", "7"],
    ]
    files.append(
        {"file": "c.tsv", "status": "claimed", "certified_accuracy": points, "average_certified_radius": 0.1, "n": 7}
    )
    Compare(()).show({"comparisons": [{"title": None, "radii": [0.5], "files": files}]})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-3:] for line in lines[1:]] == [
        ["0.501", "–", "7"],
        ["0.501", "–", "7"],
        ["0.500", "0.1000", "7"],
    ]


def test_the_quickstart(capsys):
    attacked = {"robust_accuracy": [{"radius": 0.0, "accuracy": HIGH}, {"radius": 0.5, "accuracy": LOW}]}
    certified = {"certified_accuracy": [{"radius": 0.5, "accuracy": HIGH}]}
    shift = {"curve": [{"eps": 0.1, "certified_accuracy": HIGH}]}
    run = {"records": [{"summary": part} for part in (attacked, attacked, certified, shift)]}
    Quickstart().show({"runs": [run] * 3, "report": "r.html"})
    for line in capsys.readouterr().out.splitlines()[1:4]:
        assert line.split()[1:] == ["0.501", "0.500", "0.500", "0.500", "0.500"]


def test_warnings_of_every_record_of_a_transfer(capsys):
    curve = [{"robust_accuracy": [{"accuracy": 0.5}], "scored": "base"}] * 2
    records = [{"record": f"{n}.jsonl", "summary": {"targets": curve, "warnings": [f"about {n}"]}} for n in (1, 2)]
    TransferCommand(RunsOptions(), Transfer(radii=(0.5,))).show(
        {"runs": ["a", "b"], "records": records, "warnings": ["about both"]}
    )
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert told == ["warning: about 1", "warning: about 2", "warning: about both"]


def test_of_a_fine_tuned_network_only_the_last_training_is_known(tmp_path, capsys):
    def shown(*folders, trained_on=0, split="test"):
        places = [tmp_path / folder / "certify.jsonl" for folder in folders]
        said = {"settings": {"split": split}, "summary": {"trained_on": trained_on}}
        print_trained(*({"record": str(place), **said} for place in places))
        return capsys.readouterr().out

    configs = {"new": {"init": None}, "tuned": {"init": "hf:some"}, "taught": {"teacher": "runs/big"}}
    for folder, config in configs.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps(config))
    assert shown("new") == shown("memory") == "no test image was trained on\n"
    tuned = "no test image was trained on in the fine-tuning; what came before it is not known\n"
    assert shown("tuned") == shown("new", "tuned") == tuned
    (tmp_path / "tuned" / "records").mkdir()  # as it is published
    assert shown("tuned/records") == tuned
    assert shown("new", trained_on=3) == ""
    assert shown("new", split="validation") == "no held-out image was trained on\n"
    taught = "image was trained on; what the teacher was trained on is not known\n"
    assert shown("taught") == f"no test {taught}"
    assert shown("taught", split="validation") == f"no held-out {taught}"
