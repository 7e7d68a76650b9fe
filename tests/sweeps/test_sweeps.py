"""Sweeps: what a plan means, finished work is skipped, failures are listed and tried again, and the table."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from rhobust.cli import run
from rhobust.evaluation import Accuracy, Certify
from rhobust.executors import Processes
from rhobust.lock import owned
from rhobust.measurements import Measurement
from rhobust.methods import NAL, Gaussian
from rhobust.progress import no_progress
from rhobust.stats import mean_difference
from rhobust.sweeps import plan_units, read_plan, run_sweep
from rhobust.sweeps import sweep as sweep_module
from rhobust.sweeps.plan import plan_from_document
from rhobust.sweeps.table import _row
from rhobust.training import TrainConfig, train
from rhobust.training.config import config_to_json
from tests.executors.scripted import Scripted

TRAIN = {"data": "digits", "model": "cnn-small", "epochs": 1, "batch_size": 400, "lr": 0.003}
AXES = {"method": ["gaussian", {"kind": "consistency", "draws": 2}], "sigma": [0.25], "seed": [0, 1]}
DOCUMENT = {"train": TRAIN, "axes": AXES, "evaluate": [{"kind": "accuracy", "draws": 2, "limit": 20}]}


def plan_of(**changes):
    return plan_from_document({**DOCUMENT, **changes}, "plan.toml")


def sweep(plan, out, **options):
    return run_sweep(plan, out, device="cpu", progress=no_progress, **options)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep")
    return out, sweep(plan_of(), out)


def test_a_plan_is_every_combination_and_a_method_is_trained_once_for_an_axis_that_it_lacks():
    axes = {"method": ["gaussian", "nal"], "sigma": [0.12, 0.25], "gamma": [1.0, 2.0], "seed": [0, 1, 2]}
    plan = plan_of(axes=axes, evaluate=[{"kind": "certify", "radii": [0, 0.25]}, {"kind": "accuracy"}])
    assert len(plan.cells) == 2 * 3 + 2 * 2 * 3
    assert plan.configs[0].method == Gaussian(sigma=0.12)
    assert plan.configs[-1].method == NAL(sigma=0.25, gamma=2.0)
    assert plan.configs[-1].seed == 2
    assert plan.cells[-1].at == (("method", "nal"), ("sigma", 0.25), ("gamma", 2.0))
    assert plan.cells[0].at == (("method", "gaussian"), ("sigma", 0.12))
    assert plan.evaluations == (Certify(radii=(0, 0.25)), Accuracy())
    data = plan_of(axes={"method": ["erm"], "data": ["digits", "mnist"], "epochs": [1, 2]})
    assert [(one.data, one.epochs) for one in data.configs] == [
        ("digits", 1),
        ("digits", 2),
        ("mnist", 1),
        ("mnist", 2),
    ]


def test_several_grids_share_the_axes_and_a_training_that_two_of_them_name():
    grids = [
        {"data": "digits", "method": "gaussian", "sigma": [0.12, 0.25]},
        {"data": ["digits", "mnist"], "method": ["gaussian", "erm"], "sigma": 0.25},
    ]
    plan = plan_of(axes={"seed": [0, 1]}, grid=grids)
    places = [cell.at for cell in plan.cells[::2]]
    assert [cell.at for cell in plan.cells[1::2]] == places  # seed by seed
    assert [tuple(value for _, value in at) for at in places] == [
        ("digits", "gaussian", 0.12),
        ("digits", "gaussian", 0.25),
        ("digits", "erm"),
        ("mnist", "gaussian", 0.25),
        ("mnist", "erm"),
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"trains": {}}, "plan.toml must hold title, split, train, axes, grid, evaluate, got trains"),
        ({"axes": {**AXES, "eps": [1.0]}}, "axes.eps must be a field of a training or of one of its methods"),
        ({"axes": {**AXES, "seed": 3}}, "axes.seed must be a list with one value at least, got 3"),
        ({"grid": [{"sigma": []}]}, "axes.sigma must be a list with one value at least, got \\[\\]"),
        ({"grid": {"sigma": 1}}, "must hold \\[\\[grid\\]\\] tables, got {'sigma': 1}"),
        ({"axes": {**AXES, "sigma": ["much"]}}, "plan.toml must be a valid TrainConfig, but a value must be a number"),
        ({"axes": {**AXES, "method": ["gauss"]}}, "kind must be one of .*, got 'gauss'"),
        ({"axes": {**AXES, "method": [3]}}, "method must be a name, or a table with kind and its fields, got 3"),
        ({"axes": {"seed": [0]}, "train": {**TRAIN, "method": ["erm"]}}, "method must be a name, .*, got \\['erm'\\]"),
        ({"axes": {**AXES, "data": ["digits", "digitz"]}}, "plan.toml, data must be one of .*; got 'digitz'"),
        (
            {"evaluate": [{"kind": "transfer"}]},
            "evaluate.kind must be of one run alone, got transfer, which needs several",
        ),
        ({"evaluate": [{"kind": "measure-shift"}]}, "got measure-shift, which needs pairs of images before and after"),
        ({"axes": {**AXES, "method": [{"kind": ["nal"]}]}}, r"plan.toml, method's kind must be a name, got \['nal'\]"),
        ({"evaluate": [{"kind": ["attack"]}]}, r"evaluate.kind must be one of .*, got \['attack'\]"),
        ({"split": "train"}, "plan.toml, split must be 'test' or 'validation', got 'train'"),
        ({"split": "validation"}, "plan.toml, validation must be > 0 in every training .*, got 0 in gaussian-"),
        ({"evaluate": [{"kind": "accuracy", "methods": ["nal"]}]}, "evaluate.methods .* gaussian, consistency, got"),
        ({"evaluate": [{"kind": "accuracy", "methods": []}]}, "evaluate.methods must be a list of the plan's gaussian"),
        ({"evaluate": [{"kind": "guess"}]}, "evaluate.kind must be one of .*, got 'guess'"),
        ({"evaluate": [{"kind": "certify", "n": "many"}]}, "evaluate certify must be a valid Certify"),
    ],
)
def test_a_mistake_in_a_plan_is_one_line(changes, line):
    with pytest.raises(ValueError, match=line):
        plan_of(**changes)


def test_the_table_has_means_deviations_and_paired_intervals_over_seeds(done):
    out, outcome = done
    assert outcome.failures == {}
    assert outcome.table.axes == ("method", "sigma")
    rows = {(row["method"], row["quantity"]): row for row in outcome.table.rows}
    values = {}
    for cell, unit in zip(plan_of().cells, plan_units(plan_of(), out), strict=True):
        record = unit.record(plan_of().evaluations[0])
        lines = [json.loads(line) for line in record.read_text().splitlines()[1:-1]]
        right = statistics.fmean(row["prediction"] == row["label"] for row in lines)
        values.setdefault(dict(cell.at)["method"], []).append(right)
    ours, theirs = values["consistency draws 2"], values["gaussian"]
    found = rows["consistency draws 2", "base accuracy"]
    assert found["mean"] == pytest.approx(statistics.fmean(ours))
    assert found["deviation"] == pytest.approx(statistics.stdev(ours))
    paired = mean_difference(ours, theirs)
    assert [found[key] for key in ("difference", "low", "high")] == [paired.value, paired.low, paired.high]
    assert rows["gaussian", "base accuracy"]["difference"] is None
    assert outcome.table.markdown() == (out / "sweep.md").read_text()
    assert "Everything is measured on test images." in outcome.table.markdown()
    assert (out / "sweep.csv").read_text().count("\n") == 1 + len(outcome.table.rows)
    assert "consistency" in outcome.page.read_text()


@pytest.mark.parametrize(("theirs", "known"), [((0.3, 0.4), False), ((0.3, 0.45), True)])
def test_seeds_that_give_one_difference_do_not_say_how_much_others_differ(theirs, known):
    def by_seed(values):
        return {
            seed: Measurement("base accuracy", None, value, None, None, 20, "estimate")
            for seed, value in enumerate(values)
        }

    row = _row(((), "accuracy", "base accuracy", None), by_seed((0.1, 0.2)), by_seed(theirs))
    assert row["difference"] == pytest.approx(statistics.fmean((0.1, 0.2)) - statistics.fmean(theirs))
    assert [row[key] is not None for key in ("low", "high")] == [known, known]


def test_workers_that_die_and_drivers_that_are_interrupted_change_nothing(done, tmp_path):
    for stop in (1, 1):
        with pytest.raises(KeyboardInterrupt):
            sweep(plan_of(), tmp_path, executor=Scripted(2, deaths=1, stop=stop))
        assert not (tmp_path / "sweep.md").exists()
    last = Scripted(3)
    assert sweep(plan_of(), tmp_path, executor=last).table == done[1].table
    assert len(last.blocks) < 4  # what was finished is skipped
    for name in ("sweep.json", "sweep.md", "sweep.csv", "failures.json"):
        assert (tmp_path / name).read_bytes() == (done[0] / name).read_bytes()


def test_a_finished_sweep_starts_no_worker(done, monkeypatch):
    monkeypatch.setattr(Scripted, "map", None)
    assert sweep(plan_of(), done[0], executor=Scripted()).table == done[1].table


def test_what_fails_is_tried_again_then_listed_and_the_rest_is_done(done, tmp_path, monkeypatch, capsys):
    calls, real = [], sweep_module._do

    def failing(unit, *rest):
        calls.append(unit.config.seed)
        if unit.config.seed == 1 and isinstance(unit.config.method, Gaussian):
            raise ValueError("no\nluck")
        real(unit, *rest)

    plan = tmp_path / "plan.toml"
    axes = 'method = ["gaussian", { kind = "consistency", draws = 2 }]\nsigma = [0.25]\nseed = [0, 1]\n'
    train = "".join(f"{key} = {json.dumps(value)}\n" for key, value in TRAIN.items())
    plan.write_text(f'[train]\n{train}[axes]\n{axes}[[evaluate]]\nkind = "accuracy"\ndraws = 2\nlimit = 20\n')
    assert read_plan(plan) == plan_of()
    command = ["sweep", str(plan), "--out", str(tmp_path / "out"), "--device", "cpu", "--quiet"]
    with monkeypatch.context() as patch:
        patch.setattr(sweep_module, "_do", failing)
        assert run([*command, "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert calls.count(1) == 3
    (line,) = result["failures"].values()
    assert line == "no luck"
    assert json.loads((tmp_path / "out" / "failures.json").read_text()) == result["failures"]
    assert "1 training lacks numbers." in (tmp_path / "out" / "sweep.md").read_text()
    assert run([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "4 runs planned, 3 finished; 4 evaluations on test images",
        "    2  gaussian on digits, cnn-small, 1 epoch",
        "    2  consistency on digits, cnn-small, 1 epoch",
        "    4  accuracy, limit 20, draws 2",
    ]
    assert run(command) == 0  # the next call tries it again
    assert (tmp_path / "out" / "sweep.md").read_bytes() == (done[0] / "sweep.md").read_bytes()


def test_a_search_is_measured_on_held_out_images_with_every_executor(tmp_path, capsys):
    search = plan_of(split="validation", train={**TRAIN, "validation": 200}, axes={**AXES, "seed": [0]})
    executors = {"local": None, "scripted": Scripted(2, deaths=1), "processes": Processes(2)}
    found = {}
    for name, executor in executors.items():
        found[name] = sweep(search, tmp_path / name, executor=executor).table
        for unit in plan_units(search, tmp_path / name):
            head = json.loads(unit.record(search.evaluations[0]).read_text().splitlines()[0])
            assert head["settings"]["split"] == "validation"
            assert len(list(unit.folder.glob("accuracy-*"))) == 1
    assert found["local"] == found["scripted"] == found["processes"]
    for name in ("sweep.json", "sweep.md", "sweep.csv"):
        assert len({(tmp_path / one / name).read_bytes() for one in executors}) == 1
    assert json.loads((tmp_path / "local" / "sweep.json").read_text())["split"] == "validation"
    words = "Everything is measured on held-out images of each training, no test images."
    assert words in (tmp_path / "local" / "sweep.md").read_text()
    header, *lines = (tmp_path / "local" / "sweep.csv").read_text().splitlines()
    assert header.endswith(",split")
    assert all(line.endswith(",validation") for line in lines)
    # The same trainings on test images have records of their own.
    assert not any(unit.done for unit in plan_units(replace(search, split="test"), tmp_path / "local"))
    test = sweep(replace(search, split="test"), tmp_path / "local").table
    assert test.split == "test"
    assert test != found["local"]
    assert sweep(search, tmp_path / "local").table == found["local"]


def test_an_attack_on_the_base_network_is_done_once_and_is_in_the_table(tmp_path, monkeypatch):
    attack = {"kind": "attack", "attack": {"kind": "pgd", "steps": 1}, "radii": [0.5], "limit": 3, "probe": False}
    plan = plan_of(axes={"method": ["erm"]}, evaluate=[{**attack, "votes": 7}])
    outcome = sweep(plan, tmp_path)
    assert [(row["quantity"], row["seeds"]) for row in outcome.table.rows] == [("robust accuracy", 1)]
    assert outcome.table.missing == 0
    monkeypatch.setattr(sweep_module, "_do", None)  # nothing is left to do
    assert sweep(plan, tmp_path).failures == {}


def test_evaluations_of_one_kind_have_rows_of_their_own(tmp_path):
    accuracy = {"kind": "accuracy", "limit": 20}
    attack = {"kind": "attack", "attack": {"kind": "pgd", "steps": 1}, "radii": [0.5], "limit": 3, "probe": False}
    stronger = {**attack, "attack": {"kind": "pgd", "steps": 2}}
    evaluations = [{**accuracy, "draws": 2}, {**accuracy, "draws": 3}, attack, stronger]
    outcome = sweep(plan_of(axes={"method": ["gaussian"], "sigma": [0.25]}, evaluate=evaluations), tmp_path)
    names = ["accuracy, draws 2", "accuracy, draws 3", "attack pgd, attack.steps 1", "attack pgd, attack.steps 2"]
    assert list(dict.fromkeys(row["evaluation"] for row in outcome.table.rows)) == names


def test_a_record_that_is_refused_is_a_failure_and_the_rest_is_in_the_table(tmp_path):
    plan = plan_of(axes={"method": ["gaussian"], "seed": [0, 1]})
    whole = sweep(plan, tmp_path)
    first, _ = plan_units(plan, tmp_path)
    path = first.record(plan.evaluations[0])
    path.write_text(path.read_text().replace('"errors": 0', '"errors": 1', 1))
    outcome = sweep(plan, tmp_path)
    assert list(outcome.failures) == [first.config.run_id]
    assert "must be as it was written, but it was changed: delete it" in outcome.failures[first.config.run_id]
    assert outcome.table.missing == 1
    assert [row["seeds"] for row in outcome.table.rows] == [1] * len(whole.table.rows)
    path.unlink()
    assert sweep(plan, tmp_path).table == whole.table


def test_the_parts_of_an_evaluation_are_given_by_the_names_of_their_options():
    curves = {"kind": "curves", "loss": "0-1", "gammas": [1.0], "ascent": {"steps": 2}}
    plan = plan_of(evaluate=[{"kind": "certify-shift", "cost": "w1", "classifier": "k-vote", "votes": 3}, curves])
    shift, worst = plan.evaluations
    assert (shift.claim.cost, shift.claim.classifier, shift.claim.votes) == ("w1", "k-vote", 3)
    assert (worst.loss, worst.ascent.gammas, worst.ascent.steps) == ("0-1", (1.0,), 2)


def test_a_dry_run_says_which_data_and_teachers_are_missing_here(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("unfinished").mkdir()
    settings = config_to_json(TrainConfig(Gaussian(), **TRAIN))
    Path("unfinished", "config.json").write_text(json.dumps(settings))
    Path("plan.toml").write_text(
        'axes = { method = ["gaussian"], data = ["digits", "cifar10", "photos.npz"] }\n'
        'train = { model = "cnn-small", epochs = 1, teacher = ["unfinished", "nowhere"] }\n'
    )
    command = ["sweep", "plan.toml", "--dry-run", "--root", str(tmp_path), "--quiet"]
    assert run([*command, "--json"]) == 0
    cifar10, photos, unfinished, nowhere = json.loads(capsys.readouterr().out)["absent"]
    assert cifar10 == f"cifar10 is not under {tmp_path}"
    assert photos == "there is no photos.npz"
    assert (unfinished, nowhere.split()[0]) == ("unfinished is not finished", "nowhere")
    assert run(command) == 0
    shown = capsys.readouterr().out
    assert f"missing here: {cifar10}\n" in shown
    assert "gaussian on cifar10, cnn-small, 1 epoch\n" in shown


def test_several_teachers_are_one_value_of_an_axis(tmp_path):
    for name in ("a", "b"):
        train(TrainConfig(Gaussian(), **TRAIN, seed=ord(name)), tmp_path / name, device="cpu", progress=no_progress)
    both, one = [str(tmp_path / "a"), str(tmp_path / "b")], str(tmp_path / "b")
    plan = plan_of(axes={"method": ["gaussian"], "teacher": [both, one]})
    assert [config.teacher for config in plan.configs] == [tuple(both), (one,)]
    outcome = sweep(plan, tmp_path / "out")
    assert {row["teacher"] for row in outcome.table.rows} == {" ".join(both), one}


def test_a_plan_with_more_samples_is_not_done_by_the_records_of_fewer(tmp_path):
    certify = {"kind": "certify", "radii": [0.0], "limit": 1}
    few, default = (plan_of(axes={"method": ["gaussian"]}, evaluate=[one]) for one in ({**certify, "n": 100}, certify))
    sweep(few, tmp_path)
    assert [unit.done for plan in (few, default) for unit in plan_units(plan, tmp_path)] == [True, False]


def test_an_evaluation_is_made_of_the_methods_that_it_names(tmp_path):
    certify = {"kind": "certify", "n": 100, "limit": 2, "methods": ["gaussian"]}
    plan = plan_of(
        axes={"method": ["erm", "gaussian"], "sigma": [0.25], "seed": [0]}, evaluate=[*DOCUMENT["evaluate"], certify]
    )
    assert [len(unit.evaluations) for unit in plan_units(plan, tmp_path)] == [1, 2]
    outcome = sweep(plan, tmp_path)
    assert outcome.failures == {}
    assert outcome.table.missing == 0
    certified = {row["method"] for row in outcome.table.rows if row["evaluation"].startswith("certify")}
    assert {row["method"] for row in outcome.table.rows} - certified == {"erm"}
    named = {row["evaluation"] for row in outcome.table.rows}
    assert "certify fixed" in named, "the procedure has its own name, not that of the record's file"


def test_an_evaluation_that_is_named_for_one_method_and_again_for_another_is_made_of_both():
    certify = {"kind": "certify", "n": 100, "limit": 2}
    for second in ({"methods": ["consistency"]}, {}):
        plan = plan_of(evaluate=[{**certify, "methods": ["gaussian"]}, {**certify, **second}])
        assert [len(plan.evaluations_of(one)) for one in plan.configs] == [1] * len(plan.configs)


def test_a_second_sweep_in_a_folder_leaves_with_one_line(tmp_path):
    with (
        owned(tmp_path / sweep_module.LOCK, tmp_path),
        pytest.raises(ValueError, match="must have one writer, but process"),
    ):
        sweep(plan_of(), tmp_path)


def test_a_training_that_diverges_is_not_tried_again(tmp_path):
    plan = plan_of(train={**TRAIN, "lr": 1e9, "optimizer": "sgd"}, axes={"method": ["gaussian"], "seed": [0]})
    outcome = sweep(replace(plan, evaluations=()), tmp_path, executor=(executor := Scripted(1)))
    (line,) = outcome.failures.values()
    assert line.startswith("did not converge: the loss must stay finite")
    assert len(executor.blocks) == 1
    assert outcome.page is None


def test_code_that_nobody_imported_is_refused():
    axes = {"method": [{"kind": "nowhere:Own", "draws": 2}], "seed": [0]}
    with pytest.raises(
        ValueError,
        match=r"plan\.toml names nowhere:Own, which must be imported .* --code nowhere:Own, .* import nowhere",
    ):
        plan_of(axes=axes)
    evaluate = [{"kind": "attack", "attack": {"kind": "nowhere:Own"}}]
    with pytest.raises(ValueError, match=r"plan\.toml names nowhere:Own, which must be imported"):
        plan_of(evaluate=evaluate)


def test_a_path_in_the_place_of_a_plan_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"plan must be a SweepPlan, as of read_plan\(file\), got a str"):
        sweep("plan.toml", tmp_path / "out")
