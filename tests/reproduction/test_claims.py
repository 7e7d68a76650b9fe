"""The checks of the paper's claims, and what they compare."""

import numpy as np
import pytest
from scipy.stats import norm

from reproduction.evaluate import perform, read
from reproduction.jobs import Attack, Counterexample, Shift
from reproduction.plan import SPECS
from reproduction.readings import number
from reproduction.scales import SCALES
from tests.reproduction.conftest import workshop_in


def test_theorem_2_claims_less_than_the_loss(tmp_path):
    """The distance by quantiles: on the line the optimal coupling is the monotone one."""
    job = Counterexample(0.1, (5.0, 25.0, 1000.0))
    record = perform(job, workshop_in(tmp_path))
    q = (np.arange(1_000_000) + 0.5) / 1_000_000
    atoms = np.where(q < 0.5, -1, 1) * 0.1 * np.sqrt(2 / np.pi)
    rho = np.mean((0.1 * norm.ppf(q) - atoms) ** 2)
    assert record.summary["rho"] == pytest.approx(rho, rel=1e-4)
    assert record.summary["refuted"] == 3
    assert [round(row["claimed"], 4) for row in record.rows] == [0.9682, 0.8408, -5.3662]
    assert read(job, workshop_in(tmp_path)) == record
    assert perform(job, workshop_in(tmp_path)) == record, "a finished one is taken as it is"


def test_on_a_network_both_sides_come_from_the_same_votes():
    networks = [line for line in SPECS["theorem2"](SCALES["full"]).lines if line.keys[0] != "two atoms"]
    assert {line.keys[2] for line in networks} == {"1.5", "5"}
    for line in networks:
        claimed, true = line.cells[0].ours
        assert isinstance(claimed.job, Shift)
        assert claimed.job == true.job


def test_a_claim_on_a_network_is_what_the_noise_leaves(made, tiny):
    run = SPECS["table-elu"](tiny).lines[0].cells[0].ours[0].job.run
    record = perform(Shift(run, run.sigma, (0.0, 0.1), 2), workshop_in(made))
    claim = SPECS["theorem2"](tiny).lines[-1].cells[0].ours[0]
    assert number(claim, record).value == pytest.approx(1 - claim.at * 64 * run.sigma**2)


def test_the_corollary_gives_both_sides_the_same_budget():
    for line in SPECS["corollary"](SCALES["full"]).lines:
        for cell, times in zip(line.cells, (0, 1, 2), strict=True):
            smoothed, seeing, plain = cell.ours
            assert smoothed.at == seeing.at == plain.at == times * smoothed.job.sigma
            assert smoothed.at in smoothed.job.eps
            assert isinstance(plain.job, Attack)
            assert (plain.job.scored, seeing.job.scored) == ("base", "smoothed")
            assert plain.at in plain.job.radii
            assert seeing.at in seeing.job.radii
