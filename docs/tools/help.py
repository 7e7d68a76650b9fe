"""Write the help of every command, so that `--help` needs neither torch nor the parser.

Run it after a change of a command's options: `python docs/tools/help.py`. A test compares.
"""

import dataclasses
import importlib
import json
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import rhobust.commands
from rhobust.cli import print_boxes
from rhobust.commands.arguments import options_of
from rhobust.helptext import EXAMPLES, STORED, TITLES


def groups_of(command: Any) -> dict[str, str]:
    """Titles of a command's options by name."""
    if not isinstance(command, type):
        return {}
    found = {}
    for one in dataclasses.fields(command):
        declared = get_args(one.type)[0] if get_origin(one.type) is Annotated else one.type
        nested = isinstance(declared, type) and dataclasses.is_dataclass(declared)
        title = TITLES.get(one.name, TITLES["target"]) if nested else TITLES[""]
        options = options_of(declared) if nested else []
        # Options of a method or an attack have a section of their own.
        found |= {option.name: title for option in options if "." not in option.name}
        if not nested:
            found[f"--{one.name.replace('_', '-')}"] = title
    return found | {"-h": TITLES["common"]}


def document() -> dict[str, Any]:
    """The parser's text and the groups of options, for each command."""
    found = {}
    for name in EXAMPLES:
        first, *rest = name.split()
        command = importlib.import_module(f"rhobust.commands.{first.replace('-', '_')}").COMMAND
        boxes = "\n".join(line.rstrip() for line in print_boxes(command, first, [*rest, "--help"]).splitlines())
        found[name] = {"boxes": boxes, "groups": groups_of(command)}
    return found


def stored() -> Path:
    """Where it is stored."""
    return Path(rhobust.commands.__file__).parent / STORED


if __name__ == "__main__":
    stored().write_text(json.dumps(document(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(stored())
