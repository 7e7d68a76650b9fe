"""Every variant of the paper's protocol, and its comparison of testing with and without noise."""

import itertools
from collections.abc import Sequence
from typing import Any, get_args

from rhobust.attacks import EOT, PGD, AnyAttack, PaperPGD
from rhobust.attacks.base import Gradient
from rhobust.attacks.pgd import Sees
from rhobust.evaluation.attacking import attack_target
from rhobust.evaluation.judging import Scored
from rhobust.evaluation.target import Target
from rhobust.records import Record


def protocol_variants(
    target: Target, radii: Sequence[float], *, steps: Sequence[int] = (20,), votes: int = 100, **sample: Any
) -> list[Record]:
    """Attack a network under every reading of the paper's protocol: an ordinary attack record each.

    The paper leaves open what the gradient sees (the base network, or one noisy draw), whether it is normalised, and
    who answers: the base network, the network with one noise draw, or the smoothed classifier. A network without a
    noise has only the readings without it. Radii are not nested: each is attacked and answered anew. None of them is
    an honest evaluation of a smoothed classifier: that is EOT.

    Args:
        target: The network.
        radii: Increasing radii.
        steps: Gradients taken: 20 in the paper, 100 in its supplement.
        votes: Noise draws of the smoothed answer.
        sample: Passed on to `attack_target`.
    """
    sees: list[Sees] = ["base"] if target.sigma is None else ["base", "draw"]
    answers: list[tuple[Scored, int]] = [("base", 1), ("smoothed", 1), ("smoothed", votes)]
    answers = answers[:1] if target.sigma is None else answers
    return [
        attack_target(
            target,
            PaperPGD(steps=number, sees=seen, gradient=gradient),
            radii,
            scored=scored,
            votes=draws,
            nested=False,
            probe=False,
            **sample,
        )
        for number, seen, gradient, (scored, draws) in itertools.product(steps, sees, get_args(Gradient), answers)
    ]


def with_and_without_noise(
    targets: Sequence[Target],
    radii: Sequence[float],
    *,
    attack: AnyAttack | None = None,
    votes: int = 100,
    **sample: Any,
) -> list[tuple[Record, Record]]:
    """Attack each network twice, tested with noise and without: the comparison of the paper's figure 1(a).

    Args:
        targets: The networks, trained with noise or without; each must have a sigma to be tested with.
        radii: Increasing radii.
        attack: One attack for both tests; where none is given, each is attacked by what sees it: EOT on the smoothed
            classifier, PGD on the base network.
        votes: Noise draws of a smoothed answer.
        sample: Passed on to `attack_target`.

    Returns:
        For each network its record with noise and its record without.
    """
    for target in targets:
        target.smoothing()
    return [
        (
            attack_target(target, attack or EOT(), radii, scored="smoothed", votes=votes, **sample),
            attack_target(target, attack or PGD(), radii, scored="base", **sample),
        )
        for target in targets
    ]
