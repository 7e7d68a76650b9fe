import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from rhobust.data import check, get
from rhobust.data.svhn import SVHN, parse_matlab
from rhobust.progress import no_progress

RNG = np.random.default_rng(0)
IMAGES = {
    "train": RNG.integers(0, 256, (12, 3, 32, 32), np.uint8),
    "test": RNG.integers(0, 256, (4, 3, 32, 32), np.uint8),
}
DIGITS = {"train": np.arange(12) % 10, "test": np.array([0, 9, 5, 0])}


def matlab(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    savemat(file, arrays, do_compression=True)
    return file.getvalue()


def published(split: str) -> bytes:
    """As published: height, width, channel, image; the digit 0 has label 10."""
    digits = DIGITS[split]
    labels = np.where(digits == 0, 10, digits).astype(np.uint8)[:, None]
    return matlab(X=IMAGES[split].transpose(2, 3, 1, 0), y=labels)


FILES = {f"{split}_32x32.mat": published(split) for split in IMAGES}


def small(*mirrors: str) -> SVHN:
    return SVHN(tuple((name, "md5:" + hashlib.md5(content).hexdigest()) for name, content in FILES.items()), mirrors)


def lay_out(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("folder", ["svhn", "."])
def test_the_files_load_from_either_place(folder: str, tmp_path: Path) -> None:
    lay_out(tmp_path / folder)
    for split in ("train", "test"):
        found = small().load(tmp_path, split, no_progress)
        assert np.array_equal(found.images.numpy(), IMAGES[split])
        assert np.array_equal(found.labels.numpy(), DIGITS[split])
        assert (found.classes, found.flip) == (tuple("0123456789"), False)
    checked = small().check(tmp_path, no_progress)
    assert (checked.files, checked.train, checked.test, checked.where) == (2, 12, 4, tmp_path / folder)
    assert small().fetch(tmp_path, no_progress) == "already there"


def test_a_flipped_bit_and_a_missing_file_are_named(tmp_path: Path, flip_bit) -> None:
    lay_out(tmp_path)
    path = tmp_path / "test_32x32.mat"
    flip_bit(path, 500)
    for use in (small().check, small().fetch):
        with pytest.raises(ValueError, match=rf"^{path} must have md5:.* delete it and run `rhobust data get svhn"):
            use(tmp_path, no_progress)
    path.unlink()
    assert small().locate(tmp_path) is None
    with pytest.raises(ValueError, match=r"test_32x32\.mat must be under .* run `rhobust data get svhn"):
        small().load(tmp_path, "test", no_progress)


def test_missing_files_come_from_the_publisher(site, tmp_path: Path) -> None:
    site.files.update(FILES)
    assert small(site.address).fetch(tmp_path, no_progress) == site.address.rstrip("/")
    (tmp_path / "svhn" / "test_32x32.mat").unlink()
    site.requests.clear()
    small(site.address).fetch(tmp_path, no_progress)
    assert [name for name, _ in site.requests] == ["/test_32x32.mat"]
    assert small().check(tmp_path, no_progress).test == 4


X = np.zeros((32, 32, 3, 2), np.uint8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no matlab", "must be a MATLAB 5 file"),
        (FILES["train_32x32.mat"][:400], "must be a MATLAB 5 file"),
        (matlab(X=X), r"got X \(32, 32, 3, 2\)"),
        (matlab(z=X), "got neither"),
        (matlab(X=X.astype(float), y=np.ones((2, 1))), "must hold X, uint8"),
        (matlab(X=X[:16], y=np.ones((2, 1))), "must hold X, uint8"),
        (matlab(X=X, y=np.ones((3, 1))), "must hold X, uint8"),
        (matlab(X=X, y=np.array([[0], [1]])), r"must hold labels 1\.\.10, got 0\.\.1"),
    ],
)
def test_other_files_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^some\.mat .*{message}"):
        parse_matlab(content, "some.mat")


@pytest.mark.slow
def test_the_real_one_comes_and_checks(tmp_path: Path) -> None:
    get("svhn", root=tmp_path)
    found = check("svhn", root=tmp_path)
    assert (found.train, found.test, found.classes, found.shape) == (73_257, 26_032, 10, (3, 32, 32))
