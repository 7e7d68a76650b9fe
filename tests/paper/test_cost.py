"""What is counted as work is what the network is asked for."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from paper.conftest import workshop_in
from rhobust.attacks import EOT
from rhobust.data import load
from rhobust.evaluation import attack_target
from rhobust.methods import ERM, NAL, STN, TRADES, WRM, AdversarialTraining, Gaussian, SmoothAdv
from rhobust.models import build_model
from rhobust.noise import BatchNoise, stream
from rhobust.paper.cost import SIZES, evaluation_work, training_work, update_cost
from rhobust.paper.estimate import estimate
from rhobust.paper.jobs import Attack, Certify, Match, Shift
from rhobust.paper.plan import SPECS, plan
from rhobust.paper.runs import run_of
from rhobust.paper.scales import SCALES
from rhobust.paper.settings import CIFAR_R, MNIST
from rhobust.progress import no_progress

METHODS = [
    ERM(),
    Gaussian(draws=2),
    STN(),
    AdversarialTraining(steps=3),
    TRADES(steps=3),
    WRM(steps=3),
    SmoothAdv(steps=3, draws=2),
]


def test_the_sizes_are_those_of_the_data():
    train, test = load("digits", "train"), load("digits", "test")
    assert SIZES["digits"] == (len(train), len(test), train.shape, train.num_classes)


class Counting(nn.Module):
    """A network that counts its calls and rows."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.calls = self.rows = 0

    def forward(self, x):
        self.calls, self.rows = self.calls + 1, self.rows + len(x)
        return self.network(x)


@pytest.mark.parametrize("method", [*METHODS, NAL(steps=3, draws=2)], ids=lambda method: type(method).__name__)
def test_an_update_asks_the_network_as_often_as_counted(method):
    network = build_model(
        "cnn-small", shape=(1, 8, 8), classes=10, mean=[0.3], deviation=[0.3], activation="elu", seed=0
    )
    model = Counting(network)
    x, y = torch.full((4, 1, 8, 8), 0.5), torch.arange(4)
    method.loss(model, x, y, BatchNoise(stream(0, "cost")))
    run = replace(run_of(SCALES["full"], SCALES["full"].stand_in(MNIST), "NAL"), method=method, epochs=1)
    work = training_work(run)
    updates = -(-60_000 // 128)
    assert work.training_calls == updates * model.calls
    # Forward passes alone: a gradient for the input doubles one, a gradient for the weights trebles it.
    assert model.rows / 4 <= work.training_rows / 60_000 <= 3 * model.rows / 4


def test_an_update_is_counted_in_forward_passes():
    # K = r = 4: 4 draws, each with 4 input gradients (2 passes) and one weight gradient (3 passes).
    assert update_cost(NAL(steps=4, draws=4)) == (5, 44)
    assert update_cost(AdversarialTraining(steps=7)) == (8, 17)
    assert update_cost(WRM(steps=15)) == (17, 35)
    assert update_cost(TRADES(steps=4)) == (6, 15)


def test_a_method_of_somebody_elses_has_no_known_cost():
    with pytest.raises(ValueError, match="method must be one of the paper's to tell its cost, got object"):
        update_cost(object())


def test_nal_costs_44_forward_passes_an_image():
    run = run_of(SCALES["full"], SCALES["full"].stand_in(CIFAR_R), "NAL")
    assert training_work(run).forward_passes == 100 * 50_000 * 44


def test_evaluations():
    run = run_of(SCALES["full"], SCALES["full"].stand_in(CIFAR_R), "NAL")
    assert evaluation_work(Certify(run, 0.1, 100_000, 500)).votes == 5e7
    assert evaluation_work(Shift(run, 0.1, (0.0,), 50)).forward_passes == 5e5
    assert evaluation_work(Match(run, "paper", 15, 2000)).rows == 2 * 2000 * 15 * 4


@pytest.mark.parametrize("restarts", [0, 1])
def test_an_attack_asks_for_as_many_gradients_as_counted(made, tiny, tmp_path, restarts):
    """Up to a factor of three: who survives is not known before."""
    run = SPECS["table-elu"](tiny).lines[0].cells[0].ours[0].job.run
    gradients = []

    class Spy(Counting):
        def forward(self, x):
            if torch.is_grad_enabled():
                gradients.append(len(x))
            return super().forward(x)

    target = workshop_in(made).target(run)
    target = replace(target, model=Spy(target.model), folder=tmp_path)
    job = Attack(
        run, EOT(steps=5, draws=2, restarts=restarts), (0.0, 0.2, 0.4), "smoothed", run.sigma, 10, 40, probe=False
    )
    attack_target(target, job.attack, job.radii, votes=job.votes, probe=False, limit=job.limit, progress=no_progress)
    work = evaluation_work(job)
    assert len(gradients) / 3 <= work.calls <= 3 * len(gradients)
    assert sum(gradients) / 3 <= work.rows / 2 <= 3 * sum(gradients)


def test_an_estimate_starts_nothing_and_knows_what_is_done(made, tiny, tmp_path):
    empty, full = (estimate(plan(["table-elu"], tiny), workshop_in(folder)) for folder in (tmp_path / "new", made))
    assert not (tmp_path / "new").exists()
    assert (empty["total"]["runs"], empty["total"]["runs_done"], empty["total"]["evaluations_done"]) == (4, 0, 0)
    assert empty["total"]["seconds"] > 0
    assert (full["total"]["runs_done"], full["total"]["evaluations_done"], full["total"]["seconds"]) == (4, 8, 0.0)
    assert full["total"]["forward_passes"] == empty["total"]["forward_passes"]
    assert [row["epochs_done"] for row in full["runs"]] == [2] * 4


def test_the_whole_is_less_than_its_parts(tiny, tmp_path):
    told = estimate(plan(["table-elu", "fig-training"], tiny), workshop_in(tmp_path))
    assert told["total"]["forward_passes"] < sum(part["forward_passes"] for part in told["work"])
