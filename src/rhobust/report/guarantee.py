"""What is guaranteed of a classifier: one sentence around one number, and tables of what else is certified."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rhobust.formatting import format_confidence, format_distance, format_number, format_percent, name_split, of_data
from rhobust.measurements import (
    AFTER,
    ALL_AT_ONCE,
    CERTIFIED_AFTER,
    COVERAGE,
    GROUP,
    MIXTURE,
    RECENTRED,
    SET_COVERAGE,
    SET_SIZE,
    SUBPOPULATION,
    WRONG_ANSWERS,
    Measurement,
)
from rhobust.measurements.corruptions import corruptions_in_words
from rhobust.proofs.claim import claim_in_full
from rhobust.report.runs import COSTS, ONE, PageRecord, PageRun, ShiftCurve
from rhobust.report.tables import shown_percent


@dataclass(frozen=True)
class Guarantee:
    """What is guaranteed, in one sentence around one number."""

    lead: str
    number: str = ""
    rest: str = ""
    value: float = 0.0
    warnings: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        """Whether anything is guaranteed."""
        return bool(self.number)


def guarantee(
    run: PageRun,
    certificate: PageRecord | None,
    shifted: PageRecord | None,
    shift: ShiftCurve | None,
    *,
    radius: float | None,
    eps: float | None,
) -> Guarantee:
    """What is proved at the page's eps, or at its radius; where that is nothing, at ones of the model's own.

    A run whose numbers contradict each other is guaranteed nothing, whatever its certificates say.
    """
    if run.contradictions:
        return Guarantee("Nothing is guaranteed: the numbers of this model contradict each other.")
    curve: dict[float, float] = {}
    if shift is not None:
        curve = {at: value for at, value in shift.values.items() if at > 0 and value > 0}
    bounds = _bounds(certificate, radius)
    if shifted is not None and shift is not None and eps is not None and eps in curve:
        return _of_shift(shifted, shift, eps, curve[eps])
    if certificate is not None and radius is not None and radius in bounds:
        return _of_inputs(certificate, radius, bounds[radius])
    if shifted is not None and shift is not None and curve:
        return _of_shift(shifted, shift, *_typical(curve))
    if certificate is not None and bounds:
        return _of_inputs(certificate, *_typical(bounds))
    if shift is not None or (certificate is not None and certificate.summary):
        return Guarantee("Nothing is guaranteed: the certificates in this folder prove nothing beyond radius 0.")
    return Guarantee("Nothing is guaranteed yet: no finished certificate is in this folder.")


def _bounds(certificate: PageRecord | None, radius: float | None) -> dict[float, float]:
    """What is proved of all inputs at once at each radius, where that is anything."""
    found: dict[float, float] = {}
    if certificate is not None:
        for at in sorted(at for at in {*certificate.listed, radius or 0.0} if at > 0):
            bound = certificate.certified(at, ALL_AT_ONCE)
            if bound is not None and bound.value > 0:
                found[at] = bound.value
    return found


def _typical(proved: Mapping[float, float]) -> tuple[float, float]:
    """The largest radius or eps, among those given in ascending order, that keeps half of what the smallest has."""
    most = next(iter(proved.values()))
    return [(at, value) for at, value in proved.items() if value >= most / 2][-1]


def _of_shift(record: PageRecord, shift: ShiftCurve, eps: float, value: float) -> Guarantee:
    points = f"{record.n} {name_split(record.settings.get('split'))} images{of_data(record.data)}"
    of = f"the one that the {points} were drawn from independently"
    of = f"these {points}" if shift.sampled else of
    images = " of 8-bit images" if record.settings.get("noise") == "grid" else ""
    who = shift.classifier if shift.classifier == ONE else f"the {shift.classifier}"
    return Guarantee(
        "Right at least ",
        f"{format_percent(value, 'down')}%",
        f" of the time under every distribution{images} within {COSTS['w2']} distance {format_distance(eps)} of {of},"
        f" with {who}{_sure(record.alpha)}.",
        value,
        record.warnings,
    )


def _of_inputs(certificate: PageRecord, radius: float, value: float) -> Guarantee:
    # Grid noise proves something of 8-bit images, float noise only of ideal samples: the claim says which.
    change = "change to another 8-bit image" if certificate.settings.get("noise") == "grid" else "change"
    inputs = f"{certificate.n} {name_split(certificate.settings.get('split'))} inputs"
    return Guarantee(
        "At least ",
        f"{format_percent(value, 'down')}%",
        f" of these {inputs} are classified right by the smoothed classifier and stay so under every"
        f" {change} of L2 length up to {format_distance(radius)}{_sure(certificate.alpha)}.",
        value,
        certificate.warnings,
    )


def _sure(alpha: float | None) -> str:
    return "" if alpha is None else f" (confidence {format_confidence(alpha)})"


@dataclass(frozen=True)
class BeyondCell:
    """One number of a table: as it is shown, and the share that shades its cell."""

    shown: str
    value: float


@dataclass(frozen=True)
class BeyondTable:
    """One table: a surface over eps, or a few numbers with their names."""

    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[BeyondCell | None, ...]], ...]
    sentences: tuple[str, ...]
    """The claims in words; each names network, data, classifier, threat, confidence and assumptions."""


def beyond_tables(runs: Sequence[PageRun]) -> list[BeyondTable]:
    """The tables of all runs, in their order."""
    return [table for run in runs for record in run.records for table in _of_record(run, record)]


def _of_record(run: PageRun, record: PageRecord) -> Iterator[BeyondTable]:
    of = f"{run.label}: "
    if record.kind == "certify-shift":
        outliers = record.settings.get("outliers")
        less = f", {format_percent(outliers, 'down')}% outliers" if outliers else ""
        single, plural = ("group", "groups") if record.settings.get("groups") else ("class", "classes")
        for quantity, key, title, corner in (
            (SUBPOPULATION, "gamma", f"every subpopulation, W2 shift{less}", "reweighted by up to"),
            (GROUP, "group", f"every {single}", single),
            (MIXTURE, "tv", f"changed shares of {plural}", "shares within"),
        ):
            if points := record.curve(quantity):
                yield _surface(f"{of}{title}", corner, points, key, _claims(run, record, _weakest(record, _PARTS[key])))
        if points := record.curve(WRONG_ANSWERS):
            title = f"{of}wrong answers if it abstains unless {record.settings.get('agree')} votes agree"
            yield _line(title, "wrong answers at most", points, _claims(run, record, _weakest(record, "abstaining")))
    elif record.kind == "measure-shift" and (points := record.curve(RECENTRED)):
        pairs = str(record.settings.get("pairs", "a measured change"))
        said = [one.detail["statement"] for one in record.found if "statement" in one.detail]
        # The first and the last are the changed data themselves and every other change of its size.
        sentences = tuple(dict.fromkeys((*said[:1], *said[-1:])))
        claims = _claims(run, record, sentences)
        yield _line(f"{of}around the changed data ({pairs})", "certified accuracy", points, claims)
    elif record.kind == "corruptions" and record.curve(RECENTRED):
        yield _corruptions(run, record)
    elif record.kind == "conform":
        yield _sets(run, record)


def _surface(
    title: str, corner: str, points: Sequence[Measurement], key: str, sentences: tuple[str, ...]
) -> BeyondTable:
    sizes = list(dict.fromkeys(one.at for one in points))
    found = {(one.detail[key], one.at): one for one in points}
    names = list(dict.fromkeys(one.detail[key] for one in points))
    rows = tuple(
        (name if key == "group" else format_distance(name), tuple(_cell(found[name, eps]) for eps in sizes))
        for name in names
    )
    return BeyondTable(title, corner, tuple(f"eps {format_distance(eps or 0.0)}" for eps in sizes), rows, sentences)


def _line(title: str, name: str, points: Sequence[Measurement], sentences: tuple[str, ...]) -> BeyondTable:
    columns = tuple(f"eps {format_distance(one.at or 0.0)}" for one in points)
    return BeyondTable(title, "", columns, ((name, tuple(_cell(one) for one in points)),), sentences)


def _corruptions(run: PageRun, record: PageRecord) -> BeyondTable:
    """One row per corruption and severity: what was measured, and the two floors."""
    columns = ("measured, one vote", "certified, no labels", "certified, any change of its size")
    quantities = (AFTER, RECENTRED, CERTIFIED_AFTER)
    found: dict[tuple[str, int], dict[str, Measurement]] = {}
    for one in record.found:
        if one.quantity in quantities and "corruption" in one.detail:
            place = str(one.detail["corruption"]), int(one.detail["severity"])
            found.setdefault(place, {})[one.quantity] = one
    rows = tuple(
        (f"{name} {severity}", tuple(_cell(cells[quantity]) if quantity in cells else None for quantity in quantities))
        for (name, severity), cells in found.items()
    )
    title = f"{run.label}: common corruptions, certified without labels of changed images"
    claims = _claims(run, record, (corruptions_in_words(record.settings),))
    return BeyondTable(title, "corruption, severity", columns, rows, claims)


def _sets(run: PageRun, record: PageRecord) -> BeyondTable:
    certified, covered, size = (record.value(quantity) for quantity in (COVERAGE, SET_COVERAGE, SET_SIZE))
    cells = tuple(None if one is None else _cell(one) for one in (certified, covered))
    classes = None if size is None else BeyondCell(format_number(size.value, 2, "nearest"), 0.0)
    columns = ("coverage, certified", "coverage without a shift", "classes per set")
    eps = format_distance((certified.at if certified else None) or 0.0)
    claims = _claims(run, record, (record.statement,))
    each = " in every class" if record.settings.get("conditional") else ""
    return BeyondTable(f"{run.label}: prediction sets{each}", "", columns, ((f"eps {eps}", (*cells, classes)),), claims)


def _cell(one: Measurement) -> BeyondCell:
    return BeyondCell(shown_percent(one), one.value)


_POPULATION = ("certify-shift", "curves", "measure-shift", "conform")
"""Kinds of records whose statements are about the distribution that images were drawn from."""


def full_statement(run: PageRun, record: PageRecord) -> str:
    """The claim of a record in words, with network, data and assumptions where it is about a distribution."""
    claims = _claims(run, record, (record.statement,)) if record.kind in _POPULATION else (record.statement,)
    return "".join(claims)


_PARTS = {"gamma": "surface", "group": "groups", "tv": "mixtures"}
"""Parts of a summary by what their points name."""


def _claims(run: PageRun, record: PageRecord, statements: Sequence[str]) -> tuple[str, ...]:
    """Statements with the network, the data and the assumptions."""
    return tuple(claim_in_full(one, record.settings, record.points, run.label) for one in statements if one)


def _weakest(record: PageRecord, part: str) -> tuple[str, ...]:
    """The sentence of the weakest bound of a part of a summary that says anything; all were checked with the rows."""
    points = record.summary.get(part)
    if not isinstance(points, list) or not points or not all(isinstance(one, dict) for one in points):
        return ()
    telling = [one for one in points if format_percent(one.get("certified_accuracy", 1.0), "down") != "0.0"] or points
    # Of wrong answers there are most at the last eps.
    weakest = min(reversed(telling), key=lambda one: one.get("certified_accuracy", 0.0))
    return (str(weakest.get("statement", "")),)
