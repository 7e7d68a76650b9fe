import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rhobust.data.dataset import Dataset
from rhobust.data.decoded import FOLDER
from rhobust.data.tiny_imagenet import TinyImageNet
from rhobust.progress import ProgressEvent, no_progress

WNIDS = ["n03", "n01", "n02"]


def jpeg(seed: int, grey: bool = False, side: int = 64) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4) if grey else (4, 4, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((side, side)).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three classes of four training images, two validation images each; the second of each class is grey."""
    base = tmp_path / "tiny-imagenet-200"
    (base / "val" / "images").mkdir(parents=True)
    (base / "test" / "images").mkdir(parents=True)
    (base / "test" / "images" / "test_0.JPEG").write_bytes(b"never read")
    lines = []
    for place, wnid in enumerate(WNIDS):
        images = base / "train" / wnid / "images"
        images.mkdir(parents=True)
        for number in range(4):
            (images / f"{wnid}_{number}.JPEG").write_bytes(jpeg(10 * place + number, grey=number == 1))
        boxes = "".join(f"{wnid}_{number}.JPEG\t0\t0\t63\t63\n" for number in range(4))
        (base / "train" / wnid / f"{wnid}_boxes.txt").write_text(boxes)
        for number in range(2):
            name = f"val_{3 * number + place}.JPEG"
            (base / "val" / "images" / name).write_bytes(jpeg(100 + 10 * place + number, grey=number == 1))
            lines.append(f"{name}\t{wnid}\t0\t0\t63\t63\n")
    (base / "val" / "val_annotations.txt").write_text("".join(lines))
    (base / "wnids.txt").write_text("\n".join([*WNIDS, "n04"]) + "\n")
    (base / "words.txt").write_text("n01\tgoldfish\nn02\tfrog\nn99\tnothing of ours\n")
    return tmp_path


@pytest.fixture
def packed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in a zip only."""
    folder = tmp_path_factory.mktemp("packed")
    shutil.make_archive(str(folder / "tiny-imagenet-200"), "zip", root, "tiny-imagenet-200")
    return folder


def load(root: Path, split: str = "test", progress: Callable = no_progress) -> Dataset:
    return TinyImageNet().load(root, split, progress)


def decodings(root: Path, split: str = "test") -> int:
    """How many images a load decodes."""
    steps: list[ProgressEvent | str] = []
    load(root, split, steps.append)
    return sum(isinstance(step, ProgressEvent) for step in steps)


def test_a_folder_with_some_of_the_classes_loads(root: Path) -> None:
    train, test = load(root, "train"), load(root)
    assert (len(train), len(test), train.shape, train.num_classes) == (12, 6, (3, 64, 64), 3)
    assert train.classes == test.classes == ("goldfish", "frog", "n03")
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    # val_0 is n03, val_1 is n01, val_2 is n02, and so on.
    assert test.labels.tolist() == [2, 0, 1, 2, 0, 1]
    assert (train.crop, train.flip) == (8, True)
    first = Image.open(io.BytesIO(jpeg(10)))
    assert np.array_equal(train.images[0].permute(1, 2, 0).numpy(), np.asarray(first))
    assert (train.images[1, 0] == train.images[1, 2]).all(), "the grey one is grey in all three channels"


def test_the_first_classes_are_a_data_set_of_their_own(root: Path) -> None:
    two = TinyImageNet(first=2)
    assert two.name == "tiny-imagenet-2"
    assert two.description.startswith("1,000 + 100 photographs")
    train, test = (two.load(root, split, no_progress) for split in ("train", "test"))
    assert (train.name, len(train), len(test)) == ("tiny-imagenet-2", 8, 4)
    assert train.classes == test.classes == ("goldfish", "n03"), "n03 and n01 stand first in wnids.txt"
    assert test.labels.tolist() == [1, 0, 1, 0]
    assert two.check(root, no_progress).published_classes == 2
    assert len(load(root, "train")) == 12, "the whole is decoded apart from it"


def test_the_first_classes_must_all_be_there(root: Path) -> None:
    base = root / "tiny-imagenet-200"
    with pytest.raises(ValueError, match=rf"^{base}/train/n04 must hold the images of a class"):
        TinyImageNet(first=4).load(root, "test", no_progress)
    with pytest.raises(ValueError, match=rf"^{base}/wnids.txt must list 5 classes at least, but it has 4"):
        TinyImageNet(first=5).load(root, "test", no_progress)
    (base / "wnids.txt").unlink()
    with pytest.raises(ValueError, match="must list 2 classes at least, but it has 0"):
        TinyImageNet(first=2).load(root, "test", no_progress)


def test_the_zip_is_the_folder(root: Path, packed: Path) -> None:
    for split in ("train", "test"):
        assert load(packed, split).fingerprint() == load(root, split).fingerprint()


@pytest.mark.usefixtures("always")
def test_it_decodes_once(root: Path, packed: Path) -> None:
    for place in (root, packed):
        assert [decodings(place), decodings(place)] == [6, 0]
        assert [decodings(place, "train"), decodings(place, "train")] == [12, 0]
        assert load(place).fingerprint() == replace(load(place), origin=None).fingerprint()
        TinyImageNet(first=2).load(place, "test", no_progress)
        assert decodings(place) == 0, "some of the classes are decoded into a file of their own"


@pytest.mark.usefixtures("always")
def test_a_relative_root_finds_what_was_decoded(root: Path, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (root, packed):
        monkeypatch.chdir(place)
        assert [decodings(place), decodings(Path()), decodings(Path("..") / place.name)] == [6, 0, 0]


@pytest.mark.usefixtures("always")
def test_a_changed_archive_is_decoded_again(root: Path, packed: Path) -> None:
    load(packed, "train")
    (root / "tiny-imagenet-200" / "train" / "n01" / "images" / "n01_9.JPEG").write_bytes(jpeg(99))
    shutil.make_archive(str(packed / "tiny-imagenet-200"), "zip", root, "tiny-imagenet-200")
    assert len(load(packed, "train")) == 13


def test_check_decodes_everything_and_counts_the_classes(root: Path) -> None:
    load(root)
    steps: list[ProgressEvent | str] = []
    found = TinyImageNet().check(root, steps.append)
    assert len(steps) == 18
    assert (found.train, found.test, found.classes, found.published_classes) == (12, 6, 3, 200)
    assert found.where == root / "tiny-imagenet-200"


def test_new_files_are_taken_in(root: Path) -> None:
    load(root, "train")
    images = root / "tiny-imagenet-200" / "train" / "n01" / "images"
    (images / "n01_9.JPEG").write_bytes(jpeg(99))
    assert len(load(root, "train")) == 13
    (images / "n01_9.JPEG").unlink()
    assert len(load(root, "train")) == 12


def test_a_changed_file_is_refused(root: Path, flip_bit) -> None:
    before = load(root).fingerprint()
    path = root / "tiny-imagenet-200" / "val" / "images" / "val_3.JPEG"
    whole = path.read_bytes()
    flip_bit(path, len(whole) // 2)
    for use in (lambda: load(root), lambda: TinyImageNet().check(root, no_progress)):
        with pytest.raises(ValueError, match=rf"^{path} must have the contents it was first decoded with"):
            use()
    path.write_bytes(whole)
    assert load(root).fingerprint() == before


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("damage", ["flip", "cut", "other", "empty", "gone"])
def test_a_damaged_array_is_decoded_again(damage: str, root: Path, flip_bit) -> None:
    before = load(root).fingerprint()
    [array] = (root / FOLDER).glob("*.bin")
    if damage == "flip":
        flip_bit(array, 5000)
    elif damage == "gone":
        array.unlink()
    else:
        array.write_bytes({"cut": array.read_bytes()[:-1], "other": b"x" * 1000, "empty": b""}[damage])
    assert decodings(root) == 6
    assert load(root).fingerprint() == before


def test_a_damaged_description_is_refused(root: Path) -> None:
    load(root)
    path = root / "tiny-imagenet-decoded" / "tiny-imagenet-test.json"
    for text in ("{", "[]", json.dumps({"files": 3})):
        path.write_text(text)
        with pytest.raises(ValueError, match=rf"^{path} must .* delete it"):
            load(root)


def test_it_works_where_nothing_can_be_written(root: Path) -> None:
    (root / "tiny-imagenet-decoded").write_text("a file where the folder would be")
    lines: list[ProgressEvent | str] = []
    assert len(load(root, "test", lines.append)) == 6
    assert any("are not cached" in line for line in lines if isinstance(line, str))


def _cut(base: Path) -> Path:
    path = base / "train" / "n01" / "images" / "n01_1.JPEG"
    path.write_bytes(path.read_bytes()[:-200])
    return path


def _other(base: Path) -> Path:
    path = base / "train" / "n01" / "images" / "n01_1.JPEG"
    path.write_text("no image")
    return path


def _size(base: Path) -> Path:
    path = base / "train" / "n01" / "images" / "n01_1.JPEG"
    path.write_bytes(jpeg(0, side=32))
    return path


def _listed_image_gone(base: Path) -> Path:
    path = base / "train" / "n01" / "images" / "n01_1.JPEG"
    path.unlink()
    return path


def _validation_image_gone(base: Path) -> Path:
    path = base / "val" / "images" / "val_4.JPEG"
    path.unlink()
    return path


def _annotations_gone(base: Path) -> Path:
    path = base / "val" / "val_annotations.txt"
    path.unlink()
    return path


def _annotations_damaged(base: Path) -> Path:
    path = base / "val" / "val_annotations.txt"
    path.write_text("val_0.JPEG n01\n")
    return path


def _stranger(base: Path) -> Path:
    path = base / "train" / "unknown"
    (path / "images").mkdir(parents=True)
    (path / "images" / "a.JPEG").write_bytes(jpeg(0))
    return path


@pytest.mark.parametrize(
    "damage",
    [
        _cut,
        _other,
        _size,
        _listed_image_gone,
        _validation_image_gone,
        _annotations_gone,
        _annotations_damaged,
        _stranger,
    ],
)
def test_damage_is_refused_by_name(damage: Callable[[Path], Path], root: Path) -> None:
    path = damage(root / "tiny-imagenet-200")
    with pytest.raises(ValueError, match=rf"^{path}.* must") as line:
        TinyImageNet().check(root, no_progress)
    assert "\n" not in str(line.value)


def test_a_flipped_bit_in_the_zip_is_refused(packed: Path, flip_bit) -> None:
    path = packed / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("tiny-imagenet-200/val/images/val_3.JPEG")
    flip_bit(path, info.header_offset + 120)
    with pytest.raises(ValueError, match=rf"^{path} must be whole, but val/images/val_3.JPEG in it is damaged"):
        load(packed)
    with pytest.raises(ValueError, match=rf"^{path} must have md5:.* delete it and run"):
        TinyImageNet().check(packed, no_progress)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=rf"^{path} must be a whole zip archive"):
        load(packed)


def test_the_archive_comes_from_the_publisher(site, packed: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = (packed / "tiny-imagenet-200.zip").read_bytes()
    site.files["tiny-imagenet-200.zip"] = content
    address = site.address + "tiny-imagenet-200.zip"
    source = TinyImageNet((address,), "md5:" + hashlib.md5(content).hexdigest())
    empty = tmp_path_factory.mktemp("empty") / "new"
    assert source.fetch(empty, no_progress) == address
    assert source.fetch(empty, no_progress) == "already there"
    assert source.check(empty, no_progress).train == 12


def test_a_missing_one_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must exist, but neither does; run `rhobust data get tiny-imagenet"):
        load(tmp_path)
