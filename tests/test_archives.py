"""A packed experiment opens as the folders that were packed, and as nothing else."""

import io
import lzma
import tarfile

import pytest

from rhobust import archives
from rhobust.archives import opened, split_path, unpack


def pack(path, files):
    """Write an archive; a number in place of a content is the kind of a member that is no regular file."""
    with tarfile.open(path, "w:xz") as tar:
        for name, content in files:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = str(content).encode(), "/etc/passwd"
                tar.addfile(member)
    return path


@pytest.fixture
def packed(tmp_path):
    files = [(f"cifar10/{run}/{file}", f"{run} {file}".encode()) for run in "ab" for file in ("config.json", "x.jsonl")]
    return pack(tmp_path / "cifar10.tar.xz", [("cifar10/a", int(tarfile.DIRTYPE)), *files])


def test_an_archive_is_its_run_folders(packed):
    with opened([packed]) as found:
        runs = found.paths
        assert [run.name for run in runs] == ["a", "b"]
        assert (runs[1] / "x.jsonl").read_bytes() == b"b x.jsonl"
        assert runs[0].parent.name == packed.name
        assert found.original(runs[1] / "x.jsonl") == packed / "b" / "x.jsonl"
        assert found.original(packed) == packed
    assert not runs[0].exists()


def test_a_path_into_an_archive_is_a_run_or_a_file(packed):
    with opened([packed / "b", packed / "a" / "x.jsonl"]) as found:
        run, file = found.paths
        assert sorted(path.name for path in run.iterdir()) == ["config.json", "x.jsonl"]
        assert not (run.parent / "a").exists(), "only what is asked for is unpacked"
        assert file.read_bytes() == b"a x.jsonl"


def test_other_paths_stay_as_they_are(tmp_path, packed):
    folder = tmp_path / "old.tar.xz"
    folder.mkdir()
    with opened([tmp_path, folder / "run", packed / "a"]) as found:
        assert found.paths[:2] == [tmp_path, folder / "run"]


def open_all(*paths):
    with opened(paths):
        pass


def test_what_is_not_there_is_one_line(tmp_path, packed):
    with pytest.raises(ValueError, match=r"none.tar.xz must exist, but there is no such file"):
        open_all(tmp_path / "none.tar.xz" / "a")
    for inside in ("c", "a/y.jsonl"):
        with pytest.raises(ValueError, match=r"must name a run in .*cifar10.tar.xz, but there is none"):
            open_all(packed / inside)
    assert split_path(tmp_path) is None


@pytest.mark.parametrize(
    "name", ["../../x", "/x/a/f", "x/../f", "x/a/..", "x/a", "x/a/b/f", "x//f", "x/.a/f", "x/a/-f", "x/a/f\n", "f"]
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path, name):
    path = pack(tmp_path / "x.tar.xz", [(name, b"")])
    with pytest.raises(ValueError, match="must hold regular files NAME/RUN/FILE only, got"):
        open_all(path)
    assert [file.name for file in tmp_path.rglob("*")] == ["x.tar.xz"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_only_regular_files_are_taken(tmp_path, kind):
    path = pack(tmp_path / "x.tar.xz", [("x/a/f", int(kind))])
    with pytest.raises(ValueError, match="must hold regular files"):
        unpack(path, tmp_path / "out")


def test_a_file_stands_once(tmp_path):
    path = pack(tmp_path / "x.tar.xz", [("x/a/f", b"1"), ("y/a/f", b"2")])
    with pytest.raises(ValueError, match="must hold every file once"):
        unpack(path, tmp_path / "out")


def test_sizes_are_limited(tmp_path, packed, monkeypatch):
    monkeypatch.setattr(archives, "MOST", 3)
    with pytest.raises(ValueError, match="must hold at most 3 files, got more"):
        unpack(packed, tmp_path / "one")
    bomb = pack(tmp_path / "x.tar.xz", [("x/a/f", bytes(1 << 20))])
    monkeypatch.setattr(archives, "LARGEST", 100_000)
    with pytest.raises(ValueError, match="must hold at most 100,000 bytes unpacked, got more"):
        unpack(bomb, tmp_path / "two")
    assert sum(path.stat().st_size for path in (tmp_path / "two").rglob("*")) < 200_000


@pytest.mark.parametrize("content", [b"", b"no archive", lzma.compress(b"no tar" * 1000)])
def test_a_damaged_archive_is_one_line(tmp_path, packed, content):
    packed.write_bytes(content or packed.read_bytes()[:-40])
    with pytest.raises(ValueError, match="must be a packed experiment, but it is damaged"):
        unpack(packed, tmp_path / "out")
