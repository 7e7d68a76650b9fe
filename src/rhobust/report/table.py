"""Every number of the page as one flat list: the table shows it, and its CSV holds it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rhobust.formatting import Direction, format_confidence, format_distance, format_number, format_percent
from rhobust.report.run import Attack, Certificate, Curve, Losses, Measured, Piece, Run, Shift, Transfer
from rhobust.stats import Share

Standing = Literal["proved", "upper limit", "estimate"]

_WAYS: dict[Standing, Direction] = {"proved": "down", "upper limit": "nearest", "estimate": "nearest"}

NORMS = {"l2": "radius", "linf": "L∞ radius"}
"""What a radius is called in each norm."""


@dataclass(frozen=True)
class Number:
    """One number with everything needed to read it."""

    run: int
    model: str
    quantity: str
    standing: Standing
    """Proved (rounded to the safe side), an upper limit on the truth, or an estimate (both to nearest)."""
    at: str
    """What `where` is: "radius", "L∞ radius", "eps", or nothing."""
    where: float | None
    value: float
    shown: str
    low: float | None
    high: float | None
    interval: str
    n: int
    record: str
    warnings: tuple[str, ...] = ()


def numbers(runs: Sequence[Run]) -> list[Number]:
    """All numbers of all runs: attacks, certificates, shifts, losses, measured changes, then transfers."""
    labels = names_by_hash(runs)
    rows: list[Number] = []
    for position, run in enumerate(runs):
        compared = {radius for attack in run.attacks if attack.norm == "l2" for radius in attack.accuracy}
        for attack in run.attacks:
            rows += _of_attack(position, run, attack)
        for certificate in run.certificates:
            rows += _of_certificate(position, run, certificate, compared)
        for shift in run.shifts:
            rows += _of_shift(position, run, shift)
        for losses in run.losses:
            rows += _of_losses(position, run, losses)
        for measured in run.measured:
            rows += _of_measured(position, run, measured)
        for transfer in run.transfers:
            rows += _of_transfer(position, run, transfer, labels)
    return rows


def names_by_hash(runs: Sequence[Run]) -> dict[str, str]:
    """The labels of the runs by the hash of their weights, as the runs' own records tell it."""
    return {
        str(piece.settings["model_hash"]): run.label
        for run in runs
        for piece in run.pieces
        if "model_hash" in piece.settings
    }


def shown_percent(value: float, standing: Standing) -> str:
    """A share in percent, rounded the way its standing allows."""
    return f"{format_percent(value, _WAYS[standing])}%"


def shown_interval(counted: Share) -> str:
    """The 95% interval, rounded outward."""
    return f"{format_percent(counted.low, 'down')}–{format_percent(counted.high, 'up')}%"


def close_votes(attack: Attack, radius: float) -> list[str]:
    """What the accuracy could be if votes that were too close had been decided, where there were any."""
    close = attack.close.get(radius)
    if close is None:
        return []
    votes = "1 close vote" if close.count == 1 else f"{close.count} close votes"
    return [f"{votes}: {format_percent(close.least, 'down')}–{format_percent(close.most, 'up')}%"]


def where_text(number: Number) -> str:
    """Where a number stands, such as "radius 0.5"."""
    return "" if number.where is None else f"{number.at} {format_distance(number.where)}"


def end_text(number: Number, end: Literal["low", "high"]) -> str:
    """An end of the interval, as it is sorted by and saved: six digits, rounded outward, or nothing."""
    value = number.low if end == "low" else number.high
    return "" if value is None else format_number(value, 6, "down" if end == "low" else "up")


def _of_attack(position: int, run: Run, attack: Attack) -> Iterator[Number]:
    for radius, counted in attack.accuracy.items():
        # Nothing is attacked at radius 0: it is the accuracy on the data as it is.
        standing: Standing = "upper limit" if radius > 0 else "estimate"
        what = attack.name if radius > 0 else "Clean accuracy"
        at = NORMS.get(attack.norm, attack.norm)
        number = _share(position, run, attack, f"{what}, {attack.judge}", standing, at, radius, counted)
        yield replace(number, interval="; ".join([number.interval, *close_votes(attack, radius)]))


def _of_certificate(position: int, run: Run, certificate: Certificate, compared: set[float]) -> Iterator[Number]:
    radii = sorted({0.0, *certificate.listed, *compared})
    # From the first radius on where nothing is certified it is nothing for good: that is said once.
    empty = [radius for radius in radii if certificate.certified(radius) == 0]
    radii = [radius for radius in radii if radius not in empty[1:]]
    for radius in radii:
        counted = certificate.accuracy(radius)
        yield _share(position, run, certificate, "Certified accuracy", "proved", "radius", radius, counted)
    n, sure = len(certificate.examples), _sure(certificate.alpha)
    for radius in radii:
        if (bound := certificate.at_least(radius)) is not None:
            what = "Certified accuracy, all examples at once"
            yield _plain(position, run, certificate, what, "proved", "radius", radius, bound, sure, n)
    average = certificate.average
    number = _plain(position, run, certificate, "Average certified radius", "proved", "", None, average, "–", n)
    yield replace(number, shown=format_number(average, 3, "down"))


def _of_shift(position: int, run: Run, shift: Shift) -> Iterator[Number]:
    if not shift.beside:
        # Draws at one point are not independent examples: Clopper-Pearson over all draws would claim too much.
        what = "Accuracy of one noisy vote"
        yield _plain(position, run, shift, what, "estimate", "eps", 0.0, shift.under_noise, "–", shift.points)
    cost, _, rest = shift.title.partition(", ")
    for eps, value in shift.curve:
        quantity = f"Certified accuracy under {cost} shift, {rest}"
        yield _plain(position, run, shift, quantity, "proved", "eps", eps, value, _sure(shift.alpha), shift.points)


def _of_losses(position: int, run: Run, losses: Losses) -> Iterator[Number]:
    sure = _sure(losses.alpha)
    parts: list[tuple[str, Standing, Direction, str, Curve]] = [
        (f"Mean {losses.loss}", "estimate", "nearest", "–", ((0.0, losses.under_noise),)),
        (f"Worst {losses.loss} under W2 shift, at most", "proved", "up", sure, losses.certified),
        (f"Worst {losses.loss} under W2 shift, at least", "proved", "down", sure, losses.lower),
        (f"Worst {losses.loss} as the paper estimates it", "estimate", "nearest", "–", losses.estimate),
    ]
    for quantity, standing, way, interval, curve in parts:
        for eps, value in curve:
            number = _plain(position, run, losses, quantity, standing, "eps", eps, value, interval, losses.points)
            yield replace(number, shown=format_number(value, 3, way))


def _of_measured(position: int, run: Run, measured: Measured) -> Iterator[Number]:
    after = f"after the change ({measured.settings.get('pairs', 'a measured change')})"
    at, sure = ("eps", measured.eps), _sure(measured.alpha)
    what = f"Certified accuracy {after}"
    yield _plain(position, run, measured, what, "proved", *at, measured.certified, sure, measured.points)
    if measured.after is not None:
        what = f"Accuracy of one noisy vote {after}"
        yield _plain(position, run, measured, what, "estimate", *at, measured.after, "–", measured.pairs)


def _of_transfer(position: int, run: Run, transfer: Transfer, labels: Mapping[str, str]) -> Iterator[Number]:
    for target, accuracy in transfer.accuracy.items():
        name = labels.get(target) or transfer.names.get(target, target)
        for radius, counted in accuracy.items():
            what = f"Attack crafted on {run.label}, judged by {name}"
            standing: Standing = "upper limit" if radius > 0 else "estimate"
            at = NORMS.get(str(transfer.settings.get("norm", "l2")), "radius")
            yield _share(position, run, transfer, what, standing, at, radius, counted)


def _sure(alpha: float | None) -> str:
    return "–" if alpha is None else f"confidence {format_confidence(alpha)}"


def _share(
    position: int,
    run: Run,
    piece: Attack | Certificate | Transfer,
    quantity: str,
    standing: Standing,
    at: str,
    where: float,
    counted: Share,
) -> Number:
    """A share of examples, with its interval."""
    interval = shown_interval(counted)
    number = _plain(position, run, piece, quantity, standing, at, where, counted.value, interval, counted.n)
    return replace(number, low=counted.low, high=counted.high)


def _plain(
    position: int,
    run: Run,
    piece: Piece,
    quantity: str,
    standing: Standing,
    at: str,
    where: float | None,
    value: float,
    interval: str,
    n: int,
) -> Number:
    """A share without an interval of its own."""
    return Number(
        run=position,
        model=run.label,
        quantity=quantity,
        standing=standing,
        at=at,
        where=where,
        value=value,
        shown=shown_percent(value, standing),
        low=None,
        high=None,
        interval=interval,
        n=n,
        record=piece.file,
        warnings=piece.warnings,
    )
