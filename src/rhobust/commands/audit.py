"""rhobust audit."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.archives import opened
from rhobust.commands.options import Common, CommonOptions, print_table
from rhobust.commands.target import FLAT, ImageOptions, check_named
from rhobust.evaluation import audit_file
from rhobust.evaluation.audit import AUDITED, MISSED, audit_seed
from rhobust.formatting import format_percent, printable
from rhobust.records import network_folder, record_paths
from rhobust.settings import check_at_least, check_declared
from rhobust.signatures import check_signers, signer
from rhobust.training import resolve_device


@dataclass(frozen=True)
class AuditedNetworks(ImageOptions):
    """Which networks are asked again, and on which images."""

    model: str | None = None
    """The code of a user's own network, package.module:factory, that a folder may run."""
    weights: Path | None = None
    """Its weights, safetensors or a file of torch.save; default: those inside the folder."""


@dataclass(frozen=True)
class Audit:
    """Recompute what records certify from their counts, and sample some examples again; exit code 1 on a mismatch."""

    records: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RECORD [RECORD ...]")]
    """Record files of certify, certify-shift and conform, run folders or archives (.tar.xz) for all records in them."""
    share: float = 0.05
    """Share of a record's examples that are sampled again, at least one; 0 for none."""
    networks: Annotated[AuditedNetworks, FLAT] = field(default_factory=AuditedNetworks)
    seed: int | None = None
    """Chooses the images that are sampled again; default: from the operating system, so that nobody can know them
    beforehand. The result names it."""
    signers: Path | None = None
    """Who may sign, an allowed signers file of OpenSSH: every record must have a good signature by one of them."""
    common: CommonOptions = Common()

    def __post_init__(self) -> None:
        check_declared(self)
        check_at_least(0, self, "seed")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must be in [0, 1], got {self.share:g}")

    def run(self) -> dict[str, Any]:
        device = resolve_device(self.common.device)
        seed = audit_seed() if self.seed is None else self.seed
        if self.signers is not None:
            check_signers(self.signers)
        with opened(self.records) as found:
            folders = [path if path.is_dir() else network_folder(path) for path in found.paths]
            check_named(folders, self.networks.model, trust=self.networks.trust)
            audits = [
                audit | {"record": str(found.original(Path(audit["record"])))}
                for path in found.paths
                for audit in _audits(
                    path,
                    self.signers,
                    device=device,
                    share=self.share,
                    seed=seed,
                    progress=self.common.progress,
                    **vars(self.networks),
                )
            ]
        if not audits:
            raise ValueError(f"records must name a record of {', '.join(AUDITED)}, or a folder with one, got none")
        return {"seed": seed, "audits": audits}

    def show(self, result: dict[str, Any]) -> None:
        names = _names(result["audits"])
        rows = [
            [
                name,
                _verdict(audit),
                str(audit["examples"]),
                f"{audit['redrawn']} of {audit['examples']}",
                str(audit["draws"]),
                _share(audit),
            ]
            for name, audit in zip(names, result["audits"], strict=True)
        ]
        columns = ["record", "audit", "images recomputed", "sampled again", "noise samples", "forged share found"]
        print_table(columns, rows, left=2)
        if any(audit["redrawn"] for audit in result["audits"]):
            print(
                f"\nSampled again were images chosen by seed {result['seed']} (--seed repeats it). If at least the"
                f" forged share in the last column of a record's counts were forged, this would have missed all of them"
                f" with probability at most {MISSED:.0%}."
            )
        else:
            print("\nNo image was sampled again: forged counts would not be noticed.")
        for name, audit in zip(names, result["audits"], strict=True):
            for problem in audit["problems"]:
                print(f"{name}: {problem}")

    def failure(self, result: dict[str, Any]) -> str | None:
        """Records that fail."""
        names = _names(result["audits"])
        failed = [name for name, audit in zip(names, result["audits"], strict=True) if audit["problems"]]
        return f"the audit failed for {', '.join(failed)}" if failed else None


def _audits(path: Path, signers: Path | None, **options: Any) -> list[dict[str, Any]]:
    """The audits of a file, or of all records in a folder; of other kinds those with a problem."""
    folder = path.is_dir()
    audits = [
        audit_file(file, **options) if signers is None else _signed(file, signers, audit_file(file, **options))
        for file in (record_paths(path) if folder else [path])
    ]
    for audit in audits:
        if not folder and audit["kind"] not in AUDITED and not audit["problems"]:
            raise ValueError(f"{path} must be a record of {', '.join(AUDITED)}, got one of {audit['kind']}")
    return [audit for audit in audits if audit["kind"] in AUDITED or audit["problems"]]


def _signed(path: Path, signers: Path, audit: dict[str, Any]) -> dict[str, Any]:
    """The audit with who signed the record, or with the problem that nobody allowed did."""
    try:
        return {**audit, "signed_by": signer(path, signers)}
    except ValueError as error:
        return {**audit, "signed_by": None, "problems": [*audit["problems"], str(error)]}


def _verdict(audit: dict[str, Any]) -> str:
    if audit["problems"]:
        return "FAILED"
    by = f", signed by {printable(audit['signed_by'])}" if "signed_by" in audit else ""
    return f"confirmed{by}" if audit["finished"] else f"confirmed, unfinished{by}"


def _share(audit: dict[str, Any]) -> str:
    """The smallest forged share of a record that is found but for the probability `MISSED`, rounded up."""
    if audit["found_from"] is None:
        return "–"
    return f"{format_percent(audit['found_from'] / audit['examples'], 'up')}%"


def _names(audits: list[dict[str, Any]]) -> list[str]:
    """The records by their names, with their folders where there are several."""
    paths = [Path(audit["record"]) for audit in audits]
    several = len({path.parent for path in paths}) > 1
    return [f"{path.parent.name}/{path.name}" if several else path.name for path in paths]


COMMAND = Audit
