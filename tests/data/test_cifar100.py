import hashlib
from pathlib import Path

import numpy as np
import pytest

from rhobust.data import check, get, load
from rhobust.data.cifar100 import CIFAR100
from rhobust.progress import no_progress
from tests.data.conftest import tar_of

RNG = np.random.default_rng(0)
IMAGES = {name: RNG.integers(0, 256, (5, 3, 32, 32), np.uint8) for name in ("train", "test")}
LABELS = {name: RNG.integers(0, 100, 5, np.uint8) for name in IMAGES}
CLASSES = [f"class_{number}" for number in range(100)]
FILE = "cifar-100-binary.tar.gz"


def archive() -> bytes:
    """The publishers' layout: a coarse label, a fine label, 3,072 bytes; names one per line."""
    files = {
        f"{name}.bin": np.concatenate(
            [np.full((5, 1), 19, np.uint8), LABELS[name][:, None], IMAGES[name].reshape(5, -1)], axis=1
        ).tobytes()
        for name in IMAGES
    }
    files["fine_label_names.txt"] = ("\n".join(CLASSES) + "\n\n").encode()
    return tar_of({f"cifar-100-binary/{name}": content for name, content in files.items()})


ARCHIVE = archive()


def small(*addresses: str) -> CIFAR100:
    return CIFAR100(addresses, "md5:" + hashlib.md5(ARCHIVE).hexdigest())


def test_the_archive_loads_with_its_fine_classes(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(ARCHIVE)
    for split in ("train", "test"):
        found = small().load(tmp_path, split, no_progress)
        assert np.array_equal(found.images.numpy(), IMAGES[split])
        assert np.array_equal(found.labels.numpy(), LABELS[split])
        assert (found.classes, found.crop, found.flip) == (tuple(CLASSES), 4, True)
    assert small().check(tmp_path, no_progress).classes == 100
    assert small().fetch(tmp_path, no_progress) == "already there"


def test_a_flipped_bit_is_refused_and_a_missing_archive_named(tmp_path: Path, flip_bit) -> None:
    assert small().locate(tmp_path) is None
    with pytest.raises(ValueError, match=rf"{FILE} must exist.* run `rhobust data get cifar100 --root {tmp_path}`"):
        small().load(tmp_path, "test", no_progress)
    path = tmp_path / FILE
    path.write_bytes(ARCHIVE)
    flip_bit(path, 1000)
    for use in (small().check, small().fetch):
        with pytest.raises(ValueError, match=rf"^{path} must have md5:.* delete it and run `rhobust data get cifar100"):
            use(tmp_path, no_progress)


def test_it_comes_from_the_publisher(site, tmp_path: Path) -> None:
    site.files[FILE] = ARCHIVE
    source = small(site.address + FILE)
    assert source.fetch(tmp_path / "new", no_progress) == site.address + FILE
    assert source.check(tmp_path / "new", no_progress).train == 5


@pytest.mark.slow
def test_the_real_one_comes_checks_and_loads(tmp_path: Path) -> None:
    get("cifar100", root=tmp_path)
    found = check("cifar100", root=tmp_path)
    assert (found.train, found.test, found.classes, found.shape) == (50_000, 10_000, 100, (3, 32, 32))
    test = load("cifar100", "test", root=tmp_path)
    assert [test.classes[label] for label in test.labels[:3]] == ["mountain", "forest", "seal"]
