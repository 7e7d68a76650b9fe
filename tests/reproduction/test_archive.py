"""Records that are packed without weights: the same tables, nothing done again, one name per network."""

import hashlib
import json
import shutil

import pytest

from reproduction.archive import pack, unpacked
from reproduction.runner import plan, reproduce
from rhobust.archives import opened
from rhobust.files import read_json
from rhobust.records import record_paths
from rhobust.training import open_run
from tests.reproduction.conftest import store_in

WEIGHTS, FINGERPRINT = "model.safetensors", "weights.json"

NAMES = ["table-elu", "fig-training"]


def files(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*.*") if path.suffix in (".md", ".svg", ".json")}


@pytest.fixture(scope="module")
def archive(made, tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "elu.tar.xz"
    assert len(pack(made, path)) == 4
    return path


def test_an_archive_has_no_weights_and_gives_the_same_tables(made, archive, tiny, tmp_path):
    with unpacked([archive]) as folder:
        assert not list(folder.rglob(WEIGHTS))
        assert len(list(folder.glob(f"runs/*/{FINGERPRINT}"))) == len(list(made.glob(f"runs/*/{WEIGHTS}"))) == 4
        outcome = reproduce(plan(NAMES, tiny), store_in(folder), draw_only=True, to=tmp_path)
    assert outcome.faults == ()
    for kind in ("tables", "figures"):
        assert files(tmp_path / kind) == files(made / kind)


def test_every_record_keeps_its_bytes(made, archive):
    with opened([archive]) as found:
        runs = found.paths
        for run in runs:
            for path in record_paths(run):
                assert path.read_bytes() == (made / "runs" / run.name / path.name).read_bytes()
        assert sum(len(record_paths(run)) for run in runs) == len(list(made.glob("runs/*/*-*.jsonl"))) > 0


def test_nothing_is_done_again_with_packed_records(archive, tiny, monkeypatch):
    def never(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr("reproduction.runner.train", never)
    with unpacked([archive]) as folder:
        assert reproduce(plan(NAMES, tiny), store_in(folder)).faults == ()
        missing = record_paths(next(folder.glob("runs/*")), "attack")[0]
        missing.unlink()
        [fault] = reproduce(plan(NAMES, tiny), store_in(folder)).faults
        reason = "must hold its weights for more records, but it was published without them"
        assert fault == f"runs/{missing.parent.name} {reason}"


def test_equal_contents_give_equal_bytes(made, archive, tmp_path):
    before = hashlib.sha256(archive.read_bytes()).hexdigest()
    pack(made, archive)
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == before
    pack(made, tmp_path / archive.name)
    assert hashlib.sha256((tmp_path / archive.name).read_bytes()).hexdigest() == before


def test_another_network_of_the_same_config_gets_another_name(made, archive, tiny, tmp_path):
    again = tmp_path / "again"
    with unpacked([archive]) as folder:
        shutil.copytree(folder, again)
    [run, *others] = sorted((again / "runs").iterdir())
    for other in others:
        shutil.rmtree(other)
    (run / FINGERPRINT).write_text(json.dumps({**read_json(run / FINGERPRINT), "model_hash": "0" * 16}))
    own, beside = tmp_path / "records" / archive.name, tmp_path / "records" / "second.tar.xz"
    own.parent.mkdir()
    shutil.copyfile(archive, own)
    assert pack(again, own) == sorted([*(path.name for path in (made / "runs").iterdir()), f"{run.name}-b"])
    assert pack(made, own) == pack(again, own), "the same networks keep their names"
    (run / FINGERPRINT).write_text(json.dumps({**read_json(run / FINGERPRINT), "model_hash": "1" * 16}))
    assert pack(again, beside) == [f"{run.name}-c"], "a name means one network in all archives of a folder"
    with unpacked([beside]) as folder:
        store = store_in(folder)
        config = open_run(folder / "runs" / f"{run.name}-c").config
        assert store.folder(config).name == f"{run.name}-c"
        assert store.run(config).model_hash == "1" * 16


def test_an_archive_has_its_ending(made, tmp_path):
    with pytest.raises(ValueError, match=r"name must end with \.tar\.xz, got records"):
        pack(made, tmp_path / "records")


def test_unfinished_records_stay_out(made, tmp_path):
    shutil.copytree(made, tmp_path / "made")
    cut = next((tmp_path / "made").glob("runs/*/attack-*.jsonl"))
    cut.write_text("".join(cut.read_text().splitlines(keepends=True)[:-1]))
    pack(tmp_path / "made", tmp_path / "x.tar.xz")
    with unpacked([tmp_path / "x.tar.xz"]) as folder:
        assert not (folder / "runs" / cut.parent.name / cut.name).exists()
        assert record_paths(folder / "runs" / cut.parent.name)


@pytest.mark.parametrize("content", [b"", "cut"], ids=["empty", "cut"])
def test_a_record_without_a_header_leaves_the_others_readable(archive, tiny, content):
    with unpacked([archive]) as folder:
        path = record_paths(next(folder.glob("runs/*")), "attack")[0]
        path.write_bytes(path.read_bytes()[:60] if content == "cut" else content)
        [fault] = reproduce(plan(NAMES, tiny), store_in(folder), draw_only=True).faults
        assert fault == f"runs/{path.parent.name} must hold the record of this attack, but it was not evaluated"
