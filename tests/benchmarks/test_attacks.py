"""The attack benchmark compares the same sweep of the same network, and leaves the generators alone."""

import sys
from functools import partial

import pytest
import torch

from benchmarks import Setting, attacks
from benchmarks.attacks import attacks_table, bench_attacks
from benchmarks.peers import load_peer, parse_peers
from rhobust.progress import no_progress


@pytest.fixture
def result(monkeypatch, tmp_path):
    pytest.importorskip("foolbox")
    monkeypatch.setattr(attacks, "IMAGES", 40)
    monkeypatch.setattr(attacks, "RADII", (0.3, 0.6))
    monkeypatch.setattr(attacks, "ROUNDS", 1)
    return bench_attacks(Setting(torch.device("cpu"), root=tmp_path, progress=no_progress))


def test_on_digits_where_mnist_is_not_at_hand(result):
    assert (result["data"], result["images"], result["radii"]) == ("digits", 40, [0.3, 0.6])
    own, foolbox, plain, *_, default = result["ways"]
    assert [own["name"], foolbox["name"], plain["name"]] == ["rhobust", "foolbox", "foolbox, torch's layers"]
    assert default["name"] == "rhobust by default"
    assert all(a <= b for a, b in zip(default["robust_accuracy"], own["robust_accuracy"], strict=True))
    # The two networks are one function, so foolbox's attack breaks the same images but for roundings.
    assert plain["robust_accuracy"] == pytest.approx(foolbox["robust_accuracy"], abs=0.03)
    assert own["robust_accuracy"][0] > own["robust_accuracy"][1] > 0.1
    # 1 of 40 images is left to chance; a benchmark of 256 images shows the rest.
    assert all(a <= b + 0.026 for a, b in zip(own["robust_accuracy"], foolbox["robust_accuracy"], strict=True))
    table = attacks_table(result)
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert len(table.notes) == len(result["ways"]) - 1


def test_the_table_says_where_the_others_are_better():
    ways = [
        {"name": "rhobust", "seconds": 1.0, "cpu_seconds": 1.0, "ratio": 1.0, "robust_accuracy": [0.9, 0.5]},
        {"name": "foolbox", "seconds": 4.0, "cpu_seconds": 4.0, "ratio": 4.0, "robust_accuracy": [0.9, 0.6]},
        {"name": "torchattacks", "seconds": 2.0, "cpu_seconds": 2.0, "ratio": 2.0, "robust_accuracy": [0.9, 0.47]},
    ]
    about = {"images": 10, "data": "digits", "device": "cpu", "threads": 1, "torch": "2", "their_steps": 20}
    auto = {"images": 4, "radius": 0.5, "ways": [{**ways[1], "name": "the authors' files"}]}
    table = attacks_table({**about, "radii": [0.5, 1.0], "ways": ways, "autoattack": auto})
    assert table.notes == [
        "rhobust 4.0 times as fast as foolbox; robust accuracy no higher at any radius",
        "rhobust 2.0 times as fast as torchattacks; robust accuracy higher by up to 3.0 points",
        "AutoAttack standard, radius 0.5, 4 images, the authors' files: 0.900 robust, 4.0 s (4.0 times ours)",
    ]


PACKAGE = """
class AutoAttack:
    def __init__(self, model, norm, eps, seed, verbose, device):
        assert (norm, eps, device) == ("L2", 0.4, "cpu")

    def run_standard_evaluation(self, x, y, bs):
        assert len(x) == bs == 6
        return x
"""


def test_autoattack_is_compared_with_its_authors_own_package(monkeypatch, tmp_path):
    pytest.importorskip("pyautoattack")
    package = tmp_path / "auto-attack" / "autoattack"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE)
    for name, value in (("IMAGES", 12), ("RADII", (0.3,)), ("ROUNDS", 1), ("FEW", 6), ("RADIUS", 0.4)):
        monkeypatch.setattr(attacks, name, value)
    monkeypatch.setattr(attacks, "find_spec", lambda name: None)
    monkeypatch.setattr(attacks, "AutoAttack", partial(attacks.AutoAttack, steps=3, queries=5))
    peers = parse_peers([f"fra31/auto-attack={package.parent}"])
    try:
        found = bench_attacks(Setting(torch.device("cpu"), root=tmp_path, progress=no_progress, peers=peers))
    finally:
        sys.modules.pop("autoattack", None)
    auto = found["autoattack"]
    assert (auto["images"], auto["radius"]) == (6, 0.4)
    ours, theirs = auto["ways"]
    # Theirs moves nothing here: what is left is the accuracy itself, and ours leaves no more.
    assert ours["robust_accuracy"][0] <= theirs["robust_accuracy"][0]
    assert theirs["ratio"] == pytest.approx(theirs["seconds"] / ours["seconds"])


def test_a_package_that_is_installed_elsewhere_is_not_taken_for_the_clone(tmp_path):
    package = tmp_path / "json"
    package.mkdir()
    (package / "__init__.py").write_text("")
    with pytest.raises(ValueError, match=r"json must be imported from .* but it is installed too"):
        load_peer(package / "__init__.py")
