"""The top of the page: where the models are quoted, what they are called, and what is no problem."""

import json
import re

import numpy as np
import pytest

from report.folders import write_attack, write_certificate, write_run
from rhobust.records import RecordWriter
from rhobust.report.answers import BASE_NETWORKS, answers
from rhobust.report.gather import gather, method_name, unbroken
from rhobust.report.overview import entries, headline, subjects
from rhobust.report.page import render


def test_a_model_is_quoted_where_it_has_something_proved(tmp_path):
    """Nothing is certified at the attacked radii: the sentence takes the largest radius that keeps half."""
    run = write_run(tmp_path / "run", sigma=None)
    write_attack(run, "eot", np.full(200, 0.9), scored="smoothed", sigma=0.05)
    write_certificate(run, np.where(np.arange(200) < 150, 0.12, 0.06), sigma=0.05, listed=[0.0, 0.05, 0.1])
    [found] = gather([run]).runs
    at = headline([found])
    assert at.radius == 0.25, "the smallest at which it was attacked"
    sentence = entries([found], at)[0].rows[0].guarantee
    # 150 of 200 less the three that may be false.
    assert (sentence.number, sentence.proved) == ("73.5%", True)
    assert "of L2 length up to 0.1 (confidence 99.9%)" in sentence.rest


def test_the_users_own_network_is_called_by_its_name(tmp_path):
    run = write_run(tmp_path / "run")
    own = {"rhobust": "0.1.0", "model": "mynet:make", "weights": "weights.safetensors", "data": "digits"}
    (run / "config.json").write_text(json.dumps(own))
    [found] = gather([run]).runs
    assert method_name(found) == "mynet:make, trained elsewhere, smoothed with σ 0.25"


def test_the_users_own_network_has_the_noise_of_its_config_before_anything_is_certified(tmp_path):
    """It was said to be a network without smoothing, for which nothing can be guaranteed."""
    own = {"rhobust": "0.1.0", "model": "mynet:make", "weights": None, "data": "digits", "sigma": 0.5}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(own))
    gathered = gather([tmp_path / "run"])
    assert [one.sigma for one in subjects(gathered.runs[0])] == [0.5]
    page = render(gathered, (), title="page")
    assert "nothing is guaranteed yet: no finished certificate is in this folder" in page
    assert BASE_NETWORKS not in page


def test_models_are_compared_where_most_were_attacked(tmp_path):
    """One attack at few radii, a transfer attack say, does not move the page to another radius."""
    runs = [write_run(tmp_path / name, name=name) for name in ("one", "two")]
    write_attack(runs[0], "pgd", np.full(200, 0.2), scored="base", sigma=None, radii=[0.0, 0.1], seed=3)
    found = gather(runs).runs
    assert headline(found) == headline([found[1]])


def test_records_of_the_papers_claims_are_no_problem(tmp_path):
    run = write_run(tmp_path / "run")
    writer = RecordWriter(run, "curvature", "", {"seed": 0})
    writer.append([{"index": 0, "curvature": 0.1}])
    writer.finish({"largest": 0.1})
    assert gather([run]).problems == []


def test_the_users_own_network_is_named_by_its_last_word(tmp_path):
    run = write_run(tmp_path / "nal-digits-my.module-factory-1234")
    config = json.loads((run / "config.json").read_text())
    del config["name"]
    (run / "config.json").write_text(json.dumps(config | {"model": "my.module:factory"}))
    assert gather([run]).runs[0].label == "nal-digits-factory-1234"


def unnamed(folder, **more):
    """A run whose folder's name nobody chose."""
    run = write_run(folder, **more)
    config = json.loads((run / "config.json").read_text())
    del config["name"]
    (run / "config.json").write_text(json.dumps(config))
    return run


def test_a_name_with_a_hash_gives_way_to_the_method(tmp_path):
    first, second = (unnamed(tmp_path / f"nal-digits-cnn-small-{digest}") for digest in ("0123abcd", "89abcdef"))
    other = unnamed(tmp_path / "gaussian-digits-cnn-small-0123abcd", kind="gaussian", sigma=0.5)
    chosen = unnamed(tmp_path / "nal-best-20261115")
    labels = [run.label for run in gather([first, other, chosen, second]).runs]
    nal = "NAL, σ 0.25, γ 0.5"
    assert labels == [f"{nal}, 0123abcd", "Gaussian, σ 0.5", "nal-best-20261115", f"{nal}, 89abcdef"]
    [alone] = gather([first]).runs
    at = headline([alone])
    shown = entries([alone], at)[0]
    assert (shown.label, shown.method) == (nal, "nal-digits-cnn-small-0123abcd")
    [named] = gather([chosen]).runs
    assert (entries([named], at)[0].label, entries([named], at)[0].method) == ("nal-best-20261115", nal)


def test_models_of_the_same_method_are_told_apart_by_what_differs(tmp_path):
    def run(number, method=(), **changes):
        folder = unnamed(tmp_path / f"nal-digits-{changes.get('model', 'cnn-small')}-{number:08x}")
        config = json.loads((folder / "config.json").read_text())
        config["method"] |= dict(method)
        (folder / "config.json").write_text(json.dumps(config | changes))
        return folder

    folders = [
        run(0, seed=0),
        run(1, seed=1),
        run(2, seed=0, data="mnist", model="cnn"),
        run(3, seed=0, data="mnist", model="resnet18"),
        run(4, seed=0, method={"agreement": 10.0}),
        run(5, seed=0, method={"gamma": 1.0}),
    ]
    nal = "NAL, σ 0.25, γ 0.5"
    assert [run.label for run in gather(folders).runs] == [
        f"{nal}, digits, seed 0",
        f"{nal}, digits, seed 1",
        f"{nal}, mnist, cnn",
        f"{nal}, mnist, resnet18",
        f"{nal}, digits, agreement 10",
        "NAL, σ 0.25, γ 1, digits",
    ]
    assert [run.label for run in gather(folders[4:]).runs] == [nal, "NAL, σ 0.25, γ 1"]


def test_a_symbol_stays_with_its_value_in_a_name_and_below_it(tmp_path):
    shown = "NAL, σ\u00a00.25, γ\u00a00.5"
    assert unbroken("NAL, σ 0.25, γ 0.5") == shown
    called, nameless = unnamed(tmp_path / "best"), unnamed(tmp_path / "nal-digits-cnn-small-0123abcd")
    page = render(gather([called, nameless]), (), title="Two models")
    assert f'<span class="method">{shown}</span>' in page
    # The choice of a model and the table of all numbers are searched: there a plain space is a plain space.
    searched = r"<(script|svg|select).*?</\1>|<tr data-run=[^\n]*"
    assert "σ 0.25" not in re.sub(searched, "", page, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("solver", "words"), [("paper", "NAL, the paper’s solver"), ("search", "NAL, best iterate"), ("damped", "NAL")]
)
def test_a_solver_that_is_not_the_default_is_named(tmp_path, solver, words):
    run = write_run(tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    config["method"]["inner"] = solver
    (run / "config.json").write_text(json.dumps(config))
    assert method_name(gather([run]).runs[0]) == f"{words}, σ 0.25, γ 0.5"


def test_a_class_of_the_users_own_is_called_by_its_name(tmp_path):
    run = write_run(tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    config["method"]["kind"] = "mine.methods:Focal"
    (run / "config.json").write_text(json.dumps(config))
    write_attack(run, "mine.attacks:Flip", np.full(200, 0.2), scored="base", sigma=None, seed=3)
    [found] = gather([run]).runs
    assert method_name(found) == "Focal, σ 0.25, γ 0.5"
    assert "Flip" in [record.attack_name.partition(",")[0] for record in found.records]


def test_clean_accuracy_is_that_over_the_most_images(tmp_path):
    run = write_run(tmp_path / "run")
    few = write_attack(run, "autoattack", np.full(50, 0.1), scored="smoothed", sigma=0.25)
    assert few.name < next(run.glob("attack-eot-*")).name, "it is read first"
    [found] = gather([run]).runs
    clean = entries([found], headline([found]))[0].rows[0].clean
    assert "n\u00a0=\u00a0200" in clean.detail[1]


def test_the_base_network_has_a_row_of_its_own_and_numbers_are_never_mixed(tmp_path):
    run = write_run(tmp_path / "run")
    [found] = gather([run]).runs
    smoothed, base = entries([found], headline([found]))[0].rows
    assert base.clean.detail[0] == "base network"
    assert base.robust.detail[0].startswith("PGD")
    assert base.certified.number is None
    assert "smoothed" in smoothed.clean.detail[0]
    assert not smoothed.robust.detail[0].startswith("PGD")
    page = render(gather([run]), (), title="One model")
    assert page.count('<tr class="base"') == 1


def test_a_smoothed_classifier_that_was_not_attacked_borrows_no_number_of_its_base_network(tmp_path):
    run = write_run(tmp_path / "run")
    for path in run.glob("attack-*"):
        path.unlink()
    write_attack(run, "pgd", np.full(80, 0.6), scored="base", sigma=None)
    [found] = gather([run]).runs
    smoothed, base = entries([found], headline([found]))[0].rows
    assert smoothed.robust.number is None
    assert smoothed.robust.detail == ("not attacked",)
    assert base.robust.number is not None


def test_a_diagnosis_is_shown_as_text(tmp_path):
    run = write_run(tmp_path / "run")
    finding = {"cause": "normalisation", "text": "<b>Trained</b> on others.", "remedy": "Pass mean."}
    (run / "diagnosis.json").write_text(json.dumps({"findings": [finding, 3]}))
    page = render(gather([run]), (), title="One model")
    assert "<strong>Diagnosis.</strong> &lt;b&gt;Trained&lt;/b&gt; on others. Pass mean." in page
    for damaged in ("[]", "{", '{"findings": 3}'):
        (run / "diagnosis.json").write_text(damaged)
        assert "Diagnosis." not in render(gather([run]), (), title="One model")


def test_noise_levels_and_data_sets_are_never_mixed_in_a_row(tmp_path):
    run = write_run(tmp_path / "run")
    write_certificate(run, np.linspace(0.0, 1.0, 50), sigma=0.5)
    write_certificate(run, np.linspace(0.0, 0.4, 30), sigma=0.25, data="photos", data_fingerprint="beef")
    [found] = gather([run]).runs
    rows = {row.who: row for row in entries([found], headline([found]))[0].rows}
    assert list(rows) == [
        "smoothed, σ 0.25, on digits",
        "smoothed, σ 0.5, on digits",
        "base network, on digits",
        "smoothed, σ 0.25, on photos",
    ]
    assert [row.certified.number and row.certified.number.n for row in rows.values()] == [200, 50, None, 30]
    # What was attacked with one noise level says nothing about another one, nor about other images.
    attacked = [row.robust.number is not None for row in rows.values()]
    assert attacked == [True, False, True, False]


def test_different_images_under_one_name_are_told_apart(tmp_path):
    run = write_run(tmp_path / "run")
    write_certificate(run, np.linspace(0.0, 0.4, 30), sigma=0.25, data_fingerprint="0123456789")
    [found] = gather([run]).runs
    assert len({subject.data for subject in subjects(found)}) == 2


def test_the_arithmetic_is_named_where_a_row_has_several(tmp_path):
    run = write_run(tmp_path / "run")
    [found] = gather([run]).runs
    shown = entries([found], headline([found]))[0].rows[0]
    assert not any("float32" in line for number in shown.numbers for line in number.detail)
    write_attack(run, "eot", np.full(300, 0.1), scored="smoothed", sigma=0.25, dtype="bfloat16")
    [found] = gather([run]).runs
    shown = entries([found], headline([found]))[0].rows[0]
    assert "in bfloat16" in shown.robust.detail
    assert "in float32" in shown.certified.detail


def test_three_questions_are_answered_and_every_sentence_is_told_once(tmp_path):
    runs = [write_run(tmp_path / name, name=name, strength=strength) for name, strength in (("a", 0.5), ("b", 0.7))]
    found = gather(runs)
    at = headline(found.runs)
    accurate, proved, attacked = answers(entries(found.runs, at), at)
    assert [(line.label, line.who) for line in accurate.parts[0].lines] == [
        (name, who) for name in "ab" for who in ("smoothed, σ 0.25", "base network")
    ]
    assert [line.label for line in proved.parts[0].lines] == ["a", "b"]
    assert proved.parts[0].text.startswith("Right at least this often under every distribution of 8-bit images")
    assert proved.parts[-1].text == BASE_NETWORKS
    for line in attacked.parts[0].lines:
        assert re.fullmatch(r"[\d.]+% → [\d.]+%", line.shown)
    page = render(found, (), title="Two models")
    for part in (*accurate.parts, *proved.parts, *attacked.parts):
        assert page.count(part.text) == 1


def test_a_model_without_a_certificate_is_named_and_warnings_are_told_once(tmp_path):
    runs = [write_run(tmp_path / name, name=name, warnings=("zero gradients",)) for name in ("a", "b")]
    for path in [*runs[1].glob("certify-*")]:
        path.unlink()
    found = gather(runs)
    at = headline(found.runs)
    _, proved, attacked = answers(entries(found.runs, at), at)
    assert proved.parts[1].text == (
        "b, smoothed, σ 0.25: nothing is guaranteed yet: no finished certificate is in this folder."
    )
    assert attacked.parts[0].warnings == ("zero gradients",)
    assert not any(line.warnings for line in attacked.parts[0].lines)


def test_a_warning_about_an_attack_is_none_about_the_accuracy(tmp_path):
    """An accuracy is read from an attack's record where no other has it; images that were seen concern it too."""
    seen = "3 of the 200 test images were trained on: the numbers say little of other images"
    runs = [write_run(tmp_path / "a", warnings=("zero gradients", seen))]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_text((runs[0] / "config.json").read_text())
    write_attack(tmp_path / "b", "pgd", np.full(200, 0.4), scored="base", sigma=None, finish=False)
    found = gather([*runs, tmp_path / "b"])
    at = headline(found.runs)
    accurate, _, attacked = answers(entries(found.runs, at), at)
    smoothed, base, unfinished = accurate.parts[0].lines
    assert (smoothed.warnings, base.warnings) == ((seen,), (seen,))
    assert unfinished.warnings == ("unfinished: 200 examples so far",)
    assert [line.warnings for line in attacked.parts[0].lines] == [
        ("zero gradients", seen),
        ("zero gradients", seen),
        ("unfinished: 200 examples so far, and the attack was not probed",),
    ]


def test_a_line_does_not_break_within_an_option(tmp_path):
    run = write_run(tmp_path / "a")
    finding = {"text": "Few samples.", "remedy": "Pass --effort full."}
    (run / "diagnosis.json").write_text(json.dumps({"findings": [finding]}))
    page = render(gather([run]), (), title="One model")
    assert 'Few samples. Pass <span class="option">--effort</span> full.' in page


def test_the_command_of_a_training_does_not_break_within_an_option(tmp_path):
    run = write_run(tmp_path / "a")
    environment = json.loads((run / "environment.json").read_text()) | {"command": "rhobust train --data <digits>"}
    (run / "environment.json").write_text(json.dumps(environment))
    page = render(gather([run]), (), title="One model")
    assert 'rhobust train <span class="option">--data</span> &lt;digits&gt;' in page


def test_the_same_diagnosis_of_several_models_is_told_once(tmp_path):
    runs = [write_run(tmp_path / name, name=name) for name in ("a", "b")]
    for run in runs:
        (run / "diagnosis.json").write_text(json.dumps({"findings": [{"text": "Few samples.", "remedy": ""}]}))
    page = render(gather(runs), (), title="Two models")
    assert page.count("Few samples.") == 1
    assert "<strong>Diagnosis of a; b.</strong> Few samples." in page
