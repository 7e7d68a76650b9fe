"""What noisy copies of one input disagree by: the consistency term of Jeong and Shin."""

from torch import Tensor

ENTROPY = 0.5
"""Weight of the mean answer's entropy, its authors' at every noise."""


def disagreement(logits: Tensor, copies: int, weight: float) -> Tensor:
    """Mean over inputs of weight * mean_i KL(q || p_i) + ENTROPY * H(q), for softmax answers p_i with mean q.

    A smoothed classifier's radius grows with the share of copies that agree, which cross-entropy alone leaves open.

    Args:
        logits: `(copies * n, classes)`, the first copy of all inputs first.
        copies: Noisy copies an input.
        weight: That of the divergence.
    """
    logs = logits.float().log_softmax(dim=1).view(copies, len(logits) // copies, -1)
    mean = logs.exp().mean(0)
    entropy = -(mean * mean.clamp_min(1e-12).log()).sum(1)
    divergence = -(mean * logs).sum(2).mean(0) - entropy
    return (weight * divergence + ENTROPY * entropy).mean()
