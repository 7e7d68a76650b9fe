"""Records signed with a key of OpenSSH, and audits that ask for signatures."""

import json
import shutil
import subprocess

import numpy as np
import pytest

from rhobust.cli import run
from rhobust.signatures import signer
from tests.fuzz.changed_bytes import write_folder
from tests.report.folders import write_attack, write_certificate

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Two keys, and a file that allows the first."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "theirs"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    (folder / "allowed").write_text(f"somebody@example.org {(folder / 'ours.pub').read_text()}")
    return folder


@pytest.fixture
def folder(tmp_path):
    folder = write_folder(tmp_path / "run")
    write_certificate(folder, np.array([0.1, 0.3]), sigma=0.25)
    write_attack(folder, "eot", np.array([0.1, 0.3]), scored="smoothed", sigma=0.25)
    return folder


def audited(folder, keys, capsys):
    """Exit code of an audit that asks for signatures, and what it says of each record."""
    signers = str(keys / "allowed")
    code = run(["audit", str(folder), "--share", "0", "--signers", signers, "--json", "--quiet", "--device", "cpu"])
    return code, json.loads(capsys.readouterr().out)["audits"]


def sign(folder, keys, name="ours"):
    return run(["sign", str(folder), "--key", str(keys / name), "--quiet"])


def test_signed_records_are_confirmed_with_their_signer(folder, keys, capsys):
    assert sign(folder, keys) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert sign(folder, keys) == 0, "an older signature is replaced"
    capsys.readouterr()
    code, [audit] = audited(folder, keys, capsys)
    assert (code, audit["signed_by"], audit["problems"]) == (0, "somebody@example.org", [])
    assert run(["audit", str(folder), "--share", "0", "--signers", str(keys / "allowed"), "--device", "cpu"]) == 0
    assert "confirmed, signed by somebody@example.org" in capsys.readouterr().out


def test_missing_signatures_and_those_of_others_fail(folder, keys, capsys):
    code, audits = audited(folder, keys, capsys)
    assert (code, len(audits)) == (1, 2)
    assert all("it has no signature" in audit["problems"][0] for audit in audits)
    assert sign(folder, keys, "theirs") == 0
    capsys.readouterr()
    code, audits = audited(folder, keys, capsys)
    assert (code, [audit["signed_by"] for audit in audits]) == (1, [None, None])
    assert all("its signature is by nobody that" in audit["problems"][0] for audit in audits)


@pytest.mark.parametrize("change", ["record", "signature", "namespace"])
def test_what_was_changed_after_it_was_signed_fails(folder, keys, capsys, change):
    assert sign(folder, keys) == 0
    path = next(folder.glob("certify-*.jsonl"))
    signature = path.with_name(f"{path.name}.sig")
    if change == "record":
        path.write_bytes(path.read_bytes().replace(b'"seed": 0', b'"seed": 1'))
    elif change == "signature":
        signature.write_text(signature.read_text().replace("U1NIU0lH", "U1NIU0lI"))
    else:
        command = ["ssh-keygen", "-Y", "sign", "-f", str(keys / "ours"), "-n", "git"]
        signature.write_bytes(subprocess.run(command, input=path.read_bytes(), capture_output=True, check=True).stdout)
    with pytest.raises(ValueError, match="its signature is"):
        signer(path, keys / "allowed")
    capsys.readouterr()
    assert audited(folder, keys, capsys)[0] == 1


def test_mistakes_are_one_line(folder, keys, tmp_path, capsys, monkeypatch):
    path = next(folder.glob("attack-*.jsonl"))
    lines = path.read_text().splitlines(keepends=True)
    cases = [
        (["sign", str(folder), "--key", str(tmp_path / "none")], "key must be a file with a key of OpenSSH"),
        (["sign", str(folder), "--key", str(keys / "allowed")], "could not be signed with"),
        (["sign", str(tmp_path / "keys"), "--key", str(keys / "ours")], "must exist, but there is no such file"),
        (["audit", str(folder), "--signers", str(tmp_path / "none")], "signers must be a file of allowed signers"),
    ]
    for arguments, message in cases:
        assert run(arguments) == 2
        assert message in capsys.readouterr().err
    path.write_text("".join(lines[:-1]))
    assert sign(folder, keys) == 2
    assert "must be finished" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["sign", str(next(folder.glob("certify-*.jsonl"))), "--key", str(keys / "ours")]) == 2
    assert "ssh-keygen of OpenSSH must be installed" in capsys.readouterr().err
    assert run(["audit", str(folder), "--share", "0", "--signers", str(keys / "allowed")]) == 2
    assert "ssh-keygen of OpenSSH must be installed" in capsys.readouterr().err
