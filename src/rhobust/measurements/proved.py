"""What the rows of a certificate for distributions prove: bounds, curves and sentences, without torch.

Summaries are written with these functions; report, compare and audit prove them again with no others.
"""

import copy
import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from rhobust.bounds import SecondStage, shift_lower_bound, worst_case_lower_bound
from rhobust.bounds.confidence import LEVELS
from rhobust.measurements.subpopulations import beyond_curve
from rhobust.proofs.claim import NoiseSamples, ShiftClaim
from rhobust.proofs.measured_shift import (
    ChangeCounts,
    MeasuredCertificate,
    MeasuredShift,
    RecentredCertificate,
    accuracy_under_noise,
)
from rhobust.proofs.shift import ShiftProof, VoteCounts, baseline_certificates
from rhobust.records import Row

SAMPLES = ("sigma", "noise", "draws", "alpha", "seed")
"""Settings that say how noise samples were taken."""
COLUMNS = {"errors": "errors", "rounded_losses": "dithered", "losses": "loss", "uppers": "upper"}
"""Fields of the vote counts and their names in a row."""

REMEMBERED = 128
"""Summaries that a process remembers."""
Summary = Callable[[Sequence[Row], Mapping[str, Any], int], Row]
"""From rows, settings and the numbers per image to what they prove."""


def once(summary: Summary) -> Summary:
    """Prove the same rows under the same settings once per process: a page reads what its process just wrote."""
    known: dict[bytes, Row] = {}

    @functools.wraps(summary)
    def proved(rows: Sequence[Row], settings: Mapping[str, Any], dimension: int) -> Row:
        content = json.dumps([list(rows), dict(settings), dimension], sort_keys=True).encode()
        key = hashlib.sha256(content).digest()
        if key not in known:
            found = summary(rows, settings, dimension)
            if len(known) >= REMEMBERED:
                del known[next(iter(known))]
            known[key] = found
        return copy.deepcopy(known[key])

    return proved


def shift_claim(settings: Mapping[str, Any]) -> ShiftClaim:
    """What a record of certify-shift, curves or measure-shift claims; keys that old headers lack have one meaning."""
    classifier, loss = settings.get("classifier", "randomised"), settings.get("loss", "0-1")
    return ShiftClaim(
        classifier=classifier,
        votes=settings.get("votes") if classifier == "k-vote" else None,
        loss=loss,
        bound=None if loss == "0-1" else settings["bound"],
        cost=settings.get("cost", "w2"),
        estimator=settings.get("way", "majorant"),
    )


def shift_proof(settings: Mapping[str, Any], points: int, dimension: int) -> ShiftProof:
    """What the counts of a record's points prove, by its settings and the numbers per image."""
    return ShiftProof(
        claim=shift_claim(settings),
        points=points,
        dimension=dimension,
        **{key: settings[key] for key in SAMPLES},
        second_draws=settings.get("second_draws") or 0,
    )


def shift_counts(rows: Sequence[Row], settings: Mapping[str, Any]) -> VoteCounts:
    """The counts in the rows of certify-shift; a row of the second stage has further errors, or None after an error."""
    columns: dict[str, Any] = {one: _column(rows, name) for one, name in COLUMNS.items() if name in rows[0]}
    counts = VoteCounts(**columns)
    if not settings.get("second_draws"):
        return counts
    further = np.array([row.get("second") or 0 for row in rows])
    return replace(
        counts, second=SecondStage(settings["second_draws"], np.array(["second" in row for row in rows]), further)
    )


@once
def shift_summary(rows: Sequence[Row], settings: Mapping[str, Any], dimension: int) -> Row:
    """What the rows of certify-shift prove: the curve, and a sentence for each of its points."""
    proof = shift_proof(settings, len(rows), dimension)
    counts = shift_counts(rows, settings)
    certificate = proof.certify(counts, settings["eps"])
    accuracy = proof.claim.loss == "0-1"
    name = "certified_accuracy" if accuracy else "certified_loss"
    certified = certificate.certified_accuracy if accuracy else certificate.certified_loss
    summary: Row = {
        "accuracy_under_noise": certificate.accuracy_under_noise,
        "loss_under_noise": certificate.loss_under_noise,
        "points": certificate.points,
        "dimension": dimension,
        "curve": [
            {"eps": at, name: value, "statement": certificate.statement(at)}
            for at, value in zip(certificate.eps, certified, strict=True)
        ],
        "statement": certificate.statement(certificate.eps[len(certificate.eps) // 2]),
    }
    summary |= beyond_curve(rows, settings, proof, counts)
    if settings.get("beside"):
        others = baseline_certificates(
            counts.errors, draws=proof.draws, eps=certificate.eps, sigma=proof.sigma, level=proof.level()
        )
        summary["beside"] = [
            {**asdict(other), "certified_accuracy": list(other.certified_accuracy), "eps": list(certificate.eps)}
            for other in others
        ]
    return summary


@once
def worst_case_summary(rows: Sequence[Row], settings: Mapping[str, Any], dimension: int) -> Row:
    """What the rows of curves prove: the certified curve, the lower one of the attacks, and the paper's estimate."""
    proof = shift_proof(settings, len(rows), dimension)
    largest, gammas = proof.claim.loss_bound, settings["gammas"]
    clean = _column(rows, "loss")
    counts = VoteCounts(_column(rows, "errors"), rounded_losses=_column(rows, "counted"), losses=clean)
    certificate = proof.certify(counts, settings["eps"])
    rho = np.square(np.asarray(certificate.eps, dtype=float))
    rounds = 1 + len(gammas)
    each = proof.level(rounds) / rounds
    _, start = shift_lower_bound(np.zeros(len(rows)), clean, each, limit=1.0, bound=largest)
    points = [
        _attacked(rows, number, gamma, each, largest, _limit(gamma, largest, dimension))
        for number, gamma in enumerate(gammas)
    ]
    spent = [0.0, *(point["rho_upper"] for point in points)]
    lower = np.maximum(worst_case_lower_bound(spent, [start, *(point["loss_lower"] for point in points)], rho), 0.0)
    estimate = np.min([point["gamma"] * rho + point["phi"] for point in points], axis=0)
    return {
        "points": len(rows),
        "dimension": dimension,
        "accuracy_under_noise": certificate.accuracy_under_noise,
        "loss_under_noise": certificate.loss_under_noise,
        "curve": [
            {"eps": at, "rho": float(r), "certified": c, "lower": float(low), "estimate": float(guess)}
            for at, r, c, low, guess in zip(
                certificate.eps, rho, certificate.certified_loss, lower, estimate, strict=True
            )
        ],
        "attacks": points,
        "statement": certificate.statement(certificate.eps[len(certificate.eps) // 2]),
    }


def _limit(gamma: float, largest: float, dimension: int) -> float:
    """The largest squared distance an attacked point may have; beyond sqrt(bound / gamma) moving cannot pay."""
    rounding = math.sqrt(dimension) / (2 * LEVELS)
    return (math.sqrt(largest / gamma) + rounding) ** 2 * (1 + 1e-6)


def _attacked(rows: Sequence[Row], number: int, gamma: float, each: float, bound: float, limit: float) -> Row:
    """One attack over all points: what it proves, and the means it rests on."""
    columns = {
        name: np.array([row["attacks"][number][name] for row in rows]) for name in ("phi", "squared_distance", "loss")
    }
    spent, reached = shift_lower_bound(columns["squared_distance"], columns["loss"], each, limit=limit, bound=bound)
    return {
        "gamma": gamma,
        "phi": float(columns["phi"].mean()),
        "rho": float(columns["squared_distance"].mean()),
        "rho_upper": spent,
        "loss": float(columns["loss"].mean()),
        "loss_lower": reached,
    }


@once
def measured_summary(rows: Sequence[Row], settings: Mapping[str, Any], dimension: int) -> Row:
    """What the rows of measure-shift prove: the distance of the change, and with votes the accuracy after it."""
    distances = _column(rows, "distance")
    summary: Row = {"dimension": dimension, "shift": change_summary(distances, dimension, settings["alpha"])}
    if "sigma" not in settings:
        return summary
    errors, draws = _column(rows, "errors"), settings["draws"]
    samples = NoiseSamples(dimension=dimension, **{key: settings[key] for key in SAMPLES})
    votes = shift_claim(settings).votes_per_answer
    certificate = MeasuredCertificate.from_counts(errors, distances, samples, votes=votes)
    after = None
    if settings["points"] == "before" or any("errors_after" in row for row in rows):
        after = accuracy_under_noise(_column(rows, "errors_after"), draws)
    # Without its votes where there is one, as in records from before there was a choice.
    stated = {key: value for key, value in asdict(certificate).items() if key != "votes" or value != 1}
    summary |= {
        "certificate": {**stated, "statement": certificate.statement()},
        "before": accuracy_under_noise(errors, draws),
        "after": after,
    }
    if "label_draws" in settings:
        summary["recentred"] = recentred_summary(recentred(rows, settings, samples, votes=votes))
    return summary


def recentred(
    rows: Sequence[Row], settings: Mapping[str, Any], samples: NoiseSamples, *, votes: int | None = 1
) -> RecentredCertificate:
    """What the votes before and after a change prove about the changed data.

    Args:
        rows: Of measure-shift; or of the unchanged images and of one corruption together.
        settings: The record's.
        samples: How the votes were taken.
        votes: Noisy votes per answer; None for the class most probable under noise.
    """
    after = _column(rows, "errors_after")
    counts = ChangeCounts(
        _column(rows, "errors"),
        _column(rows, "mislabelled"),
        _column(rows, "disagreements"),
        _column(rows, "differing"),
        after if after.size else None,
    )
    return RecentredCertificate.from_counts(
        counts, settings["eps"], samples, label_draws=settings["label_draws"], votes=votes
    )


def recentred_summary(certificate: RecentredCertificate) -> Row:
    """A certificate around the changed data as a part of a summary: one point per eps."""
    stated = asdict(certificate)
    columns = zip(*(stated.pop(key) for key in ("eps", "certified_accuracy", "source")), strict=True)
    curve = [
        {"eps": eps, "certified_accuracy": value, "source": source, "statement": certificate.in_words(value, eps)}
        for eps, value, source in columns
    ]
    return {**stated, "curve": curve}


def change_summary(distances: np.ndarray, dimension: int, alpha: float = 1e-3) -> Row:
    """How far a change perturbs images: the measured distances, their bounds and the statement in words."""
    shift = MeasuredShift.from_distances(distances, dimension=dimension, alpha=alpha)
    return {**asdict(shift), "statement": shift.statement()}


def _column(rows: Sequence[Row], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows if name in row])
