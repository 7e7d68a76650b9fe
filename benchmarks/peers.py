"""Other people's own files, unmodified, from clones that the user names: --peer locuslab/smoothing=DIR."""

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import scipy.stats
import torch

FILES = {
    "locuslab/smoothing": ("code/core.py", "core.py"),
    "Hadisalman/smoothing-adversarial": ("code/attacks.py", "attacks.py"),
    "fra31/auto-attack": ("autoattack/__init__.py",),
}
"""Of each repository the file that is compared with, where it may be in the folder."""


def parse_peers(given: Sequence[str]) -> dict[str, Path]:
    """From NAME=FOLDER to the file of each repository."""
    found = {}
    for one in given:
        name, _, folder = one.partition("=")
        if name not in FILES or not folder:
            raise ValueError(f"peer must be NAME=FOLDER with a name of {', '.join(FILES)}, got {one}")
        paths = [Path(folder) / path for path in FILES[name]]
        existing = [path for path in paths if path.is_file()]
        if not existing:
            raise ValueError(f"the folder of {name} must hold {FILES[name][0]}, got {folder}")
        found[name] = existing[0]
    return found


def load_peer(path: Path) -> ModuleType:
    """Import a peer's file as it is, or the package whose `__init__.py` it is.

    What newer packages removed, and it imports, is put back while it is imported.
    """
    try:
        return _load_package(path.parent) if path.stem == "__init__" else _load_file(path)
    except ImportError as error:
        raise ValueError(f"{path} must be importable with what is installed, got: {error}") from None


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"peer_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _old_names():
        spec.loader.exec_module(module)
    return module


def _load_package(folder: Path) -> ModuleType:
    """Import a package by its own name, from its folder and from nowhere else."""
    sys.path.insert(0, str(folder.parent.absolute()))
    try:
        package = importlib.import_module(folder.name)
    finally:
        del sys.path[0]
    if Path(str(package.__file__)).parent != folder.absolute():
        raise ValueError(f"{folder.name} must be imported from {folder}, but it is installed too: {package.__file__}")
    return package


@contextmanager
def _old_names() -> Iterator[None]:
    """SciPy's binom_test, which is gone, and statsmodels' Clopper-Pearson interval where it is not installed."""
    added: list[str] = []
    had = hasattr(scipy.stats, "binom_test")
    if not had:
        setattr(scipy.stats, "binom_test", _binom_test)  # noqa: B010 - a name that it has no more
    if importlib.util.find_spec("statsmodels") is None:
        for name in ("statsmodels", "statsmodels.stats", "statsmodels.stats.proportion"):
            sys.modules[name] = ModuleType(name)
            added.append(name)
        sys.modules["statsmodels.stats.proportion"].proportion_confint = _proportion_confint  # pyrefly: ignore
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]
        if not had:
            delattr(scipy.stats, "binom_test")


def _binom_test(x: int, n: int, p: float = 0.5) -> float:
    return scipy.stats.binomtest(x, n, p).pvalue


def _proportion_confint(count: int, nobs: int, alpha: float = 0.05, method: str = "beta") -> tuple[float, float]:
    if method != "beta":
        raise ValueError(f"method must be beta, got {method}")
    low = scipy.stats.beta.ppf(alpha / 2, count, nobs - count + 1)
    high = scipy.stats.beta.isf(alpha / 2, count + 1, nobs - count)
    return (0.0 if count == 0 else float(low)), (1.0 if count == nobs else float(high))


@contextmanager
def without_cuda(device: torch.device) -> Iterator[None]:
    """On a CPU, let a file that asks for the device "cuda" by name have the CPU."""
    if device.type == "cuda":
        yield
        return
    original = torch.randn_like

    def randn_like(like: torch.Tensor, **options: Any) -> torch.Tensor:
        return original(like, **{key: value for key, value in options.items() if key != "device"})

    torch.randn_like = cast(Any, randn_like)
    try:
        yield
    finally:
        torch.randn_like = original
