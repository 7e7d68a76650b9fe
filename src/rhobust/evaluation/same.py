"""Whether what a record says is what was found again."""

import math

EXACT = 1e-9
"""How far a recomputed number may lie from the recorded one: other versions of scipy round otherwise."""


def same(said: object, found: object) -> bool:
    """Whether two JSON values are the same, numbers up to rounding."""
    if isinstance(found, dict):
        return (
            isinstance(said, dict) and said.keys() == found.keys() and all(same(said[key], found[key]) for key in found)
        )
    if isinstance(found, list | tuple):
        return isinstance(said, list) and len(said) == len(found) and all(map(same, said, found))
    if isinstance(found, float):
        return isinstance(said, float | int) and math.isclose(said, found, rel_tol=EXACT, abs_tol=EXACT)
    return said == found
