"""Every number of the page as one flat list: the table shows it, the CSV holds it, the tests check it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from rhobust.report.run import Attack, Certificate, Measured, Run, Shift
from rhobust.rounding import Share, Way, confidence, percent, plain, rounded

Standing = Literal["proved", "upper limit", "estimate"]

_WAYS: dict[Standing, Way] = {"proved": "down", "upper limit": "nearest", "estimate": "nearest"}

COSTS = {"w1": "W1", "w2": "W2", "winf": "W∞"}


@dataclass(frozen=True)
class Number:
    """One number with everything needed to read it."""

    run: int
    model: str
    quantity: str
    standing: Standing
    """Proved (rounded down), an upper limit on the truth, or an estimate (both to nearest)."""
    at: str
    """What `where` is: "radius", "eps", or nothing."""
    where: float | None
    value: float
    shown: str
    low: float | None
    high: float | None
    interval: str
    n: int
    record: str
    warnings: tuple[str, ...] = ()


COLUMNS = tuple(column.name for column in fields(Number))
"""The columns of the page's data block and of its CSV."""


def numbers(runs: Sequence[Run]) -> list[Number]:
    """All numbers of all runs: attacks, certificates, shifts, then measured changes."""
    rows: list[Number] = []
    for position, run in enumerate(runs):
        compared = {radius for attack in run.attacks for radius in attack.accuracy}
        for attack in run.attacks:
            rows += _of_attack(position, run, attack)
        for certificate in run.certificates:
            rows += _of_certificate(position, run, certificate, compared)
        for shift in run.shifts:
            rows += _of_shift(position, run, shift)
        for measured in run.measured:
            rows += _of_measured(position, run, measured)
    return rows


def shown_percent(value: float, standing: Standing) -> str:
    """A share in percent, rounded the way its standing allows."""
    return f"{percent(value, _WAYS[standing])}%"


def shown_interval(counted: Share) -> str:
    """The 95% interval, rounded outward."""
    return f"{percent(counted.low, 'down')}–{percent(counted.high, 'up')}%"


def _of_attack(position: int, run: Run, attack: Attack) -> list[Number]:
    rows = []
    for radius, counted in attack.accuracy.items():
        # Nothing is attacked at radius 0: it is the accuracy on the data as it is.
        standing: Standing = "upper limit" if radius > 0 else "estimate"
        quantity = (
            f"{attack.name}, {attack.scored} classifier"
            if radius > 0
            else f"Clean accuracy, {attack.scored} classifier"
        )
        rows.append(
            Number(
                run=position,
                model=run.label,
                quantity=quantity,
                standing=standing,
                at="radius",
                where=radius,
                value=counted.value,
                shown=shown_percent(counted.value, standing),
                low=counted.low,
                high=counted.high,
                interval=shown_interval(counted),
                n=counted.n,
                record=attack.file,
                warnings=attack.warnings,
            )
        )
    return rows


def _of_certificate(position: int, run: Run, certificate: Certificate, compared: set[float]) -> list[Number]:
    rows = []
    for radius in sorted({0.0, *certificate.listed, *compared}):
        counted = certificate.accuracy(radius)
        rows.append(
            Number(
                run=position,
                model=run.label,
                quantity="Certified accuracy",
                standing="proved",
                at="radius",
                where=radius,
                value=counted.value,
                shown=shown_percent(counted.value, "proved"),
                low=counted.low,
                high=counted.high,
                interval=shown_interval(counted),
                n=counted.n,
                record=certificate.file,
                warnings=certificate.warnings,
            )
        )
    rows.append(
        Number(
            run=position,
            model=run.label,
            quantity="Average certified radius",
            standing="proved",
            at="",
            where=None,
            value=certificate.average,
            shown=rounded(certificate.average, 3, "down"),
            low=None,
            high=None,
            interval="–",
            n=len(certificate.examples),
            record=certificate.file,
            warnings=certificate.warnings,
        )
    )
    return rows


def _of_shift(position: int, run: Run, shift: Shift) -> list[Number]:
    sure = "–" if shift.alpha is None else f"confidence {confidence(shift.alpha)}"
    cost = COSTS.get(shift.cost, shift.cost)

    def number(quantity: str, standing: Standing, eps: float, value: float, interval: str) -> Number:
        return Number(
            run=position,
            model=run.label,
            quantity=quantity,
            standing=standing,
            at="eps",
            where=eps,
            value=value,
            shown=shown_percent(value, standing),
            low=None,
            high=None,
            interval=interval,
            n=shift.points,
            record=shift.file,
            warnings=shift.warnings,
        )

    # Draws at one point are not independent examples: Clopper-Pearson over all draws would claim too much.
    rows = [number("Accuracy of one noisy vote", "estimate", 0.0, shift.under_noise, "–")]
    rows += [number(f"Certified accuracy under {cost} shift", "proved", eps, value, sure) for eps, value in shift.curve]
    return rows


def _of_measured(position: int, run: Run, measured: Measured) -> list[Number]:
    sure = "–" if measured.alpha is None else f"confidence {confidence(measured.alpha)}"
    change = str(measured.settings.get("pairs", "a measured change"))

    def number(quantity: str, standing: Standing, value: float, interval: str, n: int) -> Number:
        return Number(
            run=position,
            model=run.label,
            quantity=f"{quantity} after the change ({change})",
            standing=standing,
            at="eps",
            where=measured.eps,
            value=value,
            shown=shown_percent(value, standing),
            low=None,
            high=None,
            interval=interval,
            n=n,
            record=measured.file,
            warnings=measured.warnings,
        )

    rows = [number("Certified accuracy", "proved", measured.certified, sure, measured.points)]
    if measured.after is not None:
        rows.append(number("Accuracy of one noisy vote", "estimate", measured.after, "–", measured.pairs))
    return rows


def where_text(number: Number) -> str:
    """Where a number stands, such as "radius 0.5"."""
    return "" if number.where is None else f"{number.at} {plain(number.where)}"
