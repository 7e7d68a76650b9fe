"""Measurements are counted from rows, without torch; summaries that say otherwise are refused."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from report.folders import write_attack, write_certificate, write_losses, write_shift, write_transfer
from rhobust.archives import opened
from rhobust.bounds import failure_quantile
from rhobust.measurements import (
    ALL_AT_ONCE,
    AVERAGE_RADIUS,
    CERTIFIED,
    LABEL_VOTES,
    LOSS_UNDER_NOISE,
    ROBUST,
    SHIFT,
    UNDER_NOISE,
    WORST_CERTIFIED,
    WORST_ESTIMATE,
    WORST_LOWER,
    measurements,
    outcomes,
    read_finished,
)
from rhobust.records import read_record, record_paths
from rhobust.stats import mean, share

RESULTS = Path(__file__).parents[2] / "results"
MARGIN = np.array([0.1, 0.3, 0.6, 0.9, 2.0])


def by_place(record, quantity):
    return {one.at: one for one in measurements(record) if one.quantity == quantity}


def test_an_attack_is_an_upper_bound_and_radius_0_an_estimate(tmp_path):
    record = read_record(write_attack(tmp_path, "eot", MARGIN, scored="smoothed", sigma=0.25))
    found = by_place(record, ROBUST)
    expected = share(3, 5)
    assert (found[0.5].value, found[0.5].low, found[0.5].high) == (0.6, expected.low, expected.high)
    assert [found[at].status for at in (0.0, 0.5)] == ["estimate", "upper bound"]
    assert {one.direction for one in found.values()} == {"nearest"}
    assert found[0.5].detail == {"undecided": 0, "least": 0.6, "most": 0.6}
    assert outcomes(record, ROBUST, 0.5) == {0: 0.0, 1: 0.0, 2: 1.0, 3: 1.0, 4: 1.0}
    assert outcomes(record, LABEL_VOTES, 0.5) == {0: 20, 1: 20, 2: 90, 3: 90, 4: 90}


def test_certificates_are_proved_and_rounded_down(tmp_path):
    radii = np.array([0.1, 0.3, 0.6, -1.0])
    record = read_record(write_certificate(tmp_path, radii, sigma=0.25))
    found = by_place(record, CERTIFIED)
    assert [found[at].value for at in (0.0, 0.25, 0.5, 0.75)] == [0.75, 0.5, 0.25, 0.0]
    assert {(one.status, one.direction, one.n) for one in found.values()} == {("proved", "down", 4)}
    false = failure_quantile(4, 0.001, 0.001)
    assert by_place(record, ALL_AT_ONCE)[0.0].value == (3 - false) / 4
    average = by_place(record, AVERAGE_RADIUS)[None]
    proved = [row["radius"] for row in record.rows]
    assert proved == pytest.approx([0.1, 0.3, 0.6, 0.0], abs=0.005)
    assert average.value == pytest.approx(np.mean(proved))
    assert average.high == pytest.approx(mean(proved).high)
    assert [one.at for one in measurements(record, [0.2, 0.3]) if one.quantity == CERTIFIED] == [0.2, 0.3]
    assert outcomes(record, AVERAGE_RADIUS) == dict(enumerate(proved))


def test_shifts_losses_and_transfers(tmp_path):
    shift = read_record(write_shift(tmp_path, np.array([0, 10] * 50), sigma=0.25, baselines=True))
    assert by_place(shift, UNDER_NOISE)[0.0].value == 0.75
    own, baseline = (
        [one for one in measurements(shift) if one.quantity == SHIFT and ("baseline" in one.detail) == beside]
        for beside in (False, True)
    )
    assert {(one.status, one.direction, one.detail["cost"]) for one in own} == {("proved", "down", "w2")}
    assert [one.value for one in own] == [point["certified_accuracy"] for point in shift.summary["curve"]]
    assert [one.detail["statement"] for one in own] == [point["statement"] for point in shift.summary["curve"]]
    assert {(one.detail["baseline"], one.detail["cost"]) for one in baseline} == {
        ("ours", "w1"),
        ("kumar", "w1"),
        ("ours", "winf"),
        ("cohen", "winf"),
    }
    losses = read_record(write_losses(tmp_path))
    assert by_place(losses, LOSS_UNDER_NOISE)[0.0].value == pytest.approx(
        np.mean([0.25 + 0.01 * (i % 11) for i in range(50)])
    )
    directions = [
        by_place(losses, quantity)[0.1].direction for quantity in (WORST_CERTIFIED, WORST_LOWER, WORST_ESTIMATE)
    ]
    assert directions == ["up", "down", "nearest"]
    transfer = read_record(write_transfer(tmp_path, "beef", {"beef": MARGIN, "cafe": 2 * MARGIN}))
    found = {(one.detail["target"], one.at): one.value for one in measurements(transfer)}
    assert (found["beef", 0.5], found["cafe", 0.5]) == (0.6, 0.8)


@pytest.mark.parametrize("key", ["robust_accuracy", "certified_accuracy"])
def test_a_summary_that_says_otherwise_is_refused(tmp_path, key):
    attack = write_attack(tmp_path, "pgd", MARGIN, scored="base", sigma=None)
    certificate = write_certificate(tmp_path, MARGIN, sigma=0.25)
    record = read_record(attack if key == "robust_accuracy" else certificate)
    changed = json.loads(json.dumps(record.summary))
    changed[key][1]["accuracy"] += 0.2
    with pytest.raises(ValueError, match=r"must have the summary that its rows give, .* accuracy at radius 0\.25 is "):
        measurements(replace(record, summary=changed))
    changed[key][1] = {"radius": 9.0, "accuracy": 0.5}
    with pytest.raises(ValueError, match="must have the summary that its rows give"):
        measurements(replace(record, summary=changed))


def test_what_is_unfinished_changed_or_unknown(tmp_path):
    path = write_attack(tmp_path, "pgd", MARGIN, scored="base", sigma=None, finish=False)
    with pytest.raises(ValueError, match="must be finished, but it has 25 rows and no summary"):
        read_finished(path)
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    assert {one.n for one in measurements(read_record(path))} == {4}, "the last example lacks a radius"
    record = read_record(write_certificate(tmp_path, MARGIN, sigma=0.25))
    with pytest.raises(ValueError, match="must be as it was written, but it was changed"):
        measurements(replace(record, intact=False))
    with pytest.raises(ValueError, match=r"must be a record of accuracy, .* got 'dance'"):
        measurements(replace(record, kind="dance"))
    with pytest.raises(ValueError, match="an example must have one row, got 0 twice"):
        measurements(replace(record, rows=[*record.rows, record.rows[0]]))


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_every_published_record_has_the_summary_that_its_rows_give(every):
    """Bounds for distributions take a second each: a part here, all of them where there is time."""
    with opened(sorted((RESULTS / "records").glob("*.tar.xz"))) as archives:
        paths = [path for folder in archives.paths for path in record_paths(folder)]
        shifts = [path for path in paths if path.name.startswith("certify-shift")]
        others = [path for path in paths if path not in shifts]
        found = [measurements(read_finished(path)) for path in (*shifts[::every], *others[::every])]
    assert len(paths) > 300
    assert len(shifts) > 20
    assert all(found)


@pytest.mark.parametrize(
    "module", ["rhobust.measurements", "rhobust.report", "rhobust.commands.report", "rhobust.commands.compare"]
)
def test_records_are_read_without_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
