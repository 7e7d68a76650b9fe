from pathlib import Path

import pytest

from rhobust.data import check, get, load
from rhobust.data.digits import Digits
from rhobust.progress import no_progress


def test_they_come_with_the_package(tmp_path: Path) -> None:
    train, test = load("digits", "train", root=tmp_path), load("digits", "test", root=tmp_path)
    assert (len(train), len(test), train.shape, train.num_classes) == (1000, 797, (1, 8, 8), 10)
    # The known counts of the 1,797 digits, 0 to 9.
    counts = train.labels.bincount() + test.labels.bincount()
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert {int(value) for value in train.images.unique()} == {round(value * 255 / 16) for value in range(17)}
    assert check("digits", root=tmp_path).files == 1
    assert get("digits", root=tmp_path).origin == "part of rhobust"


def test_a_flipped_bit_is_refused(tmp_path: Path, flip_bit) -> None:
    path = tmp_path / "digits.npz"
    path.write_bytes(Digits().path.read_bytes())
    flip_bit(path, 20_000)
    with pytest.raises(ValueError, match=rf"^{path} must have .* install rhobust again"):
        Digits(path).load(tmp_path, "train", no_progress)
    path.unlink()
    with pytest.raises(ValueError, match=rf"^{path} must exist"):
        Digits(path).load(tmp_path, "train", no_progress)
