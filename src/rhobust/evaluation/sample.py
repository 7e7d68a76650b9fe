"""Which examples an evaluation looks at, and the intervals of its shares."""

from collections.abc import Iterator, Sequence
from typing import Any

from rhobust.bounds import clopper_pearson
from rhobust.data import Dataset

BLOCK = 100
"""Examples between two writes of a record: what a kill can cost."""


def chosen_indices(data: Dataset, limit: int | None, stride: int) -> range:
    """Every stride-th example, at most `limit` of them."""
    if stride < 1:
        raise ValueError(f"stride must be >= 1, got {stride}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be >= 1, got {limit}")
    indices = range(0, len(data), stride)
    return indices if limit is None else indices[:limit]


def blocks(indices: Sequence[int], done: set[int]) -> Iterator[list[int]]:
    """The examples that are still to do, in blocks."""
    left = [index for index in indices if index not in done]
    for start in range(0, len(left), BLOCK):
        yield left[start : start + BLOCK]


def share(hits: int, n: int) -> dict[str, Any]:
    """A share with its exact 95% interval (Clopper-Pearson)."""
    return {
        "accuracy": hits / n,
        "low": clopper_pearson(hits, n, 0.025, "lower"),
        "high": clopper_pearson(hits, n, 0.025, "upper"),
        "n": n,
    }
