"""Run networks of the zoo through commands and the API, and say what is not as expected."""

import contextlib
import io
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from rhobust import cli
from rhobust.attacks import EOT, PGD
from rhobust.certificates import SmoothedClassifier
from rhobust.process import INTERNAL
from rhobust.records import finished_records
from tests.zoo.cases import BOUNDARY, CERTIFYING, CLASSES, COMMANDS, SIDE, Case, Plain

SIGMA, ALPHA = 0.25, 1e-6
API = ("api-one", "api-many", "api-predict", "api-attack")
"""Calls of the API: certificates of one input and of many, predictions, attacks."""
PREDICTED = 3
"""The image that is predicted."""
IN_A_PROCESS = ("writes_to_the_file_descriptor",)
"""Networks that write past this process's own capture of its output: they have a test of their own."""
LONGEST = 600.0
"""Seconds within which a command of these sizes must end."""
CODES = {"works": {0}, "refused": {2}, "either": {0, 1, 2}, "differs": {1}}


@dataclass
class Counts:
    """What was run, and what was not as expected."""

    commands: int = 0
    worked: int = 0
    refused: int = 0
    certificates: int = 0
    false: int = 0
    tracebacks: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str


def images(count: int, seed: int) -> np.ndarray:
    """Grey images of slightly varying pixels, half of them dark."""
    generator = np.random.default_rng(seed)
    levels = np.linspace(40, 215, count).round()[generator.permutation(count)]
    return np.clip(levels[:, None, None] + generator.integers(-6, 7, (count, SIDE, SIDE)), 0, 255).astype(np.uint8)


def true_radius(x: np.ndarray) -> np.ndarray:
    """Distance of 8-bit images of the plain half-space to the nearest 8-bit image of the other class.

    Of m steps over d pixels, that the sum must change by, each pixel takes m // d or one more.
    """
    total = x.reshape(len(x), -1).astype(np.int64).sum(1)
    steps = np.abs(total - BOUNDARY) + 0.5
    each, more = np.divmod(steps, SIDE * SIDE)
    return np.sqrt(more * (each + 1) ** 2 + (SIDE * SIDE - more) * each**2) / 255


class Cage:
    """A folder with data, images and weights, in which networks are run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.counts = folder, Counts()
        self.train, self.test = images(48, 0), images(20, 1)
        labels = [(part.reshape(len(part), -1).sum(1) > BOUNDARY).astype(np.int64) for part in (self.train, self.test)]
        labels[0][:2] = labels[1][:2] = 2  # a class that is never predicted
        self.data = folder / "data.npz"
        np.savez(self.data, x=self.train, y=labels[0], x_test=self.test, y_test=labels[1])
        self.image = folder / "image.png"
        Image.fromarray(self.test[PREDICTED]).save(self.image)
        save_file(Plain().state_dict(), folder / "plain.safetensors")
        other = Plain()
        other.linear.weight.data *= 1.1
        save_file(other.state_dict(), folder / "other.safetensors")
        self.truth = true_radius(self.test)
        self.answer = (self.test.reshape(len(self.test), -1).sum(1) > BOUNDARY).astype(int)
        self.record = self._certified()

    def _certified(self) -> dict[str, bytes]:
        """The files of a folder with a certificate of the plain network."""
        home = self.folder / "honest"
        ran = self.command(["certify", *self.own("plain", home), *self.settings("certify"), "--quiet"])
        assert ran.code == 0, ran.err
        return {path.name: path.read_bytes() for path in home.iterdir() if path.name != "answers.json"}

    def own(self, name: str, out: Path, weights: str = "plain") -> list[str]:
        """Options that name a network of the zoo."""
        file = self.folder / f"{weights}.safetensors"
        return [
            "--model",
            f"tests.zoo.factory:{name}",
            "--weights",
            str(file),
            "--data",
            str(self.data),
            "--out",
            str(out),
        ]

    def settings(self, command: str) -> list[str]:
        """The smallest settings of a command."""
        sigma, attack = ["--sigma", str(SIGMA)], ["--radii", "0", "0.3", "--votes", "20"]
        return {
            "train": ["--epochs", "1", "--batch-size", "24", "--lr", "1e-4"],
            "attack": [*sigma, *attack, "attack:eot", "--attack.steps", "2", "--attack.draws", "2"],
            "certify": [*sigma, "--n0", "64", "--n", "640", "--alpha", str(ALPHA)],
            "certify-shift": [*sigma, "--eps", "0", "0.1", "--draws", "20"],
            "curves": [*sigma, "--eps", "0", "0.1", "--draws", "10", "--gammas", "1", "--steps", "2"],
            "predict": [*sigma, "--n", "200", "--alpha", str(ALPHA)],
            "audit": ["--share", "0.3", "--trust", "--seed", "0"],
            "evaluate": [*sigma],
            "transfer": [*sigma, *attack, "--trust", "attack:pgd", "--attack.steps", "2"],
        }[command]

    def arguments(self, case: Case, command: str, home: Path) -> list[str]:
        """The command line for a network, and the folders that it needs."""
        weights = self.weights(case)
        own = self.own(case.name, home / command, weights)
        if command == "train":
            method = ["method:gaussian", "--method.sigma", str(SIGMA)]
            line = [*method, *own[:2], *own[4:6], "--out", str(home / "run")]
        elif command == "predict":
            line = [*own[:4], str(self.image)]
        elif command == "audit":
            place = home / "audited"
            self.write(place, case.name, self.folder / "plain.safetensors", self.record)
            line = [str(place)]
        elif command == "transfer":
            self.write(home / "source", "plain", self.folder / "other.safetensors", {})
            self.write(home / "target", case.name, self.folder / f"{weights}.safetensors", {})
            line = [str(home / "source"), str(home / "target")]
        else:
            line = own
        return [command, *line, "--quiet", "--json", *self.settings(command)]

    def weights(self, case: Case) -> str:
        """The name of the file of a network's weights; those of the plain one where it cannot be built."""
        path = self.folder / f"{case.name}.safetensors"
        if not path.exists():
            try:
                with _restored(), contextlib.redirect_stdout(io.StringIO()):
                    state = {name: one.contiguous().clone() for name, one in case.make().state_dict().items()}
                save_file(state, path)
            except BaseException:  # whatever the network does: it is not run yet
                return "plain"
        return case.name

    @staticmethod
    def write(folder: Path, name: str, weights: Path, files: dict[str, bytes]) -> None:
        """A folder of records of a network of the zoo."""
        folder.mkdir(parents=True)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        config = {"rhobust": "0.1.0", "model": f"tests.zoo.factory:{name}", "weights": str(weights)}
        (folder / "config.json").write_text(json.dumps({**config, "data": str(weights.parent / "data.npz")}))

    def command(self, arguments: list[str]) -> Ran:
        """Run a command in this process, as `rhobust` does."""
        out, err = io.StringIO(), io.StringIO()
        handler = logging.StreamHandler(err)
        logging.getLogger("tests.zoo").addHandler(handler)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
                warnings.simplefilter("default")
                code = cli.run(arguments)
        finally:
            logging.getLogger("tests.zoo").removeHandler(handler)
        return Ran(code, out.getvalue(), err.getvalue())

    def check(self, case: Case, commands: tuple[str, ...] = ()) -> list[str]:
        """Run a network through commands, by default all; returns what is not as expected."""
        before = len(self.counts.problems)
        if case.name in IN_A_PROCESS:
            return []
        if not commands:
            # `evaluate` is attack and certify in one, and takes ten times as long where it works.
            long = case.name != "plain" and case.expected("evaluate") != "refused"
            commands = (*(one for one in COMMANDS if not (long and one == "evaluate")), *API)
        home = self.folder / "homes" / case.name
        for command in commands:
            start = time.monotonic()
            for problem in self._api(case, command) if command in API else self._command(case, command, home):
                self.counts.problems.append(f"{case.name} {command}: {problem}")
            if time.monotonic() - start > LONGEST:
                self.counts.problems.append(f"{case.name} {command}: took {time.monotonic() - start:.0f} s")
            self.counts.commands += 1
        return self.counts.problems[before:]

    def _command(self, case: Case, command: str, home: Path) -> Iterator[str]:
        arguments, state = self.arguments(case, command, home), _state()
        try:
            with _restored():
                ran = self.command(arguments)
                changed = [name for name, value in _state().items() if value != state[name]]
        except BaseException as error:  # a command must answer whatever happens
            if isinstance(error, KeyboardInterrupt):
                raise
            self.counts.tracebacks += 1
            yield f"raised {type(error).__name__}: {error}"
            return
        if changed:
            yield f"left {', '.join(changed)} changed"
        if ran.code not in CODES[case.expected(command)]:
            yield f"exit code {ran.code}, expected {case.expected(command)}: {ran.err.strip()[-300:]}"
        lines = [line for line in ran.err.splitlines() if line.startswith("rhobust: ")]
        if "Traceback" in ran.err or ran.code == INTERNAL:
            self.counts.tracebacks += 1
            yield f"a traceback: {ran.err[-1500:]}"
        self.counts.refused += ran.code == 2
        self.counts.worked += ran.code == 0
        if ran.code == 2:
            if len(lines) != 1 or ran.out:
                yield f"{len(lines)} lines of refusal and {len(ran.out)} characters of output"
            elif case.expected(command) == "refused" and case.says not in lines[0]:
                yield f"the line does not say {case.says!r}: {lines[0][:300]}"
            if finished := [
                one for kind in ("certify", "certify-shift") for one in finished_records(home / command, kind)
            ]:
                yield f"refused, but {finished[0].path.name} is finished"
            return
        try:
            document = json.loads(ran.out)
        except ValueError:
            yield f"no JSON document on standard output: {ran.out[:200]!r}"
            return
        if ran.code == 0 and command in CERTIFYING:
            yield from self._certified_too_much(case, command, document, home)

    def _certified_too_much(self, case: Case, command: str, document: dict[str, Any], home: Path) -> Iterator[str]:
        if command == "certify":
            (record,) = finished_records(home / command, "certify")
            yield from self._radii(case, [(row["index"], row["prediction"], row["radius"]) for row in record.rows])
        if command == "predict":
            (answer,) = document["predictions"]
            yield from self._radii(case, [(PREDICTED, answer["prediction"], 0.0)])

    def _radii(self, case: Case, found: list[tuple[int, int | None, float]]) -> Iterator[str]:
        """Certificates above the truth."""
        if case.truth == "unknown":
            return
        false = 0
        for index, prediction, radius in found:
            right, longest = (0, np.inf) if case.truth == "constant" else (self.answer[index], self.truth[index])
            self.counts.certificates += 1
            false += prediction is not None and (prediction != right or radius > longest)
        self.counts.false += false
        if false:
            yield f"{false} of {len(found)} certificates are above the truth"

    def _api(self, case: Case, call: str) -> Iterator[str]:
        """Calls of the API answer, or raise a ValueError of one line."""
        state, output = _state(), io.StringIO()
        try:
            network = case.make()
        except BaseException:  # the user's own factory: rhobust is not asked
            return
        if not isinstance(network, torch.nn.Module):
            network = torch.nn.Module() if network is None else network
        try:
            with _restored():
                with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = _CALLS[call](network, torch.from_numpy(self.test)[:, None])
                changed = [name for name, value in _state().items() if value != state[name]]
        except ValueError as error:
            self.counts.refused += 1
            if "\n" in str(error) or not str(error):
                yield f"a refusal that is not one line: {error}"
        except BaseException as error:  # what a user would see as a traceback
            if isinstance(error, KeyboardInterrupt):
                raise
            self.counts.tracebacks += 1
            yield f"raised {type(error).__name__}: {error}"
        else:
            self.counts.worked += 1
            if changed:
                yield f"left {', '.join(changed)} changed"
            if call in ("api-one", "api-many"):
                yield from self._radii(case, [(index, one.prediction, one.radius) for index, one in found])


def _certified(network: Any, x: torch.Tensor) -> Any:
    smoothed = SmoothedClassifier(network, SIGMA, CLASSES)
    return smoothed.certify(x, n0=64, n=640, alpha=ALPHA, seed=3)


def _attack(network: Any, x: torch.Tensor) -> Any:
    unit, labels = x.float() / 255, torch.zeros(len(x), dtype=torch.int64)
    PGD(steps=2, restarts=0)(network, unit, labels, eps=0.1)
    return EOT(steps=2, draws=2, restarts=0)(network, unit, labels, eps=0.1, sigma=SIGMA)


_CALLS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "api-one": lambda network, x: [(7, *_certified(network, x[7:8]))],
    "api-many": lambda network, x: list(enumerate(_certified(network, x))),
    "api-predict": lambda network, x: SmoothedClassifier(network, SIGMA, CLASSES).predict(x[:4], n=200),
    "api-attack": _attack,
}


def _state() -> dict[str, Any]:
    """Global settings that a command must leave unchanged, whatever a network does."""
    return {
        "grad mode": torch.is_grad_enabled(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "threads": torch.get_num_threads(),
        "standard output": id(sys.stdout),
        "folder": os.getcwd(),  # noqa: PTH109
    }


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    """Torch's generator, and what a network may do to the process that no command can undo."""
    environment = dict(os.environ)
    with torch.random.fork_rng(devices=[]):
        yield
    os.environ.clear()
    os.environ.update(environment)
