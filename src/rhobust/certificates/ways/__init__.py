"""Ways to certify an input, one a file; all give a false radius with probability at most alpha."""

from collections.abc import Sequence
from typing import Literal

from rhobust.declared import sizes

from rhobust.certificates.ways.cohen import Cohen as Cohen
from rhobust.certificates.ways.grid import Grid as Grid
from rhobust.certificates.ways.protocol import Claims as Claims
from rhobust.certificates.ways.protocol import Plan as Plan
from rhobust.certificates.ways.protocol import Way as Way
from rhobust.certificates.ways.two_stage import TwoStage as TwoStage

AnyWay = Cohen | Grid | TwoStage
WayName = Literal["cohen", "grid", "two-stage"]
WAYS: dict[str, type[AnyWay]] = {way.name: way for way in (Cohen, Grid, TwoStage)}


def choose_way(
    name: WayName | None = None,
    *,
    radii: Sequence[float] | None = None,
    tolerance: float | None = None,
    n0: int | None = None,
    n: int | None = None,
) -> AnyWay:
    """The way of a name; where none is given, that which the radii or the tolerance ask for, else Cohen's.

    What is None takes the way's default.
    """
    if name is None:
        name = "two-stage" if tolerance is not None else "cohen" if radii is None else "grid"
    if name not in WAYS:
        raise ValueError(f"way must be one of {', '.join(WAYS)}, got {name!r}")
    if tolerance is not None and name != "two-stage":
        raise ValueError(f"tolerance must come with the way two-stage, got the way {name}")
    draws = {key: value for key, value in (("n0", n0), ("n", n)) if value is not None}
    if name == "cohen":
        return Cohen(**draws)
    if name == "two-stage":
        return TwoStage(**draws) if tolerance is None else TwoStage(**draws, tolerance=tolerance)
    if radii is None:
        raise ValueError("radii must be given for the way grid, got none")
    return Grid(sizes("radii", radii), **draws)
