"""What an effort buys: which evaluations, on how many images, with how many noise samples."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from rhobust.attacks import EOT, PGD
from rhobust.certificates import ShiftClaim, Smoothing, noise_kind
from rhobust.data import CORRUPTIONS, SEVERITIES
from rhobust.evaluation import Accuracy, Attack, AttackShift, Certify, CertifyShift, Corruptions, Evaluation, Target
from rhobust.evaluation.target_cache import vote_counter
from rhobust.files import read_json, write_json

Effort = Literal["quick", "standard", "full"]
SPEED = "speed.json"
"""File of the measured speed."""
SECONDS = {"quick": 80.0, "standard": 900.0}
"""What the evaluations of an effort may take together, roughly; `full` takes what it takes."""
STEPS = (0.0, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
"""Certified radii in units of sigma."""
ATTACKED = (0.0, 1.0, 2.0)
"""Attacked radii in units of sigma: where something is certified too."""
SHIFTS = (0.0, 0.1, 0.25, 0.5, 1.0)
"""Sizes of the shift in units of sigma."""
GAMMA = (1.0, 2.0, 5.0, 10.0)
"""Factors of reweighting of an effort that is not quick."""
GRADIENT = 3.0
"""What a gradient costs, in forward passes."""
VOTES = 100
"""Noise samples that predict an attacked image."""
TAKEN = 0.5
"""The part of their noise samples that images need until their radii are decided: most need less."""
SEARCHES = 7
"""Attacks on one image in an attack on the distribution."""


def seconds_per_sample(target: Target) -> float:
    """Seconds per noise sample; measured once per folder, so that an interrupted assessment goes on with its plan."""
    path = target.folder / SPEED
    if path.exists():
        stored = read_json(path)
        if isinstance(stored, dict) and isinstance(stored.get("seconds_per_sample"), float):
            return stored["seconds_per_sample"]
    smoothing = Smoothing.on(
        target.device, target.smoothing_sigma(), target.data.num_classes, noise=noise_kind(target.data.images)
    )
    counter = vote_counter(target, smoothing)
    counter.seconds_per_sample()  # the first batch compiles, and takes memory
    seconds = counter.seconds_per_sample()
    write_json(path, {"seconds_per_sample": seconds})
    return seconds


def first_evaluation(target: Target, effort: Effort, seconds: float, seed: int) -> Accuracy:
    """The accuracy of the base network and under noise, which the diagnosis is made from."""
    accuracy = Accuracy(draws=5 if effort == "quick" else 20, stride=None, seed=seed)
    return replace(accuracy, limit=_limit(target, effort, seconds, accuracy, 0.05, 1_000, least=200))


def plan(
    target: Target,
    effort: Effort,
    seconds: float,
    seed: int,
    claim: ShiftClaim | None = None,
    gamma: Sequence[float] | None = None,
) -> list[Evaluation]:
    """The evaluations of an effort: how many images each takes follows from the network's speed.

    Args:
        target: The network and its data.
        effort: quick, standard or full.
        seconds: Time per forward pass of one image.
        seed: Random seed.
        claim: The classifier whose accuracy under shift is certified; default: one noisy vote.
        gamma: Factors by which subpopulations may be reweighted; default: none of a quick effort, else `GAMMA`.
    """
    claim = claim or ShiftClaim()
    sigma = target.smoothing_sigma()
    radii, attacked, eps = (tuple(sigma * step for step in steps) for steps in (STEPS, ATTACKED, SHIFTS))
    quick = effort == "quick"
    limit = partial(_limit, target, effort, seconds)
    n = {"quick": 2_000, "standard": 10_000, "full": 100_000}[effort]
    some: dict[str, Any] = {"stride": None, "seed": seed}
    pgd = Attack(attack=PGD(steps=10 if quick else 20), radii=attacked, probe=not quick, **some)
    eot = Attack(
        attack=EOT(steps=5 if quick else 20, draws=8 if quick else 16), radii=attacked, probe=not quick, **some
    )
    certify = Certify(radii=radii, n=n, **some)
    shift = CertifyShift(
        claim=claim,
        eps=eps,
        # The class most probable under noise needs hundreds of samples.
        draws=200 if claim.votes_per_answer is None else 20,
        gamma=tuple(gamma) if gamma is not None else None if quick else GAMMA,
        seed=seed,
    )
    corruptions = Corruptions(draws=5 if quick else 20, seed=seed)
    # The same images for both, so that no share certified on some is above what an attack leaves of others.
    same = min(limit(eot, 0.3, 100 if quick else 500), limit(certify, 0.3, 200 if quick else 1_000, least=20))
    ceiling: list[Evaluation] = []
    if not quick and claim.votes_per_answer is not None:
        attack = AttackShift(attack=eot.attack, eps=eps, votes=claim.votes_per_answer, **some)
        ceiling = [replace(attack, limit=limit(attack, 0.15, 200, least=20))]
    return [
        replace(pgd, limit=limit(pgd, 0.1, 200 if quick else 2_000)),
        replace(eot, limit=same),
        replace(certify, limit=same),
        replace(shift, limit=limit(shift, 0.1, 2_000 if quick else 10_000, least=100)),
        *ceiling,
        replace(corruptions, limit=limit(corruptions, 0.15, 200 if quick else 1_000, least=20)),
    ]


def _limit(
    target: Target, effort: Effort, seconds: float, evaluation: Evaluation, part: float, most: int, least: int = 10
) -> int:
    """How many images of an evaluation fit into a part of the effort's time."""
    total = len(target.data)
    if effort == "full":
        return total
    fitting = int(SECONDS[effort] * part / (forward_passes(evaluation) * seconds))
    return min(total, most, max(least, fitting))


def forward_passes(evaluation: Evaluation) -> float:
    """Forward passes that an evaluation of a plan takes per image, roughly."""
    if isinstance(evaluation, Attack | AttackShift):
        attack = evaluation.attack
        draws, votes = (attack.draws, VOTES) if isinstance(attack, EOT) else (1, 0)
        steps = attack.steps * (1 + attack.restarts) if isinstance(attack, PGD | EOT) else 0
        searches = sum(radius > 0 for radius in evaluation.radii) if isinstance(evaluation, Attack) else SEARCHES
        return (GRADIENT * steps * draws + votes) * searches
    if isinstance(evaluation, Certify):
        return (evaluation.n or 0) * TAKEN
    if isinstance(evaluation, CertifyShift):
        return evaluation.draws
    if isinstance(evaluation, Accuracy):
        return evaluation.draws + 1
    if isinstance(evaluation, Corruptions):
        return len(CORRUPTIONS) * len(SEVERITIES) * (evaluation.draws + 1)
    raise ValueError(f"evaluation must be one of a plan, got {evaluation.kind}")
