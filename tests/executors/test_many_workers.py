"""Records and tables of several workers are those of one process, whatever is killed: spawned processes and Ray."""

import json
import os
import shutil
import signal
import time
import warnings
from pathlib import Path

import pytest

from rhobust.cli import run
from tests.executors.commands import (
    COMMANDS,
    PATIENCE,
    actors,
    arguments,
    children,
    content,
    ended,
    finish,
    kill,
    press_ctrl_c,
    rows,
    start,
    wait_for,
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LONG = ["--n", "4000", "--procedure", "fixed"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "gaussian"
    options = ["--data", "digits", "--model", "cnn-small", "--epochs", "4", "--batch-size", "100", "--lr", "0.003"]
    method = ["method:gaussian", "--method.sigma", "0.25"]
    assert run(["train", *method, *options, "--out", str(out), "--device", "cpu", "--quiet"]) == 0
    # How many images `evaluate` takes follows from the speed; this one is slow, and takes few.
    (out / "speed.json").write_text(json.dumps({"seconds_per_sample": 0.5}))
    return out


@pytest.fixture
def folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture(scope="module")
def alone(trained, tmp_path_factory):
    """What one process writes."""
    folder = shutil.copytree(trained, tmp_path_factory.mktemp("alone") / "run")
    for name in COMMANDS:
        finish(arguments(name, folder))
    return content(folder)


@pytest.fixture(scope="module")
def long(trained, tmp_path_factory):
    """What one process writes of a command that takes long enough to be killed."""
    folder = shutil.copytree(trained, tmp_path_factory.mktemp("long") / "run")
    finish(arguments("certify", folder, *LONG))
    return content(folder)


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of two nodes on this machine."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        made.add_node(num_cpus=1)
        yield made
        made.shutdown()


@pytest.fixture(params=["processes", "ray"])
def spread(request):
    """Options of the executor, and a function that lists its worker processes."""
    if request.param == "processes":
        return ["--executor", "processes"], children
    cluster = request.getfixturevalue("cluster")
    return ["--executor", "ray", "--address", cluster.address], lambda _: actors()


def test_all_commands_write_the_records_of_one_process(spread, folder, alone):
    options, _ = spread
    for name in COMMANDS:
        command = arguments(name, folder, *options)
        if name == "evaluate":  # it writes several records: killed in one of them it goes on there
            known, process = len(list(folder.glob("*.jsonl"))), start(command)
            wait_for(lambda known=known: len(list(folder.glob("*.jsonl"))) > known, process)
            process.kill()
            ended(process)
        finish(command)
    assert content(folder) == alone


def test_workers_and_drivers_that_are_killed_cost_what_they_were_computing(spread, folder, long):
    options, workers = spread
    command = arguments("certify", folder, *LONG, *options)
    first = start(command)
    wait_for(lambda: rows(folder), first)
    victims = wait_for(lambda: workers(first), first)
    kill(victims[0])
    before = rows(folder)
    wait_for(lambda: rows(folder) > before, first)
    first.kill()
    ended(first)
    left = rows(folder)
    assert 0 < left < 60
    # Another number of workers goes on; nothing that was written is lost.
    again = start([*command, "--workers", "1"])
    wait_for(lambda: rows(folder) > left, again)
    assert ended(again)[0] == 0
    assert content(folder) == long


def test_ctrl_c_ends_the_workers_and_keeps_what_they_computed(spread, folder, long):
    options, workers = spread
    command = arguments("certify", folder, *LONG, *options)
    process = start(command)
    wait_for(lambda: rows(folder), process)
    at_work = wait_for(lambda: workers(process), process)
    press_ctrl_c(process)
    code, _, err = ended(process)
    assert code == 130
    assert err.count("\n") == 1
    assert "of 60 examples are in" in err
    until = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{pid}").exists() for pid in at_work):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert 0 < rows(folder) < 60
    finish(command)
    assert content(folder) == long


def test_a_node_that_is_removed_costs_what_it_was_computing(cluster, folder, long):
    node = cluster.add_node(num_cpus=1)
    process = start(arguments("certify", folder, *LONG, "--executor", "ray", "--address", cluster.address))
    wait_for(lambda: rows(folder), process)
    cluster.remove_node(node, allow_graceful=False)
    code, _, err = ended(process)
    assert code == 0, err[-3000:]
    assert content(folder) == long


@pytest.mark.parametrize("options", [[], ["--executor", "processes", "--workers", "1"]], ids=["local", "processes"])
def test_of_several_copies_of_a_command_one_works_and_the_others_leave_or_wait(folder, long, options):
    command = arguments("certify", folder, *LONG, *options)
    first = start(command)
    wait_for(lambda: list(folder.glob("certify-*.lock")), first)
    first.send_signal(signal.SIGSTOP)  # it must not end before the others have asked
    others = [start(command) for _ in range(2)]
    waiting = start([*command, "--wait"])
    for process in others:
        code, _, err = ended(process)
        assert code == 2
        assert err.count("\n") == 1
        assert f"must have one writer, but process {first.pid} on this machine is writing it" in err
    assert waiting.poll() is None
    first.send_signal(signal.SIGCONT)
    assert ended(first)[0] == 0
    assert ended(waiting)[0] == 0
    assert content(folder) == long


def test_of_four_copies_that_start_at_once_one_writes_and_nothing_is_lost(folder, long):
    command = arguments("certify", folder, *LONG, "--executor", "processes", "--workers", "1")
    copies = [start([*command, *options]) for options in ([], [], ["--wait"], ["--wait"])]
    codes = []
    for process in copies:
        code, _, err = ended(process)
        codes.append(code)
        if code == 2:
            assert err.count("\n") == 1
            assert "must have one writer, but process" in err
        else:
            assert (code, err) == (0, "")
    assert codes[2:] == [0, 0]  # whoever waits ends with the record
    assert content(folder) == long
    assert list(folder.glob("*.lock")) == list(folder.glob(".*.lock*")) == []


def test_tasks_of_srun_write_the_record_of_one_process(folder, long):
    step = {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": str(os.getpid())}
    command = [*arguments("certify", folder, *LONG), "--json"]
    tasks = [start(command, **step, SLURM_PROCID=rank, SLURM_LOCALID=rank) for rank in ("0", "1")]
    (first, shown, err), (second, silent, _) = map(ended, tasks)
    assert (first, second) == (0, 0), err[-3000:]
    assert json.loads(shown)["kind"] == "certify"
    assert silent == ""
    assert content(folder) == long


PLAN = """
title = "Two methods on digits"

[train]
data = "digits"
model = "cnn-small"
epochs = 1
batch_size = 400
lr = 0.003

[axes]
method = ["gaussian", "consistency"]
sigma = [0.12, 0.25]
seed = [0, 1, 2]

[[evaluate]]
kind = "certify"
radii = [0.0, 0.25]
n = 100
n0 = 10
limit = 10
"""


def test_a_sweep_that_is_killed_twice_ends_with_the_table_of_one_process(cluster, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    common = ["--device", "cpu", "--quiet"]
    assert run(["sweep", str(plan), "--out", str(tmp_path / "one"), *common]) == 0
    out = tmp_path / "many"
    command = [*arguments("certify", plan)[:3], "sweep", str(plan), "--out", str(out), *common]
    command += ["--executor", "ray", "--address", cluster.address]

    def finished():
        return len(list(out.glob("runs/*/certify-*.jsonl")))

    for wanted in (2, 7):
        process = start(command)
        wait_for(lambda wanted=wanted: finished() >= wanted, process)
        process.kill()
        ended(process)
        assert not (out / "sweep.md").exists()
    finish(command)
    for name in ("sweep.md", "sweep.csv", "sweep.json", "failures.json"):
        assert (out / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    assert (out / "report.html").exists()
    assert len(json.loads((out / "sweep.json").read_text())["rows"]) == 20
