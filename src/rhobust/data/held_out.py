"""The fixed split of a data set that comes without one."""

import hashlib
import unicodedata
from collections.abc import Iterable

_ONE_IN = 5


def hash_order(key: str) -> bytes:
    """A sorting key that mixes names, and mixes them the same way on every machine."""
    return hashlib.sha256(b"rhobust split 0\0" + unicodedata.normalize("NFC", key).encode()).digest()


def held_out(keys: Iterable[str]) -> set[str]:
    """The keys of one class that are its test part: a fifth, at least one of two or more.

    They are the first fifth (rounded down) in hash order, so the choice depends on the keys alone and not on the
    order in which they come.
    """
    ordered = sorted(keys, key=hash_order)
    count = max(len(ordered) // _ONE_IN, 1) if len(ordered) > 1 else 0
    return set(ordered[:count])
