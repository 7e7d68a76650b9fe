"""What a notebook does with the public names: paths are strings, numbers are numpy's, the device is left out."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import rhobust
from rhobust import data, evaluation, measurements, records
from rhobust.attacks import PGD
from rhobust.methods import Gaussian
from rhobust.progress import no_progress

CONFIG = rhobust.TrainConfig(Gaussian(0.25), data="digits", model="cnn-small", epochs=1, batch_size=200, lr=0.002)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return rhobust.train(CONFIG, str(tmp_path_factory.mktemp("runs") / "x"), root="nowhere", progress=no_progress)


def test_a_run_is_trained_and_read_by_its_name(run):
    assert isinstance(run.folder, Path)
    assert rhobust.train(CONFIG, str(run.folder), device="cpu") == run
    for device in ("cpu", torch.device("cpu")):
        assert next(run.load_model(device).parameters()).device.type == "cpu"
    with pytest.raises(ValueError, match=r"device must be auto, cpu, or a CUDA device .*, got meta"):
        run.load_model("meta")


def test_data_is_found_by_its_name(tmp_path):
    where = str(tmp_path)
    assert {entry.where for entry in data.available(where) if entry.present} == {
        entry.where for entry in data.available(tmp_path) if entry.present
    }
    assert len(rhobust.load("digits", "test", root=where)) == data.check("digits", root=where).test
    assert data.data_root("~/x") == Path("~/x").expanduser()
    with pytest.raises(ValueError, match=f"{where}.*rhobust data get mnist"):
        rhobust.load("mnist", "test", root=where)
    image = rhobust.load("digits", "test").images[:3]
    np.save(tmp_path / "x.npy", image.numpy())
    np.save(tmp_path / "y.npy", np.arange(3))
    pairs = data.load_pairs(f"{where}/x.npy", f"{where}/x.npy", labels=f"{where}/y.npy")
    assert pairs.labels == (0, 1, 2)
    where_to = evaluation.Untargeted(tmp_path / "new" / "records", pairs=pairs)
    assert evaluation.run(evaluation.MeasureDistance(), where_to, progress=no_progress).path.exists()
    from PIL import Image

    Image.fromarray(image[0, 0].numpy()).save(tmp_path / "one.png")
    assert torch.equal(data.read_image(f"{where}/one.png"), image[0])


def test_records_are_made_read_and_checked_by_their_names(run, tmp_path):
    folder = str(shutil.copytree(run.folder, tmp_path / "run"))
    target = evaluation.Target.from_run(folder, device="cpu", root="nowhere")
    assert (target.folder, target.device) == (Path(folder), torch.device("cpu"))
    radii = np.array([0, 0.25])
    for seed in np.arange(2):
        record = evaluation.run(
            evaluation.Certify(radii=radii, n=np.int64(400), limit=4, seed=seed), target, progress=no_progress
        )
        again = evaluation.run(
            evaluation.Certify(radii=[0.0, 0.25], n=400, limit=4, seed=int(seed)), target, progress=no_progress
        )
        assert (again.path, again.rows) == (record.path, record.rows)
    assert {Path(path) for path in records.record_paths(folder, "certify")} >= {record.path}
    read = records.read_record(str(record.path))
    assert read.rows == record.rows
    assert [point["radius"] for point in read.summary["certified_accuracy"]] == [0, 0.25]
    assert evaluation.audit_record(str(record.path), device="cpu", progress=no_progress)["problems"] == []
    measurements.write_tsv(read, f"{folder}/peer.tsv")
    assert [row["index"] for row in measurements.read_tsv(f"{folder}/peer.tsv")] == [0, 1, 2, 3]
    assert target.with_source(folder).attacked.folder == target.folder
    shift = evaluation.run(evaluation.CertifyShift(eps=torch.tensor([0.0, 0.5]), limit=4), target, progress=no_progress)
    assert shift.settings["eps"] == [0.0, 0.5]
    attack = evaluation.run(
        evaluation.Attack(attack=PGD(steps=2), radii=radii, limit=4, probe=False), target, progress=no_progress
    )
    assert attack.settings["radii"] == [0.0, 0.25]
    page = rhobust.write_report([folder], f"{tmp_path}/new/report.html")
    assert page.path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert page.problems == ()


def test_a_report_is_about_a_list_of_runs(run, tmp_path):
    for one in (run.folder, str(run.folder)):
        with pytest.raises(ValueError, match="runs must be a list of run folders, got '"):
            rhobust.write_report(one, tmp_path / "report.html")


def test_your_own_network_is_named_by_strings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("linear_net.py").write_text(
        "from torch import nn\n\n\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    import sys

    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    save_file({"1.weight": torch.zeros(10, 64), "1.bias": torch.zeros(10)}, "w.safetensors")
    target = evaluation.Target.from_weights(
        "linear_net:make", "w.safetensors", data="digits", folder="mine", device="cpu", sigma=0.25
    )
    assert target.folder == Path("mine")


def test_a_record_goes_into_a_folder_that_is_made_for_it(half_space, grey_images, tmp_path):
    target = evaluation.Target(
        half_space, grey_images, sigma=0.25, name="mine", folder=tmp_path / "new" / "folder", model_hash="0" * 16
    )
    assert evaluation.run(evaluation.CertifyShift(eps=[0.1]), target, progress=no_progress).path.exists()
