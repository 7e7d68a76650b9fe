import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rhobust.data import Dataset, check, decoded, folders, load, sizing
from rhobust.data.decoded import FOLDER

pytestmark = pytest.mark.usefixtures("always")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(40):
        path = tmp_path / "photos" / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (6, 5, 3), np.uint8)).save(path)
    return tmp_path / "photos"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def forbid_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(sizing, "decode_image", refuse)
    monkeypatch.setattr(folders, "read_header", refuse)


def content(data: Dataset) -> str:
    """The fingerprint, computed from the pixels."""
    return replace(data, origin=None).fingerprint()


def files(root: Path) -> list[Path]:
    return sorted((root / FOLDER).iterdir())


def test_those_who_decode_at_once_do_not_disturb_each_other(
    photos: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, others = content(load(str(photos), "train", root=root.with_name("alone"))), []

    def meanwhile(said: object) -> None:
        """Another thread, or a process of another machine with the same number, begins and ends meanwhile."""
        assert "not kept" not in str(said)
        if not others:
            others.append("")
            others.append(content(load(str(photos), "train", root=root)))

    assert content(load(str(photos), "train", root=root, progress=meanwhile)) == others[1] == alone
    assert len(files(root)) == 2
    forbid_decoding(monkeypatch)
    assert content(load(str(photos), "train", root=root)) == alone


@pytest.mark.parametrize("crop", [None, 4])
def test_the_second_call_decodes_nothing(
    crop: int | None, photos: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {split: load(str(photos), split, root=root, crop=crop) for split in ("train", "test")}
    assert len(first["train"]) + len(first["test"]) == 40
    assert len(files(root)) == 4
    with monkeypatch.context() as patch:
        patch.setattr(decoded, "WORTH_IMAGES", 10**6)
        plain = {split: load(str(photos), split, root=root, crop=crop) for split in ("train", "test")}
    forbid_decoding(monkeypatch)
    for split, data in first.items():
        again = load(str(photos), split, root=root, crop=crop)
        assert content(again) == content(data) == content(plain[split])
        assert (again.classes, again.name) == (data.classes, data.name)


def test_a_small_folder_leaves_no_file(photos: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    load(str(photos), "test", root=root)
    assert not (root / FOLDER).exists()


def test_a_change_is_seen_and_the_old_file_goes(photos: Path, root: Path) -> None:
    before = load(str(photos), "train", root=root)
    other = load(str(photos), "train", root=root, crop=4)
    path = photos / "class0/0.png"
    times = path.stat()
    pixels = np.asarray(Image.open(path)).copy()
    Image.fromarray(255 - pixels).save(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert len(files(root)) == 4
    after = load(str(photos), "train", root=root)
    assert content(before) != content(after)
    assert len(files(root)) == 4  # the pair of the cropped images stays
    # A removed file stays mapped.
    assert before.images.float().mean() > 0
    assert len(other) == len(before)


def test_what_does_not_fit_is_decoded_again(photos: Path, root: Path) -> None:
    wanted = content(load(str(photos), "test", root=root))
    pixels, description = files(root)
    whole, told = pixels.read_bytes(), json.loads(description.read_text())
    for changed in (whole[:-1], whole + b"0", bytes([whole[0] ^ 1]) + whole[1:], b""):
        pixels.unlink()
        pixels.write_bytes(changed)
        assert content(load(str(photos), "test", root=root)) == wanted
        assert pixels.read_bytes() == whole
    for change in (
        {"shape": [3, 6]},
        {"shape": [3, 6, -5]},
        {"places": [0] * len(told["places"])},
        {"places": []},
        {"places": [10**9]},
        {"places": None},
        {"sha256": 1},
    ):
        description.write_text(json.dumps({**told, **change}))
        assert content(load(str(photos), "test", root=root)) == wanted
    for text in ("[]", "{", "null"):
        description.write_text(text)
        assert content(load(str(photos), "test", root=root)) == wanted
    again = json.loads(description.read_text())
    assert {**again, "file": None} == {**told, "file": None}


def test_a_link_out_of_the_cache_is_not_followed(photos: Path, root: Path, tmp_path: Path) -> None:
    wanted = content(load(str(photos), "test", root=root))
    pixels, _ = files(root)
    (tmp_path / "elsewhere").write_bytes(pixels.read_bytes())
    pixels.unlink()
    pixels.symlink_to(tmp_path / "elsewhere")
    assert content(load(str(photos), "test", root=root)) == wanted
    assert not pixels.is_symlink()


def test_without_a_place_for_it_images_are_decoded_into_memory(photos: Path, tmp_path: Path, root: Path) -> None:
    (tmp_path / "file").write_text("")
    messages: list[object] = []
    found = load(str(photos), "test", root=tmp_path / "file", progress=messages.append)
    assert content(found) == content(load(str(photos), "test", root=root))
    assert any("decoded images are not kept" in str(message) for message in messages)


def test_a_full_disk_is_no_error(photos: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = content(load(str(photos), "test", root=root))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert content(load(str(photos), "test", root=root.with_name("other"))) == wanted
    assert files(root.with_name("other")) == []


def test_an_interrupted_decoding_leaves_nothing(photos: Path, root: Path) -> None:
    (photos / "class1/39.png").write_bytes((photos / "class1/39.png").read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"39\.png must be a whole 8-bit image"):
        load(str(photos), "train", root=root)
    assert files(root) == []


def test_a_write_to_the_images_stays_in_this_process(photos: Path, root: Path) -> None:
    first = load(str(photos), "test", root=root)
    wanted = content(first)
    first.images.zero_()
    second = load(str(photos), "test", root=root)
    assert content(second) == wanted
    assert not torch.equal(first.images, second.images)


def test_check_decodes_every_image(photos: Path, root: Path) -> None:
    load(str(photos), "test", root=root)
    path = photos / "class0/0.png"
    path.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"0\.png must be a whole"):
        check(str(photos), root=root)


def test_images_are_mapped_and_a_second_process_reads_only_what_it_uses(
    photos: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load(str(photos), "test", root=root)
    assert first.fingerprint() == content(first)
    pixels, _ = files(root)
    assert str(pixels) in Path("/proc/self/maps").read_text()
    assert first.images.untyped_storage().nbytes() == pixels.stat().st_size

    def refuse(*arguments: object) -> None:
        raise AssertionError("all pixels were read")

    monkeypatch.setattr(Dataset, "_hash", refuse)
    monkeypatch.setattr(decoded, "pixel_digest", refuse)
    again = load(str(photos), "test", root=root)
    assert again.fingerprint() == first.fingerprint()
    assert torch.equal(again.select([2]).images, first.images[[2]])


def test_a_fingerprint_is_kept_for_these_pixels_and_these_labels_only(photos: Path, root: Path) -> None:
    data = load(str(photos), "test", root=root)
    kept = data.fingerprint()
    described = json.loads(files(root)[1].read_text())
    assert list(described["fingerprints"].values()) == [kept]
    others = (
        replace(data, labels=1 - data.labels),
        replace(data, images=data.images.flip(0)),
        data.select(range(3)),
        replace(data, images=data.images[:-1], labels=data.labels[:-1]),
    )
    for other in others:
        assert other.fingerprint() == content(other) != kept
    assert len(json.loads(files(root)[1].read_text())["fingerprints"]) == 2  # these pixels, two lists of labels
    data.images[0].zero_()
    assert data.fingerprint() == content(data) != kept


def test_a_copy_of_the_file_is_compared_with_its_hash_once(
    photos: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = content(load(str(photos), "test", root=root))
    pixels, description = files(root)
    shutil.copy(pixels, root / "copy")
    pixels.unlink()
    (root / "copy").rename(pixels)
    before = json.loads(description.read_text())
    forbid_decoding(monkeypatch)
    assert content(load(str(photos), "test", root=root)) == wanted
    after = json.loads(description.read_text())
    assert before["file"] != after["file"]
    assert after["file"][0] == pixels.stat().st_size


def test_threads_decode_the_same_images_and_name_the_same_damage(photos: Path, root: Path) -> None:
    wanted = content(load(str(photos), "train", root=root))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert content(load(str(photos), "train", root=root.with_name("other"))) == wanted
        (photos / "class1/39.png").write_bytes(b"no image")
        with pytest.raises(ValueError, match=r"39\.png must be a whole 8-bit image"):
            load(str(photos), "train", root=root)
    finally:
        torch.set_num_threads(before)


def test_check_holds_no_images(photos: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, size: int) -> None:
        raise AssertionError("memory was taken")

    monkeypatch.setattr(decoded, "check_memory", refuse)
    shutil.copy(photos / "class0/0.png", photos / "class1/again.png")
    found = check(str(photos), root=root)
    assert (found.files, found.train + found.test, found.shape, found.repeated) == (41, 41, (3, 6, 5), 0)
    for split, names in {"train": range(20), "test": range(15, 40)}.items():
        for number in names:
            target = photos.with_name("split") / split / f"class{number % 2}" / f"{number}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(photos / f"class{number % 2}/{number}.png", target)
    assert check(str(photos.with_name("split")), root=root).repeated == 5


@pytest.mark.skipif(not decoded._LINUX, reason="needs Linux")
def test_a_file_larger_than_the_memory_is_mapped(root: Path) -> None:
    """Nearly all of it is a hole, so that it takes no space: written once, then mapped whole, and some images read."""
    side = 1 << 14
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    count = total // (3 * side * side) + 2
    images = decoded.MappedImages(root, "large-", "0" * 32)
    root.mkdir()
    try:
        with images._pixels.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 1)
            file.truncate(count * 3 * side * side)
            file.seek(-1, os.SEEK_END)
            file.write(b"\x07")
    except OSError as error:
        pytest.skip(f"no such file here: {error}")
    whole = {"shape": [3, side, side], "sha256": "", "places": list(range(count)), "file": images._file()}
    images._description.write_text(json.dumps(whole))
    found = images.read(count)
    assert found is not None
    pixels = torch.from_numpy(found[1])
    assert isinstance(found[1], np.memmap)
    assert pixels[-1, -1, -1, -4:].tolist() == [0, 0, 0, 7]
    pixels[0, 0, 0, 0] = 5  # stays here
    with images._pixels.open("rb") as file:
        assert file.read(1) == b"\0"
