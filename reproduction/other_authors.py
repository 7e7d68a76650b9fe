"""Certified accuracy on CIFAR-10 that other authors published, counted from the logs in their repositories.

`other_authors.csv` holds shares of all 10,000 test images, correct and certified at a radius, and the average certified
radius, each rounded to four digits. The networks are ResNet-110, trained without extra data and certified with
100,000 noise samples at alpha 0.001.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from reproduction.render import markdown_table, write_table

LOGS = {
    "catrs": "github.com/alinlab/smoothing-catrs, commit d4bc576 (Jeong, Kim and Shin, 2023)",
    "acr": "github.com/eth-sri/acr-weakness, commit 1c8ea59 (Sun et al., 2025), which trained all methods again",
}
"""Where the logs are: `data` of a repository."""
AVERAGE = "ACR"
SHOWN = ("0", "0.25", "0.5", "0.75", "1", "1.25", "1.5", AVERAGE)
"""Columns of the table; the file has more radii."""


@dataclass(frozen=True)
class Published:
    """One network of other authors."""

    sigma: float
    method: str
    log: str
    """One of `LOGS`."""
    values: dict[str, float]
    """By radius as text, and `AVERAGE`."""

    @property
    def curve(self) -> dict[float, float]:
        """Certified accuracy by radius."""
        return {float(column): value for column, value in self.values.items() if column != AVERAGE}


def published() -> list[Published]:
    """All networks of the file, in its order."""
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault((row["sigma"], row["method"], row["log"]), {})[row["column"]] = float(row["value"])
    return [Published(float(sigma), method, log, values) for (sigma, method, log), values in found.items()]


def write_other_authors(results: Path) -> list[Path]:
    """Write the table of other authors' numbers, as they round them: to nearest, four digits."""
    rows = [["method", "sigma", "log", *SHOWN]]
    for one in published():
        cells = (f"{one.values[column]:.4f}" if column in one.values else "" for column in SHOWN)
        rows.append([one.method, f"{one.sigma:g}", one.log, *cells])
    where = "; ".join(f"{name}: {place}" for name, place in LOGS.items())
    note = f"ResNet-110, all 10,000 test images, counted from the logs: {where}."
    page = f"# Certified accuracy of other authors on CIFAR-10\n\n{markdown_table(rows, 3)}\n{note}\n"
    cells = Path(__file__).with_suffix(".csv").read_text(encoding="utf-8")
    return write_table(results / "tables" / "table-other-authors.csv", page, cells)
