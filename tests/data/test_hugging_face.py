"""Saved folders, parquet files, the hub's ids and live objects of the package datasets."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import rhobust
from rhobust.data import as_dataset, as_inputs, check, decoded, get, load, sizing
from rhobust.measurements import BASE

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def picture(seed: int, height: int = 6, width: int = 5) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def pixels(seeds) -> np.ndarray:
    return np.stack([np.asarray(picture(seed)).transpose(2, 0, 1) for seed in seeds])


def table(seeds, labels=None, names=("cat", "dog"), split=None):
    features = datasets.Features(
        {"id": datasets.Value("int64"), "photo": datasets.Image(), "kind": datasets.ClassLabel(names=list(names))}
    )
    seeds = list(seeds)
    held = {
        "id": seeds,
        "photo": [picture(seed) for seed in seeds],
        "kind": [seed % 2 for seed in seeds] if labels is None else labels,
    }
    return datasets.Dataset.from_dict(held, features=features, split=split)


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the user's cache nor the user's data."""
    monkeypatch.setenv("RHOBUST_DATA", str(tmp_path / "root"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def sorted_pixels(images: torch.Tensor) -> list[bytes]:
    return sorted(image.numpy().tobytes() for image in images)


def save(tmp_path: Path, kind: str, parts: dict) -> Path:
    folder = tmp_path / kind
    if kind == "saved":
        datasets.DatasetDict(parts).save_to_disk(str(folder))
    else:
        folder.mkdir()
        for name, part in parts.items():
            part.to_parquet(folder / f"{name}-00000-of-00001.parquet")
    return folder


@pytest.mark.parametrize("kind", ["saved", "parquet"])
def test_a_folder_loads_with_its_splits_columns_and_classes(kind: str, tmp_path: Path) -> None:
    folder = save(tmp_path, kind, {"train": table(range(12)), "test": table(range(100, 106))})
    said: list[object] = []
    found = load(f"hf-datasets:{folder}", "test", progress=said.append)
    assert f"{folder}, split test: images are the column photo, labels kind" in said
    assert (found.name, found.classes, found.named) == (kind, ("cat", "dog"), True)
    assert sorted_pixels(found.images) == sorted(one.tobytes() for one in pixels(range(100, 106)))
    for image, label in zip(found.images.numpy(), found.labels.tolist(), strict=True):
        (seed,) = [seed for seed in range(100, 106) if np.array_equal(image, pixels([seed])[0])]
        assert label == seed % 2
    checked = check(f"hf-datasets:{folder}")
    assert (checked.train, checked.test, checked.shape, checked.repeated) == (12, 6, (3, 6, 5), 0)
    # Shuffled by the number of the row alone.
    assert not np.array_equal(load(f"hf-datasets:{folder}", "train").images.numpy(), pixels(range(12)))


def test_validation_serves_as_test_and_a_split_can_be_named(tmp_path: Path) -> None:
    parts = {"train": table(range(4)), "validation": table(range(10, 13)), "extra": table(range(20, 25))}
    folder = save(tmp_path, "saved", parts)
    assert len(load(f"hf-datasets:{folder}", "test")) == 3
    assert len(load(f"hf-datasets:{folder}:extra", "test")) == 5
    assert load(f"hf-datasets:{folder}:extra", "test").name == "saved-extra"
    assert len(load(f"hf-datasets:{folder}:extra", "train")) == 4
    for split in ("train", "test"):
        with pytest.raises(ValueError, match="must have the split other, got train, validation, extra"):
            load(f"hf-datasets:{folder}:other", split)
    with pytest.raises(ValueError, match="must be named without a config"):
        load(f"hf-datasets:{folder}::small", "test")


def test_one_split_is_divided_by_the_pixels_unless_it_is_a_test_split(tmp_path: Path) -> None:
    table(range(40)).save_to_disk(str(tmp_path / "one"))
    said: list[object] = []
    parts = {split: load(f"hf-datasets:{tmp_path / 'one'}", split, progress=said.append) for split in ("train", "test")}
    assert any("has no test part" in str(message) for message in said)
    together = torch.cat([part.images for part in parts.values()])
    assert sorted_pixels(together) == sorted(one.tobytes() for one in pixels(range(40)))
    assert len(parts["test"]) < len(parts["train"])
    table(range(45)).save_to_disk(str(tmp_path / "more"))
    more = load(f"hf-datasets:{tmp_path / 'more'}", "test")
    assert set(sorted_pixels(parts["test"].images)) <= set(sorted_pixels(more.images))
    table(range(9), split="test").save_to_disk(str(tmp_path / "tested"))
    said.clear()
    assert len(load(f"hf-datasets:{tmp_path / 'tested'}", "test", progress=said.append)) == 9
    assert any("is a test part: all of its 9 images are tested" in str(message) for message in said)
    with pytest.raises(ValueError, match="must have a split train, got test"):
        load(f"hf-datasets:{tmp_path / 'tested'}", "train")


def test_labels_may_be_numbers_or_names_and_must_be_known(tmp_path: Path) -> None:
    for name, labels in {"numbers": [0, 3, 1], "names": ["b", "a", "b"]}.items():
        held = {"image": [picture(seed) for seed in range(3)], "label": labels}
        part = datasets.Dataset.from_dict(held, split="test").cast_column("image", datasets.Image())
        part.save_to_disk(str(tmp_path / name))
    numbers, names = (load(f"hf-datasets:{tmp_path / name}", "test") for name in ("numbers", "names"))
    assert (numbers.classes, numbers.named, sorted(numbers.labels.tolist())) == (("0", "1", "2", "3"), False, [0, 1, 3])
    assert (names.classes, names.named, sorted(names.labels.tolist())) == (("a", "b"), True, [0, 1, 1])
    table(range(3), labels=[-1, -1, -1], split="test").save_to_disk(str(tmp_path / "none"))
    with pytest.raises(ValueError, match="must have labels in its split test, got -1: name another"):
        load(f"hf-datasets:{tmp_path / 'none'}", "test")
    table(range(3)).remove_columns("kind").save_to_disk(str(tmp_path / "bare"))
    with pytest.raises(ValueError, match="must have a column of labels, got id, photo"):
        load(f"hf-datasets:{tmp_path / 'bare'}", "test")


def test_mixed_sizes_need_resize_and_crop(tmp_path: Path) -> None:
    held = {"image": [picture(0, 6, 5), picture(1, 9, 7)], "label": [0, 1]}
    part = datasets.Dataset.from_dict(held, split="test").cast_column("image", datasets.Image())
    part.save_to_disk(str(tmp_path / "mixed"))
    with pytest.raises(ValueError, match=r"must have one size, got .*row 0 of 5x6 and .*row 1 of 7x9; give resize"):
        load(f"hf-datasets:{tmp_path / 'mixed'}", "test")
    found = load(f"hf-datasets:{tmp_path / 'mixed'}", "test", resize=5, crop=4)
    assert (found.shape, found.name) == ((3, 4, 4), "mixed-resize5-crop4")
    assert check(f"hf-datasets:{tmp_path / 'mixed'}", resize=5, crop=4).test == 2


def test_large_ones_are_decoded_once_into_a_mapped_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded, "WORTH_IMAGES", 1)
    folder = save(tmp_path, "saved", {"train": table(range(8)), "test": table(range(10, 15))})
    first = load(f"hf-datasets:{folder}", "test")
    live = as_dataset(datasets.load_from_disk(str(folder))["test"])
    assert first.origin is not None
    assert live.origin is not None
    monkeypatch.setattr(sizing, "decode_image", None)
    again = load(f"hf-datasets:{folder}", "test")
    assert again.fingerprint() == first.fingerprint() == replace(again, origin=None).fingerprint()
    assert torch.equal(as_dataset(datasets.load_from_disk(str(folder))["test"]).images, live.images)
    monkeypatch.undo()
    monkeypatch.setattr(decoded, "WORTH_IMAGES", 1)
    monkeypatch.setenv("RHOBUST_DATA", str(tmp_path / "root"))
    shutil.rmtree(folder)
    save(tmp_path, "saved", {"train": table(range(8)), "test": table(range(20, 25))})
    assert load(f"hf-datasets:{folder}", "test").fingerprint() != first.fingerprint()


def test_a_hub_id_is_read_from_where_get_saved_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, asked = tmp_path / "root", []

    def hub(*arguments: object) -> object:
        asked.append(arguments)
        return datasets.DatasetDict({"train": table(range(3)), "test": table(range(5, 9))})

    monkeypatch.setattr(datasets, "load_dataset", hub)
    with pytest.raises(ValueError, match=r"but it is neither; run `rhobust data get hf-datasets:user/pets::small --ro"):
        load("hf-datasets:user/pets::small", "test", root=root)
    assert asked == []
    fetched = get("hf-datasets:user/pets::small", root=root)
    assert (asked, fetched.origin) == ([("user/pets", "small")], "the hub's user/pets")
    assert fetched.where == root / "hf-datasets" / "user--pets--small"
    assert len(load("hf-datasets:user/pets::small", "test", root=root)) == 4
    assert get("hf-datasets:user/pets::small", root=root).origin == "already there"
    assert len(asked) == 1
    with pytest.raises(ValueError, match="but there is no such folder"):
        load(f"hf-datasets:{tmp_path}/nowhere", "test", root=root)


def test_an_error_of_the_package_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        ValueError, match=r"^hf-datasets:.*empty must be readable by datasets, but it raised .*"
    ) as error:
        load(f"hf-datasets:{tmp_path / 'empty'}", "test")
    assert "\n" not in str(error.value)


def test_live_objects_keep_their_order(tmp_path: Path) -> None:
    live = datasets.DatasetDict({"train": table(range(6)), "test": table(range(10, 14))})
    said: list[object] = []
    found = as_dataset(live, progress=said.append)
    assert "images are the split test of train, test" in said
    assert np.array_equal(found.images.numpy(), pixels(range(10, 14)))
    assert len(as_dataset(live, split="train")) == 6
    chosen = live["train"].select([4, 1, 3])
    assert np.array_equal(as_dataset(chosen).images.numpy(), pixels([4, 1, 3]))
    assert as_dataset(chosen).labels.tolist() == [0, 1, 1]
    assert np.array_equal(as_inputs(chosen, limit=2).images.numpy(), pixels([4, 1]))
    assert np.array_equal(as_dataset(live["test"].with_format("torch")).images.numpy(), pixels(range(10, 14)))
    bare = live["test"].remove_columns("kind").rename_column("photo", "image")
    assert as_dataset(bare, [1, 0, 1, 0]).labels.tolist() == [1, 0, 1, 0]
    with pytest.raises(ValueError, match="labels must be left out"):
        as_dataset(live["test"], [0, 0, 0, 0])
    with pytest.raises(ValueError, match="images must be one split of the DatasetDict, got other: pass one of them"):
        as_dataset(datasets.DatasetDict({"other": table(range(2))}))

    def white(rows: dict) -> dict:
        return {
            "image": [torch.full((3, 4, 4), 255, dtype=torch.uint8) for _ in rows["id"]],
            "label": [1] * len(rows["id"]),
        }

    assert as_dataset(live["test"].with_transform(white)).images.eq(255).all()


@pytest.mark.slow
def test_evaluate_takes_them(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.utils.skip_init(nn.Linear, 90, 2, bias=False))
    with torch.no_grad():
        net[1].weight.copy_(torch.arange(180.0).sin().view(2, 90))
    live = table(range(30), split="test")
    first = rhobust.evaluate(net, live, effort="quick", out=tmp_path / "live")
    live.save_to_disk(str(tmp_path / "photos"))
    second = rhobust.evaluate(net, f"hf-datasets:{tmp_path / 'photos'}", effort="quick", out=tmp_path / "named")
    base = [next(one.value for one in found.measurements if one.quantity == BASE) for found in (first, second)]
    assert base[0] == base[1]
    assert 0 < base[0] < 1
