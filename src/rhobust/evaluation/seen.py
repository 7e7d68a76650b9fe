"""Test images that a network was trained on: they are counted, and no statement about other images rests on them."""

from collections.abc import Iterator
from typing import Any

from rhobust.evaluation.base import Evaluation
from rhobust.evaluation.target import Target
from rhobust.records import Row

UNKNOWN = "it is not known whether test images were trained on: the statement holds only if none were"


def count_trained(evaluation: Evaluation, target: Any) -> tuple[int, int] | None:
    """How many test images of an evaluation the network was trained on, and of how many; None if that is not known.

    Images are compared pixel by pixel (`ImageSet`): flipped, cropped or encoded copies are not found.
    """
    if not isinstance(target, Target) or target.trained_on is None:
        return None
    found = target.trained_on.contains(evaluation.test_images(target))
    return int(found.sum()), len(found)


def check_unseen(evaluation: Evaluation, target: Any) -> None:
    """Refuse a statement about other images than the test images if the network was trained on one of these."""
    found = count_trained(evaluation, target)
    if found is not None and found[0] and evaluation.population(target):
        name, remedy = target.data.name, "pass unseen to leave them out"
        if target.pairs is not None and evaluation.kind == "measure-shift":
            known = target.pairs.places(target.data.classes)
            alone = known is not None and bool((known >= 0).all())
            name = target.pairs.name if alone else f"{name}, {target.pairs.name}"
            remedy = "take these pairs out" if alone else "pass unseen, and take such pairs out"
        if evaluation.kind == "certify-shift":
            remedy += ", the estimator sample for a statement about these images alone"
        raise ValueError(
            f"test images must be new to the network for a statement about other images, but {found[0]:,} of"
            f" {found[1]:,} of {name} were trained on: {remedy}, or take other test data"
        )


def describe_trained(evaluation: Evaluation, target: Any, warnings: list[str]) -> Row:
    """What the summary of a record says of test images that were trained on.

    Args:
        evaluation: The evaluation.
        target: The network and its data.
        warnings: Warnings of the summary so far.
    """
    found, lines = count_trained(evaluation, target), list[str]()
    if found is not None and found[0] and target.data.split == "test":
        lines = [
            f"{found[0]:,} of the {found[1]:,} test images were trained on: the numbers say little of other images"
        ]
    if isinstance(target, Target) and evaluation.population(target):
        unknown = not target.published_split if found is None else target.fine_tuned
        lines += [UNKNOWN] if unknown else []
    return ({} if found is None else {"trained_on": found[0]}) | ({"warnings": [*warnings, *lines]} if lines else {})


def as_evaluated(target: Target, fingerprint: object) -> Target:
    """The target of a record with this fingerprint of its data: with all test images, or with the unseen ones."""
    if target.trained_on is None or target.identity()["data_fingerprint"] == fingerprint:
        return target
    if target.trained_on.contains(target.data.images).all():
        return target
    unseen = target.unseen()
    return unseen if unseen.identity()["data_fingerprint"] == fingerprint else target


def check_trained(evaluation: Evaluation, target: Target, summary: Row | None) -> Iterator[str]:
    """What a record does not say, or says wrongly, of test images that were trained on."""
    found = count_trained(evaluation, target)
    if found is None:
        return
    if found[0] and evaluation.population(target):
        yield f"{found[0]:,} of the {found[1]:,} test images were trained on: it proves nothing about other images"
    elif summary is not None and summary.get("trained_on", found[0]) != found[0]:
        yield f"{found[0]:,} of the {found[1]:,} test images were trained on, the record says {summary['trained_on']}"
