"""The paper's tables: what each one is, where it stands, and its known defects."""

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Defect:
    """What is wrong with a printed table, or left open by it; a defect is told, never corrected."""

    text: str
    rows: tuple[str, ...] = ()
    """First keys of the rows concerned; none where it concerns the whole table."""
    columns: tuple[str, ...] = ()
    """Columns concerned; none where it concerns them all."""

    def concerns(self, key: str, column: str) -> bool:
        """Whether it is about this cell in particular."""
        return (
            bool(self.rows or self.columns)
            and (not self.rows or key in self.rows)
            and (not self.columns or column in self.columns)
        )


@dataclass(frozen=True)
class Printed:
    """One table of the paper."""

    name: str
    """Name of its CSV file."""
    label: str
    """Its label in the paper's source."""
    place: str
    """File of the paper's source, and the line in it at which the table begins."""
    caption: str
    """What the paper writes below it, shortened."""
    keys: int
    """Leading columns that name a row."""
    unit: Literal["percent", "share", "setting"]
    """What a cell holds: an accuracy in percent, an accuracy as a share, or a setting."""
    defects: tuple[Defect, ...] = ()

    @cached_property
    def lines(self) -> tuple[tuple[str, ...], ...]:
        """All lines as they are printed, the head first."""
        with (Path(__file__).parent / f"{self.name}.csv").open(newline="", encoding="utf-8") as file:
            return tuple(tuple(line) for line in csv.reader(file))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that hold numbers."""
        return self.lines[0][self.keys :]

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The keys of each row."""
        return tuple(line[: self.keys] for line in self.lines[1:])

    def text(self, row: tuple[str, ...], column: str) -> str:
        """A cell as it is printed."""
        if row not in self.rows or column not in self.columns:
            raise ValueError(f"{self.name} must have the cell {' '.join(row)} / {column}, but the paper prints none")
        return self.lines[1 + self.rows.index(row)][self.keys + self.columns.index(column)]

    def accuracy(self, row: tuple[str, ...], column: str) -> float | None:
        """A printed accuracy as a share; None where the paper prints none."""
        if self.unit == "setting":
            raise ValueError(f"{self.name} must hold accuracies, but it holds settings")
        if row not in self.rows or column not in self.columns:
            return None
        # A percentage with two digits is a share with four: rounding undoes the division's error.
        value = float(self.text(row, column))
        return round(value / 100, 4) if self.unit == "percent" else value

    def about(self, key: str, column: str) -> tuple[str, ...]:
        """The defects of one cell."""
        return tuple(defect.text for defect in self.defects if defect.concerns(key, column))


_EPS_OF_TABLE_2 = Defect(
    "The caption gives one eps, 0.92, for all three data sets; Table 1 pairs gamma 1.5 with 0.34 on MNIST and 0.93 on "
    "Tiny ImageNet. In the table for other gammas TRADES falls from 98.65% at 0.21 to 96.12% at 0.84, and on the line "
    "between them it has 98.13% at 0.34: MNIST was presumably attacked at 0.34.",
    columns=("MNIST robust", "MNIST natural", "Tiny ImageNet robust", "Tiny ImageNet natural"),
)
_SIGMA_OF_MNIST = Defect(
    "The text sets sigma to 0.1 by default and to 0.05 for gamma 0.25, 1.5 and 3 on MNIST. STN and Smoothing have the "
    "same natural accuracy here and in the table for other gammas, so 0.05 is the likelier noise.",
    columns=("MNIST robust", "MNIST natural"),
)
_PGD_ROW = Defect(
    "0.88% at 0.92 with 91.90% natural accuracy is not a model trained against L2 attacks of that radius.",
    rows=("PGD",),
    columns=("CIFAR-10 robust",),
)

TABLES = {
    table.name: table
    for table in (
        Printed(
            "table1",
            "tab:NAL settings",
            "experiment.tex, line 5",
            "Hyperparameters and perturbation ranges on different datasets. CIFAR-10 (R) represents CIFAR-10, "
            "ResNet-18 and CIFAR-10 (V) represents CIFAR-10, VGG-16.",
            1,
            "setting",
            (
                Defect(
                    "The text defines eps^2 as the mean of c(x + z, x0), noise included, which cannot fall below "
                    "d sigma^2: eps 5.54 on CIFAR-10 at sigma 0.1, 1.40 on MNIST at 0.05. The printed eps can only be "
                    "distances between clean inputs.",
                    columns=("eps",),
                ),
                Defect(
                    "Figure 1(d) and the supplement's figure on ELU models show several gammas on Tiny ImageNet; "
                    "only 1.5 is listed.",
                    rows=("Tiny ImageNet",),
                    columns=("gamma",),
                ),
                Defect(
                    "Optimiser, learning-rate schedule, augmentation, seeds, the number of noise draws at test time "
                    "and whether the attack sees the noise are not stated.",
                ),
            ),
        ),
        Printed(
            "baselines",
            "tab:baseline settings",
            "appendix_B.tex, line 26",
            "Baseline hyperparameter settings. gamma and eps are chosen from the setting in experiments.",
            2,
            "setting",
            (Defect("PGD and Smoothing have no row. Steps, draws and the weights of STN and TRADES are not stated."),),
        ),
        Printed(
            "table2",
            "tab:emprical acc",
            "experiment.tex, line 35",
            "NAL outperforms baselines on MNIST (CNN), CIFAR-10 (ResNet-18), and Tiny ImageNet (ResNet-18) under "
            "PGD-20 attack with gamma = 1.5, eps = 0.92.",
            1,
            "percent",
            (
                _EPS_OF_TABLE_2,
                _SIGMA_OF_MNIST,
                _PGD_ROW,
                Defect(
                    "The table for different noise has the natural accuracies 85.22, 80.66 and 86.69% for NAL, "
                    "SmoothAdv and STN at sigma 0.1, the same setting.",
                    rows=("NAL", "SmoothAdv", "STN"),
                    columns=("CIFAR-10 natural",),
                ),
            ),
        ),
        Printed(
            "table-pgd100",
            "tab:emprical acc pgd-100",
            "appendix_B.tex, line 234",
            "NAL outperforms baselines on MNIST (CNN), CIFAR-10 (ResNet-18), and Tiny ImageNet (ResNet-18) under "
            "PGD-100 attack with gamma = 1.5, eps = 0.92.",
            1,
            "percent",
            (
                _EPS_OF_TABLE_2,
                _SIGMA_OF_MNIST,
                Defect(
                    "Higher than under PGD-20, though the attack is stronger.",
                    rows=("PGD", "SmoothAdv", "Smoothing"),
                    columns=("MNIST robust",),
                ),
                Defect(
                    "Higher than under PGD-20, though the attack is stronger.",
                    rows=("PGD", "Smoothing"),
                    columns=("Tiny ImageNet robust",),
                ),
            ),
        ),
        Printed(
            "table-gamma",
            "tab:emprical acc on MINST and CIFAR with other eps",
            "appendix_B.tex, line 217",
            "Empirical accuracy on MNIST with eps = {0.21, 0.84}, gamma = {3, 0.25} and CIFAR-10 with "
            "eps = {0.4, 1.53}, gamma = {5, 0.25} under PGD-20 attack.",
            1,
            "percent",
            (
                Defect(
                    "The same in both columns of a data set, whose attack radii differ by a factor of four, and the "
                    "same as under PGD-100 at eps 0.92: copied cells.",
                    rows=("STN", "Smoothing"),
                    columns=("MNIST 0.21 robust", "MNIST 0.84 robust", "CIFAR-10 0.4 robust", "CIFAR-10 1.53 robust"),
                ),
                Defect(
                    "More than at eps 0.4 here (73.37%) and than at 0.92 in Table 2 (66.93%), and close to the natural "
                    "accuracy.",
                    rows=("NAL",),
                    columns=("CIFAR-10 1.53 robust",),
                ),
                Defect(
                    "The same as for eps 0.92 in Table 2, another model.",
                    rows=("PGD",),
                    columns=("CIFAR-10 0.4 natural",),
                ),
            ),
        ),
        Printed(
            "table-sigma",
            "tab:sigma change on cifar",
            "appendix_B.tex, line 132; its first five columns also in result.tex, line 9",
            "Different methods with different levels of noise on CIFAR-10, ResNet-18, gamma = 1.5 and (K, r) = (4, 4).",
            2,
            "share",
            (
                Defect(
                    "The caption says that the best at the same noise level is in bold; the bold numbers are the best "
                    "of each column over all levels."
                ),
                Defect(
                    "Natural accuracies differ from those of Table 2 at sigma 0.1, the same setting.", columns=("0",)
                ),
            ),
        ),
        Printed(
            "table-kr",
            "tab:changes with different s and K",
            "result.tex, line 34",
            "Testing accuracies of NAL (CIFAR-10, ResNet-18) on a variety of r and K. Under each setting, the model "
            "with the highest clean accuracy is chosen for testing.",
            2,
            "share",
            (
                Defect(
                    "(4, 4) has 0.6520 at radius 0.5 here and 0.7684 in the table for different noise. The rule that "
                    "chooses the epoch is the only stated difference; sigma and gamma are not given here."
                ),
                Defect("On which data the highest clean accuracy was looked for is not stated."),
            ),
        ),
        Printed(
            "table-sigma-kr",
            "tab:the large table",
            "appendix_B.tex, line 154",
            "NAL with different sigmas and (K, r) on CIFAR-10, ResNet-18 when gamma = 1.16.",
            3,
            "share",
            (
                Defect(
                    "The text says that the model cannot converge with (K, r) = (2, 1) and that it is not presented; "
                    "it is missing at sigma 0.12 only."
                ),
                Defect(
                    "The text says that r does not matter much; at sigma 0.12, K = 8 and radius 1.75 it is 0.7365 for "
                    "r = 1 and 0.3758 for r = 4.",
                    rows=("0.12",),
                ),
                Defect("gamma is 1.16 in this table alone; no eps is given for it."),
            ),
        ),
        Printed(
            "table-elu",
            "tab:comparison between ReLU and ELU",
            "appendix_B.tex, line 102",
            "Testing accuracies for the ReLU model and the ELU model on CIFAR-10, ResNet-18.",
            1,
            "share",
        ),
    )
}
"""Every table of the paper, by the name that `python -m reproduction` gives it."""


def page() -> str:
    """The printed tables as a page that can be held against the paper."""
    parts = [
        "# The paper's tables as they are printed",
        "Yang et al., *Certified Distributional Robustness on Smoothed Classifiers* (arXiv 2010.10987). Each number is "
        "typed once, in `reproduction/printed/`, and this page is written from there. Places are those of the "
        "paper's source on arXiv. What is wrong with a table, or left open by it, stands below it; the numbers are "
        "left as they are.",
    ]
    for table in TABLES.values():
        head, *rows = table.lines
        rule = ["---"] * table.keys + ["---:"] * len(table.columns)
        lines = [f"| {' | '.join(line)} |" for line in (head, rule, *rows)]
        unit = {"percent": "Accuracies in percent.", "share": "Accuracies as shares; columns are L2 radii."}
        parts += [f"## {table.name}", f"`{table.label}`, {table.place}. {table.caption}"]
        parts += [unit[table.unit]] if table.unit in unit else []
        parts.append("\n".join(lines))
        if table.defects:
            parts.append("\n".join(f"- {_about(defect)}{defect.text}" for defect in table.defects))
    return "\n\n".join(parts) + "\n"


def _about(defect: Defect) -> str:
    names = [", ".join(part) for part in (defect.rows, defect.columns) if part]
    return f"**{' / '.join(names)}**: " if names else ""
