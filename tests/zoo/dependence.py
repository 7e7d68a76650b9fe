"""Networks whose answer depends on more than the input: on its batch, on earlier calls, on chance.

They are refused, or their certificates are true of the network asked alone. The plain half-space is that network, or a
constant one: the tests count a radius above the half-space's as false.
"""

import time
from typing import Any

import torch
from torch import nn

from tests.zoo.cases import CERTIFYING, Plain, add, forward

BATCH = "batch-independent"
DEPENDS: Any = {"verdict": "refused", "says": BATCH, "otherwise": {("train", "attack", "transfer", "audit"): "either"}}
"""Certificates are refused; attacks are upper bounds whatever the network does."""
PERHAPS: Any = {"verdict": "either", "says": ""}


@forward(**DEPENDS)
def minus_the_batch_mean(net: Any, x: Any) -> Any:
    return net.plain(x - x.mean(0) + 0.5)


@forward(**DEPENDS)
def the_batch_mean_alone(net: Any, x: Any) -> Any:
    return net.plain(x.mean(0, keepdim=True).expand_as(x))


@forward(**DEPENDS)
def over_the_batch_maximum(net: Any, x: Any) -> Any:
    return net.plain(x / x.max())


@forward(**DEPENDS)
def scaled_to_the_batch_range(net: Any, x: Any) -> Any:
    return net.plain((x - x.min()) / (x.max() - x.min()))


@forward(**DEPENDS)
def minus_the_first_input(net: Any, x: Any) -> Any:
    return net.plain(x - x[:1] + 0.6)


@forward(**DEPENDS)
def the_first_input_for_all(net: Any, x: Any) -> Any:
    return net.plain(x[:1]).expand(len(x), -1)


@forward(**DEPENDS)
def the_last_input_for_all(net: Any, x: Any) -> Any:
    return net.plain(x[-1:]).expand(len(x), -1)


@forward(**DEPENDS)
def the_next_input(net: Any, x: Any) -> Any:
    return net.plain(x.roll(1, 0))


@forward(**DEPENDS)
def reversed_batch(net: Any, x: Any) -> Any:
    return net.plain(x.flip(0))


@forward(**DEPENDS)
def sorted_batch(net: Any, x: Any) -> Any:
    return net.plain(x).sort(0).values


@forward(**DEPENDS)
def by_the_place_in_the_batch(net: Any, x: Any) -> Any:
    return net.plain(x + torch.linspace(-0.5, 0.5, len(x)).view(-1, 1, 1, 1))


@forward(**DEPENDS)
def pairs_share_an_answer(net: Any, x: Any) -> Any:
    z = net.plain(x)
    return 0.5 * (z + z.roll(1, 0))


@forward(**DEPENDS)
def majority_of_the_batch(net: Any, x: Any) -> Any:
    z = net.plain(x)
    return z + 10 * nn.functional.one_hot(z.argmax(1), 3).float().mean(0)


@forward(**DEPENDS)
def softmax_over_the_batch(net: Any, x: Any) -> Any:
    return net.plain(x).softmax(0)


@forward(**DEPENDS)
def batch_mean_behind_a_mask(net: Any, x: Any) -> Any:
    z = net.plain(x.mean(0, keepdim=True).expand_as(x) + 0.1 * x)
    return torch.where(torch.arange(3) == 2, -torch.inf, z)


@forward(**DEPENDS)
def batch_mean_behind_a_large_mask(net: Any, x: Any) -> Any:
    z = net.plain(x.mean(0, keepdim=True).expand_as(x) + 0.1 * x)
    return torch.where(torch.arange(3) == 2, -1e9, z)


@forward(**DEPENDS)
def batch_mean_on_a_high_plateau(net: Any, x: Any) -> Any:
    return net.plain(x.mean(0, keepdim=True).expand_as(x) + 0.1 * x) + 3e4


@forward(**DEPENDS)
def one_class_of_the_batch(net: Any, x: Any) -> Any:
    z = net.plain(x)
    return torch.cat([z[:, :1], z[:, 1:2] + 0.1 * z[:, 1:2].mean(), z[:, 2:]], 1)


@forward("either")
def by_the_size_of_the_batch(net: Any, x: Any) -> Any:
    return net.plain(x) + torch.tensor([0.0, 20.0 if len(x) > 64 else 0.0, 0.0])


class Normalising(Plain):
    """Batch norm that uses the statistics of the batch at hand, also in evaluation mode."""

    def __init__(self, mask: float | None = None) -> None:
        super().__init__()
        self.norm, self.mask = nn.BatchNorm2d(1, affine=False, track_running_stats=False), mask

    def forward(self, x: Any) -> Any:
        z = self.plain(0.2 * self.norm(x) + 0.55)
        return z if self.mask is None else torch.where(torch.arange(3) == 2, self.mask, z)


for title, mask in (("", None), ("_masked", -torch.inf), ("_masked_by_a_billion", -1e9)):
    add(f"batch_norm_of_the_batch{title}", lambda mask=mask: Normalising(mask), **DEPENDS)


class AlwaysTraining(Plain):
    """Batch norm and dropout that stay in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(1)

    def forward(self, x: Any) -> Any:
        self.norm.train()
        return self.plain(0.2 * self.norm(x) + 0.55)


add("batch_norm_always_in_training", AlwaysTraining, **DEPENDS)


@forward(**DEPENDS)
def dropout_in_evaluation(net: Any, x: Any) -> Any:
    return net.plain(nn.functional.dropout(x, 0.5, training=True))


@forward(**DEPENDS)
def noise_of_its_own(net: Any, x: Any) -> Any:
    return net.plain(x + 0.5 * torch.randn_like(x))


@forward(**DEPENDS)
def noise_of_its_own_generator(net: Any, x: Any) -> Any:
    net.generator = getattr(net, "generator", None) or torch.Generator().manual_seed(0)
    return net.plain(x + 0.5 * torch.randn(x.shape, generator=net.generator))


@forward(**DEPENDS)
def noise_after_a_seed(net: Any, x: Any) -> Any:
    torch.manual_seed(0)  # the same noise for the same place in the batch
    return net.plain(x + 0.5 * torch.randn_like(x))


@forward(**PERHAPS)
def flips_one_answer_of_twenty(net: Any, x: Any) -> Any:
    z = net.plain(x)
    return torch.where(torch.rand(len(x), 1) < 0.05, z.roll(1, 1), z)


@forward("either")
def counts_its_calls(net: Any, x: Any) -> Any:
    net.calls += 1
    return net.plain(x) + torch.tensor([0.0, 0.1 * net.calls, 0.0])


@forward(**PERHAPS)
def alternates(net: Any, x: Any) -> Any:
    net.calls += 1
    z = net.plain(x)
    return z if net.calls % 2 else z.roll(1, 1)


def late(calls: int) -> Any:
    def cheat(net: Any, x: Any) -> Any:
        net.calls += 1
        bonus = 30.0 if net.calls > calls else 0.0
        return net.plain(x) + torch.tensor([0.0, bonus, 0.0])

    return cheat


for calls in (4, 8, 12, 20):
    forward(**PERHAPS, name=f"cheats_after_{calls}_calls")(late(calls))


@forward(**PERHAPS, truth="unknown")  # from then on it is one function of one input, though not the half-space
def remembers_its_first_batch(net: Any, x: Any) -> Any:
    if getattr(net, "first", None) is None and len(x) > 1:
        net.first = x.detach().mean()
    return net.plain(x - (0.5 if getattr(net, "first", None) is None else net.first) + 0.5)


@forward(**PERHAPS)
def remembers_its_last_batch(net: Any, x: Any) -> Any:
    last, net.last = getattr(net, "last", 0.5), float(x.detach().mean())
    return net.plain(x - last + 0.5)


@forward(**PERHAPS)
def averages_over_calls(net: Any, x: Any) -> Any:
    net.mean = 0.9 * getattr(net, "mean", 0.5) + 0.1 * float(x.detach().mean())
    return net.plain(x - net.mean + 0.5)


@forward(**PERHAPS)
def adapts_its_weights(net: Any, x: Any) -> Any:
    with torch.no_grad():
        net.linear.bias[1] += 0.05
        net.linear.bias[0] -= 0.05
    return net.plain(x)


@forward(**PERHAPS)
def caches_by_shape(net: Any, x: Any) -> Any:
    net.cache = getattr(net, "cache", {})
    return net.cache.setdefault(x.shape, net.plain(x))


@forward(**PERHAPS)
def looks_at_the_clock(net: Any, x: Any) -> Any:
    return net.plain(x) + torch.tensor([0.0, 30.0 if time.perf_counter_ns() // 1_000_000 % 2 else 0.0, 0.0])


@forward(otherwise={CERTIFYING: "either"})
def depends_by_rounding(net: Any, x: Any) -> Any:
    z = net.plain(x)
    return z + 1e-8 * z.mean()


@forward(**PERHAPS)
def depends_on_padding(net: Any, x: Any) -> Any:
    empty = (x.flatten(1) == 0).all(1).any()
    return net.plain(x) + torch.tensor([0.0, 0.0 if empty else 30.0, 0.0])


@forward(**PERHAPS)
def depends_on_doubles(net: Any, x: Any) -> Any:
    doubled = len(x.flatten(1).unique(dim=0)) < len(x)
    return net.plain(x) + torch.tensor([0.0, 0.0 if doubled else 30.0, 0.0])


@forward(**PERHAPS)
def a_rare_neighbour_changes_all(net: Any, x: Any) -> Any:
    rare = (net.plain(x)[:, 1] > 1.2).any()
    return net.plain(x) + torch.tensor([0.0, 30.0 if rare else 0.0, 0.0])
