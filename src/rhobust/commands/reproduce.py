"""rhobust reproduce."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from rhobust.commands.options import Common, CommonOptions, print_table
from rhobust.formatting import format_duration
from rhobust.paper.estimate import estimate
from rhobust.paper.pages import check, insert
from rhobust.paper.plan import BEYOND, GROUPS, SPECS, plan
from rhobust.paper.publishing import publish
from rhobust.paper.reproduce import reproduce
from rhobust.paper.scales import SCALES, ScaleName
from rhobust.paper.workshop import Workshop
from rhobust.training import resolve_device


@dataclass(frozen=True)
class Reproduce:
    """Make tables and figures of the paper beside its printed numbers; what is there is not made again."""

    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME [NAME ...]")]
    """Tables and figures, all for those of the paper, or ours for those beyond it; see docs/reproduce.md."""
    scale: ScaleName = "smoke"
    """smoke: digits and tiny networks, minutes; small: MNIST, an evening; gpu: shorter trainings; full: the paper."""
    out: Path | None = None
    """Folder for runs, tables and figures; reproduction/ and the scale where none is given."""
    root: Path | None = None
    """Where the data sets lie."""
    plan: bool = False
    """Print the runs, what they cost on this device and what is there already; start nothing."""
    minutes: float = math.inf
    """Begin no training and no evaluation after so long, on a machine that is lent; call it again to go on."""
    draw_only: bool = False
    """Train and evaluate nothing: make tables and figures of what is there."""
    publish: Path | None = None
    """Also copy runs and records into this folder, compressed and without weights, and draw there."""
    into: tuple[Path, ...] = ()
    """Markdown pages into which what is made is put, between the marks <!-- NAME --> and <!-- /NAME -->."""
    common: CommonOptions = Common()

    def run(self) -> dict[str, Any]:
        known = SPECS | BEYOND
        unknown = [name for name in self.names if name not in known and name not in GROUPS]
        if unknown or not self.names:
            raise ValueError(f"names must be all, ours or of {', '.join(known)}, got {' '.join(unknown) or 'none'}")
        others = {"draw-only": self.draw_only, "publish": self.publish, "into": self.into}
        if self.plan and (given := next((name for name, value in others.items() if value), None)):
            raise ValueError(f"--plan and --{given} must not be given together")
        scale = SCALES[self.scale]
        chosen = plan(self.names, scale)
        if not chosen.specs:
            raise ValueError(f"{' '.join(self.names)} must have a data set at the scale {self.scale}, but has none")
        made = [spec.name for spec in chosen.specs]
        check(self.into, made)
        out = self.out or Path("reproduction") / self.scale
        workshop = Workshop(out, resolve_device(self.common.device), self.root, self.common.progress)
        with _threads(scale.threads):
            if self.plan:
                return estimate(chosen, workshop)
            outcome = reproduce(chosen, workshop, draw_only=self.draw_only, minutes=self.minutes)
            if self.publish is not None:
                publish(out, self.publish)
                outcome = reproduce(chosen, replace(workshop, out=self.publish), draw_only=True)
        for page in self.into:
            insert(page, made, self.publish or out)
        files = [*outcome.files, *self.into]
        return {"files": [str(path) for path in files], "faults": list(outcome.faults)}

    def failure(self, result: dict[str, Any]) -> str | None:
        """One line where something that was asked for is missing in what was made."""
        count = len(result.get("faults", ()))
        reasons = "1 reason" if count == 1 else f"{count} reasons"
        return f"tables or figures have gaps, for {reasons}: see the warnings" if count else None

    def show(self, result: dict[str, Any]) -> None:
        if not self.plan:
            for path in result["files"]:
                print(path)
            for fault in result["faults"]:
                print(f"warning: {fault}")
            return
        lines: list[dict[str, Any]] = [*result["work"], {"name": "all of these, each once", **result["total"]}]
        rows = [
            [
                line["name"],
                f"{line['runs_done']} of {line['runs']}",
                f"{line['evaluations_done']} of {line['evaluations']}",
                f"{line['forward_passes']:.2g}",
                format_duration(line["seconds"]),
            ]
            for line in lines
        ]
        print_table(["what", "runs there", "evaluations there", "forward passes", "time left"], rows)
        print(f"time on {result['device']} after a short calibration: an estimate")


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


COMMAND = Reproduce
