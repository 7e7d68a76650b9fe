"""The whole way from a plan to files: shared, resumed, and whole even where a part is damaged."""

import json
import shutil

import pytest

from reproduction import runner
from reproduction.runner import Store, plan, reproduce
from reproduction.spread import perform_all
from tests.executors.scripted import Scripted
from tests.reproduction.conftest import store_in

NAMES = ["table-elu", "fig-training"]
MADE = [
    *("fig-training.json", "fig-training.pdf", "fig-training.svg"),
    *("table-elu.csv", "table-elu.json", "table-elu.md"),
]


def files(folder):
    return {path.name: path.read_bytes() for kind in ("tables", "figures") for path in (folder / kind).iterdir()}


def cells(folder, name="table-elu"):
    document = json.loads((folder / "tables" / f"{name}.json").read_text())
    return [(line["keys"], cell) for line in document["lines"] for cell in line["cells"]]


@pytest.fixture
def copied(made, tmp_path):
    """The finished reproduction, to be damaged."""
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


def attack_records(folder):
    return sorted(folder.glob("runs/*/attack-*.jsonl"))


def test_every_cell_has_its_record_and_says_what_the_rows_say(made):
    assert sorted(files(made)) == MADE
    found = cells(made)
    assert len(found) == 4 * 7
    for keys, cell in found:
        assert [ours["source"] for ours in cell["ours"]] == ["PGD-20", "EOT"]
        assert (cell["reported"] is None) == (keys[0] == "NAL, damped")
        for ours in cell["ours"]:
            rows = [json.loads(line) for line in (made / ours["record"]).read_text().splitlines()]
            header, rows = rows[0], rows[1:-1]
            assert header["settings"]["attack"]["kind"] == {"PGD-20": "paper", "EOT": "eot"}[ours["source"]]
            at = [row for row in rows if row["radius"] == float(cell["column"])]
            assert ours["n"] == len(at) == 6
            assert ours["value"] == sum(not row["broken"] for row in at) / 6
            assert ours["low"] <= ours["value"] <= ours["high"]


def test_the_curves_are_the_epochs(made):
    document = json.loads((made / "figures" / "fig-training.json").read_text())
    for panel, key in zip(document["panels"], ("loss", "accuracy"), strict=True):
        for curve in panel["curves"]:
            epochs = [json.loads(line) for line in (made / curve["record"]).read_text().splitlines()]
            assert curve["x"] == [1, 2]
            assert curve["y"] == [epoch[key] for epoch in epochs]


def test_no_time_stands_in_the_files(made):
    for name, content in files(made).items():
        assert b"seconds" not in content, name


@pytest.mark.parametrize("stop", [7, *(pytest.param(one, marks=pytest.mark.slow) for one in (2, 12))])
def test_interrupted_at_any_moment_it_ends_with_the_same_files(made, tmp_path, tiny, stop):
    told = 0

    def interrupt(_):
        nonlocal told
        told += 1
        if told == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce(plan(NAMES, tiny), store_in(tmp_path, interrupt))
    assert reproduce(plan(NAMES, tiny), store_in(tmp_path)).faults == ()
    assert files(tmp_path) == files(made)


def test_what_is_done_is_not_done_again(copied, tiny, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in copied.glob("runs/*/*")}
    monkeypatch.setattr(runner, "run", None)
    outcome = reproduce(plan(NAMES, tiny), store_in(copied))
    assert outcome.faults == ()
    assert {path: path.stat().st_mtime_ns for path in copied.glob("runs/*/*")} == before


def test_runs_are_shared_between_tables(copied, tiny):
    runs = len(list(copied.glob("runs/*")))
    reproduce(plan(["fig-training"], tiny), store_in(copied))
    assert len(list(copied.glob("runs/*"))) == runs == 4


def faulty(copied, tiny, **options):
    """What is told of a damaged reproduction, and which cells are missing."""
    outcome = reproduce(plan(NAMES, tiny), store_in(copied), **options)
    missing = [cell for _, cell in cells(copied) for ours in cell["ours"] if "fault" in ours]
    page = (copied / "tables" / "table-elu.md").read_text()
    assert str(copied) not in page
    for fault in outcome.faults:
        assert "\n" not in fault
        absent = fault.endswith(("is not trained", "was not evaluated"))
        assert ("Not measured yet: NAL" in page) if absent else (fault in page)
    return outcome.faults, missing


def test_a_record_edited_by_hand_is_named_and_the_rest_is_drawn(copied, tiny):
    path = attack_records(copied)[0]
    text = path.read_text()
    path.write_text(text.replace('"broken": false', '"broken": true', 1))
    [fault], missing = faulty(copied, tiny)
    assert (
        fault
        == f"{path.relative_to(copied)} must be as it was written, but it was changed: delete it to evaluate it again"
    )
    assert len(missing) == 7
    assert path.read_text() != text, "the record is left as it was found"
    path.unlink()
    assert faulty(copied, tiny) == ((), [])
    assert path.read_text().splitlines()[:-1] == text.splitlines()[:-1], "all but its seconds"


def test_a_damaged_line_is_named_and_the_rest_is_drawn(copied, tiny):
    path = attack_records(copied)[0]
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:3], "{half\n", *lines[4:]]))
    [fault], missing = faulty(copied, tiny)
    assert fault.startswith(f"{path.relative_to(copied)}, line 4 must be a JSON object, but it is damaged")
    assert len(missing) == 7


def test_a_changed_header_is_named(copied, tiny):
    path = attack_records(copied)[0]
    path.write_text(path.read_text().replace('"votes": 5, "nested"', '"votes": 6, "nested"', 1))
    [fault], missing = faulty(copied, tiny)
    assert fault == f"{path.relative_to(copied)} must hold the settings of its name, but its header was changed"
    assert len(missing) == 7


def test_a_half_written_record_goes_on(copied, tiny, made):
    path = attack_records(copied)[0]
    path.write_bytes(path.read_bytes()[:-700])
    assert faulty(copied, tiny) == ((), [])
    assert files(copied) == files(made)


def test_a_missing_run_is_named_when_nothing_may_be_trained(copied, tiny):
    folder = attack_records(copied)[0].parent
    shutil.rmtree(folder)
    [fault], missing = faulty(copied, tiny, draw_only=True)
    assert fault == f"{folder.relative_to(copied)} must hold a finished run, but it is not trained"
    assert len(missing) == 14
    assert not folder.exists()


def test_a_missing_and_an_unfinished_record_are_named_when_nothing_may_be_evaluated(copied, tiny):
    gone, cut = attack_records(copied)[:2]
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-700])
    faults, _ = faulty(copied, tiny, draw_only=True)
    assert f"{gone.parent.relative_to(copied)} must hold the record of this attack, but it was not evaluated" in faults
    assert any(fault.startswith(f"{cut.relative_to(copied)} must be finished") for fault in faults)


def test_what_another_device_left_unfinished_does_not_hide_a_finished_record(copied, tiny):
    for path in attack_records(copied):
        header = json.loads(path.read_text().splitlines()[0])
        votes = "bfloat16" if header["settings"]["scored"] == "smoothed" else "tf32"
        header["settings"] |= {"device": "cuda", "climbed": "bfloat16", "dtype": votes}
        path.with_name(f"attack-{path.name.split('-')[1]}-00000000.jsonl").write_text(json.dumps(header) + "\n")
    assert len(attack_records(copied)) == 16
    assert faulty(copied, tiny, draw_only=True) == ((), [])


def test_a_run_trained_anew_is_evaluated_anew(copied, tiny):
    folder = attack_records(copied)[0].parent
    kept = attack_records(copied)[0].name
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    for name in ("answers.json", "weights.json"):  # a new training writes its own
        (folder / name).unlink()
    before = set(folder.glob("attack-*.jsonl"))
    assert faulty(copied, tiny) == ((), [])
    assert len(set(folder.glob("attack-*.jsonl")) - before) == 2
    assert all(kept not in ours["record"] for _, cell in cells(copied) for ours in cell["ours"])


def test_a_training_that_diverges_leaves_its_cells_empty(tmp_path, tiny, monkeypatch):
    real = runner.train

    def diverging(config, *arguments, **options):
        if config.activation == "elu":
            raise FloatingPointError("the loss must stay finite, but was not in epoch 1, step 1")
        return real(config, *arguments, **options)

    monkeypatch.setattr(runner, "train", diverging)
    faults, missing = faulty(tmp_path, tiny)
    assert len(faults) == 2
    assert all("did not converge: the loss must stay finite" in fault for fault in faults)
    assert len(missing) == 2 * 14


def test_data_that_is_not_there_stops_everything(tmp_path, tiny, monkeypatch):
    def absent(name, *_, **__):
        raise ValueError(f"{name} is not here: rhobust data get {name}")

    monkeypatch.setattr("reproduction.runner.load", absent)
    with pytest.raises(ValueError, match="rhobust data get digits"):
        reproduce(plan(NAMES, tiny), store_in(tmp_path))


def test_the_work_goes_run_by_run(copied, tiny, monkeypatch):
    seen = []

    def perform(self, job):
        seen.append(job.run)
        return self.read(job)

    monkeypatch.setattr(Store, "perform", perform)
    outcome = reproduce(plan(NAMES, tiny), store_in(copied))
    assert outcome.faults == ()
    assert [path.name.partition(".")[0] for path in outcome.files][::3] == NAMES
    order = list(dict.fromkeys(seen))
    # Two attacks and a training record each.
    assert seen == [run for run in order for _ in range(3)]
    assert len(order) == 4


def test_nothing_is_begun_when_the_time_is_over(copied, tmp_path, tiny):
    outcome = reproduce(plan(NAMES, tiny), store_in(tmp_path / "new"), minutes=1e-9)
    assert all(fault.endswith("is not trained") for fault in outcome.faults)
    assert len(outcome.faults) == 4
    assert not (tmp_path / "new" / "runs").exists()
    assert reproduce(plan(NAMES, tiny), store_in(copied), minutes=1e-9).faults == ()
    with pytest.raises(ValueError, match="minutes must be > 0, got 0"):
        reproduce(plan(NAMES, tiny), store_in(copied), minutes=0)


def test_several_workers_make_the_files_of_one(made, tmp_path, tiny):
    chosen, store = plan(NAMES, tiny), store_in(tmp_path)
    with Scripted(3, deaths=2) as executor:
        failed = perform_all(chosen, store, executor)
    assert failed == {}
    assert reproduce(chosen, store, draw_only=True, failed=failed).faults == ()
    assert files(tmp_path) == files(made)


def test_what_fails_on_a_worker_leaves_its_cells_empty_and_says_why(copied, tiny):
    (record, *_) = attack_records(copied)
    record.write_text(record.read_text().replace('"seed": 0', '"seed": 1', 1))
    chosen, store = plan(NAMES, tiny), store_in(copied)
    failed = perform_all(chosen, store, Scripted(2))
    outcome = reproduce(chosen, store, draw_only=True, failed=failed)
    assert len(failed) == len(outcome.faults) == 1
    assert "must hold the settings of its name, but its header was changed" in outcome.faults[0]
