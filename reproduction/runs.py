"""The training run behind a row of a table: one function from the paper's words to a config."""

from dataclasses import replace

from reproduction.scales import Scale, StandIn
from reproduction.settings import BATCH_SIZE, DRAWS, GAMMA, STEPS
from rhobust.methods import ERM, NAL, STN, TRADES, WRM, AdversarialTraining, AnyMethod, Gaussian, SmoothAdv
from rhobust.models import Activation
from rhobust.training import TrainConfig

OURS = "NAL, damped"
"""The row of NAL with the inner solver that converges; "NAL" is Algorithm 1 to the letter."""


def both_solvers(rows: tuple[str, ...]) -> tuple[str, ...]:
    """The paper's rows with our NAL after its own."""
    return tuple(name for row in rows for name in ((row, OURS) if row == "NAL" else (row,)))


def run_of(
    scale: Scale,
    stand_in: StandIn,
    row: str,
    *,
    gamma: float = GAMMA,
    sigma: float | None = None,
    steps: int = STEPS,
    draws: int = DRAWS,
    activation: Activation = "relu",
) -> TrainConfig:
    """The run of a row: the paper's settings with what the scale puts in their place.

    Args:
        scale: What is shortened.
        stand_in: The data set and the network.
        row: The method as the paper's tables name it, "Undefended", or `OURS`.
        gamma: The price of moving an input; decides the eps of the methods that have one, by Table 1.
        sigma: The noise; the setup's own where none is given.
        steps: NAL's K.
        draws: r of NAL and of SmoothAdv.
        activation: The network's activation.
    """
    setup = stand_in.setup
    return TrainConfig(
        _method(row, stand_in, gamma, setup.sigma if sigma is None else sigma, steps, draws),
        data=stand_in.data,
        model=stand_in.model,
        activation=activation,
        epochs=min(scale.epochs or setup.epochs, setup.epochs),
        batch_size=BATCH_SIZE,
        lr=scale.lr or setup.eta2,
        schedule=scale.schedule,
    )


def with_best_epoch(scale: Scale, run: TrainConfig) -> TrainConfig:
    """The same run, keeping the epoch with the highest clean accuracy on images held out for it."""
    return replace(run, validation=scale.validation, keep="best-clean")


def _method(row: str, stand_in: StandIn, gamma: float, sigma: float, steps: int, draws: int) -> AnyMethod:
    match row:
        case "NAL" | "NAL, damped":
            solver = "paper" if row == "NAL" else "damped"
            return NAL(sigma=sigma, gamma=gamma, steps=steps, draws=draws, inner=solver)
        case "SmoothAdv":
            return SmoothAdv(sigma=sigma, eps=stand_in.setup.eps(gamma), draws=draws)
        case "PGD":
            return AdversarialTraining(eps=stand_in.setup.eps(gamma))
        case "TRADES":
            return TRADES(eps=stand_in.setup.eps(gamma))
        case "STN":
            return STN(sigma=sigma)
        case "Smoothing":
            return Gaussian(sigma=sigma)
        case "WRM":
            return WRM(gamma=gamma)
        case "Undefended":
            return ERM()
    raise ValueError(f"row must be a method of the paper, got {row}")
