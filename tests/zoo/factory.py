"""The zoo's networks as factories, `tests.zoo.factory:NAME`."""

from typing import Any

from tests.zoo import dependence, manners, outputs, raising  # noqa: F401
from tests.zoo.cases import ZOO


def __getattr__(name: str) -> Any:
    if name not in ZOO:
        raise AttributeError(name)
    return ZOO[name].make
