"""rhobust publish."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.commands.options import Output, OutputOptions, print_warnings
from rhobust.process import say
from rhobust.publish import publish_run, push_folder
from rhobust.settings import check_declared


@dataclass(frozen=True)
class Publish:
    """Write a model card, the weights and the records of a run into a folder, ready for the Hugging Face Hub."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A finished run folder, or the folder of your own network's records."""
    out: Path
    """A new folder: README.md, model.safetensors, config.json, records/."""
    weights: Path | None = None
    """Weights of the user's own network, a safetensors file; default: those inside the folder."""
    trust: bool = False
    """Read the weights that the folder names, wherever they are."""
    license: str | None = None
    """Licence of the weights, as the Hub names it, such as mit."""
    title: str | None = None
    """Heading of the card; default: the method and its main settings."""
    push: str | None = None
    """Upload the folder to this repository of the Hub, user/name; needs huggingface-hub and a login."""
    private: bool = False
    """Make the repository private if it is new."""
    common: OutputOptions = Output()

    def __post_init__(self) -> None:
        check_declared(self)
        if self.private and self.push is None:
            raise ValueError("private must come with --push, got no --push")

    def run(self) -> dict[str, Any]:
        written = publish_run(
            self.run_folder, self.out, weights=self.weights, trust=self.trust, licence=self.license, title=self.title
        )
        for line in (*written.left_out, *written.contradictions):
            say(line)
        found = {
            "folder": str(written.folder),
            "files": list(written.files),
            "left_out": list(written.left_out),
            "contradictions": list(written.contradictions),
            "warnings": list(written.warnings),
        }
        if self.push is None or written.contradictions or written.left_out:
            return {**found, "pushed": None}
        return {**found, "pushed": push_folder(written.folder, self.push, private=self.private)}

    def show(self, result: dict[str, Any]) -> None:
        print("\n".join(f"{result['folder']}/{name}" for name in result["files"]))
        print_warnings(result["warnings"])
        if result["pushed"] is not None:
            print(result["pushed"])

    def failure(self, result: dict[str, Any]) -> str | None:
        """Numbers that cannot both be right, and records that had to be left out: neither is pushed."""
        lines = list(result["contradictions"])
        if count := len(result["left_out"]):
            lines.append(f"{count} records could not be published: see the lines above")
        if lines and self.push is not None:
            lines.append("nothing was pushed")
        return ". ".join(lines) or None


COMMAND = Publish
