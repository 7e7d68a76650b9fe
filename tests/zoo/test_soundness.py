"""Certificates against analytic truths: a part here, 100,000 of them in `python -m tests.zoo`."""

import numpy as np
import pytest
import torch

import tests.zoo.factory  # noqa: F401
from tests.zoo.soundness import FAMILIES, PROCEDURES, Cell, battery, by_api, verdict


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_no_certificate_is_above_the_truth(family):
    cells = [by_api(family, procedure, 1e-9, 8, 0, at_once=True) for procedure in PROCEDURES]
    cells.append(by_api(family, "fixed", 1e-9, 1, 0, at_once=False))
    assert verdict(cells) == []
    assert not any(cell.false for cell in cells)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_truth_is_what_many_samples_say(family):
    inputs = family.inputs(12, 7)
    integers = inputs.dtype == torch.uint8
    flat = inputs.flatten(1).numpy() / (255 if integers else 1)
    label, _, probability = family.truth(flat, family.sigma)
    noise = np.random.default_rng(0).standard_normal((4000, *flat.shape)) * family.sigma
    noisy = flat + noise
    noisy = np.rint(noisy * 255) / 255 if integers else noisy
    logits = family.network(torch.from_numpy(noisy.reshape(-1, flat.shape[1])).float())
    share = (logits.argmax(1).view(4000, -1).numpy() == label).mean(0)
    assert np.abs(share - probability).max() < 0.04


def test_a_false_certificate_is_noticed():
    family = FAMILIES[0]
    cell = by_api(family, "fixed", 1e-3, 40, 1, at_once=True)
    assert verdict([cell]) == []
    x = family.inputs(40, 1).numpy()
    label, radius, probability = family.truth(x, family.sigma)
    forged = Cell("forged", 1e-3)
    for known in zip(label, radius, probability, strict=True):
        forged.add((known[0], known[1] * 1.01, known[2] * 1.001), known)
    assert forged.false == 40
    assert len(verdict([forged])) == 3


@pytest.mark.slow
def test_the_battery(tmp_path):
    cells = list(battery(tmp_path, 10_000))
    assert verdict(cells) == []
