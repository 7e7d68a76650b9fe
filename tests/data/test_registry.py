from pathlib import Path

import pytest

from rhobust.data import available, check, data_root, get, load


def test_everything_known_is_listed(tmp_path: Path) -> None:
    entries = {entry.name: entry for entry in available(tmp_path)}
    assert list(entries) == ["mnist", "cifar10", "cifar100", "svhn", "tiny-imagenet", "tiny-imagenet-50", "digits"]
    assert [entry.present for entry in entries.values()] == [False] * 6 + [True]
    assert entries["mnist"].where is None
    (tmp_path / "tiny-imagenet-200" / "train").mkdir(parents=True)
    assert {entry.name: entry.where for entry in available(tmp_path)}["tiny-imagenet"] == tmp_path / "tiny-imagenet-200"


def test_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RHOBUST_DATA", str(tmp_path / "named"))
    assert data_root(tmp_path) == tmp_path
    assert data_root(None) == tmp_path / "named"
    monkeypatch.delenv("RHOBUST_DATA")
    assert data_root(None).parts[-2:] == ("rhobust", "data")


def test_an_unknown_name_lists_the_known_ones() -> None:
    for use in (lambda: load("mnst", "train"), lambda: get("mnst"), lambda: check("mnst")):
        with pytest.raises(
            ValueError,
            match=r"mnist, cifar10, cifar100, svhn, tiny-imagenet, tiny-imagenet-50, digits, or a path: .*; got 'mnst'",
        ):
            use()


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="split must be 'train' or 'test', got 'val'"):
        load("digits", "val")


def test_what_is_the_users_own_cannot_be_fetched(tmp_path: Path) -> None:
    for name in (tmp_path, tmp_path / "set.npz"):
        with pytest.raises(ValueError, match="the data set to get must be a known one"):
            get(str(name), root=tmp_path)
