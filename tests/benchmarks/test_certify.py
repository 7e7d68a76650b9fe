"""The certification benchmark: what it compares is the same thing, and its document holds what the table shows."""

import numpy as np
import pytest
import torch

from benchmarks import Setting, certify
from benchmarks.certify import bench_certify, certify_table
from benchmarks.reference import reference_votes
from rhobust.certificates import Smoothing, count_votes
from rhobust.cli import run
from rhobust.data import to_unit
from rhobust.progress import no_progress


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "run"
    options = (
        "method:gaussian --method.sigma 0.25 --data digits --model cnn-small --epochs 2 --lr 0.002 --batch-size 100"
    )
    assert run(["train", *options.split(), "--out", str(out), "--quiet"]) == 0
    return out


def test_the_reference_counts_the_same_votes(half_space, grey_images):
    # 3000 votes each of a probability near 0.7: the difference has a deviation of 0.012.
    image = grey_images.images[21]
    theirs = reference_votes(
        half_space, to_unit(image), sigma=0.25, n=3000, batch=1000, num_classes=2, rng=torch.Generator().manual_seed(0)
    )
    ours = count_votes(half_space, image[None], Smoothing(0.25, 2), indices=[0], draws=3000, purpose="bench")[0]
    assert theirs.sum() == 3000
    assert abs(theirs[1] - int(ours[1])) / 3000 < 0.06


@pytest.mark.parametrize("has", [{}, {"avx512_bf16": True}])
def test_the_document_and_its_table(folder, monkeypatch, has):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    monkeypatch.setattr(certify, "N", 1500)
    monkeypatch.setitem(certify.SCALES, "cpu", certify.Scale(loops=1, fixed=1, grid=8))
    monkeypatch.setattr(certify, "_art_seconds", lambda target, images: (2.0, 4.0))
    result = bench_certify(Setting(torch.device("cpu"), run=folder, progress=no_progress))
    names = ["reference, float32, batch 1000", "ART, batch 1000", "ours, float32", *(["ours, bfloat16"] if has else [])]
    assert [rate["name"] for rate in result["rates"]] == names
    assert result["rates"][1]["samples_per_second"] == pytest.approx(1600 / 2.0)
    assert result["rates"][1]["samples_per_cpu_second"] == pytest.approx(1600 / 4.0)
    decisions = result["decisions"]
    assert (decisions["images"], decisions["radii"]) == (8, [0.0, 0.25, 0.5, 0.75])
    assert 0.7 < decisions["same"] <= 1
    assert decisions["times_fewer_draws"] == pytest.approx(1500 / decisions["mean_draws"])
    assert decisions["times_longer"]["ART, batch 1000"] == pytest.approx(2.0 / decisions["seconds_per_image"])
    table = certify_table(result)
    assert [row[0] for row in table.rows] == names
    assert table.rows[0][2] == "1.00"
    assert "8 images" in table.notes[0]


def test_a_peer_without_a_package_that_it_needs_is_left_out(folder, monkeypatch):
    def fails(target, images):
        raise ModuleNotFoundError("No module named 'statsmodels'")

    said = []
    monkeypatch.setattr(certify, "N", 1500)
    monkeypatch.setitem(certify.SCALES, "cpu", certify.Scale(loops=1, fixed=1, grid=1))
    monkeypatch.setattr(certify, "_art_seconds", fails)
    result = bench_certify(Setting(torch.device("cpu"), run=folder, progress=lambda event: said.append(str(event))))
    assert not any("ART" in rate["name"] for rate in result["rates"])
    assert "bench certify: ART is left out: No module named 'statsmodels'" in said


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_peer_certifies_the_same_image(folder, monkeypatch):
    pytest.importorskip("art")
    pytest.importorskip("statsmodels")
    monkeypatch.setattr(certify, "N", 2000)
    kept = np.random.get_state()[1].copy()  # noqa: NPY002
    target = certify._target(Setting(torch.device("cpu"), run=folder, progress=no_progress), folder)
    assert min(certify._art_seconds(target, target.data.images[:1])) > 0
    assert np.array_equal(kept, np.random.get_state()[1])  # noqa: NPY002
