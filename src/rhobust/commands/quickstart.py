"""rhobust quickstart: from data to a report, on real digits in a few minutes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rhobust.attacks import EOT, PGD, AnyAttack
from rhobust.commands.options import Writing, WritingOptions, print_table, record_document
from rhobust.evaluation import Attack, Certify, CertifyShift, Corruptions, Evaluation, Target
from rhobust.evaluation import run as evaluate
from rhobust.files import check_folder
from rhobust.formatting import format_number
from rhobust.measurements.comparison import RADII
from rhobust.methods import ERM, NAL, AnyMethod, Gaussian
from rhobust.report import write_report
from rhobust.settings import kind_of
from rhobust.training import TrainConfig, resolve_device, train

SIGMA = 0.25
EPS = tuple(step / 20 for step in range(11))
METHODS: tuple[AnyMethod, ...] = (ERM(), Gaussian(sigma=SIGMA), NAL(sigma=SIGMA, gamma=1.0, draws=2))
ATTACKS: tuple[AnyAttack, ...] = (PGD(), EOT(steps=10))


@dataclass(frozen=True)
class Quickstart:
    """Train, attack and certify an undefended, a Gaussian and a NAL model on digits, and write a report.

    For a network of your own there is `rhobust evaluate`.
    """

    out: Path = Path("quickstart")
    """Folder for the runs and report.html."""
    epochs: int = 40
    """Passes over the training images."""
    limit: int = 200
    """Test images that are attacked and certified one by one; the distributional certificate takes all."""
    n: int = 2000
    """Noise samples per certificate."""
    seed: int = 0
    """Decides every random choice."""
    common: WritingOptions = Writing()

    def __post_init__(self) -> None:
        self._configs(), self._evaluations()  # they check their settings

    def _configs(self) -> list[TrainConfig]:
        return [
            TrainConfig(
                method,
                data="digits",
                model="cnn-small",
                epochs=self.epochs,
                batch_size=64,
                lr=2e-3,
                schedule="cosine",
                seed=self.seed,
            )
            for method in METHODS
        ]

    def _evaluations(self) -> list[Evaluation]:
        sample: dict[str, Any] = {"limit": self.limit, "seed": self.seed}
        return [
            *(Attack(attack=attack, radii=RADII, **sample) for attack in ATTACKS),
            Certify(procedure="fixed", radii=RADII, n=self.n, **sample),
            CertifyShift(eps=EPS, draws=50, seed=self.seed),
            Corruptions(draws=5, limit=min(100, self.limit), seed=self.seed),
        ]

    def run(self) -> dict[str, Any]:
        check_folder("out", self.out)
        device = resolve_device(self.common.device)
        progress = self.common.progress
        runs, results = [], []
        for config in self._configs():
            folder = self.out / kind_of(type(config.method))
            run = train(config, folder, device=device, resume=True, progress=progress, wait=self.common.wait)
            # The undefended model is smoothed with the same noise as the others, so that all meet the same tests.
            target = Target.from_run(run.folder, device=device, sigma=SIGMA)
            records = [evaluate(one, target, progress=progress, wait=self.common.wait) for one in self._evaluations()]
            runs.append(run.folder)
            results.append({"run": str(run.folder), "records": [record_document(record) for record in records]})
        page = write_report(runs, self.out / "report.html", title="rhobust quickstart: digits")
        return {"report": str(page.path), "runs": results}

    def show(self, result: dict[str, Any]) -> None:
        rows = []
        for method, run in zip(METHODS, result["runs"], strict=True):
            pgd, eot, certify, shift = (record["summary"] for record in run["records"][:4])
            rows.append(
                [
                    kind_of(type(method)),
                    format_number(pgd["robust_accuracy"][0]["accuracy"], 3, "nearest"),
                    format_number(_at(pgd["robust_accuracy"], "radius", 0.5)["accuracy"], 3, "nearest"),
                    format_number(_at(eot["robust_accuracy"], "radius", 0.5)["accuracy"], 3, "nearest"),
                    format_number(_at(certify["certified_accuracy"], "radius", 0.5)["accuracy"], 3, "down"),
                    format_number(_at(shift["curve"], "eps", 0.1)["certified_accuracy"], 3, "down"),
                ]
            )
        print_table(["model", "clean", "PGD 0.5", "EOT 0.5", "certified 0.5", "certified shift 0.1"], rows)
        print("clean, PGD: base network; EOT: attack on the smoothed one; certified: proved, alpha 0.001")
        print(result["report"])


def _at(curve: list[dict[str, Any]], key: str, value: float) -> dict[str, Any]:
    return next(point for point in curve if point[key] == value)


COMMAND = Quickstart
