"""The eps that matches a gamma, and the gamma that matches an eps, as the paper's Table 1 pairs them."""

import math
from functools import partial

import torch
from torch import nn

from rhobust.data import Dataset, check_labels, to_unit
from rhobust.methods.base import squared_distance
from rhobust.methods.nal import NAL
from rhobust.methods.wrm import WRM
from rhobust.models.inference import frozen, output_width
from rhobust.noise import ExampleNoise
from rhobust.settings import check_count, check_number

_FACTOR = 4.0
"""How much the search for a gamma widens at once."""
_WIDENINGS = 10
"""How often it does: it looks from 4^-10 to 4^10, one millionth to one million."""


def rho_of(
    model: nn.Module,
    data: Dataset,
    gamma: float,
    *,
    steps: int = 15,
    sigma: float | None = None,
    draws: int = 4,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 500,
) -> float:
    """The mean squared distance of the inner maximiser at a gamma: the paper's eps is its square root.

    The paper's equation for it (Section 5, "Training hyperparameters") has the noise inside the distance and so
    cannot fall below d sigma^2, 30.7 on CIFAR-10, where its Table 1 has 0.92^2. Here the distance is the clean one.

    Args:
        model: The network, on the device of the data.
        data: Where to take the mean; the paper takes it over the training set.
        gamma: Price of moving an input by one unit of squared distance.
        steps: Damped inner steps after the first one, for both kinds of loss.
        sigma: Noise of the smoothed loss, maximised as damped NAL does; None or 0 for WRM's loss of the base network.
        draws: Noise draws an input and a step, where there is noise.
        limit: Images at most, spread evenly over the data.
        seed: Names the noise: an image gets the same whatever the gamma, the limit and the batch size.
        batch_size: Images looked at together.
    """
    if not isinstance(data, Dataset):
        raise ValueError(f"data must be a Dataset, got a {type(data).__name__}: rhobust.Dataset makes one of tensors")
    for name, number in (("gamma", gamma), ("sigma", 0.0 if sigma is None else sigma)):
        check_number(name, number)
    for name, count in (("steps", steps), ("limit", 1 if limit is None else limit), ("batch_size", batch_size)):
        check_count(name, count)
    check_labels(data.labels, output_width(model, data.images))
    method = NAL(sigma=sigma, gamma=gamma, steps=steps + 1, draws=draws) if sigma else WRM(gamma=gamma, steps=steps)
    indices, chosen = data.take(limit, stride=1 if limit is None else max(1, len(data) // limit))
    total = torch.zeros((), dtype=torch.float64, device=data.images.device)
    batches = (part.split(batch_size) for part in (indices, chosen.images, chosen.labels))
    with frozen(model) as network:
        for names, images, y in zip(*batches, strict=True):
            x = to_unit(images)
            if isinstance(method, NAL):
                worst = method.maximise(network, x, y, ExampleNoise(seed, "matching", names.tolist()))
            else:
                worst = method.maximise(network, x, y)
            total += squared_distance(worst, x).double().sum()
    return total.item() / len(chosen)


def gamma_of(
    model: nn.Module,
    data: Dataset,
    eps: float,
    *,
    precision: float = 0.01,
    steps: int = 15,
    sigma: float | None = None,
    draws: int = 4,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 500,
) -> float:
    """The gamma at which the inner maximiser moves inputs by eps in the root mean square: the inverse of `rho_of`.

    A maximiser goes less far the dearer the way, so rho decreases in gamma where the inner steps converge; at small
    gamma they need not, and rho may waver there. The search starts at 1, widens until eps is crossed and halves the
    bracket on the logarithmic scale; every gamma meets the same noise, so it compares like with like.

    Args:
        model: The network, on the device of the data.
        data: Where to take the mean.
        eps: Root of the mean squared distance wanted.
        precision: Width of the last bracket, in units of gamma.
        steps: See `rho_of`.
        sigma: See `rho_of`.
        draws: See `rho_of`.
        limit: See `rho_of`.
        seed: See `rho_of`.
        batch_size: See `rho_of`.

    Raises:
        ValueError: An argument is out of range, or no gamma from 4^-10 to 4^10 gives this eps.
    """
    for name, value in (("eps", eps), ("precision", precision)):
        check_number(name, value)
        if not value > 0:
            raise ValueError(f"{name} must be > 0, got {value}")
    rho = partial(
        rho_of, model, data, steps=steps, sigma=sigma, draws=draws, limit=limit, seed=seed, batch_size=batch_size
    )

    def exceeds(gamma: float) -> bool:
        return rho(gamma) > eps**2

    too_cheap = exceeds(1.0)
    factor = _FACTOR if too_cheap else 1 / _FACTOR
    for widening in range(_WIDENINGS):
        if exceeds(factor ** (widening + 1)) != too_cheap:
            break
    else:
        raise ValueError(f"eps must be in reach of the inner steps for a gamma from 4^-10 to 4^10, got {eps}")
    low, high = sorted((factor**widening, factor ** (widening + 1)))
    while high / low > 1 + precision:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return math.sqrt(low * high)
