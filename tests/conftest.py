"""Shared fixtures: networks with known answers, small data, and a guard on the global generators."""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from reproduction.archive import unpacked
from rhobust.data import Dataset
from rhobust.models import build_model

ROOT = Path(__file__).parent.parent


def load_script(path: str) -> ModuleType:
    """A file of this repository that is in no package: a tool, an example."""
    spec = importlib.util.spec_from_file_location(path.removesuffix(".py").replace("/", "_"), ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class HalfSpace(nn.Module):
    """Two classes split by the hyperplane w.x = c: logits (0, w.x - c)."""

    def __init__(self, normal: Tensor, offset: float) -> None:
        super().__init__()
        self.normal = nn.Parameter(normal)
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        value = x.flatten(1) @ self.normal - self.offset
        return torch.stack([torch.zeros_like(value), value], dim=1)


@pytest.fixture(autouse=True)
def _global_generators_stay_untouched() -> Iterator[None]:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
    yield
    assert torch.equal(torch_state, torch.get_rng_state()), "the global torch generator was used"
    assert np.array_equal(numpy_state, np.random.get_state()[1]), "numpy's global generator was used"  # noqa: NPY002


@pytest.fixture(scope="session")
def published() -> Iterator[Callable[..., Path]]:
    """Opens archives of `results/records` by their names: a folder whose `runs` holds all their run folders."""
    folder = ROOT / "results" / "records"
    with ExitStack() as stack:
        yield cache(lambda *names: stack.enter_context(unpacked([folder / f"{name}.tar.xz" for name in names])))


@pytest.fixture
def half_space() -> HalfSpace:
    """Class 1 where the mean of the 16 pixels exceeds one half; a unit normal, so logits are distances."""
    return HalfSpace(torch.full((16,), 0.25), 2.0)


@pytest.fixture
def grey_images() -> Dataset:
    """Forty 4x4 images, each of one grey level, labelled by the half space."""
    levels = torch.linspace(20, 235, 40).round().to(torch.uint8)
    images = levels.view(40, 1, 1, 1).expand(40, 1, 4, 4).contiguous()
    return Dataset("grey", "test", images, (levels > 127).long(), ("dark", "bright"))


@pytest.fixture
def network() -> nn.Module:
    """A small network for 8x8 images of four classes, not trained."""
    return build_model(
        "cnn-small", shape=(1, 8, 8), classes=4, mean=[0.5], deviation=[0.3], activation="elu", seed=1
    ).train()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    """Six 8x8 images of random pixels, and labels for them."""
    return torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(5)), torch.arange(6) % 4
