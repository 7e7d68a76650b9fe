from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rhobust.data import check, load, read_image
from rhobust.data.folders import ImageFolder
from rhobust.data.source import content_keys, hash_order, in_test_part
from rhobust.progress import no_progress


def write(path: Path, seed: int = 0, grey: bool = False, size: tuple[int, int] = (6, 5)) -> Path:
    """A random image of this height and width."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = size if grey else (*size, 3)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8)).save(path)
    return path


def test_train_and_test_folders(tmp_path: Path) -> None:
    for seed, name in enumerate(("train/b/1.png", "train/a/2.png", "train/a/3.bmp", "test/b/4.ppm")):
        write(tmp_path / name, seed)
    train, test = load(str(tmp_path), "train"), load(str(tmp_path), "test")
    assert (train.name, train.classes, test.classes) == (tmp_path.name, ("a", "b"), ("a", "b"))
    assert sorted(train.labels.tolist()) == [0, 0, 1]
    assert test.labels.tolist() == [1]
    assert np.array_equal(test.images[0].permute(1, 2, 0), Image.open(tmp_path / "test/b/4.ppm"))
    found = ImageFolder(tmp_path).check(tmp_path, no_progress)
    assert (found.files, found.train, found.test, found.shape) == (4, 3, 1, (3, 6, 5))


def test_val_serves_as_test(tmp_path: Path) -> None:
    write(tmp_path / "train/a/1.png")
    write(tmp_path / "val/a/2.png")
    assert len(load(str(tmp_path), "test")) == 1


@pytest.mark.parametrize("name", ["test", "val"])
def test_a_test_folder_alone_is_tested_whole(name: str, tmp_path: Path) -> None:
    for number in range(6):
        write(tmp_path / name / f"class{number % 2}/{number}.png", number)
    (tmp_path / ".cache").mkdir()
    test = load(str(tmp_path), "test")
    assert (len(test), test.classes) == (6, ("class0", "class1"))
    found = check(str(tmp_path))
    assert (found.files, found.train, found.test, found.classes) == (6, 0, 6, 2)
    with pytest.raises(ValueError, match="must have an image for its train split, but it has none"):
        load(str(tmp_path), "train")


@pytest.mark.parametrize("trained", [False, True])
def test_an_empty_folder_of_a_test_part_is_a_class_without_an_image(trained: bool, tmp_path: Path) -> None:
    said: list[object] = []
    for number in range(4):
        write(tmp_path / "test" / f"class{2 * (number % 2)}/{number}.png", number)
    (tmp_path / "test" / "class1").mkdir()
    (tmp_path / "test" / "class1" / ".keep").touch()
    if trained:
        for number in range(3):
            write(tmp_path / "train" / f"class{number}/{number}.png", number + 10)
    test = load(str(tmp_path), "test", progress=said.append)
    assert test.classes == ("class0", "class1", "class2")
    assert sorted(test.labels.tolist()) == [0, 0, 2, 2]
    assert said[-1] == f"warning: {tmp_path} has no test image of 1 of its 3 classes (class1)"
    (tmp_path / "test" / "class1" / "scan.tiff").touch()
    with pytest.raises(ValueError, match="class1 must hold images"):
        load(str(tmp_path), "test")


def parts(path: Path) -> dict[str, set[bytes]]:
    """The pixels of the images of each split."""
    return {split: {image.tobytes() for image in load(str(path), split).images.numpy()} for split in ("train", "test")}


def test_without_a_test_folder_about_a_fifth_is_held_out(tmp_path: Path) -> None:
    for place in range(100):
        write(tmp_path / "many" / f"{place}.png", place)
    write(tmp_path / "train" / "single.png", 206)
    lines = []
    train, test = (load(str(tmp_path), split, progress=lines.append) for split in ("train", "test"))
    assert train.classes == test.classes == ("many", "train")
    # A binomial number of 101 trials at 1/5, fixed by the pixels.
    assert 10 <= len(test) <= 30
    assert len(train) + len(test) == 101
    found = parts(tmp_path)
    assert len(found["train"] | found["test"]) == 101
    told = [line for line in lines if isinstance(line, str)]
    assert told == [
        f"{tmp_path} has no test part: the train split is {len(train)} of its 101 images, chosen by the pixels of each "
        "image alone",
        f"{tmp_path} has no test part: the test split is {len(test)} of its 101 images, chosen by the pixels of each "
        "image alone",
        f"warning: {tmp_path} has no test image of 1 of its 2 classes (train)",
    ]


def test_no_change_of_the_folder_moves_an_image_between_splits(tmp_path: Path) -> None:
    for place in range(40):
        write(tmp_path / "ab"[place % 2] / f"{place}.pgm", place, grey=True)
    before = parts(tmp_path)

    def check(gone: int = 0, new: int = 0) -> None:
        after = parts(tmp_path)
        assert not before["train"] & after["test"]
        assert not before["test"] & after["train"]
        assert len(after["train"] | after["test"]) == 40 + new - gone

    for path in sorted((tmp_path / "a").iterdir()):
        path.rename(path.with_name(f"renamed-{path.name}"))
    check()
    for place in range(10, 20):
        path = next(tmp_path.rglob(f"*{place}.pgm"))
        path.unlink()
    check(gone=10)
    for place in range(100, 150):
        write(tmp_path / "new" / f"{place}.png", place, grey=True)
    check(gone=10, new=50)
    # The class of an image and the format of its file do not matter either: a copy is where the original is.
    for path in sorted((tmp_path / "a").iterdir()):
        Image.open(path).save(tmp_path / "b" / f"copy-{path.stem}.png")
    check(gone=10, new=50)
    # One colour image makes all of them colour.
    write(tmp_path / "a" / "colour.png", 1000)
    assert load(str(tmp_path), "test").shape[0] == 3
    grey = {split: {image[:30] for image in images} for split, images in parts(tmp_path).items()}
    assert not before["train"] & grey["test"]
    assert not before["test"] & grey["train"]


@pytest.mark.parametrize("name", ["test", "val"])
def test_a_folder_that_is_itself_the_test_part_is_tested_whole(name: str, tmp_path: Path) -> None:
    for number in range(12):
        write(tmp_path / "photos" / name / f"class{number % 2}/{number}.png", number)
    write(tmp_path / "photos" / "train" / "class0" / "0.png", 100)
    lines = []
    path = tmp_path / "photos" / name
    assert len(load(str(path), "test", progress=lines.append)) == 12
    assert lines[-1] == f"{path} is a test part: all of its 12 images are tested"
    assert (check(str(path)).train, check(str(path)).test) == (0, 12)
    with pytest.raises(ValueError, match="must have an image for its train split"):
        load(str(path), "train")


def test_check_counts_the_test_images_that_are_training_images(tmp_path: Path) -> None:
    for number in range(6):
        write(tmp_path / "train" / "a" / f"{number}.png", number)
        write(tmp_path / "test" / "a" / f"other-{number}.bmp", number + 4)
    assert check(str(tmp_path)).repeated == 2


def test_the_split_does_not_depend_on_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in range(30):
        write(tmp_path / "ab"[place % 2] / f"{place}.png", place)
    before = {split: load(str(tmp_path), split).fingerprint() for split in ("train", "test")}
    listing = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(sorted(listing(path), reverse=True)))
    assert {split: load(str(tmp_path), split).fingerprint() for split in ("train", "test")} == before


def test_the_split_is_for_ever() -> None:
    # A change here would move images between splits of existing data sets.
    images = np.arange(10 * 48, dtype=np.uint8).reshape(10, 3, 4, 4) * 7
    keys = content_keys(images)
    assert hex(keys[0]) == "0x455445d97c9088b0"
    assert in_test_part(keys).nonzero()[0].tolist() == [8]


def test_one_name_written_in_two_ways_is_one_name() -> None:
    assert hash_order("caf\u00e9") == hash_order("cafe\u0301")


def test_grey_stays_grey_and_mixed_becomes_colour(tmp_path: Path) -> None:
    for place in range(20):
        write(tmp_path / "grey" / "a" / f"{place}.pgm", place, grey=True)
        write(tmp_path / "mixed" / "a" / f"{place}.png", place, grey=place > 0)
    assert load(str(tmp_path / "grey"), "train").shape == (1, 6, 5)
    # Both splits have the channels of the whole folder, in whichever of them the colour images are.
    assert {load(str(tmp_path / "mixed"), split).shape for split in ("train", "test")} == {(3, 6, 5)}


def test_formats(tmp_path: Path) -> None:
    for suffix in ("png", "jpg", "JPEG", "bmp", "webp", "ppm"):
        write(tmp_path / "a" / f"image.{suffix}")
    Image.new("P", (5, 6)).save(tmp_path / "a" / "palette.png")
    Image.new("RGBA", (5, 6)).save(tmp_path / "a" / "clear.png")
    assert len(load(str(tmp_path), "train")) + len(load(str(tmp_path), "test")) == 8


def test_hidden_files_and_links_are_not_read(tmp_path: Path) -> None:
    for place in range(2):
        write(tmp_path / "a" / f"{place}.png", place)
    (tmp_path / "a" / ".hidden.png").write_text("no image")
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / "readme.md").write_text("no class")
    (tmp_path / ".git").mkdir()
    (tmp_path / "a" / "dangling.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "a" / "linked.png").symlink_to(write(tmp_path.parent / "elsewhere.png", 3))
    (tmp_path / "loop").symlink_to(tmp_path)
    assert len(load(str(tmp_path), "train")) == 2


def test_mixed_sizes_name_two_files(tmp_path: Path) -> None:
    write(tmp_path / "train/a/1.png")
    write(tmp_path / "test/a/2.png", size=(7, 5))
    with pytest.raises(ValueError, match=r"1\.png of 5x6 and .*2\.png of 5x7; give resize and crop") as line:
        load(str(tmp_path), "train")
    assert "\n" not in str(line.value)


# A flipped bit is seen in a PNG only: the other formats have no checksums.
@pytest.mark.parametrize(
    ("damage", "suffix"),
    [("flip", "png"), *((damage, suffix) for damage in ("cut", "text", "empty") for suffix in ("png", "jpg", "webp"))],
)
def test_a_damaged_image_is_refused_by_name(damage: str, suffix: str, tmp_path: Path, flip_bit) -> None:
    write(tmp_path / "train/a/1.png", size=(40, 40))
    write(tmp_path / "test/a/2.png", size=(40, 40))
    path = write(tmp_path / f"train/a/bad.{suffix}", size=(40, 40))
    content = path.read_bytes()
    if damage == "flip":
        flip_bit(path, len(content) // 2)
    else:
        path.write_bytes({"cut": content[: len(content) // 2], "text": b"no image", "empty": b""}[damage])
    with pytest.raises(ValueError, match=rf"^{path} must be a whole 8-bit image") as line:
        load(str(tmp_path), "train")
    assert "\n" not in str(line.value)
    assert "object at" not in str(line.value)


def test_sixteen_bits_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(path)
    with pytest.raises(ValueError, match="more than 8 bits"):
        read_image(path)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "must hold one subfolder per class"),
        (["1.png"], "must hold one subfolder per class"),
        (["a/notes.txt"], "must hold images"),
        (["train/a/1.png"], "`train` needs a `test` or `val` next to it"),
        (["train/a/1.png", "test/b/1.png"], "must be a class of the training split too"),
    ],
)
def test_what_is_no_data_set_is_refused(names: list[str], message: str, tmp_path: Path) -> None:
    for name in names:
        if name.endswith(".png"):
            write(tmp_path / name)
        else:
            (tmp_path / name).parent.mkdir()
            (tmp_path / name).write_text("text")
    with pytest.raises(ValueError, match=message):
        load(str(tmp_path), "train")


def test_one_image_cannot_be_split(tmp_path: Path) -> None:
    write(tmp_path / "a/1.png")
    with pytest.raises(ValueError, match="must have an image for its test split"):
        load(str(tmp_path), "test")


def test_read_image_keeps_or_converts_the_channels(tmp_path: Path) -> None:
    grey, colour = write(tmp_path / "grey.png", grey=True), write(tmp_path / "colour.png")
    assert read_image(grey).shape == (1, 6, 5)
    assert read_image(grey, 3).shape == read_image(colour).shape == (3, 6, 5)
    with pytest.raises(ValueError, match=f"^{colour} .*it is in colour, but grey is required"):
        read_image(colour, 1)
    with pytest.raises(ValueError, match="must be an image file, but there is no such file"):
        read_image(tmp_path / "none.png")


def test_other_layouts_are_named(tmp_path: Path) -> None:
    write(tmp_path / "flat/train/n01/1.png")
    write(tmp_path / "flat/val/ILSVRC_1.png")
    with pytest.raises(ValueError, match=r"val must hold one subfolder per class.* flat folder: move each into the"):
        load(str(tmp_path / "flat"), "test")
    write(tmp_path / "tiny/train/n01/images/1.png")
    write(tmp_path / "tiny/val/images/2.png")
    (tmp_path / "tiny/val/val_annotations.txt").write_text("2.png\tn01\n")
    with pytest.raises(ValueError, match=rf"layout of Tiny ImageNet: name .* with the root {tmp_path}, or move"):
        load(str(tmp_path / "tiny"), "test")


def test_a_folder_as_imagenet_has_it(tmp_path: Path) -> None:
    """JPEGs of mixed sizes, some of them grey or in CMYK, one folder per WordNet id, under train and val."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 6), ("val", 4)):
        for wnid in ("n01440764", "n02084071"):
            for number in range(count):
                height, width = rng.integers(20, 40, 2)
                image = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8))
                path = tmp_path / part / wnid / f"{wnid}_{number}.JPEG"
                path.parent.mkdir(parents=True, exist_ok=True)
                image.convert({0: "L", 1: "CMYK"}.get(number, "RGB")).save(path, "JPEG")
    with pytest.raises(ValueError, match=r"must have one size, got .*; give resize and crop"):
        load(str(tmp_path), "test")
    test = load(str(tmp_path), "test", resize=18, crop=16)
    assert (len(test), test.shape, test.classes) == (8, (3, 16, 16), ("n01440764", "n02084071"))
    found = check(str(tmp_path), resize=18, crop=16)
    assert (found.files, found.train, found.test, found.repeated) == (20, 12, 8, 0)
    (tmp_path / "val/n01440764/copy.JPEG").write_bytes((tmp_path / "train/n01440764/n01440764_3.JPEG").read_bytes())
    assert check(str(tmp_path), resize=18, crop=16).repeated == 1
