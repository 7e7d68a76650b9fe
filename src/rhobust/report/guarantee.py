"""What is guaranteed of a classifier, in one sentence around one number."""

from collections.abc import Mapping
from dataclasses import dataclass

from rhobust.formatting import format_confidence, format_distance, format_percent
from rhobust.measurements import ALL_AT_ONCE
from rhobust.report.runs import COSTS, ONE, PageRecord, PageRun, ShiftCurve


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
    if certificate is not None or shift is not None:
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
    of = f"these {record.n} test points" if shift.sampled else "the data’s"
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
    return Guarantee(
        "At least ",
        f"{format_percent(value, 'down')}%",
        f" of these {certificate.n} test inputs are classified right by the smoothed classifier and stay so under"
        f" every {change} of L2 length up to {format_distance(radius)}{_sure(certificate.alpha)}.",
        value,
        certificate.warnings,
    )


def _sure(alpha: float | None) -> str:
    return "" if alpha is None else f" (confidence {format_confidence(alpha)})"
