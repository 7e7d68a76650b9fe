"""What cannot be: a certificate above what an attack left standing, or above the accuracy it starts from."""

from rhobust.records import Row, same_classifier
from rhobust.report.run import Attack, Certificate, Run
from rhobust.rounding import percent, plain, share


def contradictions(run: Run) -> list[str]:
    """One sentence for each pair of records that cannot both be right: a bug, or an unsound certificate."""
    found = []
    for certificate in run.certificates:
        for attack in run.attacks:
            found += _exceeding(run, certificate, attack)
    for shift in run.shifts:
        top = max((accuracy for _, accuracy in shift.curve), default=0.0)
        if top > shift.under_noise + 1e-9:
            found.append(
                f"{run.label}: {shift.file} claims {percent(top, 'nearest')}% under a shift, more than the"
                f" {percent(shift.under_noise, 'nearest')}% measured on the data as it is."
            )
    return found


def broken_though_certified(certificate: Certificate, attack: Attack) -> list[tuple[float, int]]:
    """For each radius how many examples the attack broke inside their certified radius.

    Single ones may come from the attack's own vote or from the certificate's alpha.
    """
    if not comparable(certificate.settings, attack):
        return []
    counts = []
    for radius, broken in sorted(attack.broken.items()):
        inside = [i for i in broken if _covers(certificate.correct.get(i, 0.0), radius)]
        if inside:
            counts.append((radius, len(inside)))
    return counts


def comparable(settings: Row, attack: Attack) -> bool:
    """Whether a certificate speaks about the classifier, the weights and the examples that were attacked."""
    return attack.scored == "smoothed" and same_classifier(settings, attack.settings)


def _exceeding(run: Run, certificate: Certificate, attack: Attack) -> list[str]:
    common = certificate.examples & attack.examples
    if not common or not comparable(certificate.settings, attack):
        return []
    excess = []
    for radius, broken in sorted(attack.broken.items()):
        certified = sum(_covers(certificate.correct.get(index, 0.0), radius) for index in common) / len(common)
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


def _covers(certified: float, radius: float) -> bool:
    return certified > 0 if radius == 0 else certified >= radius
