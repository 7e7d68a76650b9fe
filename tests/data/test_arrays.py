from pathlib import Path

import numpy as np
import pytest

from rhobust.data import array_file, arrays, check, decoded, load

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


@pytest.mark.parametrize(
    "names",
    [("x_train", "y_train", "x_test", "y_test"), ("train_images", "train_labels", "test_images", "test_labels")],
    ids=["keras", "medmnist"],
)
def test_the_names_of_other_libraries_are_known(names: tuple[str, ...], tmp_path: Path) -> None:
    name = save(tmp_path, **dict(zip(names, (X, Y[:, None], X[:4], Y[:4, None]), strict=True)), val_images=X)
    (tmp_path / "ours").mkdir()
    ours = save(tmp_path / "ours", x=X, y=Y, x_test=X[:4], y_test=Y[:4])
    for split in ("train", "test"):
        assert load(name, split).fingerprint() == load(ours, split).fingerprint()
    with pytest.raises(ValueError, match="must hold one train part, got x and x_train"):
        load(save(tmp_path, x=X, y=Y, x_train=X, y_train=Y), "train")


def test_a_test_part_alone_is_tested_whole(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x_test=np.zeros((5, 4, 4), np.uint8), y_test=np.array([0, 1, 2, 1, 0]))
    assert (len(load(str(path), "test")), load(str(path), "test").num_classes) == (5, 3)
    found = check(str(path))
    assert (found.train, found.test, found.classes) == (0, 5, 3)
    with pytest.raises(ValueError, match="must hold x and y to be trained on, got x_test, y_test"):
        load(str(path), "train")


def test_without_a_test_part_about_a_fifth_is_held_out(tmp_path: Path) -> None:
    name = save(tmp_path, x=X, y=Y)
    train, test = load(name, "train"), load(name, "test")
    assert 2 <= len(test) <= 12
    assert load(name, "test").fingerprint() == test.fingerprint()
    both = {image.numpy().tobytes() for data in (train, test) for image in data.images}
    assert both == {image.tobytes() for image in X.transpose(0, 3, 1, 2)}
    found = check(name)
    assert (found.files, found.train, found.test, found.classes) == (1, len(train), len(test), 3)
    assert found.repeated == 0


def test_no_change_of_the_file_moves_an_image_between_splits(tmp_path: Path) -> None:
    x = np.random.default_rng(1).integers(0, 256, (200, 4, 4), np.uint8)
    y = np.arange(200) % 10

    def keys(rows: slice | np.ndarray, split: str) -> set[bytes]:
        return {image.tobytes() for image in load(save(tmp_path, x=x[rows], y=y[rows]), split).images.numpy()}

    train, test = keys(slice(100), "train"), keys(slice(100), "test")
    order = np.random.default_rng(2).permutation(200)
    for rows in (slice(1, 100), slice(90), slice(200), slice(0, 200, 3), order, np.repeat(order, 2)):
        assert not keys(rows, "test") & train
        assert not keys(rows, "train") & test


def test_names_of_the_classes_may_be_stored(tmp_path: Path) -> None:
    name = save(tmp_path, x_test=X, y_test=Y, classes=np.array(["cat", "dog", "eel", "fox"]))
    data = load(name, "test")
    assert (data.classes, data.named) == (("cat", "dog", "eel", "fox"), True)
    assert not load(save(tmp_path, x_test=X, y_test=Y), "test").named


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
        (
            {"images": X, "labels": Y},
            "must hold an array x, got none of x, y, x_train, .*",
        ),
        ({"x": X, "y": Y[:5]}, "y in .* must be integers, one per image"),
        ({"x": X[:0], "y": Y[:0]}, "y in .* must hold the label of an image at least, got none"),
        ({"x": X, "y": Y + 0.5}, "y in .* must be integers"),
        ({"x": X, "y": Y - 1}, "must be labels 0, 1, 2"),
        ({"x": X, "y": Y + 10**6}, "must be labels 0, 1, 2"),
        ({"x": X[:, :3], "y": Y}, "either may be the channels"),
        ({"x": X[..., :2], "y": Y}, "no axis has 1 or 3 channels"),
        ({"x": X[:, 0, 0], "y": Y}, r"got \(30, 3\)"),
        ({"x": X, "y": Y, "classes": np.array(["a", "b"])}, "classes in .* must be strings, one per label 0..2"),
        ({"x": X, "y": Y, "classes": np.arange(3)}, "classes in .* must be strings"),
        ({"x": X, "y": Y, "classes": np.array(["a", "b", "a"])}, "must be different names"),
        (
            {"x": X, "y": Y, "x_test": X[:, 1:], "y_test": Y},
            "test images in .* must have the shape of its training",
        ),
    ],
)
def test_other_arrays_are_refused(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as line:
        load(save(tmp_path, **arrays), "train")
    assert "\n" not in str(line.value)


FROM_ONE = "warning: {name} has no image with label 0: labels count from 0"


@pytest.mark.parametrize(
    ("labels", "messages"),
    [
        (Y, []),
        (Y + 1, [FROM_ONE, "warning: {name} has no training image of 1 of its 4 classes (0)"]),
        (10 * Y, ["warning: {name} has no training image of 18 of its 21 classes (1, 2, 3, 4, 5, ...)"]),
    ],
)
def test_a_class_without_a_training_image_is_reported(labels: np.ndarray, messages: list[str], tmp_path: Path) -> None:
    name, lines = save(tmp_path, x=X, y=labels, x_test=X, y_test=labels), []
    load(name, "train", progress=lines.append)
    assert lines == [message.format(name=name) for message in messages]


def test_a_test_part_may_lack_classes_but_not_the_first_without_a_word(tmp_path: Path) -> None:
    lines = []
    name = save(tmp_path, x_test=X, y_test=Y + 1)
    assert load(name, "test", progress=lines.append).num_classes == 4
    assert lines == [FROM_ONE.format(name=name)]
    lines.clear()
    load(save(tmp_path, x_test=X, y_test=2 * Y), "test", progress=lines.append)
    assert lines == []


def test_an_empty_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must have an image for its test split, but the pixels of none choose it"):
        load(save(tmp_path, x=X[:1], y=Y[:1]), "test")


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


@pytest.mark.parametrize("tested", [False, True])
@pytest.mark.parametrize("x", [X, X.transpose(0, 3, 1, 2), np.ascontiguousarray(X[..., 0]), np.asfortranarray(X)])
def test_large_arrays_are_read_in_shards_once_and_mapped(
    x: np.ndarray, tested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = x if x.flags.f_contiguous else np.ascontiguousarray(x)
    parts = {"x_test": x[:7], "y_test": Y[:7]} if tested else {}
    name, messages = save(tmp_path, x=x, y=Y, **parts), list[object]()
    small = {split: load(name, split) for split in ("train", "test")}
    monkeypatch.setattr(array_file, "LARGE", 0)
    monkeypatch.setattr(arrays, "SHARD", 200)  # two images, or six grey ones
    monkeypatch.setattr(decoded, "WORTH_IMAGES", 1)
    for split, wanted in small.items():
        found = load(name, split, root=tmp_path, progress=messages.append)
        assert np.array_equal(found.images.numpy(), wanted.images.numpy())
        assert np.array_equal(found.labels.numpy(), wanted.labels.numpy())
        assert (found.fingerprint(), found.classes) == (wanted.fingerprint(), wanted.classes)
        assert (found.origin is None) == x.flags.f_contiguous  # its images are not one after the other
    if not x.flags.f_contiguous:
        assert sum("decoded images are in" in str(message) for message in messages) == 2
        monkeypatch.setattr(array_file, "read_shards", None)
        assert load(name, "test", root=tmp_path).fingerprint() == small["test"].fingerprint()


def test_a_large_array_that_is_damaged_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flip_bit
) -> None:
    monkeypatch.setattr(array_file, "LARGE", 0)
    monkeypatch.setattr(decoded, "WORTH_IMAGES", 1)
    path = Path(save(tmp_path, x=np.tile(X, (10, 1, 1, 1)), y=np.tile(Y, 10)))
    flip_bit(path, 20_000)
    with pytest.raises(ValueError, match=rf"^{path} must be a whole .npz of plain arrays, .*Bad CRC"):
        load(str(path), "train", root=tmp_path / "root")
    assert list((tmp_path / "root" / decoded.FOLDER).iterdir()) == []
