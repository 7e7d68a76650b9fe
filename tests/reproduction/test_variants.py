"""The variants of NAL that were tried do what their words say."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn

from reproduction import variant_tables, variants
from reproduction.scales import SCALES
from rhobust import bounds
from rhobust.methods import NAL, consistency_loss
from rhobust.noise import BatchNoise, stream
from rhobust.training import config_from_json, config_to_json

GPU = SCALES["gpu"]


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(6, 1, 4, 4, generator=generator), torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.fixture
def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.fixture
def counting(network):
    """The same network behind a batch norm that counts the updates; in evaluation mode it changes nothing."""
    return nn.Sequential(nn.BatchNorm2d(1, momentum=0.0, affine=False, eps=1e-12), network)


def loss_of(method, network, batch):
    return method.loss(network, *batch, BatchNoise(stream(0, "test")))


@pytest.mark.parametrize("kind", variants.METHODS, ids=lambda kind: kind.__name__)
def test_every_variant_trains(counting, batch, kind):
    network, method = counting, kind(sigma=0.1)
    before = loss_of(method, network, batch).value
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        loss_of(method, network, batch).value.backward()
        optimizer.step()
    assert loss_of(method, network, batch).value < before - 0.01
    assert all(parameter.grad is not None for parameter in network.parameters())


def test_the_budget_of_the_batch_is_spent_and_shared_unevenly(network, batch):
    squares = loss_of(variants.NalRho(sigma=0.01, rho=0.01, steps=8), network, batch).squared_distance
    assert 0.8 * 0.01 < squares.mean() <= 0.01 * (1 + 1e-5)  # the limits 0 and 1 of pixels may cost some
    assert squares.max() > 1.2 * squares.min()


def test_an_annealed_penalty_lets_inputs_be_perturbed_further_and_further(network, counting, batch):
    method = variants.NalAnnealed(sigma=0.01, gamma=0.5, first=50.0, updates=10)

    def moves(count):
        return [loss_of(method, counting, batch).squared_distance.mean().item() for _ in range(count)]

    moved, state = moves(5), copy.deepcopy(counting.state_dict())
    moved += moves(7)
    assert all(later > earlier for earlier, later in itertools.pairwise(moved[:11]))
    counting.load_state_dict(state)
    assert moves(7) == moved[5:], "an interrupted run continues with its penalty"
    settled = loss_of(NAL(sigma=0.01, gamma=0.5), network, batch).squared_distance.mean().item()
    assert moved[11] == pytest.approx(settled, rel=1e-4)


def test_a_mixture_without_the_input_is_nal_itself(network, batch):
    mixed = loss_of(variants.NalMixed(sigma=0.1, share=0.0), network, batch)
    plain = loss_of(NAL(sigma=0.1), network, batch)
    assert torch.allclose(mixed.value, plain.value)
    assert torch.allclose(mixed.squared_distance, plain.squared_distance)


def test_a_divergence_without_weight_leaves_the_input_alone(network, batch):
    alone = loss_of(variants.NalConsistent(sigma=0.1, beta=0.0), network, batch).value
    assert torch.allclose(alone, loss_of(variants.NalMixed(sigma=0.1, share=1.0), network, batch).value)


def test_consistency_regularization_is_weighted(network, batch):
    def value(agreement):
        return loss_of(variants.GaussianSteady(0.1, agreement=agreement), network, batch).value.item()

    with torch.no_grad():
        noise = BatchNoise(stream(0, "test")).normal(batch[0], 2)
        logits = network((batch[0] + 0.1 * noise).flatten(0, 1))
    expected = consistency_loss(logits, 2, 3.0) - consistency_loss(logits, 2, 1.0)
    assert value(3.0) - value(1.0) == pytest.approx(expected.item(), abs=1e-6)


def test_inputs_that_the_network_is_sure_of_are_perturbed_along_the_margin_only(batch):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sure = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    x, _ = batch
    y = sure(x).argmax(1)
    with torch.no_grad():
        sure[1].bias.copy_(50 * (torch.arange(3) == y[0]).float())
    where = torch.full_like(y, y[0].item())
    still, moved = (
        loss_of(method(sigma=0.01, gamma=2.0), sure, (x, where)).squared_distance
        for method in (NAL, variants.NalMargin)
    )
    assert still.max() < 1e-12 < 1e-4 < moved.min()


def test_the_floored_loss_is_bounded(batch):
    class Wrong(nn.Module):
        def forward(self, x):
            return 1e3 * (torch.arange(3) == 2).float().expand(len(x), 3) + 0 * x.flatten(1).sum(1, keepdim=True)

    x, _ = batch
    value = loss_of(variants.NalFloored(floor=0.05), Wrong(), (x, torch.zeros(6, dtype=torch.int64))).value
    assert value.item() == pytest.approx(math.log(3 / 0.05), rel=1e-5)


@pytest.mark.parametrize("kappa", [0.1, 0.3, 1.0])
def test_psi_and_its_slope_are_those_of_the_bound(kappa):
    p = torch.tensor([0.01, 0.1, 0.3, 0.5, 0.9], requires_grad=True)
    value = variants.psi(p, kappa)
    known = bounds.psi(p.detach().double().numpy(), kappa)
    assert torch.allclose(value.double(), torch.as_tensor(known), atol=2e-3)
    (slope,) = torch.autograd.grad(value.sum(), p)
    assert torch.allclose(
        slope.double(), torch.as_tensor(bounds.psi_slope(p.detach().double().numpy(), kappa)), rtol=0.1
    )


def test_the_rows_differ_and_can_be_written_down():
    runs = variant_tables.runs()
    assert len({run.run_id for run in runs.values()}) == len(runs)
    for run in runs.values():
        assert config_from_json(config_to_json(run), "config.json") == run
    table = variant_tables.table_variants(GPU)
    assert {job.run for job in table.jobs} == set(runs.values())
    columns = {line.keys[0]: [cell.column for cell in line.cells] for line in table.lines}
    assert columns["NAL"] == columns["PGD"] == ["0", "0.5", "0.92"]
    assert columns["Psi, sigma 0.25"] == [f"certified at {radius}" for radius in ("0", "0.25", "0.5", "0.75")]


def test_every_row_is_compared_with_nal_at_its_own_noise_and_one_cycle_with_the_same_row_without():
    named = variant_tables.runs()
    pairs = {keys[0]: cells for keys, cells in variant_tables.table_variants_pairs(GPU).lines}
    assert pairs.keys() == named.keys() - {"NAL", "NAL, sigma 0.25"}
    for name, cells in pairs.items():
        plain, cycle, _ = name.partition(", one cycle")
        baseline = plain if cycle else "NAL, sigma 0.25" if "sigma 0.25" in name else "NAL"
        assert {cell.ours.job.run for cell in cells} == {named[name]}
        assert {cell.theirs.job.run for cell in cells} == {named[baseline]}
        assert [cell.ours.at for cell in cells] == [cell.theirs.at for cell in cells]


def test_one_cycle_is_compared_with_one_cycle():
    named = variant_tables.runs()
    fronts = [variant_tables.table_variants_pareto(GPU), variant_tables.table_variants_onecycle(GPU)]
    plain, cycled = ([name for name, _ in (*front.members, *front.baselines)] for front in fronts)
    assert {named[name].schedule for name in plain} == {"cosine"}
    assert {named[name].schedule for name in cycled} == {"onecycle"}
    assert sorted(plain + cycled) == sorted(name for name, run in named.items() if run.sigma in (None, 0.1))
    assert all(name.startswith("NAL") for front in fronts for name, _ in front.members)


def test_published_configs_name_the_variants_by_their_old_module():
    config = variant_tables.runs()["NAL, rho of the batch"]
    assert config_to_json(config)["method"]["kind"] == "variants:NalRho"
    assert config.run_id == "nalrho-sigma0.1-rho0.61-cifar10-resnet18-epochs10-seed0-d0ce3c73"
