"""Help without torch, with an example and groups; fractions; files and options in any order; did you mean."""

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rhobust.cli import COMMANDS, parse, run
from rhobust.commands.arguments import names_first, number, options_of
from rhobust.helptext import EXAMPLES
from tests.conftest import load_script

ROOT = Path(__file__).parent.parent.parent


def command_of(name):
    return importlib.import_module(f"rhobust.commands.{name.replace('-', '_')}").COMMAND


def tool():
    return load_script("docs/tools/help.py")


def test_the_stored_help_is_that_of_the_commands():
    found = tool()
    assert json.loads(found.stored().read_text()) == found.document(), "run python docs/tools/help.py"


def test_every_command_has_an_example():
    assert {name.split()[0] for name in EXAMPLES} == set(COMMANDS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_option_is_in_the_help_with_an_example(name, capsys):
    assert run([*name.split(), "--help"]) == run([*name.split(), "-h"]) == 0
    shown = capsys.readouterr().out
    assert f"\nexample: {EXAMPLES[name]}\n" in shown
    assert " ".join(shown.split()).count(f"xample: {EXAMPLES[name]}") == 2, "each help has it once"
    assert all(f"  {title}" not in shown for title in ("{None}", "(default: None)", "(default: '')"))
    assert [line for line in shown.splitlines() if len(line) > 100 and not line.startswith("example:")] == []
    if " " not in name and isinstance(command_of(name), type):
        plain = [option.name for option in options_of(command_of(name)) if "." not in option.name]
        assert plain
        assert [option for option in plain if f"\n  {option}" not in shown] == []
        assert "\nhow it runs:\n" in shown


def test_a_paragraph_of_the_help_is_one_paragraph(capsys):
    """Also where a line of the docstring begins with a number, a bracket or a space; names stay whole."""
    for name, whole in (
        ("monitor", "Exit code 1 means that"),
        ("conform", "calibration points and noise (theory page, section 15)."),
        ("curves", "whose cost is bounded from above and whose loss"),
        ("data get", "tiny-imagenet-50 or hf-datasets:ID"),
    ):
        assert run([*name.split(), "--help"]) == 0
        paragraphs = capsys.readouterr().out.split("\n\n")
        assert any(whole in " ".join(one.split()) for one in paragraphs), name
    assert run(["predict", "--help"]) == 0
    assert "(default: )" not in capsys.readouterr().out


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_parse(name):
    command = name.split()[0]
    assert EXAMPLES[name].startswith(f"rhobust {name}")
    parse(command_of(command), command, EXAMPLES[name].split()[2:])


@pytest.mark.parametrize("name", ["certify", "data check"])
def test_help_imports_neither_torch_nor_the_parser(name):
    code = (
        f"import sys; from rhobust.cli import run; run([*{name.split()}, '--help']);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'tyro', 'rich')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_fractions_are_numbers():
    assert number("8/255") == 8 / 255
    assert number("-1e-3") == -1e-3
    for wrong in ("1/0", "a/b", "1/2/3", ""):
        with pytest.raises(ValueError, match=r"."):
            number(wrong)
    command = parse(command_of("attack"), "attack", ["run", "--radii", "0", "8/255", "--sigma", "1/4"])
    assert command.evaluation.radii == (0, 8 / 255)
    assert command.target.sigma == 0.25


def test_names_and_options_come_in_any_order():
    predict = command_of("predict")
    usual = parse(predict, "predict", ["run", "a.png", "b.png", "--n", "200", "--json"])
    for words in (["run", "--n", "200", "a.png", "--json", "b.png"], ["--json", "--n=200", "run", "a.png", "b.png"]):
        assert parse(predict, "predict", words) == usual
    attack = command_of("attack")
    assert parse(attack, "attack", ["--radii", "0", "1/2", "run", "attack:pgd", "--attack.steps", "3"]) == parse(
        attack, "attack", ["run", "attack:pgd", "--attack.steps", "3", "--radii", "0", "0.5"]
    )
    unknown = ["--no-such", "x", "run"]
    assert names_first(attack, unknown) == unknown


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["certfy"], "did you mean certify?"),
        (["certify", "run", "--eps", "8/255"], "did you mean --radii?"),
        (["certify-shift", "run", "--radii", "0.1"], "did you mean --eps?"),
        (["predict", "run", "a.png", "--sgima", "1"], "did you mean --sigma?"),
        (["attack", "run", "--limt", "3"], "did you mean --limit?"),
        (["train", "nal", "--data", "digits", "--model", "cnn"], "did you mean method:nal?"),
        (["attack", "run", "--attack.setps", "3"], "did you mean --attack.steps?"),
        (["attack", "run", "pgd"], "did you mean attack:pgd?"),
        (["train", "method:nall", "--data", "digits"], "did you mean method:nal?"),
        (["train", "method:wmr", "--data", "digits"], "did you mean method:wrm?"),
        (["compare", "a", "b", "--format", "latx"], "'latex'); did you mean latex?"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_one_that_was_meant(words, meant, capsys):
    assert run(words) == 2
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["attack", "run", "--zzzzzz", "3"], ["train", "method:foo", "--data", "digits"], ["attack", "run", "attack:cw"]],
)
def test_nothing_is_suggested_for_what_resembles_nothing(words, capsys):
    assert run(words) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_the_choices_of_an_option_leave_out_none(capsys):
    assert run(["certify", "run", "--procedure", "mine"]) == 2
    found = capsys.readouterr().err
    assert "'sequential'" in found
    assert "None" not in found


def test_samples_is_n_under_another_name_that_torchrun_leaves_alone():
    for given in (["--samples", "300"], ["--samples=300"], ["--n", "300"]):
        assert parse(command_of("certify"), "certify", ["run", *given]).evaluation.n == 300
        assert parse(command_of("predict"), "predict", [*given, "run", "image.png"]).n == 300


def test_words_are_taken_in_other_spellings():
    from rhobust.commands.attack import COMMAND

    for spelt, norm in (("L2", "l2"), ("l2", "l2"), ("L-inf", "linf"), ("LINF", "linf")):
        for given in (["--attack.norm", spelt], [f"--attack.norm={spelt}"]):
            found = parse(COMMAND, "attack", ["run", "attack:pgd", *given])
            assert found.evaluation.attack.norm == norm
    with pytest.raises(ValueError, match=r"Expected one of \('l2', 'linf'\)"):
        parse(COMMAND, "attack", ["run", "attack:pgd", "--attack.norm", "L3"])
