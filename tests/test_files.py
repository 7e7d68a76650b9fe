"""Only regular files are read and replaced; nothing waits, is unpacked without bound, or is left behind."""

import gzip
import os
import socket
import stat
import threading

import pytest

from rhobust.files import check_output, open_regular, parse_json, read_file, read_json, unzip, write_whole
from rhobust.records import compress, is_finished, read_head, read_record, read_rows
from rhobust.training.run import file_hash, load_checkpoint, weights_metadata


@pytest.fixture(params=["fifo", "folder", "socket"])
def irregular(request, tmp_path):
    path = tmp_path / "certify-x.jsonl"
    if request.param == "fifo":
        os.mkfifo(path)
    elif request.param == "folder":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    return path


@pytest.mark.parametrize(
    "read", [read_file, read_json, read_record, read_rows, open_regular, is_finished, file_hash, weights_metadata]
)
def test_what_is_not_a_regular_file_is_refused_and_not_waited_for(irregular, read):
    with pytest.raises(ValueError, match=r"certify-x\.jsonl must be a regular file, but it is a"):
        read(irregular)
    with pytest.raises(ValueError, match="must be a regular file"):
        load_checkpoint(irregular, "cpu")
    assert read_head(irregular) == {}


@pytest.mark.parametrize("read", [read_json, read_rows, read_record])
def test_a_link_out_of_the_folder_is_refused_and_one_inside_is_followed(tmp_path, read):
    (tmp_path / "secret").write_text('{"kind": "x", "settings": {}}\n')
    folder = tmp_path / "received"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match="link must be a file of its folder, but it is a link that leads out of it"):
        read(folder / "link")
    (folder / "own").write_text('{"kind": "x", "settings": {}}\n')
    (folder / "inside").symlink_to(folder / "own")
    assert read(folder / "inside")


def test_a_file_is_written_where_a_device_is_and_the_device_stays(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    found = []
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()))
    reader.start()
    check_output("out", path)
    while not found:  # until the reader has opened it
        try:
            write_whole(path, "text")
            reader.join()
        except OSError:
            continue
    assert found == [b"text"]
    assert stat.S_ISFIFO(path.stat().st_mode)
    with pytest.raises(OSError, match="pipe"):
        write_whole(path, "nobody reads")
    with pytest.raises(ValueError, match="must name a file to be written, but it is a folder"):
        write_whole(tmp_path, "text")


def test_a_failed_write_leaves_nothing_and_names_the_file(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    path.write_text("old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*page\.html"):
        write_whole(path, "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]
    assert path.read_text() == "old"


def test_a_name_as_long_as_the_file_system_allows_is_written(tmp_path):
    write_whole(tmp_path / ("n" * 255), "text")


@pytest.mark.parametrize("place", ["missing/page.html", "file/page.html", "", "socket"])
def test_a_place_where_nothing_can_be_written_is_refused_beforehand(tmp_path, place):
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    with pytest.raises(ValueError, match="out must name a file"):
        check_output("out", tmp_path / place)


def test_little_is_unpacked_of_a_bomb(tmp_path):
    bomb = gzip.compress(bytes(1 << 22))
    with pytest.raises(ValueError, match=r"x\.gz must unpack to at most 1,000 bytes, got more"):
        unzip(bomb, tmp_path / "x.gz", largest=1000)
    with pytest.raises(ValueError, match=r"x\.gz must be a gzip file, but it is damaged"):
        unzip(bomb[:-4], tmp_path / "x.gz")
    (tmp_path / "large").write_bytes(bytes(11))
    with pytest.raises(ValueError, match="large must hold at most 10 bytes"):
        read_file(tmp_path / "large", largest=10)


@pytest.mark.parametrize("levels", [100, 100_000])
def test_deep_nesting_is_one_line(tmp_path, levels):
    path = tmp_path / "certify-deep.jsonl"
    path.write_text("[" * levels + "]" * levels + "\n")
    for read in (read_json, read_record, read_rows):
        with pytest.raises(ValueError, match=r"certify-deep\.jsonl.*it has more than 64 levels"):
            read(path)
    assert parse_json("[" * 60 + "]" * 60)
    assert parse_json(b"[" + b"[]," * 99 + b"[]]")
    assert not is_finished(path)
    with pytest.raises(ValueError, match="64 levels"):
        read_record(compress(path, tmp_path))


def test_threads_that_write_one_file_at_once_write_it_whole(tmp_path):
    path, texts = tmp_path / "file", [letter * 100_000 for letter in "ab"]
    failed = []

    def write(text):
        try:
            for _ in range(20):
                write_whole(path, text)
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=[text]) for text in texts]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert not path.exists() or path.read_text() in texts
    assert not failed
    assert list(tmp_path.iterdir()) == [path]
