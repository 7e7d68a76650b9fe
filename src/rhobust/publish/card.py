"""The model card: every number from the one reader of records, with its status, its claim and its interval."""

import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from rhobust.formatting import format_confidence, format_distance, format_number, format_percent, name_split, printable
from rhobust.measurements import (
    AFTER,
    ALL_AT_ONCE,
    AVERAGE_RADIUS,
    BASE,
    BASE_AFTER,
    CERTIFIED_AFTER,
    CHANGE,
    ROBUST,
    UNDER_NOISE,
    Measurement,
)
from rhobust.measurements.proved import shift_claim
from rhobust.proofs.claim import name_classifier, scope_of_validity
from rhobust.records import Row
from rhobust.report.gather import method_name
from rhobust.report.runs import PageRecord, PageRun
from rhobust.settings import flatten
from rhobust.version import VERSION

PAPERS = {
    "gaussian": "Cohen, Rosenfeld, Kolter: Certified Adversarial Robustness via Randomized Smoothing. arXiv:1902.02918",
    "stn": "Li, Chen, Wang, Carin: Certified Adversarial Robustness with Additive Noise. arXiv:1809.03113",
    "pgd": "Madry et al.: Towards Deep Learning Models Resistant to Adversarial Attacks. arXiv:1706.06083",
    "trades": "Zhang et al.: Theoretically Principled Trade-off between Robustness and Accuracy. arXiv:1901.08573",
    "smoothadv": "Salman et al.: Provably Robust Deep Learning via Adversarially Trained Smoothed Classifiers."
    " arXiv:1906.04584",
    "wrm": "Sinha, Namkoong, Duchi: Certifying Some Distributional Robustness with Principled Adversarial Training."
    " arXiv:1710.10571",
    "macer": "Zhai et al.: MACER: Attack-free and Scalable Robust Training. arXiv:2001.02378",
    "consistency": "Jeong, Shin: Consistency Regularization for Certified Robustness. arXiv:2006.04062",
    "smoothmix": "Jeong et al.: SmoothMix: Training Confidence-calibrated Smoothed Classifiers. arXiv:2111.09277",
    "catrs": "Jeong, Kim and Shin: Confidence-aware Training of Smoothed Classifiers. arXiv:2212.09000",
    "nal": "Yang et al.: Certified Distributional Robustness on Smoothed Classifiers. arXiv:2010.10987",
}
"""The paper of each training method."""
_UNITLESS = ("loss", "distance")
"""Words in the names of quantities that are no proportions."""
_CHANGES = (CHANGE, BASE_AFTER, AFTER, CERTIFIED_AFTER)
"""Quantities of a corruption, in the order of the table's columns."""


def model_card(run: PageRun, *, data: str | None, licence: str | None = None, title: str | None = None) -> str:
    """The model card of a run as Markdown with the Hub's front matter.

    Only finished records are shown. Proved numbers are rounded to the safe side and called proved; accuracies under
    attack are called upper bounds; the rest are estimates with their 95% intervals.

    Args:
        run: The run with its records, as `rhobust.report.gather` reads them.
        data: Name of a published data set that it was trained on; None for other data.
        licence: Licence of the weights, as the Hub names it.
        title: Heading; default: the run's label.
    """
    template = files("rhobust.publish").joinpath("card.md.jinja").read_text(encoding="utf-8")
    # Markdown, where HTML's escapes would show: `plain` neutralises what is received.
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["plain"] = plain
    records = [record for record in run.records if record.record.summary is not None]
    kind = str(run.method.get("kind", ""))
    return environment.from_string(template).render(
        front=_front_matter(title or run.label, data, licence),
        title=title or run.label,
        method=method_name(run),
        sigmas=", ".join(format_distance(sigma) for sigma in run.sigmas),
        answers=_answers(records),
        tables=[_table(record) for record in records if record.kind not in ("corruptions", "transfer")],
        corruptions=[_corruptions(record) for record in records if record.kind == "corruptions"],
        attacks=sorted({_attack(record) for record in records if record.kind in ("attack", "transfer")}),
        proved=any(one.status == "proved" for record in records for one in record.found),
        contradictions=run.contradictions,
        warnings=sorted({warning for record in records for warning in record.warnings}),
        training=_settings(run.config),
        data=str(run.config.get("data", "unknown")),
        paper=PAPERS.get(kind),
        version=VERSION,
    )


def plain(text: Any) -> str:
    r"""Received text as one line of Markdown without markup of its own.

    >>> print(plain("a|b\n<i>[c](d)"))
    a&#124;b &lt;i&gt;\[c\](d)
    """
    line = html.escape(printable(" ".join(str(text).split())), quote=False).replace("|", "&#124;")
    return re.sub(r"([\\`*_\[\]#])", r"\\\1", line).replace("&\\#124;", "&#124;")


def _front_matter(title: str, data: str | None, licence: str | None) -> str:
    """The Hub's front matter; JSON is YAML, so nothing in a name can add a key."""
    front: Row = {
        "library_name": "rhobust",
        "pipeline_tag": "image-classification",
        "tags": ["adversarial-robustness", "randomized-smoothing", "certified-robustness", "rhobust"],
        "model_name": title,
    }
    front |= {} if licence is None else {"license": licence}
    front |= {} if data is None else {"datasets": [data]}
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in front.items())


def _value(one: Measurement) -> str:
    """A measurement as a table shows it, rounded to its safe side."""
    if one.quantity == AVERAGE_RADIUS:
        return format_number(one.value, 3, one.direction)
    if any(word in one.quantity for word in _UNITLESS):
        return format_number(one.value, 3, "up" if one.quantity == CHANGE else one.direction)
    return f"{format_percent(one.value, one.direction)}%"


def _interval(one: Measurement) -> str:
    if one.low is None or one.high is None:
        return ""
    if one.quantity == AVERAGE_RADIUS or any(word in one.quantity for word in _UNITLESS):
        return f"{format_number(one.low, 3, 'down')} to {format_number(one.high, 3, 'up')}"
    return f"{format_percent(one.low, 'down')} to {format_percent(one.high, 'up')}%"


def _answers(records: Sequence[PageRecord]) -> list[str]:
    """How accurate it is, what is proved, and what an attack still breaks: one sentence each, as far as measured."""
    found: list[str] = []
    for record in records:
        if (one := record.value(BASE)) is not None:
            found.append(
                f"**Accuracy** (estimate): the base network is right on {_value(one)} of {_images(one, record)}."
            )
        if (one := record.value(UNDER_NOISE)) is not None and record.kind == "accuracy":
            found.append(
                f"**Accuracy under noise** (estimate): one noisy vote is right on {_value(one)}{record.whose}."
            )
    for record in records:
        proved = [one for one in record.curve(ALL_AT_ONCE) if one.value > 0]
        if (one := _middle(proved)) is not None and record.alpha is not None:
            images = f"{one.n:,} {name_split(record.settings.get('split'))} images"
            found.append(
                f"**Proved** at single images: with probability {format_confidence(record.alpha)} over the noise, at"
                f" least {_value(one)} of {images} are right and stay right under every perturbation up to"
                f" L2 distance {format_distance(one.at or 0.0)} (smoothed classifier).{_scope(record)}"
            )
        if record.kind == "certify-shift" and record.statement:
            images = f", from{record.whose.removeprefix(',')}" if record.whose else ""
            found.append(f"**Proved** for distributions{images}: {record.statement}")
    attacks = [record for record in records if record.kind == "attack"]
    # The paper's protocol overestimates robustness: it comes first only where there is no other attack.
    for record in [one for one in attacks if one.attack_kind != "paper"] or attacks:
        if (one := _middle(record.curve(ROBUST))) is not None:
            norm = {"linf": "L-infinity"}.get(record.norm, "L2")
            left = f"{_value(one)} of {_images(one, record)}"
            found.append(
                f"**An attack** ({plain(record.attack_name)}) leaves {left} right at {norm}"
                f" distance {format_distance(one.at or 0.0)} ({record.predictor_name}); a stronger one may leave fewer."
            )
    return list(dict.fromkeys(found))


def _images(one: Measurement, record: PageRecord) -> str:
    """The images behind a number, which are test images where nothing else is said."""
    return f"{one.n:,}{record.whose.removeprefix(',') or ' images'}"


def _middle(points: Sequence[Measurement]) -> Measurement | None:
    """The middle one of the points at a positive radius."""
    beyond = [one for one in points if one.at]
    return beyond[(len(beyond) - 1) // 2] if beyond else None


def _table(record: PageRecord) -> Row:
    """The numbers of one record, and what is claimed."""
    rows = [
        [
            one.quantity,
            "" if one.at is None else format_distance(one.at),
            _value(one),
            _interval(one),
            f"{one.n:,}",
            one.status,
        ]
        for one in record.found
    ]
    return {"title": _title(record), "rows": rows, "claim": _claim(record), "file": record.file}


def _title(record: PageRecord) -> str:
    sigma = record.settings.get("sigma")
    noise = f", noise {format_distance(sigma)}" if isinstance(sigma, int | float) else ""
    names = {
        "accuracy": "Accuracy",
        "certify": "Certified radii of single images: smoothed classifier",
        "certify-shift": "Certified under distribution shift",
        "losses": "Bounds of the loss under shift",
        "measure-shift": "A measured change",
    }
    if record.kind == "attack":
        noise = noise if record.predictor != "base" else ""
        return f"{record.attack_name} on the {record.predictor_name}{noise}{record.whose}"
    return f"{names.get(record.kind, record.kind)}{noise}{record.whose}"


def _claim(record: PageRecord) -> str:
    """What the numbers of a record say, with alpha and the arithmetic."""
    where = ", ".join(str(record.settings[key]) for key in ("data", "split") if record.settings.get(key))
    made = ", ".join(str(record.settings[key]) for key in ("dtype", "device") if record.settings.get(key))
    basis = f"Images: {plain(where)}." + (f" Arithmetic: {plain(made)}." if made else "")
    if record.kind == "certify" and record.alpha is not None:
        return (
            f"For each image alone, with probability {format_confidence(record.alpha)} over at most"
            f" {record.most_samples:,} noise samples (alpha {record.alpha:g}), the smoothed classifier gives the class"
            f" at every point within the radius.{_scope(record)} “{ALL_AT_ONCE}” holds for all images together with"
            f" the same probability. {basis}"
        )
    if record.statement:
        return (
            f"{plain(record.statement)} (alpha {record.alpha:g}). {basis}" if record.alpha else plain(record.statement)
        )
    if record.kind == "attack":
        return f"An upper bound on the robust accuracy: a stronger attack may lower it. {basis}"
    return f"Estimates, with 95% intervals over the choice of images. {basis}"


def _corruptions(record: PageRecord) -> Row:
    """One row per corruption and severity: distance, accuracies and the certified floor side by side."""
    cells: dict[tuple[str, int], dict[str, str]] = {}
    for one in record.found:
        if "corruption" in one.detail:
            cell = cells.setdefault((str(one.detail["corruption"]), int(one.detail["severity"])), {})
            interval = f" ({_interval(one)})" if one.quantity == AFTER else ""
            cell[one.quantity] = _value(one) + interval
    rows = [[name, str(severity), *(cell.get(key, "") for key in _CHANGES)] for (name, severity), cell in cells.items()]
    alpha = "" if record.alpha is None else f" (alpha {record.alpha:g} for all of them together)"
    who = name_classifier(shift_claim(record.settings).votes_per_answer)
    return {"rows": rows, "alpha": alpha, "who": who, "scope": _scope(record), "file": record.file}


def _scope(record: PageRecord) -> str:
    """The last sentence of what is proved: for which images, or for which idealised noise."""
    noise = record.settings.get("noise")
    return scope_of_validity(noise) if noise in ("grid", "float") else ""


def _attack(record: PageRecord) -> str:
    norm = {"linf": "L-infinity"}.get(record.norm, "L2")
    return f"{record.attack_name}, {norm}, on the {record.predictor_name}, {_images(record.found[0], record)}"


def _settings(config: Row) -> list[tuple[str, str]]:
    """Training settings as pairs; nested ones with a dot."""
    given = [(key, value) for key, value in flatten(config) if key != "rhobust" and value is not None]
    return [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in given]
