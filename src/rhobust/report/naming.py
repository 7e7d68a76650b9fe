"""What a model is called on the page."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rhobust.formatting import format_distance
from rhobust.report.run import Run

_NAMES = {"gaussian": "Gaussian", "smoothadv": "SmoothAdv", "trades": "TRADES"}
_SOLVERS = {"paper": "the paper’s solver", "search": "a search"}
"""Inner solvers that are not the default."""
_SYMBOLS = {"sigma": "σ", "gamma": "γ", "eps": "ε", "beta": "β", "lam": "λ"}

_NOT_TOLD = {*_SYMBOLS, "kind", "inner", "method", "rhobust", "seed", "weights", "witness"}
"""Settings that a label tells already, or that are none of the training."""


def method_name(run: Run) -> str:
    """The training method with its main settings, such as "NAL, σ 0.25, γ 0.5"; the user's own network by its name."""
    kind = str(run.method.get("kind", "unknown method"))
    parts = [
        f"{run.config.get('model')}, trained elsewhere" if "weights" in run.config else _NAMES.get(kind, kind.upper())
    ]
    if solver := _SOLVERS.get(str(run.method.get("inner"))):
        parts.append(solver)
    for key, symbol in _SYMBOLS.items():
        value: Any = run.method.get(key)
        if isinstance(value, int | float):
            parts.append(f"{symbol} {format_distance(value)}")
    if "sigma" not in run.method and run.sigmas:
        parts.append(f"smoothed with σ {', '.join(format_distance(sigma) for sigma in run.sigmas)}")
    return ", ".join(parts)


def unbroken(label: str) -> str:
    """A label that a narrow column breaks between its parts only, not between a symbol and its value."""
    return re.sub(rf"([{''.join(_SYMBOLS.values())}]) ", "\\1\u00a0", label)


def named(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs with labels that people can read: a name that a user gave stays, a name with a hash gives way.

    In its place stands the method with its main settings. Models that have these in common are told apart by the other
    settings in which they differ, and by the hash where they differ in none.
    """
    hashes = [_hash(run) for run in runs]
    words = [method_name(run) if found else run.label for run, found in zip(runs, hashes, strict=True)]
    settings = [_settings(run) if found else {} for run, found in zip(runs, hashes, strict=True)]
    every = dict.fromkeys(key for settled in settings for key in settled)
    for setting in sorted(every, key=lambda key: key == "seed"):
        # A page about several data sets says of every model which is its own.
        rivals = [setting if setting == "data" else word for word in words]
        values: dict[str, set[str]] = {}
        for rival, settled in zip(rivals, settings, strict=True):
            if settled:
                values.setdefault(rival, set()).add(settled.get(setting, ""))
        words = [
            f"{word}, {settled[setting]}" if setting in settled and len(values[rival]) > 1 else word
            for word, rival, settled in zip(words, rivals, settings, strict=True)
        ]
    times = Counter(words)
    labels = [
        f"{word}, {found}" if found and times[word] > 1 else word for word, found in zip(words, hashes, strict=True)
    ]
    return tuple(replace(run, label=label) for run, label in zip(runs, labels, strict=True))


def _settings(run: Run) -> dict[str, str]:
    """What a label may tell beside the method's main settings, the most telling first."""
    told = {key: str(run.config.get(key)) for key in ("data", "model", "activation")}
    for place in (run.method, run.config):
        told |= {
            key: f"{key.replace('_', ' ')} {format_distance(value) if isinstance(value, float) else value}"
            for key, value in place.items()
            if key not in told and key not in _NOT_TOLD
        }
    return told | {"seed": f"seed {run.config.get('seed')}"}


def _hash(run: Run) -> str | None:
    """The hash at the end of a name that a training chose, METHOD-...-DATA-MODEL-...-HASH; None for any other name."""
    method, model = (str(word).rpartition(":")[2] for word in (run.method.get("kind"), run.config.get("model")))
    pattern = rf"{re.escape(method.lower())}-.+-{re.escape(model)}-(?:.+-)?([0-9a-f]{{8}}(?:-[b-z])?)"
    found = re.fullmatch(pattern, run.label)
    return found[1] if found else None
