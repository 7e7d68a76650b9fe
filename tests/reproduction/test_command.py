"""python -m reproduction as a user calls it."""

import json

import pytest

from reproduction.__main__ import count, main
from reproduction.runner import plan
from tests.reproduction.conftest import store_in


def called(capsys, *arguments):
    code = main([*arguments, "--quiet", "--device", "cpu"])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_plan_of_the_whole_paper_starts_nothing(tmp_path, capsys):
    code, out, _ = called(capsys, "all", "--scale", "full", "--plan", "--out", str(tmp_path / "out"), "--json")
    told = json.loads(out)
    assert code == 0
    assert not (tmp_path / "out").exists()
    assert (told["scale"], told["total"]["runs"], told["total"]["runs_done"]) == ("full", 151, 0)
    assert len(told["work"]) == 20


def test_the_plan_is_a_table(tmp_path, capsys):
    code, out, _ = called(capsys, "theorem2", "table-elu", "--plan", "--out", str(tmp_path))
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["name", "runs", "done", "evaluations", "done"]
    assert [line.split()[0] for line in lines[1:3]] == ["theorem2", "table-elu"]
    assert lines[3].split()[:8] == ["all", "of", "these,", "each", "once", "0", "of", "12"]


def test_a_plan_knows_what_is_done(made, tiny):
    full = count(plan(["table-elu"], tiny), store_in(made))
    assert full["total"] == {"runs": 4, "runs_done": 4, "evaluations": 8, "evaluations_done": 8}


def test_what_is_there_is_drawn_and_what_is_missing_is_told(tmp_path, capsys):
    code, out, err = called(capsys, "theorem2", "--draw-only", "--out", str(tmp_path))
    assert code == 1
    assert str(tmp_path / "tables" / "theorem2.md") in out
    assert "is not trained" in out
    assert err == "reproduction: tables or figures have gaps, for 11 reasons: see the warnings\n"
    page = (tmp_path / "tables" / "theorem2.md").read_text()
    assert page.endswith("\n\nNot measured yet.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table3"], "names must be of all, ours, variants, table1, table2"),
        ([], "names must be of all, ours"),
        (["fig1d", "--scale", "small"], "fig1d must have a data set at the scale small, but has none"),
        (["ours", "variants", "--scale", "gpu"], "variants must be made in a call and a folder of their own"),
        (["all", "--plan", "--draw-only"], "--plan and --draw-only must not be given together"),
        (["all", "--plan", "--records", "there"], "--plan and --records must not be given together"),
        (["table1", "--records", "nowhere.tar.xz"], "nowhere.tar.xz must exist, but there is no such file"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    code, out, err = called(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
