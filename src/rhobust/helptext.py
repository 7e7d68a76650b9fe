"""Help of the commands, without torch: written beforehand by `python docs/tools/help.py`, laid out for the terminal."""

import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from importlib.resources import files

EXAMPLES = {
    "evaluate": "rhobust evaluate --model net.py:make --weights model.pt --data photos --sigma 0.25 --out results",
    "quickstart": "rhobust quickstart",
    "data": "rhobust data get cifar10",
    "data list": "rhobust data list",
    "data get": "rhobust data get cifar10",
    "data check": "rhobust data check photos",
    "train": "rhobust train method:nal --method.sigma 0.25 --data cifar10 --model resnet18 --out runs/nal",
    "sweep": "rhobust sweep plan.toml --out sweeps/plan --executor processes",
    "attack": "rhobust attack runs/nal attack:eot --radii 0 0.25 0.5 --limit 500",
    "attack-shift": "rhobust attack-shift runs/nal --eps 0 0.05 0.1 --limit 200",
    "transfer": "rhobust transfer runs/nal runs/gaussian --radii 0 0.5 --limit 500",
    "certify": "rhobust certify runs/nal --radii 0 0.25 0.5 --limit 500",
    "certify-shift": "rhobust certify-shift runs/nal --eps 0 0.05 0.1",
    "conform": "rhobust conform runs/nal --coverage 0.95 --eps 0.1",
    "measure-shift": "rhobust measure-shift photos scanned --run runs/nal",
    "monitor": "rhobust monitor runs/nal --reference scenes --changed today --at-least 0.9",
    "curves": "rhobust curves runs/nal --eps 0 0.1 0.25 --limit 500",
    "compare": "rhobust compare NAL=runs/nal Gaussian=runs/gaussian Cohen=cohen.tsv --format latex",
    "audit": "rhobust audit runs/nal",
    "sign": "rhobust sign runs/nal --key ~/.ssh/id_ed25519",
    "predict": "rhobust predict runs/nal photo.png",
    "demo": "rhobust demo runs/nal",
    "publish": "rhobust publish runs/nal --out published",
    "report": "rhobust report NAL=runs/nal Gaussian=runs/gaussian --title 'Digits' --out report.html",
}
"""One command line per command, and per command of `data`."""
TITLES = {
    "": "this command",
    "target": "network and data",
    "evaluation": "what is evaluated",
    "config": "training",
    "common": "how it runs",
}
"""Groups of options, by the field of the command that declares them."""
_NAMES = r"[A-Z]+(?:\.toml)?(?: [A-Z]+)*(?: \[[A-Z]+ \.\.\.\])?"
"""Pattern of arguments without an option: RUN, PLAN.toml, RUN IMAGE [IMAGE ...]."""
STORED = "help.json"
"""File of what the parser prints for each command, and the group of each option."""


def stored_help(name: str, width: int) -> str:
    """The help of a command in lines of a width, from the stored text."""
    found = json.loads(files("rhobust.commands").joinpath(STORED).read_text(encoding="utf-8"))[name]
    return render_help(found["boxes"], width, groups=found["groups"], example=EXAMPLES[name])


def render_help(boxes: str, width: int, *, groups: Mapping[str, str] | None = None, example: str = "") -> str:
    """The parser's help in two columns: `PATH` for `{None}|PATH`, no default that is None, negated flags as such.

    Args:
        boxes: What the parser prints, one box below the other.
        width: Characters per line.
        groups: Titles of options by name; default: one group.
        example: A command line that follows the description.
    """
    lines: list[str] = []
    entries: list[tuple[str, list[str]]] = []

    def write_entries() -> None:
        for title, some in _grouped(entries, groups or {}):
            lines.extend(["", f"{title}:"] if title else [])
            for name, texts in some:
                lines.extend(_entry(name, " ".join(texts), width))
        entries.clear()

    # The parser keeps the line breaks of a docstring before a line that begins with no letter.
    described = next((found.start() for found in re.finditer(r"^ \S", boxes, re.MULTILINE)), len(boxes))
    boxes = re.sub(r"(?<=\S)\n(?!\n|- ) *", " ", boxes[:described]) + boxes[described:]
    for line in boxes.splitlines():
        if not line.strip(" -"):
            continue
        if re.match(r" \S", line):
            write_entries()
            if example and not any(one.startswith("example:") for one in lines):
                lines += ["", f"example: {example}"]
            title = line.strip()
            lines += [] if groups and title == "options" else ["", f"{title}:"]
        elif found := re.match(
            rf" {{2,4}}(?:• )?(-\S.*?|\[.*?|{_NAMES}|[a-z]+:[a-z]+|(?<=• )[a-z]+)(?: {{2,}}(.*))?$",
            line,
        ):
            entries.append((found.group(1), [found.group(2)] if found.group(2) else []))
        elif entries and line.startswith(" " * 8):
            entries[-1][1].append(line.strip())
        else:
            write_entries()
            indent = "  " if line.startswith(" ") else ""
            hanging = "  " if line.startswith("- ") else indent
            lines += [] if indent else [""]
            line = re.sub(r",(?=\w+:)", ", ", line.strip().replace("{None}|", ""))  # so that it can be wrapped
            lines += _wrapped(line, width, indent, hanging)
    write_entries()
    return "\n".join(lines).strip("\n") + "\n"


Entries = Iterable[tuple[str, list[str]]]
"""Names of options with their texts."""


def _grouped(entries: Entries, groups: Mapping[str, str]) -> list[tuple[str, Entries]]:
    """The options under their titles, in the order of `TITLES`; entries without a group come first, without a title."""
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for name, texts in entries:
        option = "-h" if name.startswith("-h,") else name.split(" ")[0]
        found.setdefault(groups.get(option, ""), []).append((name, texts))
    order = ["", *TITLES.values()]
    return sorted(found.items(), key=lambda one: order.index(one[0]))


def _entry(name: str, text: str, width: int) -> list[str]:
    """One option: its name, and what it means in a column of its own."""
    name = name.replace("{None}|", "").replace("{None,", "{")
    name = re.sub(r"\{?\[(\w+) \[\1 \.\.\.\]\]\}?", r"\1 [\1 ...]", name)
    text = re.sub(r" \(default: (None|'')?\)", "", re.sub(r"\s+", " ", text))
    if "default: " in text.split(" (default: ")[0]:  # in words
        text = re.sub(r" \(default: [^)]*\)$", "", text)
    if " " not in name and name.startswith("-"):  # a flag
        text = re.sub(r" \(default: (True|False)\)", "", text)
        if text.startswith("False: "):  # a negated flag carries the negated sentence
            text = text[7:8].upper() + text[8:]
    margin = " " * 26
    body = _wrapped(text, width, margin, margin)
    if body and len(name) + 4 <= len(margin):
        return [f"  {name}".ljust(len(margin)) + body[0].lstrip(), *body[1:]]
    return [f"  {name}", *body]


def _wrapped(text: str, width: int, first: str, others: str) -> list[str]:
    """Lines of a width with an indent; names as hf-datasets stay whole."""
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    )
