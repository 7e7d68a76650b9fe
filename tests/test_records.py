import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhobust import records
from rhobust.files import read_file, read_json, write_json, write_whole
from rhobust.records import RecordWriter, compress, read_head, read_record, read_rows, settings_hash


def test_a_finished_record_reads_back(tmp_path):
    writer = RecordWriter(tmp_path, "attack", "pgd", {"seed": 1})
    writer.append([{"index": 0, "broken": False}, {"index": 1, "broken": True}])
    assert read_record(writer.path).summary is None
    writer.finish({"accuracy": 0.5})
    record = read_record(writer.path)
    assert record == writer.record()
    assert record.kind == "attack"
    assert record.settings == {"seed": 1}
    assert record.rows[1] == {"index": 1, "broken": True}
    assert record.summary == {"accuracy": 0.5}
    with pytest.raises(ValueError, match="must be unfinished"):
        writer.append([{"index": 2}])


@pytest.mark.parametrize(
    ("old", "new", "intact"),
    [
        ("", "", True),
        ('"seed": 1', '"seed": 2', False),
        ("true", "false", False),
        ("0.5", "0.51", False),
        ('"index": 0', '"index":  0', False),
    ],
)
def test_a_change_after_the_end_can_be_told(tmp_path, old, new, intact):
    writer = RecordWriter(tmp_path, "attack", "pgd", {"seed": 1})
    writer.append([{"index": 0, "broken": False}, {"index": 1, "broken": True}])
    writer.finish({"accuracy": 0.5})
    writer.path.write_text(writer.path.read_text().replace(old, new))
    assert read_record(writer.path).intact is intact


def test_a_record_of_another_program_has_no_digest(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"kind": "a", "settings": {}}\n{"index": 0}\n{"summary": {"n": 1}}\n')
    record = read_record(path)
    assert (record.intact, record.digest) == (True, None)
    # A digest by another name is a digest that was changed.
    path.write_text(path.read_text().replace("}}", '}, "digesu": "0123456789abcdef"}'))
    assert not read_record(path).intact


def test_the_name_is_decided_by_the_settings(tmp_path):
    one = RecordWriter(tmp_path, "certify", "", {"a": 1, "b": 2})
    two = RecordWriter(tmp_path, "certify", "", {"b": 2, "a": 1})
    other = RecordWriter(tmp_path, "certify", "", {"b": 2, "a": 2})
    assert one.path == two.path != other.path
    assert settings_hash({"a": 1, "b": 2}) in one.path.name


def test_the_head_is_read_alone_plain_or_compressed(tmp_path):
    writer = RecordWriter(tmp_path, "attack", "", {"seed": 3})
    writer.append([{"index": 0}])
    writer.finish({})
    head = {"kind": "attack", "settings": {"seed": 3}}
    (tmp_path / "given").mkdir()
    assert read_head(writer.path) == read_head(compress(writer.path, tmp_path / "given")) == head
    # What comes after the first line is not looked at.
    writer.path.write_bytes(writer.path.read_bytes().split(b"\n")[0] + b"\n\xff{")
    assert read_head(writer.path) == head


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b""),
        ("a.jsonl", b"[1]\n"),
        ("a.jsonl", b"\xff\n"),
        ("a.jsonl.gz", b"{}\n"),
        ("a.jsonl.gz", b"\x1f\x8b"),
    ],
)
def test_a_head_that_cannot_be_read_is_none(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert read_head(tmp_path / name) == read_head(tmp_path / "missing.jsonl") == {}


def test_a_header_that_was_changed_is_refused(tmp_path):
    writer = RecordWriter(tmp_path, "certify", "", {"alpha": 0.001, "radii": (0, 0.5)})
    writer.append([{"index": 0}])
    path = writer.path
    assert RecordWriter(tmp_path, "certify", "", {"alpha": 0.001, "radii": (0, 0.5)}).path == path
    path.write_text(path.read_text().replace("0.001", "0.1"))
    with pytest.raises(ValueError, match="its header was changed"):
        RecordWriter(tmp_path, "certify", "", {"alpha": 0.001, "radii": (0, 0.5)})


def test_a_finished_record_that_was_changed_is_not_taken_for_an_answer(tmp_path):
    writer = RecordWriter(tmp_path, "certify", "", {"alpha": 0.001})
    writer.append([{"index": 0, "radius": 0.25}])
    writer.finish({"certified_accuracy": 0.5})
    assert RecordWriter(tmp_path, "certify", "", {"alpha": 0.001}).summary == {"certified_accuracy": 0.5}
    writer.path.write_text(writer.path.read_text().replace("0.25", "0.75"))
    with pytest.raises(ValueError, match="must be as it was written, but it was changed"):
        RecordWriter(tmp_path, "certify", "", {"alpha": 0.001})


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 200))
def test_a_file_cut_anywhere_is_continued(tmp_path_factory, kept):
    folder = tmp_path_factory.mktemp("cut")
    rows = [{"index": number, "radius": number / 7} for number in range(5)]
    writer = RecordWriter(folder, "certify", "", {"n": 10})
    writer.append(rows)
    whole = writer.path.read_bytes()
    writer.path.write_bytes(whole[: min(kept, len(whole))])
    again = RecordWriter(folder, "certify", "", {"n": 10})
    assert again.rows == rows[: len(again.rows)]
    again.append(rows[len(again.rows) :])
    assert again.path.read_bytes() == whole


def test_damage_is_named_with_its_line(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"kind": "attack", "settings": {}}\n{"index": 0\n{"index": 1}\n')
    with pytest.raises(ValueError, match=r"x\.jsonl, line 2 must be a JSON object"):
        read_record(path)
    path.write_text("[1]\n")
    with pytest.raises(ValueError, match="got list"):
        read_rows(path)
    path.write_text('{"index": 0}\n')
    with pytest.raises(ValueError, match="must start with a header"):
        read_record(path)
    path.write_text('{"kind": "a", "settings": {}}\n{"summary": {}}\n{"index": 0}\n')
    with pytest.raises(ValueError, match="must end after its summary"):
        read_record(path)


def test_looking_at_a_record_writes_nothing(tmp_path):
    writer = RecordWriter(tmp_path, "certify", "", {"n": 10})
    other = RecordWriter(tmp_path, "certify", "", {"n": 10})
    assert not list(tmp_path.iterdir())
    writer.append([{"index": 0}])
    assert other.rows == []
    other.read()
    assert other.rows == [{"index": 0}]


def test_a_record_is_read_once(tmp_path, monkeypatch):
    writer = RecordWriter(tmp_path, "attack", "pgd", {"seed": 1})
    writer.append([{"index": 0}])
    paths = []
    monkeypatch.setattr(records, "read_file", lambda path, **how: paths.append(path) or read_file(path, **how))
    assert RecordWriter(tmp_path, "attack", "pgd", {"seed": 1}).rows == [{"index": 0}]
    assert paths == [writer.path]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_refused(tmp_path, value):
    writer = RecordWriter(tmp_path, "certify", "", {})
    with pytest.raises(ValueError, match="radius must be finite"):
        writer.append([{"radius": value}])
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "x.json", {"a": value})


def test_files_are_replaced_whole(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    write_whole(path, json.dumps({"a": 2}))
    assert read_json(path) == {"a": 2}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_a_missing_or_damaged_document_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="there is no such file"):
        read_json(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError, match=r"bad\.json must be a JSON document"):
        read_json(tmp_path / "bad.json")
