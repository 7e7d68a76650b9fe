"""Random kills and random pairs of concurrent commands: no record may be lost, damaged or different.

    python -m tests.faults.kills --count 200

Commands run in processes forked from this one, which has imported everything and computed nothing; one in twenty runs
as a command line of its own. Kills come at a random time, or just before a random operation on a file. In half of the
pairs the two processes believe that they are on different machines, where only heartbeats tell whether the other one
lives. Afterwards each folder is finished without a fault and compared with that of an uninterrupted command: rows,
settings and weights byte by byte; times are left out.
"""

import argparse
import collections
import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.worker import COMMANDS, PATIENCE, Worker, arguments

TIMES = ("seconds", "images_per_second")
EVERY = 20
"""One in so many commands is a real command line; starting one takes seconds."""


def say(line):
    print(line, flush=True)  # noqa: T201


def content(folder, name):
    """What a command left: everything but times and the pictures of attacks."""
    if name == "train":
        metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        rows = [{key: value for key, value in row.items() if key not in TIMES} for row in metrics]
        config = (folder / "config.json").read_text()
        return {"rows": rows, "config": config, "weights": (folder / "model.safetensors").read_bytes()}
    (path,) = (one for one in folder.glob(f"{name}-*.jsonl") if name != "certify" or "shift" not in one.name)
    from rhobust.records import read_record

    record = read_record(path)
    assert record.summary is not None, "unfinished"
    assert record.intact, "its digest does not match"
    summary = {key: value for key, value in record.summary.items() if key not in TIMES}
    return {"rows": path.read_bytes().split(b"\n")[:-2], "summary": summary}


def whole_rows(folder, name):
    """Whole rows that are on the disk now; a damaged record raises."""
    from rhobust.records import read_record, read_rows

    if name == "train":
        return len(read_rows(folder / "metrics.jsonl")) if (folder / "metrics.jsonl").exists() else 0
    paths = [one for one in folder.glob(f"{name}-*.jsonl") if name != "certify" or "shift" not in one.name]
    return sum(len(read_record(path).rows) for path in paths)


class Faults:
    """Runs the trials and counts."""

    def __init__(self, scratch, seed):
        self.scratch, self.random = scratch, random.Random(seed)
        self.counts, self.failures, self.number = collections.Counter(), [], 0
        self.expected, self.seconds, self.base = {}, {}, scratch / "base"

    def prepare(self):
        """What uninterrupted commands leave, by forked processes and by real ones."""
        for real in (False, True):
            for name in COMMANDS:
                folder = self.base if name == "train" and not real else self.folder(name)
                start = time.monotonic()
                worker = Worker(arguments(name, folder), self.scratch / f"reference-{name}-{real}", real)
                assert worker.wait() == 0, worker.complaint()
                self.seconds[name, real] = time.monotonic() - start
                self.expected[name, real] = content(folder, name)

    def folder(self, name):
        """A new folder for a trial: empty for a training, else a trained run."""
        self.number += 1
        folder = self.scratch / f"trial-{self.number}" / "run"
        folder.parent.mkdir()
        if name != "train":
            shutil.copytree(self.base, folder)
        return folder

    def fail(self, what, folder, worker=None):
        said = "" if worker is None else f" {worker.complaint()[-500:]!r}"
        self.failures.append(f"{what}: {folder}{said}")
        say(f"FAILED {self.failures[-1]}")

    def check(self, folder, names, what, real, *, alone=True, apart=False):
        """Finish without faults, and compare with the uninterrupted commands."""
        for name in names:
            machine = secrets.token_hex(4) if apart else None
            argv = arguments(name, folder, resume=True, wait=apart)  # until a killed one counts as gone
            worker = Worker(argv, folder.parent / f"last-{name}", machine=machine)
            if worker.wait() != 0:
                self.fail(f"{what}: {name} cannot be finished, exit {worker.status}", folder, worker)
                return
            try:
                found = content(folder, name)
            except Exception as error:
                self.fail(f"{what}: {name} is damaged: {error}", folder)
                return
            wanted = self.expected[name, real]
            for key in wanted:
                # The summary of an attack speaks of the other records in the folder.
                if found[key] != wanted[key] and (alone or key != "summary"):
                    self.fail(f"{what}: {name} has other {key}", folder)
                    return
        if left := [path.name for path in folder.iterdir() if "lock" in path.name and not apart]:
            self.fail(f"{what}: left {left}", folder)
            return
        self.counts["files left by killed processes"] += len(list(folder.glob(".*")))
        shutil.rmtree(folder.parent)

    def kill(self, name, real):
        """Begin a command and kill it, up to four times, then let it finish; how many kills there were."""
        folder, kills, rows = self.folder(name), 0, 0
        for attempt in range(self.random.randint(1, 4)):
            by_time = real or self.random.random() < 0.5
            fatal = None if by_time else int(self.random.expovariate(1 / 25))
            argv = arguments(name, folder, resume=attempt > 0)
            worker = Worker(argv, folder.parent / f"{attempt}", real, fatal)
            status = worker.wait(self.random.uniform(0, self.seconds[name, real]) if by_time else PATIENCE)
            if status is None and worker.signal(signal.SIGKILL):
                worker.wait()
            if worker.status not in (0, -signal.SIGKILL):
                self.fail(f"kill {name}: exit {worker.status} after a kill", folder, worker)
                return kills
            kills += worker.status == -signal.SIGKILL
            try:
                now = whole_rows(folder, name) if folder.exists() else 0
            except Exception as error:
                self.fail(f"kill {name}: damaged by a kill: {error}", folder)
                return kills
            if now < rows:
                self.fail(f"kill {name}: {rows} rows before a kill, {now} after", folder)
                return kills
            rows = now
            if worker.status == 0:
                break
        self.check(folder, [name], f"kill {name}", real)
        return kills

    def ranks(self, name):
        """Two processes of one evaluation; one is killed, and then the other, as torchrun does."""
        folder = self.folder(name)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        workers = [
            Worker(arguments(name, folder), folder.parent / f"rank-{rank}", environment={**meeting, "RANK": str(rank)})
            for rank in range(2)
        ]
        self.random.choice(workers).wait(self.random.uniform(0.5, 1.5) * self.seconds[name, False])
        self.random.shuffle(workers)
        for worker in workers:
            self.counts["ranks: killed"] += worker.signal(signal.SIGKILL)
            time.sleep(self.random.choice([0, 0.3]))
        if any(worker.wait() not in (0, -signal.SIGKILL) for worker in workers):
            self.counts["ranks: ended because the other one was killed"] += 1
        self.check(folder, [name], f"ranks {name}", False)

    def pair(self, real):
        """Two commands in one folder at once; sometimes one is suspended for a while, or killed."""
        first = self.random.choice(list(COMMANDS))
        others = [name for name in COMMANDS if "train" not in (name, first)]
        second = self.random.choice(others) if others and self.random.random() < 0.25 else first
        folder, apart = self.folder(first), not real and self.random.random() < 0.5
        waits = [self.random.random() < 0.5 for _ in range(2)]
        machines = [secrets.token_hex(4) if apart else None for _ in range(2)]
        workers = []
        for place, name in enumerate((first, second)):
            argv = arguments(name, folder, resume=place == 1 or self.random.random() < 0.5, wait=waits[place])
            workers.append(Worker(argv, folder.parent / f"pair-{place}", real, machine=machines[place]))
            if place == 0:
                time.sleep(self.random.choice([0, self.random.uniform(0, self.seconds[name, real] / 2)]))
        fault = self.random.choice(["none", "suspend", "kill"])
        victim = self.random.choice(workers)
        time.sleep(self.random.uniform(0, self.seconds[first, real] / 3))
        hit = fault != "none" and victim.signal(signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        if hit and fault == "suspend":
            other = workers[victim is workers[0]]
            # From another machine the sleeper is taken over; from this one it is refused, or waited for.
            other.wait(self.random.choice([0.05, 1.0, 60.0 if apart else 1.0]))
            victim.signal(signal.SIGCONT)
        what = f"pair {first}, {second}, {fault}{', two machines' if apart else ''}"
        codes = [worker.wait() for worker in workers]
        for worker, code, waited in zip(workers, codes, waits, strict=True):
            dead = fault == "kill" and worker is victim and code == -signal.SIGKILL
            lines = [line for line in worker.complaint().splitlines() if line.startswith("rhobust: ")]
            refused = code == 2 and len(lines) == 1 and worker.complaint().count("\n") == 1
            # Who waits is not refused, but may be taken over by another machine while it sleeps.
            if not (dead or code == 0 or (refused and (not waited or apart))):
                self.fail(f"{what}: exit {code}, waited {waited}", folder, worker)
                return
            self.counts[f"pairs: exit {code}"] += 1
        if fault != "kill" and 0 not in codes:
            self.fail(f"{what}: nobody finished, {codes}", folder, workers[0])
            return
        self.counts[
            f"pairs: {fault}{', two machines' if apart else ''}{' (too late)' * (fault != 'none' and not hit)}"
        ] += 1
        self.check(folder, dict.fromkeys((first, second)), what, real, alone=first == second, apart=apart)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--count", type=int, default=200, help="kills, and pairs")
    options.add_argument("--seed", type=int, default=None, help="of the faults; default: from the operating system")
    options.add_argument("--scratch", type=Path, default=None, help="where failed trials are kept")
    given = options.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    import rhobust.commands.attack
    import rhobust.commands.certify_shift
    import rhobust.commands.curves
    import rhobust.commands.train  # noqa: F401  # the forked commands start at once

    start, scratch = time.monotonic(), Path(tempfile.mkdtemp(prefix="faults-", dir=given.scratch))
    faults = Faults(scratch, seed)
    say(f"seed {seed}, {given.count} kills and {given.count} pairs in {scratch}")
    faults.prepare()
    kills, trial, names = 0, 0, list(COMMANDS)
    while kills < given.count and len(faults.failures) < 20:
        name, real = names[trial % len(names)], trial % EVERY == EVERY - 1
        found = faults.kill(name, real)
        faults.counts[f"kills: {name}"] += found
        faults.counts["kills: of command lines"] += found * real
        kills, trial = kills + found, trial + 1
        if trial % 20 == 0:
            say(f"{kills} kills in {time.monotonic() - start:.0f} s")
    for _ in range(given.count // 10):
        faults.ranks(faults.random.choice(names[1:]))
    pairs = 0
    while pairs < given.count and len(faults.failures) < 20:
        real = pairs % EVERY == EVERY - 1
        faults.pair(real)
        faults.counts["pairs: of command lines"] += real
        pairs += 1
        if pairs % 20 == 0:
            say(f"{pairs} pairs in {time.monotonic() - start:.0f} s")
    for what, count in sorted(faults.counts.items()):
        say(f"{count:6}  {what}")
    say(f"{kills} kills in {trial} commands, {pairs} pairs, {time.monotonic() - start:.0f} s")
    say(f"records lost, damaged or different: {len(faults.failures)}")
    if not faults.failures:
        shutil.rmtree(scratch)
    return 1 if faults.failures else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
