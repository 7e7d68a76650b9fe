"""A published network is its run's, rounded to bf16, and its folder is a run folder."""

import pytest
import torch
from safetensors.torch import load_file

from reproduction.__main__ import main
from rhobust import TrainConfig, open_run, train
from rhobust.methods import NAL
from rhobust.progress import no_progress


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = TrainConfig(NAL(sigma=0.25, steps=1, draws=2), "digits", "cnn-small", epochs=1)
    return train(config, tmp_path_factory.mktemp("runs") / "nal", device="cpu", progress=no_progress)


def test_matrices_are_rounded_and_the_rest_is_kept(run, tmp_path, capsys):
    folder = tmp_path / "pretrained" / "digits-nal"
    assert main(["publish", str(run.folder), str(folder)]) == 0
    digest = capsys.readouterr().out.strip()
    published = open_run(folder)
    assert published.config == run.config
    assert published.model_hash == digest[:16]
    before, after = (load_file(one.folder / "model.safetensors") for one in (run, published))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        rounded = name.startswith("network.") and tensor.dim() > 1
        assert after[name].dtype == (torch.bfloat16 if rounded else tensor.dtype)
        assert torch.equal(after[name], tensor.to(after[name].dtype))
    weights = dict(published.load_model().named_parameters())  # checks the fingerprint
    assert torch.equal(weights["network.0.weight"], after["network.0.weight"].float())
    assert len(published.training_images().keys) == len(run.training_images().keys)


def test_a_folder_is_not_written_over(run, tmp_path, capsys):
    assert main(["publish", str(run.folder), str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"reproduction: {tmp_path} must not exist yet, but it does\n"
