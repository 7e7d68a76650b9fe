"""What cannot be: a certificate above what an attack left standing, or above the accuracy it starts from."""

from rhobust.records import same_classifier
from rhobust.report.run import Attack, Certificate, Run, Shift
from rhobust.rounding import percent, plain, share


def contradictions(run: Run) -> list[str]:
    """One sentence for each pair of records that cannot both be right: a bug, or an unsound certificate.

    What the evaluations found themselves comes first.
    """
    found = [f"{run.label}: {line}." for line in run.contradictions]
    for certificate in run.certificates:
        for attack in run.attacks:
            found += _exceeding(run, certificate, attack)
    for shift in run.shifts:
        found += _above_its_start(run, shift)
    for losses in run.losses:
        lower = dict(losses.lower)
        crossed = [eps for eps, upper in losses.certified if lower.get(eps, 0.0) > upper + 1e-9]
        if crossed:
            found.append(
                f"{run.label}: {losses.file} has an attack that reaches more than the certified loss at eps"
                f" {', '.join(plain(eps) for eps in crossed)}."
            )
    for measured in run.measured:
        if measured.after is not None and measured.certified > measured.after + 1e-9:
            found.append(
                f"{run.label}: {measured.file} claims {percent(measured.certified, 'nearest')}% after a change, more"
                f" than the {percent(measured.after, 'nearest')}% measured after it."
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


def _exceeding(run: Run, certificate: Certificate, attack: Attack) -> list[str]:
    common = certificate.examples & attack.examples
    if not common or not comparable(certificate, attack):
        return []
    excess = []
    for radius, broken in sorted(attack.broken.items()):
        certified = sum(certificate.covers(index, radius) for index in common) / len(common)
        left = share(len(common - broken), len(common))
        if certified > left.high:
            excess.append((certified - left.high, radius, certified, left))
    if not excess:
        return []
    _, radius, certified, left = max(excess, key=lambda entry: entry[0])
    others = [plain(entry[1]) for entry in excess if entry[1] != radius]
    return [
        f"{run.label}: at radius {plain(radius)} {certificate.file} certifies {percent(certified, 'down')}% of"
        f" {len(common)} examples, but {attack.file} left only {percent(left.value, 'nearest')}% of them standing"
        f" (95% upper limit {percent(left.high, 'up')}%)"
        + (f"; likewise at radius {', '.join(others)}." if others else ".")
    ]


def _above_its_start(run: Run, shift: Shift) -> list[str]:
    """One noisy vote's certificate starts from one noisy vote's accuracy; other classifiers may answer better."""
    if shift.classifier != "one noisy vote":
        return []
    top = max((accuracy for _, accuracy in shift.curve), default=0.0)
    if top <= shift.under_noise + 1e-9:
        return []
    return [
        f"{run.label}: {shift.file} claims {percent(top, 'nearest')}% under a shift, more than the"
        f" {percent(shift.under_noise, 'nearest')}% measured on the data as it is."
    ]
