"""What is made of a target's network once, and shared by all that is evaluated on it: a vote counter, faster copies."""

from functools import partial

from torch import nn

from rhobust.attacks.gradient import label_losses
from rhobust.certificates import Repeats, Smoothing, VoteCounter
from rhobust.data import to_unit
from rhobust.evaluation.target import Target
from rhobust.models.folding import CompiledFastCopy, FastCopy
from rhobust.models.inference import CompiledCopy
from rhobust.user_code import UserCode

EXAMPLES = 4
"""Images on which a copy of the network is compared with it."""


def vote_counter(target: Target, smoothing: Smoothing) -> VoteCounter:
    """The vote counter over all images of the data, made (and compiled) once."""

    def make() -> VoteCounter:
        counter = VoteCounter(target.model, target.data.images.to(target.device), smoothing, Repeats())
        counter.warm_up()
        return counter

    return target.once(("counter", smoothing), make)


def fast_copy(target: Target) -> FastCopy:
    """The evaluation copy of the network in bf16, made once."""

    def make() -> FastCopy:
        with UserCode("the network must have a copy in bfloat16, or fast be False, but making it raised"):
            return FastCopy(target.model, to_unit(target.data.images[:EXAMPLES]).to(target.device))

    return target.once("fast copy", make)


def compiled_copy(target: Target) -> nn.Module:
    """The same copy, compiled for one batch size, made once; not compiled, with one warning, where it cannot be."""

    def make(copies: int = 1) -> CompiledCopy:
        compiled = CompiledFastCopy(fast_copy(target).for_noisy_copies(copies))
        return CompiledCopy(compiled, partial(label_losses, compiled), lambda step: step, make if copies == 1 else None)

    return target.once("compiled copy", make)
