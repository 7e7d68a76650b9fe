"""The labels of runs: the training method with the settings in which the runs of a page differ."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rhobust.formatting import format_distance
from rhobust.records import is_own
from rhobust.report.runs import PageRun

_NAMES = {"gaussian": "Gaussian", "smoothadv": "SmoothAdv", "consistency": "Consistency", "smoothmix": "SmoothMix"}
"""Names of methods that are not written in capitals."""
_SOLVERS = {"paper": "the paper’s solver", "search": "best iterate"}
"""Inner solvers that are not the default."""
_SYMBOLS = {"sigma": "σ", "gamma": "γ", "eps": "ε", "beta": "β", "lam": "λ"}
_NOT_NAMED = {*_SYMBOLS, "kind", "inner", "method", "rhobust", "seed", "weights", "witness"}
"""Settings that a label says already, or that are none of the training."""


def method_name(run: PageRun) -> str:
    """The training method with its main settings, such as "NAL, σ 0.25, γ 0.5"; the user's own network by its name."""
    kind = str(run.method.get("kind", "unknown method"))
    parts = [f"{run.config.get('model')}, trained elsewhere" if is_own(run.config) else _NAMES.get(kind, kind.upper())]
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


def with_names(runs: Sequence[PageRun]) -> tuple[PageRun, ...]:
    """The runs with readable labels: a name that a user gave is kept, a name with a hash is replaced.

    The new label is the method with its main settings. Models that have these in common differ by the other settings in
    which they differ, and by the hash where they differ in none.
    """
    hashes = [_name_hash(run) for run in runs]
    words = [method_name(run) if found else run.label for run, found in zip(runs, hashes, strict=True)]
    settings = [_named_settings(run) if found else {} for run, found in zip(runs, hashes, strict=True)]
    every = dict.fromkeys(key for own in settings for key in own)
    for setting in sorted(every, key=lambda key: key == "seed"):
        # A page about several data sets says of every model which is its own.
        groups = [setting if setting == "data" else word for word in words]
        values: dict[str, set[str]] = {}
        for group, own in zip(groups, settings, strict=True):
            if own:
                values.setdefault(group, set()).add(own.get(setting, ""))
        words = [
            f"{word}, {own[setting]}" if setting in own and len(values[group]) > 1 else word
            for word, group, own in zip(words, groups, settings, strict=True)
        ]
    times = Counter(words)
    labels = [
        f"{word}, {found}" if found and times[word] > 1 else word for word, found in zip(words, hashes, strict=True)
    ]
    return tuple(replace(run, label=label) for run, label in zip(runs, labels, strict=True))


def _named_settings(run: PageRun) -> dict[str, str]:
    """What a label may say besides the method's main settings, the most important first."""
    found = {key: str(run.config.get(key)) for key in ("data", "model", "activation")}
    for place in (run.method, run.config):
        found |= {
            key: f"{key.replace('_', ' ')} {format_distance(value) if isinstance(value, float) else value}"
            for key, value in place.items()
            if key not in found and key not in _NOT_NAMED
        }
    return found | {"seed": f"seed {run.config.get('seed')}"}


def _name_hash(run: PageRun) -> str | None:
    """The hash at the end of a name that a training chose, METHOD-...-DATA-MODEL-...-HASH; None for any other name."""
    method, model = (str(word).rpartition(":")[2] for word in (run.method.get("kind"), run.config.get("model")))
    pattern = rf"{re.escape(method.lower())}-.+-{re.escape(model)}-(?:.+-)?([0-9a-f]{{8}}(?:-[b-z])?)"
    found = re.fullmatch(pattern, run.label)
    return found[1] if found else None
