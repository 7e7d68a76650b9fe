"""What the counts of certify-shift prove beyond its curve: subpopulations, groups, mixtures, and wrong answers.

Each part of a summary is written and proved again by the same functions; a sentence is made from a part's own numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rhobust.measurements.quantities import GROUP, MIXTURE, SUBPOPULATION, WRONG_ANSWERS, Measurement
from rhobust.proofs.shift import AbstainingCertificate, ShiftProof, VoteCounts
from rhobust.proofs.subpopulation import GroupCertificate, SubpopulationCertificate
from rhobust.records import Row

Sentences: TypeAlias = Iterator[tuple[str | None, str]]
MOST_GROUPS = 200
"""Groups up to which bounds are computed: each takes a share of alpha, and some seconds."""


def beyond_curve(rows: Sequence[Row], settings: Mapping[str, Any], proof: ShiftProof, counts: VoteCounts) -> Row:
    """The parts of a summary of certify-shift that its settings ask for; empty for most records.

    Guarantee: the surface and the wrong answers hold together with the curve, with probability 1 - alpha: one event
    about the counts serves all of them. Groups and mixtures hold together with probability 1 - alpha on their own.
    """
    eps, found = settings["eps"], dict[str, Any]()
    outliers = settings.get("outliers") or 0.0
    if settings.get("gamma") or outliers:
        certificate = SubpopulationCertificate.from_counts(
            counts, proof, gamma=settings.get("gamma") or (1.0,), eps=eps, outliers=outliers
        )
        found["surface"] = [
            _point(certificate, value, gamma=gamma, eps=at)
            for gamma, row in zip(certificate.gamma, certificate.certified_accuracy, strict=True)
            for at, value in zip(certificate.eps, row, strict=True)
        ]
    if settings.get("groups") or settings.get("label_shift"):
        groups = GroupCertificate.from_counts(
            _by_group(rows, counts.errors, bool(settings.get("groups"))),
            proof,
            tv=(*(settings.get("label_shift") or ()), 1.0),
            eps=eps,
            num_groups=settings.get("num_groups"),
        )
        found["groups"] = [
            {**_point(groups, value, group=name, eps=at), "points": size}
            for name, size, row in zip(groups.groups, groups.sizes, groups.group_accuracy, strict=True)
            for at, value in zip(groups.eps, row, strict=True)
        ]
        found["mixtures"] = [
            _point(groups, value, tv=tv, eps=at)
            for tv, row in zip(groups.tv, groups.certified_accuracy, strict=True)
            for at, value in zip(groups.eps, row, strict=True)
        ]
    if settings.get("agree"):
        abstaining = AbstainingCertificate.from_counts(counts, proof, agree=settings["agree"], eps=eps)
        found["abstaining"] = [
            {
                "eps": at,
                "wrong_answers": value,
                "right_answers": abstaining.right_answers,
                "statement": abstaining.in_words(value, at),
            }
            for at, value in zip(abstaining.eps, abstaining.wrong_answers, strict=True)
        ]
    return found


def _by_group(rows: Sequence[Row], errors: np.ndarray, named: bool) -> dict[str, np.ndarray]:
    """The counts of each group, in the order of its name; classes without names."""
    names = np.array([str(row["group"] if named else row["label"]) for row in rows])
    known = sorted(set(names.tolist()), key=lambda name: (len(name), name))
    if not 2 <= len(known) <= MOST_GROUPS:
        raise ValueError(f"groups must be 2 to {MOST_GROUPS} among the test points, got {len(known)}")
    return {name: errors[names == name] for name in known}


def _point(certificate: SubpopulationCertificate | GroupCertificate, value: float, **at: Any) -> Row:
    return {**at, "certified_accuracy": value, "statement": _sentence(certificate, value, at)}


def _sentence(certificate: Any, value: float, at: Mapping[str, Any]) -> str:
    """The sentence of a bound, by what the point names."""
    if "group" in at:
        return certificate.group_in_words(value, at["group"], at["eps"])
    if "tv" in at:
        return certificate.in_words(value, at["tv"], at["eps"])
    return (
        certificate.in_words(value, at["gamma"], at["eps"]) if "gamma" in at else certificate.in_words(value, at["eps"])
    )


def stated_sentences(
    summary: Mapping[str, Any], found: Row, proof: ShiftProof, settings: Mapping[str, Any]
) -> Sentences:
    """Of each point of these parts the sentence that a summary has, and the one that its own bound deserves."""
    if not found.keys() & {"surface", "groups", "abstaining"}:
        return
    common = proof.common()
    names = tuple(dict.fromkeys(point["group"] for point in found.get("groups", [])))
    groups = GroupCertificate(names, (), (), (), (), (), **common)
    certificates = {
        "surface": SubpopulationCertificate((), (), (), settings.get("outliers") or 0.0, **common),
        "groups": groups,
        "mixtures": groups,
        "abstaining": AbstainingCertificate((), (), settings.get("agree") or 0, None, **common),
    }
    for part, certificate in certificates.items():
        for point in summary[part] if part in found else ():
            value = point["wrong_answers" if part == "abstaining" else "certified_accuracy"]
            yield point.get("statement"), _sentence(certificate, value, point)


def read_beyond(summary: Mapping[str, Any], found: Row, n: int) -> Iterator[Measurement]:
    """The measurements of these parts: each bound is the weaker of what is stated and what the rows prove."""
    for part, quantity in (("surface", SUBPOPULATION), ("groups", GROUP), ("mixtures", MIXTURE)):
        for ours, theirs in zip(found.get(part, []), summary.get(part, []), strict=False):
            value = min(ours["certified_accuracy"], theirs["certified_accuracy"])
            detail = {key: ours[key] for key in ("gamma", "group", "tv") if key in ours}
            yield Measurement(quantity, ours["eps"], value, None, None, ours.get("points", n), "proved", detail)
    for ours, theirs in zip(found.get("abstaining", []), summary.get("abstaining", []), strict=False):
        value = max(ours["wrong_answers"], theirs["wrong_answers"])
        detail = {"right_answers": ours["right_answers"]}
        yield Measurement(WRONG_ANSWERS, ours["eps"], value, None, None, n, "proved", detail)
