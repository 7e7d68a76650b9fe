"""One command per file: a frozen dataclass of its options that runs and shows its result.

Each module names its dataclass `COMMAND`. `run` returns what `--json` prints; `show` prints it for people.
"""
