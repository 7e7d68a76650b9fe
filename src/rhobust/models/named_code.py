"""Code of the user's that is named on the command line: `package.module:name` or `file.py:name`."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from rhobust.user_code import UserCode

FORMS = "package.module:factory, file.py:factory, rhobust:NAME, hf:ID, timm:NAME or torchvision:NAME"
"""How a network that is not of this package is named."""


def from_factory(name: str, **offered: object) -> nn.Module:
    """The network that a user's function or class builds.

    Args:
        name: `package.module:factory` or `file.py:factory`.
        offered: Arguments that are passed if the function takes them by name, or takes any.
    """
    factory = named_code(name, "model")
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # built-ins without a signature
        parameters = {}
    passed = {key: value for key, value in offered.items() if key in parameters}
    # A function that takes any keyword usually hands them on: the number of classes is worth a try.
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()) and "num_classes" in offered:
        wider = {**passed, "num_classes": offered["num_classes"]}
        with suppress(TypeError):
            return _checked(run_named(f"model {name}", lambda: factory(**wider), keep=TypeError), name)
    return _checked(run_named(f"model {name}", lambda: factory(**passed)), name)


def named_code(name: str, role: str) -> Callable[..., Any]:
    """The function or class that the user named."""
    called = f"{role} {name}"
    place, attribute = place_of(name, role)
    module = _module_of_file(Path(place), called) if place.endswith(".py") else _module(place, called)
    found = run_named(called, lambda: getattr(module, attribute, None), what="be importable")
    if not callable(found):
        raise ValueError(f"{called}: {place} must define a function or class {attribute}, but it does not")
    return found


def place_of(name: str, role: str) -> tuple[str, str]:
    """The module or file of the user's code, and what is named in it."""
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        forms = FORMS if role == "model" else "package.module:Class or file.py:Class"
        raise ValueError(f"{role} must have the form {forms}, got {name}")
    if place.endswith(".py") and not Path(place).is_file():
        raise ValueError(f"{role} {name} must name a file, but there is no {place}")
    return place, attribute


def _checked(network: object, name: str) -> nn.Module:
    if not isinstance(network, nn.Module):
        raise ValueError(f"model {name} must return a torch.nn.Module, got {type(network).__name__}")
    return network


def _module(place: str, name: str) -> Any:
    """A module by name; the current folder, which is not on the path of an installed command, is searched first."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return run_named(name, lambda: importlib.import_module(place), what="be importable")


def _module_of_file(path: Path, name: str) -> Any:
    """A module by its file; it can import other files of its folder."""
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules.setdefault(path.stem, module)  # classes of the module find themselves
    loader = spec.loader
    run_named(name, lambda: loader.exec_module(module), what="be importable")
    return module


def run_named(name: str, make: Any, what: str = "build a network", keep: type[Exception] | tuple[()] = ()) -> Any:
    """What a function of the user's returns; any error of it but those to keep becomes one line."""
    with UserCode(f"{name} must {what}, but"):
        try:
            return make()
        except keep as error:
            kept = error
    raise kept
