"""The page's tables: every number as one flat list, and model against model."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rhobust.formatting import Direction, format_confidence, format_distance, format_number, format_percent
from rhobust.measurements import (
    AFTER,
    ALL_AT_ONCE,
    AVERAGE_RADIUS,
    BASE_AFTER,
    CERTIFIED,
    CERTIFIED_AFTER,
    LOSS_UNDER_NOISE,
    ROBUST,
    SHIFT_ATTACK,
    SHIFT_LOSS,
    UNDER_NOISE,
    WORST_CERTIFIED,
    WORST_ESTIMATE,
    WORST_LOWER,
    Measurement,
    certified,
    compared_settings,
    difference,
    outcomes,
)
from rhobust.report.runs import PageRecord, PageRun
from rhobust.stats import Difference

MOST = 12
"""Models that a table of differences can hold and still be read."""
NORMS = {"l2": "radius", "linf": "L∞ radius"}
"""What a radius is called in each norm."""


@dataclass(frozen=True)
class TableRow:
    """One number with everything needed to read it."""

    run: int
    model: str
    quantity: str
    number: Measurement
    at: str
    """What `number.at` is: "radius", "L∞ radius", "eps", or nothing."""
    shown: str
    interval: str
    record: str
    warnings: tuple[str, ...]

    @property
    def where(self) -> str:
        """Where the number is taken, such as "radius 0.5"."""
        return "" if self.number.at is None else f"{self.at} {format_distance(self.number.at)}"

    @property
    def low(self) -> str:
        """Lower end of the interval as it is sorted by and saved: six digits, rounded outward, or nothing."""
        return "" if self.number.low is None or not self._counted else format_number(self.number.low, 6, "down")

    @property
    def high(self) -> str:
        """The upper end."""
        return "" if self.number.high is None or not self._counted else format_number(self.number.high, 6, "up")

    @property
    def _counted(self) -> bool:
        return self.number.quantity in (ROBUST, CERTIFIED, SHIFT_ATTACK)


def table_rows(runs: Sequence[PageRun]) -> list[TableRow]:
    """All numbers of all runs: attacks, certificates, shifts, losses, measured changes, then transfers."""
    labels = names_by_hash(runs)
    rows = []
    for run in runs:
        for kind in _NUMBERS:
            for record in run.of(kind):
                for quantity, at, number in _NUMBERS[kind](run, record, labels):
                    rows.append(_row(run, record, f"{quantity}{record.whose}", at, number))
    return rows


def _row(run: PageRun, record: PageRecord, quantity: str, at: str, number: Measurement) -> TableRow:
    interval = "–"
    if number.quantity in (ROBUST, CERTIFIED, SHIFT_ATTACK):
        interval = "; ".join([shown_interval(number), *close_votes(number)])
    elif number.status == "proved" and number.at is not None and record.alpha is not None:
        interval = f"confidence {format_confidence(record.alpha)}"
    lengths = (AVERAGE_RADIUS, LOSS_UNDER_NOISE, SHIFT_LOSS, WORST_CERTIFIED, WORST_LOWER, WORST_ESTIMATE)
    in_percent = number.quantity not in lengths
    shown = shown_percent(number) if in_percent else format_number(number.value, 3, number.direction)
    return TableRow(run.place, run.label, quantity, number, at, shown, interval, record.file, record.warnings)


def shown_percent(number: Measurement) -> str:
    """A share in percent, rounded in the direction that its status allows."""
    return f"{format_percent(number.value, number.direction)}%"


def shown_interval(number: Measurement) -> str:
    """The 95% interval of a share, rounded outward."""
    return f"{format_percent(number.low or 0.0, 'down')}–{format_percent(number.high or 0.0, 'up')}%"


def close_votes(number: Measurement) -> list[str]:
    """What the accuracy could be if votes that are not significant went either way, where there are any."""
    count = number.detail.get("undecided")
    if not count:
        return []
    least, most = format_percent(number.detail["least"], "down"), format_percent(number.detail["most"], "up")
    return [f"{count} vote{'s' if count > 1 else ''} not significant at 5%: {least}–{most}%"]


def names_by_hash(runs: Sequence[PageRun]) -> dict[str, str]:
    """The labels of the runs by the hash of their weights, as the runs' own records have it."""
    return {
        str(record.settings["model_hash"]): run.label
        for run in runs
        for record in run.records
        if "model_hash" in record.settings
    }


def target_names(record: PageRecord) -> dict[str, str]:
    """What a record of transfer attacks calls its networks, by the hash of their weights."""
    targets = record.settings.get("targets")
    listed = [target for target in targets if isinstance(target, dict)] if isinstance(targets, list) else []
    return {str(target.get("model_hash")): str(target.get("name")) for target in listed}


Numbers = Iterator[tuple[str, str, Measurement]]
"""What each number is called, what it is taken at, and the number."""


def _of_attack(_: PageRun, record: PageRecord, __: Mapping[str, str]) -> Numbers:
    for radius, number in record.accuracy.items():
        what = f"Robust accuracy, {record.attack_name}" if radius > 0 else "Clean accuracy"
        yield f"{what}, {record.predictor_name}", NORMS.get(record.norm, record.norm), number


def _of_certificate(run: PageRun, record: PageRecord, _: Mapping[str, str]) -> Numbers:
    attacked = {radius for attack in run.of("attack") if attack.norm == "l2" for radius in attack.accuracy}
    found = certified(record.record, sorted({0.0, *record.listed, *attacked})) + record.curve(AVERAGE_RADIUS)
    # Beyond the first radius where nothing is certified, nothing is certified: only the first one is shown.
    empty = [one.at for one in found if one.quantity == CERTIFIED and one.value == 0][1:]
    names = {CERTIFIED: "Certified accuracy", ALL_AT_ONCE: "Certified accuracy, all examples at once"}
    for number in found:
        if number.at is None or number.at not in empty:
            yield names.get(number.quantity, "Average certified radius"), "" if number.at is None else "radius", number


def _of_shift(_: PageRun, record: PageRecord, __: Mapping[str, str]) -> Numbers:
    for number in record.curve(UNDER_NOISE):
        yield "Accuracy of one noisy prediction", "eps", number
    for shift in record.shifts:
        cost, rest = shift.title.split(", ", 1)
        for number in shift.points:
            yield f"Certified accuracy under {cost} shift, {rest}", "eps", number


def _of_shift_attack(_: PageRun, record: PageRecord, __: Mapping[str, str]) -> Numbers:
    for number in record.curve(SHIFT_ATTACK):
        yield "Accuracy left by a W2 attack on the distribution", "eps", number


def _of_losses(_: PageRun, record: PageRecord, __: Mapping[str, str]) -> Numbers:
    names = {
        LOSS_UNDER_NOISE: f"Mean {record.loss}",
        WORST_LOWER: f"Worst {record.loss} under W2 shift, at least",
        WORST_ESTIMATE: f"Worst {record.loss} as the paper estimates it",
    }
    for number in record.found:
        yield names.get(number.quantity, f"Worst {record.loss} under W2 shift, at most"), "eps", number


def _of_measured(_: PageRun, record: PageRecord, __: Mapping[str, str]) -> Numbers:
    names = {CERTIFIED_AFTER: "Certified accuracy", AFTER: "Accuracy of one noisy prediction"}
    for quantity, name in names.items():
        for number in record.curve(quantity):
            yield f"{name} after the change ({record.settings.get('pairs', 'a measured change')})", "eps", number


def _of_corruptions(_: PageRun, record: PageRecord, __: Mapping[str, str]) -> Numbers:
    names = {
        CERTIFIED_AFTER: "Certified accuracy",
        AFTER: "Accuracy of one noisy prediction",
        BASE_AFTER: "Base network",
    }
    for quantity, name in names.items():
        for number in record.curve(quantity):
            yield f"{name} after {number.detail['corruption']}, severity {number.detail['severity']}", "eps", number


def _of_transfer(run: PageRun, record: PageRecord, labels: Mapping[str, str]) -> Numbers:
    names = {**target_names(record), **labels}
    for number in record.curve(ROBUST):
        target = str(number.detail["target"])
        what = f"Attack crafted on {run.label}, prediction of {names.get(target, target)}"
        yield what, NORMS.get(record.norm, "radius"), number


_NUMBERS: dict[str, Callable[[PageRun, PageRecord, Mapping[str, str]], Numbers]] = {
    "attack": _of_attack,
    "certify": _of_certificate,
    "certify-shift": _of_shift,
    "attack-shift": _of_shift_attack,
    "losses": _of_losses,
    "measure-shift": _of_measured,
    "corruptions": _of_corruptions,
    "transfer": _of_transfer,
}


@dataclass(frozen=True)
class DifferenceCell:
    """How far the row's model is above the column's, in percentage points."""

    shown: str
    interval: str
    side: str
    """"above" or "below" where the interval leaves out 0, else "level"."""


@dataclass(frozen=True)
class DifferenceTable:
    """Every pair of models that were evaluated with the same settings on the same images.

    What is certified is proved; how far one share is above another is an estimate.
    """

    title: str
    n: int
    runs: tuple[int, ...]
    """Their places on the page."""
    cells: tuple[tuple[DifferenceCell | None, ...], ...]
    """Row by row; None on the diagonal. No rows if there are too many models."""


def difference_tables(
    certificates: Sequence[tuple[int, PageRecord]], attacks: Sequence[tuple[int, PageRecord]], radius: float
) -> list[DifferenceTable]:
    """Certified and robust accuracy of every two models at a radius, image by image."""
    return [*_tables(certificates, CERTIFIED, radius, ("radii",)), *_tables(attacks, ROBUST, radius, ())]


def _tables(
    found: Sequence[tuple[int, PageRecord]], quantity: str, radius: float, more: tuple[str, ...]
) -> Iterator[DifferenceTable]:
    """A table for each group of two or more that share their images and the settings that must be alike."""
    groups: dict[Hashable, list[tuple[int, PageRecord]]] = {}
    for place, one in found:
        same = repr([*compared_settings(one.record).values(), *(one.settings.get(key) for key in more)])
        groups.setdefault((same, frozenset(outcomes(one.record, quantity, radius))), []).append((place, one))
    for group in groups.values():
        if len(group) > 1:
            records = [one.record for _, one in group]
            cells = tuple(
                tuple(
                    None if ours is theirs else _difference_cell(difference(ours, theirs, quantity, radius))
                    for theirs in records
                )
                for ours in (records if len(group) <= MOST else ())
            )
            what = "Certified" if quantity == CERTIFIED else group[0][1].attack_name
            places = tuple(place for place, _ in group)
            n = len(outcomes(records[0], quantity, radius))
            title = f"{what}, radius {format_distance(radius)}{group[0][1].whose}"
            yield DifferenceTable(title, n, places, cells)


def _difference_cell(apart: Difference) -> DifferenceCell:
    side = "above" if apart.low > 0 else "below" if apart.high < 0 else "level"
    interval = f"{_points(apart.low, 'down')} to {_points(apart.high, 'up')}"
    return DifferenceCell(_points(apart.value, "nearest"), interval, side)


def _points(value: float, direction: Direction) -> str:
    """Percentage points with their sign."""
    text = format_percent(value, direction)
    return f"+{text}" if float(text) > 0 else text.replace("-", "−")
