"""A published network is its run's, rounded to bf16, and its folder is a run folder."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from reproduction.__main__ import main
from reproduction.tools import publish
from rhobust import TrainConfig, open_run, train
from rhobust.evaluation import Certify, Target
from rhobust.evaluation import run as evaluate
from rhobust.measurements import read_finished
from rhobust.methods import NAL
from rhobust.progress import no_progress
from rhobust.records import record_paths


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


def test_a_run_that_was_saved_in_bf16_is_published_with_its_records(tmp_path):
    """Nothing is certified again: the published network is the one that the records are of."""
    config = TrainConfig(NAL(sigma=0.25, steps=1, draws=2), "digits", "cnn-small", epochs=1, round_weights=True)
    own = train(config, tmp_path / "run", device="cpu", progress=no_progress)
    record = evaluate(Certify(n0=10, n=50, limit=3), Target.from_run(own.folder, device="cpu"), progress=no_progress)
    (own.folder / "certify-fixed-00000000.jsonl").write_text("{}\n")  # not finished
    digest = publish(own.folder, tmp_path / "published")
    published = open_run(tmp_path / "published")
    assert published.model_hash == own.model_hash == digest[:16] == record.settings["model_hash"]
    assert (published.folder / "model.safetensors").read_bytes() == (own.folder / "model.safetensors").read_bytes()
    (kept,) = record_paths(published.folder)
    assert (read_finished(kept).rows, read_finished(kept).summary) == (record.rows, record.summary)


def test_a_network_that_is_saved_in_bf16_is_the_one_of_the_training_rounded(run, tmp_path):
    rounded = train(replace(run.config, round_weights=True), tmp_path, device="cpu", progress=no_progress)
    before, after = (load_file(one.folder / "model.safetensors") for one in (run, rounded))
    for name, tensor in before.items():
        assert after[name].dtype == (
            torch.bfloat16 if name.startswith("network.") and tensor.dim() > 1 else tensor.dtype
        )
        assert torch.equal(after[name], tensor.to(after[name].dtype))
    assert rounded.config.run_id != run.config.run_id
    assert {parameter.dtype for parameter in rounded.load_model().parameters()} == {torch.float32}
