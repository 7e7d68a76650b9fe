"""The files for clusters: scripts run with a fake srun, yaml is what its readers expect, commands parse."""

import importlib
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from rhobust import process
from rhobust.cli import parse
from rhobust.sweeps import read_plan

FILES = Path(__file__).parent.parent.parent / "examples" / "cluster"
FAKE = {
    # Runs the command once and writes down what it was.
    "srun": 'echo "srun $*" >> "$LOG"\nwhile [[ "$1" == -* ]]; do [[ "$1" == -w ]] && shift; shift; done\n"$@"',
    "scontrol": "echo node1; echo node2; echo node3",
    "hostname": "echo 10.0.0.1 10.0.0.2",
    # Nobody can join before the head is up, and a script may end the head as soon as its driver is done.
    "ray": '[[ "$1" == start && -n "$RAY_AUTH_MODE" ]] && echo "asks for: $RAY_AUTH_MODE" >> "$LOG"\n'
    '[[ "$1" == status && ! -e "$LOG.up" ]] && exit 1\necho "ray $*" >> "$LOG"\n'
    '[[ "$2" == --head ]] && touch "$LOG.up"\nexit 0',
    "rhobust": 'echo "rhobust $*" >> "$LOG"',
    "sleep": "exec /bin/sleep 0.1",
}


def ran(command, tmp_path, **said):
    """What a script runs, line by line, where every program of a cluster is a fake one."""
    for name, body in FAKE.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "LOG": str(tmp_path / "log"),
        **said,
    }
    done = subprocess.run(["bash", *command], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return (tmp_path / "log").read_text().splitlines()


SLURM = {
    "SLURM_JOB_NODELIST": "node[1-3]",
    "SLURM_JOB_ID": "1234567",
    "SLURM_CPUS_PER_TASK": "64",
    "SLURM_GPUS_ON_NODE": "8",
}


def parsed(line):
    """A command line as rhobust's own parser reads it."""
    _, name, *arguments = shlex.split(line)
    module = importlib.import_module(f"rhobust.commands.{name.replace('-', '_')}")
    return parse(module.COMMAND, name, arguments)


@pytest.mark.parametrize("script", ["ray-on-slurm.sbatch", "srun.sbatch"])
def test_scripts_are_bash_and_name_their_resources(script):
    assert subprocess.run(["bash", "-n", str(FILES / script)], check=False).returncode == 0
    assert (FILES / script).read_text().startswith("#!/bin/bash\n#SBATCH ")


def test_ray_on_slurm_starts_a_head_workers_and_one_driver(tmp_path):
    command = [str(FILES / "ray-on-slurm.sbatch"), "certify", "runs/nal", "--radii", "0", "0.5"]
    lines = ran(command, tmp_path, **SLURM)
    started = sorted(line for line in lines if line.startswith("ray start"))[::-1]
    address = "10.0.0.1:24567"
    assert lines[0] == "ray get-auth-token --generate"
    assert lines.count("asks for: token") == 3, "a head that finds a token refuses whoever does not send it"
    assert started[0] == "ray start --head --port=24567 --num-cpus=64 --num-gpus=8 --block"
    assert started[1:] == [f"ray start --address={address} --num-cpus=64 --num-gpus=8 --block"] * 2
    places = re.findall(r"-w (node\d) ray start --(head|address)", "\n".join(lines))
    assert sorted(places) == [("node1", "head"), ("node2", "address"), ("node3", "address")]
    (driver,) = [line for line in lines if line.startswith("rhobust")]
    command = parsed(driver)
    assert driver == f"rhobust certify runs/nal --radii 0 0.5 --executor ray --address {address}"
    assert (command.common.executor, command.common.address) == ("ray", address)


def test_srun_alone_starts_one_command_per_task(tmp_path):
    lines = ran([str(FILES / "srun.sbatch"), "certify", "runs/nal"], tmp_path, **SLURM)
    assert lines[-1] == "rhobust certify runs/nal --wait"
    assert parsed(lines[-1]).common.wait


@pytest.mark.parametrize("name", ["rayjob.yaml", "skypilot.yaml"])
def test_the_commands_in_yaml_files_parse(name):
    lines = re.findall(r"rhobust certify /.*", (FILES / name).read_text())
    assert len(lines) == 1
    assert parsed(lines[0]).common.executor == "ray"


def test_the_yaml_files_are_what_their_readers_expect():
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((FILES / "rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        spec = group["template"]["spec"]
        mounted = {one["name"] for one in spec["containers"][0]["volumeMounts"]}
        assert mounted == {one["name"] for one in spec["volumes"]}
        assert int(spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]) > 0
    sky = yaml.safe_load((FILES / "skypilot.yaml").read_text())
    assert sky["num_nodes"] == 4


def test_skypilot_starts_a_head_with_one_driver_and_workers_that_join_it(tmp_path):
    yaml = pytest.importorskip("yaml")
    script = yaml.safe_load((FILES / "skypilot.yaml").read_text())["run"]
    said = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NUM_GPUS_PER_NODE": "8"}
    options = "--num-gpus=8 --disable-usage-stats --block"
    head = ran(["-c", script], tmp_path, **said, SKYPILOT_NODE_RANK="0")
    assert f"ray start --head --port=6379 {options}" in head
    (driver,) = [line for line in head if line.startswith("rhobust")]
    assert driver.endswith("--executor ray --address 10.0.0.1:6379")
    (tmp_path / "log").unlink()
    assert ran(["-c", script], tmp_path, **said, SKYPILOT_NODE_RANK="1") == [
        "ray status --address 10.0.0.1:6379",
        f"ray start --address=10.0.0.1:6379 {options}",
    ]


def test_the_plan_is_read_and_the_guide_shows_it():
    plan = read_plan(FILES / "plan.toml")
    assert len(plan.cells) == 12
    assert len(plan.evaluations) == 2
    guide = (FILES.parents[1] / "docs" / "guides" / "cluster.md").read_text(encoding="utf-8")
    assert f"```toml\n{(FILES / 'plan.toml').read_text(encoding='utf-8')}```" in guide


STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "77"}
SAID = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def environment(monkeypatch):
    """A step of Slurm on two nodes; what the process says of it is forgotten afterwards."""
    for name in SAID:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in {**STEP, "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_STEP_NUM_NODES": "2"}.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_tasks_of_srun_are_ranks(environment):
    assert process.launched()
    said = {name: os.environ.get(name) for name in SAID}
    port = said.pop("MASTER_PORT")
    wanted = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": None, "MASTER_ADDR": "gpu07"}
    assert said == wanted
    assert 20_000 <= int(port) < 40_000


def test_tasks_on_one_node_meet_there(environment):
    environment.setenv("SLURM_STEP_NUM_NODES", "1")
    assert process.launched()
    assert os.environ["MASTER_ADDR"] == "127.0.0.1"
    assert os.environ["LOCAL_WORLD_SIZE"] == "8"


@pytest.mark.parametrize("step", [None, "4294967291"])
def test_a_command_in_a_batch_script_is_a_single_process(environment, step, capsys):
    environment.setenv("SLURM_PROCID", "0")
    environment.delenv("SLURM_STEP_ID") if step is None else environment.setenv("SLURM_STEP_ID", step)
    assert not process.launched()
    assert capsys.readouterr().err == ""


def test_what_torchrun_says_comes_first(environment):
    said = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
    for name, value in said.items():
        environment.setenv(name, value)
    assert process.launched()
    assert {name: os.environ[name] for name in said} == said
