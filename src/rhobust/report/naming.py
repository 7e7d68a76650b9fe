"""What a model is called on the page."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rhobust.report.run import Run
from rhobust.rounding import plain

_NAMES = {"gaussian": "Gaussian", "smoothadv": "SmoothAdv", "trades": "TRADES"}
_SYMBOLS = {"sigma": "σ", "gamma": "γ", "eps": "ε", "beta": "β", "lam": "λ"}


def method_name(run: Run) -> str:
    """The training method with its main settings, such as "NAL, σ 0.25, γ 0.5"; the user's own network by its name."""
    kind = str(run.method.get("kind", "unknown method"))
    parts = [
        f"{run.config.get('model')}, trained elsewhere" if "weights" in run.config else _NAMES.get(kind, kind.upper())
    ]
    if run.method.get("inner") == "paper":
        parts.append("the paper’s solver")
    for key, symbol in _SYMBOLS.items():
        value: Any = run.method.get(key)
        if isinstance(value, int | float):
            parts.append(f"{symbol} {plain(value)}")
    if "sigma" not in run.method and run.sigmas:
        parts.append(f"smoothed with σ {', '.join(plain(sigma) for sigma in run.sigmas)}")
    return ", ".join(parts)


def unbroken(label: str) -> str:
    """A label that a narrow column breaks between its parts only, not between a symbol and its value."""
    return re.sub(rf"([{''.join(_SYMBOLS.values())}]) ", "\\1\u00a0", label)


def named(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs with labels that people can read: a name that a user gave stays, a name with a hash gives way.

    In its place stands the method with its settings, and the hash behind it where another model has the same.
    """
    hashes = [_hash(run) for run in runs]
    words = [method_name(run) if found else run.label for run, found in zip(runs, hashes, strict=True)]
    times = Counter(words)
    labels = [
        f"{word}, {found}" if found and times[word] > 1 else word for word, found in zip(words, hashes, strict=True)
    ]
    return tuple(replace(run, label=label) for run, label in zip(runs, labels, strict=True))


def _hash(run: Run) -> str | None:
    """The hash at the end of a name that a training chose, METHOD-DATA-MODEL-HASH; None for any other name."""
    method, model = (str(word).rpartition(":")[2] for word in (run.method.get("kind"), run.config.get("model")))
    found = re.fullmatch(rf"{re.escape(method.lower())}-.+-{re.escape(model)}-([0-9a-f]{{8}})", run.label)
    return found[1] if found else None
