"""Networks that return something else than logits, or logits of an odd kind."""

from typing import Any

import torch
from torch import Tensor

from tests.zoo.cases import CERTIFYING, GRADIENTS, forward

LOGITS = "floating-point logits of shape (n, classes)"
NUMBERS = {
    "a_tuple": lambda z: (z, z),
    "a_list": lambda z: list(z),
    "a_dict": lambda z: {"logits": z},
    "none": lambda z: None,
    "a_string": lambda z: "cat",
    "a_number": lambda z: 1.0,
    "a_numpy_array": lambda z: z.detach().numpy(),
    "one_row": lambda z: z[:1],
    "one_row_without_a_batch": lambda z: z[0],
    "one_row_too_many": lambda z: torch.cat([z, z[:1]]),
    "one_row_too_few": lambda z: z[:-1],
    "all_in_one_row": lambda z: z.flatten()[None].expand(2, -1),
    "a_column": lambda z: z[:, :, None],
    "a_scalar": lambda z: z.sum(),
    "integers": lambda z: (100 * z).long(),
    "booleans": lambda z: z > 0,
    "complex_numbers": lambda z: z.to(torch.complex64),
    "sparse_logits": lambda z: z.to_sparse(),
    "meta_logits": lambda z: z.to("meta"),
    "quantised_logits": lambda z: torch.quantize_per_tensor(z.detach(), 0.1, 0, torch.quint8),
    "small_floats": lambda z: z.to(torch.float8_e4m3fn),
    "no_classes": lambda z: z[:, :0],
}
for title, change in NUMBERS.items():
    says = LOGITS if title not in ("no_classes", "one_row") else ""
    forward("refused", says=says, name=f"returns_{title}")(lambda net, x, change=change: change(net.plain(x)))

WIDTHS = {"two_classes": 2, "one_class": 1}
for title, width in WIDTHS.items():
    forward("refused", name=f"returns_{title}", otherwise={"predict": "works" if width > 1 else "refused"})(
        lambda net, x, width=width: net.plain(x)[:, :width]
    )


@forward(otherwise={"train": "refused", "audit": "differs"})
def returns_four_classes(net: Any, x: Any) -> Any:
    return torch.cat([net.plain(x), net.plain(x)[:, :1] - 9], 1)


@forward("refused", says="logits", otherwise={"train": "either", "audit": "differs"})
def returns_more_classes_each_time(net: Any, x: Any) -> Any:
    net.calls += 1
    return net.plain(x).repeat(1, net.calls)


def with_class(z: Tensor, number: int, value: float) -> Tensor:
    """The logits with one class set to a value, differentiable in the others."""
    return torch.where(torch.arange(z.shape[1]) == number, value, z)


@forward("refused")
def nan(net: Any, x: Any) -> Any:
    return net.plain(x) * torch.nan


@forward("refused")
def nan_in_one_class(net: Any, x: Any) -> Any:
    return with_class(net.plain(x), 2, torch.nan)


@forward("either")
def nan_for_bright_inputs(net: Any, x: Any) -> Any:
    z = net.plain(x)
    return torch.where(z[:, 1:2] > 0.2, torch.nan, z)


@forward("either")
def nan_from_the_fifth_call_on(net: Any, x: Any) -> Any:
    net.calls += 1
    return net.plain(x) * (torch.nan if net.calls >= 5 else 1)


@forward("either", truth="constant")
def infinite_everywhere(net: Any, x: Any) -> Any:
    return net.plain(x) * 0 + torch.inf


@forward("either")
def infinite_in_the_answer(net: Any, x: Any) -> Any:
    z = net.plain(x)
    return torch.where(z == z.amax(1, keepdim=True), torch.inf, z)


@forward("either", truth="constant")
def minus_infinite_everywhere(net: Any, x: Any) -> Any:
    return net.plain(x) - torch.inf


@forward(otherwise={"train": "either"})
def masked_by_minus_infinity(net: Any, x: Any) -> Any:
    return with_class(net.plain(x), 2, -torch.inf)


@forward()
def masked_by_a_billion(net: Any, x: Any) -> Any:
    return with_class(net.plain(x), 2, -1e9)


@forward(otherwise={"train": "either"})
def masked_by_the_smallest_float(net: Any, x: Any) -> Any:
    return with_class(net.plain(x), 2, torch.finfo(torch.float32).min)


@forward(otherwise={("attack", "transfer", "train", "curves"): "either"})
def huge_logits(net: Any, x: Any) -> Any:
    return net.plain(x) * 1e30


@forward(otherwise={("attack", "transfer", "train", "curves"): "either"})
def tiny_logits(net: Any, x: Any) -> Any:
    return net.plain(x) * 1e-30


@forward(otherwise={("attack", "transfer", "train", "curves", "audit"): "either"})
def denormal_logits(net: Any, x: Any) -> Any:
    return net.plain(x) * 1e-42


@forward("either", truth="constant")
def shifted_by_a_billion(net: Any, x: Any) -> Any:
    return net.plain(x) + 1e9


@forward(otherwise={"audit": "differs"}, truth="constant")
def constant_logits(net: Any, x: Any) -> Any:
    return net.plain(x) * 0


@forward(otherwise={(*GRADIENTS,): "refused", "audit": "differs"}, truth="constant")
def constant_without_a_graph(net: Any, x: Any) -> Any:
    return torch.zeros(len(x), 3)


@forward(otherwise={GRADIENTS: "refused"})
def detached_logits(net: Any, x: Any) -> Any:
    return net.plain(x).detach()


@forward(otherwise={GRADIENTS: "refused"})
def one_hot_answers(net: Any, x: Any) -> Any:
    return torch.nn.functional.one_hot(net.plain(x).argmax(1), 3).float()


@forward()
def double_logits(net: Any, x: Any) -> Any:
    return net.plain(x).double()


@forward(otherwise={CERTIFYING: "either"})
def half_logits(net: Any, x: Any) -> Any:
    return net.plain(x).half()


@forward(otherwise={CERTIFYING: "either"})
def bfloat16_logits(net: Any, x: Any) -> Any:
    return net.plain(x).bfloat16()


@forward(otherwise={"audit": "differs"}, truth="constant")
def expanded_logits(net: Any, x: Any) -> Any:
    return net.plain(x)[:, :1].expand(-1, 3)


@forward()
def transposed_logits(net: Any, x: Any) -> Any:
    return net.plain(x).T.contiguous().T


class Wrapped(torch.Tensor):
    """A subclass of tensors."""


@forward()
def logits_of_a_subclass(net: Any, x: Any) -> Any:
    return net.plain(x).as_subclass(Wrapped)


@forward(otherwise={GRADIENTS: "either"})
def the_same_memory_each_time(net: Any, x: Any) -> Any:
    if getattr(net, "memory", None) is None or len(net.memory) != len(x) or torch.is_grad_enabled():
        net.memory = torch.zeros(len(x), 3)
    return net.memory.copy_(net.plain(x))
