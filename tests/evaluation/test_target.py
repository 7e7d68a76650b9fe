"""A folder's records are about one network, also where the user's code changes and the weights do not."""

import json
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import rhobust
from evaluation.networks import Randomised
from rhobust.attacks import PGD
from rhobust.certificates import BatchDependenceError
from rhobust.evaluation import (
    Attack,
    Certify,
    CertifyShift,
    Target,
    Transfer,
    WorstCaseCurves,
    run,
    transfer_matrix,
)
from rhobust.evaluation.own_network import fixed_logits
from rhobust.methods import ERM
from rhobust.progress import no_progress
from rhobust.records import ANSWERS, record_paths
from rhobust.training import TrainConfig, train

CPU = torch.device("cpu")


class Scaled(nn.Module):
    def __init__(self, network, by):
        super().__init__()
        self.network, self.by = network, by

    def forward(self, x):
        return self.by * self.network(x)


@pytest.fixture
def own(target):
    return replace(target, factory="mine:make")


def test_a_network_whose_code_changed_is_refused(own):
    own.check_unchanged()
    own.check_unchanged()
    replace(own, model=Scaled(own.model, 1.00001)).check_unchanged()
    with pytest.raises(ValueError, match="must hold records of one network, but half-space answers otherwise"):
        replace(own, model=Scaled(own.model, 1.001)).check_unchanged()
    with pytest.raises(ValueError, match="its code, weights or normalisation were changed"):
        replace(own, model=Scaled(own.model, 1.001), model_hash="1" * 16).check_unchanged()
    # The same function from another file.
    with pytest.raises(ValueError, match="but the weights of half-space have another hash than those"):
        replace(own, model_hash="1" * 16).check_unchanged()


class Masking(nn.Module):
    """A network with a common offset and a third class that is never chosen."""

    def __init__(self, network, mask, *, by=1.0, offset=0.0):
        super().__init__()
        self.network, self.mask, self.by, self.offset = network, mask, by, offset

    def forward(self, x):
        logits = self.by * self.network(x) + self.offset
        return torch.cat([logits, torch.full((len(x), 1), self.mask)], dim=1)


@pytest.mark.parametrize("mask", [-torch.inf, -1e9, -1e5, 0.0], ids=str)
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_neither_a_mask_nor_an_offset_hides_a_change(own, mask, offset):
    replace(own, model=Masking(own.model, mask, offset=offset)).check_unchanged()
    replace(own, model=Masking(own.model, mask, offset=offset)).check_unchanged()
    for changed in (
        Masking(own.model, mask, by=-1.0, offset=offset),
        Masking(own.model, mask, by=1.2, offset=offset),
        Masking(own.model, 2 * mask - 1, offset=offset),
        Masking(own.model, torch.nan, offset=offset),
    ):
        if changed.mask == mask == -torch.inf and changed.by == 1:
            continue
        with pytest.raises(ValueError, match="answers otherwise than the one"):
            replace(own, model=changed).check_unchanged()


def test_an_offset_alone_is_no_other_classifier(own):
    own.check_unchanged()
    replace(own, model=nn.Sequential(own.model, AddOne())).check_unchanged()


class AddOne(nn.Module):
    def forward(self, x):
        return x + 1


@pytest.mark.parametrize("old", [lambda logits: logits, lambda logits: None], ids=["finite", "unknown"])
def test_files_of_version_0_1_stay_readable(own, old):
    """They hold finite logits in the device's own arithmetic, or nothing."""
    own.check_unchanged()
    path = own.folder / ANSWERS
    known = json.loads(path.read_text())
    del known["dtype"]
    known["logits"] = {shape: old(logits) for shape, logits in known["logits"].items()}
    path.write_text(json.dumps(known))
    if old(0) is not None:
        replace(own, model=Scaled(own.model, 1.005)).check_unchanged()
    own.check_unchanged()
    with pytest.raises(ValueError, match="answers otherwise"):
        replace(own, model=Scaled(own.model, -1.0)).check_unchanged()


@pytest.mark.parametrize(
    "content",
    ["[]", "{}", '{"model_hash": "0", "logits": {"1x4x4": 3}}', '{"model_hash": "0", "logits": {}, "dtype": 3}'],
)
def test_a_file_that_was_changed_is_named(own, content):
    (own.folder / ANSWERS).write_text(content)
    with pytest.raises(ValueError, match=ANSWERS):
        own.check_unchanged()


class Clamped(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x.clamp(0, 1))


def test_a_change_that_only_noise_can_show_is_refused(own):
    own.check_unchanged()
    with pytest.raises(ValueError, match="must hold records of one network"):
        replace(own, model=Clamped(own.model)).check_unchanged()


@pytest.mark.parametrize(
    "evaluate",
    [
        lambda own: run(Certify(n=200, limit=2), own, progress=no_progress),
        lambda own: run(CertifyShift(eps=[0.1], limit=2), own, progress=no_progress),
        lambda own: run(WorstCaseCurves(eps=[0.1], limit=2), own, progress=no_progress),
        lambda own: run(Attack(attack=PGD(steps=1), radii=[0.0], limit=2, probe=False), own, progress=no_progress),
        lambda own: transfer_matrix(
            Transfer(attack=PGD(steps=1), radii=[0.0], limit=2),
            [replace(own, model_hash="2" * 16, factory=None), own],
            progress=no_progress,
        ),
    ],
    ids=["certify", "shift", "curves", "attack", "transfer"],
)
def test_an_old_record_is_no_answer_for_changed_code(own, evaluate):
    evaluate(own)
    with pytest.raises(ValueError, match="must hold records of one network"):
        evaluate(replace(own, model=Scaled(own.model, -1.0)))


def test_networks_of_ours_and_random_ones_are_let_through(target, own):
    target.check_unchanged()
    assert not (target.folder / ANSWERS).exists()
    for _ in range(2):
        replace(own, model=Randomised(own.model)).check_unchanged()


def test_a_folder_is_of_a_randomised_network_or_of_none(own, tmp_path):
    own.check_unchanged()
    with pytest.raises(ValueError, match="answers otherwise"):
        replace(own, model=Randomised(own.model)).check_unchanged()
    own.check_unchanged()
    other = replace(own, folder=tmp_path / "randomised")
    attack = Attack(attack=PGD(steps=1), radii=[0.0], limit=2, probe=False)
    run(attack, replace(other, model=Randomised(own.model)), progress=no_progress)
    with pytest.raises(ValueError, match="answers otherwise"):
        other.check_unchanged()


def test_a_randomised_network_that_was_refused_may_be_mended_in_its_folder(own):
    with pytest.raises(BatchDependenceError):
        run(Certify(n=200, limit=2), replace(own, model=Randomised(own.model)), progress=no_progress)
    assert (own.folder / ANSWERS).exists()
    assert not record_paths(own.folder)
    own.check_unchanged()
    with pytest.raises(ValueError, match="answers otherwise"):
        replace(own, model=Randomised(own.model)).check_unchanged()


def test_rounding_from_call_to_call_is_no_chance(own):
    shaken = replace(own, model=Randomised(nn.Sequential(own.model, AddOne()), 1e-7))
    shaken.check_unchanged()
    shaken.check_unchanged()
    assert fixed_logits(shaken.model, own.data.shape, CPU) is not None


def test_each_shape_of_images_has_its_own_answers(own, half_space):
    own.check_unchanged()
    wide = replace(own.data, images=own.data.images.repeat(1, 1, 2, 2))
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(own.data.shape[1:]), half_space)
    replace(own, data=wide, model=pooled).check_unchanged()
    with pytest.raises(ValueError, match="one network"):
        replace(own, data=wide, model=Scaled(pooled, -1)).check_unchanged()
    own.check_unchanged()


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The user's own network of three classes, its weights, and a file of images."""
    (tmp_path / "mine_answers.py").write_text(
        "from torch import nn\ndef make(): return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))\n"
        "def other(): return nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.Tanh())\n"
        "def sized(num_classes, hidden=16): return nn.Sequential(nn.Flatten(), nn.Linear(hidden, num_classes))\n"
        "def narrow(num_classes): return sized(num_classes, hidden=15)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    weight = torch.linspace(-1, 1, 48).view(3, 16)
    save_file({"1.weight": weight, "1.bias": torch.tensor([0.0, 1.0, 2.0])}, "weights.safetensors")

    def images(labels, name="images.npz"):
        np.savez(name, x_test=np.zeros((len(labels), 4, 4), np.uint8), y_test=np.array(labels))
        return name

    return images


def own_target(tmp_path, data, factory="mine_answers:make"):
    weights = tmp_path / "weights.safetensors"
    return Target.from_weights(factory, weights, data=data, folder=tmp_path / "records", device=CPU)


def test_numbered_classes_may_leave_some_of_the_networks_out(mine, tmp_path):
    target = own_target(tmp_path, mine([0, 1, 1]))
    assert target.data.classes == ("0", "1", "2")
    with pytest.raises(ValueError, match=r"must hold the classes of mine_answers:make, which returns 3 logits.*got 4"):
        own_target(tmp_path, mine([1, 2, 3], "from-one.npz"))


def test_the_weights_say_how_many_classes_there_are(mine, tmp_path):
    target = own_target(tmp_path, mine([0, 1, 1]), "mine_answers:sized")
    assert target.data.classes == ("0", "1", "2")
    with pytest.raises(ValueError, match=r"the shape \(3, 16\) and the network wants \(2, 15\)"):
        own_target(tmp_path, mine([0, 1, 1]), "mine_answers:narrow")


def test_a_folder_of_records_stands_for_its_network(mine, tmp_path):
    first = own_target(tmp_path, mine([0, 2]))
    again = Target.from_run(tmp_path / "records", device=CPU, sigma=0.5, trust=True)
    assert (again.name, again.model_hash, again.sigma) == (first.name, first.model_hash, 0.5)
    config = (tmp_path / "records" / "config.json").read_text()
    with pytest.raises(ValueError, match="one network"):
        own_target(tmp_path, "images.npz", "mine_answers:other")
    assert (tmp_path / "records" / "config.json").read_text() == config


def test_a_folder_remembers_what_its_network_needs(mine, tmp_path):
    (tmp_path / "mine_loads.py").write_text(
        "from mine_answers import make\nfrom rhobust.models import fill_weights\n"
        "def ready(): return fill_weights(make(), 'weights.safetensors')\n"
    )
    data, folder = mine([0, 2]), tmp_path / "loads"
    how = {"data": data, "folder": folder, "device": CPU, "mean": [0.5], "std": [0.25]}
    first = Target.from_weights("mine_loads:ready", sigma=0.5, **how)
    plain = own_target(tmp_path, data)
    x = torch.linspace(0, 1, 32).view(2, 1, 4, 4)
    assert torch.equal(first.model(x), plain.model((x - 0.5) / 0.25))
    assert "sigma" not in json.loads((tmp_path / "records" / "config.json").read_text())
    Target.from_weights("mine_loads:ready", **how)  # without noise: it is not forgotten
    again = Target.from_run(folder, device=CPU, trust=True)
    assert torch.equal(again.model(x), first.model(x))
    assert (again.sigma, again.model_hash) == (0.5, first.model_hash)
    again.check_unchanged()
    with pytest.raises(ValueError, match="would run mine_loads:ready"):
        Target.from_run(folder, device=CPU)
    for key, value in (("sigma", "x"), ("sigma", -1), ("mean", 3), ("std", ["a"]), ("weights", 3)):
        config = json.loads((folder / "config.json").read_text()) | {key: value}
        (tmp_path / "records" / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match=rf"config\.json.*{key}"):
            Target.from_run(tmp_path / "records", device=CPU, trust=True)


def test_a_fine_tuned_run_is_evaluated_with_the_weights_that_it_was_trained_to(mine, tmp_path):
    """Its config names the weights that the training started from, as that of a folder of records does."""
    np.savez("train.npz", x=np.eye(12, 16, dtype=np.uint8).reshape(12, 4, 4), y=np.arange(12) % 3)
    start = {"init": "mine_answers:make", "weights": str(tmp_path / "weights.safetensors")}
    config = TrainConfig(ERM(), data="train.npz", **start, epochs=1, batch_size=6)
    trained = train(config, tmp_path / "tuned", device=CPU, progress=no_progress)
    target = Target.from_run(trained.folder, device=CPU, trust=True)
    assert target.model_hash == trained.model_hash
    assert not torch.equal(dict(target.model.named_parameters())["1.weight"], torch.linspace(-1, 1, 48).view(3, 16))


def test_a_source_whose_code_changed_is_refused(mine, tmp_path, monkeypatch):
    """A record names its source by the weights, so the answer of another network would pass for that of this one."""
    np.savez("train.npz", x=np.eye(12, 16, dtype=np.uint8).reshape(12, 4, 4), y=np.arange(12) % 3)
    config = TrainConfig(ERM(), data="train.npz", model="mine_answers:make", epochs=1, batch_size=6)
    trained = train(config, tmp_path / "source", device=CPU, progress=no_progress)
    target = own_target(tmp_path, mine([0, 1, 2]))

    def attacked():
        crafted_on = target.with_source(trained.folder, model="mine_answers:make")
        return run(Attack(attack=PGD(steps=1), radii=(0.0, 0.5)), crafted_on, progress=no_progress)

    first = attacked()
    assert attacked().path == first.path
    monkeypatch.setattr("mine_answers.make", import_module("mine_answers").other)
    with pytest.raises(ValueError, match=r"source must hold records of one network, but .* answers otherwise"):
        attacked()


def test_a_folder_of_records_works_from_anywhere_if_it_is_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    place, elsewhere = tmp_path / "made", tmp_path / "elsewhere"
    place.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(place)
    Path("anywhere_net.py").write_text(
        "from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    save_file({"1.weight": torch.zeros(10, 64), "1.bias": torch.zeros(10)}, "w.safetensors")
    digits = rhobust.load("digits", "test")
    np.savez("mine.npz", x_test=digits.images[:20].numpy(), y_test=digits.labels[:20].numpy())
    Target.from_weights(
        "anywhere_net.py:make", "w.safetensors", data="mine.npz", folder="out", device="cpu", sigma=0.25
    )
    monkeypatch.chdir(elsewhere)
    target = Target.from_run("../made/out", device="cpu", trust=True, progress=no_progress)
    assert (len(target.data), target.sigma, Path.cwd()) == (20, 0.25, elsewhere)
    # What the user names leads from here, and without trust nothing is looked for elsewhere.
    np.savez("fewer.npz", x_test=digits.images[:5].numpy(), y_test=digits.labels[:5].numpy())
    target = Target.from_run("../made/out", device="cpu", trust=True, data="fewer.npz", progress=no_progress)
    assert len(target.data) == 5
    with pytest.raises(ValueError, match=r"would run anywhere_net\.py:make"):
        Target.from_run("../made/out", device="cpu", data="fewer.npz", progress=no_progress)


def test_what_is_no_data_set_is_refused(half_space, grey_images):
    with pytest.raises(ValueError, match=r"data must be a Dataset, as of as_dataset\(images, labels\) .* got a Tensor"):
        Target(half_space, grey_images.images)


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_torchs_default_dtype_makes_no_other_network(half_space, grey_images, default):
    expected, before = fixed_logits(half_space, grey_images.shape, torch.device("cpu")), torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        found = fixed_logits(half_space, grey_images.shape, torch.device("cpu"))
    finally:
        torch.set_default_dtype(before)
    assert np.array_equal(found, expected)


def test_a_noise_of_numpy_is_that_of_python(half_space, grey_images):
    target = Target(half_space, grey_images, sigma=np.float32(0.25))
    assert type(target.sigma) is float
    assert target.sigma == 0.25
