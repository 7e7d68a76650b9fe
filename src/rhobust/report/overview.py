"""The top of the page: every classifier in a row of its own, with what was measured and proved of it alone.

A network on its own and its smoothed classifiers are different classifiers, and so are those of two noise levels or on
two data sets: no row mixes their records.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rhobust.formatting import format_confidence, format_setting
from rhobust.measurements import BASE, UNDER_NOISE, Measurement, Status, certified_but_misclassified
from rhobust.records import is_own
from rhobust.report.gather import method_name
from rhobust.report.guarantee import Guarantee, guarantee
from rhobust.report.runs import ONE, PageRecord, PageRun, ShiftCurve
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
    record: PageRecord | None = None
    """Where it is from."""
    warnings: tuple[str, ...] = ()

    @property
    def interval(self) -> bool:
        """Whether the bar shows the interval."""
        return self.number is not None and self.number.low is not None and self.status != "proved"


@dataclass(frozen=True)
class Headline:
    """The radius and the eps at which all models are quoted, so that they can be compared."""

    radius: float | None
    eps: float | None


@dataclass(frozen=True)
class ClassifierRow:
    """What the top of the page says about one classifier on one data set."""

    run: int
    label: str
    """The model's."""
    who: str
    """Which classifier: "base network" or "smoothed, σ 0.25", with the data where the page has several."""
    smoothed: bool
    clean: KeyNumber
    robust: KeyNumber
    certified: KeyNumber
    shift: KeyNumber
    guarantee: Guarantee
    attack: PageRecord | None
    """The strongest attack at the page's radius."""

    @property
    def numbers(self) -> tuple[KeyNumber, ...]:
        """Its four numbers in the order of the columns."""
        return self.clean, self.robust, self.certified, self.shift


@dataclass(frozen=True)
class ModelEntry:
    """What the top of the page says about one model."""

    run: int
    label: str
    method: str
    rows: tuple[ClassifierRow, ...]
    """The smoothed classifiers by noise level, then the base network, for each data set."""
    notes: tuple[str, ...]
    diagnosis: tuple[str, ...] = ()
    """What explains low numbers, one line each."""


@dataclass(frozen=True)
class Subject:
    """One classifier on one data set, and the records about it."""

    run: PageRun
    sigma: float | None
    """None: the base network."""
    data: str
    records: tuple[PageRecord, ...]

    def of(self, kind: str) -> list[PageRecord]:
        """Its records of a kind."""
        return [record for record in self.records if record.kind == kind]

    @property
    def who(self) -> str:
        """Which classifier it is, in a few words."""
        return "base network" if self.sigma is None else f"smoothed, σ {format_setting(self.sigma)}"

    @property
    def certificate(self) -> PageRecord | None:
        """The certificate that is quoted: a finished one over the most examples, never the one with the best result."""
        return max(self.of("certify"), key=lambda one: (bool(one.summary), one.n, one.most_samples), default=None)

    @property
    def shift(self) -> tuple[PageRecord | None, ShiftCurve | None]:
        """The quoted W2 certificate of accuracy: about the population and one noisy prediction if there is one.

        Of several it is the one over the most points, never the one with the best result.
        """
        found = [(record, s) for record in self.of("certify-shift") for s in record.shifts if s.cost == "w2"]
        own = [(record, s) for record, s in found if not s.baseline]
        return max(own, key=lambda one: (not one[1].sampled, one[1].classifier == ONE, one[0].n), default=(None, None))

    def strongest(self, radius: float | None) -> PageRecord | None:
        """The L2 attack with the lowest robust accuracy at a radius."""
        found = [one for one in self.of("attack") if one.norm == "l2" and radius in one.accuracy]
        return min(found, key=lambda attack: attack.accuracy[radius or 0.0].value, default=None)


def subjects(run: PageRun) -> list[Subject]:
    """The classifiers of a run that something is known of, test data first, and for each data set the smoothed ones."""
    named = _data_names(run)
    fallback = next(filter(None, named), str(run.config.get("data", "")))
    found: dict[tuple[str, float], list[PageRecord]] = {}
    base: dict[str, list[PageRecord]] = {}
    for record, name in zip(run.records, named, strict=True):
        data, sigma = name or fallback, record.settings.get("sigma")
        if record.kind == "accuracy" or (record.kind == "attack" and record.predictor == "base"):
            base.setdefault(data, []).append(record)
        noisy = record.kind in ("accuracy", "certify", "certify-shift") or (record.kind == "attack" and record.majority)
        if noisy and isinstance(sigma, int | float) and sigma > 0:
            found.setdefault((data, sigma), []).append(record)
    own = run.method.get("sigma", run.config.get("sigma"))  # of a network of the user's own the config itself says it
    if not found and isinstance(own, int | float) and own > 0:
        found[fallback, own] = []
    if not found and not base:
        base[fallback] = []
    held_out = {name for record, name in zip(run.records, named, strict=True) if record.whose}
    order = sorted(dict.fromkeys([*(data for data, _ in found), *base]), key=lambda data: data in held_out)
    return [
        Subject(run, sigma, data, tuple(records))
        for data in order
        for sigma, records in [
            *sorted((sigma, records) for (its, sigma), records in found.items() if its == data),
            *([(None, base[data])] if data in base else []),
        ]
    ]


def named_subjects(runs: Sequence[PageRun]) -> list[list[tuple[Subject, str]]]:
    """The subjects of each run in words: with the data where the page has several, or where they are no test data."""
    known = [subjects(run) for run in runs]
    several = len({subject.data for own in known for subject in own}) > 1
    return [
        [(one, f"{one.who}, on {one.data}" if several or any(r.whose for r in one.records) else one.who) for one in own]
        for own in known
    ]


def _data_names(run: PageRun) -> list[str]:
    """The data of each record; different images under one name differ by their fingerprints."""
    prints: dict[str, set[str]] = {}
    for record in run.records:
        prints.setdefault(record.data, set()).add(str(record.settings.get("data_fingerprint", "")))
    return [
        f"{record.data} {str(record.settings.get('data_fingerprint'))[:8]}"
        if record.data and len(prints[record.data] - {""}) > 1
        else record.data
        for record in run.records
    ]


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
    found = [one.shift[1] for run in runs for one in subjects(run)]
    curves = [shift.values for shift in found if shift is not None]
    budgets = {eps for curve in curves for eps in curve if eps > 0}
    eps = _best(budgets, lambda at: (sum(curve.get(at, 0.0) > 0 for curve in curves), sum(at in c for c in curves)))
    return Headline(_middle(radii), _middle(eps))


def entries(runs: Sequence[PageRun], at: Headline) -> list[ModelEntry]:
    """What the top of the page says about each run, at the page's radius and eps."""
    found = []
    for run, own in zip(runs, named_subjects(runs), strict=True):
        rows = tuple(_row(subject, at, who) for subject, who in own)
        notes = (*_missing([subject for subject, _ in own]), *run.notes)
        found.append(ModelEntry(run.place, run.label, _below(run), rows, notes, run.diagnosis))
    return found


def _below(run: PageRun) -> str:
    """What is below a model's name: its training, or the folder where the name is the training's."""
    if is_own(run.config):
        model = str(run.config.get("model"))
        return "trained elsewhere" if model == run.label else f"{model}, trained elsewhere"
    method = method_name(run)
    return run.folder if run.label.startswith(method) else method


def _row(subject: Subject, at: Headline, who: str) -> ClassifierRow:
    attack, certificate = subject.strongest(at.radius), subject.certificate
    clean = _clean_base(subject) if subject.sigma is None else _clean_smoothed(subject)
    if clean.record is not None:
        clean = replace(clean, warnings=clean.record.clean_warnings)
    robust, certified, shift = _robust(subject, at, attack), _certified(subject, at), _shifted(subject, at)
    kinds = {n.record.settings.get("dtype") for n in (clean, robust, certified, shift) if n.record is not None}
    if len(kinds - {None}) > 1:
        # Another arithmetic is, strictly, another classifier.
        clean, robust, certified, shift = map(_with_arithmetic, (clean, robust, certified, shift))
    proved = guarantee(subject.run, certificate, *subject.shift, radius=at.radius, eps=at.eps)
    if subject.sigma is None:
        proved = Guarantee("Nothing is guaranteed without smoothing.")
    smoothed = subject.sigma is not None
    run = subject.run
    return ClassifierRow(run.place, run.label, who, smoothed, clean, robust, certified, shift, proved, attack)


def _with_arithmetic(one: KeyNumber) -> KeyNumber:
    dtype = None if one.record is None else one.record.settings.get("dtype")
    return one if dtype is None else replace(one, detail=(*one.detail, f"in {dtype}"))


def _missing(own: Sequence[Subject]) -> list[str]:
    """What was not evaluated, in one line."""
    smoothed = [one for one in own if one.sigma is not None]
    lacking = [] if any(one.of("attack") for one in own) else ["attack"]
    if not lacking and smoothed and not any(one.of("attack") for one in smoothed):
        lacking.append("attack on the smoothed classifier")
    if smoothed and all(one.certificate is None for one in smoothed):
        lacking.append("certificate for inputs")
    if smoothed and all(one.shift[1] is None for one in smoothed):
        lacking.append("certificate for distributions")
    return [f"Not in this folder: {', '.join(lacking)}."] if lacking else []


def _best(numbers: set[float], rank: Callable[[float], tuple[int, int]]) -> list[float]:
    """The numbers of the highest rank, ascending."""
    most = max(map(rank, numbers), default=None)
    return sorted(number for number in numbers if rank(number) == most)


def _middle(ascending: Sequence[float]) -> float | None:
    return ascending[(len(ascending) - 1) // 2] if ascending else None


def _unknown(title: str, reason: str) -> KeyNumber:
    return KeyNumber(title, None, "–", None, (reason,))


def _clean_base(subject: Subject) -> KeyNumber:
    """The accuracy of the base network, over the most images."""
    found = [(record, record.value(BASE)) for record in subject.of("accuracy")]
    found += [(attack, attack.accuracy.get(0.0)) for attack in subject.of("attack")]
    measured = [(record, number) for record, number in found if number is not None]
    if not measured:
        return _unknown("Clean", "not measured")
    record, number = max(measured, key=lambda one: one[1].n)
    return _counted("Clean", number, "base network", record)


def _clean_smoothed(subject: Subject) -> KeyNumber:
    """The accuracy of the smoothed classifier: by its votes, else what is certified at radius 0, else under noise."""
    voted = [attack for attack in subject.of("attack") if 0.0 in attack.accuracy]
    if voted:
        most = max(voted, key=lambda attack: attack.n)
        return _counted("Clean", most.accuracy[0.0], most.predictor_name, most)
    if (certificate := subject.certificate) is not None:
        return _counted("Clean", certificate.certified(0.0), "right and certified", certificate)
    shifted = subject.shift[0]
    noisy = [shifted] if shifted is not None else subject.of("accuracy")
    if not noisy or (number := noisy[0].value(UNDER_NOISE)) is None:
        return _unknown("Clean", "not measured")
    return _counted("Clean", replace(number, low=None, high=None), ONE, noisy[0])


def _robust(subject: Subject, at: Headline, attack: PageRecord | None) -> KeyNumber:
    if at.radius is None or attack is None:
        return _unknown("Under attack", "not attacked at this radius" if subject.of("attack") else "not attacked")
    certificate, warnings = subject.certificate, list(attack.warnings)
    inside = certificate and certified_but_misclassified(certificate.record, attack.record, at.radius)
    if inside:
        examples = "1 misclassified example is" if inside == 1 else f"{inside} misclassified examples are"
        warnings.append(f"{examples} certified at this radius: the attack’s vote or the certificate is wrong there.")
    number = attack.accuracy[at.radius]
    found = _counted("Under attack", number, attack.attack_name, attack)
    return replace(found, detail=(*found.detail, *close_votes(number)), warnings=tuple(warnings))


def _certified(subject: Subject, at: Headline) -> KeyNumber:
    certificate = subject.certificate
    if certificate is None or at.radius is None:
        return _unknown("Certified", "no certificate" if subject.sigma else "only a smoothed classifier is certified")
    if not certificate.decides(at.radius):
        return _unknown("Certified", "not tested at this radius")
    alpha = certificate.alpha
    what = "smoothed classifier" if alpha is None else f"{format_confidence(alpha)} confidence each"
    return _counted("Certified", certificate.certified(at.radius), what, certificate)


def _shifted(subject: Subject, at: Headline) -> KeyNumber:
    record, shift = subject.shift
    if record is None or shift is None:
        return _unknown("Under shift", "no certificate" if subject.sigma else "only under noise")
    number = next((one for one in shift.points if one.at == at.eps), None)
    if number is None:
        return _unknown("Under shift", "not computed at this distance")
    sure = [] if record.alpha is None else [f"{format_confidence(record.alpha)} confidence"]
    detail = (shift.classifier, ", ".join([*sure, f"n\u00a0=\u00a0{record.n}"]))
    return KeyNumber("Under shift", number, shown_percent(number), number.status, detail, record, record.warnings)


def _counted(title: str, number: Measurement | None, what: str, record: PageRecord) -> KeyNumber:
    if number is None:
        return _unknown(title, "not measured")
    count = f"n\u00a0=\u00a0{number.n}"
    if number.low is not None:
        # A word joiner keeps a narrow column from breaking the interval at its dash.
        count = f"CI {shown_interval(number)}, {count}".replace("–", "–\u2060")
    return KeyNumber(title, number, shown_percent(number), number.status, (what, count), record, record.warnings)
