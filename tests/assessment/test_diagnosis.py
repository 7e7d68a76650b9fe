"""Networks with one known defect each: the diagnosis must name it, and nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import rhobust
from rhobust.assessment.diagnosis import (
    Finding,
    _best_change,
    _leaves_chance,
    diagnose_accuracy,
    first_look,
    matched_accuracy,
)
from rhobust.data import to_unit
from rhobust.models import Normalised


def fitted(change, seed=0):
    """Random features and ridge regression on changed digits: a network that expects exactly this change."""
    data = rhobust.load("digits", "train")
    x, y = change(to_unit(data.images)).flatten(1), data.labels
    rng = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        hidden, out = nn.Linear(64, 256), nn.Linear(256, 10)
    scale = x.std()
    with torch.no_grad():
        hidden.weight.copy_(torch.randn(256, 64, generator=rng) / (8 * scale))
        hidden.bias.copy_(torch.randn(256, generator=rng) - hidden.weight @ x.mean(0))
        features = hidden(x).relu()
        gram = features.T @ features + 3.0 * torch.eye(256)
        out.weight.copy_(torch.linalg.solve(gram, features.T @ nn.functional.one_hot(y, 10).float()).T)
        out.bias.zero_()
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), out).eval()


@pytest.fixture(scope="module")
def digits():
    return rhobust.load("digits", "test")


def causes(network, data, under_noise=None):
    target = rhobust.Target(network, data, sigma=0.25)
    with torch.no_grad():
        accuracy = float((network(to_unit(data.images)).argmax(1) == data.labels).float().mean())
    found = diagnose_accuracy(target, accuracy=accuracy, under_noise=under_noise)
    return accuracy, found


def test_nothing_is_wrong(digits):
    accuracy, found = causes(fitted(lambda x: x), digits)
    assert accuracy > 0.9
    assert found == []


@pytest.mark.parametrize(
    ("change", "cause", "remedy"),
    [
        (lambda x: (x - 0.5) / 0.5, "normalisation", "--mean 0.5 --std 0.5"),
        (lambda x: (x - 0.1307) / 0.3081, "normalisation", "--mean 0.1307 --std 0.3081"),
        (lambda x: 255 * x, "value range", "--std 0.00392157"),
        (lambda x: 1 - x, "value range", "255 - x"),
    ],
)
def test_a_change_of_the_inputs_is_named_with_its_option(digits, change, cause, remedy):
    accuracy, found = causes(fitted(change), digits)
    assert accuracy < 0.5
    assert [one.cause for one in found] == [cause]
    assert remedy in str(found[0])


def test_a_normalisation_too_many(digits):
    accuracy, found = causes(Normalised(fitted(lambda x: x), [0.9], [0.1]), digits)
    assert accuracy < 0.5
    assert [one.cause for one in found] == ["normalisation"]
    assert "Leave mean and std out" in found[0].remedy


@pytest.mark.parametrize(
    ("given", "cause", "remedy"),
    [
        (([0.9], [0.1]), "normalisation", "--mean 0.1307 --std 0.3081"),
        (([33.3285], [78.5655]), "value range", "--mean 0.1307 --std 0.3081"),
    ],
    ids=["another", "of 0 to 255"],
)
def test_a_wrong_normalisation_gets_the_one_to_pass_in_its_place(digits, given, cause, remedy):
    network = fitted(lambda x: (x - 0.1307) / 0.3081)
    accuracy, found = causes(Normalised(network, *given), digits)
    assert accuracy < 0.5
    assert [one.cause for one in found] == [cause]
    assert remedy in found[0].remedy
    values = [float(one) for one in found[0].remedy.rstrip(".").split() if one[0].isdigit()]
    with torch.no_grad():
        logits = Normalised(network, values[:1], values[1:])(to_unit(digits.images))
    assert float((logits.argmax(1) == digits.labels).float().mean()) > 0.9


def test_another_order_of_the_classes(digits):
    renamed = replace(digits, labels=(digits.labels + 3) % 10)
    accuracy, found = causes(fitted(lambda x: x), renamed)
    assert accuracy < 0.1
    assert [one.cause for one in found] == ["class order"]
    assert "output 0 is right for class 3" in found[0].text


def test_untrained_weights(digits):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    _, found = causes(network, digits)
    assert [one.cause for one in found] == ["weights"]
    assert "chance is 10.0%" in found[0].text


def test_one_image_that_is_wrong(digits):
    network = fitted(lambda x: x)
    one = replace(digits.select([0]), labels=(digits.labels[:1] + 1) % 10)
    accuracy, found = causes(network, one)
    assert accuracy == 0
    assert [finding.cause for finding in found] == ["weights"]


def test_a_network_that_was_not_trained_for_noise(digits):
    _, found = causes(fitted(lambda x: x), digits, under_noise=0.4)
    assert [one.cause for one in found] == ["noise"]
    assert "it seems not to be trained for this noise" in found[0].text, "nobody said what it was trained for"
    assert "rhobust train" in found[0].remedy


def test_a_run_on_the_data_of_its_training_was_trained_for_its_images_and_for_its_noise(digits):
    noisy = rhobust.Target(fitted(lambda x: x), digits, sigma=0.25, trained_sigma=0.25)
    assert diagnose_accuracy(noisy, accuracy=0.95, under_noise=0.4) == []
    other = replace(noisy, trained_sigma=0.12)
    [finding] = diagnose_accuracy(other, accuracy=0.95, under_noise=0.4)
    assert finding.cause == "noise"
    assert "it was not trained for this noise" in finding.text
    target = rhobust.Target(fitted(lambda x: 255 * x), digits, published_split=True)
    assert "value range" not in [one.cause for one in diagnose_accuracy(target, accuracy=0.2, under_noise=None)]


class NeedsNoise(nn.Module):
    """Right under noise, and lost without it, as networks with batch normalisation that never saw a clean image."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        noisy = (x[:, :, 1:] - x[:, :, :-1]).abs().mean((1, 2, 3)) > 0.33
        logits = self.network(x)
        return torch.where(noisy[:, None], logits, logits.roll(1, 1).flip(1))


def test_a_network_that_was_trained_under_noise_alone_has_no_wrong_normalisation(digits):
    rng = torch.Generator().manual_seed(0)
    network = NeedsNoise(fitted(lambda x: x + 0.25 * torch.randn(x.shape, generator=rng)))
    target = rhobust.Target(network.eval(), digits, sigma=0.25)
    found = first_look(target, range(400))
    assert found["accuracy_under_noise"] > found["base_accuracy"] + 0.3
    [finding] = found["findings"]
    assert finding["cause"] == "noise"
    assert "trained under noise alone" in finding["text"]


@pytest.mark.parametrize(("accuracy", "under_noise"), [(0.6, 0.8), (0.8, 0.6)])
def test_what_chance_explains_on_a_few_images_is_not_laid_on_the_training(digits, accuracy, under_noise):
    network = fitted(lambda x: x)
    for count, named in ((5, []), (400, ["noise"])):
        target = rhobust.Target(network, digits.select(range(count)), sigma=0.25)
        found = diagnose_accuracy(target, accuracy=accuracy, under_noise=under_noise)
        assert [finding.cause for finding in found] == named


def test_a_first_look_at_a_few_images_speaks_of_these(digits):
    """Chance on twenty images is not laid on the training, however many images there are to try causes on."""
    target = rhobust.Target(fitted(lambda x: x), digits, sigma=0.25)
    few, many = (first_look(target, range(count)) for count in (10, 100))
    for found in (few, many):
        assert found["base_accuracy"] > found["accuracy_under_noise"] + 0.15
    assert few["findings"] == []
    assert [finding["cause"] for finding in many["findings"]] == ["noise"]
    some = rhobust.Target(target.model, digits.select(range(100)), sigma=0.25)
    assert first_look(some, range(100))["findings"] == many["findings"], "numbers of other images are not among them"


def test_a_forgotten_normalisation_is_named_where_only_noisy_images_are_right(digits):
    rng = torch.Generator().manual_seed(0)
    network = fitted(lambda x: (x + 0.25 * torch.randn(x.shape, generator=rng) - 0.5) / 0.5)
    half = NeedsNoise(nn.Sequential(Normalised(nn.Identity(), [0.1], [0.5]), network))
    found = first_look(rhobust.Target(half.eval(), digits, sigma=0.25), range(400))
    assert found["accuracy_under_noise"] > found["base_accuracy"] + 0.15
    assert [finding["cause"] for finding in found["findings"]] == ["normalisation"]


def test_chance_is_not_taken_for_an_order():
    rng = np.random.default_rng(0)
    found = [matched_accuracy(rng.normal(size=(400, 10)), rng.integers(0, 10, 400), 10)[0] for _ in range(50)]
    assert np.mean(found) == pytest.approx(0.1, abs=0.02)


def test_another_order_is_found_where_the_images_take_turns_by_class():
    labels = np.arange(400) % 10
    assert matched_accuracy(np.eye(10)[(labels + 1) % 10], labels, 10)[0] == 1.0


def test_a_change_that_ends_near_chance_explains_nothing():
    assert not _leaves_chance(0.2, 300, classes=10)
    assert _leaves_chance(0.3, 300, classes=10)
    assert not _leaves_chance(0.6, 300, classes=2)


def test_a_forgotten_normalisation_is_named_even_if_half_of_the_images_are_right(digits):
    network = fitted(lambda x: (x - 0.5) / 0.5)
    half = nn.Sequential(Normalised(nn.Identity(), [0.2], [0.6]), network).eval()
    accuracy, found = causes(half, digits)
    assert 0.5 < accuracy < 0.9
    assert [one.cause for one in found] == ["normalisation"]


def test_normalisations_that_are_level_are_named_with_the_best_one():
    near, text = (0.95, "The network was trained on normalised images ({})"), "Pass it."
    found = [
        (accuracy, Finding("normalisation", near[1].format(name), text))
        for accuracy, name in ((near[0], "ImageNet"), (0.955, "CIFAR-10"), (0.5, "MNIST"))
    ]
    after, best = _best_change([*found, (0.949, Finding("value range", "0 to 255"))], 0.1)
    assert after == 0.95, "what is level does not take the place of the usual one"
    assert best.text == (
        "The network was trained on normalised images (ImageNet): accuracy 10.0% as given, 95.0% with it."
        " (95.5% with CIFAR-10: take that of the training.)"
    )
    assert _best_change(found[2:], 0.1)[1].text.endswith("50.0% with it.")


def test_a_first_look_says_base_accuracy_and_what_explains_it(digits):
    network = fitted(lambda x: (x - 0.1307) / 0.3081)
    right = rhobust.Target(Normalised(network, [0.1307], [0.3081]), digits, sigma=0.1)
    found = first_look(right, range(0, 300, 2))
    assert (found["n"], found["findings"]) == (100, [])
    assert found["base_accuracy"] >= found["accuracy_under_noise"] > 0.8
    bare = first_look(rhobust.Target(network, digits, sigma=0.25), range(20))
    assert bare["n"] == 20
    assert [one["cause"] for one in bare["findings"]] == ["normalisation"], "twenty images would not show it"
    shifted = fitted(lambda x: x * 255)
    [finding] = first_look(rhobust.Target(shifted, digits, sigma=0.25), range(100))["findings"]
    assert (finding["cause"], "255" in finding["text"]) == ("value range", True)
