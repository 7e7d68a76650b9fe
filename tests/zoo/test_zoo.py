"""Ill-behaved networks through every command: a part here, all in the slow tests and in `python -m tests.zoo`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tests.zoo.factory  # noqa: F401
from tests.zoo.cases import ZOO
from tests.zoo.runner import Cage

ROOT = Path(__file__).parents[2]
PART = {
    "plain": ("train", "attack", "certify", "curves", "transfer"),
    "raises_key_error": ("certify", "audit"),
    "raises_system_exit_0": ("predict", "attack"),
    "raises_broken_pipe": ("certify-shift",),
    "raises_runtime_error_empty": ("train", "certify"),
    "raises_stop_iteration": ("certify", "evaluate"),
    "raises_own_base_error": ("transfer",),
    "raises_at_call_9": ("certify",),
    "raises_in_the_gradient": ("attack", "train"),
    "factory_exits": ("certify",),
    "state_dict_raises": ("train",),
    "returns_one_row": ("predict", "api-one"),
    "returns_complex_numbers": ("certify-shift",),
    "returns_sparse_logits": ("attack",),
    "returns_none": ("predict",),
    "nan_from_the_fifth_call_on": ("certify",),
    "masked_by_minus_infinity": ("attack", "certify"),
    "clamps_in_place": ("attack", "train"),
    "halves_behind_the_graph": ("attack",),
    "prints_json": ("certify", "predict"),
    "sets_the_default_dtype": ("certify", "attack"),
    "makes_warnings_errors": ("certify",),
    "lazy_weights": ("certify",),
    "no_hash": ("api-one",),
    "over_the_batch_maximum": ("certify", "predict", "api-one"),
    "batch_mean_behind_a_mask": ("certify-shift", "api-many"),
    "the_first_input_for_all": ("predict",),
    "cheats_after_4_calls": ("certify",),
    "cheats_after_20_calls": ("certify", "api-many"),
    "noise_after_a_seed": ("certify",),
}


@pytest.fixture(scope="module")
def cage(tmp_path_factory):
    return Cage(tmp_path_factory.mktemp("zoo"))


@pytest.mark.parametrize("name", PART)
def test_a_network_is_answered_or_refused_in_one_line(cage, name):
    assert cage.check(ZOO[name], PART[name]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_every_network_through_every_command(cage, name):
    assert cage.check(ZOO[name]) == []


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("writes_to_the_file_descriptor", 0),
        pytest.param("exits_and_writes", 2, marks=pytest.mark.slow),
        pytest.param("raises_broken_pipe", 2, marks=pytest.mark.slow),
        pytest.param("recursion", 2, marks=pytest.mark.slow),
        pytest.param("cheats_after_4_calls", 2, marks=pytest.mark.slow),
    ],
)
def test_in_a_process_of_its_own(cage, name, code):
    arguments = cage.arguments(ZOO[name], "certify", cage.folder / "process" / name)
    ran = subprocess.run(
        [sys.executable, "-m", "rhobust", *arguments, "--limit", "2"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == code, ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stderr.count("rhobust: ") == (code == 2)
    assert ran.stdout == "" if code else json.loads(ran.stdout)["summary"]
