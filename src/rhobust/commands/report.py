"""rhobust report."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.archives import opened
from rhobust.commands.options import Output, OutputOptions
from rhobust.files import check_output
from rhobust.process import say
from rhobust.report import write_report


@dataclass(frozen=True)
class Report:
    """Write one self-contained HTML page about runs."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")]
    """Run folders, or archives of them (.tar.xz), and tables of other programs in the format of Cohen et al.; each may
    have a name, NAME=RUN."""
    out: Path = Path("report.html")
    """The page."""
    title: str = "Robustness report"
    """Heading of the page."""
    common: OutputOptions = Output()

    def run(self) -> dict[str, Any]:
        if not self.runs:
            raise ValueError("at least one run folder must be given, got none")
        check_output("out", self.out)
        with opened(self.runs, named=True) as found:
            written = write_report(found.paths, self.out, title=self.title, names=found.names)
        for problem in written.problems:
            say(problem)
        return {
            "report": str(written.path),
            "problems": list(written.problems),
            "left_out": list(written.left_out),
            "contradictions": list(written.contradictions),
        }

    def show(self, result: dict[str, Any]) -> None:
        print(result["report"])

    def failure(self, result: dict[str, Any]) -> str | None:
        """Numbers that cannot both be right, and what had to be left out; the page names both."""
        lines = list(result["contradictions"])
        if count := len(result["left_out"]):
            lines.append(f"{count} of the records and files could not be shown: see the lines above")
        return " ".join(lines) or None


COMMAND = Report
