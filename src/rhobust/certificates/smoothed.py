"""The smoothed classifier: its inputs, prediction, and certified radii of single inputs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest
from torch import Tensor, nn

from rhobust.attacks.gradient import smoothed_logits
from rhobust.bounds.confidence import NoiseKind, corrected_alpha
from rhobust.certificates.independence import Repeats, check_batch_independence
from rhobust.certificates.sampling import VoteCounter
from rhobust.certificates.schedule import (
    AdaptiveSchedule,
    InputState,
    check_names,
    count_votes,
    run_schedule,
    vote_counts,
)
from rhobust.certificates.spec import Dtype, Smoothing
from rhobust.data import as_float, as_inputs, check_images, check_range, class_numbers
from rhobust.data.inputs import copied
from rhobust.models.inference import check_module, device_of, frozen, output_width
from rhobust.noise import BatchNoise, stream
from rhobust.proofs.plan import Plan
from rhobust.proofs.procedures import AnyProcedure, choose_procedure, corrected_plan
from rhobust.settings import check_count, check_level

_FAILURES = (RuntimeError, ValueError, TypeError, IndexError)
"""What networks raise on inputs of another shape."""


def network_inputs(model: nn.Module, x: Any) -> Tensor:
    """Images in any form of `rhobust.data.as_dataset` as a checked batch, uint8 or float in [0, 1].

    A tensor or array (n, c, h, w), and one of another shape that the network takes as a batch, is used unchanged.
    Everything else is read as images: one image becomes a batch of one, channels go first, labels are ignored. What
    is not on a GPU goes to the network's device.
    """
    return labelled_inputs(model, x, None)[0]


def labelled_inputs(model: nn.Module, x: Any, y: Any) -> tuple[Tensor, Tensor | None]:
    """As `network_inputs`, with the labels that were given or that came with the images; None without labels."""
    check_module(model)
    if isinstance(x, np.ndarray) and x.dtype.kind in "fu":
        x = copied(x)
    labels: Tensor | None = None
    if isinstance(x, Tensor) and (x.layout != torch.strided or x.device.type == "meta" or x.dim() < 2 or len(x) == 0):
        check_images(x)  # before the labels, which would be counted
    if not isinstance(x, Tensor) or not _is_batch(model, x):
        x, labels, *_ = as_inputs(x, y, subject="x")
    elif y is not None:
        labels = class_numbers(_label_tensor(y, len(x)), x)
    if x.numel() and x.device.type != "meta":
        check_range(x, "x")
    check_images(x)
    device = device_of(model, x.device) if x.device.type == "cpu" else x.device
    return x.to(device), None if labels is None else labels.to(device)


def labelled_points(model: nn.Module, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """As `labelled_inputs`; raises where there are no labels."""
    x, labels = labelled_inputs(model, x, y)
    if labels is None:
        raise ValueError(f"y must be given, one class number per input ({len(x)}), or inputs that come with labels")
    return x, labels


def _label_tensor(y: Any, count: int) -> Tensor:
    """Whole numbers in any form as a tensor."""
    if isinstance(y, Tensor):
        return y
    array = np.asarray(y)
    if array.dtype.kind not in "biu":
        given = f"{array.dtype} of shape {array.shape}"
        raise ValueError(f"y must be whole numbers, one class number per input ({count}), got {given}")
    return copied(array)


def _is_batch(model: nn.Module, x: Tensor) -> bool:
    """Whether a tensor is a batch to use unchanged."""
    if x.ndim != 4:
        return x.ndim < 2 or x.ndim > 4 or not _is_image(x) or _takes(model, x)
    return not (x.shape[1] not in (1, 3) and x.shape[3] in (1, 3) and min(x.shape[1:3]) > x.shape[3])


def _is_image(x: Tensor) -> bool:
    """Whether values and device allow to evaluate a network on x; what is wrong with others is said later."""
    return x.numel() > 0 and x.device.type != "meta" and (x.dtype == torch.uint8 or x.is_floating_point())


def _takes(model: nn.Module, x: Tensor) -> bool:
    """Whether the network returns one row of logits for each of two inputs."""
    two = x[:1].to(device_of(model, x.device), torch.float32).repeat(2, *[1] * (x.ndim - 1))
    try:
        with torch.no_grad(), frozen(model) as network:
            logits = network(two)
    except _FAILURES:
        return False
    return isinstance(logits, Tensor) and logits.ndim == 2 and len(logits) == 2


@dataclass(frozen=True, slots=True)
class Certificate:
    """Certified radius of one input, unrounded, with the counts that prove it.

    Guarantee: with probability at least 1 - alpha over the noise, the smoothed classifier
    g(x) = argmax_c P(f(x + z) = c), z ~ N(0, sigma^2 I), predicts `prediction` at every point within L2 distance
    `radius` of the input. With noise "grid" the points are 8-bit images.
    """

    prediction: int | None
    """Certified class; None if the procedure abstains."""
    radius: float
    """Certified L2 radius; 0.0 if the procedure abstains."""
    count: int
    """Votes for the selected class in the counting stage."""
    n: int
    """Noise samples of the counting stage."""
    n0: int
    """Noise samples of the selection stage; 0: the first samples of the counting stage selected the class."""
    p_lower: float
    """Lower confidence bound of the selected class's probability; 0.0 if a sequential test proved no radius, or proved
    it only by comparison with each other class."""
    alpha: float
    """Probability that the certificate is false."""
    sigma: float
    """Standard deviation of the smoothing noise."""
    noise: NoiseKind
    """"grid": exact integer noise; "float": float32 noise, for ideal Gaussian noise only."""
    seed: int
    """Random seed; with the index of the example it identifies the noise stream."""
    procedure: str
    """Certification procedure: "fixed", "sequential" or "two-stage"."""
    dtype: Dtype
    """Arithmetic of the network."""
    compiled: bool = field(repr=False)
    """Whether the network was compiled."""
    selected: int = field(repr=False)
    """The selected class, certified or not."""
    top: int = field(repr=False)
    """Its votes in the selection stage, or at the first look."""
    runner_up: int = field(repr=False)
    """The class with the most votes of the counting stage besides the selected one."""
    runner_up_votes: int = field(repr=False)
    """Its votes in the counting stage."""
    evidence: tuple[tuple[int, ...], ...] = field(repr=False)
    """Sequential test: for each proved radius, the samples, the votes for the class that proved it, and those for the
    runner-up class where classes are compared."""


def certify_inputs(
    model: nn.Module,
    images: Tensor,
    smoothing: Smoothing,
    procedure: AnyProcedure,
    *,
    indices: Sequence[int],
    alpha: float,
) -> list[Certificate]:
    """Certify each input; each certificate on its own is false with probability at most alpha.

    Raises if the model is batch-dependent (e.g. BatchNorm in training mode), keeps state or draws its own noise.

    Args:
        model: The base network, from inputs in [0, 1] to logits.
        images: uint8 or float images, on the network's device.
        smoothing: The noise and the arithmetic.
        procedure: Certification procedure.
        indices: The examples' names in their data set, one per image.
        alpha: Probability that a certificate is false.
    """
    check_names(indices, images)
    counter = VoteCounter(model, images, smoothing, Repeats())
    check_batch_independence(counter)
    return list(certify_stream(counter, procedure, list(enumerate(indices)), alpha=alpha))


def certify_stream(
    counter: VoteCounter, procedure: AnyProcedure, inputs: Sequence[tuple[int, int]], *, alpha: float
) -> Iterator[Certificate]:
    """Certify inputs, given by position in the counter's images and name; yields certificates in the same order.

    Samples of many inputs share a batch; an input that is decided leaves it and the next one joins.
    """
    plan = certification_plan(procedure, counter.smoothing, dimension=int(np.prod(counter.shape)), alpha=alpha)
    schedule = AdaptiveSchedule(inputs, plan, procedure.n0)
    for _ in run_schedule(counter, schedule):
        yield from _certificates(list(schedule.finished()), counter.smoothing, procedure, plan, alpha)


def certification_plan(procedure: AnyProcedure, smoothing: Smoothing, *, dimension: int, alpha: float) -> Plan:
    """The procedure at alpha after the sampler's correction for the n samples that carry the proof."""
    return corrected_plan(procedure, sigma=smoothing.sigma, noise=smoothing.noise, dimension=dimension, alpha=alpha)


def _certificates(
    states: list[InputState], smoothing: Smoothing, procedure: AnyProcedure, plan: Plan, alpha: float
) -> Iterator[Certificate]:
    if not states:
        return
    claims = plan.claims(vote_counts(states), [state.evidence for state in states])
    for state, proved, radius, lower in zip(states, claims.proved, claims.radius, claims.p_lower, strict=True):
        yield Certificate(
            prediction=state.chosen if proved else None,
            radius=float(radius),
            count=state.count,
            n=state.known,
            n0=procedure.n0,
            p_lower=float(lower),
            alpha=alpha,
            sigma=smoothing.sigma,
            noise=smoothing.noise,
            seed=smoothing.seed,
            procedure=procedure.name,
            dtype=smoothing.dtype,
            compiled=smoothing.compiled,
            selected=state.chosen,
            top=state.top,
            runner_up=state.runner_up[0],
            runner_up_votes=state.runner_up[1],
            evidence=tuple(state.evidence),
        )


@dataclass(frozen=True, slots=True)
class Prediction:
    """Prediction of the smoothed classifier for one input, with its two largest counts."""

    prediction: int | None
    """Predicted class; None if the vote is too close."""
    votes: tuple[tuple[int, int], ...]
    """The two classes with most votes, and their votes."""


def predict_inputs(
    model: nn.Module,
    images: Tensor,
    smoothing: Smoothing,
    *,
    indices: Sequence[int],
    n: int,
    alpha: float,
    repeats: Repeats | None = None,
) -> list[Prediction]:
    """Prediction of the smoothed classifier for each input (Cohen et al., PREDICT).

    Guarantee: with probability at most alpha a prediction is given that is not the class most probable under noise.
    Raises if inputs that are evaluated again get other logits (`Repeats`): the network is no function of one input.
    """
    check_level(alpha)
    check_count("n", n)
    level = corrected_alpha(alpha, sigma=smoothing.sigma, dimension=images[0].numel(), draws=n, noise=smoothing.noise)
    repeats = repeats or Repeats()
    counts = count_votes(model, images, smoothing, indices=indices, draws=n, purpose="predict", repeats=repeats).cpu()
    top = torch.topk(counts, 2, dim=1)
    return [
        Prediction(
            int(classes[0]) if binomtest(int(votes[0]), int(votes.sum()), 0.5).pvalue <= level else None,
            tuple(zip(classes.tolist(), votes.tolist(), strict=True)),
        )
        for votes, classes in zip(top.values, top.indices, strict=True)
    ]


class SmoothedClassifier(nn.Module):
    """A network smoothed by Gaussian noise.

    As a module its output is log mean_i softmax(f(x + z_i)): logits whose softmax is the mean softmax, so losses and
    attacks that take logits apply to the smoothed probabilities. Gradients go through the noise samples, which are
    fresh at each pass: to an attack this is a randomized classifier. Its training mode is that of the network.

    Args:
        model: Any network from inputs in [0, 1] to logits.
        sigma: Standard deviation of the noise.
        num_classes: Number of classes.
        draws: Noise samples per forward pass.
        seed: Random seed of the forward passes.
        dtype: Arithmetic of the network in `predict` and `certify`; default: bfloat16 on a GPU, float32 on a CPU.
        compiled: Whether to compile the network for them; default: on a GPU in half precision.
    """

    def __init__(
        self,
        model: nn.Module,
        sigma: float,
        num_classes: int,
        *,
        draws: int = 16,
        seed: int = 0,
        dtype: Dtype | None = None,
        compiled: bool | None = None,
    ) -> None:
        super().__init__()
        check_module(model)
        Smoothing(sigma, num_classes)
        check_count("draws", draws)
        self.model, self.sigma, self.num_classes = model, sigma, num_classes
        self.draws, self.seed, self.dtype, self.compiled = draws, seed, dtype, compiled
        self.training = model.training
        self._noise: dict[torch.device, BatchNoise] = {}

    def extra_repr(self) -> str:
        return f"sigma={self.sigma:g}, num_classes={self.num_classes}, draws={self.draws}"

    def forward(self, x: Tensor) -> Tensor:
        """Log of the mean softmax over fresh noise samples, `(n, num_classes)`."""
        x = as_float(x)
        if x.device not in self._noise:
            # Checked once: a network with other outputs would be attacked as another classifier than is certified.
            width = output_width(self.model, x)
            if width != self.num_classes:
                raise ValueError(f"the network must return {self.num_classes} logits, num_classes, got {width}")
            self._noise[x.device] = BatchNoise(stream(self.seed, "forward", device=x.device))
        return smoothed_logits(self.model, x, sigma=self.sigma, draws=self.draws, rng=self._noise[x.device])

    def predict(self, x: Any, *, n: int = 1000, alpha: float = 1e-3, seed: int = 0) -> list[int | None]:
        """Predicted class of each input by n votes, or None (abstention).

        Guarantee: with probability at most alpha a prediction is given that is not the class most probable under noise.
        An input must not have been made with knowledge of the seed, which with its place in x identifies the noise.
        Inputs come in any form that `certify` takes.
        """
        x = network_inputs(self.model, x)
        predictions = predict_inputs(self.model, x, self.smoothing(x, seed), indices=range(len(x)), n=n, alpha=alpha)
        return [prediction.prediction for prediction in predictions]

    def certify(
        self,
        x: Any,
        *,
        n0: int | None = None,
        n: int = 100_000,
        alpha: float = 1e-3,
        radii: Sequence[float] | None = None,
        tolerance: float | None = None,
        seed: int = 0,
    ) -> list[Certificate]:
        """Certified class and L2 radius of each input.

        Guarantee: each certificate is false with probability at most alpha. Inputs on the 1/255 grid get exact integer
        noise. Inputs at the same place of two calls with one seed share their noise; none may have been made with
        knowledge of it.

        Args:
            x: Inputs, uint8 or float in [0, 1]: a tensor (n, ...), or anything that `rhobust.as_dataset` takes, such as
                an array, one image, Pillow images, a DataLoader or a folder; labels are ignored.
            n0: Noise samples that select the class; default: 100, with a tolerance 500, with radii 0: the first ones
                that are counted select it.
            n: Noise samples that count its votes, at most.
            alpha: Probability that a certificate is false.
            radii: Increasing radii to test sequentially: sampling stops when each of them is decided. The class is also
                compared with each other class, which certifies more where votes are spread over several classes.
            tolerance: Expected loss of radius against n samples that is accepted, to save samples.
            seed: Random seed.
        """
        if radii is not None and tolerance is not None:
            raise ValueError("radii or tolerance must be given, got both")
        procedure, x = choose_procedure(radii=radii, tolerance=tolerance, n0=n0, n=n), network_inputs(self.model, x)
        return certify_inputs(self.model, x, self.smoothing(x, seed), procedure, indices=range(len(x)), alpha=alpha)

    def smoothing(self, x: Tensor, seed: int) -> Smoothing:
        """Noise and arithmetic of the votes at such inputs."""
        return Smoothing.for_images(
            x, self.sigma, self.num_classes, seed=seed, dtype=self.dtype, compiled=self.compiled
        )
