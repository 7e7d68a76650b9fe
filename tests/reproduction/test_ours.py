"""Our own tables and figures: what they rest on, and what a few tiny runs make of them."""

import json
import shutil
from dataclasses import replace
from statistics import mean, median

import pytest

from reproduction import seeds, short
from reproduction.__main__ import main
from reproduction.drawing import draw
from reproduction.jobs import Training, runs_of
from reproduction.pages import place
from reproduction.plan import BEYOND, plan
from reproduction.reproduce import reproduce
from reproduction.scales import SCALES
from reproduction.specs import Seeds
from reproduction.writing import block
from rhobust.attacks import PaperPGD
from rhobust.records import read_json, read_rows
from tests.reproduction.conftest import workshop_in

NAMES = ["fig-front", "fig-story"]


def spec(name, scale="gpu"):
    return BEYOND[name](SCALES[scale])


@pytest.fixture(scope="module")
def quick(tiny):
    """Two stages of a certificate need a few draws more."""
    return replace(tiny, epochs=1, draws=1000, probe=False)


@pytest.fixture(scope="module")
def shown(tmp_path_factory, quick):
    """A folder with both figures."""
    folder = tmp_path_factory.mktemp("shown")
    assert reproduce(plan(NAMES, quick), workshop_in(folder)).faults == ()
    return folder


def drawn(folder, names, scale):
    """The documents of what is there, and the faults."""
    outcome = reproduce(plan(names, scale), workshop_in(folder), draw_only=True)
    return [read_json(place(name, folder)) for name in names], outcome.faults


def test_what_the_readme_shows_rests_on_the_tables_alone():
    tables = [spec(name) for name in ("table-main", "table-autoattack", "table-certified")]
    jobs = {job for table in tables for job in table.jobs}
    for name in ("table-story", "fig-story", "fig-front"):
        assert set(spec(name).jobs) < jobs


def test_a_method_is_a_row_of_the_story():
    table = spec("table-story")
    assert [line.keys[0] for line in table.lines] == [
        *("Undefended", "Smoothing", "STN", "PGD", "TRADES", "SmoothAdv", "NAL", "NAL, damped, gamma 0.36"),
    ]
    assert {len(line.cells) for line in table.lines if line.keys[0] in ("Undefended", "PGD", "TRADES")} == {5}
    nal = {cell.column: cell for cell in table.lines[6].cells}
    assert list(nal) == [
        *("natural", "PGD-20 at 0.92", "sees all at 0.5", "sees all at 0.92", "AutoAttack at 0.92"),
        *("certified at 0.25", "certified, W2 0.1"),
    ]
    assert [cell.printed for cell in nal.values() if cell.printed is not None] == [0.6693]


def test_mnist_has_three_seeds_and_shares_what_has_no_gamma():
    table = spec("table-mnist")
    runs = {run for job in table.jobs for run in runs_of(job)}
    assert len(table.lines) == 3 * 9
    assert len(runs) == 3 * (3 + 3 * 6)
    assert {run.seed for run in runs} == {0, 1, 2}
    assert {(run.data, run.model, run.epochs) for run in runs} == {("mnist", "cnn", 25)}
    assert {run.sigma for run in runs} == {None, 0.05}
    for line in table.lines:
        for cell in line.cells:
            [ours] = cell.ours
            assert isinstance(ours, Seeds)
            assert [reading.job.run.seed for reading in ours.readings] == [0, 1, 2]
            assert {reading.at for reading in ours.readings} <= {0.0, float(line.keys[1])}
            kinds = {type(reading.job.attack) for reading in ours.readings}
            assert (kinds == {PaperPGD}) == (cell.column != "sees all at eps")
    stn = [line for line in table.lines if line.keys[2] == "STN"]
    assert len({reading.job for line in stn for reading in line.cells[2].ours[0].readings}) == 3
    assert [cell.printed for cell in stn[1].cells] == [0.9913, 0.9781, None]


def test_the_ledger_lists_every_training_and_evaluation():
    ledger = spec("ledger")
    jobs = {job for table in ledger.tables for job in table.jobs}
    runs = {run for job in jobs for run in runs_of(job)}
    assert set(ledger.jobs) == jobs | {Training(run) for run in runs}


def test_the_front_joins_the_prices_of_nal(shown, quick):
    [document], faults = drawn(shown, ["fig-front"], quick)
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


def test_the_story_is_printed_measured_and_proved(shown, quick):
    [document], _ = drawn(shown, ["fig-story"], quick)
    first, second = document["panels"]
    assert [curve["kind"] for curve in first["curves"]] == [
        *("as printed", "the paper's protocol, PGD-20", "an attack that sees all", "certified"),
    ]
    printed = first["curves"][0]
    assert (printed["x"][0], printed["y"][0], printed["y"][-1]) == (0, 0.8522, 0.3909)
    assert [curve["falling"] for curve in first["curves"]] == [False, False, False, True]
    proved = [curve["colour"] for curve in second["curves"] if curve["kind"] == "certified"]
    assert proved == ["NAL, damped", "SmoothAdv"]
    header = read_rows(shown / first["curves"][-1]["record"])[0]["settings"]
    assert (header["limit"], header["stride"]) == (6, 797 // 6), "certified images lie evenly in the test set"


def test_a_row_that_is_half_measured_is_shown_and_the_rest_is_named(shown, quick):
    [document], faults = drawn(shown, ["table-story"], quick)
    text = block(document)
    assert text == (shown / "tables" / "table-story.md").read_text().partition("\n\n")[2].rstrip("\n")
    assert str(shown) not in (shown / "tables" / "table-story.json").read_text() + text
    assert all(fault.startswith(str(shown)) for fault in faults)
    rows = {line.split(" | ")[0][2:]: line.split(" | ")[1:] for line in text.splitlines() if line.startswith("| ")}
    assert rows["method"][:2] == ["natural (n 6)", "PGD-20 at 0.92, printed"]
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


def test_our_attack_stands_beside_autoattack_on_the_same_images(shown, quick):
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


def test_the_ledger_adds_up_the_records(shown, quick, tmp_path):
    shutil.copytree(shown, tmp_path / "copy")
    cut = next((tmp_path / "copy").glob("runs/nal-*/attack-eot-*.jsonl"))
    header, *rows, _ = cut.read_text().splitlines(keepends=True)
    summary = {"robust_accuracy": [], "seconds": None}
    cut.write_text("".join([header, *rows, json.dumps({"summary": summary}) + "\n"]))
    [document], _ = drawn(tmp_path / "copy", ["ledger"], quick)
    there = [work for work in document["works"].values() if "fault" not in work]
    trainings = [work for work in there if work["work"] == "training"]
    assert len(trainings) == 7
    for work in trainings:
        epochs = read_rows(tmp_path / "copy" / work["record"])
        assert work["seconds"] == pytest.approx(sum(epoch["seconds"] for epoch in epochs))
        rates = [epoch["images_per_second"] for epoch in epochs]
        assert work["rate"] == median(rates[1:] or rates)
        assert work["setting"]["epochs"] == len(epochs)
        assert work["setting"]["command"].startswith("rhobust train method:")
    page = (tmp_path / "copy" / "tables" / "ledger.md").read_text()
    total = sum(work["seconds"] or 0 for work in there) / 60
    [row] = [line for line in page.splitlines() if line.startswith("| all of these")]
    planned = plan(["ledger"], quick)
    evaluations = [job for job in planned.jobs if not isinstance(job, Training)]
    there = len(there) - len(trainings)
    assert row.split(" | ")[1:3] == [f"7 of {len(planned.runs)}", f"{there} of {len(evaluations)}"]
    assert there == 11, "seven attacks and, of those with noise in the story, two-stage certificates and one protocol"
    assert float(row.split(" | ")[5].rstrip(" |")) == pytest.approx(total, abs=0.06)
    assert "count as 0: 1." in page
    assert page.count("not known") == 1
    table = (tmp_path / "copy" / "tables" / "ledger.csv").read_text().splitlines()
    assert len(table) == 1 + len(trainings) + there


def test_a_training_whose_record_is_damaged_leaves_the_ledger_whole(shown, quick, tmp_path):
    shutil.copytree(shown, tmp_path / "copy")
    metrics = next((tmp_path / "copy").glob("runs/nal-*/metrics.jsonl"))
    metrics.write_text("{half\n")
    [document], faults = drawn(tmp_path / "copy", ["ledger"], quick)
    assert any("must be a JSON object, but it is damaged" in fault for fault in faults)
    [row] = [line for line in block(document).splitlines() if line.startswith(f"| {metrics.parent.name} |")]
    cells = row.strip("| ").split(" | ")
    assert cells[1:7] == [""] * 6
    assert any(cells[7:]), "its evaluations have their seconds"


def test_seeds_are_shown_as_their_mean_and_each(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(seeds, "ROWS", ("Smoothing",))
    assert reproduce(plan(["table-mnist"], quick), workshop_in(tmp_path)).faults == ()
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
    outcome = reproduce(plan(["table-mnist"], quick), workshop_in(tmp_path), draw_only=True)
    assert outcome.faults == (f"{tmp_path / 'runs' / gone} must hold a finished run, but it is not trained",)
    assert first_cell()["value"] == pytest.approx(mean([values[0], values[2]]))
    assert f"<br>{values[0]:.4f} not yet {values[2]:.4f} |" in page()


def test_ours_stands_for_all_of_them(tmp_path, capsys):
    code = main(["ours", "--draw-only", "--out", str(tmp_path), "--quiet", "--device", "cpu"])
    capsys.readouterr()
    assert code == 1
    assert {path.stem for path in tmp_path.glob("*s/*.json")} == set(BEYOND)


def test_variations_change_one_setting_at_a_time():
    table = spec("table-variations")
    runs = [runs_of(line.cells[0].ours[0].job)[0] for line in table.lines]
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
    columns = ["natural", "sees all at 0.5", "sees all at 0.92", "certified at 0.25"]
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
        (rival,) = {runs_of(pair.theirs.job)[0] for pair in compared}
        (run,) = {runs_of(pair.ours.job)[0] for pair in compared}
        same = [
            replace(run, method=rival.method) == rival,
            replace(run, activation=rival.activation) == rival,
            replace(run, model=rival.model) == rival,
        ]
        assert sum(same) == 1, keys
        shared = read[keys].keys() & next(own for own in read.values() if own["natural"].job.run == rival).keys()
        assert {pair.column for pair in compared} == shared
        assert {pair.column for pair in compared} == {column for column in read[first] if column in read[keys]}


def test_on_tiny_imagenet_the_solver_that_converges_is_compared_with_the_others():
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
    assert [cell.printed for cell in rows["NAL"][:2]] == [0.5963, 0.4589]
    assert {cell.printed for cell in rows["NAL, damped"]} == {None}
    assert [cell.column for cell in rows["TRADES"]] == [
        "natural",
        "PGD-20 at 0.93",
        "sees all at 0.5",
        "sees all at 0.93",
    ]


@pytest.mark.parametrize(("name", "part"), [("table-variations", "VARIED_PART"), ("table-tiny", "TINY_PART")])
@pytest.mark.parametrize(
    ("one_of", "epochs", "words"), [(2, 15, "Half the epochs of"), (3, 10, "A third of the epochs")]
)
def test_the_note_says_the_part_of_the_epochs_that_is_trained(name, part, one_of, epochs, words, monkeypatch):
    monkeypatch.setattr(short, part, one_of)
    table = spec(name)
    assert {job.run.epochs for job in table.jobs} == {epochs}
    assert table.notes[0].startswith(words)


def test_the_matched_price_is_compared_with_every_other_row_under_the_attack_that_sees_all():
    main, pairs = spec("table-main"), spec("table-pairs")
    attacked = {line.keys: {cell.column: cell.ours[1] for cell in line.cells} for line in main.lines}
    matched = attacked.pop(("NAL, damped, gamma 0.36",))
    assert [keys for keys, _ in pairs.lines] == list(attacked)
    for keys, compared in pairs.lines:
        assert {pair.column: pair.ours for pair in compared} == matched
        assert {pair.column: pair.theirs for pair in compared} == attacked[keys]


def test_attacks_cross_every_pair_of_networks():
    matrix = spec("fig-across")
    for name, row in zip(matrix.names, matrix.rows, strict=True):
        for scored, reading in zip(matrix.names, row, strict=True):
            job = reading.job
            assert (job.source is None) == (name == scored)
            assert reading.at == 0.92
            if job.source:
                assert job.radii == (0.0, 0.92)
    trained = {reading.job.run for row in matrix.rows for reading in row}
    assert {run.epochs for run in trained} == {10}
    assert len(trained & {job.run for job in spec("table-variations").jobs}) == 1, "NAL's own is trained once"
    assert matrix.notes[0].startswith("A third of the epochs of the main setting, and r = 1")
