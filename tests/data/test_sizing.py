import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rhobust.commands.predict import Predict
from rhobust.data import as_dataset, check, load
from rhobust.data.sizing import Sizing
from rhobust.evaluation import Target
from rhobust.methods import Gaussian
from rhobust.training import TrainConfig, config_from_json, config_to_json, train

SIZES = [(20, 30), (33, 16), (16, 16), (9, 40)]


def mixed(folder: Path) -> Path:
    """Test and training images of different sizes, as an ImageNet folder has."""
    rng = np.random.default_rng(0)
    for part in ("train", "val"):
        for number, (height, width) in enumerate(SIZES * 2):
            path = folder / part / f"class{number % 2}" / f"{part}{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            shape = (height, width) if number == 1 else (height, width, 3)
            Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(path)
    return folder


def test_the_shorter_side_is_resized_and_the_middle_kept() -> None:
    assert Sizing(8).size(10, 25) == (8, 20)
    assert Sizing(8).size(25, 10) == (20, 8)
    assert Sizing(8, 6).size(25, 10) == (6, 6)
    image = np.arange(35, dtype=np.uint8).reshape(1, 5, 7)
    assert Sizing(crop=3).apply(image).tolist() == image[:, 1:4, 2:5].tolist()
    assert (Sizing(5).apply(image) == image).all()
    flat = np.full((3, 12, 9), 77, np.uint8)
    assert Sizing(4, 3).apply(flat).tolist() == np.full((3, 3, 3), 77).tolist()


def test_resizing_is_pillows() -> None:
    image = np.random.default_rng(1).integers(0, 256, (3, 30, 21), np.uint8)
    wanted = Image.fromarray(image.transpose(1, 2, 0)).resize((14, 20), Image.Resampling.BILINEAR)
    assert np.array_equal(Sizing(14).apply(image), np.asarray(wanted).transpose(2, 0, 1))


@pytest.mark.parametrize("sides", [(0, None), (None, -1), (5000, None), (8, 9), (2.5, None), (True, None)])
def test_impossible_sides_are_refused(sides: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"^(resize|crop) must be [^\n]+, got"):
        Sizing(*sides)


def test_what_cannot_be_cropped_or_becomes_too_large_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must have 12 pixels per side to be cropped, got 16x9"):
        Sizing(crop=12).size(9, 16)
    with pytest.raises(ValueError, match="pixels at most"):
        Sizing(4096).size(1, 100_000)
    with pytest.raises(ValueError, match=r"val3\.png: an image must have 12 pixels per side|train3\.png"):
        load(str(mixed(tmp_path)), "test", crop=12)


def test_folders_of_mixed_sizes(tmp_path: Path) -> None:
    folder = mixed(tmp_path / "photos")
    with pytest.raises(ValueError, match="; give resize and crop"):
        load(str(folder), "test")
    with pytest.raises(ValueError, match="must have one size after resize8, got"):
        load(str(folder), "test", resize=8)
    test = load(str(folder), "test", resize=8, crop=6)
    assert (test.name, test.shape, len(test)) == ("photos-resize8-crop6", (3, 6, 6), 8)
    stored = np.asarray(Image.open(folder / "val/class0/val0.png")).transpose(2, 0, 1)
    assert any(np.array_equal(image, Sizing(8, 6).apply(stored)) for image in test.images.numpy())
    assert check(str(folder), resize=8, crop=6).shape == (3, 6, 6)


def test_the_split_does_not_depend_on_the_size(tmp_path: Path) -> None:
    for number in range(30):
        shade = np.random.default_rng(number).integers(0, 256, (12, 12), np.uint8)
        shade[:] = shade[0, 0]  # resizing keeps the shade, by which images are told apart
        shade[0, 0] = number
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.fromarray(shade).save(tmp_path / "a" / f"{number}.png")
    for split in ("train", "test"):
        whole, cropped = load(str(tmp_path), split), load(str(tmp_path), split, crop=4)
        assert torch.equal(whole.images[:, :, 4:8, 4:8], cropped.images)


def test_named_data_and_images_in_memory_are_sized_too() -> None:
    digits = load("digits", "test", resize=12, crop=10)
    assert (digits.name, digits.shape) == ("digits-resize12-crop10", (1, 10, 10))
    pictures = [Image.new("RGB", size) for size in ((20, 12), (13, 40))]
    found = as_dataset(pictures, [0, 1], resize=8, crop=8)
    assert (found.name, found.shape) == ("images-resize8-crop8", (3, 8, 8))
    assert as_dataset("digits", crop=6).shape == (1, 6, 6)
    assert as_dataset(load("digits", "test"), crop=6).name == "digits-crop6"
    with pytest.raises(ValueError, match="must be uint8 to be resized"):
        as_dataset(torch.zeros(2, 1, 8, 8), [0, 1], crop=4)
    with pytest.raises(ValueError, match="resize and crop must be left out for digits"):
        check("digits", crop=4)


def test_a_run_is_evaluated_as_it_was_trained(tmp_path: Path) -> None:
    folder = mixed(tmp_path / "photos")
    method, data = Gaussian(sigma=0.25), str(folder)
    plain = TrainConfig(method, data, "cnn-small", epochs=1)
    assert not {"resize", "crop"} & set(config_to_json(plain))
    config = TrainConfig(method, data, "cnn-small", epochs=1, resize=17, crop=16)
    assert config_from_json(config_to_json(config), "here") == config
    assert "photos-resize17-crop16-" in config.run_id
    run = train(config, tmp_path / "run", device="cpu")
    target = Target.from_run(run.folder, device="cpu", data=data)
    assert (target.data.shape, target.identity()["data"]) == ((3, 16, 16), "photos-resize17-crop16")
    other = Target.from_run(run.folder, device="cpu", data=data, resize=16, crop=16)
    assert other.identity()["data_fingerprint"] != target.identity()["data_fingerprint"]
    with pytest.raises(ValueError, match="must hold images of shape 3x16x16"):
        Target.from_run(run.folder, device="cpu", data=data, resize=9, crop=9)
    answers = Predict((run.folder, folder / "val/class0/val0.png", folder / "val/class1/val1.png"), n=10).run()
    assert len(answers["predictions"]) == 2


def test_the_folder_of_an_own_network_says_the_size(tmp_path: Path) -> None:
    folder = mixed(tmp_path / "photos")
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(48, 2))\n"
    )
    code, weights = f"{tmp_path}/net.py:make", tmp_path / "w.pt"
    torch.save({"1.weight": torch.zeros(2, 48), "1.bias": torch.zeros(2)}, weights)
    made = Target.from_weights(
        code, weights, data=str(folder), folder=tmp_path / "records", device="cpu", resize=5, crop=4
    )
    config = json.loads((tmp_path / "records/config.json").read_text())
    assert (config["resize"], config["crop"]) == (5, 4)
    again = Target.from_run(tmp_path / "records", device="cpu", trust=True)
    assert again.identity() == made.identity()
    (tmp_path / "records/config.json").write_text(json.dumps({**config, "resize": 10**9}))
    with pytest.raises(ValueError, match="resize must be a whole number of pixels"):
        Target.from_run(tmp_path / "records", device="cpu", trust=True)
