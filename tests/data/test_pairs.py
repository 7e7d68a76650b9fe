from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rhobust.data import Pairs, load_pairs, pair_distances
from rhobust.progress import no_progress

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (6, 5, 4, 3), np.uint8)


def write(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def folders(root: Path, before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> tuple[Path, Path]:
    for side, files in (("before", before), ("after", after)):
        for name, pixels in files.items():
            write(root / side / name, pixels)
    return root / "before", root / "after"


def test_folders_pair_by_name_without_suffix(tmp_path: Path) -> None:
    places = folders(
        tmp_path,
        {"cat/2.png": X[0], "cat/1.v2.png": X[1], "dog/2.png": X[2]},
        {"dog/2.ppm": X[3], "cat/1.v2.bmp": X[4], "cat/2.png": X[5]},
    )
    write(tmp_path / "before" / ".hidden" / "3.png", X[0])
    (tmp_path / "after" / "cat" / "notes.txt").write_text("no image")
    (tmp_path / "after" / "dog" / "link.png").symlink_to(tmp_path / "after" / "cat" / "2.png")
    pairs = load_pairs(*places, progress=no_progress)
    assert pairs.labels == ("cat", "cat", "dog")
    assert np.array_equal(pairs.before.permute(0, 2, 3, 1), X[[1, 0, 2]])
    assert np.array_equal(pairs.after.permute(0, 2, 3, 1), X[[4, 5, 3]])
    assert pairs.places(("dog", "cat")).tolist() == [1, 1, 0]
    assert pairs.name == f"{places[0]} and {places[1]}"
    with pytest.raises(ValueError, match="must be one of dog, bird, got cat; put images without labels"):
        pairs.places(("dog", "bird"))


@pytest.mark.parametrize("name", ["1.png", "many/cat/1.png"])
def test_folders_without_classes_have_no_labels(name: str, tmp_path: Path) -> None:
    pairs = load_pairs(*folders(tmp_path, {name: X[0]}, {name: X[1]}), progress=no_progress)
    assert pairs.labels is None
    assert pairs.places(("cat",)) is None


def test_grey_images_stay_grey_unless_colour_is_wanted(tmp_path: Path) -> None:
    places = folders(tmp_path, {"1.png": X[0, :, :, 0]}, {"1.png": X[1, :, :, 0]})
    assert load_pairs(*places, progress=no_progress).before.shape == (1, 1, 5, 4)
    colour = load_pairs(*places, channels=3, progress=no_progress)
    assert np.array_equal(colour.after[0], np.stack([X[1, :, :, 0]] * 3))
    write(tmp_path / "before" / "1.png", X[0])
    assert load_pairs(*places, progress=no_progress).after.shape == (1, 3, 5, 4)
    with pytest.raises(ValueError, match=r"1\.png must be a whole 8-bit image.*in colour, but grey is required"):
        load_pairs(*places, channels=1, progress=no_progress)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            {"a.png": X[0], "b.png": X[1]},
            {"a.png": X[0]},
            r"1 of 2 have none: \S*before/b.png has no b.\* under \S*after",
        ),
        ({"a.png": X[0]}, {"a.png": X[0], "c/d.png": X[1]}, r"after/c/d.png has no c/d.\* under \S*before"),
        ({"a.png": X[0], "a.bmp": X[0]}, {"a.png": X[0]}, r"different names without their suffix, got \S*a.bmp"),
        ({"a.png": X[0]}, {"a.png": X[0, :3]}, r"one size, got \S*before/a.png of 4x5 and \S*after/a.png of 4x3"),
    ],
)
def test_folders_that_do_not_pair_are_refused(
    before: dict[str, np.ndarray], after: dict[str, np.ndarray], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        load_pairs(*folders(tmp_path, before, after), progress=no_progress)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "after").mkdir()
    with pytest.raises(ValueError, match="after must hold images"):
        load_pairs(*folders(tmp_path, {"a.png": X[0]}, {}), progress=no_progress)


def test_images_of_more_than_8_bits_are_refused(tmp_path: Path) -> None:
    places = folders(tmp_path, {"a.png": X[0]}, {"a.png": RNG.integers(0, 2**16, (5, 4)).astype(np.uint16)})
    with pytest.raises(ValueError, match=r"after/a\.png must be a whole 8-bit image.*more than 8 bits"):
        load_pairs(*places, progress=no_progress)


def test_arrays_pair_by_place(tmp_path: Path) -> None:
    np.savez(tmp_path / "before.npz", x=X[:3], y=np.array([1, 0, 1]))
    np.save(tmp_path / "after.npy", X[3:].transpose(0, 3, 1, 2))
    np.save(tmp_path / "other.npy", np.array([0, 1, 2], np.uint8))
    pairs = load_pairs(tmp_path / "before.npz", tmp_path / "after.npy")
    assert pairs.labels == (1, 0, 1)
    assert np.array_equal(pairs.before.permute(0, 2, 3, 1), X[:3])
    assert np.array_equal(pairs.after.permute(0, 2, 3, 1), X[3:])
    assert pairs.places(("0", "1")).tolist() == [1, 0, 1]
    with pytest.raises(
        ValueError, match=r"must be names of classes, as the network's are .* got numbers: add the array"
    ):
        pairs.places(("a", "b"))
    np.savez(tmp_path / "named.npz", x=X[:3], y=np.array([1, 0, 1]), classes=np.array(["b", "a"]))
    assert load_pairs(tmp_path / "named.npz", tmp_path / "after.npy").places(("a", "b", "c")).tolist() == [0, 1, 0]
    given = load_pairs(tmp_path / "before.npz", tmp_path / "after.npy", labels=tmp_path / "other.npy")
    assert given.labels == (0, 1, 2)
    with pytest.raises(ValueError, match=r"labels of .* must be in 0\.\.1, got 2"):
        given.places(("0", "1"))
    assert load_pairs(tmp_path / "after.npy", tmp_path / "before.npz").labels is None
    assert pairs.fingerprint() != given.fingerprint()


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ({"x": X / 255}, {"x": X}, "x in .*before.npz must be uint8 .* got float64"),
        ({"x": X}, {"x": X[:3]}, r"must have one shape .* got \(6, 3, 5, 4\) and \(3, 3, 5, 4\)"),
        ({"x": X}, {"x": X[:, :3]}, "either may be the channels"),
        ({"y": X}, {"x": X}, "before.npz must hold an array x, and optionally y, got y"),
        (
            {"x": X, "y": np.zeros(6, int), "x_test": X},
            {"x": X},
            "must hold an array x, and optionally y, got x, y, x_test",
        ),
        ({"x": X, "y": np.zeros(5, int)}, {"x": X}, "must be integers, one per image"),
        ({"x": X[:0]}, {"x": X[:0]}, "before must be uint8"),
    ],
)
def test_arrays_that_do_not_pair_are_refused(
    before: dict[str, np.ndarray], after: dict[str, np.ndarray], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "before.npz", **before)
    np.savez(tmp_path / "after.npz", **after)
    with pytest.raises(ValueError, match=message):
        load_pairs(tmp_path / "before.npz", tmp_path / "after.npz")


def test_other_places_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "y.npz", x=X)
    for before in (tmp_path / "folder", tmp_path / "x.csv", tmp_path / "nowhere"):
        with pytest.raises(ValueError, match=r"must be two folders, or two \.npy or \.npz files, got"):
            load_pairs(before, tmp_path / "x.npy")
    with pytest.raises(ValueError, match=r"nowhere\.npy must be an \.npz or \.npy file, but there is no such file"):
        load_pairs(tmp_path / "x.npy", tmp_path / "nowhere.npy")
    with pytest.raises(ValueError, match="labels must be given with arrays only"):
        load_pairs(tmp_path / "folder", tmp_path / "folder", labels=tmp_path / "x.npy")
    with pytest.raises(ValueError, match=r"y\.npz must hold an array y"):
        load_pairs(tmp_path / "x.npy", tmp_path / "x.npy", labels=tmp_path / "y.npz")


def test_distances_are_exact_on_bytes_and_close_on_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rhobust.data.pairs._CHUNK", 2)
    before, after = torch.from_numpy(X[:3]), torch.from_numpy(X[3:])
    squares = ((X[:3].astype(int) - X[3:].astype(int)) ** 2).reshape(3, -1).sum(1)
    assert np.array_equal(pair_distances(before, after), np.sqrt(squares) / 255)
    floats = pair_distances(before.double() / 255, after.double() / 255)
    assert floats == pytest.approx(np.sqrt(squares) / 255, rel=1e-12)
    with pytest.raises(ValueError, match="one shape and type"):
        pair_distances(before, after.float())


def test_pairs_are_images_of_one_shape() -> None:
    image = torch.zeros(2, 1, 3, 3, dtype=torch.uint8)
    with pytest.raises(ValueError, match="after must be uint8"):
        Pairs("one", image, image.float(), None)
    with pytest.raises(ValueError, match="must have one shape"):
        Pairs("one", image, image[:1], None)
