"""The top of the page: for each model what is guaranteed in one sentence, then its three main figures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rhobust.report.run import COSTS, Attack, Certificate, Run, Shift
from rhobust.report.soundness import broken_though_certified, contradictions
from rhobust.report.table import Standing, close_votes, shown_interval, shown_percent
from rhobust.rounding import Share, confidence, percent, plain

_NAMES = {"gaussian": "Gaussian", "smoothadv": "SmoothAdv", "trades": "TRADES"}
_SYMBOLS = {"sigma": "σ", "gamma": "γ", "eps": "ε", "beta": "β", "lam": "λ"}


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
    """The middle radius and the middle eps, among those where some model has anything certified."""
    certificates = [certificate for run in runs for certificate in run.certificates]
    scored = [set(attack.accuracy) for run in runs for attack in run.attacks if attack.norm == "l2"]
    listed = [set(certificate.listed) for certificate in certificates]
    radii = _shared(scored) or _shared(listed)
    telling = [r for r in radii if any(certificate.certified(r) for certificate in certificates)]
    curves = [dict(shift.curve) for run in runs if (shift := quoted_shift(run)) is not None]
    budgets = _shared([set(curve) for curve in curves])
    useful = [eps for eps in budgets if any(curve.get(eps, 0.0) > 0 for curve in curves)]
    return Headline(_middle(telling or radii), _middle(useful or budgets))


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
    return Entry(position, run.label, method_name(run), guarantee, figures, notes)


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


def method_name(run: Run) -> str:
    """The training method with its main settings, such as "NAL, σ 0.25, γ 0.5"."""
    kind = str(run.method.get("kind", "unknown method"))
    parts = [_NAMES.get(kind, kind.upper())]
    for key, symbol in _SYMBOLS.items():
        value: Any = run.method.get(key)
        if isinstance(value, int | float):
            parts.append(f"{symbol} {plain(value)}")
    if "sigma" not in run.method and run.sigmas:
        parts.append(f"smoothed with σ {', '.join(plain(sigma) for sigma in run.sigmas)}")
    return ", ".join(parts)


def quoted_certificate(run: Run) -> Certificate | None:
    """The certificate that is quoted: the one over the most examples, never the one with the best result."""
    return max(run.certificates, key=lambda c: (len(c.examples), c.draws), default=None)


def quoted_shift(run: Run) -> Shift | None:
    """The W2 certificate of accuracy that is quoted: about the population and one noisy vote where there is one.

    Of several it is the one over the most points, never the one with the best result.
    """
    candidates = [s for s in run.shifts if s.cost == "w2" and not s.beside and s.curve]
    return max(candidates, key=lambda s: (not s.sampled, s.classifier == "one noisy vote", s.points), default=None)


def _shared(sets: Sequence[set[float]]) -> list[float]:
    """The positive numbers all sets hold, or those any set holds when they share none."""
    if not sets:
        return []
    common = set.intersection(*sets) - {0.0} or set.union(*sets) - {0.0}
    return sorted(common)


def _middle(ascending: Sequence[float]) -> float | None:
    return ascending[(len(ascending) - 1) // 2] if ascending else None


def _guarantee(run: Run, certificate: Certificate | None, shift: Shift | None, at: Headline) -> Guarantee:
    if shift is not None and at.eps is not None and (value := dict(shift.curve).get(at.eps)):
        of = f"these {shift.points} test points" if shift.sampled else "the data’s"
        return Guarantee(
            "Right at least ",
            f"{percent(value, 'down')}%",
            f" of the time under every distribution within {COSTS['w2']} distance {plain(at.eps)} of {of}, answering"
            f" by {_article(shift.classifier)}{_sure(shift.alpha)}.",
            value,
            shift.warnings,
        )
    if certificate is not None and at.radius is not None and (value := certificate.at_least(at.radius)):
        # Grid noise proves something of 8-bit images, float noise only of ideal draws: the claim says which.
        change = "change to another 8-bit image" if certificate.settings.get("noise") == "grid" else "change"
        return Guarantee(
            "At least ",
            f"{percent(value, 'down')}%",
            f" of these {len(certificate.examples)} test inputs are answered right by the smoothed classifier and stay"
            f" so under every {change} of L2 length up to {plain(at.radius)}{_sure(certificate.alpha)}.",
            value,
            certificate.warnings,
        )
    if certificate is not None or shift is not None:
        return Guarantee(
            "Nothing is guaranteed at the radius and the eps quoted here; see the curves for smaller ones."
        )
    if run.sigmas:
        return Guarantee("Nothing is guaranteed yet: no finished certificate lies in this folder.")
    return Guarantee(
        "Nothing is guaranteed: this network is not smoothed, and an attack can only show what it failed to break."
    )


def _article(classifier: str) -> str:
    return classifier if classifier.startswith("one") else f"the {classifier}"


def _sure(alpha: float | None) -> str:
    return "" if alpha is None else f" (confidence {confidence(alpha)})"


def _clean(run: Run, certificate: Certificate | None, shift: Shift | None) -> Figure:
    title = "Clean"
    for scored in ("smoothed", "base"):
        for attack in run.attacks:
            if attack.scored == scored and 0.0 in attack.accuracy and (attack.majority or scored == "base"):
                return _counted(title, attack.accuracy[0.0], "estimate", attack.judge, attack.warnings)
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
            warnings.append(
                f"{inside} of the broken examples are certified at this radius:"
                " the attack’s vote or the certificate erred there."
            )
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
    what = "smoothed classifier" if certificate.alpha is None else f"{confidence(certificate.alpha)} confidence each"
    return _counted("Certified", certificate.accuracy(at.radius), "proved", what, certificate.warnings)


def _counted(title: str, counted: Share, standing: Standing, what: str, warnings: tuple[str, ...]) -> Figure:
    return Figure(
        title,
        counted.value,
        shown_percent(counted.value, standing),
        standing,
        (what, f"CI\u00a0{shown_interval(counted)}, n\u00a0=\u00a0{counted.n}"),
        warnings,
        counted.low,
        counted.high,
    )
