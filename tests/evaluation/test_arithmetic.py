"""Every certificate is of the network in the arithmetic that its record names."""

import numpy as np
import pytest
import torch
from torch import nn

from rhobust.certificates.passes import ROWS
from rhobust.cli import run as cli
from rhobust.data import Pairs
from rhobust.evaluation import Ascent, Certify, CertifyShift, MeasureShift, WorstCaseCurves, run
from rhobust.progress import no_progress


class Noted(nn.Module):
    """Remembers the arithmetic of every batch of the shape that certificates ask in; ascents take others."""

    def __init__(self, base):
        super().__init__()
        self.base, self.asked = base, []

    def forward(self, x):
        if len(x) == ROWS["cpu"]:
            self.asked.append("bfloat16" if torch.is_autocast_enabled("cpu") else "float32")
        return self.base(x).float()


WALKS = {
    "certify": lambda target, **more: run(Certify(n=100, **more), target, progress=no_progress),
    "certify-shift": lambda target, **more: run(CertifyShift(eps=[0.1], draws=5, **more), target, progress=no_progress),
    "curves": lambda target, **more: run(
        WorstCaseCurves(eps=[0.1], ascent=Ascent(gammas=(2.0,), steps=1), draws=5, **more), target, progress=no_progress
    ),
    "measure-shift": lambda target, **more: run(
        MeasureShift(draws=5, **more),
        target.with_pairs(Pairs("same", *[target.data.images] * 2, None)),
        progress=no_progress,
    ),
}


@pytest.mark.parametrize("name", WALKS)
def test_the_network_is_asked_in_the_arithmetic_of_the_record(wrapped, half_space, name):
    model = Noted(half_space)
    low = WALKS[name](wrapped(model), dtype="bfloat16")
    assert set(model.asked) == {low.settings["dtype"]} == {"bfloat16"}
    model.asked.clear()
    high = WALKS[name](wrapped(model))
    assert set(model.asked) == {high.settings["dtype"]} == {"float32"}
    assert low.path != high.path
    assert WALKS[name](wrapped(model), dtype="float32") == high


@pytest.mark.parametrize("name", WALKS)
def test_an_arithmetic_that_the_device_lacks_is_refused(target, name):
    with pytest.raises(ValueError, match="dtype must be float32 or bfloat16 on a cpu, got tf32"):
        WALKS[name](target, dtype="tf32")
    assert not list(target.folder.glob("*.jsonl"))


@pytest.mark.parametrize("command", ["certify", "certify-shift", "curves", "measure-shift"])
def test_the_commands_take_it(folder, capsys, command, tmp_path):
    options = [str(folder), "--limit", "1"]
    if command == "measure-shift":
        pairs = tmp_path / "pairs.npy"
        np.save(pairs, np.zeros((2, 8, 8), np.uint8))
        options = [str(pairs), str(pairs), "--run", str(folder)]
    assert cli([command, *options, "--dtype", "float16", "--device", "cpu", "--quiet"]) == 2
    assert "dtype must be float32 or bfloat16 on a cpu, got float16" in capsys.readouterr().err
