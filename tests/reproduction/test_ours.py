"""Our own tables and figures: what they are read from, and what a few tiny runs make of them."""

import json
import shutil
from dataclasses import replace
from statistics import mean

import pytest

from reproduction import ablations, our_tables
from reproduction.__main__ import main
from reproduction.plots import draw
from reproduction.render import block
from reproduction.runner import OURS, place, plan, reproduce
from reproduction.scales import SCALES
from reproduction.specs import Job, Seeds
from rhobust.attacks import PaperPGD
from rhobust.files import read_json
from rhobust.records import read_rows
from tests.reproduction.conftest import store_in

NAMES = ["fig-pareto", "fig-summary"]
WHITE_BOX = "white-box (EOT-PGD)"


def spec(name, scale="gpu"):
    return OURS[name](SCALES[scale])


@pytest.fixture(scope="module")
def quick(tiny):
    """Two stages of a certificate need a few draws more."""
    return replace(tiny, epochs=1, draws=1000, probe=False)


@pytest.fixture(scope="module")
def shown(tmp_path_factory, quick):
    """A folder with both figures."""
    folder = tmp_path_factory.mktemp("shown")
    assert reproduce(plan(NAMES, quick), store_in(folder)).faults == ()
    return folder


def drawn(folder, names, scale):
    """The documents of what is there, and the faults."""
    outcome = reproduce(plan(names, scale), store_in(folder), draw_only=True)
    return [read_json(place(name, folder)) for name in names], outcome.faults


def test_the_summary_is_read_from_the_records_of_the_tables():
    tables = [spec(name) for name in ("table-main", "table-autoattack", "table-certified")]
    jobs = {job for table in tables for job in table.jobs}
    for name in ("table-summary", "fig-summary", "fig-pareto"):
        assert set(spec(name).jobs) < jobs


def test_a_method_is_a_row_of_the_summary():
    table = spec("table-summary")
    assert [line.keys[0] for line in table.lines] == [
        *("Undefended", "Smoothing", "STN", "PGD", "TRADES", "SmoothAdv", "NAL", "NAL, damped, gamma 0.36"),
    ]
    assert {len(line.cells) for line in table.lines if line.keys[0] in ("Undefended", "PGD", "TRADES")} == {5}
    nal = {cell.column: cell for cell in table.lines[6].cells}
    assert list(nal) == [
        *("natural", "PGD-20 at 0.92", f"{WHITE_BOX} at 0.5", f"{WHITE_BOX} at 0.92", "AutoAttack at 0.92"),
        *("certified at 0.25", "certified, W2 0.1"),
    ]
    assert [cell.reported for cell in nal.values() if cell.reported is not None] == [0.6693]


def test_mnist_has_three_seeds_and_shares_what_has_no_gamma():
    table = spec("table-mnist")
    runs = {run for job in table.jobs for run in job.runs}
    assert len(table.lines) == 3 * 9
    assert len(runs) == 3 * (3 + 3 * 6)
    assert {run.seed for run in runs} == {0, 1, 2}
    assert {(run.data, run.model, run.epochs) for run in runs} == {("mnist", "cnn", 25)}
    assert {run.sigma for run in runs} == {None, 0.05}
    for line in table.lines:
        for cell in line.cells:
            [ours] = cell.ours
            assert isinstance(ours, Seeds)
            assert [metric.job.run.seed for metric in ours.metrics] == [0, 1, 2]
            assert {metric.at for metric in ours.metrics} <= {0.0, float(line.keys[1])}
            kinds = {type(metric.job.evaluation.attack) for metric in ours.metrics}
            assert (kinds == {PaperPGD}) == (cell.column != f"{WHITE_BOX} at eps")
    stn = [line for line in table.lines if line.keys[2] == "STN"]
    assert len({metric.job for line in stn for metric in line.cells[2].ours[0].metrics}) == 3
    assert [cell.reported for cell in stn[1].cells] == [0.9913, 0.9781, None]


def test_the_cost_table_counts_every_training_and_evaluation():
    cost = spec("table-cost")
    jobs = {job for table in cost.tables for job in table.jobs}
    runs = {run for job in jobs for run in job.runs}
    assert set(cost.jobs) == jobs | {Job(run) for run in runs}


def test_the_pareto_front_joins_the_gammas_of_nal(shown, quick):
    [document], faults = drawn(shown, ["fig-pareto"], quick)
    assert faults == ()
    for panel, radius in zip(document["panels"], (0.5, 0.92), strict=True):
        labels = [curve["label"] for curve in panel["curves"] if curve["colour"] == "NAL, damped"]
        assert labels == ["0.5", "0.36", "0.2"]
        for curve in panel["curves"]:
            rows = read_rows(shown / curve["record"])[1:-1]
            x, y = (mean(not row["broken"] for row in rows if row["radius"] == at) for at in (0.0, radius))
            assert (curve["x"], curve["y"]) == ([x], [y])
            assert curve["left"][0] <= x <= curve["right"][0]
            assert curve["low"][0] <= y <= curve["high"][0]
    figure = draw(document)
    [line] = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 3]
    xs = [curve["x"][0] for curve in document["panels"][0]["curves"] if curve["label"]]
    assert list(line.get_xdata()) == xs
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.5", "0.36", "0.2"]


def test_the_summary_is_reported_measured_and_proved(shown, quick):
    [document], _ = drawn(shown, ["fig-summary"], quick)
    first, second = document["panels"]
    assert [curve["kind"] for curve in first["curves"]] == [
        *("as reported", "the paper's protocol, PGD-20", f"{WHITE_BOX} attack", "certified"),
    ]
    reported = first["curves"][0]
    assert (reported["x"][0], reported["y"][0], reported["y"][-1]) == (0, 0.8522, 0.3909)
    assert [curve["falling"] for curve in first["curves"]] == [False, False, False, True]
    proved = [curve["colour"] for curve in second["curves"] if curve["kind"] == "certified"]
    assert proved == ["NAL, damped", "SmoothAdv"]
    header = read_rows(shown / first["curves"][-1]["record"])[0]["settings"]
    assert (header["limit"], header["stride"]) == (6, 797 // 6), "certified images lie evenly in the test set"


def test_a_row_that_is_half_measured_is_shown_and_the_rest_is_named(shown, quick):
    [document], faults = drawn(shown, ["table-summary"], quick)
    text = block(document)
    assert text == (shown / "tables" / "table-summary.md").read_text().partition("\n\n")[2].rstrip("\n")
    assert str(shown) not in (shown / "tables" / "table-summary.json").read_text() + text
    assert all(fault.startswith("runs/") for fault in faults)
    rows = {line.split(" | ")[0][2:]: line.split(" | ")[1:] for line in text.splitlines() if line.startswith("| ")}
    assert rows["method"][:2] == ["natural (n 6)", "PGD-20 at 0.92, reported"]
    assert rows["NAL"][1] == "0.6693"
    assert rows["NAL"][2].endswith(")")
    assert rows["TRADES"][2] == "not yet", "only the figures' evaluations are there"
    assert rows["NAL"][5] == "not yet"
    assert rows["TRADES"][-1].strip(" |") == ""


def test_rows_without_any_number_are_left_out_and_named(shown, quick, tmp_path):
    shutil.copytree(shown, tmp_path / "copy")
    for folder in (tmp_path / "copy" / "runs").glob("trades-*"):
        shutil.rmtree(folder)
    [document], _ = drawn(tmp_path / "copy", ["table-main"], quick)
    text = block(document)
    assert "\n| TRADES" not in text
    assert "- Not measured yet: Undefended; Smoothing; STN; PGD (PGD-20); TRADES;" in text
    [document], _ = drawn(tmp_path / "copy", ["table-mnist"], quick)
    assert block(document) == "Not measured yet."


def test_our_attack_is_shown_next_to_autoattack_on_the_same_images(shown, quick):
    few = replace(quick, certified=4)
    [document], _ = drawn(shown, ["table-autoattack"], few)
    lines = {line["keys"][0]: line["cells"] for line in document["lines"]}
    for cell in lines["PGD"]:
        other, ours = cell["ours"]
        assert other["absent"]
        rows = read_rows(shown / ours["record"])[1:-1]
        left = [not row["broken"] for row in rows if row["radius"] == float(cell["column"])]
        assert (len(left), ours["n"]) == (6, 4)
        assert ours["value"] == mean(left[:4])
    assert "- Not measured yet: Undefended; Smoothing; STN; PGD (AutoAttack);" in block(document)


@pytest.mark.slow
def test_the_cost_table_adds_up_the_seconds_of_the_records(shown, quick, tmp_path):
    shutil.copytree(shown, tmp_path / "copy")
    trainings = list((tmp_path / "copy").glob("runs/*/metrics.jsonl"))
    records = list((tmp_path / "copy").glob("runs/*/*-*.jsonl"))
    minutes = [
        sum(row["seconds"] for path in trainings for row in read_rows(path)) / 60,
        sum(read_rows(path)[-1]["summary"]["seconds"] for path in records) / 60,
    ]
    [document], _ = drawn(tmp_path / "copy", ["table-cost"], quick)
    cells = {cell["column"]: cell["ours"][0]["value"] for cell in document["lines"][-1]["cells"]}
    assert (cells["trainings"], cells["evaluations"]) == (len(trainings), len(records)) == (7, 11)
    columns = ("training, min", "evaluation, min", "total, min")
    assert [cells[column] for column in columns] == pytest.approx([*minutes, sum(minutes)])
    row = block(document).splitlines()[len(document["lines"]) + 1]
    assert row.startswith(f"| all of these, each once | 7 | 11 | {minutes[0]:.1f} | {minutes[1]:.1f} |")
    assert "95%" not in block(document)

    cut = next((tmp_path / "copy").glob("runs/nal-*/attack-eot-*.jsonl"))
    cut.unlink()
    next((tmp_path / "copy").glob("runs/trades-*/metrics.jsonl")).write_text("{half\n")
    [document], faults = drawn(tmp_path / "copy", ["table-cost"], quick)
    assert any("damaged" in fault for fault in faults)
    cells = {cell["column"]: cell["ours"][0]["value"] for cell in document["lines"][-1]["cells"]}
    assert (cells["trainings"], cells["evaluations"]) == (6, 10), "what is missing or damaged is left out"


def test_seeds_are_shown_as_their_mean_and_each(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(our_tables, "MNIST_ROWS", ("Smoothing",))
    assert reproduce(plan(["table-mnist"], quick), store_in(tmp_path)).faults == ()
    assert len(list(tmp_path.glob("runs/*"))) == 3, "one run a seed for all gammas"

    def first_cell():
        return json.loads((tmp_path / "tables" / "table-mnist.json").read_text())["lines"][0]["cells"][0]["ours"][0]

    def page():
        return (tmp_path / "tables" / "table-mnist.md").read_text()

    whole = first_cell()
    values = [seed["value"] for seed in whole["seeds"]]
    assert whole["value"] == pytest.approx(mean(values))
    assert whole["low"] == min(seed["low"] for seed in whole["seeds"])
    assert whole["high"] == max(seed["high"] for seed in whole["seeds"])
    assert f"<br>{values[0]:.4f} {values[1]:.4f} {values[2]:.4f} |" in page()

    [gone] = {seed["record"].split("/")[1] for seed in whole["seeds"][1:2]}
    shutil.rmtree(tmp_path / "runs" / gone)
    outcome = reproduce(plan(["table-mnist"], quick), store_in(tmp_path), draw_only=True)
    assert outcome.faults == (f"runs/{gone} must hold a finished run, but it is not trained",)
    assert first_cell()["value"] == pytest.approx(mean([values[0], values[2]]))
    assert f"<br>{values[0]:.4f} not yet {values[2]:.4f} |" in page()


@pytest.mark.slow
def test_ours_means_all_of_them(tmp_path, capsys):
    code = main(["ours", "--draw-only", "--out", str(tmp_path), "--quiet", "--device", "cpu"])
    capsys.readouterr()
    assert code == 1
    assert {path.stem for path in tmp_path.glob("*/*.json")} == set(OURS)


def test_variations_change_one_setting_at_a_time():
    table = spec("table-variations")
    runs = [line.cells[0].ours[0].job.run for line in table.lines]
    first = runs[0]
    assert (first.epochs, first.model, first.activation) == (10, "resnet18", "relu")
    assert (first.method.sigma, first.method.gamma, first.method.steps, first.method.draws) == (0.1, 0.5, 4, 1)
    for run in runs[1:8]:
        changed = [key for key in ("sigma", "steps", "draws") if getattr(run.method, key) != getattr(first.method, key)]
        assert len(changed) == 1
        assert replace(run, method=first.method) == first
    assert {(run.model, run.activation, type(run.method).__name__) for run in runs[8:]} == {
        *(("resnet18", "relu", "WRM"), ("resnet18", "elu", "NAL"), ("resnet18", "elu", "WRM")),
        *(("vgg16", "relu", "NAL"), ("vgg16", "elu", "NAL"), ("vgg16", "elu", "WRM")),
    }
    columns = ["natural", f"{WHITE_BOX} at 0.5", f"{WHITE_BOX} at 0.92", "certified at 0.25"]
    for line, run in zip(table.lines, runs, strict=True):
        proved = run.sigma is not None and run.sigma > 0.05
        assert [cell.column for cell in line.cells] == columns[: 4 if proved else 3]
    assert len({job.run for job in table.jobs}) == len(runs) == 14


def test_every_variation_is_compared_with_the_row_that_differs_from_it_in_one_thing():
    table, pairs = spec("table-variations"), spec("table-variations-pairs")
    read = {line.keys: {cell.column: cell.ours[0] for cell in line.cells} for line in table.lines}
    first, *others = read
    assert [keys for keys, _ in pairs.lines] == others
    for keys, compared in pairs.lines:
        assert {pair.column: pair.ours for pair in compared}.items() <= read[keys].items()
        (baseline,) = {pair.theirs.job.run for pair in compared}
        (run,) = {pair.ours.job.run for pair in compared}
        same = [
            replace(run, method=baseline.method) == baseline,
            replace(run, activation=baseline.activation) == baseline,
            replace(run, model=baseline.model) == baseline,
        ]
        assert sum(same) == 1, keys
        shared = read[keys].keys() & next(own for own in read.values() if own["natural"].job.run == baseline).keys()
        assert {pair.column for pair in compared} == shared
        assert {pair.column for pair in compared} == {column for column in read[first] if column in read[keys]}


def test_on_tiny_imagenet_the_damped_solver_is_compared_with_the_others():
    table, pairs = spec("table-tiny"), spec("table-tiny-pairs")
    read = {line.keys: {cell.column: cell.ours[0] for cell in line.cells} for line in table.lines}
    ours = read.pop(("NAL, damped",))
    assert [keys for keys, _ in pairs.lines] == list(read)
    for keys, compared in pairs.lines:
        assert [pair.column for pair in compared] == [
            name for name in read[keys] if not name.startswith("certified, W2")
        ]
        for pair in compared:
            assert (pair.ours, pair.theirs) == (ours[pair.column], read[keys][pair.column])


def test_tiny_imagenet_is_short_and_says_which_part():
    table = spec("table-tiny")
    assert {(job.run.data, job.run.epochs) for job in table.jobs} == {("tiny-imagenet-50", 15)}
    assert any("tiny-imagenet-50" in note for note in table.notes)
    rows = {line.keys[0]: line.cells for line in table.lines}
    assert [cell.reported for cell in rows["NAL"][:2]] == [0.5963, 0.4589]
    assert {cell.reported for cell in rows["NAL, damped"]} == {None}
    assert [cell.column for cell in rows["TRADES"]] == [
        "natural",
        "PGD-20 at 0.93",
        f"{WHITE_BOX} at 0.5",
        f"{WHITE_BOX} at 0.93",
    ]


@pytest.mark.parametrize(("name", "part"), [("table-variations", "VARIED_PART"), ("table-tiny", "TINY_PART")])
@pytest.mark.parametrize(
    ("one_of", "epochs", "words"), [(2, 15, "Half the epochs of"), (3, 10, "A third of the epochs")]
)
def test_the_note_says_the_part_of_the_epochs_that_is_trained(name, part, one_of, epochs, words, monkeypatch):
    monkeypatch.setattr(ablations, part, one_of)
    table = spec(name)
    assert {job.run.epochs for job in table.jobs} == {epochs}
    assert table.notes[0].startswith(words)


def test_the_matched_gamma_is_compared_with_every_other_row_under_the_white_box_attack():
    main, pairs = spec("table-main"), spec("table-pairs")
    attacked = {line.keys: {cell.column: cell.ours[1] for cell in line.cells} for line in main.lines}
    matched = attacked.pop(("NAL, damped, gamma 0.36",))
    assert [keys for keys, _ in pairs.lines] == list(attacked)
    for keys, compared in pairs.lines:
        assert {pair.column: pair.ours for pair in compared} == matched
        assert {pair.column: pair.theirs for pair in compared} == attacked[keys]


def test_attacks_cross_every_pair_of_networks():
    matrix = spec("fig-transfer-short")
    for name, row in zip(matrix.names, matrix.rows, strict=True):
        for predictor, metric in zip(matrix.names, row, strict=True):
            job = metric.job
            assert (job.source is None) == (name == predictor)
            assert metric.at == 0.92
            if job.source:
                assert job.evaluation.radii == (0.0, 0.92)
    trained = {metric.job.run for row in matrix.rows for metric in row}
    assert {run.epochs for run in trained} == {10}
    assert len(trained & {job.run for job in spec("table-variations").jobs}) == 1, "NAL's own is trained once"
    assert matrix.notes[0].startswith("A third of the epochs of the main experiment, and r = 1")
