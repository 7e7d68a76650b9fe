"""Four networks as people have them, each evaluated by one Python call and by one command, timed.

    python examples/own_networks.py cnn --out demo

makes PNG files of handwritten digits, trains the network on them for a minute, saves it as its users do, and evaluates
it: the page is demo/cnn/call/report.html, and again demo/cnn/command/report.html.

cnn         a small CNN, saved by torch.save
forgotten   the same, but trained on normalised images, and nobody says so: the diagnosis does
vit         a ViT of `transformers`, built from a config and saved to a folder (needs transformers)
timm        a ResNet of `timm`, saved by torch.save (needs timm)
"""

import argparse
import os
import resource
import shlex
import subprocess
import sys
import time
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

import rhobust
from rhobust.data import to_unit
from rhobust.models import Normalised

SIDE = 32
SIGMA = 0.25
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
CODE = '''
"""The network's own file, as its author has it."""

from torch import nn


def make():
    layers = []
    for before, after in [(3, 16), (16, 32), (32, 64)]:
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
'''


def write_photos(folder: Path) -> None:
    """The embedded digits as colour PNG files, one folder per class, a part to train on and one to test on."""
    for split in ("train", "test"):
        digits = rhobust.load("digits", split)
        for number, (image, label) in enumerate(zip(digits.images, digits.labels.tolist(), strict=True)):
            place = folder / split / f"digit-{label}"
            place.mkdir(parents=True, exist_ok=True)
            large = Image.fromarray(image[0].numpy()).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
            large.convert("RGB").save(place / f"{number:04}.png")


def fit(network: nn.Module, data: rhobust.Dataset, *, epochs: int) -> None:
    """A plain training loop under noise; the network takes images in [0, 1]."""
    rng = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    x, y = to_unit(data.images), data.labels
    network.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=rng).split(50):
            noisy = x[batch] + SIGMA * torch.randn(x[batch].shape, generator=rng)
            output = network(noisy)
            loss = F.cross_entropy(getattr(output, "logits", output), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    network.eval()


def prepare(kind: str, folder: Path) -> tuple[nn.Module, list[str]]:
    """The trained network, and the options by which the command finds it; it is saved in the folder."""
    torch.manual_seed(0)
    write_photos(folder / "photos")
    data = rhobust.load(str(folder / "photos"), "train")
    weights = folder / "model.pt"
    if kind in ("cnn", "forgotten"):
        (folder / "net.py").write_text(CODE)
        names: dict[str, type] = {}
        exec(CODE, names)
        network = names["make"]()
        fit(network if kind == "cnn" else Normalised(network, MEAN, STD), data, epochs=8)
        torch.save({"epoch": 8, "state_dict": network.state_dict()}, weights)
        return network, ["--model", f"{folder / 'net.py'}:make", "--weights", str(weights)]
    if kind == "vit":
        from transformers import ViTConfig, ViTForImageClassification

        config = ViTConfig(
            image_size=SIDE,
            patch_size=8,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            num_labels=10,
            id2label=dict(enumerate(data.classes)),
        )
        network = ViTForImageClassification(config)
        fit(network, data, epochs=20)
        network.save_pretrained(folder / "checkpoint")
        return network, ["--model", f"hf:{folder / 'checkpoint'}"]
    import timm

    network = timm.create_model("resnet10t", num_classes=10)
    # `timm` says how images are normalised for this network, and `rhobust` asks it.
    normalised = Normalised(network, network.pretrained_cfg["mean"], network.pretrained_cfg["std"])
    fit(normalised, data, epochs=5)
    torch.save(network.state_dict(), weights)
    return normalised, ["--model", "timm:resnet10t", "--weights", str(weights)]


def took(start: tuple[float, float], children: bool) -> str:
    """Wall and user seconds since a start."""
    wall, user = clock(children)
    return f"{wall - start[0]:.0f} s, {user - start[1]:.0f} s of a CPU core"


def clock(children: bool) -> tuple[float, float]:
    """Wall and user seconds, of this process or of those that it has started."""
    return time.perf_counter(), resource.getrusage(
        resource.RUSAGE_CHILDREN if children else resource.RUSAGE_SELF
    ).ru_utime


def main() -> None:
    """Make the network, evaluate it twice, and say how long that took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["cnn", "forgotten", "vit", "timm"])
    parser.add_argument("--out", type=Path, default=Path("demo"))
    asked = parser.parse_args()
    folder = asked.out / asked.kind
    start = clock(children=False)
    network, named = prepare(asked.kind, folder)
    print(f"made in {took(start, children=False)}", flush=True)

    test = rhobust.load(str(folder / "photos"), "test")
    images, labels = test.images.numpy(), test.labels.numpy()  # any arrays, loaders or folders will do
    start = clock(children=False)
    result = rhobust.evaluate(network, images, labels, sigma=SIGMA, effort="quick", out=folder / "call")
    print(f"{result}\nthe call took {took(start, children=False)}\n", flush=True)

    data = ["--data", str(folder / "photos"), "--sigma", str(SIGMA)]
    command = ["evaluate", *named, *data, "--out", str(folder / "command")]
    print(f"rhobust {shlex.join(command)}", flush=True)
    start = clock(children=True)
    subprocess.run([sys.executable, "-m", "rhobust", *command], check=True, env=os.environ)
    print(f"the command took {took(start, children=True)}")


if __name__ == "__main__":
    main()
