"""From a network and images in any form to an assessment."""

import time
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from rhobust.assessment.assessment import Assessment
from rhobust.assessment.diagnosis import diagnose_accuracy, diagnose_certificates
from rhobust.assessment.plan import Effort, first_evaluation, forward_passes, plan, seconds_per_sample
from rhobust.certificates import ShiftClaim
from rhobust.cores import watched_cores
from rhobust.data import Dataset, as_dataset
from rhobust.data.hugging_face import is_live
from rhobust.data.sizing import Sizing
from rhobust.evaluation import Attack, Target, run
from rhobust.evaluation.attack import check_networks
from rhobust.evaluation.engine import check_unseen
from rhobust.evaluation.own_network import IN_MEMORY, OwnNetwork
from rhobust.executors import Executor
from rhobust.files import check_folder, read_json, write_json
from rhobust.formatting import format_duration
from rhobust.measurements import BASE, UNDER_NOISE, measurements
from rhobust.models.sources import check_names, has_weights
from rhobust.noise import stream
from rhobust.progress import ProgressCallback, progress_or_default
from rhobust.proofs.claim import check_claim
from rhobust.records import CONFIG, DIAGNOSIS, Record
from rhobust.settings import check_instance, sizes
from rhobust.training.distributed import resolve_device

SIGMA = 0.25
"""Noise level where nobody says one."""


@watched_cores
def evaluate(
    model: nn.Module | Path | str,
    images: Any = None,
    labels: Any = None,
    *,
    sigma: float | None = None,
    effort: Effort = "quick",
    out: Path | str | None = None,
    weights: Path | str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    class_names: Sequence[str] | None = None,
    name: str | None = None,
    title: str | None = None,
    device: torch.device | str = "auto",
    seed: int = 0,
    progress: ProgressCallback | None = None,
    trust: bool = False,
    wait: bool = False,
    executor: Executor | None = None,
    unseen: bool = False,
    resize: int | None = None,
    crop: int | None = None,
    claim: ShiftClaim | None = None,
    gamma: Sequence[float] | None = None,
    root: Path | str | None = None,
) -> Assessment:
    """Evaluate a network in one call: accuracy, attacks, certificates, shift, corruptions, diagnosis and page.

    The network is checked first: one that is batch-dependent, stateful or random is refused before a number is made.
    Interrupted, the same call with the same `out` goes on where it stopped.

    Args:
        model: A module from images in [0, 1] to logits, a name as in `load_model`, or a run folder.
        images: What `as_dataset` takes: arrays, tensors, Pillow images, a torch Dataset, a DataLoader, a folder or the
            name of a data set; default: the test data of the run folder.
        labels: Class numbers or names, if the images do not bring them.
        sigma: Standard deviation of the smoothing noise; default: that of the run's training, or of the pretrained
            network's, else 0.25.
        effort: quick: about a minute or two; standard: a quarter of an hour; full: all images, 100,000 noise samples.
        out: Folder for records and page; default: rhobust-NAME.
        weights: Weights of a network that is given by name.
        mean: Mean per channel that the network expects to be subtracted from images in [0, 1].
        std: Deviation per channel that it expects to be divided by.
        class_names: Names of the classes, in the order of the logits.
        name: How the network is called; default: its class or name.
        title: Heading of the page.
        device: Where to compute; auto takes a GPU if there is one.
        seed: Random seed.
        progress: Progress callback; default: shown on stderr.
        trust: Run the code that a run folder names.
        wait: If another process is writing a record, wait for it and continue from what it left.
        executor: Where it is computed: `Local()`, `Processes()` or `Ray()`; default: as in `run`.
        unseen: Leave out the test images that a run folder's network was trained on.
        resize: Pixels of the shorter side that images are resized to, as in `load`; default: as a run folder was
            trained, else as they are.
        crop: Side of the central square that is kept, after resizing; default: likewise.
        claim: The classifier that you deploy, whose accuracy under shift is certified, e.g.
            `ShiftClaim(classifier="k-vote", votes=5)`; default: one noisy vote.
        gamma: Certify every subpopulation under shift: largest factors of reweighting, e.g. 1, 2, 5; default: none of a
            quick effort, else 1, 2, 5, 10.
        root: Folder of the named data sets; default: $RHOBUST_DATA, else a cache folder.
    """
    if effort not in get_args(Effort):
        raise ValueError(f"effort must be one of {', '.join(get_args(Effort))}, got {effort!r}")
    check_instance("model", model, (nn.Module, Path, str), "a torch.nn.Module, a name as in load_model or a run folder")
    check_instance("seed", seed, Integral, "an int")
    if name is not None:
        check_instance("name", name, str, "a string")
    if claim is not None:
        check_claim(claim)
    place = resolve_device(device)
    if not isinstance(model, nn.Module) and (Path(model) / CONFIG).is_file():
        given = None if images is None else str(images)
        if labels is not None or (images is not None and not isinstance(images, Path | str)):
            raise ValueError("images must be left out, or name a data set, for a run folder, got others")
        target = Target.from_run(
            model,
            device=place,
            sigma=sigma,
            data=given,
            root=root,
            progress=progress,
            trust=trust,
            unseen=unseen,
            resize=resize,
            crop=crop,
        )
        target = _smoothed(target)
    else:
        if unseen:
            raise ValueError("unseen must be left out for a network that is no run folder: its training is not known")
        if images is None:
            raise ValueError("images must be given for a network that is no run folder, got none")
        if not isinstance(model, nn.Module):
            check_names(str(model), weights, mean, std)
        by_rows = is_live(images) and labels is None
        if by_rows:  # the images themselves may be larger than the memory
            images = images.shuffle(seed=seed, keep_in_memory=True)
        data = as_dataset(
            images, labels, class_names=class_names, resize=resize, crop=crop, root=root, progress=progress
        )
        if not by_rows and not isinstance(images, Path | str):
            # Arrays are often sorted by class: in a random order the first ones are a sample of all.
            data = data.select(torch.randperm(len(data), generator=stream(seed, "order of the test images")))
        source = str(images) if isinstance(images, Path | str) else None
        sizing = Sizing(resize, crop)
        target = _live_target(model, data, sigma, out, weights, mean, std, name, place, source, sizing)
    named = weights is not None or target.factory is None or isinstance(model, nn.Module) or has_weights(str(model))
    return assess(
        target,
        effort=effort,
        title=title,
        seed=seed,
        progress=progress,
        weights_named=named,
        wait=wait,
        executor=executor,
        claim=claim,
        gamma=gamma,
    )


def _live_target(
    model: nn.Module | Path | str,
    data: Dataset,
    sigma: float | None,
    out: Path | str | None,
    weights: Path | str | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    name: str | None,
    device: torch.device,
    source: str | None,
    sizing: Sizing,
) -> Target:
    """A target of a live module, or of a network by name, and the user's images; `source` is their path or name."""
    module = model if isinstance(model, nn.Module) else None
    if module is not None and weights is not None:
        raise ValueError(f"weights must be left out for a module, which has its own, got {weights}")
    if module is not None and (mean is None) != (std is None):
        raise ValueError("mean and std must be given together, got one of them")
    called = name or (_short(str(model)) if module is None else type(model).__name__)
    folder = Path(out) if out is not None else Path(f"rhobust-{_plain(called)}")
    check_folder("out", folder)
    own = OwnNetwork(
        str(model) if module is None else called,
        (None if weights is None else str(weights)) if module is None else IN_MEMORY,
        data.name if source is None else source,
        sigma,
        None if mean is None else sizes("mean", mean),
        None if std is None else sizes("std", std),
        sizing,
        str(Path.cwd()) if module is None else None,
        live=True,
    )
    target = _smoothed(Target.of_network(own, data, folder, device, module=module, name=called))
    if (folder / CONFIG).exists() and not read_json(folder / CONFIG).get("live"):
        raise ValueError(
            f"out must be a new folder or one of an earlier evaluation, but {folder} is that of a run or of single"
            " commands: evaluate it by its name, without model and out"
        )
    target.check_unchanged()
    _describe(target, own)
    return target


def _smoothed(target: Target) -> Target:
    """The target with a noise level, where none is known and nobody said one."""
    return target if target.sigma is not None else replace(target, sigma=SIGMA)


def _describe(target: Target, own: OwnNetwork) -> None:
    """Say in the folder of a live network what its records are about."""
    replace(own, sigma=target.sigma).write(target.folder, target.device, name=target.name)


def _short(model: str) -> str:
    """The name of a network without the folders of its file: `net.py:make`, `hf:checkpoint`."""
    place, given, attribute = model.rpartition(":")
    if place.endswith(".py"):
        return f"{Path(place).name}:{attribute}"
    return f"{place}:{Path(attribute).name}" if given and Path(attribute).is_dir() else model


def _plain(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text).strip("-")[-40:]


def assess(
    target: Target,
    *,
    effort: Effort,
    title: str | None,
    seed: int,
    progress: ProgressCallback | None,
    weights_named: bool = True,
    wait: bool = False,
    executor: Executor | None = None,
    claim: ShiftClaim | None = None,
    gamma: Sequence[float] | None = None,
) -> Assessment:
    """Evaluate a target and write its page: what `evaluate` does once the network and the data are there."""
    if not (target.folder / CONFIG).exists():
        _describe(target, OwnNetwork(target.name, IN_MEMORY, target.data.name, live=True))
    with progress_or_default(progress) as notify:
        records: list[Record] = []
        check_networks(target, target)
        seconds = seconds_per_sample(target)
        first = first_evaluation(target, effort, seconds, seed)
        records.append(run(first, target, executor=executor, progress=notify, wait=wait))
        found = {one.quantity: one.value for one in measurements(records[0])}
        findings = diagnose_accuracy(
            target, accuracy=found[BASE], under_noise=found.get(UNDER_NOISE), weights_named=weights_named
        )
        for finding in findings:
            notify(f"diagnosis: {finding}")
        evaluations = plan(target, effort, seconds, seed, claim, gamma)
        costs = [seconds * forward_passes(one) * (one.limit or len(target.data)) for one in evaluations]
        for evaluation in evaluations:
            check_unseen(evaluation.resolve(target), target)  # before the long ones begin
        start = time.monotonic()
        for number, evaluation in enumerate(evaluations):
            # As slow as so far, where the plan's own guess weighs as much as the whole plan; what was read from an
            # earlier call took no time, and says nothing of what is left.
            pace = max(1.0, (time.monotonic() - start + sum(costs)) / sum([*costs, *costs[:number]]))
            left = f"about {format_duration(pace * sum(costs[number:]))} left"
            named = f"attack {evaluation.label}" if isinstance(evaluation, Attack) else evaluation.kind
            notify(f"{number + 1} of {len(evaluations)}: {named}, {left}")
            records.append(run(evaluation, target, executor=executor, progress=notify, wait=wait))
    findings = findings or diagnose_certificates(records)  # more samples are no remedy for a wrong network
    write_json(target.folder / DIAGNOSIS, {"findings": [vars(finding) for finding in findings]})
    result = Assessment(target.folder, tuple(records), tuple(findings), target.name, target.smoothing_sigma())
    return replace(result, page=result.report(title=title))
