"""Build the documentation site: stage the pages, then call zensical with warnings as errors.

`make docs` calls this. The pages in `docs/` are plain Markdown that GitHub shows as well. Staging copies them to
`build/docs`, brings along the files outside `docs/` that they link to, and turns formulas into MathML. The site is
written to `build/site`. It requests nothing from outside: no fonts, no scripts, no pictures.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS, STAGED, SITE = ROOT / "docs", ROOT / "build" / "docs", ROOT / "build" / "site"
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages outside `docs/`, and the staged page that stands for each of them."""
SYMBOLS = {r"\mathbb R": "ℝ", r"\mathbb E": "𝔼", r"\mathbf 1": "𝟏", r"\tag": r"\qquad\;"}
"""Letters that browsers do not draw by their style, and a command that the converter does not know."""
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(rf"{CODE.pattern}|(!?)\[((?:`[^`\n]+`|[^\]`])*)\]\(([^)\s]+)\)", CODE.flags)
"""A link, whose words may be code, or code, in which no link is one."""


def stage(formulas: Callable[[str], str] = str) -> list[str]:
    """Copy all pages to `build/docs`; return one line for each link that leads nowhere.

    Args:
        formulas: Turns the mathematics in prose into what the site shows.
    """
    shutil.rmtree(STAGED, ignore_errors=True)
    shutil.copytree(DOCS, STAGED, ignore=shutil.ignore_patterns("tools", "__pycache__"))
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copyfile(ROOT / name, STAGED / PAGES[name])
    sources = {STAGED / path.relative_to(DOCS): path for path in sorted(DOCS.rglob("*.md"))}
    sources |= {STAGED / PAGES[name]: ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md")}
    faults: list[str] = []
    for staged, source in sources.items():
        pieces = CODE.split(_led(source.read_text(encoding="utf-8"), staged, source, faults))
        pieces[::2] = [formulas(_NOTE.sub(r"\\[\1\\]", text)) for text in pieces[::2]]
        staged.write_text("".join(pieces), encoding="utf-8")
    return faults


_NOTE = re.compile(r"\[(\d+)\](?!\()")
"""The mark of a note, which is no link."""


def _led(text: str, staged: Path, source: Path, faults: list[str]) -> str:
    """A page with its links led into the staged folder."""

    def lead(match: re.Match[str]) -> str:
        code, mark, words, link = match.groups()
        if code:
            return match[0]
        path, _, anchor = link.partition("#")
        if not path or "://" in link:
            return match[0]
        target = (source.parent / path).resolve()
        if not target.exists():
            faults.append(f"{source.relative_to(ROOT)}: {link} leads nowhere")
            return match[0]
        inside = target.relative_to(ROOT).as_posix()
        if target.is_dir():
            return f"{words} (`{inside}` in the repository)"
        if target.is_relative_to(DOCS):
            place = STAGED / target.relative_to(DOCS)
        elif inside in PAGES:
            place = STAGED / PAGES[inside]
        else:
            place = STAGED / "files" / inside.replace(".md", ".txt")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, place)
        led = Path(os.path.relpath(place, staged.parent)).as_posix()
        return f"{mark}[{words}]({led}{'#' if anchor else ''}{anchor})"

    return LINK.sub(lead, text)


def mathml(text: str) -> str:
    """LaTeX between dollars as MathML, which browsers draw without a script."""
    from latex2mathml.converter import convert

    def formula(match: re.Match[str]) -> str:
        latex = match[1] or match[2]
        for old, new in SYMBOLS.items():
            latex = latex.replace(old, new)
        markup = convert(latex, display="block" if match[1] else "inline").replace("\n", " ")
        # A phone scrolls a long formula, not the page.
        return f'\n\n<div style="overflow: auto hidden">{markup}</div>\n\n' if match[1] else markup

    return re.sub(r"\s*\$\$(.+?)\$\$\s*|\$([^$]+?)\$", formula, text, flags=re.DOTALL)


def requests() -> list[str]:
    """What the built pages would load from elsewhere: nothing, or one line for each."""
    loading = re.compile(
        r"""(?:<(?:script|img|iframe|source)[^>]*\ssrc=|<link[^>]*\shref=|url\()["']?(?:https?:)?//[^"')\s>]+"""
    )
    return [
        f"{path.relative_to(SITE)}: {found}"
        for path in sorted(SITE.rglob("*"))
        if path.suffix in (".html", ".css")
        for found in loading.findall(path.read_text(encoding="utf-8"))
    ]


def main() -> int:
    """Stage, build, check; the exit status is that of the first step that fails."""
    faults = stage(mathml)
    if not faults:
        built = subprocess.run(
            [Path(sys.executable).with_name("zensical"), "build", "--strict", "--clean"], cwd=ROOT, check=False
        )
        if built.returncode:
            return built.returncode
        faults = requests()
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
