"""What a folder may make this process do: a folder is data, whoever sent it.

Guarantee: no module that a folder's config names is imported, and no file outside the folder that it names is read,
unless the user named the same code or file, or trusts the folder. Everything that opens a network or data of a folder
asks `check_received` first.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from rhobust.data.registry import KNOWN
from rhobust.formatting import printable
from rhobust.models import MODELS


class UntrustedError(ValueError):
    """A folder names code that would run, or files that would be read, which the user neither named nor trusts."""

    def __init__(self, folder: Path, named: dict[str, str]) -> None:
        acts = [f"run {named['model']}"] if "model" in named else []
        if paths := [path for name, path in named.items() if name != "model"]:
            acts.append(f"read {' and '.join(paths)}")
        self.refusal = f"{folder} would {' and '.join(acts)}, which its config names and you did not"
        """What would happen, without the remedy."""
        self.untrusted = named
        """By argument what the user would have to name."""
        arguments = ", ".join(f"{name}={value!r}" for name, value in named.items())
        super().__init__(f"{self.refusal}: if you trust it, pass {arguments}, or trust=True")


def check_received(
    folder: Path,
    *,
    code: str | None = None,
    files: Mapping[str, str] | None = None,
    trust: bool = False,
    model: str | None = None,
) -> None:
    """Raise `UntrustedError` if a folder's config names code or files that the user neither named nor trusts.

    Args:
        folder: The folder.
        code: The network in its config; one of `MODELS` runs no code of others.
        files: Paths in its config that would be read, by the option with which the user names them herself. Names of
            published data sets and files inside the folder are allowed.
        trust: Whether the user trusts the folder: everything is allowed.
        model: The code that the user named.
    """
    if trust:
        return
    wanted = {} if code is None or code in MODELS or code == model else {"model": code}
    known = {source.name for source in KNOWN}
    wanted |= {name: path for name, path in (files or {}).items() if path not in known and _outside(path, folder)}
    if not wanted:
        return
    raise UntrustedError(folder, {name: printable(value) for name, value in wanted.items()})


def _outside(path: str, folder: Path) -> bool:
    """Whether a path leads out of the folder; nothing outside is touched to find out."""
    named, inside = (Path(os.path.normpath(Path(name).absolute())) for name in (path, folder))
    if path.startswith("~") or not named.is_relative_to(inside):
        return True
    return not Path(path).resolve().is_relative_to(folder.resolve())
