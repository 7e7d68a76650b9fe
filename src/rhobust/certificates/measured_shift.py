"""A measured shift: the distance between images before and after a change, and the certified accuracy after it."""

from torch import Tensor, nn

from rhobust.certificates.independence import PROBES, check_batch_independence
from rhobust.certificates.repeats import Repeats
from rhobust.certificates.sampling import VoteCounter
from rhobust.certificates.shift import count_errors, infer_num_classes
from rhobust.certificates.spec import Dtype, Smoothing, noise_kind
from rhobust.data import check_images, class_numbers, pair_distances
from rhobust.proofs.measured_shift import MeasuredCertificate, MeasuredShift


def measure_shift(before: Tensor, after: Tensor, *, alpha: float = 1e-3) -> MeasuredShift:
    """Measure the distance between images before and after a change.

    Guarantee: `MeasuredShift`.

    Args:
        before: Images, uint8 or float in [0, 1], drawn independently.
        after: The same images after the change, in the same order.
        alpha: Probability that a bound is false.
    """
    check_images(before)
    check_images(after)
    return MeasuredShift.from_distances(pair_distances(before, after), dimension=before[0].numel(), alpha=alpha)


def certify_measured_shift(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    before: Tensor,
    after: Tensor,
    *,
    sigma: float,
    draws: int = 20,
    alpha: float = 1e-3,
    dtype: Dtype | None = None,
    seed: int = 0,
) -> MeasuredCertificate:
    """Certify the accuracy of the randomised smoothed classifier after a measured change of the images.

    Guarantee: `MeasuredCertificate`. The test points must be drawn independently and not used in training; the images
    before the change must be drawn independently from the same distribution, and may be the test points themselves.
    Raises if the model is batch-dependent (e.g. BatchNorm in training mode), keeps state or draws its own noise.

    Args:
        model: The base network, from inputs in [0, 1] to logits.
        x: Test inputs before the change, uint8 or float in [0, 1].
        y: Their labels.
        before: Images before the change; no labels are needed.
        after: The same images after the change.
        sigma: Standard deviation of the smoothing noise.
        draws: Noise samples per point; more are needed as eps / sigma grows.
        alpha: Probability that the statement is false.
        dtype: Arithmetic of the network; default: bfloat16 on a GPU, float32 on a CPU.
        seed: Random seed.
    """
    for images in (x, before, after):
        check_images(images)
    y = class_numbers(y, x)
    if before.shape[1:] != x.shape[1:]:
        raise ValueError(f"before must have the shape of x, {tuple(x.shape[1:])}, got {tuple(before.shape[1:])}")
    if noise_kind(after) != noise_kind(x):
        raise ValueError(f"after must hold 8-bit values where x does, got {noise_kind(after)} and {noise_kind(x)}")
    smoothing = Smoothing.for_images(x, sigma, infer_num_classes(model, x), seed=seed, dtype=dtype)
    repeats = Repeats()
    check_batch_independence(VoteCounter(model, x[:PROBES], smoothing, repeats))
    return MeasuredCertificate.from_counts(
        count_errors(model, x, y, smoothing, indices=range(len(x)), draws=draws, repeats=repeats),
        pair_distances(before, after),
        draws=draws,
        sigma=sigma,
        dimension=x[0].numel(),
        alpha=alpha,
        seed=seed,
        noise=smoothing.noise,
    )
