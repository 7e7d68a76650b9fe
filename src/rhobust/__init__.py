"""rhobust: certified distributional robustness of smoothed classifiers.

The public names are listed in `__init__.pyi`. They are imported on first use, so that `import rhobust` and
`rhobust --help` stay fast.
"""

import importlib
import re
from pathlib import Path
from typing import Any

from rhobust.version import VERSION as __version__  # noqa: F401, N811

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOME = {name: module for module, name in re.findall(r"^from (\S+) import (\w+) as \2$", _STUB, re.MULTILINE)}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rhobust' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*_HOME, *(name for name in globals() if name.startswith("__"))])
