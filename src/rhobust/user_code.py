"""Code of others: every error of the user's own is one line that names its place, and a missing package says so."""

import importlib
import sysconfig
import warnings
from pathlib import Path
from traceback import FrameSummary, walk_tb
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

REASON = 300
"""Characters of an error's own message that are shown."""
_LIBRARIES = tuple(str(Path(sysconfig.get_path(name))) for name in ("stdlib", "purelib", "platlib"))


class UserCodeError(ValueError):
    """An error of the user's own code in one line; its cause is the error itself."""


class DeviceMemoryError(UserCodeError):
    """The device's memory was full during a call of the user's own code."""


class UserCode:
    """Context of a call of the user's own code, which may raise anything and change global settings.

    Every exception but KeyboardInterrupt, SystemExit included, becomes a `UserCodeError` of one line that names the
    error and its place. Errors that rhobust itself raised inside pass unchanged. Torch's grad mode, default dtype,
    default device and number of threads, and Python's warning filters are restored.

    Args:
        before: Start of the line, for example "the network raised".
        inputs: The inputs of a network, whose number and shape end the line.
    """

    def __init__(self, before: str, inputs: Tensor | None = None) -> None:
        self.before, self.inputs = before, inputs

    def __enter__(self) -> None:
        self.settings = _settings()
        self.filters = warnings.filters[:]

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        now = _settings()
        if now != self.settings:
            _restore(now, self.settings)
        if warnings.filters != self.filters:
            warnings.filters[:] = self.filters  # pyrefly: ignore[unsupported-operation]
            with warnings.catch_warnings():
                pass  # makes Python notice that the filters were changed
        if error is None or isinstance(error, KeyboardInterrupt) or _is_ours(error, traceback):
            return
        after = "" if self.inputs is None else f", for {describe(self.inputs)}"
        if isinstance(error, torch.OutOfMemoryError):
            # The message of torch's own is long, and its cause holds the memory.
            raise DeviceMemoryError(f"{self.before} an error: the device is out of memory{after}") from None
        raise UserCodeError(f"{self.before} {_reason(error)}{_place(traceback)}{after}") from error


def _settings() -> tuple[Any, ...]:
    return torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads()


def _restore(now: tuple[Any, ...], before: tuple[Any, ...]) -> None:
    setters = (torch.set_grad_enabled, torch.set_default_dtype, torch.set_default_device, torch.set_num_threads)
    for setter, is_now, was in zip(setters, now, before, strict=True):
        if is_now != was:
            setter(was)


def _is_ours(error: BaseException, traceback: TracebackType | None) -> bool:
    """Whether rhobust itself refused something, in words for the user."""
    if not isinstance(error, ValueError | FloatingPointError):
        return False
    names = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(traceback)]
    return isinstance(error, UserCodeError) or names[-1].startswith("rhobust.")


def _reason(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    try:
        lines = str(error).strip().splitlines() or [""]
    except Exception:  # a message of the user's own that fails too
        lines = [""]
    text = " ".join(lines[0].split())
    shown = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text[:REASON])
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


def _place(traceback: TracebackType | None) -> str:
    """The innermost line of the user's own code, or else of a library that is neither torch nor rhobust."""
    frames = [
        FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name, lookup_line=False)
        for frame, line in walk_tb(traceback)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("torch", "rhobust", "importlib")
        and not frame.f_code.co_filename.startswith("<frozen")
    ]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames
    return f" in {Path(own[-1].filename).name}:{own[-1].lineno} ({own[-1].name})" if own else ""


def import_extra(package: str, extra: str, needs: str) -> Any:
    """A package of one of rhobust's extras; where it is missing, one line says how to install it.

    Args:
        package: The module's name.
        extra: The extra that brings it.
        needs: Start of the line, such as "the demo needs".
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ValueError(
            f"{needs} the package {package.replace('_', '-')}: python -m pip install '.[{extra}]' in the checkout"
            f" ({error})"
        ) from None


def first_words(error: Exception | str) -> str:
    """The beginning of what a compiler or a device said, which may be long, in one line."""
    return " ".join(str(error).split()[:30]) or type(error).__name__


def describe(x: Tensor) -> str:
    """Number, shape and dtype of inputs, in words."""
    dtype = str(x.dtype).removeprefix("torch.")
    count = "one input" if len(x) == 1 else f"{len(x)} inputs"
    return f"{count} of shape {'x'.join(map(str, x.shape[1:]))} ({dtype})"
