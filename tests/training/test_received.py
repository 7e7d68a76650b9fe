"""What a folder may make this process do."""

import pickle
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from rhobust.training.config import check_received
from rhobust.training.run import load_checkpoint


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("write", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_a_checkpoint_runs_nothing(write, tmp_path):
    marker, path = tmp_path / "ran", tmp_path / "resume.pt"
    write({"model": Payload(marker)}, path)
    with pytest.raises(ValueError, match="must be a checkpoint of this run"):
        load_checkpoint(path, torch.device("cpu"))
    assert not marker.exists()
    with suppress(RuntimeError):  # a bare pickle is no checkpoint, but is executed
        torch.load(path, weights_only=False)
    assert marker.exists(), "the file would have run something"


def test_names_of_this_package_and_files_inside_are_allowed(tmp_path):
    for code in (None, "cnn", "resnet18", "rhobust:mnist-nal"):
        check_received(tmp_path, code=code, files={"data": "cifar10", "weights": str(tmp_path / "w.safetensors")})


def test_what_leads_out_of_the_folder_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "sent"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    monkeypatch.chdir(folder)
    for path in ("../w", "/w", "~/w", f"{folder}/../w", "link/w", f"{folder}-other/w"):
        with pytest.raises(ValueError, match="sent would read"):
            check_received(folder, files={"weights": path})
        check_received(folder, files={"weights": path}, trust=True)


def test_other_code_than_the_user_named_is_refused(tmp_path):
    check_received(tmp_path, code="mine:make", model="mine:make")
    for model in (None, "mine:other"):
        with pytest.raises(ValueError, match=r"would run mine:make, .* pass model='mine:make', or trust=True"):
            check_received(tmp_path, code="mine:make", model=model)
