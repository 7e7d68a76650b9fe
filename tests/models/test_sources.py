import sys
import types

import pytest
import torch
from torch import nn

from rhobust.models import Normalised, build_model, load_model
from rhobust.models.sources import TakeLogits

SHAPE = {"shape": (3, 8, 8), "mean": [0.5] * 3, "deviation": [0.2] * 3, "activation": "relu", "seed": 0}


def network(num_classes=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, num_classes))


@pytest.fixture
def saved(tmp_path):
    with torch.random.fork_rng(devices=[]):
        made = network().eval()
    torch.save({"state_dict": {f"module.{name}": t for name, t in made.state_dict().items()}}, tmp_path / "w.pt")
    return made, tmp_path / "w.pt"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "neighbour_of_mine.py").write_text("SIZE = 192\n")
    (folder / "net_of_mine.py").write_text(
        "from torch import nn\nimport neighbour_of_mine\n"
        "def make(num_classes=4): return nn.Sequential(nn.Flatten(), nn.Linear(neighbour_of_mine.SIZE, num_classes))\n"
        "def any_options(**options): return make(**options)\n"
        "def strict_inside(**options):\n    assert not options or 1 / 0\n    return make()\n"
    )
    yield folder / "net_of_mine.py"
    for name in ("net_of_mine", "neighbour_of_mine"):
        sys.modules.pop(name, None)


def test_a_factory_in_a_file(mine, saved):
    made, path = saved
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    found = load_model(f"{mine}:make", path, mean=[0.5, 0.4, 0.3], std=[0.1, 0.2, 0.3])
    assert isinstance(found, Normalised)
    shift, scale = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1), torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)
    assert torch.equal(found(x), made((x - shift) / scale))
    assert not found.training
    assert load_model(f"{mine}:any_options", num_classes=7)[1].out_features == 7
    with pytest.raises(ValueError, match="must build a network, but ZeroDivisionError"):
        load_model(f"{mine}:strict_inside", num_classes=7)
    with pytest.raises(ValueError, match="mean and std must be given together"):
        load_model(f"{mine}:make", mean=[0.5] * 3)
    with pytest.raises(ValueError, match="must name a file, but there is no"):
        load_model(f"{mine.parent / 'absent.py'}:make")


class Output:
    def __init__(self, logits):
        self.logits = logits


class Classifier(nn.Module):
    def __init__(self, labels):
        super().__init__()
        self.inner = network(labels)

    def forward(self, x):
        return Output(self.inner(x))


@pytest.fixture
def hubs(monkeypatch):
    """Stand-ins for the three packages, with the calls that are made of them."""
    calls = []

    def create_model(name, pretrained=False, num_classes=4):
        calls.append(("timm", name, pretrained, num_classes))
        made = network(num_classes)
        made.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
        return made

    monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=create_model))

    class Auto:
        @staticmethod
        def from_pretrained(name, trust_remote_code):
            calls.append(("hf", name, "weights", trust_remote_code))
            return Classifier(4)

        @staticmethod
        def from_config(config, trust_remote_code):
            calls.append(("hf", config, "config", trust_remote_code))
            return Classifier(config)

    def processor(name):
        return ({"image_mean": [0.1] * 3, "image_std": [0.2] * 3, "do_normalize": name != "plain"}, {})

    monkeypatch.setitem(
        sys.modules,
        "transformers",
        types.SimpleNamespace(
            AutoModelForImageClassification=Auto,
            AutoConfig=types.SimpleNamespace(from_pretrained=lambda name, trust_remote_code, num_labels=4: num_labels),
            ImageProcessingMixin=types.SimpleNamespace(get_image_processor_dict=processor),
            utils=types.SimpleNamespace(logging=types.SimpleNamespace(disable_progress_bar=lambda: None)),
        ),
    )
    return calls


def test_hubs_build_with_their_own_normalisation(hubs, saved):
    made, path = saved
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    found = load_model("timm:small", path, num_classes=4)
    assert torch.equal(found(x), made((x - 0.5) / 0.25))
    assert load_model("timm:small").network is not None
    found = load_model("hf:someone/net")
    assert isinstance(found.network, TakeLogits)
    assert found(x).shape == (2, 4)
    assert isinstance(load_model("hf:plain"), TakeLogits)
    assert hubs == [
        ("timm", "small", False, 4),
        ("timm", "small", True, 4),
        ("hf", "someone/net", "weights", False),
        ("hf", "plain", "weights", False),
    ]


def test_a_hubs_network_can_be_trained_and_its_weights_filled_in(hubs):
    found = build_model("hf:someone/net", classes=6, **SHAPE)
    assert isinstance(found, Normalised)
    assert found(torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))).shape == (2, 6)
    assert hubs == [("hf", 6, "config", False)]


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match=r"timm: models need the package timm: python -m pip install '.\[hub\]'"):
        load_model("timm:resnet18")
    with pytest.raises(ValueError, match="model must have the form"):
        load_model("hf:")
