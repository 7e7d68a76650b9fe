"""The paper's numbers as they were typed.

The sums were taken once from the paper's own source, cell by cell, by a script that shares nothing with the package.
After a change of a table, write the page anew:

    PYTHONPATH=. python tests/reproduction/test_reported.py
"""

from decimal import Decimal
from pathlib import Path

import pytest

from reproduction import settings
from reproduction.reported import TABLES, page

PAGE = Path(__file__).parents[2] / "reproduction" / "reported" / "README.md"

SUMS = {
    "table2": "586.66 594.66 222.45 511.93 161.85 352.07",
    "table-pgd100": "586.75 594.66 220.43 511.93 161.65 352.07",
    "table-gamma": "589.02 594.56 570.10 594.94 297.95 525.03 198.98 496.81",
    "table-sigma": "7.4185 6.6869 5.7261 4.7239 3.7838 2.9523 2.2691 1.7176",
    "table-kr": "5.1333 4.5605 3.8129 2.9891 2.1790",
    "table-sigma-kr": "17.8122 16.7911 15.6762 14.4213 13.0507 11.5722 10.0619 8.5184",
    "table-elu": "1.7118 1.6201 1.5032 1.361 1.1931 1.0071 0.8144",
}
ROWS = {"table2": 6, "table-pgd100": 6, "table-gamma": 6, "table-sigma": 9, "table-kr": 6, "table-sigma-kr": 23}
SPOTS = [
    ("table2", ("NAL",), "CIFAR-10 robust", 0.6693),
    ("table2", ("PGD",), "CIFAR-10 robust", 0.0088),
    ("table2", ("Smoothing",), "Tiny ImageNet natural", 0.5996),
    ("table-pgd100", ("TRADES",), "CIFAR-10 robust", 0.5015),
    ("table-gamma", ("PGD",), "CIFAR-10 1.53 robust", 0.0),
    ("table-gamma", ("NAL",), "MNIST 0.84 natural", 0.9929),
    ("table-sigma", ("STN", "0.05"), "1.75", 0.0063),
    ("table-sigma", ("NAL", "0.1"), "0.75", 0.7140),
    ("table-kr", ("8", "8"), "1", 0.3978),
    ("table-sigma-kr", ("0.12", "8", "1"), "1.75", 0.7365),
    ("table-sigma-kr", ("0.5", "2", "1"), "0", 0.6434),
    ("table-elu", ("ELU",), "0.75", 0.647),
]


def column(name, title):
    return [TABLES[name].text(row, title) for row in TABLES[name].rows]


@pytest.mark.parametrize("name", SUMS)
def test_every_column_has_the_sum_of_the_paper(name):
    sums = [sum(map(Decimal, column(name, title))) for title in TABLES[name].columns]
    assert sums == [Decimal(text) for text in SUMS[name].split()]


@pytest.mark.parametrize(("name", "rows"), ROWS.items())
def test_no_row_is_missing_or_twice(name, rows):
    assert len(TABLES[name].rows) == len(set(TABLES[name].rows)) == rows


@pytest.mark.parametrize(("name", "row", "title", "value"), SPOTS)
def test_single_cells(name, row, title, value):
    assert TABLES[name].accuracy(row, title) == value


def test_a_cell_that_the_paper_does_not_print():
    table = TABLES["table-sigma-kr"]
    assert table.accuracy(("0.12", "2", "1"), "0") is None
    with pytest.raises(ValueError, match=r"must have the cell 0\.12 2 1 / 0"):
        table.text(("0.12", "2", "1"), "0")
    with pytest.raises(ValueError, match="must hold accuracies"):
        TABLES["table1"].accuracy(("MNIST",), "gamma")


def test_the_settings_of_table_1_and_of_the_baselines():
    assert {setup.name: dict(setup.eps_of) for setup in settings.SETUPS} == {
        "MNIST": {0.25: 0.84, 1.5: 0.34, 3.0: 0.21},
        "CIFAR-10 (R)": {0.25: 1.53, 1.5: 0.92, 5.0: 0.40},
        "CIFAR-10 (V)": {0.25: 1.23, 1.5: 0.57, 5.0: 0.28},
        "Tiny ImageNet": {1.5: 0.93},
    }
    assert [(setup.eta2, setup.epochs) for setup in settings.SETUPS] == [
        (1e-4, 25),
        (1e-4, 100),
        (1e-4, 100),
        (2e-5, 100),
    ]
    assert set(column("baselines", "batch size")) == {str(settings.BATCH_SIZE)} == {"128"}
    assert settings.CIFAR_R.eps(1.5) == 0.92
    with pytest.raises(ValueError, match=r"gamma must be one that Table 1 lists for Tiny ImageNet \(1.5\), got 5"):
        settings.TINY.eps(5.0)


def test_the_defects_are_in_the_numbers():
    gamma, pgd100, table2 = TABLES["table-gamma"], TABLES["table-pgd100"], TABLES["table2"]
    for method in ("STN", "Smoothing"):
        for data, small, large in (("MNIST", "0.21", "0.84"), ("CIFAR-10", "0.4", "1.53")):
            copied = {gamma.text((method,), f"{data} {eps} robust") for eps in (small, large)}
            assert copied == {pgd100.text((method,), f"{data} robust")}
    assert gamma.accuracy(("NAL",), "CIFAR-10 1.53 robust") > table2.accuracy(("NAL",), "CIFAR-10 robust")
    assert gamma.text(("PGD",), "CIFAR-10 0.4 natural") == table2.text(("PGD",), "CIFAR-10 natural")
    low, high = (gamma.accuracy(("TRADES",), f"MNIST {eps} robust") for eps in ("0.21", "0.84"))
    assert round(low + (0.34 - 0.21) / (0.84 - 0.21) * (high - low), 4) == 0.9813
    risen = {
        (*row, title)
        for row in table2.rows
        for title in table2.columns
        if pgd100.accuracy(row, title) > table2.accuracy(row, title)
    }
    told = {
        (*row, title) for row in pgd100.rows for title in pgd100.columns if "Higher" in str(pgd100.about(*row, title))
    }
    assert risen == told != set()
    natural = [table2.text((method,), "CIFAR-10 natural") for method in ("NAL", "SmoothAdv", "STN")]
    assert natural == ["85.44", "80.06", "86.50"]
    relu = [TABLES["table-elu"].accuracy(("ReLU",), title) for title in TABLES["table-elu"].columns]
    assert relu == [TABLES["table-sigma"].accuracy(("NAL", "0.1"), title) for title in TABLES["table-elu"].columns]
    assert TABLES["table-kr"].accuracy(("4", "4"), "0.5") != TABLES["table-sigma"].accuracy(("NAL", "0.1"), "0.5")


def test_every_defect_names_cells_that_exist():
    for table in TABLES.values():
        first = {row[0] for row in table.rows}
        for defect in table.defects:
            assert set(defect.rows) <= first
            assert set(defect.columns) <= set(table.columns)


def test_the_page_shows_the_tables_as_they_are():
    assert PAGE.read_text(encoding="utf-8") == page(), f"see the head of {Path(__file__).name}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
