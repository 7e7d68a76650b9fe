"""rhobust audit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.archives import opened
from rhobust.commands.options import Common, CommonOptions, print_table
from rhobust.evaluation import audit_record
from rhobust.evaluation.audit import AUDITED
from rhobust.records import read_head, record_paths
from rhobust.training import resolve_device


@dataclass(frozen=True)
class Audit:
    """Recompute what records certify from their counts, and sample some examples again; exit code 1 on a mismatch."""

    records: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RECORD [RECORD ...]")]
    """Record files of certify and certify-shift, run folders or archives (.tar.xz) for all records in them."""
    share: float = 0.05
    """Share of a record's examples that are sampled again, at least one; 0 for none."""
    data: str | None = None
    """Test data; default: that of the run."""
    root: Path | None = None
    """Folder of the data sets; default: $RHOBUST_DATA, else a cache folder."""
    seed: int = 0
    """Chooses the examples that are sampled again."""
    common: CommonOptions = Common()

    def run(self) -> dict[str, Any]:
        device = resolve_device(self.common.device)
        with opened(self.records) as found:
            audits = [
                audit_record(
                    path,
                    device=device,
                    share=self.share,
                    seed=self.seed,
                    data=self.data,
                    root=self.root,
                    progress=self.common.progress,
                )
                | {"record": str(found.original(path))}
                for path in _files(found.paths)
            ]
        return {"audits": audits}

    def show(self, result: dict[str, Any]) -> None:
        names = _names(result["audits"])
        rows = [
            [
                name,
                "FAILED" if audit["problems"] else "confirmed",
                str(audit["examples"]),
                str(audit["redrawn"]),
                str(audit["draws"]),
            ]
            for name, audit in zip(names, result["audits"], strict=True)
        ]
        print_table(["record", "audit", "images recomputed", "images sampled again", "noise samples"], rows, left=2)
        for name, audit in zip(names, result["audits"], strict=True):
            for problem in audit["problems"]:
                print(f"{name}: {problem}")

    def failure(self, result: dict[str, Any]) -> str | None:
        """Records that fail."""
        names = _names(result["audits"])
        failed = [name for name, audit in zip(names, result["audits"], strict=True) if audit["problems"]]
        return f"the audit failed for {', '.join(failed)}" if failed else None


def _files(paths: list[Path]) -> list[Path]:
    """The records to audit: files as they are given, and all in folders."""
    found = []
    for path in paths:
        if path.is_dir():
            found += [file for file in record_paths(path, "certify") if read_head(file).get("kind") in AUDITED]
        else:
            found.append(path)
    if not found:
        raise ValueError(f"records must name a record of {' or '.join(AUDITED)}, or a folder with one, got none")
    return found


def _names(audits: list[dict[str, Any]]) -> list[str]:
    """The records by their names, with their folders where there are several."""
    paths = [Path(audit["record"]) for audit in audits]
    several = len({path.parent for path in paths}) > 1
    return [f"{path.parent.name}/{path.name}" if several else path.name for path in paths]


COMMAND = Audit
