"""Adversarial weight perturbation against one step computed by hand."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rhobust.methods import ERM, NAL, Loss, SmoothAdv
from rhobust.noise import BatchNoise, stream
from rhobust.progress import no_progress
from rhobust.training import TrainConfig, train
from rhobust.training.distributed import ProcessGroup
from rhobust.training.step import TrainingStep, perturbed

CPU, SHARE, SIZE, RATE = torch.device("cpu"), torch.ones(()), 0.3, 0.1


def small():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ELU(), nn.Flatten(), nn.Linear(108, 4))


def step_of(model, method, size=SIZE):
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    return TrainingStep(model, method, optimizer, BatchNoise(stream(0, "noise")), ProcessGroup(), None, size)


def test_one_step_is_the_gradient_at_the_perturbed_weights(batch):
    x, y = batch
    model, by_hand = small(), small()
    step_of(model, ERM())(x, y, SHARE)

    start = {name: weight.detach().clone() for name, weight in by_hand.named_parameters()}
    F.cross_entropy(by_hand(x), y).backward()
    with torch.no_grad():
        for weight in (by_hand[0].weight, by_hand[4].weight):
            weight += SIZE * weight.norm() * weight.grad / weight.grad.norm()
    by_hand.zero_grad()
    F.cross_entropy(by_hand(x), y).backward()
    for name, weight in model.named_parameters():
        expected = start[name] - RATE * dict(by_hand.named_parameters())[name].grad
        assert torch.allclose(weight, expected, atol=1e-6), name


def test_the_weights_move_by_their_size_and_come_back_to_the_last_bit(batch):
    x, y = batch
    model = small()
    F.cross_entropy(model(x), y).backward()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with perturbed(model, SIZE):
        after = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model(x)
    for name, tensor in before.items():
        moved = (after[name] - tensor).float().norm().item()
        matrix = name in ("0.weight", "4.weight")
        assert moved == pytest.approx(SIZE * tensor.float().norm().item() if matrix else 0.0, rel=1e-5)
        assert torch.equal(model.state_dict()[name], tensor)
    (norm,) = (module for module in model if isinstance(module, nn.BatchNorm2d))
    assert norm.num_batches_tracked == 1


@pytest.mark.parametrize("method", [NAL(draws=2, agreement=4.0), SmoothAdv(draws=2, agreement=4.0)], ids=repr)
def test_the_attack_and_its_noise_are_not_made_twice(method, batch):
    """The perturbed pass is at the examples of the unperturbed weights: a step without size is one without AWP."""
    models = small(), small()
    for model, size in zip(models, (0.0, 1e-12), strict=True):
        step_of(model, method, size)(*batch, SHARE)
    for one, two in zip(*(model.parameters() for model in models), strict=True):
        assert torch.allclose(one, two, atol=1e-6)


def test_a_weight_without_gradient_stays():
    model = small()
    model[4].weight.grad = torch.zeros_like(model[4].weight)
    before = model[4].weight.clone()
    with perturbed(model, SIZE):
        assert torch.equal(model[4].weight, before)


@dataclass(frozen=True)
class OnlyOnce:
    """A user's method that returns a plain loss."""

    def loss(self, model, x, y, rng):
        return Loss(F.cross_entropy(model(x), y), x.new_zeros(len(x)))


CONFIG = TrainConfig(
    NAL(sigma=0.2, draws=2, steps=1),
    data="digits",
    model="cnn-small",
    epochs=2,
    batch_size=250,
    weight_perturbation=0.01,
    cutmix=0.5,
    average=0.9,
)


def test_a_loss_that_cannot_be_repeated_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"the method's loss must be a rhobust\.methods\.RepeatableLoss"):
        train(replace(CONFIG, method=OnlyOnce()), tmp_path / "x", device=CPU, progress=no_progress)


def test_the_whole_recipe_resumes_to_the_same_weights(tmp_path):
    whole = train(CONFIG, tmp_path / "whole", device=CPU, progress=no_progress)

    def stop(event):
        if getattr(event, "done", 0) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, tmp_path / "part", device=CPU, progress=stop)
    resumed = train(CONFIG, tmp_path / "part", device=CPU, resume=True, progress=no_progress)
    assert resumed.model_hash == whole.model_hash
    plain = train(replace(CONFIG, weight_perturbation=0.0), tmp_path / "plain", device=CPU, progress=no_progress)
    assert plain.model_hash != whole.model_hash
