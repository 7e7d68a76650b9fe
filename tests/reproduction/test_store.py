"""A job's record is found by its settings, whatever the device and its arithmetic."""

import json
from dataclasses import replace

import pytest
import torch

from reproduction import runner
from reproduction.specs import Job
from rhobust.attacks import EOT, PGD
from rhobust.evaluation import Ascent, Attack, Certify, CertifyShift, WorstCaseCurves
from rhobust.methods import Gaussian
from rhobust.training import TrainConfig
from tests.reproduction.conftest import store_in

RUN = TrainConfig(Gaussian(sigma=0.25), data="digits", model="cnn-small", epochs=1, batch_size=500, lr=2e-3)
EVALUATIONS = {
    "attack": Attack(attack=EOT(steps=1, draws=2), radii=(0.0, 0.5), votes=5, limit=4, probe=False),
    "attack, no noise": Attack(attack=PGD(steps=1), radii=(0.0, 0.5), predictor="base", limit=4, probe=False),
    "certify": Certify(procedure="sequential", radii=(0.25,), n=200, limit=4, stride=None),
    "certify-shift": CertifyShift(eps=(0.0, 0.1), draws=2, limit=20),
    "curves": WorstCaseCurves(ascent=Ascent(gammas=(1.0,)), eps=(0.0, 0.1), draws=2, limit=4, stride=None),
}
OTHERS = {
    "attack": {"votes": 6},
    "attack, no noise": {"radii": (0.0, 0.25)},
    "certify": {"n": 201},
    "certify-shift": {"eps": (0.0, 0.2)},
    "curves": {"draws": 3},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return store_in(tmp_path_factory.mktemp("out"))


@pytest.mark.parametrize("kind", EVALUATIONS)
def test_a_record_is_found_by_every_setting_and_on_every_device(kind, store):
    job = Job(RUN, EVALUATIONS[kind], 0.25)
    record = store.perform(job)
    assert store.find(job) == record.path
    assert store.done(job)
    other = replace(job, evaluation=replace(job.evaluation, **OTHERS[kind]))
    assert store.find(other) is None
    assert store.find(replace(job, evaluation=replace(job.evaluation, seed=1))) is None
    assert store.find(replace(job, sigma=0.5)) is None
    header = json.loads(record.path.read_text().splitlines()[0])
    header["settings"] |= {"device": "cuda", "dtype": "bfloat16"}
    record.path.unlink()
    record.path.write_text(json.dumps(header) + "\n")
    assert store.find(job) == record.path
    assert not store.done(job)
    record.path.unlink()


def test_images_that_other_tables_attack_are_left_out(store):
    job = Job(RUN, replace(EVALUATIONS["attack"], limit=3), 0.25, skip=100)
    whole, rest = (store.target(replace(job, skip=skip)).data for skip in (0, 100))
    assert len(rest) == len(whole) - 100
    assert bool((rest.images[0] == whole.images[100]).all())
    assert store.target(replace(job, split="train")).data.split == "train"


def test_on_a_gpu_certificates_are_of_the_compiled_bf16_network(store, monkeypatch):
    on_gpu = replace(store, device=torch.device("cuda"))
    seen = []
    monkeypatch.setattr(runner, "train", lambda *_, **__: None)
    monkeypatch.setattr(runner, "run", lambda evaluation, target, **_: seen.append(evaluation))
    monkeypatch.setattr(type(store), "target", lambda *_: None)
    for kind in ("certify", "certify-shift"):
        on_gpu.perform(Job(RUN, replace(EVALUATIONS[kind], seed=7), 0.25))
    certify, shift = seen
    assert (certify.dtype, certify.compiled) == ("bfloat16", True)
    assert shift == replace(EVALUATIONS["certify-shift"], seed=7)
