"""A network of any cost whose probability of a vote is known, with images like those of published records."""

import numpy as np
import torch
from scipy import special
from torch import Tensor, nn

from benchmarks.samples import published_votes


def voting_by(network: nn.Module, count: int, side: int, sigma: float) -> tuple["LinearVotes", Tensor, np.ndarray]:
    """A network whose votes follow a linear term of the input, images for it, and the p of their first class.

    The p are evenly spaced quantiles of Beta(k + 1/2, m - k + 1/2), over all images of published records at sigma with
    k of m votes.
    """
    votes = np.concatenate([np.array(found) for key, found in published_votes().items() if key[0] == sigma])
    rng = np.random.default_rng(0)
    drawn = np.sort(rng.beta(votes[:, 0] + 0.5, votes[:, 1:3].sum(axis=1) + 0.5))
    p = drawn[((np.arange(count) + 0.5) / count * len(drawn)).astype(int)]
    size = 3 * side * side
    signs = rng.choice([-1, 1], size)
    images = rng.integers(64, 192, (count, size))
    # x . v, with v = signs / sqrt(size), becomes sigma Phi^{-1}(p): levels are added along v in a random order.
    missing = sigma * special.ndtri(p) * 255 * size**0.5 - images @ signs
    for image, levels in zip(images, missing.round().astype(int), strict=True):
        whole, rest = divmod(abs(int(levels)), size)
        image += np.sign(levels) * signs * (whole + (rng.permutation(size) < rest))
    p = special.ndtr(images @ signs / (255 * size**0.5) / sigma)
    found = torch.from_numpy(images.clip(0, 255).astype(np.uint8)).view(count, 3, side, side)
    return LinearVotes(network, torch.from_numpy(signs / size**0.5).float()), found, p


class LinearVotes(nn.Module):
    """A network of any cost whose class is 0 where a linear term of the input is positive, else 1."""

    def __init__(self, network: nn.Module, direction: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("direction", direction)

    def forward(self, x: Tensor) -> Tensor:
        term = x.float().flatten(1) @ self.direction
        # The network's own logits are computed, and too small to decide.
        others = self.network(x).float()[:, 2:].tanh() * 1e-3 - 10
        return torch.cat([torch.stack([term, -term], dim=1), others], dim=1)
