"""What cannot be: a certificate above what an attack left standing, or above the accuracy it starts from."""

import math

from rhobust.bounds import contradictions_by_chance
from rhobust.formatting import format_distance, format_percent
from rhobust.measurements import same_classifier
from rhobust.report.run import Attack, Certificate, Run, Shift


def contradictions(run: Run) -> list[str]:
    """One sentence for each pair of records that cannot both be right: a bug, or an unsound certificate.

    What the evaluations found themselves comes first.
    """
    found = [f"{run.label}: {line}." for line in run.contradictions]
    for certificate in run.certificates:
        found += _refuted(run, certificate)
    for shift in run.shifts:
        found += _above_its_start(run, shift)
    for losses in run.losses:
        lower = dict(losses.lower)
        crossed = [eps for eps, upper in losses.certified if lower.get(eps, 0.0) > upper + 1e-9]
        if crossed:
            found.append(
                f"{run.label}: {losses.file} has an attack that reaches more than the certified loss at eps"
                f" {', '.join(format_distance(eps) for eps in crossed)}."
            )
    for measured in run.measured:
        if measured.after is not None and measured.certified > measured.after + 1e-9:
            found.append(
                f"{run.label}: {measured.file} claims {format_percent(measured.certified, 'nearest')}% after a"
                " change, more"
                f" than the {format_percent(measured.after, 'nearest')}% measured after it."
            )
    return found


def broken_though_certified(certificate: Certificate, attack: Attack) -> list[tuple[float, int]]:
    """For each radius how many examples the attack broke inside their certified radius.

    Single ones may come from the attack's own vote or from the certificate's alpha.
    """
    if not comparable(certificate, attack):
        return []
    counts = []
    for radius, broken in sorted(attack.broken.items()):
        inside = sum(certificate.covers(index, radius) for index in broken)
        if inside:
            counts.append((radius, inside))
    return counts


def comparable(certificate: Certificate, attack: Attack) -> bool:
    """Whether a certificate speaks about the classifier, the weights and the distance that were attacked."""
    return attack.majority and attack.norm == "l2" and same_classifier(certificate.settings, attack.settings)


def _refuted(run: Run, certificate: Certificate) -> list[str]:
    """One sentence if attacks break more examples within their proved radius than chance explains.

    A vote may be a fluke and a certificate false, with probability alpha: only votes beyond doubt count, and as many
    as come by chance are allowed.
    """
    told: list[tuple[int, int, str]] = []
    for attack in run.attacks:
        if not comparable(certificate, attack):
            continue
        common = certificate.examples & attack.examples
        proved = certificate.correct.keys() & common
        refuted = [index for index in proved if attack.doubtless.get(index, math.inf) <= certificate.correct[index]]
        if len(refuted) > contradictions_by_chance(len(common), certificate.alpha or 0.0, attack.votings):
            told.append((len(refuted), len(proved), attack.file))
    if not told:
        return []
    count, proved_of, file = max(told)
    others = [other for *_, other in told if other != file]
    return [
        f"{run.label}: {certificate.file} proves a radius for {proved_of} of the examples that {file} attacks, and"
        f" {count} of them are broken within it by votes beyond doubt"
        + (f"; likewise by {', '.join(others)}." if others else ".")
    ]


def _above_its_start(run: Run, shift: Shift) -> list[str]:
    """One noisy vote's certificate starts from one noisy vote's accuracy; other classifiers may answer better."""
    if shift.classifier != "one noisy vote":
        return []
    top = max((accuracy for _, accuracy in shift.curve), default=0.0)
    if top <= shift.under_noise + 1e-9:
        return []
    return [
        f"{run.label}: {shift.file} claims {format_percent(top, 'nearest')}% under a shift, more than the"
        f" {format_percent(shift.under_noise, 'nearest')}% measured on the data as it is."
    ]
