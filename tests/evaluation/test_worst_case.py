"""The three curves over a half space, whose worst case is known."""

import numpy as np
import pytest
import torch
from scipy import special

from rhobust.bounds import shift_lower_bound, worst_case_loss
from rhobust.certificates import corrected_alpha
from rhobust.data import Dataset, to_unit
from rhobust.evaluation import Ascent, Target, WorstCaseCurves, audit_file, run
from rhobust.formatting import format_percent
from rhobust.measurements import WORST_CERTIFIED, measurements
from rhobust.models import build_model
from rhobust.progress import no_progress

EPS = (0.0, 0.1, 0.2, 0.4)
FEW = Ascent(gammas=(0.5, 2.0, 8.0), steps=3, inner_draws=2)


@pytest.fixture
def target(half_space, grey_images, tmp_path):
    """Two hundred grey images, each level five times: the population is the forty levels."""
    images, labels = grey_images.images.repeat(5, 1, 1, 1), grey_images.labels.repeat(5)
    data = Dataset("grey", "test", images, labels, ("dark", "bright"))
    return Target(half_space, data, sigma=0.25, name="half-space", folder=tmp_path, model_hash="0" * 16)


def test_lower_truth_and_certified_stand_in_order(target, half_space, grey_images):
    # Of the 0-1 loss the worst case is exact: a half space attains it. Misses have probability 2 alpha = 0.002.
    record = run(WorstCaseCurves(eps=EPS, loss="0-1", ascent=Ascent(gammas=(0.5, 2, 8))), target, progress=no_progress)
    distance = half_space(to_unit(grey_images.images))[:, 1].abs().detach().numpy()
    truth = worst_case_loss(special.ndtr(-distance / 0.25), np.square(EPS), 0.25)
    curve = record.summary["curve"]
    lower, certified, estimate = (np.array([at[name] for at in curve]) for name in ("lower", "certified", "estimate"))
    assert (lower <= truth).all()
    assert (truth <= certified).all()
    assert (certified < truth + 0.16).all()
    # The ascent follows the cross-entropy, so it does not spend its budget in the best way for this loss.
    assert (lower > truth - 0.25).all()
    assert lower[-1] > lower[0] + 0.1
    assert np.all(np.diff(lower) >= 0)
    assert np.all(np.diff(certified) > 0)
    # The estimate is no bound: here it lies below the truth.
    assert (estimate[1:] < truth[1:]).all()
    assert (estimate > lower).all()
    assert [at["rho"] for at in curve] == pytest.approx(np.square(EPS).tolist())


def test_the_record_holds_what_the_curves_rest_on(target):
    record = run(WorstCaseCurves(eps=(0.1,), bound=1.5, ascent=FEW, draws=5, limit=30), target, progress=no_progress)
    assert record.kind == "curves"
    claim = {"loss": "cross-entropy", "bound": 1.5, "cost": "w2", "gammas": [0.5, 2.0, 8.0], "noise": "grid"}
    assert claim.items() <= record.settings.items()
    for row in record.rows:
        assert 0 <= row["counted"] <= 5
        assert 0 <= row["loss"] <= 1.5
        assert [attack["loss"] <= 1.5 for attack in row["attacks"]] == [True] * 3
    points = record.summary["attacks"]
    for number, point in enumerate(points):
        assert point["rho"] == pytest.approx(
            np.mean([row["attacks"][number]["squared_distance"] for row in record.rows])
        )
        assert point["loss_lower"] < point["loss"]
        assert point["rho_upper"] > point["rho"]
    # A dearer move is a shorter one.
    assert points[0]["rho"] > points[1]["rho"] > points[2]["rho"]
    assert "clipped at 1.5" in record.summary["statement"]
    assert record.summary["wrm"] is None


def test_the_lower_curve_pays_for_every_attack_and_for_the_points_themselves(target, monkeypatch):
    monkeypatch.setattr("rhobust.bounds.confidence.grid_deviation", lambda sigma: 1e-6)
    record = run(
        WorstCaseCurves(eps=(0.0,), loss="0-1", ascent=FEW, draws=5, limit=30, alpha=0.04), target, progress=no_progress
    )
    left = corrected_alpha(0.04, sigma=0.25, dimension=16, draws=4 * 5 * 30, noise="grid")
    each = left / 4  # three gammas, and the points unmoved
    unmoved = [row["loss"] for row in record.rows]
    _, start = shift_lower_bound(np.zeros(30), unmoved, each, limit=1.0, bound=1.0)
    assert record.summary["curve"][0]["lower"] == pytest.approx(start, rel=1e-12)
    for number, (gamma, point) in enumerate(zip(FEW.gammas, record.summary["attacks"], strict=True)):
        moved, losses = ([row["attacks"][number][name] for row in record.rows] for name in ("squared_distance", "loss"))
        limit = (np.sqrt(1 / gamma) + 4 / 510) ** 2 * (1 + 1e-6)
        found = shift_lower_bound(moved, losses, each, limit=limit, bound=1.0)
        assert (point["rho_upper"], point["loss_lower"]) == pytest.approx(found, rel=1e-12)


def test_the_reader_states_the_accuracy_behind_a_curve_of_the_0_1_loss(target):
    curves = WorstCaseCurves(eps=(0.0, 0.1, 0.5), loss="0-1", ascent=FEW, draws=5, limit=30)
    record = run(curves, target, progress=no_progress)
    certified = [one for one in measurements(record) if one.quantity == WORST_CERTIFIED]
    assert certified[1].detail["statement"] == record.summary["statement"]
    for one in certified:
        shown = format_percent(max(0.0, 1 - one.value), "down")
        assert f"is right at least {shown}% of the time" in one.detail["statement"]
    assert audit_file(record.path, device="cpu", progress=no_progress)["problems"] == []


def test_attacked_points_are_8_bit_images_within_reach(target):
    record = run(WorstCaseCurves(eps=(0.1,), ascent=FEW, draws=2, limit=20), target, progress=no_progress)
    for row in record.rows:
        for gamma, attack in zip(FEW.gammas, row["attacks"], strict=True):
            levels = attack["squared_distance"] * 255**2
            assert levels == pytest.approx(round(levels), abs=1e-9)
            assert attack["squared_distance"] <= (np.sqrt(np.log(2) / gamma) + 4 / 510) ** 2 * 1.0001


def test_wrm_stands_beside_a_smooth_network_and_says_why_not_beside_another(target, tmp_path):
    record = run(
        WorstCaseCurves(eps=(0.0, 1e-3), ascent=FEW, draws=2, limit=10, wrm=True), target, progress=no_progress
    )
    assert "norms are not known" in record.summary["wrm"]["reason"]
    assert "wrm" not in record.summary["curve"][0]
    smooth = build_model(
        "cnn-small", shape=(1, 4, 4), classes=2, mean=[0.5], deviation=[0.3], activation="elu", seed=0
    ).eval()
    other = Target(smooth, target.data, sigma=0.25, name="smooth", folder=tmp_path, model_hash="1" * 16)
    record = run(
        WorstCaseCurves(eps=(0.0, 1e-3, 0.1), ascent=FEW, draws=2, limit=10, wrm=True), other, progress=no_progress
    )
    values = [at["wrm"] for at in record.summary["curve"]]
    x, y = to_unit(target.data.images[:10]), target.data.labels[:10]
    clean = torch.nn.functional.cross_entropy(smooth(x), y).item()
    assert clean <= values[0] < clean + 0.05
    assert values[0] < values[1] < values[2]
    # Beyond tiny shifts the smallest concave price alone costs more than any loss is worth.
    assert values[2] > 1.0 + clean


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gammas": ()}, "gammas must be from 1e-12 to 1,000,000,000, at least one, got none"),
        ({"gammas": (1.0, -2.0)}, "gammas must be from 1e-12 to 1,000,000,000, at least one, got 1 -2"),
        ({"steps": 0}, "steps must be >= 1, got 0"),
        ({"inner_draws": 0}, "inner_draws must be >= 1, got 0"),
    ],
)
def test_bad_ascents_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Ascent(**settings)
