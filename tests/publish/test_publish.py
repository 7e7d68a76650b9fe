"""A published folder: its layout, its card, and that it opens again."""

import json
import re
import shutil
import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import rhobust
from rhobust.cli import run
from rhobust.formatting import format_percent
from rhobust.measurements import ALL_AT_ONCE, CERTIFIED_AFTER, ROBUST, SHIFT, measurements
from rhobust.models import build_model
from rhobust.publish import publish_run
from rhobust.publish.card import PAPERS, plain
from rhobust.records import network_folder, read_record, record_paths
from tests.commands.conftest import document, refused, trained

ROOT = Path(__file__).parent.parent.parent
FEW = ["--limit", "12", "--quiet"]
VOTES = ["--classifier", "k-vote", "--votes", "3"]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A run with a record of each kind that a card shows."""
    folder = trained(tmp_path_factory, "method:nal --method.sigma 0.25 --method.steps 1")
    for words in (
        ["certify", "--radii", "0", "0.1", "0.25", "--n", "300", *FEW],
        ["certify-shift", "--eps", "0", "0.05", "0.1", "--draws", "4", *FEW],
        ["attack", "attack:eot", "--attack.steps", "2", "--radii", "0", "0.25", "--votes", "20", "--no-probe", *FEW],
        ["measure-shift", "--corruptions", "jpeg", "fog", "--severities", "1", "--draws", "4", *VOTES, *FEW],
    ):
        assert run([words[0], str(folder), *words[1:]]) == 0
    return folder


@pytest.fixture(scope="module")
def published(evaluated, tmp_path_factory):
    out = tmp_path_factory.mktemp("published") / "public"
    publish_run(evaluated, out, licence="mit", title="Digits, NAL")
    return out


@pytest.fixture
def folder(evaluated, tmp_path):
    """The run without the records whose bounds take a second each to prove."""
    slow = shutil.ignore_patterns("certify-shift-*", "corruptions-*")
    return Path(shutil.copytree(evaluated, tmp_path / "run", ignore=slow))


def front_matter(card):
    _, front, body = card.split("---\n", 2)
    return {key: json.loads(value) for key, _, value in (line.partition(": ") for line in front.splitlines())}, body


def test_the_layout_is_the_hubs(evaluated, published):
    files = {path.relative_to(published).as_posix() for path in published.rglob("*") if path.is_file()}
    assert files >= {"README.md", "config.json", "model.safetensors", "weights.json", "environment.json"}
    records = {path.name for path in record_paths(evaluated)}
    assert len(records) == 4
    assert {f"records/{name}" for name in records} <= files
    assert not [name for name in files if "/" not in name and name.endswith(".jsonl") and name != "metrics.jsonl"]
    for name in ("model.safetensors", "config.json"):
        assert (published / name).read_bytes() == (evaluated / name).read_bytes()
    for name in records:
        assert (published / "records" / name).read_bytes() == (evaluated / name).read_bytes()
        assert network_folder(published / "records" / name) == published
    front, _ = front_matter((published / "README.md").read_text())
    assert front["license"] == "mit"
    assert front["datasets"] == ["digits"]
    assert front["library_name"] == "rhobust"


def rows_of(card):
    """The rows of the card's tables of numbers."""
    cells = [[cell.strip() for cell in line.strip(" |").split(" | ")] for line in card.splitlines() if line[:2] == "| "]
    return [row for row in cells if len(row) == 6]


def test_every_number_of_the_card_is_the_readers(published):
    card = (published / "README.md").read_text()
    rows = rows_of(card)
    for path in record_paths(published):
        for one in measurements(read_record(path)):
            value = f"{format_percent(one.value, one.direction)}%"
            if one.quantity in (ROBUST, ALL_AT_ONCE, SHIFT):
                at = f"{one.at:g}"
                assert [row[5] for row in rows if row[:3] == [one.quantity, at, value]] == [one.status]
            elif one.quantity == CERTIFIED_AFTER:
                [row] = [row for row in rows if row[0] == one.detail["corruption"]]
                assert row[5] == value
    # What is no certificate is nowhere called proved.
    kinds = {"robust accuracy", "accuracy under noise", "base accuracy"}
    assert {row[5] for row in rows if row[0] in kinds} <= {"estimate", "upper bound"}
    assert {row[5] for row in rows if row[0].startswith("certified")} == {"proved"}


def test_a_radius_that_nothing_is_certified_at_is_no_answer(folder, tmp_path):
    """The middle radius of an evaluation may be beyond all certificates: at least 0.0% were said to be right there."""
    radii = ["0", "0.01", "3", "4", "5"]
    assert run(["certify", str(folder), "--radii", *radii, "--procedure", "fixed", "--n", "300", *FEW]) == 0
    publish_run(folder, tmp_path / "public")
    answers = (tmp_path / "public" / "README.md").read_text().split("## Threat model")[0]
    assert "at least 0.0%" not in answers
    assert "under every perturbation up to L2 distance 0.01 (smoothed classifier)" in answers


def test_the_card_says_threat_model_method_attacks_claims_and_limits(published):
    card = (published / "README.md").read_text()
    for words in (
        "# Digits, NAL",
        "NAL, σ 0.25",
        "standard deviation sigma 0.25",
        "EOT-PGD, 2 steps",
        "alpha 0.001",
        "With probability 99.9% over test points and noise, for every distribution within W2 distance",
        "Holds for 8-bit images.",
        "(smoothed classifier). Holds for 8-bit images.",
        "each for the classifier that takes the majority of 3 noisy votes and also for every other change that moves"
        " images no further. Holds for 8-bit images.",
        "an answer does not change, not that it is right",
        "| method.gamma |",
        "arXiv:2010.10987",
        "Data: digits.",
    ):
        assert words in card, words
    assert card.endswith("\n")


def test_a_published_folder_opens_again(evaluated, published, capsys, tmp_path):
    published = Path(shutil.copytree(published, tmp_path / "public"))
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rhobust.open_run(published).load_model()(x), rhobust.open_run(evaluated).load_model()(x))
    audits = document(capsys, ["audit", str(published), "--share", "0.2", "--quiet"])["audits"]
    assert sorted(audit["kind"] for audit in audits) == ["certify", "certify-shift"]
    assert all(audit["problems"] == [] and audit["redrawn"] > 0 for audit in audits)
    # The same evaluation finds its record, and computes nothing.
    before = sorted(published.rglob("*"))
    found = document(capsys, ["certify", str(published), "--radii", "0", "0.1", "0.25", "--n", "300", *FEW])
    assert Path(found["record"]).parent == published / "records"
    assert sorted(published.rglob("*")) == before
    # Another one is written next to the config.
    found = document(capsys, ["certify", str(published), "--radii", "0", "--n", "200", *FEW])
    assert Path(found["record"]).parent == published
    for path in [*record_paths(published, "certify-shift"), *record_paths(published, "corruptions")]:
        path.unlink()  # their bounds would be proved twice more
    report = document(capsys, ["report", str(published), "--out", str(published / "page.html")])
    assert report["left_out"] == []
    # And it can be published again.
    again = publish_run(published, published.parent / "again")
    assert len([name for name in again.files if name.startswith("records/") and ".jsonl" in name]) == 3


def test_a_forged_record_fails_its_audit_there_too(folder, tmp_path):
    published = publish_run(folder, tmp_path / "public").folder
    [path] = record_paths(published, "certify-grid")
    lines = path.read_text().splitlines()
    lines[1] = lines[1].replace('"count": ', '"count": 1')
    path.write_text("\n".join(lines) + "\n")
    assert run(["audit", str(published), "--share", "0", "--quiet"]) == 1


def test_damaged_and_unfinished_records_are_left_out_and_nothing_is_pushed(folder, tmp_path, capsys, hub):
    [certify] = record_paths(folder, "certify-grid")
    certify.write_text(certify.read_text().replace('"n": 300', '"n": 301', 1))
    [attack] = record_paths(folder, "attack")
    attack.write_text("".join(line + "\n" for line in attack.read_text().splitlines()[:-1]))
    assert run(["publish", str(folder), "--out", str(tmp_path / "public"), "--push", "me/model"]) == 1
    err = capsys.readouterr().err
    assert f"{certify.name} is left out" in err
    assert f"{attack.name} is left out: it is unfinished" in err
    assert "nothing was pushed" in err
    assert hub == []
    assert {path.name for path in record_paths(tmp_path / "public")}.isdisjoint({certify.name, attack.name})
    assert "robust accuracy" not in (tmp_path / "public" / "README.md").read_text().split("## Attacks")[0]


def test_what_cannot_be_published_is_one_line(folder, tmp_path, capsys):
    words = ["publish", str(folder), "--out"]
    assert "out must name a new or an empty folder" in refused(capsys, [*words, str(folder)])
    assert "private must come with --push" in refused(capsys, [*words, str(tmp_path / "a"), "--private"])
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    assert "must be unchanged since it was written" in refused(capsys, [*words, str(tmp_path / "a")])
    (folder / "weights.json").unlink()
    assert "must be about" in refused(capsys, [*words, str(tmp_path / "a")])
    weights.unlink()
    assert "must hold a finished run" in refused(capsys, [*words, str(tmp_path / "a")])
    assert not (tmp_path / "a").exists()


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Records of a network of the user's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "ownnet", raising=False)
    Path("ownnet.py").write_text(
        "from pathlib import Path\nfrom rhobust.models import build_model\nPath('ran').write_text('x')\n"
        "def make(num_classes):\n    return build_model('cnn-small', shape=(1, 8, 8), classes=num_classes, mean=[0.3],"
        " deviation=[0.4], activation='relu', seed=0)\n"
    )
    model = build_model(
        "cnn-small", shape=(1, 8, 8), classes=10, mean=[0.3], deviation=[0.4], activation="relu", seed=3
    )
    Path("elsewhere").mkdir()
    save_file({name: one.contiguous() for name, one in model.state_dict().items()}, "elsewhere/own.safetensors")
    named = ["--model", "ownnet.py:make", "--weights", "elsewhere/own.safetensors", "--sigma", "0.25"]
    words = ["certify", *named, "--data", "digits", "--out", "records-of-own", "--radii", "0", "--n", "100", *FEW]
    assert run(words) == 0
    Path("ran").unlink()
    return Path("records-of-own")


def test_a_network_of_ones_own(own, capsys):
    # A folder that was sent must not choose which file of ours is published.
    line = refused(capsys, ["publish", str(own), "--out", "public"])
    assert "would read elsewhere/own.safetensors" in line
    found = document(capsys, ["publish", str(own), "--out", "public", "--weights", "elsewhere/own.safetensors"])
    assert "model.safetensors" in found["files"]
    assert not Path("ran").exists()
    assert json.loads(Path("public/config.json").read_text())["weights"] == "model.safetensors"
    audits = document(capsys, ["audit", "public", "--model", "ownnet.py:make", "--quiet"])["audits"]
    assert [audit["problems"] for audit in audits] == [[]]
    assert "trained elsewhere" in Path("public/README.md").read_text()


def test_other_weights_and_pickles_are_refused(own, capsys):
    save_file({"other": torch.zeros(2)}, "other.safetensors")
    words = ["publish", str(own), "--out", "public", "--weights"]
    assert "must be about other.safetensors" in refused(capsys, [*words, "other.safetensors"])
    torch.save({"other": torch.zeros(2)}, "other.pt")
    assert "must be a safetensors file" in refused(capsys, [*words, "other.pt"])
    assert not Path("public").exists()


def test_received_names_are_text_in_the_card(folder, tmp_path):
    title = "a|b\n---\nlicense: mit\n# <script>[x](javascript:y)"
    publish_run(folder, tmp_path / "public", title=title)
    front, body = front_matter((tmp_path / "public" / "README.md").read_text())
    assert "license" not in front
    assert front["model_name"] == title
    assert "<script>" not in body
    assert "[x](" not in body.replace("\\[x\\](", "")
    assert plain("a*b_c`d`") == r"a\*b\_c\`d\`"


def test_local_paths_are_pointed_out(folder, tmp_path):
    environment = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps({**environment, "command": "rhobust train --out /home/me/x"}))
    found = publish_run(folder, tmp_path / "public")
    assert any("/home/me/x" in line and "public" in line for line in found.warnings)


def test_each_path_of_a_list_is_pointed_out(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    teachers = ["runs/near", "/home/me/a", "/home/me/b"]
    (folder / "config.json").write_text(json.dumps({**config, "teacher": teachers}))
    found = [line for line in publish_run(folder, tmp_path / "public").warnings if "(teacher)" in line]
    assert [line.split()[4] for line in found] == teachers[1:]


@pytest.fixture
def hub(monkeypatch):
    """A client of the Hub that only notes what it is asked."""
    calls = []

    class HfApi:
        def create_repo(self, name, **options):
            if name == "not/mine":
                raise PermissionError("403 Forbidden:\nyou may not write here")
            calls.append(("create", name, options))

        def upload_folder(self, **options):
            calls.append(("upload", sorted(path.name for path in Path(options["folder_path"]).iterdir()), options))
            return types.SimpleNamespace(commit_url=f"https://hub/{options['repo_id']}/commit/1")

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(HfApi=HfApi))
    return calls


def test_pushing(folder, tmp_path, capsys, hub):
    words = ["publish", str(folder), "--out", str(tmp_path / "public"), "--push", "me/model", "--private"]
    assert document(capsys, words)["pushed"] == "https://hub/me/model/commit/1"
    (_, name, made), (_, files, sent) = hub
    assert (name, made["private"], made["repo_type"]) == ("me/model", True, "model")
    assert {"README.md", "model.safetensors", "config.json", "records"} <= set(files)
    assert sent["repo_id"] == "me/model"
    line = refused(capsys, ["publish", str(folder), "--out", str(tmp_path / "other"), "--push", "not/mine"])
    assert "not/mine must take the folder" in line
    assert "403 Forbidden: you may not write here" in line


def test_a_missing_client_is_one_line(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    line = refused(capsys, ["publish", str(folder), "--out", str(tmp_path / "public"), "--push", "me/model"])
    assert "push needs the package huggingface-hub: python -m pip install '.[hub]'" in line


def test_the_papers_are_those_of_the_readme():
    table = re.findall(
        r"^\| `method:(\w+)` \|.*arxiv\.org/abs/([\d.]+)", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    assert {name: f"arXiv:{number}" for name, number in table} == {
        name: paper.split()[-1] for name, paper in PAPERS.items()
    }
