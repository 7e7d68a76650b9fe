"""The checks of the paper's claims, and what they compare."""

import math
import shutil

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn

from reproduction.claims import Counterexample, Curvature, MatchEps
from reproduction.experiments import shift_certificate
from reproduction.metrics import Reader, number
from reproduction.runner import SPECS
from reproduction.scales import SCALES
from reproduction.specs import Job
from rhobust.bounds import smoothness
from rhobust.data import Dataset, load
from rhobust.evaluation import CertifyShift, Target, run
from rhobust.methods import rho_of
from rhobust.models import build_model
from rhobust.progress import no_progress
from tests.reproduction.conftest import store_in

SIGMA = 0.1


def test_theorem_2_claims_less_than_the_loss(tmp_path):
    """The distance by quantiles: on the line the optimal coupling is the monotone one."""
    job = Job(None, Counterexample(sigma=0.1, gammas=(5.0, 25.0, 1000.0)))
    record = store_in(tmp_path).perform(job)
    q = (np.arange(1_000_000) + 0.5) / 1_000_000
    atoms = np.where(q < 0.5, -1, 1) * 0.1 * np.sqrt(2 / np.pi)
    rho = np.mean((0.1 * norm.ppf(q) - atoms) ** 2)
    assert record.summary["rho"] == pytest.approx(rho, rel=1e-4)
    assert record.summary["refuted"] == 3
    assert [round(row["claimed"], 4) for row in record.rows] == [0.9682, 0.8408, -5.3662]
    assert store_in(tmp_path).read(job) == record
    assert store_in(tmp_path).perform(job) == record, "a finished one is read"


def test_on_a_network_both_sides_come_from_the_same_votes():
    networks = [line for line in SPECS["theorem2"](SCALES["full"]).lines if line.keys[0] != "two atoms"]
    assert {line.keys[2] for line in networks} == {"1.5", "5"}
    for line in networks:
        claimed, true = line.cells[0].ours
        assert isinstance(claimed.job.evaluation, CertifyShift)
        assert claimed.job == true.job


def test_a_claim_on_a_network_is_what_the_noise_leaves(made, tiny, tmp_path):
    shutil.copytree(made, tmp_path / "copy")
    config = SPECS["table-elu"](tiny).lines[0].cells[0].ours[0].job.run
    record = store_in(tmp_path / "copy").perform(shift_certificate(tiny, config, (0.0, 0.1)))
    claim = SPECS["theorem2"](tiny).lines[-1].cells[0].ours[0]
    assert number(claim, Reader(record)).value == pytest.approx(1 - claim.at * 64 * config.sigma**2)


def test_the_corollary_gives_both_sides_the_same_budget():
    for line in SPECS["corollary"](SCALES["full"]).lines:
        for cell, times in zip(line.cells, (0, 1, 2), strict=True):
            smoothed, seeing, plain = cell.ours
            assert smoothed.at == seeing.at == plain.at == times * smoothed.job.sigma
            assert smoothed.at in smoothed.job.evaluation.eps
            attacks = (plain.job.evaluation, seeing.job.evaluation)
            assert [attack.predictor for attack in attacks] == ["base", "smoothed"]
            assert all(smoothed.at in attack.radii for attack in attacks)


class Along(nn.Module):
    """Logits (0, 300 f(t)) of t, the distance of an image from mid grey along the diagonal."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        t = (x - 127 / 255).flatten(1).sum(1) / math.sqrt(x[0].numel())
        return torch.stack([torch.zeros_like(t), 300 * self.shape(t)], dim=1)


def target(model, folder, levels=(127,)):
    images = torch.tensor(levels, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()
    data = Dataset("grey", "test", images, torch.zeros(len(levels), dtype=torch.int64), ("dark", "bright"))
    return Target(model.eval(), data, SIGMA, folder=folder)


def measured(model, folder, levels=(127,), draws=20_000):
    record = run(Curvature(draws=draws), target(model, folder, levels), progress=no_progress)
    return record.rows, record.summary


@pytest.mark.parametrize("level", [121, 127, 134])
def test_the_curvature_of_a_half_space_is_that_of_the_normal_distribution(tmp_path, level):
    """The loss is 1 where t > 0: smoothed it is Phi(t / sigma), whose second derivative times sigma^2 is -u phi(u)."""
    [row], _ = measured(Along(lambda t: t), tmp_path, (level,))
    u = (level - 127) / 255 * 4 / SIGMA
    assert row["loss"] == pytest.approx(norm.cdf(u), abs=0.02)
    # Four standard errors: a false alarm in 6 of 100,000 draws of the fixed seed.
    assert abs(row["curvature"] + u * norm.pdf(u)) < 4 * row["standard_error"]
    assert row["standard_error"] < 0.01


def test_a_slab_of_half_width_sigma_attains_the_sharp_constant(tmp_path):
    [row], summary = measured(Along(lambda t: t.abs() - SIGMA), tmp_path)
    assert abs(row["curvature"] - 2 * norm.pdf(1)) < 4 * row["standard_error"]
    assert summary["largest"] == abs(row["curvature"])
    assert summary["sharp"] == float(smoothness(1.0, 1.0))


def test_a_network_that_is_certain_everywhere_does_not_bend(tmp_path):
    rows, summary = measured(Along(lambda t: 1 + 0 * t), tmp_path, (10, 200), draws=400)
    assert [row["loss"] for row in rows] == [1.0, 1.0]
    assert summary["largest"] == 0.0


def test_the_rows_do_not_depend_on_their_neighbours(tmp_path):
    model = Along(lambda t: t)
    (tmp_path / "alone").mkdir()
    both, _ = measured(model, tmp_path, (120, 127), draws=400)
    assert both[0] == measured(model, tmp_path / "alone", (120,), draws=400)[0][0]


@pytest.mark.parametrize("gamma", [0.5, 3.0])
def test_the_matched_distance_is_that_of_the_public_function(tmp_path, gamma):
    data = load("digits", "train")
    model = build_model(
        "cnn-small", shape=data.shape, classes=10, mean=[0.3], deviation=[0.3], activation="relu", seed=0
    )
    match = MatchEps(gamma=gamma, inner="damped", steps=4, draws=2, limit=20, stride=None)
    record = run(match, Target(model.eval(), data, SIGMA, folder=tmp_path), progress=no_progress)
    expected = rho_of(model, data, gamma, steps=3, sigma=SIGMA, draws=2, limit=20)
    assert record.summary["eps"] == pytest.approx(math.sqrt(expected), rel=1e-5)
    assert record.settings["split"] == "train"
    assert len(record.rows) == 20


def test_the_papers_ascent_keeps_the_mean_of_its_noise(tmp_path):
    """With no gradient from the network the iterate is x0 less the mean of r draws: sigma^2 d / r from x0."""
    layer = nn.utils.skip_init(nn.Linear, 64, 10)
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    flat = nn.Sequential(nn.Flatten(), layer)
    match = MatchEps(gamma=1.5, inner="paper", steps=15, draws=4, limit=200, stride=None)
    record = run(match, Target(flat.eval(), load("digits", "train"), SIGMA, folder=tmp_path), progress=no_progress)
    assert record.summary["eps"] ** 2 == pytest.approx(SIGMA**2 * 64 / 4, rel=0.05)
