"""What the pages of results claim in words is what the tables carry; other tests keep those fresh."""

import csv
from pathlib import Path
from statistics import fmean

from reproduction.other_authors import published as other_authors
from reproduction.runner import place
from reproduction.seeds import (
    DISTILLED,
    TAUGHT,
    average_radius,
    certified_outcomes,
    decided_record,
    measured_record,
    shares,
)
from rhobust.files import read_json
from rhobust.formatting import format_number
from rhobust.measurements import CERTIFIED, ROBUST, SHIFT, contradictions, measurements, outcomes, read_finished
from rhobust.records import read_record, read_rows, record_paths
from rhobust.stats import share_difference

RESULTS = Path(__file__).parent.parent / "results"


def made(name):
    """A table or a figure, as numbers."""
    return read_json(place(name, RESULTS))


def differences(table):
    """What a table of differences shows, by what names its rows and columns."""
    return {tuple(line["keys"]): {cell["column"]: cell["ours"][0] for cell in line["cells"]} for line in table["lines"]}


def carried(apart):
    """1 if the interval is above 0, -1 if it is below, 0 if it contains 0."""
    return (apart["low"] > 0) - (apart["high"] < 0)


def robust_differences(ours, theirs, radii):
    """Robust accuracy of one record less that of another on the same images, however each was attacked."""
    found = []
    for at in radii:
        one, other = (outcomes(record, ROBUST, at) for record in (ours, theirs))
        assert one.keys() == other.keys()
        apart = share_difference([one[image] for image in one], [other[image] for image in one])
        found.append({"radius": at, **apart.as_row()})
    return found


def test_our_attack_is_about_as_strong_as_autoattack():
    """docs/results/cifar10.md says by how many images less or more."""
    kinder = {}
    for line in made("table-autoattack")["lines"]:
        for cell in line["cells"]:
            auto, ours = cell["ours"]
            assert auto["n"] == ours["n"] == 500
            kinder[line["keys"][0], cell["column"]] = round(500 * (ours["value"] - auto["value"]))
    bare = {key: more for key, more in kinder.items() if key[0] in ("PGD", "TRADES")}
    assert {key: more for key, more in kinder.items() if more > 0 and key not in bare} == {("SmoothAdv", "0.92"): 1}
    attacked = [more for (_, radius), more in bare.items() if radius != "0"]
    assert (min(attacked), max(attacked)) == (1, 4)


def test_the_matched_price_is_ahead_at_half_a_unit_and_nowhere_behind_up_to_one_and_a_quarter():
    """docs/results/ and the README say so of PGD, TRADES and SmoothAdv."""
    lines = {keys[0]: cells for keys, cells in differences(made("table-pairs")).items()}
    for name, ahead in (("PGD", "0.0220"), ("TRADES", "0.0175"), ("SmoothAdv", "0.0275")):
        assert lines[name]["0"]["value"] >= 0
        assert format_number(lines[name]["0.5"]["value"], 4, "nearest") == ahead
        assert lines[name]["0.5"]["low"] > 0
        assert all(apart["high"] > 0 for at, apart in lines[name].items() if float(at) <= 1.25)
    assert lines["PGD"]["0.92"]["low"] > 0
    assert all(lines[name]["0.92"]["low"] < 0 for name in ("TRADES", "SmoothAdv"))
    assert all(lines["TRADES"][at]["high"] < 0 for at in ("1.5", "1.75"))


def test_what_the_settings_do_is_what_the_intervals_carry():
    """docs/results/ and docs/holds.md name every setting that makes a difference, and no other."""
    told = {
        ("ResNet-18", "relu", "NAL, damped", "0.2", "4", "1"): {"natural": -1.9},
        ("ResNet-18", "relu", "NAL, damped", "0.1", "2", "1"): {"white-box (EOT-PGD) at 0.92": -2.2},
        ("ResNet-18", "relu", "NAL, damped", "0.1", "8", "1"): {"natural": -1.7, "white-box (EOT-PGD) at 0.92": -1.7},
        ("ResNet-18", "relu", "NAL, damped", "0.1", "4", "4"): {"white-box (EOT-PGD) at 0.5": 1.4},
        ("ResNet-18", "relu", "WRM", "", "15", ""): {"white-box (EOT-PGD) at 0.92": -1.7},
        ("ResNet-18", "elu", "NAL, damped", "0.1", "4", "1"): {
            "natural": -4.1,
            "white-box (EOT-PGD) at 0.92": -3.0,
            "certified at 0.25": -2.8,
        },
        ("ResNet-18", "elu", "WRM", "", "15", ""): {"natural": -1.6, "white-box (EOT-PGD) at 0.5": -1.4},
        ("VGG-16", "relu", "NAL, damped", "0.1", "4", "1"): {
            "natural": -4.7,
            "white-box (EOT-PGD) at 0.5": -2.0,
            "white-box (EOT-PGD) at 0.92": -2.0,
            "certified at 0.25": -4.0,
        },
        ("VGG-16", "elu", "NAL, damped", "0.1", "4", "1"): {
            "white-box (EOT-PGD) at 0.5": -2.7,
            "white-box (EOT-PGD) at 0.92": -2.1,
        },
        ("VGG-16", "elu", "WRM", "", "15", ""): {"natural": -1.9},
    }
    apart = differences(made("table-variations-pairs"))
    assert sum(len(cells) for cells in apart.values()) == 48
    one_step = apart.pop(("ResNet-18", "relu", "NAL, damped", "0.1", "1", "1"))
    assert all(cell["high"] < -0.15 for cell in one_step.values())
    for keys, cells in apart.items():
        found = {column: round(100 * cell["value"], 1) for column, cell in cells.items() if carried(cell)}
        assert found == told.get(keys, {}), keys


def test_on_tiny_imagenet_the_protocol_makes_the_ranking():
    """docs/results/ and docs/holds.md say so."""
    apart = differences(made("table-tiny-pairs"))
    signs = {name: {column: carried(cell) for column, cell in apart[name,].items()} for name in ("TRADES", "SmoothAdv")}
    attacks = ("natural", "PGD-20 at 0.93", "white-box (EOT-PGD) at 0.5", "white-box (EOT-PGD) at 0.93")
    assert [signs["TRADES"][column] for column in attacks] == [-1, 1, -1, -1]
    assert [signs["SmoothAdv"][column] for column in attacks] == [1, 1, 0, 0]
    assert signs["SmoothAdv"]["certified at 0.25"] == 0
    assert carried(apart["Smoothing",]["certified at 0.25"]) == 1


def test_the_paper_s_attack_is_weaker_on_the_solver_that_converges_than_one_from_outside(published):
    """docs/results/ and docs/holds.md say so, and that of the other networks the opposite is true."""
    matrix = made("fig-transfer-short")
    names, cells = matrix["names"], matrix["cells"]
    folder = published("cifar10", "mnist", "tiny-imagenet-50")
    last = names.index("NAL, damped")
    for column, name in enumerate(names):
        records = [read_record(folder / cells[row][column]["record"]) for row in range(len(names))]
        for row, record in enumerate(records):
            if row != column:
                (more,) = robust_differences(record, records[column], [0.92])
                outside = names[row] in ("PGD", "TRADES", "SmoothAdv")
                assert carried(more) == (-1 if column == last and outside else 1), (names[row], name)


def test_noise_in_training_matters_and_noise_at_test_time_does_not_under_the_paper_s_attack(published):
    """docs/results/ and docs/holds.md say so, from which radius on, and what an attack that sees the noise does."""
    document, folder = made("fig1a"), published("mnist-small")
    blind, seeing = (
        {(curve["colour"], curve["kind"]): read_record(folder / curve["record"]) for curve in panel["curves"]}
        for panel in document["panels"]
    )
    radii = document["panels"][0]["curves"][0]["x"]
    noisy, bare = "tested with noise", "tested without noise"
    for method in ("STN", "Smoothing"):
        for kind in (noisy, bare):
            more = robust_differences(blind[method, kind], blind["Undefended", kind], radii)
            assert {row["radius"] for row in more if carried(row) == 1} == {row for row in radii if row >= 1}
            assert not any(carried(row) == -1 for row in more)
    for method in ("Undefended", "STN", "Smoothing"):
        for row in robust_differences(blind[method, noisy], blind[method, bare], radii):
            assert carried(row) == 0
            assert abs(row["difference"]) <= 0.02 + 1e-9
        less = robust_differences(seeing[method, noisy], blind[method, bare], radii)
        assert all(carried(row) == -1 for row in less if row["radius"] >= 1.25)


def test_most_numbers_of_mnist_are_reproduced():
    """docs/results/mnist.md says how many, and how close the methods are."""
    with (RESULTS / "tables" / "table-mnist.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for column, close in (("natural", 18), ("PGD-20 at eps", 13)):
        reported = [row for row in rows if row["column"] == column and row["reported"]]
        apart = [abs(float(row["reported"]) - float(row["value"])) for row in reported]
        assert (len(apart), sum(one <= 0.01 for one in apart)) == (18, close)
    trained = [row for row in rows if row["method"] in ("PGD", "TRADES", "SmoothAdv", "WRM", "NAL", "NAL, damped")]
    for eps in ("0.21", "0.34", "0.84"):
        values = [float(row["value"]) for row in trained if (row["eps"], row["column"]) == (eps, "PGD-20 at eps")]
        assert len(values) == 6
        assert max(values) - min(values) < 0.007


def listed(values, digits=3, direction="down", unit=""):
    """Numbers as a card lists them."""
    *first, last = (f"{format_number(value, digits, direction)}{unit}" for value in values)
    return f"{', '.join(first)} and {last}"


def test_a_card_says_what_its_records_give():
    """Certified and attacked accuracy, over-fitting, the average radius and the floors under shift."""
    folder = RESULTS / "pretrained" / DISTILLED
    card = (folder / "README.md").read_text(encoding="utf-8")
    decided = decided_record(folder)
    radii, sigma = decided.settings["radii"], decided.settings["sigma"]
    where = f"{', '.join(f'{radius:g}' for radius in radii[:-1])} and {radii[-1]:g}"

    def proved(record, images=None):
        shares = [outcomes(record, CERTIFIED, radius) for radius in radii]
        return [sum(share[index] for index in images or share) / len(images or share) for share in shares]

    assert f"{listed(proved(decided))} at radius {where}" in card
    (attack,) = map(read_finished, record_paths(folder, "attack-eot"))
    left = [one.value for one in measurements(attack) if one.quantity == ROBUST]
    same = sorted({row["index"] for row in attack.rows})
    assert f"{listed(left, 3, 'nearest')} stay right at {where}; of the same {len(same)} images" in card
    assert f"of the same {len(same)} images {listed(proved(decided, same))} are certified" in card
    assert contradictions([attack, decided]) == []
    (fitted,) = (
        one for one in map(read_finished, record_paths(folder, "certify-grid")) if one.settings["split"] != "test"
    )
    assert (
        f"on {len(fitted.rows)} training images (`{fitted.path.name.partition('.')[0]}`) {listed(proved(fitted))}"
        in card
    )
    average = average_radius(decided, measured_record(folder))
    low, high = format_number(average.low, 3, "down"), format_number(average.high, 3, "up")
    assert f"about {format_number(average.value, 3, 'nearest')} ({low} to {high})" in card
    for record in map(read_finished, record_paths(folder, "certify-shift")):
        found = [one for one in measurements(record) if one.quantity == SHIFT and not one.detail.get("baseline")]
        floors = {one.at: 100 * one.value for one in found}
        assert listed([floors[sigma * part] for part in (0.5, 1, 2)], 1, "down", "%") in card, record.settings["cost"]


def test_at_sigma_half_the_recipe_is_behind_the_field_and_fits_training_images_no_better(published):
    """docs/results/certified.md says so, and by how much."""
    (run,) = (published("cifar10-certified-0.5") / "runs").iterdir()
    decided, page = decided_record(run), (RESULTS.parent / "docs" / "results" / "certified.md").read_text()
    ends = {one.at: one.high for one in measurements(decided) if one.quantity == CERTIFIED}
    values = {one.at: one.value for one in measurements(decided) if one.quantity == CERTIFIED}
    others = {(one.method, one.log): one.curve for one in other_authors() if one.sigma == 0.5}
    rival = others["CAT-RS", "catrs"]
    assert all(rival[radius] > values[radius] for radius in values)
    assert [radius for radius in ends if rival[radius] > ends[radius]] == [0.0, 0.5, 1.5]
    best = {radius: max(others, key=lambda name, radius=radius: others[name][radius]) for radius in ends}
    assert [best[radius][0] for radius in (0.5, 1.0, 1.5)] == ["SmoothAdv", "Sun et al.", "Sun et al."]
    assert all(others[best[radius]][radius] > ends[radius] for radius in ends)
    aims = {0.5: 0.53, 1.0: 0.41, 1.5: 0.3}
    missed = listed([100 * (aims[radius] - values[radius]) for radius in aims], 1, "nearest")
    assert f"missed by {missed} points" in page

    def fitted(folder, record):
        noisy = [one["accuracy_under_noise"] for one in (read_rows(folder / "metrics.jsonl")[-1], record.summary)]
        return *(f"{format_number(100 * one, 1, 'nearest')}%" for one in noisy), 100 * (noisy[0] - noisy[1])

    pretrained = RESULTS / "pretrained" / DISTILLED
    train, test, apart = fitted(pretrained, read_finished(record_paths(pretrained, "certify-shift")[0]))
    assert f"the third network has {train} and {test}, a difference of {apart:.1f}." in page
    *_, apart = fitted(run, read_finished(record_paths(run, "certify-shift")[0]))
    assert f"of the test images, a difference of {format_number(apart, 1, 'nearest')} points" in page

    (attack,) = map(read_finished, record_paths(run, "attack-eot"))
    left = [100 * one.value for one in measurements(attack) if one.quantity == ROBUST]
    same = sorted({row["index"] for row in attack.rows})
    held = [100 * sum(outcomes(decided, CERTIFIED, at)[index] for index in same) / len(same) for at in values]
    assert f"{listed(left, 1, 'nearest', '%')} stay right" in page
    assert f"where {listed(held, 1, 'down', '%')} of the same images are certified" in page
    assert contradictions([attack, decided]) == []

    (earlier,) = (published("cifar10") / "runs").glob("nal-sigma0.5-gamma0.25-*")
    apart = []
    for radius in values:
        new, old = outcomes(decided, CERTIFIED, radius), outcomes(decided_record(earlier), CERTIFIED, radius)
        apart.append(share_difference([bool(new[index]) for index in old], [bool(one) for one in old.values()]))
    first, *rest = apart
    low, high = format_number(100 * first.low, 1, "down"), format_number(100 * first.high, 1, "up")
    assert f"{100 * first.value:.1f} points more at radius 0 ({low} to {high})" in page
    assert all(one.low < 0 < one.high for one in rest)

    for record in map(read_finished, record_paths(run, "certify-shift")):
        if record.settings["cost"] == "w2":
            found = [one for one in measurements(record) if one.quantity == SHIFT and not one.detail.get("baseline")]
            floors = {one.at: 100 * one.value for one in found}
            assert f"at least {listed([floors[eps] for eps in (0.25, 0.5, 1.0)], 1, 'down', '%')} of the time" in page


def test_the_second_pretrained_network_leads_by_no_more_than_its_easier_images_allow():
    """docs/results/certified.md says how much easier its images are, and where its lead is larger than that."""
    taught, distilled = (
        certified_outcomes(decided_record(RESULTS / "pretrained" / name)) for name in (TAUGHT, DISTILLED)
    )
    best = next(one.curve for one in other_authors() if (one.method, one.sigma) == ("Sun et al.", 0.25))
    easier, left = {}, {}
    for radius, images in taught.items():
        few = fmean(distilled[radius][index] for index in images)
        easier[radius] = few - fmean(distilled[radius].values())
        left[radius] = shares(taught)[f"{radius:g}"].low - easier[radius] - best[radius]
    assert (round(min(easier.values()), 3), round(max(easier.values()), 3)) == (0.005, 0.011)
    assert all(shares(taught)[f"{radius:g}"].low > best[radius] for radius in taught)
    assert left[0.5] > 0.002
    assert left[0.75] > 0.002
    assert abs(left[0.25]) < 0.001
    assert left[0.0] < -0.001


def test_the_second_generation_certifies_significantly_more_nowhere():
    """docs/results/certified.md says that nothing was gained, and that the smaller gamma does not show."""
    with (RESULTS / "tables" / "table-seeds.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["name"] == "NAL, mean of all seeds, minus its teacher"]
    found = {row["column"]: (float(row["low"]), float(row["high"])) for row in rows}
    assert found["0"][1] < 0
    assert all(low < 0 < high for column, (low, high) in found.items() if column != "0")
