"""The card of a model: what is guaranteed in one sentence, and its three or four big figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rhobust.report.run import Attack, Certificate, Run, Shift
from rhobust.report.soundness import broken_though_certified, contradictions
from rhobust.report.table import COSTS, Standing, shown_interval, shown_percent
from rhobust.rounding import Share, confidence, percent, plain

_NAMES = {"gaussian": "Gaussian", "smoothadv": "SmoothAdv", "trades": "TRADES"}
_SYMBOLS = {"sigma": "σ", "gamma": "γ", "eps": "ε", "beta": "β", "lam": "λ"}


@dataclass(frozen=True)
class Figure:
    """One big figure and the small print it needs."""

    title: str
    where: str
    """At which radius or eps; the line is kept even when it has nothing to say, so that figures align."""
    shown: str
    standing: Standing | None
    detail: tuple[str, ...]
    """What was measured and on how much, one line each."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Headline:
    """The radius and the eps at which all cards quote their numbers, so that they can be compared."""

    radius: float | None
    eps: float | None


@dataclass(frozen=True)
class Card:
    """What stands at the top of the page about one model."""

    run: int
    label: str
    method: str
    guaranteed: bool
    sentence: str
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]


def headline(runs: Sequence[Run]) -> Headline:
    """The middle radius and the middle eps, among those where some model has anything certified."""
    certificates = [certificate for run in runs for certificate in run.certificates]
    scored = [set(attack.accuracy) for run in runs for attack in run.attacks]
    listed = [set(certificate.listed) for certificate in certificates]
    radii = _shared(scored) or _shared(listed)
    telling = [r for r in radii if any(certificate.certified(r) for certificate in certificates)]
    curves = [dict(shift.curve) for run in runs for shift in run.shifts if _quoted(shift)]
    budgets = _shared([set(curve) for curve in curves])
    useful = [eps for eps in budgets if any(curve.get(eps, 0.0) > 0 for curve in curves)]
    return Headline(_middle(telling or radii), _middle(useful or budgets))


def card(position: int, run: Run, at: Headline) -> Card:
    """The card of one run at the page's headline radius and eps.

    A run whose numbers contradict each other is guaranteed nothing, whatever its certificates say.
    """
    certificate, shift = best_certificate(run), best_shift(run)
    figures = [_clean(run, certificate, shift), _attacked(run, at, certificate), _certified(certificate, at)]
    if shift is not None:
        figures.append(_shifted(shift, at))
    sentence, guaranteed = _sentence(run, certificate, shift, at)
    if contradictions(run):
        sentence, guaranteed = "Nothing is guaranteed: the numbers of this model contradict each other.", False
    missing = []
    if not run.attacks:
        missing.append("No finished attack in this folder: there is no empirical robust accuracy.")
    elif run.sigmas and not any(attack.scored == "smoothed" for attack in run.attacks):
        missing.append("No finished attack on the smoothed classifier: only the base network was attacked.")
    if run.sigmas:
        if certificate is None:
            missing.append("No finished per-input certificate in this folder.")
        if shift is None:
            missing.append("No finished certificate under distribution shift in this folder.")
    return Card(position, run.label, method_name(run), guaranteed, sentence, tuple(figures), (*missing, *run.notes))


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


def best_certificate(run: Run) -> Certificate | None:
    """The certificate the card quotes: the one over the most examples, never the one with the best result."""
    return max(run.certificates, key=lambda c: (len(c.examples), c.draws), default=None)


def best_shift(run: Run) -> Shift | None:
    """The W2 certificate the card quotes: the one over the most points, never the one with the best result."""
    return max((s for s in run.shifts if _quoted(s)), key=lambda s: s.points, default=None)


def _quoted(shift: Shift) -> bool:
    """Whether cards may quote it: they speak of one noisy vote, of W2 and of the population."""
    return shift.cost == "w2" and shift.about_one_vote


def _shared(sets: Sequence[set[float]]) -> list[float]:
    """The positive numbers all sets hold, or those any set holds when they share none."""
    if not sets:
        return []
    common = set.intersection(*sets) - {0.0} or set.union(*sets) - {0.0}
    return sorted(common)


def _middle(ascending: Sequence[float]) -> float | None:
    return ascending[(len(ascending) - 1) // 2] if ascending else None


def _sentence(run: Run, certificate: Certificate | None, shift: Shift | None, at: Headline) -> tuple[str, bool]:
    parts = []
    if shift is not None and at.eps is not None and (value := dict(shift.curve).get(at.eps)):
        parts.append(
            f"for every distribution within {COSTS['w2']} distance {plain(at.eps)} of the data’s, one noisy vote is"
            f" right at least {percent(value, 'down')}% of the time{_sure(shift.alpha)}"
        )
    if certificate is not None and at.radius is not None and certificate.certified(at.radius):
        counted = certificate.accuracy(at.radius)
        # Grid noise proves something of 8-bit images, float noise only of ideal draws: the claim says which.
        change = "change to another 8-bit image" if certificate.settings.get("noise") == "grid" else "change"
        parts.append(
            f"on {percent(counted.value, 'down')}% of {counted.n} test inputs the smoothed answer is right and no"
            f" {change} of L2 length below {plain(at.radius)} alters it{_sure(certificate.alpha, ' each')}"
        )
    if parts:
        sentence = ", and ".join(parts) + "."
        return sentence[0].upper() + sentence[1:], True
    if certificate is not None or shift is not None:
        return "Nothing is guaranteed at the radius and the eps quoted here; see the curves for smaller ones.", False
    if run.sigmas:
        return "Nothing is guaranteed yet: no finished certificate lies in this folder.", False
    return (
        "Nothing is guaranteed: this network is not smoothed, and an attack can only show what it failed to break.",
        False,
    )


def _basis(counted: Share) -> tuple[str, str]:
    return f"n = {counted.n}", f"95% CI {shown_interval(counted)}"


def _sure(alpha: float | None, suffix: str = "") -> str:
    return "" if alpha is None else f" (confidence {confidence(alpha)}{suffix})"


def _clean(run: Run, certificate: Certificate | None, shift: Shift | None) -> Figure:
    title, where = "Clean accuracy", "no change"
    for scored in ("smoothed", "base"):
        for attack in run.attacks:
            if attack.scored == scored and 0.0 in attack.accuracy:
                counted = attack.accuracy[0.0]
                detail = (f"{scored} classifier", *_basis(counted))
                shown = shown_percent(counted.value, "estimate")
                return Figure(title, where, shown, "estimate", detail, attack.warnings)
        if scored == "smoothed" and certificate is not None:
            counted = certificate.accuracy(0.0)
            shown = shown_percent(counted.value, "proved")
            detail = ("right and certified", *_basis(counted))
            return Figure(title, where, shown, "proved", detail, certificate.warnings)
        if scored == "smoothed" and shift is not None:
            shown = shown_percent(shift.under_noise, "estimate")
            return Figure(title, where, shown, "estimate", ("one noisy vote", f"n = {shift.points}"), shift.warnings)
    return Figure(title, where, "–", None, ("not measured",))


def _attacked(run: Run, at: Headline, certificate: Certificate | None) -> Figure:
    if at.radius is None:
        return Figure("Under attack", "", "–", None, ("not attacked",))
    where = f"radius {plain(at.radius)}"
    attack = _strongest(run, at.radius)
    if attack is None:
        return Figure("Under attack", where, "–", None, ("not attacked at this radius",))
    counted = attack.accuracy[at.radius]
    warnings = list(attack.warnings)
    if certificate is not None:
        inside = dict(broken_though_certified(certificate, attack)).get(at.radius, 0)
        if inside:
            warnings.append(
                f"{inside} of the broken examples are certified at this radius:"
                " the attack’s vote or the certificate erred there."
            )
    detail = (f"{attack.scored} classifier, {attack.name}", *_basis(counted))
    shown = shown_percent(counted.value, "upper limit")
    return Figure("Under attack", where, shown, "upper limit", detail, tuple(warnings))


def _strongest(run: Run, radius: float) -> Attack | None:
    """The attack that left least standing, on the smoothed classifier where it was attacked at all."""
    scored = "smoothed" if any(attack.scored == "smoothed" for attack in run.attacks) else "base"
    candidates = [a for a in run.attacks if a.scored == scored and radius in a.accuracy]
    return min(candidates, key=lambda attack: attack.accuracy[radius].value, default=None)


def _certified(certificate: Certificate | None, at: Headline) -> Figure:
    where = "" if at.radius is None else f"radius {plain(at.radius)}"
    if certificate is None or at.radius is None:
        return Figure("Certified", where, "–", None, ("no certificate",))
    counted = certificate.accuracy(at.radius)
    detail = ("smoothed classifier", *_basis(counted))
    shown = shown_percent(counted.value, "proved")
    return Figure("Certified", where, shown, "proved", detail, certificate.warnings)


def _shifted(shift: Shift, at: Headline) -> Figure:
    title, cost = "Certified under shift", COSTS["w2"]
    value = dict(shift.curve).get(at.eps) if at.eps is not None else None
    if at.eps is None or value is None:
        return Figure(title, cost, "–", None, ("not certified at this eps",), shift.warnings)
    sure = () if shift.alpha is None else (f"confidence {confidence(shift.alpha)}",)
    detail = ("one noisy vote", f"n = {shift.points}", *sure)
    return Figure(
        title, f"{cost}, eps {plain(at.eps)}", shown_percent(value, "proved"), "proved", detail, shift.warnings
    )
