"""The benchmark against the peers' own files: how their files are found and imported, and what the table shows."""

import sys

import pytest
import scipy.stats

from benchmarks.__main__ import main
from benchmarks.peers import load_peer, parse_peers
from benchmarks.samples import samples_table
from benchmarks.speed import speed_table

CORE = """
from scipy.stats import norm, binom_test
from statsmodels.stats.proportion import proportion_confint


def both():
    return binom_test(9, 10), proportion_confint(90, 100, alpha=0.002, method="beta")[0]
"""


def test_a_peers_file_is_imported_as_it_is(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "core.py").write_text(CORE)
    found = parse_peers([f"locuslab/smoothing={tmp_path}"])
    assert found == {"locuslab/smoothing": tmp_path / "code" / "core.py"}
    p, low = load_peer(found["locuslab/smoothing"]).both()
    assert p == pytest.approx(scipy.stats.binomtest(9, 10).pvalue)
    assert low == pytest.approx(scipy.stats.beta.ppf(0.001, 90, 11))
    # Nothing of it stays behind.
    assert not hasattr(scipy.stats, "binom_test")
    assert "peer_core" not in sys.modules


def test_a_clone_that_lacks_a_file_is_one_line(tmp_path):
    (tmp_path / "autoattack").mkdir()
    (tmp_path / "autoattack" / "__init__.py").write_text("from .missing_file import AutoAttack\n")
    found = parse_peers([f"fra31/auto-attack={tmp_path}"])
    with pytest.raises(ValueError, match=r"must be importable with what is installed, got: .*missing_file"):
        load_peer(found["fra31/auto-attack"])


@pytest.mark.parametrize("given", ["smoothing=.", "locuslab/smoothing", "locuslab/smoothing=nowhere"])
def test_a_peer_that_is_not_there_is_one_line(given, capsys):
    assert main(["speed", "--device", "cpu", "--peer", given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "must" in line


def test_the_tables_show_every_row():
    row = {"name": "certify", "value": 380000.0, "unit": "samples/s", "against": "core.py", "their_value": 76000.0}
    result = {"device": "cpu", "torch": "2", "threads": 1, "failed": {"vit": "no torchvision"}}
    curves = {"seconds over images": [{"at": 1, "value": 0.3, "unit": "s"}]}
    table = speed_table({**result, "rows": [{**row, "ratio": 5.0, "wanted": 5}], "curves": curves})
    assert table.rows == [["certify", "3.8e+05", "samples/s", "core.py", "7.6e+04", "5.00", "5"]]
    assert table.notes == ["not measured: vit: no torchvision", "seconds over images: 1: 0.3 s"]
    way = {"mean_draws": 5890.0, "median_draws": 5504.0, "same": 0.9969, "more": 0.002, "false": 0.0008}
    group = {"sigma": 0.25, "radii": [0.0, 0.25], "images": 6000, "ways": {"boundary": way}}
    table = samples_table({"alpha": 0.001, "n": 100_000, "groups": [group]})
    assert table.rows == [["0.25: 0 0.25", "boundary", "5,890", "5,504", "99.69%", "0.20%", "0.0008"]]
