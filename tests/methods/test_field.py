"""The losses of Consistency, SmoothMix, MACER and CAT-RS, computed a second time as their authors define them."""

import math
from statistics import NormalDist

import pytest
import torch
from torch.nn import functional as F

from rhobust.methods import CATRS, MACER, Consistency, SmoothMix
from rhobust.noise import ExampleNoise


def noise_of(x, *draws):
    source = ExampleNoise(3, "n", range(len(x)))
    return [source.normal(x, count) for count in draws]


def check_gradients(value, expected, network):
    weights = list(network.parameters())
    for ours, theirs in zip(torch.autograd.grad(value, weights), torch.autograd.grad(expected, weights), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-5)
    assert value.item() == pytest.approx(expected.item(), rel=1e-4)


def test_consistency_is_the_divergence_from_the_mean_prediction(network, batch):
    x, y = batch
    (noise,) = noise_of(x, 3)
    value = Consistency(sigma=0.3, draws=3, weight=7.0).loss(network, x, y, ExampleNoise(3, "n", range(6))).value
    expected = 0
    for i in range(6):
        predictions = [network(x[i : i + 1] + 0.3 * z[i : i + 1])[0].softmax(0) for z in noise]
        mean = sum(predictions) / 3
        divergence = sum((mean * (mean / p).log()).sum() for p in predictions) / 3
        entropy = -(mean * mean.log()).sum()
        crosses = -sum(p[y[i]].log() for p in predictions) / 3
        expected = expected + (crosses + 7 * divergence + 0.5 * entropy) / 6
    check_gradients(value, expected, network)


@pytest.mark.parametrize("one_step", [False, True])
def test_smoothmix_mixes_with_an_unbounded_adversarial_example(network, batch, one_step):
    x, _ = batch
    with torch.no_grad():  # labels that the mean prediction gets right for some inputs and wrong for others
        y = (network(x).argmax(1) + torch.tensor([0, 0, 1, 0, 0, 2])) % 4
    noise, (level,) = noise_of(x, 2, 1)
    method = SmoothMix(sigma=0.2, steps=3, step_size=0.05, draws=2, weight=5.0, one_step=one_step)
    value, squared_distance = method.loss(network, x, y, ExampleNoise(3, "n", range(6)))

    path = [x]
    for _ in range(3):
        point = path[-1].clone().requires_grad_()
        mean = sum(network(point + 0.2 * z).softmax(1) for z in noise) / 2
        (gradient,) = torch.autograd.grad(-mean[range(6), y].log().sum(), point)
        length = gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        path.append((point.detach() + 0.05 * gradient / length).clamp(0, 1))
    near, worst = path[int(one_step)], path[-1]
    share = torch.tensor([NormalDist().cdf(float(one.flatten()[0])) / 2 for one in level])
    mean = sum(network(near + 0.2 * z).softmax(1) for z in noise) / 2
    right = mean.argmax(1) == y
    assert 0 < right.sum() < 6
    target = (1 - share)[:, None] * mean + share[:, None] / 4
    mixed = near + share.view(-1, 1, 1, 1) * (worst - near)
    expected = 0
    for z in noise:
        cross = F.cross_entropy(network(near + 0.2 * z), y)
        found = network(mixed + 0.2 * z).log_softmax(1)
        divergence = (target * (target.log() - found)).sum(1)
        expected = expected + (cross + 5 * (right * divergence).sum() / 6) / 2
    check_gradients(value, expected, network)
    assert torch.allclose(squared_distance, (worst - x).flatten(1).square().sum(1), rtol=1e-3)


class Fixed(torch.nn.Module):
    """Logits that do not depend on the image, for inputs of known certified radius."""

    def __init__(self, logits):
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, x):
        return self.logits.repeat(len(x) // len(self.logits), 1)


def test_macer_is_the_hinge_loss_of_the_certified_radius():
    # Right by little, wrong, right by more than the margin, right with a probability that rounds to 1.
    logits = torch.tensor([[0.3, 0.1, 0.0], [0.3, 0.1, 0.0], [1.5, 0.0, 0.0], [90.0, 0.0, 0.0]])
    network, y = Fixed(logits), torch.tensor([0, 1, 0, 0])
    x, method = torch.zeros(4, 1, 2, 2), MACER(sigma=0.5, draws=2, weight=6.0, margin=2.0, beta=4.0)
    value = method.loss(network, x, y, ExampleNoise(0, "n", range(4))).value
    value.backward()
    assert network.logits.grad.isfinite().all()
    normal, expected = NormalDist(), 0.0
    for number, (row, label) in enumerate(zip(logits.tolist(), y.tolist(), strict=True)):
        expected -= math.log(math.exp(row[label]) / sum(map(math.exp, row)) + 1e-10) / 4
        if number == 0:
            powers = [math.exp(4 * one) for one in row]
            first, second = (power / sum(powers) for power in powers[:2])
            radius = 0.5 / 2 * (normal.inv_cdf(first) - normal.inv_cdf(second))
            expected += 6 * (0.5 / 2 * 2.0 - radius) / 4
    assert value.item() == pytest.approx(expected, rel=1e-4)


def test_macer_averages_the_softmax_over_the_noise(network, batch):
    x, y = batch
    (noise,) = noise_of(x, 3)
    value = MACER(sigma=0.3, draws=3, weight=2.0, beta=3.0).loss(network, x, y, ExampleNoise(3, "n", range(6))).value
    logits = torch.stack([network(x + 0.3 * z) for z in noise])
    expected = -logits.softmax(2).mean(0)[range(6), y].log().mean()
    sharp = (3 * logits).softmax(2).mean(0)
    normal = torch.distributions.Normal(0.0, 1.0)
    for i in range(6):
        if sharp[i].argmax() == y[i]:
            best, other = sharp[i].sort(descending=True).values[:2]
            expected = expected + 2 * 0.15 * (8 - normal.icdf(best) + normal.icdf(other)) / 6
    check_gradients(value, expected, network)


def test_catrs_learns_the_easiest_copies_and_the_worst_noise_of_sure_inputs(network, batch):
    x, _ = batch
    noise, levels = noise_of(x, 3, 3)
    noise = 0.3 * noise
    with torch.no_grad():  # labels that most copies get right for some inputs and wrong for others
        predictions = torch.stack([network(x + z) for z in noise])
        y = (predictions.softmax(2).mean(0).argmax(1) + torch.tensor([0, 0, 1, 0, 0, 2])) % 4
        right = (predictions.argmax(2) == y).float().mean(0)
        mean = predictions.softmax(2).mean(0)
    method = CATRS(sigma=0.3, draws=3, weight=0.7, eps=0.5, steps=2)
    value, squared_distance = method.loss(network, x, y, ExampleNoise(3, "n", range(6)))

    expected, taken, moved = 0, [], []
    for i in range(6):
        copies = [x[i] + z[i] for z in noise]
        uniforms = [NormalDist().cdf(float(level[i].flatten()[0])) for level in levels]
        count = max(1, sum(uniform < right[i] for uniform in uniforms))
        crosses = sorted(
            (F.cross_entropy(network(copy[None]), y[i : i + 1]) for copy in copies), key=lambda one: one.item()
        )
        expected = expected + sum(crosses[:count]) / 3 / 6
        divergences = []
        for z in noise[:, i]:
            worst = z.clone()
            for _ in range(2):
                worst.requires_grad_()
                logs = network((x[i] + worst)[None])[0].log_softmax(0)
                (gradient,) = torch.autograd.grad((mean[i] * (mean[i].log() - logs)).sum(), worst)
                offset = worst.detach() + 0.5 * gradient / gradient.norm() - z
                worst = z + offset * min(1.0, 0.5 / offset.norm().item())
                worst = z.mean() + (worst - worst.mean()) / worst.square().mean().sqrt() * z.square().mean().sqrt()
            moved.append((worst - z).square().sum().item())
            logs = network((x[i] + worst)[None])[0].log_softmax(0)
            divergences.append((mean[i] * (mean[i].log() - logs)).sum())
        if count == 3:
            expected = expected + 0.7 * max(divergences, key=lambda one: one.item()) / 6
        taken.append(count)
    assert min(taken) == 1
    assert max(taken) == 3
    check_gradients(value, expected, network)
    assert torch.allclose(squared_distance, torch.tensor(moved).view(6, 3).mean(1), rtol=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Consistency(draws=1), "draws must be >= 2, got 1"),
        (lambda: Consistency(weight=0), "weight must be > 0, got 0"),
        (lambda: SmoothMix(steps=0), "steps must be >= 1, got 0"),
        (lambda: SmoothMix(step_size=0), "step_size must be > 0, got 0"),
        (lambda: MACER(beta=0), "beta must be > 0, got 0"),
        (lambda: MACER(margin=-1), "margin must be > 0, got -1"),
        (lambda: CATRS(steps=0), "steps must be >= 1, got 0"),
        (lambda: CATRS(eps=0), "eps must be > 0, got 0"),
    ],
)
def test_bad_hyper_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
