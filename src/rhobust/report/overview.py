"""The top of the page: for each model what is guaranteed in one sentence, then its three main numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rhobust.formatting import format_confidence, format_distance, format_percent
from rhobust.measurements import ALL_AT_ONCE, BASE, UNDER_NOISE, Measurement, Status, certified_but_misclassified
from rhobust.report.labels import method_name
from rhobust.report.runs import COSTS, ONE, PageRecord, PageRun, ShiftCurve
from rhobust.report.tables import close_votes, shown_interval, shown_percent


@dataclass(frozen=True)
class KeyNumber:
    """One main number and the small print it needs."""

    title: str
    number: Measurement | None
    """None where it was not measured."""
    shown: str
    status: Status | None
    detail: tuple[str, ...]
    """What was measured and on how much, one line each."""
    warnings: tuple[str, ...] = ()
    interval: bool = True
    """Whether the bar shows the interval."""


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


@dataclass(frozen=True)
class Headline:
    """The radius and the eps at which all models are quoted, so that they can be compared."""

    radius: float | None
    eps: float | None


@dataclass(frozen=True)
class ModelEntry:
    """What the top of the page says about one model."""

    run: int
    label: str
    method: str
    guarantee: Guarantee
    numbers: tuple[KeyNumber, ...]
    """Clean, under attack, certified: of the smoothed classifier, or of the base network where there is no noise."""
    base: tuple[KeyNumber, ...]
    """The same of the base network, in a row of its own; empty where it is the only classifier or was not measured."""
    notes: tuple[str, ...]
    diagnosis: tuple[str, ...] = ()
    """What explains low numbers, one line each."""


BASE_CERTIFIED = KeyNumber("Certified", None, "–", None, ("only a smoothed classifier is certified",))
"""In the place of the base network's certificate."""


def headline(runs: Sequence[PageRun]) -> Headline:
    """The radius and the eps at which most models have something to show.

    A radius where a model was attacked and has something certified counts first, then one where it was attacked. Of
    several that are as good it is the middle one, or the smallest where nothing is certified at any.
    """
    attacked = [{r for a in run.of("attack") if a.norm == "l2" for r in a.accuracy if r > 0} for run in runs]
    listed = [{r for c in run.of("certify") for r in c.listed if r > 0} for run in runs]
    known = list(zip(runs, attacked if any(attacked) else listed, strict=True))

    def rank(radius: float) -> tuple[int, int]:
        own = [run for run, radii in known if radius in radii]
        return sum(any(c.largest >= radius for c in run.of("certify")) for run in own), len(own)

    radii = _best(set().union(*(own for _, own in known)), rank)
    if radii and any(listed) and rank(radii[0])[0] == 0:
        radii = radii[:1]
    curves = [_curve(shift) for run in runs if (shift := quoted_shift(run)[1]) is not None]
    budgets = {eps for curve in curves for eps in curve if eps > 0}
    eps = _best(budgets, lambda at: (sum(curve.get(at, 0.0) > 0 for curve in curves), sum(at in c for c in curves)))
    return Headline(_middle(radii), _middle(eps))


def entry(position: int, run: PageRun, at: Headline) -> ModelEntry:
    """The top of the page about one run, at the page's headline radius and eps.

    A run whose numbers contradict each other is guaranteed nothing, whatever its certificates say.
    """
    certificate, (shifted, shift) = quoted_certificate(run), quoted_shift(run)
    smoothed = bool(run.sigmas)
    clean = _clean_smoothed(run, certificate, shifted) if smoothed else _clean_base(run)
    numbers = (clean, _robust(run, at, certificate, smoothed=smoothed), _certified(certificate, at))
    base = (_clean_base(run), _robust(run, at, None, smoothed=False), BASE_CERTIFIED) if smoothed else ()
    if all(number.number is None for number in base):
        base = ()
    if run.contradictions:
        guarantee = Guarantee("Nothing is guaranteed: the numbers of this model contradict each other.")
    else:
        guarantee = _guarantee(run, certificate, shifted, shift, at)
    notes = (*_missing(run, certificate, shift), *run.notes)
    method = method_name(run)
    # Where the method is the label, the folder's name says which run it is.
    below = run.folder if run.label.startswith(method) else method
    return ModelEntry(position, run.label, below, guarantee, numbers, base, notes, run.diagnosis)


def _missing(run: PageRun, certificate: PageRecord | None, shift: ShiftCurve | None) -> list[str]:
    """What was not evaluated, in one line."""
    attacks = run.of("attack")
    lacking = [] if attacks else ["attack"]
    if attacks and run.sigmas and not any(attack.majority for attack in attacks):
        lacking.append("attack on the smoothed classifier")
    if run.sigmas and certificate is None:
        lacking.append("certificate for inputs")
    if run.sigmas and shift is None:
        lacking.append("certificate for distributions")
    return [f"Not in this folder: {', '.join(lacking)}."] if lacking else []


def quoted_certificate(run: PageRun) -> PageRecord | None:
    """The certificate that is quoted: the one over the most examples, never the one with the best result."""
    return max(run.of("certify"), key=lambda one: (one.n, one.most_samples), default=None)


def quoted_shift(run: PageRun) -> tuple[PageRecord | None, ShiftCurve | None]:
    """The W2 certificate of accuracy that is quoted: about the population and one noisy prediction if there is one.

    Of several it is the one over the most points, never the one with the best result.
    """
    found = [(record, s) for record in run.of("certify-shift") for s in record.shifts if s.cost == "w2"]
    own = [(record, s) for record, s in found if not s.baseline]
    return max(own, key=lambda one: (not one[1].sampled, one[1].classifier == ONE, one[0].n), default=(None, None))


def _curve(shift: ShiftCurve) -> dict[float, float]:
    return {one.at: one.value for one in shift.points if one.at is not None}


def _best(numbers: set[float], rank: Callable[[float], tuple[int, int]]) -> list[float]:
    """The numbers of the highest rank, ascending."""
    most = max(map(rank, numbers), default=None)
    return sorted(number for number in numbers if rank(number) == most)


def _middle(ascending: Sequence[float]) -> float | None:
    return ascending[(len(ascending) - 1) // 2] if ascending else None


def _guarantee(
    run: PageRun,
    certificate: PageRecord | None,
    shifted: PageRecord | None,
    shift: ShiftCurve | None,
    at: Headline,
) -> Guarantee:
    """What is proved at the page's eps, or at its radius; where that is nothing, at ones of the model's own."""
    curve: dict[float, float] = {}
    if shift is not None:
        curve = {eps: value for eps, value in _curve(shift).items() if eps > 0 and value > 0}
    bounds: dict[float, float] = {}
    if certificate is not None:
        for radius in sorted(radius for radius in {*certificate.listed, at.radius or 0.0} if radius > 0):
            bound = certificate.certified(radius, ALL_AT_ONCE)
            if bound is not None and bound.value > 0:
                bounds[radius] = bound.value
    if shifted is not None and shift is not None and at.eps is not None and at.eps in curve:
        return _of_shift(shifted, shift, at.eps, curve[at.eps])
    if certificate is not None and at.radius is not None and at.radius in bounds:
        return _of_inputs(certificate, at.radius, bounds[at.radius])
    if shifted is not None and shift is not None and curve:
        return _of_shift(shifted, shift, *_typical(curve))
    if certificate is not None and bounds:
        return _of_inputs(certificate, *_typical(bounds))
    if certificate is not None or shift is not None:
        return Guarantee("Nothing is guaranteed: the certificates in this folder prove nothing beyond radius 0.")
    if run.sigmas:
        return Guarantee("Nothing is guaranteed yet: no finished certificate is in this folder.")
    return Guarantee(
        "Nothing is guaranteed: this network is not smoothed, and an attack can only show what it failed to break."
    )


def _typical(proved: dict[float, float]) -> tuple[float, float]:
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


def _clean_base(run: PageRun) -> KeyNumber:
    """The accuracy of the base network, over the most images."""
    found = [(record, record.value(BASE)) for record in run.of("accuracy")]
    found += [(attack, attack.accuracy.get(0.0)) for attack in run.of("attack") if attack.predictor == "base"]
    measured = [(record, number) for record, number in found if number is not None]
    if not measured:
        return KeyNumber("Clean", None, "–", None, ("not measured",))
    record, number = max(measured, key=lambda one: one[1].n)
    return _counted("Clean", number, "base network", record.warnings)


def _clean_smoothed(run: PageRun, certificate: PageRecord | None, shifted: PageRecord | None) -> KeyNumber:
    """The accuracy of the smoothed classifier: by its votes, else what is certified at radius 0, else under noise."""
    voted = [attack for attack in run.of("attack") if attack.majority and 0.0 in attack.accuracy]
    if voted:
        most = max(voted, key=lambda attack: attack.n)
        return _counted("Clean", most.accuracy[0.0], most.predictor_name, most.warnings)
    if certificate is not None:
        return _counted("Clean", certificate.certified(0.0), "right and certified", certificate.warnings)
    noisy = [shifted] if shifted is not None else run.of("accuracy")
    if not noisy or (number := noisy[0].value(UNDER_NOISE)) is None:
        return KeyNumber("Clean", None, "–", None, ("not measured",))
    found = _counted("Clean", number, ONE, noisy[0].warnings)
    return replace(found, detail=(f"{ONE}, n\u00a0=\u00a0{noisy[0].n}",), interval=False)


def _robust(run: PageRun, at: Headline, certificate: PageRecord | None, *, smoothed: bool) -> KeyNumber:
    attack = None if at.radius is None else strongest(run, at.radius, smoothed=smoothed)
    if at.radius is None or attack is None:
        attacked = any(one.majority if smoothed else one.predictor == "base" for one in run.of("attack"))
        detail = "not attacked at this radius" if attacked else "not attacked"
        return KeyNumber("Under attack", None, "–", None, (detail,))
    warnings = list(attack.warnings)
    inside = certificate and certified_but_misclassified(certificate.record, attack.record, at.radius)
    if inside:
        examples = "1 misclassified example is" if inside == 1 else f"{inside} misclassified examples are"
        warnings.append(f"{examples} certified at this radius: the attack’s vote or the certificate is wrong there.")
    number = attack.accuracy[at.radius]
    found = _counted("Under attack", number, attack.attack_name, tuple(warnings))
    return replace(found, detail=(*found.detail, *close_votes(number)))


def strongest(run: PageRun, radius: float, *, smoothed: bool) -> PageRecord | None:
    """The L2 attack with the lowest robust accuracy, on the smoothed classifier or on the base network."""
    candidates = [
        attack
        for attack in run.of("attack")
        if attack.norm == "l2"
        and radius in attack.accuracy
        and (attack.majority if smoothed else attack.predictor == "base")
    ]
    return min(candidates, key=lambda attack: attack.accuracy[radius].value, default=None)


def _certified(certificate: PageRecord | None, at: Headline) -> KeyNumber:
    if certificate is None or at.radius is None:
        return KeyNumber("Certified", None, "–", None, ("no certificate",))
    alpha = certificate.alpha
    what = "smoothed classifier" if alpha is None else f"{format_confidence(alpha)} confidence each"
    return _counted("Certified", certificate.certified(at.radius), what, certificate.warnings)


def _counted(title: str, number: Measurement | None, what: str, warnings: tuple[str, ...]) -> KeyNumber:
    if number is None:
        return KeyNumber(title, None, "–", None, ("not measured",))
    # A word joiner keeps a narrow column from breaking the interval at its dash.
    interval = shown_interval(number).replace("–", "–\u2060")
    detail = (what, f"CI {interval}, n\u00a0=\u00a0{number.n}")
    return KeyNumber(
        title, number, shown_percent(number), number.status, detail, warnings, interval=number.status != "proved"
    )
