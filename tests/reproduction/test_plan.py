"""The plan: what runs and evaluations each table and figure needs, each once."""

import ast
import itertools
import re
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from reproduction.experiments import OURS, both_solvers, run_of
from reproduction.reported import TABLES
from reproduction.runner import PAPER, SPECS, Store, plan
from reproduction.scales import SCALES
from reproduction.settings import CIFAR_R, MNIST
from reproduction.specs import Table
from rhobust import TrainConfig, attacks, cli, open_run
from rhobust.methods import ERM, NAL, AdversarialTraining, SmoothAdv
from rhobust.settings import kind_of
from rhobust.sweeps import plan_units, read_plan

PLANS = sorted((Path(__file__).parents[2] / "reproduction").glob("*.toml"))
EVERY = [
    *("table1", "table2", "table-pgd100", "table-sigma", "table-kr", "table-sigma-kr", "table-gamma", "table-elu"),
    *("fig-training", "fig1a", "fig1b", "fig1c", "fig-certified", "fig1d", "fig-elu", "fig2", "fig-transfer"),
    *("lemma1", "theorem2", "corollary"),
]


def test_everything_of_the_paper_has_a_name():
    assert list(PAPER) == EVERY


@pytest.mark.parametrize("scale", SCALES.values(), ids=list(SCALES))
def test_a_plan_holds_each_run_and_each_job_once(scale):
    whole = plan(["all"], scale)
    assert len(whole.jobs) == len(set(whole.jobs))
    run_ids = [run.run_id for run in whole.runs]
    assert len(run_ids) == len(set(run_ids))
    assert set(whole.runs) == {run for job in whole.jobs for run in job.runs}
    for spec in whole.specs:
        assert set(spec.jobs) <= set(whole.jobs)
    alone = [plan([spec.name], scale) for spec in whole.specs]
    assert sum(len(part.runs) for part in alone) > len(whole.runs), "runs are shared"
    assert {job for part in alone for job in part.jobs} == set(whole.jobs)


def test_the_table_of_certified_training_asks_for_radii_that_its_draws_can_reach():
    table = plan(["table-certified"], SCALES["gpu"]).specs[0]
    by_sigma = {line.keys[1]: line for line in table.lines}
    assert list(by_sigma) == ["0.1", "0.25", "0.5"]
    main, small, large = by_sigma.values()
    assert [cell.column for cell in main.cells][-2:] == ["0", "0.25"]
    assert [cell.column for cell in small.cells][-2:] == ["0.5", "0.75"]
    assert [cell.column for cell in large.cells][-1] == "1.75"
    runs = {run.run_id for job in table.jobs for run in job.runs}
    assert len(runs) == len(table.lines) == 17
    assert {(job.run.epochs, job.run.schedule) for job in table.jobs} == {(30, "cosine")}
    assert "table-certified" not in {spec.name for spec in plan(["all"], SCALES["smoke"]).specs}


def test_the_main_table_attacks_each_network_as_strongly_as_it_can_be():
    main, auto = plan(["table-main", "table-autoattack"], SCALES["gpu"]).specs
    lines = {line.keys[0]: {cell.column: cell for cell in line.cells} for line in main.lines}
    assert lines["NAL"]["0.92"].reported == 0.6693
    assert lines["NAL"]["0"].reported == 0.8522
    assert lines["TRADES"]["0"].reported == 0.7953
    assert lines["NAL, damped, gamma 0.2"]["0.92"].reported is None
    for name, noisy in (("NAL", True), ("SmoothAdv", True), ("PGD", False), ("Undefended", False)):
        protocol, strongest = (metric.job for metric in lines[name]["0.5"].ours)
        assert isinstance(protocol.evaluation.attack, attacks.PaperPGD)
        assert isinstance(strongest.evaluation.attack, attacks.EOT if noisy else attacks.PGD)
        assert strongest.evaluation.attack.restarts == 1
        assert strongest.evaluation.predictor == ("smoothed" if noisy else "base")
    versions = {line.keys[0]: line.cells[0].ours[0].job.evaluation.attack.version for line in auto.lines}
    assert versions["STN"] == "rand"
    assert versions["TRADES"] == "standard"
    assert {job.run for job in auto.jobs} == {job.run for job in main.jobs}


def test_a_shorter_scale_never_trains_longer_than_the_paper():
    gpu = SCALES["gpu"]
    assert run_of(gpu, gpu.surrogate(MNIST), "NAL").epochs == 25


def test_the_plan_of_a_sweep_is_the_whole_grid_of_the_paper(tmp_path):
    path = Path(__file__).parent.parent.parent / "reproduction" / "paper.toml"
    grid = read_plan(path)
    whole = plan(["all"], SCALES["full"]).runs
    assert set(grid.configs) == set(whole)
    assert len(grid.configs) == len(whole) == int(re.search(r": (\d+), each once", path.read_text())[1])
    # What a sweep trained is what the tables are made of.
    store = Store(tmp_path, torch.device("cpu"))
    assert [unit.folder for unit in plan_units(grid, tmp_path)] == [store.folder(one) for one in grid.configs]


def test_the_certified_results_have_the_published_networks_settings_and_three_seeds_each():
    root = Path(__file__).parent.parent.parent
    found = read_plan(root / "reproduction" / "certified.toml")
    names = Counter(kind_of(type(one.method)) for one in found.configs)
    methods = "nal", "smoothadv", "gaussian", "consistency", "macer", "smoothmix", "catrs"
    assert names == dict.fromkeys(methods, 3)
    assert {one.seed for one in found.configs} == {0, 1, 2}
    assert {one.sigma for one in found.configs} == {0.25}
    published = open_run(root / "results" / "pretrained" / "cifar10-nal-0.25").config
    assert published in found.configs
    assert_certified(found, "nal", (0.0, 0.25, 0.5, 0.75))
    assert_certified(found, "macer", (0.0, 0.25, 0.5, 0.75), limit=2500, costs=["w2"])
    assert [one.seed for one in found.configs] == [0] * 7 + [1] * 7 + [2] * 7


def assert_certified(found, method, radii, limit=None, costs=("w2", "w1", "winf")):
    """All networks of a method are certified at some radii, for a few images exactly, and for every kind of shift."""
    for config in (one for one in found.configs if kind_of(type(one.method)) == method):
        decided, exact, *shifts = found.evaluations_of(config)
        assert (decided.radii, decided.limit, decided.label) == (radii, limit, "grid")
        assert (exact.label, exact.limit, exact.stride) == ("two-stage", 250, 40)
        assert [one.claim.cost for one in shifts] == list(costs)
        assert {one.limit for one in shifts} <= {None}


@pytest.mark.parametrize(
    ("name", "noises", "radii"),
    [
        ("certified-0.5", (0.5,), (0.0, 0.5, 1.0, 1.5)),
        ("certified-noise", (0.12, 1.0), (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)),
        ("taught", (0.25,), (0.0, 0.25, 0.5, 0.75)),
    ],
)
def test_certified_rows_have_three_seeds_and_a_baseline_with_the_same_recipe(name, noises, radii):
    found = read_plan(next(one for one in PLANS if one.stem == name))
    names = Counter((one.sigma, kind_of(type(one.method))) for one in found.configs)
    assert names == dict.fromkeys(itertools.product(noises, ("nal", "smoothadv")), 3)
    assert {one.mirror for one in found.configs} == {True}
    costs = () if name == "taught" else ("w2", "w1", "winf")
    assert_certified(found, "nal", radii, costs=costs)
    assert_certified(found, "smoothadv", radii, limit=2500, costs=costs)
    for sigma in noises:
        own = [one for one in found.configs if one.sigma == sigma]
        assert [(one.seed, kind_of(type(one.method))) for one in own] == [
            *itertools.product((0, 1, 2), ("nal", "smoothadv"))
        ]
        # But for method and seed all settings are the same.
        assert len({replace(one, method=ERM(), seed=0, attack_after=0) for one in own}) == 1
        assert {(one.method.steps, one.method.draws, one.method.agreement) for one in own} == {
            (2, 4, own[0].method.agreement)
        }


def test_sigma_half_starts_from_what_its_search_trains_first():
    found, search = (
        read_plan(one).configs for name in ("certified-0.5", "search-0.5") for one in PLANS if one.stem == name
    )
    for method in ("nal", "smoothadv"):
        first = next(one for one in search if kind_of(type(one.method)) == method)
        ours = [one for one in found if kind_of(type(one.method)) == method]
        assert {(one.method, one.weight_decay) for one in ours} == {(first.method, first.weight_decay)}


def test_a_stopped_sweep_of_attacked_networks_has_one_seed_of_every_method_first():
    found = read_plan(next(one for one in PLANS if one.stem == "attacked"))
    main = found.configs[:18]
    assert [one.seed for one in main] == [0] * 6 + [1] * 6 + [2] * 6
    assert len({one.method for one in main}) == 6
    assert {(one.model, one.activation) for one in found.configs[18:]} == {
        *(("vgg16", "relu"), ("wrn-28-10", "relu"), ("resnet18", "elu"), ("vgg16", "elu"))
    }
    for config in found.configs:
        strongest, *others = found.evaluations_of(config)
        noisy = config.sigma is not None
        assert strongest.attack == (attacks.EOT() if noisy else attacks.PGD())
        assert (strongest.radii, strongest.limit) == ((0.0, 0.5, 0.92), None)
        assert [one.label for one in others] == (["autoattack", "", "", ""] if noisy else [])


@pytest.mark.parametrize("name", ["attacked", "certified-0.5", "certified-noise", "taught"])
def test_a_network_of_a_plan_can_be_published_with_its_records(name):
    assert all(one.round_weights for one in read_plan(next(path for path in PLANS if path.stem == name)).configs)


def test_the_settings_of_attacked_networks_are_those_that_the_search_trains_first():
    search, rows = (read_plan(one) for name in ("search-attacked", "attacked") for one in PLANS if one.stem == name)
    methods = {one.method for one in rows.configs[:6]}
    assert methods == {search.configs[place].method for place in range(0, 12, 2)}
    assert {(one.lr, one.weight_decay, one.epochs) for one in rows.configs} == {
        (one.lr, one.weight_decay, one.epochs) for one in search.configs
    }


def test_our_recipe_trains_the_papers_data_sets_and_networks_by_default_settings():
    recipe, full = (plan(["table2", "table-elu"], SCALES[name]) for name in ("recipe", "full"))
    assert {(one.data, one.model, one.method) for one in recipe.runs} == {
        (one.data, one.model, one.method) for one in full.runs
    }
    for run in recipe.runs:
        usual = TrainConfig(run.method, run.data, run.model)
        for name in ("optimizer", "lr", "weight_decay", "schedule"):
            assert getattr(run, name) == getattr(usual, name)
        assert run.epochs <= 30
    assert any("not as the paper states" in note for note in recipe.specs[0].notes)
    assert not any("not as the paper states" in note for note in full.specs[0].notes)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_every_plan_expands_into_what_its_comment_runs(path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(path.parents[1])
    comment = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any(f"rhobust sweep reproduction/{path.name} --out" in line for line in comment)
    found = read_plan(path)
    assert cli.run(["sweep", str(path), "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    units = plan_units(found, tmp_path)
    evaluations = sum(len(unit.evaluations) for unit in units)
    where = "held-out" if found.split == "validation" else "test"
    counts, *lines = capsys.readouterr().out.splitlines()
    assert counts == f"{len(units)} runs planned, 0 finished; {evaluations} evaluations on {where} images"
    missing = [line for line in lines if line.startswith("missing here: ")]
    assert all(" is not under " in line for line in missing), "a teacher is missing"
    described = [line.split(maxsplit=1) for line in lines if line not in missing]
    trained = sum(int(count) for count, what in described if what.endswith("epochs"))
    assert trained == len(units)
    assert sum(int(count) for count, _ in described) == len(units) + evaluations
    assert all(unit.evaluations for unit in units)
    assert not (tmp_path / "out").exists()


def test_the_searches_touch_no_test_image_and_give_each_method_as_many_trainings():
    certified, attacked = (
        read_plan(one) for name in ("search-0.5", "search-attacked") for one in PLANS if one.stem == name
    )
    for search in (certified, attacked):
        assert search.split == "validation"
        assert {one.limit for one in search.evaluations} == {1000}
        assert {(one.validation, one.epochs, one.optimizer, one.lr, one.keep) for one in search.configs} == {
            (5000, 30, "sgd", 0.2, "last")
        }
    names = Counter(kind_of(type(one.method)) for one in certified.configs)
    assert names == {"nal": 8, "smoothadv": 8}
    for stopped in (4, 8, 12):
        names = Counter(kind_of(type(one.method)) for one in certified.configs[:stopped])
        assert names == {"nal": stopped // 2, "smoothadv": stopped // 2}
    (evaluation,) = certified.evaluations
    assert evaluation.radii == (0.0, 0.5, 1.0, 1.5)
    assert {(one.method.steps, one.method.draws, one.method.sigma, one.mirror) for one in certified.configs} == {
        (2, 4, 0.5, True)
    }
    first, second, third = certified.configs[:3]
    assert (first.weight_decay, first.method.gamma, first.method.agreement) == (5e-4, 0.4, 8.0)
    assert (second.weight_decay, second.method.gamma, second.method.agreement) == (5e-4, 0.4, 4.0)
    assert third.method == SmoothAdv(sigma=0.5, eps=1.0, steps=2, draws=4, agreement=8.0)
    names = Counter(kind_of(type(one.method)) for one in attacked.configs)
    assert names == {"nal": 4, "smoothadv": 4, "trades": 4}
    for config in attacked.configs:
        (evaluation,) = attacked.evaluations_of(config)
        assert evaluation.radii == (0.0, 0.5, 0.92)
        assert evaluation.attack == (attacks.PGD() if config.sigma is None else attacks.EOT())


def test_the_full_scale_is_the_paper():
    whole = plan(["all"], SCALES["full"])
    assert {spec.name for spec in whole.specs} == set(EVERY)
    assert {(run.data, run.model) for run in whole.runs} == {
        ("mnist", "cnn"),
        ("cifar10", "resnet18"),
        ("cifar10", "vgg16"),
        ("tiny-imagenet", "resnet18"),
    }
    for run in whole.runs:
        assert (run.batch_size, run.optimizer, run.schedule) == (128, "adam", "constant")
        assert run.epochs == (25 if run.data == "mnist" else 100)
        assert run.lr == (2e-5 if run.data == "tiny-imagenet" else 1e-4)
    nals = [run.method for run in whole.runs if isinstance(run.method, NAL)]
    assert {(nal.steps, nal.draws) for nal in nals} == {
        *((4, 1), (4, 4), (4, 8), (8, 1), (8, 4), (8, 8)),
        *((2, 1), (2, 4), (6, 1), (6, 4)),
    }
    assert {nal.sigma for nal in nals} == {0.05, 0.1, 0.2, 0.12, 0.25, 0.5}
    assert {nal.inner for nal in nals} == {"paper", "damped"}
    assert {run.method.sigma for run in whole.runs if run.data == "mnist" and run.sigma} == {0.05, 0.1}
    assert {run.keep for run in whole.runs} == {"last", "best-clean"}


@pytest.mark.parametrize("name", [name for name in TABLES if name in PAPER and name != "table1"])
def test_every_reported_number_has_its_cell(name):
    table = SPECS[name](SCALES["full"])
    assert isinstance(table, Table)
    assert {cell.column for line in table.lines for cell in line.cells} == set(TABLES[name].columns)
    both = [(line.keys, cell) for line in table.lines for cell in line.cells if OURS not in line.keys]
    shown = [cell.reported for _, cell in both if cell.reported is not None]
    reported = [TABLES[name].accuracy(row, column) for row in TABLES[name].rows for column in TABLES[name].columns]
    assert sorted(shown) == sorted(reported)


def test_a_cell_is_read_where_the_paper_attacks():
    table = SPECS["table2"](SCALES["full"])
    nal = next(line for line in table.lines if line.keys == ("NAL",))
    cell = {cell.column: cell for cell in nal.cells}
    paper, eot = cell["CIFAR-10 robust"].ours
    assert (paper.at, eot.at) == (0.92, 0.92)
    assert cell["MNIST robust"].ours[0].at == 0.34
    assert cell["MNIST robust"].notes != ()
    attack = paper.job.evaluation
    assert (attack.attack.steps, attack.predictor, paper.job.sigma) == (20, "smoothed", 0.1)
    assert eot.job.evaluation.attack == SCALES["full"].eot
    assert paper.job.run.method == NAL(sigma=0.1, gamma=1.5, steps=4, draws=4, inner="paper")
    pgd = next(line for line in table.lines if line.keys == ("PGD",)).cells[2]
    assert pgd.ours[0].job.evaluation.predictor == "base"
    assert pgd.ours[0].job == pgd.ours[1].job
    assert pgd.ours[0].job.run.method == AdversarialTraining(eps=0.92)
    hundred = SPECS["table-pgd100"](SCALES["full"]).lines[0].cells[0].ours
    assert [metric.job.evaluation.attack.steps for metric in hundred] == [100, 100]
    other = SPECS["table-gamma"](SCALES["full"])
    smoothadv = next(line for line in other.lines if line.keys == ("SmoothAdv",))
    assert [cell.ours[0].job.run.method.eps for cell in smoothadv.cells[::2]] == [0.21, 0.84, 0.4, 1.53]
    assert smoothadv.cells[0].ours[0].job.run.method == SmoothAdv(sigma=0.05, eps=0.21)


def test_both_solvers_stand_side_by_side():
    assert both_solvers(("PGD", "NAL")) == ("PGD", "NAL", OURS)
    keys = [line.keys[0] for line in SPECS["table-kr"](SCALES["full"]).lines]
    assert keys == ["NAL", OURS] * 6
    with pytest.raises(ValueError, match="row must be a method of the paper, got Nal"):
        run_of(SCALES["smoke"], SCALES["smoke"].surrogate(CIFAR_R), "Nal")


def test_a_scale_that_leaves_a_data_set_out_says_so():
    small = plan(["all"], SCALES["small"])
    assert "fig1d" not in {spec.name for spec in small.specs}
    table = SPECS["table2"](SCALES["small"])
    assert table.notes[-2:] == (
        "Tiny ImageNet: left out at the scale small.",
        "Surrogate data sets of the scale small: mnist with the network cnn-small for MNIST and CIFAR-10 (R).",
    )
    assert {cell.column for line in table.lines for cell in line.cells} == {
        *("MNIST robust", "MNIST natural", "CIFAR-10 robust", "CIFAR-10 natural")
    }


def test_fewer_gammas_keep_the_default():
    assert SCALES["small"].gammas_of((0.25, 1.5, 5.0)) == (0.25, 1.5)
    assert SCALES["full"].gammas_of((0.25, 1.5, 3.0)) == (0.25, 1.5, 3.0)


def test_jobs_are_plain_data():
    for job in plan(["all"], SCALES["smoke"]).jobs:
        assert hash(job) == hash(type(job)(**{field.name: getattr(job, field.name) for field in fields(job)}))


def test_every_variant_of_the_protocol_has_a_record_of_its_own():
    table = SPECS["protocol-variants"](SCALES["gpu"])
    assert len(table.jobs) == len(table.lines) == 12
    assert {job.evaluation.nested for job in table.jobs} == {False}
    assert {job.run for job in table.jobs} == {SPECS["table2"](SCALES["gpu"]).lines[-2].cells[2].ours[0].job.run}
    assert [cell.reported for cell in table.lines[0].cells][:2] == [0.8522, 0.8155]


def test_the_paper_is_reproduced_with_public_names_only():
    """Of rhobust the reproduction imports packages and top modules, nothing inside a package."""
    for path in (Path(__file__).parents[2] / "reproduction").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rhobust"):
                assert node.module.count(".") <= 1, f"{path.name}: {node.module}"
                assert not any(alias.name.startswith("_") for alias in node.names)
