"""The demo's answers as HTML: the answer first, then the votes, then the claim in small print."""

import base64
import io
from collections.abc import Sequence
from html import escape as escape_html

from torch import Tensor

from rhobust.certificates import scope_of_validity
from rhobust.data.images import pillow_image
from rhobust.demo.classifier import DemoClassifier, LiveCertificate, PredictedImage
from rhobust.formatting import format_confidence, format_number

SHOWN = 5
"""Classes whose votes are shown; the others are added up."""


def escape(text: str) -> str:
    """A name for the page; braces are escaped too, as the page's components are templates."""
    return escape_html(text).replace("{", "&#123;").replace("}", "&#125;").replace("$", "&#36;")


def picture(image: Tensor, alt: str) -> str:
    """An image as an element of the page; pixels stay sharp."""
    file = io.BytesIO()
    pillow_image(image.numpy()).save(file, "PNG", optimize=True)
    code = base64.b64encode(file.getvalue()).decode()
    return f'<img class="rb-image" alt="{escape(alt)}" src="data:image/png;base64,{code}">'


def radius_text(radius: float) -> str:
    """A certified radius, rounded down."""
    return format_number(radius, 3, "down")


def intro(classifier: DemoClassifier) -> str:
    """The head of the page: what it is, in one sentence."""
    name = f" · {escape(classifier.name)}" if classifier.name else ""
    warnings = "".join(f'<p class="rb-warning">{escape(one)}</p>' for one in classifier.warnings)
    return (
        f'<header class="rb-head"><h1>How far does the answer hold?<span>{name}</span></h1>'
        "<p>Give the network an image. It votes on many noisy copies of it, and the votes prove a distance within which"
        f" no change of the image can change the answer.</p>{warnings}</header>"
    )


def waiting() -> str:
    """What is shown before there is an image."""
    return (
        '<section class="rb-answer rb-empty" aria-live="polite"><p class="rb-label">The answer</p>'
        "<p>Drop an image, draw one, or choose an example.</p></section>"
    )


def failed(message: str) -> str:
    """An error in the place of an answer."""
    return f'<section class="rb-answer rb-abstains" role="alert"><p>{escape(message)}</p></section>'


def answer(classifier: DemoClassifier, image: Tensor, live: LiveCertificate) -> str:
    """The classifier's answer to an image, as far as known."""
    if live.selected is None:
        status, headline, proof = "rb-busy", "…", "The first noise samples choose the class to test."
    elif live.prediction is not None:
        name = escape(classifier.classes[live.prediction])
        status, headline = ("rb-proved" if live.done else "rb-busy rb-proved"), name
        reach = f'<b class="rb-radius">{radius_text(live.radius)}</b>'
        proof = f"Proved: the same answer for every image within L2 distance {reach}."
    elif live.done:
        status, headline = "rb-abstains", "No answer"
        proof = (
            f"It abstains: {escape(classifier.classes[live.selected])} has most votes, but not so many that"
            f" {live.samples:,} noise samples prove it."
        )
    else:
        status, headline = "rb-busy", f"{escape(classifier.classes[live.selected])}?"
        proof = "Nothing is proved yet."
    return (
        f'<section class="rb-answer {status}" aria-live="polite" data-radius="{live.radius}"'
        f' data-done="{str(live.done).lower()}">{picture(image, "what the network sees")}<div>'
        f'<p class="rb-label">{"The answer" if live.done or live.proved else "So far"}</p>'
        f'<p class="rb-class">{headline}</p><p class="rb-proof">{proof}</p></div>'
        f"{_sampling(live)}{_votes(classifier, live)}{_claim(classifier, image)}</section>"
    )


def _sampling(live: LiveCertificate) -> str:
    """How many samples were taken, and why no more."""
    share = 100 * live.samples / live.limit
    if live.done and live.samples < live.limit:
        text = f"Stopped after {live.samples:,} noise samples: {live.limit:,} would hardly prove more."
    else:
        text = f"{live.samples:,} of {live.limit:,} noise samples"
    return f'<div class="rb-sampling"><div class="rb-track"><i style="width:{share:.1f}%"></i></div><p>{text}</p></div>'


def _votes(classifier: DemoClassifier, live: LiveCertificate) -> str:
    total = sum(live.votes)
    if not total:
        return ""
    order = sorted(range(len(live.votes)), key=lambda number: (-live.votes[number], number))
    rows = [(classifier.classes[number], live.votes[number]) for number in order[:SHOWN] if live.votes[number]]
    if rest := total - sum(votes for _, votes in rows):
        rows.append(("others", rest))
    bars = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td><i style="width:{100 * votes / total:.1f}%"></i></td>'
        f"<td>{votes:,}</td></tr>"
        for name, votes in rows
    )
    return f'<table class="rb-votes"><caption>Votes of the noisy copies</caption>{bars}</table>'


def _claim(classifier: DemoClassifier, image: Tensor) -> str:
    shape = "×".join(map(str, image.shape[1:]))
    return (
        f'<p class="rb-claim">The claim is about the smoothed classifier (noise σ {classifier.sigma:g}) and the image'
        f" of {shape} pixels shown here, with values in [0, 1]. It is true with probability"
        f" {format_confidence(classifier.alpha)} over the noise, at whatever moment you read it: the test may be looked"
        f" at any time. The distance is rounded down.{scope_of_validity('grid')} It does not say that the answer is"
        " right.</p>"
    )


def attacked(
    classifier: DemoClassifier, image: Tensor, certificate: LiveCertificate, found: PredictedImage, radius: float
) -> str:
    """What an attack made of an image."""
    assert certificate.selected is not None
    before = escape(classifier.classes[certificate.selected])
    after = _named(classifier, found)
    inside = certificate.proved and radius <= certificate.radius
    status, text = _verdict(classifier, certificate, found, inside=inside)
    distance = format_number(found.distance, 3, "up")
    votes = ", ".join(f"{count:,} for {escape(classifier.classes[number])}" for number, count in found.votes if count)
    return (
        f'<section class="rb-result {status}" aria-live="polite" data-distance="{found.distance}"><p class="rb-proof">'
        f'{text}</p><div class="rb-strip"><figure>{picture(image, "before the attack")}<figcaption>before: {before}'
        f"</figcaption></figure><figure>{picture(_change(image, found.image), 'the change, enlarged')}<figcaption>the"
        f" change, enlarged: L2 {distance}</figcaption></figure><figure>{picture(found.image, 'after the attack')}"
        f"<figcaption>after: {after}</figcaption></figure></div><p class='rb-claim'>EOT-PGD on the smoothed classifier;"
        f" votes after it: {votes}.</p></section>"
    )


def _verdict(
    classifier: DemoClassifier, certificate: LiveCertificate, found: PredictedImage, *, inside: bool
) -> tuple[str, str]:
    """Class of the section, and what an attack shows: inside the certified radius, and beyond it."""
    assert certificate.selected is not None
    before = escape(classifier.classes[certificate.selected])
    if found.prediction == certificate.selected:
        if inside:
            proof = f"{radius_text(certificate.radius)} is proved"
            return "rb-proved", f"The answer is still {before}, and no attack can change it here: {proof}."
        beyond = "That proves nothing beyond the certified distance: a stronger attack may change it."
        return "", f"The answer is still {before}. {beyond}"
    if found.prediction is None and inside:
        votes = f"{sum(count for _, count in found.votes):,}"
        return "rb-proved", f"The answer is proved to be still {before}; {votes} votes are too few to show it here."
    if inside:
        return "rb-changed", (
            "It changed the answer within the certified distance. If all is well, that happens with probability"
            f" {2 * classifier.alpha:g} at most: please report it with the image."
        )
    after = _named(classifier, found)
    return "rb-changed", f"The attack changed the answer from {before} to {after}."


def _named(classifier: DemoClassifier, found: PredictedImage) -> str:
    return "no answer" if found.prediction is None else escape(classifier.classes[found.prediction])


def _change(before: Tensor, after: Tensor) -> Tensor:
    """The change around middle grey, as strong as it can be shown."""
    offset = after.double() - before.double()
    scale = 127 / max(1.0, float(offset.abs().max()))
    return (127.5 + scale * offset).round().clamp(0, 255).to(before.dtype)


def corrupted(classifier: DemoClassifier, certificate: LiveCertificate, found: Sequence[PredictedImage]) -> str:
    """The same image under each corruption, with the distance and the prediction."""
    figures = []
    same = 0
    for one in found:
        kept = one.prediction is not None and one.prediction == certificate.selected
        same += kept
        proved = certificate.proved and one.distance <= certificate.radius and (kept or one.prediction is None)
        name = _named(classifier, one)
        badge = "proved" if proved else "same answer" if kept else "changed"
        style = "rb-proved" if proved else "" if kept else "rb-changed"
        distance = format_number(one.distance, 2, "up")
        figures.append(
            f'<figure class="{style}">{picture(one.image, one.name)}<figcaption><b>{escape(one.name)}</b>'
            f"<span>L2 {distance} · {name}</span><em>{badge}</em></figcaption></figure>"
        )
    return (
        f'<section class="rb-result" aria-live="polite"><p class="rb-proof">{same} of {len(found)} corruptions leave'
        f' the answer unchanged. “Proved” are those within the certified distance.</p><div class="rb-gallery">'
        f"{''.join(figures)}</div></section>"
    )
