"""Commands in processes of their own, as a user would run and stop them."""

import os
import signal
import subprocess
import time

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}


def killed(command, folder, records):
    """Begin a command, kill it when its record has its first row, and return the record's path."""
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE)
    while not (found := list(folder.glob(records))) or found[0].read_bytes().count(b"\n") < 2:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    return found[0]
