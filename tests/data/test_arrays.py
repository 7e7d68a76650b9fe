from pathlib import Path

import numpy as np
import pytest

from rhobust.data import check, load

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (30, 6, 5, 3), np.uint8)
Y = np.arange(30) % 3


def save(path: Path, **arrays: object) -> str:
    np.savez(path / "set.npz", **arrays)
    return str(path / "set.npz")


@pytest.mark.parametrize(
    ("x", "shape"),
    [(X, (3, 6, 5)), (X.transpose(0, 3, 1, 2), (3, 6, 5)), (X[..., 0], (1, 6, 5)), (X[..., :1], (1, 6, 5))],
)
def test_every_layout_loads(x: np.ndarray, shape: tuple[int, ...], tmp_path: Path) -> None:
    name = save(tmp_path, x=x, y=Y.astype(np.uint8), x_test=x[:4], y_test=Y[:4])
    train, test = load(name, "train"), load(name, "test")
    assert (train.name, train.shape, test.shape, len(train), len(test)) == ("set.npz", shape, shape, 30, 4)
    assert train.classes == test.classes == ("0", "1", "2")
    assert np.array_equal(train.images.numpy(), X.transpose(0, 3, 1, 2)[:, : shape[0]])
    assert np.array_equal(train.labels.numpy(), Y)


def test_a_test_part_alone_is_tested_whole(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x_test=np.zeros((5, 4, 4), np.uint8), y_test=np.array([0, 1, 2, 1, 0]))
    assert (len(load(str(path), "test")), load(str(path), "test").num_classes) == (5, 3)
    found = check(str(path))
    assert (found.train, found.test, found.classes) == (0, 5, 3)
    with pytest.raises(ValueError, match="must hold x and y to be trained on, got x_test, y_test"):
        load(str(path), "train")


def test_without_a_test_part_a_fifth_of_each_class_is_held_out(tmp_path: Path) -> None:
    name = save(tmp_path, x=X, y=Y)
    train, test = load(name, "train"), load(name, "test")
    assert train.labels.bincount().tolist() == [8, 8, 8]
    assert test.labels.bincount().tolist() == [2, 2, 2]
    assert load(name, "test").fingerprint() == test.fingerprint()
    both = {image.numpy().tobytes() for data in (train, test) for image in data.images}
    assert both == {image.tobytes() for image in X.transpose(0, 3, 1, 2)}
    found = check(name)
    assert (found.files, found.train, found.test, found.classes) == (1, 24, 6, 3)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"x": X / 255, "y": Y},
            "x in .* must be uint8 .* got float64: the certificates' noise is on the 1/255 grid",
        ),
        ({"x": X.astype(np.int64), "y": Y}, r"must be uint8.* store np\.round\(x\)\.astype\(np\.uint8\)$"),
        ({"x": X.astype(np.float32), "y": Y}, r"store np\.round\(x\)"),
        ({"x": X / 255, "y": Y}, r"store np\.round\(255 \* x\)"),
        ({"x": (X / 255 - 0.5) / 0.25, "y": Y}, "its values run from -2 to 2, so undo the normalisation first$"),
        ({"x": X}, "must hold an array y, got x"),
        ({"x": X, "y": Y, "x_test": X}, "must hold an array y_test"),
        ({"images": X, "labels": Y}, "must hold an array x, got none of x, y, x_test, y_test$"),
        ({"x": X, "y": Y[:5]}, "y in .* must be integers, one per image"),
        ({"x": X, "y": Y + 0.5}, "y in .* must be integers"),
        ({"x": X, "y": Y - 1}, "must be labels 0, 1, 2"),
        ({"x": X, "y": Y + 10**6}, "must be labels 0, 1, 2"),
        ({"x": X[:0], "y": Y[:0]}, "y in .* must be integers"),
        ({"x": X[:, :3], "y": Y}, "either may be the channels"),
        ({"x": X[..., :2], "y": Y}, "no axis has 1 or 3 channels"),
        ({"x": X[:, 0, 0], "y": Y}, r"got \(30, 3\)"),
        ({"x": X, "y": Y, "x_test": X[:, 1:], "y_test": Y}, "x_test in .* must have the images' shape of x"),
    ],
)
def test_other_arrays_are_refused(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as line:
        load(save(tmp_path, **arrays), "train")
    assert "\n" not in str(line.value)


@pytest.mark.parametrize(
    ("labels", "messages"),
    [
        (Y, None),
        (Y + 1, "1 of its 4 classes (0)"),
        (10 * Y, "18 of its 21 classes (1, 2, 3, 4, 5, ...)"),
    ],
)
def test_a_class_without_a_training_image_is_reported(labels: np.ndarray, messages: str | None, tmp_path: Path) -> None:
    name, lines = save(tmp_path, x=X, y=labels), []
    load(name, "train", progress=lines.append)
    assert lines == (
        [] if messages is None else [f"warning: {name} has no training image of {messages}; labels count from 0"]
    )


def test_a_test_part_may_lack_classes(tmp_path: Path) -> None:
    lines = []
    assert load(save(tmp_path, x_test=X, y_test=Y + 1), "test", progress=lines.append).num_classes == 4
    assert lines == []


def test_classes_of_one_image_cannot_be_split(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must have a class of two images or more to split"):
        load(save(tmp_path, x=X[:3], y=Y[:3]), "test")


def test_pickles_are_refused(tmp_path: Path) -> None:
    name = save(tmp_path, x=X, y=np.array([{}] * 30, dtype=object))
    with pytest.raises(ValueError, match=r"set\.npz must be a whole \.npz of plain arrays"):
        load(name, "train")


@pytest.mark.parametrize("damage", ["cut", "flip", "text", "npy", "gone"])
def test_damage_is_refused_by_name(damage: str, tmp_path: Path, flip_bit) -> None:
    path = Path(save(tmp_path, x=X, y=Y))
    match damage:
        case "cut":
            path.write_bytes(path.read_bytes()[:-100])
        case "flip":
            flip_bit(path, 1000)
        case "text":
            path.write_text("no arrays")
        case "npy":
            with path.open("wb") as file:
                np.save(file, X)
        case "gone":
            path.unlink()
    with pytest.raises(ValueError, match=rf"^{path} must be") as line:
        load(str(path), "train")
    assert "\n" not in str(line.value)
