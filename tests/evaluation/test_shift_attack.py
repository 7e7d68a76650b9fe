"""The distributional attack on a linear classifier, whose worst case is known, and its record."""

import json

import numpy as np
import pytest
from scipy import stats

from rhobust.attacks import EOT, PGD
from rhobust.bounds import worst_case_loss
from rhobust.data import to_unit
from rhobust.evaluation import AttackShift, CertifyShift, run
from rhobust.files import write_json
from rhobust.measurements import SHIFT_ATTACK, measurements, read_finished
from rhobust.progress import no_progress
from rhobust.records import read_record
from rhobust.report import write_report

EPS = (0.0, 0.125, 0.25)


def attacked(target, **options):
    settings = {"attack": EOT(steps=4, draws=2, restarts=0), "radii": (0.1, 0.25, 0.4, 0.6, 0.9), "draws": 200}
    return run(AttackShift(eps=EPS, **{**settings, **options}), target, progress=no_progress)


def test_it_comes_close_to_the_worst_case_and_not_below(target, half_space):
    record = attacked(target)
    distance = half_space(to_unit(target.data.images)).detach().numpy()[:, 1]
    signed = np.where(target.data.labels.numpy() == 1, distance, -distance)
    worst = 1 - worst_case_loss(stats.norm.cdf(-signed / target.sigma), np.square(EPS), target.sigma)
    left = np.array([point["accuracy"] for point in record.summary["curve"]])
    deviation = 4 * np.sqrt(0.25 / (200 * len(record.rows)))  # of fresh votes, at most
    assert np.all(left >= worst - deviation)
    assert np.all(left <= worst + deviation + [0.0, 0.02, 0.02])  # few radii: a little is left
    for point in record.summary["curve"]:
        assert point["spent"] <= point["eps"] * (1 + 1e-9)
        assert point["low"] <= point["accuracy"] <= point["high"]
    floor = run(CertifyShift(eps=EPS, draws=4, alpha=0.1), target, progress=no_progress).summary["curve"]
    assert all(one["certified_accuracy"] <= two for one, two in zip(floor, left, strict=True))


def test_the_record_is_read_again_from_its_rows(target):
    record = attacked(target, draws=10, votes=3)
    found = measurements(read_finished(record.path))
    assert [(one.quantity, one.at, one.status) for one in found] == [
        (SHIFT_ATTACK, eps, "upper bound" if eps else "estimate") for eps in EPS
    ]
    assert "takes the majority of 3 noisy votes (sigma 0.25) right" in found[1].detail["statement"]
    assert (
        "No certificate about these images can be above it, up to the error of the estimate"
        in record.summary["statement"]
    )
    lines = record.path.read_text().splitlines()
    last = json.loads(lines[-1])
    last["summary"]["curve"][1]["accuracy"] += 0.01
    record.path.write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    with pytest.raises(ValueError, match=r"must be as it was written|must have the summary that its rows give"):
        measurements(read_record(record.path))


def test_the_page_draws_it_over_the_certified_floor(target, tmp_path):
    attacked(target, draws=10)
    run(CertifyShift(eps=EPS, draws=4, alpha=0.1), target, progress=no_progress)
    write_json(target.folder / "config.json", {"name": "half-space", "live": True})
    write_report([target.folder], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "W2 attack, one noisy vote (upper bound)" in page
    assert "Accuracy left by a W2 attack on the distribution" in page
    assert "no certificate about these images can be above its markers" in page


def test_points_are_on_the_grid_of_the_images(target):
    places = attacked(target, draws=2).rows[20]["places"]
    steps = [one["squared_distance"] * 255**2 for one in places]
    assert steps == pytest.approx(np.round(steps), abs=1e-2)
    assert [one["radius"] for one in places] == [0.0, 0.1, 0.25, 0.4, 0.6, 0.9]


def test_the_default_radii_follow_sigma_and_unspent_budgets_are_named(target):
    evaluation = AttackShift(attack=EOT(steps=1, draws=1, restarts=0), eps=(0.1,), draws=2)
    assert evaluation.resolve(target).radii == tuple(0.25 * step for step in (1, 2, 3, 4, 6, 8, 12))
    warnings = attacked(target, radii=(0.01,), draws=2).summary["warnings"]
    assert any(warning.startswith("at eps 0.25 the attack spends only") for warning in warnings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radii": (0.0, 0.1)}, "radii must be > 0"),
        ({"radii": (0.2, 0.1)}, "radii must increase"),
        ({"votes": 201}, "votes must be <= draws"),
        ({"attack": PGD(norm="linf")}, "attack must be an L2 attack, got linf"),
    ],
)
def test_what_cannot_be_attacked_is_refused(target, options, message):
    with pytest.raises(ValueError, match=message):
        attacked(target, **options)
