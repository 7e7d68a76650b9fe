"""The transport budget rho = eps^2 of a penalty gamma, and its inverse, as in the paper's Table 1."""

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
"""Factor by which the search for gamma extends its bracket."""
_WIDENINGS = 10
"""Largest number of extensions: gamma is in [4^-10, 4^10], about 1e-6 to 1e6."""


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
    """The mean squared distance of the inner maximiser at a penalty gamma; the paper's eps is its square root.

    The paper's equation for it (Section 5, "Training hyperparameters") includes the noise in the distance and so
    cannot be below d sigma^2, 30.7 on CIFAR-10, while its Table 1 has 0.92^2. Here the distance is the clean one.

    Args:
        model: The network, on the device of the data.
        data: Images of the mean; the paper uses the training set.
        gamma: Penalty per unit of squared distance.
        steps: Damped inner steps after the first one, for both losses.
        sigma: Noise of the smoothed loss, maximised by NAL's damped solver; None or 0: the base network's loss, as WRM.
        draws: Noise samples per input and step.
        limit: Largest number of images, evenly spaced in the data; default: all.
        seed: Random seed; the noise of an image does not depend on gamma, limit or batch size.
        batch_size: Images per batch.
    """
    if not isinstance(data, Dataset):
        raise ValueError(f"data must be a Dataset, got a {type(data).__name__}: rhobust.Dataset takes tensors")
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
    """The penalty gamma at which the inner maximiser has root mean square distance eps: the inverse of `rho_of`.

    The maximiser's distance decreases with the penalty gamma, so rho is decreasing in gamma if the inner steps
    converge; at small gamma they need not, and rho may be non-monotone. The search starts at 1, extends the bracket
    until eps is crossed and bisects on the logarithmic scale, with the same noise for every gamma, until
    its relative width is at most `precision`. All other arguments are those of `rho_of`.

    Raises:
        ValueError: An argument is out of range, or no gamma in [4^-10, 4^10] gives this eps.
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

    too_small = exceeds(1.0)
    factor = _FACTOR if too_small else 1 / _FACTOR
    for widening in range(_WIDENINGS):
        if exceeds(factor ** (widening + 1)) != too_small:
            break
    else:
        raise ValueError(f"eps must be in reach of the inner steps for a gamma from 4^-10 to 4^10, got {eps}")
    low, high = sorted((factor**widening, factor ** (widening + 1)))
    while high / low > 1 + precision:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return math.sqrt(low * high)
