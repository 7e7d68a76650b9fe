"""The top of the page: for each model what is guaranteed in one sentence, then its three main figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rhobust.formatting import format_confidence, format_distance, format_percent
from rhobust.report.naming import method_name
from rhobust.report.run import COSTS, Attack, Certificate, Run, Shift
from rhobust.report.soundness import broken_though_certified, contradictions
from rhobust.report.table import Standing, close_votes, shown_interval, shown_percent
from rhobust.stats import Share


@dataclass(frozen=True)
class Figure:
    """One main figure and the small print it needs."""

    title: str
    value: float | None
    """None where it was not measured."""
    shown: str
    standing: Standing | None
    detail: tuple[str, ...]
    """What was measured and on how much, one line each."""
    warnings: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None


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
class Entry:
    """What stands at the top of the page about one model."""

    run: int
    label: str
    method: str
    guarantee: Guarantee
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]


def headline(runs: Sequence[Run]) -> Headline:
    """The radius and the eps at which most models have something to show.

    A radius where a model was attacked and has something certified counts first, then one where it was attacked. Of
    several that are as good it is the middle one, or the smallest where nothing is certified at any.
    """
    attacked = [{r for a in run.attacks if a.norm == "l2" for r in a.accuracy if r > 0} for run in runs]
    listed = [{r for c in run.certificates for r in c.listed if r > 0} for run in runs]
    known = list(zip(runs, attacked if any(attacked) else listed, strict=True))

    def rank(radius: float) -> tuple[int, int]:
        own = [run for run, radii in known if radius in radii]
        return sum(any(c.certified(radius) for c in run.certificates) for run in own), len(own)

    radii = _best(set().union(*(own for _, own in known)), rank)
    if radii and any(listed) and rank(radii[0])[0] == 0:
        radii = radii[:1]
    curves = [dict(shift.curve) for run in runs if (shift := quoted_shift(run)) is not None]
    budgets = {eps for curve in curves for eps in curve if eps > 0}
    eps = _best(budgets, lambda at: (sum(curve.get(at, 0.0) > 0 for curve in curves), sum(at in c for c in curves)))
    return Headline(_middle(radii), _middle(eps))


def entry(position: int, run: Run, at: Headline) -> Entry:
    """The top of the page about one run, at the page's headline radius and eps.

    A run whose numbers contradict each other is guaranteed nothing, whatever its certificates say.
    """
    certificate, shift = quoted_certificate(run), quoted_shift(run)
    figures = (_clean(run, certificate, shift), _attacked(run, at, certificate), _certified(certificate, at))
    if contradictions(run):
        guarantee = Guarantee("Nothing is guaranteed: the numbers of this model contradict each other.")
    else:
        guarantee = _guarantee(run, certificate, shift, at)
    notes = (*_missing(run, certificate, shift), *run.notes)
    method = method_name(run)
    # Where the method is the label, the folder's name says which run it is.
    return Entry(position, run.label, run.folder if run.label.startswith(method) else method, guarantee, figures, notes)


def _missing(run: Run, certificate: Certificate | None, shift: Shift | None) -> list[str]:
    """What was not evaluated, in one line."""
    lacking = [] if run.attacks else ["attack"]
    if run.attacks and run.sigmas and not any(attack.majority for attack in run.attacks):
        lacking.append("attack on the smoothed classifier")
    if run.sigmas and certificate is None:
        lacking.append("certificate for inputs")
    if run.sigmas and shift is None:
        lacking.append("certificate for distributions")
    return [f"Not in this folder: {', '.join(lacking)}."] if lacking else []


def quoted_certificate(run: Run) -> Certificate | None:
    """The certificate that is quoted: the one over the most examples, never the one with the best result."""
    return max(run.certificates, key=lambda c: (len(c.examples), c.draws), default=None)


def quoted_shift(run: Run) -> Shift | None:
    """The W2 certificate of accuracy that is quoted: about the population and one noisy vote where there is one.

    Of several it is the one over the most points, never the one with the best result.
    """
    candidates = [s for s in run.shifts if s.cost == "w2" and not s.beside and s.curve]
    return max(candidates, key=lambda s: (not s.sampled, s.classifier == "one noisy vote", s.points), default=None)


def _best(numbers: set[float], rank: Callable[[float], tuple[int, int]]) -> list[float]:
    """The numbers of the highest rank, ascending."""
    most = max(map(rank, numbers), default=None)
    return sorted(number for number in numbers if rank(number) == most)


def _middle(ascending: Sequence[float]) -> float | None:
    return ascending[(len(ascending) - 1) // 2] if ascending else None


def _guarantee(run: Run, certificate: Certificate | None, shift: Shift | None, at: Headline) -> Guarantee:
    """What is proved at the page's eps, or at its radius; where that is nothing, at ones of the model's own."""
    curve: dict[float, float] = {}
    if shift is not None:
        curve = {eps: value for eps, value in shift.curve if eps > 0 and value > 0}
    bounds: dict[float, float] = {}
    if certificate is not None:
        radii = [radius for radius in {*certificate.listed, at.radius or 0.0} if radius > 0]
        bounds = {radius: value for radius in sorted(radii) if (value := certificate.at_least(radius))}
    if shift is not None and at.eps is not None and at.eps in curve:
        return _of_shift(shift, at.eps, curve[at.eps])
    if certificate is not None and at.radius is not None and at.radius in bounds:
        return _of_inputs(certificate, at.radius, bounds[at.radius])
    if shift is not None and curve:
        return _of_shift(shift, *_telling(curve))
    if certificate is not None and bounds:
        return _of_inputs(certificate, *_telling(bounds))
    if certificate is not None or shift is not None:
        return Guarantee("Nothing is guaranteed: the certificates in this folder prove nothing beyond radius 0.")
    if run.sigmas:
        return Guarantee("Nothing is guaranteed yet: no finished certificate lies in this folder.")
    return Guarantee(
        "Nothing is guaranteed: this network is not smoothed, and an attack can only show what it failed to break."
    )


def _telling(proved: dict[float, float]) -> tuple[float, float]:
    """The largest radius or eps, among those given in ascending order, that keeps half of what the smallest has."""
    most = next(iter(proved.values()))
    return [(at, value) for at, value in proved.items() if value >= most / 2][-1]


def _of_shift(shift: Shift, eps: float, value: float) -> Guarantee:
    of = f"these {shift.points} test points" if shift.sampled else "the data’s"
    images = " of 8-bit images" if shift.settings.get("noise") == "grid" else ""
    return Guarantee(
        "Right at least ",
        f"{format_percent(value, 'down')}%",
        f" of the time under every distribution{images} within {COSTS['w2']} distance {format_distance(eps)} of"
        f" {of}, answering"
        f" by {_article(shift.classifier)}{_sure(shift.alpha)}.",
        value,
        shift.warnings,
    )


def _of_inputs(certificate: Certificate, radius: float, value: float) -> Guarantee:
    # Grid noise proves something of 8-bit images, float noise only of ideal draws: the claim says which.
    change = "change to another 8-bit image" if certificate.settings.get("noise") == "grid" else "change"
    return Guarantee(
        "At least ",
        f"{format_percent(value, 'down')}%",
        f" of these {len(certificate.examples)} test inputs are answered right by the smoothed classifier and stay"
        f" so under every {change} of L2 length up to {format_distance(radius)}{_sure(certificate.alpha)}.",
        value,
        certificate.warnings,
    )


def _article(classifier: str) -> str:
    return classifier if classifier.startswith("one") else f"the {classifier}"


def _sure(alpha: float | None) -> str:
    return "" if alpha is None else f" (confidence {format_confidence(alpha)})"


def _clean(run: Run, certificate: Certificate | None, shift: Shift | None) -> Figure:
    title = "Clean"
    for scored in ("smoothed", "base"):
        judged = [
            attack
            for attack in run.attacks
            if attack.scored == scored and 0.0 in attack.accuracy and (attack.majority or scored == "base")
        ]
        if judged:
            most = max(judged, key=lambda attack: attack.accuracy[0.0].n)
            return _counted(title, most.accuracy[0.0], "estimate", most.judge, most.warnings)
        if scored == "smoothed" and certificate is not None:
            return _counted(title, certificate.accuracy(0.0), "proved", "right and certified", certificate.warnings)
        if scored == "smoothed" and shift is not None:
            shown = shown_percent(shift.under_noise, "estimate")
            detail = (f"one noisy vote, n = {shift.points}",)
            return Figure(title, shift.under_noise, shown, "estimate", detail, shift.warnings)
    return Figure(title, None, "–", None, ("not measured",))


def _attacked(run: Run, at: Headline, certificate: Certificate | None) -> Figure:
    attack = None if at.radius is None else strongest(run, at.radius)
    if at.radius is None or attack is None:
        return Figure(
            "Under attack", None, "–", None, ("not attacked at this radius" if run.attacks else "not attacked",)
        )
    warnings = list(attack.warnings)
    if certificate is not None:
        inside = dict(broken_though_certified(certificate, attack)).get(at.radius, 0)
        if inside:
            examples = "1 of the broken examples is" if inside == 1 else f"{inside} of the broken examples are"
            warnings.append(f"{examples} certified at this radius: the attack’s vote or the certificate erred there.")
    what = attack.name if attack.majority else f"{attack.judge}, {attack.name}"
    figure = _counted("Under attack", attack.accuracy[at.radius], "upper limit", what, tuple(warnings))
    return replace(figure, detail=(*figure.detail, *close_votes(attack, at.radius)))


def strongest(run: Run, radius: float) -> Attack | None:
    """The L2 attack that left least standing, on the smoothed classifier where it was attacked at all."""
    majority = any(attack.majority for attack in run.attacks)
    candidates = [
        attack
        for attack in run.attacks
        if attack.norm == "l2"
        and radius in attack.accuracy
        and (attack.majority if majority else attack.scored == "base")
    ]
    return min(candidates, key=lambda attack: attack.accuracy[radius].value, default=None)


def _certified(certificate: Certificate | None, at: Headline) -> Figure:
    if certificate is None or at.radius is None:
        return Figure("Certified", None, "–", None, ("no certificate",))
    what = (
        "smoothed classifier"
        if certificate.alpha is None
        else f"{format_confidence(certificate.alpha)} confidence each"
    )
    return _counted("Certified", certificate.accuracy(at.radius), "proved", what, certificate.warnings)


def _counted(title: str, counted: Share, standing: Standing, what: str, warnings: tuple[str, ...]) -> Figure:
    # A word joiner keeps a narrow column from breaking the interval at its dash.
    interval = shown_interval(counted).replace("–", "–\u2060")
    return Figure(
        title,
        counted.value,
        shown_percent(counted.value, standing),
        standing,
        (what, f"CI {interval}, n\u00a0=\u00a0{counted.n}"),
        warnings,
        counted.low,
        counted.high,
    )
