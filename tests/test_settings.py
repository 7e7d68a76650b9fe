"""Settings raise on undeclared types and values, in one line and before they are used."""

import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import torch

from rhobust.attacks import EOT, PGD, AutoAttack, PaperPGD
from rhobust.certificates import Fixed, Sequential, ShiftClaim, Smoothing, TwoStage, choose_procedure
from rhobust.evaluation import Ascent
from rhobust.methods import ERM, NAL, WRM
from rhobust.settings import check_count, check_declared, check_level, check_number, check_positive_number, sizes
from rhobust.training import TrainConfig, train


@dataclass(frozen=True)
class Settings:
    count: int = 1
    size: float = 1.0
    word: Literal["one", "two"] = "one"
    wide: bool = False
    perhaps: float | None = None
    choice: Literal["a", "b"] | None = None
    free: tuple[float, ...] = ()
    name: str = "x"


@dataclass(frozen=True)
class Own(ERM):
    """A user method without checks."""

    draws: int = 1


@pytest.mark.parametrize(
    "given",
    [
        {"count": np.int64(3)},
        {"size": 2},
        {"size": np.float32(0.5)},
        {"word": "two"},
        {"perhaps": 1},
        {"choice": "b"},
        {"free": "anything"},
    ],
)
def test_what_a_field_declares_is_taken(given: dict[str, Any]) -> None:
    check_declared(Settings(**given))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 1.0}, r"count must be an int, got 1\.0"),
        ({"count": True}, "count must be an int, got True"),
        ({"size": "1"}, "size must be a number, got '1'"),
        ({"size": torch.tensor(1.0)}, r"size must be a number, got tensor\(1\.\)"),
        ({"size": torch.ones(2, 2)}, "size must be a number, got a Tensor$"),
        ({"size": True}, "size must be a number, got True"),
        ({"word": "three"}, "word must be one of one, two, got 'three'"),
        ({"wide": 1}, "wide must be True or False, got 1"),
        ({"perhaps": "no"}, "perhaps must be a number or None, got 'no'"),
        ({"choice": "c"}, "choice must be one of a, b or None, got 'c'"),
        ({"name": 3}, "name must be a string, got 3"),
    ],
)
def test_what_it_does_not_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_declared(Settings(**given))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EOT(norm="L2"), "norm must be one of l2, linf, got 'L2'"),  # was taken for linf
        (lambda: PGD(schedule="cosine"), "schedule must be one of falling, constant, got 'cosine'"),
        (lambda: PGD(gradient="sign"), "gradient must be one of normalised, raw, got 'sign'"),
        (lambda: EOT(loss="ce"), "loss must be one of cross-entropy, margin, got 'ce'"),
        (lambda: EOT(draws=2.5), r"draws must be an int, got 2\.5"),
        (lambda: AutoAttack(norm="Linf"), "norm must be one of l2, linf, got 'Linf'"),
        (lambda: AutoAttack(version="plus"), "version must be one of rand, standard, got 'plus'"),
        (lambda: PaperPGD(sees="noise"), "sees must be one of base, draw, got 'noise'"),
        (lambda: Smoothing("0.25", 10), "sigma must be a number, got '0.25'"),
        (lambda: Smoothing(float("inf"), 10), "sigma must be finite, got inf"),
        (lambda: Smoothing(0.25, 10, dtype="float64"), "dtype must be one of float32, .*, got 'float64'"),
        (lambda: Smoothing(0.25, 10, noise="uniform"), "noise must be one of grid, float, got 'uniform'"),
        (lambda: ShiftClaim(estimator="fast"), "estimator must be one of majorant, intervals, sample, got 'fast'"),
        (lambda: ShiftClaim("k-vote", votes=2.5), r"votes must be an int or None, got 2\.5"),
        (lambda: Fixed(n=1e4), r"n must be an int, got 10000\.0"),
        (lambda: Sequential((0.1,), n0=float("nan")), "n0 must be an int, got nan"),
        (lambda: TwoStage(tolerance=[0.1]), r"tolerance must be a number, got \[0\.1\]"),
        (lambda: choose_procedure("fast"), "procedure must be one of fixed, sequential, two-stage, got 'fast'"),
        (lambda: Ascent(steps=1.5), r"steps must be an int, got 1\.5"),
        (lambda: TrainConfig(ERM(), "digits", "cnn", optimizer="adamw"), "optimizer must be one of adam, sgd"),
        (lambda: TrainConfig(ERM(), "digits", "cnn", epochs=1.5), r"epochs must be an int, got 1\.5"),
        (lambda: TrainConfig(ERM(), "digits", "cnn", activation="gelu"), "activation must be one of relu, elu"),
        (lambda: NAL(inner="fast"), "inner must be one of damped, paper, search, got 'fast'"),
        (lambda: WRM(steps=1.5), "steps must be an int, got 1.5"),
        (lambda: TrainConfig(Own(draws=2.5), "digits", "cnn"), r"draws must be an int, got 2\.5"),
        (lambda: TrainConfig(ERM(), 3, "cnn"), "data must be a string, got 3"),
        (
            lambda: TrainConfig(ERM(), "digits", "cnn", lr=1e308),
            r"lr must be between .*, got 1e\+308",
        ),
        (lambda: EOT(draws=10**21), r"draws must be between -1,000,000,000 and 1,000,000,000, got 1000"),
        (
            lambda: TrainConfig(ERM(), "digits", "cnn", weight_decay=float("nan")),
            "weight_decay must be finite",
        ),
    ],
)
def test_every_dataclass_checks_its_fields(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_count_is_whole_and_at_least_one() -> None:
    check_count("n", np.int64(1))
    for value, message in [(0, "n must be >= 1, got 0"), (2.0, r"n must be an int, got 2\.0")]:
        with pytest.raises(ValueError, match=message):
            check_count("n", value)


def test_a_number_is_one_and_finite() -> None:
    for value in (0, -1.5, np.float32(0.5)):
        check_number("gamma", value)
    for value, message in [
        ("1", "a number, got '1'"),
        (np.ones((2, 2)), "a number, got a ndarray"),
        (np.nan, "finite"),
    ]:
        with pytest.raises(ValueError, match=f"gamma must be {message}"):
            check_number("gamma", value)


@pytest.mark.parametrize("values", [[0, 0.5], (0.0, 0.5), np.array([0, 0.5]), torch.tensor([0, 0.5])], ids=repr)
def test_sizes_come_as_floats_from_any_list_of_numbers(values: Any) -> None:
    assert sizes("eps", values) == (0.0, 0.5)
    assert {type(size) for size in sizes("eps", values)} == {float}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (0.1, r"eps must be a list of numbers, got 0\.1"),
        (["wide"], r"eps must be a list of numbers, got \['wide'\]"),
        (None, "eps must be a list of numbers, got None"),
        ([[0.1]], r"eps must be a list of numbers, got \[\[0\.1\]\]"),
        ([], "eps must hold at least one number, got none"),
        ([0.1, float("inf")], r"eps must be finite, got 0\.1 inf"),
        ([-1], r"eps must be >= 0, got -1\.0"),
        ([0, 1e308], r"eps must be between -1,000,000,000 and 1,000,000,000, got 1e\+308"),
    ],
)
def test_what_is_no_list_of_sizes_is_refused(values: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sizes("eps", values)


@pytest.mark.parametrize("value", ["0.25", [0.25], True, None])
def test_a_noise_that_is_no_number_is_named(value):
    with pytest.raises(ValueError, match="sigma must be a number, got"):
        check_positive_number("sigma", value)
    check_positive_number("sigma", np.float32(0.25))


def test_numbers_of_numpy_become_those_of_python():
    settings = Settings(count=np.int64(3), size=np.float32(0.5), perhaps=np.float64(2))
    check_declared(settings)
    assert [type(value) for value in (settings.count, settings.size, settings.perhaps)] == [int, float, float]
    assert json.loads(json.dumps([settings.count, settings.size])) == [3, 0.5]


@pytest.mark.parametrize("alpha", [None, "0.1", True])
def test_a_level_that_is_no_number_is_refused(alpha):
    with pytest.raises(ValueError, match=r"alpha must be in \(0, 1\), got"):
        check_level(alpha)


@pytest.mark.parametrize(("value", "given"), [("x", "a str"), (ERM, "the class ERM")])
def test_what_is_no_instance_is_named(value, given):
    with pytest.raises(ValueError, match=f"config must be a TrainConfig, got {given}$"):
        train(value, "nowhere")
