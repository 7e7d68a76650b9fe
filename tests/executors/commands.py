"""Commands on several workers, as a user would run, kill and start them again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rhobust.records import read_record

TESTS = Path(__file__).parent.parent
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(TESTS)]),
}
PATIENCE = 600

COMMANDS = {
    "certify": ["--radii", "0", "0.25", "0.5", "--n", "500", "--limit", "60"],
    "attack": ["attack:eot", "--attack.steps", "3", "--attack.draws", "2", "--votes", "10", "--limit", "250"],
    "certify-shift": ["--eps", "0", "0.1", "--draws", "8", "--limit", "250"],
    "evaluate": [],
}


def arguments(name, folder, *options):
    return [sys.executable, "-m", "rhobust", name, str(folder), *COMMANDS[name], "--device", "cpu", "--quiet", *options]


def start(command, **said):
    """Begin a command, with what a launcher says in its environment."""
    environment = {**ENVIRONMENT, **said}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, **pipes, text=True, start_new_session=True, preexec_fn=_hear)


def _hear():
    """Let a command hear Ctrl-C also where the tests are a job in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ended(process):
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def finish(command):
    code, out, err = ended(start(command))
    assert code == 0, err[-3000:]
    return out


def content(folder):
    """Everything that the records of a folder say, byte by byte but for the time that it took."""
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        if path.name != "metrics.jsonl":
            record = read_record(path)
            assert record.intact
            summary = json.dumps({**record.summary, "seconds": None})
            found[path.name] = (path.read_bytes().splitlines()[:-1], summary)
    return found


def rows(folder):
    return sum(max(0, path.read_bytes().count(b"\n") - 1) for path in folder.glob("certify-*.jsonl"))


def wait_for(what, process, seconds=PATIENCE):
    """Wait until something holds while a process runs."""
    until = time.monotonic() + seconds
    while not (found := what()):
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < until
        time.sleep(0.02)
    return found


def children(process):
    """The worker processes of a driver with spawned workers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            line = path.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == process.pid and b"spawn_main" in line:
            found.append(int(path.parent.name))
    return sorted(found)


def actors():
    """The worker processes of a Ray cluster on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::Worker"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return sorted(found)


def press_ctrl_c(process):
    """What a terminal does: every process that the command started in its group gets the signal."""
    os.killpg(process.pid, signal.SIGINT)


def kill(pid):
    os.kill(pid, signal.SIGKILL)
