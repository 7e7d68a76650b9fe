"""rhobust sign."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.commands.options import Output, OutputOptions
from rhobust.measurements import read_finished
from rhobust.records import record_paths
from rhobust.signatures import sign_file


@dataclass(frozen=True)
class Sign:
    """Sign finished records with a key of OpenSSH: a file NAME.sig next to each, which audit --signers checks."""

    records: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RECORD [RECORD ...]")]
    """Record files, or run folders for all finished records in them."""
    key: Path
    """Your private key, such as ~/.ssh/id_ed25519, or the public one whose private key the agent holds."""
    common: OutputOptions = Output()

    def run(self) -> dict[str, Any]:
        if not self.records:
            raise ValueError("at least one record or run folder must be given, got none")
        paths = [path for given in self.records for path in (record_paths(given) if given.is_dir() else [given])]
        if not paths:
            raise ValueError(f"{self.records[0]} must hold a record, but there is none")
        for path in paths:
            read_finished(path)  # nobody should sign what is unfinished or was changed
        return {"signatures": [str(sign_file(path, self.key)) for path in paths]}

    def show(self, result: dict[str, Any]) -> None:
        print("\n".join(result["signatures"]))


COMMAND = Sign
