"""Several processes train as one does."""

import json
import os
import subprocess
import sys

import pytest
import torch

from rhobust.methods import NAL
from rhobust.noise import BatchNoise, stream
from rhobust.progress import no_progress
from rhobust.training import TrainConfig, open_run, train
from rhobust.training.distributed import ProcessGroup, ShardNoise

# Adam would hide a gradient of the wrong length, and an even batch a share of the wrong one.
CONFIG = TrainConfig(
    NAL(sigma=0.25, gamma=2.0, steps=2, draws=2),
    data="digits",
    model="cnn-small",
    epochs=2,
    batch_size=151,
    optimizer="sgd",
    lr=0.02,
    weight_perturbation=0.01,
    cutmix=0.5,
)


@pytest.mark.slow
def test_two_processes_give_the_losses_of_one(tmp_path):
    alone = train(CONFIG, tmp_path / "one", device=torch.device("cpu"), progress=no_progress)
    method = ["--method.sigma", "0.25", "--method.gamma", "2.0", "--method.steps", "2", "--method.draws", "2"]
    settings = ["--data", "digits", "--model", "cnn-small", "--epochs", "2", "--batch-size", "151"]
    settings += ["--optimizer", "sgd", "--lr", "0.02", "--weight-perturbation", "0.01", "--cutmix", "0.5"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "rhobust"]
    command += ["train", "method:nal", *method, *settings, "--out", str(tmp_path / "two"), "--quiet", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert result.returncode == 0, result.stderr[-2000:]
    assert json.loads(result.stdout)["id"] == CONFIG.run_id
    together = open_run(tmp_path / "two")
    assert together.config == CONFIG
    for one, two in zip(alone.metrics(), together.metrics(), strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert two["distance_rms"] == pytest.approx(one["distance_rms"], rel=1e-3)
    weights = [run.load_model().state_dict() for run in (alone, together)]
    assert all(torch.allclose(weights[0][key], weights[1][key], atol=1e-4) for key in weights[0])


def test_rows_and_noise_of_all_processes_make_up_the_batch():
    x = torch.zeros(7, 1, 2, 2)
    whole = BatchNoise(stream(0, "noise")).normal(x, 3)
    seen = []
    for rank in range(3):
        processes = ProcessGroup(rank, 3)
        rows = processes.rows(torch.arange(7))
        noise = ShardNoise(BatchNoise(stream(0, "noise")), processes, batch=7)
        assert torch.equal(noise.normal(x[rows], 3), whole[:, rows])
        seen += rows.tolist()
    assert sorted(seen) == list(range(7))
    with pytest.raises(ValueError, match=r"at least one image per process \(3\), got 2"):
        ProcessGroup(0, 3).rows(torch.arange(2))
