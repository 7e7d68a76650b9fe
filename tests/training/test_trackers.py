"""Numbers, not text, reach a tracker; the trackers here are stand-ins that record their calls."""

import json
import sys
import types
from contextlib import contextmanager

import pytest

from rhobust.cli import run as command
from rhobust.methods import Gaussian
from rhobust.training import TrainConfig, train

CONFIG = TrainConfig(Gaussian(sigma=0.25), data="digits", model="cnn-small", epochs=2, batch_size=512)


@pytest.fixture
def calls(monkeypatch):
    calls = []

    class Writer:
        def __init__(self, folder):
            calls.append(("open", folder))

        def add_text(self, name, text):
            calls.append(("text", name))

        def add_scalar(self, key, value, epoch):
            calls.append((key, value, epoch))

        def close(self):
            calls.append(("close",))

    class Started:
        def log(self, numbers, step):
            calls.append(("log", numbers, step))

        def finish(self):
            calls.append(("close",))

    def init(project, name, config):
        calls.append(("init", project, name, config))
        return Started()

    @contextmanager
    def start_run(run_name):
        calls.append(("start", run_name))
        yield
        calls.append(("close",))

    mlflow = types.SimpleNamespace(
        set_experiment=lambda name: calls.append(("experiment", name)),
        start_run=start_run,
        log_params=lambda params: calls.append(("params", params)),
        log_metrics=lambda numbers, step: calls.append(("log", numbers, step)),
    )
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=Writer))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    for name in ("wandb", "trackio"):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(init=init))
    return calls


@pytest.mark.parametrize("spec", ["tensorboard:logs", "wandb:mine", "trackio", "mlflow:mine"])
def test_every_epoch_reaches_the_tracker_as_numbers(spec, calls, tmp_path):
    run = train(CONFIG, tmp_path / "run", device="cpu", log=spec)
    rows = run.metrics()
    assert calls[-1] == ("close",)
    if spec.startswith("tensorboard"):
        assert calls[0] == ("open", f"logs/{CONFIG.run_id}")
        assert ("accuracy", rows[1]["accuracy"], 2) in calls
    else:
        logged = [call for call in calls if call[0] == "log"]
        assert [call[2] for call in logged] == [1, 2]
        assert logged[1][1]["loss"] == rows[1]["loss"]
        assert logged[1][1]["accuracy_under_noise"] == rows[1]["accuracy_under_noise"]
        assert all(isinstance(value, float) for value in logged[0][1].values())
        named = next(call for call in calls if call[0] in ("init", "params"))[-1]
        assert named["method.sigma"] == 0.25
        assert named["epochs"] == 2


def test_a_function_gets_the_numbers_too(tmp_path):
    seen = []
    train(CONFIG, tmp_path / "run", device="cpu", log=lambda epoch, numbers: seen.append((epoch, sorted(numbers))))
    assert [epoch for epoch, _ in seen] == [1, 2]
    assert {"loss", "accuracy", "accuracy_under_noise"} <= set(seen[0][1])


def test_mistakes(tmp_path, monkeypatch, capsys):
    with pytest.raises(ValueError, match="log must be one of tensorboard, trackio, wandb, mlflow"):
        train(CONFIG, tmp_path / "run", device="cpu", log="paper")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="log wandb needs a package that is not installed"):
        train(CONFIG, tmp_path / "run", device="cpu", log="wandb")
    assert not (tmp_path / "run").exists()
    assert command(["train", "method:erm", "--data", "digits", "--model", "cnn-small", "--log", "paper"]) == 2
    assert "log must be one of" in capsys.readouterr().err


def test_the_command_takes_it(tmp_path, calls, capsys):
    options = ["method:erm", "--data", "digits", "--model", "cnn-small", "--epochs", "1", "--batch-size", "512"]
    assert command(["train", *options, "--log", "wandb", "--out", str(tmp_path / "run"), "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]
    assert [call[0] for call in calls] == ["init", "log", "close"]
