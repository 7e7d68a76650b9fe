"""rhobust evaluate: from a network and images to a page."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from rhobust.assessment import Effort, evaluate
from rhobust.commands.options import Counting, CountingOptions, record_document
from rhobust.commands.target import FLAT, NetworkOptions
from rhobust.files import check_folder
from rhobust.proofs.claim import Classifier, ShiftClaim
from rhobust.proofs.subpopulation import factors
from rhobust.records import CONFIG
from rhobust.settings import check_declared


@dataclass(frozen=True)
class EvaluatedNetwork(NetworkOptions):
    """Which network is evaluated, on which images."""

    model: str | None = None
    """The network: package.module:factory, file.py:factory, rhobust:NAME, hf:ID, timm:NAME or torchvision:NAME."""
    data: str | None = None
    """Test data: a folder with one subfolder per class, an .npz file, the name of a data set, or
    hf-datasets:FOLDER-or-ID[:split[:config]]."""
    sigma: float | None = None
    """Smoothing noise; default: that of the network's training, of a run or `rhobust:NAME`, else 0.25."""
    unseen: bool = False
    """Leave out the test images that the run was trained on."""


@dataclass(frozen=True)
class Evaluate:
    """Evaluate any network on any images: accuracy, attacks, certificates, a diagnosis, and one page."""

    run_folder: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN]")] = None
    """A run folder; or give --model and --data."""
    network: Annotated[EvaluatedNetwork, FLAT] = field(default_factory=EvaluatedNetwork)
    effort: Effort = "quick"
    """quick: a minute or two; standard: a quarter of an hour; full: all images, 100,000 noise samples."""
    classifier: Classifier = "randomised"
    """The classifier whose accuracy under shift is certified: one noisy vote (randomised), the majority of a few
    (k-vote), or the class most probable under noise (majority)."""
    votes: int | None = None
    """Votes of the k-vote classifier; default: 3."""
    gamma: tuple[float, ...] | None = None
    """Certify every subpopulation under shift: largest factors of reweighting, e.g. 1 2 5; default: none of a quick
    effort, else 1 2 5 10."""
    out: Path | None = None
    """Folder for records and page; default: rhobust- and the network's name."""
    name: str | None = None
    """How the network is called on the page."""
    title: str | None = None
    """Heading of the page."""
    seed: int = 0
    """Random seed."""
    common: CountingOptions = Counting()

    def __post_init__(self) -> None:
        check_declared(self)
        ShiftClaim(classifier=self.classifier, votes=self.votes)
        if self.gamma is not None:
            factors(self.gamma)

    def run(self) -> dict[str, Any]:
        network = self.network
        if self.out is not None:
            check_folder("out", self.out)
        if (self.run_folder is None) == (network.model is None):
            given = "neither (rhobust evaluate --help has an example)" if network.model is None else "both"
            raise ValueError(f"one of a run folder and --model must be given, got {given}")
        if self.run_folder is not None and (network.weights or self.out or network.mean or network.std or self.name):
            raise ValueError("a run folder must be given without --weights, --out, --mean, --std and --name")
        if self.run_folder is not None and not (self.run_folder / CONFIG).is_file():
            why = f"it holds no {CONFIG}" if self.run_folder.is_dir() else "there is no such folder"
            raise ValueError(f"{self.run_folder} must be a run folder, but {why}")
        if network.model is not None and network.data is None:
            raise ValueError("--data must be given with --model, got none")
        result = evaluate(
            network.model or self.run_folder or "",
            network.data,
            sigma=network.sigma,
            effort=self.effort,
            out=self.out,
            weights=network.weights,
            mean=network.mean,
            std=network.std,
            name=self.name,
            title=self.title,
            device=self.common.device,
            seed=self.seed,
            progress=self.common.progress,
            trust=network.trust,
            wait=self.common.wait,
            executor=self.common.chosen(),
            unseen=network.unseen,
            resize=network.resize,
            crop=network.crop,
            claim=ShiftClaim(classifier=self.classifier, votes=self.votes),
            gamma=self.gamma,
            root=network.root,
        )
        return {
            "report": str(result.page),
            "diagnosis": [vars(finding) for finding in result.findings],
            "measurements": result.rows(),
            "records": [record_document(record) for record in result.records],
            "contradictions": list(result.contradictions),
            "text": str(result),
        }

    def show(self, result: dict[str, Any]) -> None:
        print(result["text"])

    def failure(self, result: dict[str, Any]) -> str | None:
        """Numbers that cannot both be right; the page names them too."""
        return " ".join(result["contradictions"]) or None


COMMAND = Evaluate
