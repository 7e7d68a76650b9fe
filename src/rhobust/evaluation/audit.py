"""Check what a record certifies: every number again from its counts, and the noise of some examples drawn again."""

import math
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rhobust.bounds import smallest_found
from rhobust.certificates import Smoothing, VoteCounter, certify_stream, noise_kind
from rhobust.data import Dataset
from rhobust.data.registry import KNOWN
from rhobust.data.source import data_root
from rhobust.evaluation.base import evaluation_of
from rhobust.evaluation.certify import Certify, certificate_row
from rhobust.evaluation.conform import Conform
from rhobust.evaluation.engine import as_evaluated, check_trained
from rhobust.evaluation.own_network import OwnNetwork
from rhobust.evaluation.shift import CertifyShift
from rhobust.evaluation.target import Target
from rhobust.measurements import READERS, measurements, same
from rhobust.measurements.certified import RUNNER_UP, other_parts, unproved_rows
from rhobust.measurements.shifts import prove
from rhobust.progress import ProgressCallback, ProgressEvent, no_progress, progress_or_default
from rhobust.records import (
    COMPRESSED,
    PLAIN,
    DamagedRecordError,
    Record,
    Row,
    network_folder,
    plain_settings,
    read_record,
    settings_hash,
)
from rhobust.training.distributed import resolve_device
from rhobust.training.run import open_run

AUDITED = ("certify", "certify-shift", "conform")
"""Kinds of records that can be audited."""
MISSED = 0.01
"""Probability with which an audit may miss every forged row; it says how many rows must be forged for that."""
BLOCK = 100
"""Points of a shift certificate that are drawn again together."""


def audit_record(
    path: Path | str,
    *,
    device: torch.device | str,
    share: float = 0.05,
    seed: int | None = None,
    data: str | None = None,
    root: Path | str | None = None,
    progress: ProgressCallback | None = None,
    trust: bool = False,
    model: str | None = None,
    weights: Path | str | None = None,
    resize: int | None = None,
    crop: int | None = None,
) -> Row:
    """Audit one record of `certify`, `certify-shift` or `conform`.

    The file must be as it was written: its digest, and its header against its name. Every radius is computed again from
    its counts, and the summary, or the bound for distributions, from the rows.
    Then a share of the examples is sampled again with the recorded noise: the network, whose weights and data must be
    those of the record, has to give the same counts. Nobody can know beforehand which examples: their seed comes from
    the operating system. A bound for distributions also depends on how many classes and pixels the data has: they come
    from the network and data. Where nothing is sampled again, and the folder has no weights or the published data set
    is not here, they come from the weights or their fingerprint; labels are then not compared with the data's.

    Guarantee: if at least `found_from` of the rows have counts that the network does not give, the audit reports one of
    them with probability at least 1 - `MISSED` (`rhobust.bounds.smallest_found`).

    Args:
        path: The record; the network is that of its folder.
        device: Where to sample again; of the kind that the record names.
        share: Share of the examples that are sampled again, at least one; 0 for none.
        seed: Chooses them; default: from the operating system. The result names it, so that an audit can be repeated.
        data: Test data; default: that of the folder's own config.
        root: Folder of the data sets.
        progress: Progress callback; default: shown on stderr.
        trust: Run the code and read the files that the folder names, whatever they are.
        model: The code that the folder may run; not needed for a network of this package.
        weights: Weights of the user's own network; default: those that the folder names.
        resize: Pixels of the shorter side that images were resized to; default: as in the folder's own config.
        crop: Side of the central square that was kept; default: likewise.

    Returns:
        What was checked, and one entry per problem.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share must be in [0, 1], got {share}")
    path, device = Path(path), resolve_device(device)
    seed = audit_seed() if seed is None else seed
    record = read_record(path)
    if record.kind not in AUDITED:
        raise ValueError(f"{path} must be a record of {', '.join(AUDITED)}, got one of {record.kind}")
    if not record.rows:
        raise DamagedRecordError(f"{path} must hold at least one example, got none")
    problems, redrawn = list(_digest(record)), list[Row]()
    with _reading(record):
        evaluation = None if problems else _evaluation(record)
        problems += _header(record)
        if isinstance(evaluation, Certify):
            problems += [*unproved_rows(record.rows, record.settings), *_certified(record)]
    if (share or isinstance(evaluation, CertifyShift | Conform)) and not problems:
        with _reading(record):
            sigma, made_on = record.settings["sigma"], record.settings["device"]
            split = "validation" if record.settings["split"] == "validation" else "test"
            surrogate = None if share or data is not None else _surrogate(record, root)
        if share and made_on != device.type:
            raise ValueError(f"{path} must be sampled again on a {made_on}, got {device.type}: or set share to 0")
        target = surrogate or Target.from_run(
            network_folder(path),
            device=device,
            sigma=sigma,
            data=data,
            split=split,
            root=root,
            progress=progress,
            trust=trust,
            model=model,
            weights=weights,
            resize=resize,
            crop=crop,
        )
        target = as_evaluated(target, record.settings.get("data_fingerprint"))
        identity = target.identity()
        known = ["model_hash", "data", "split", "sigma", *([] if surrogate else ["data_fingerprint"])]
        known += ["device"] if share else []
        with _reading(record):
            problems += _target(record, target, {key: identity[key] for key in known})
            if share and not problems:
                problems += _derived(record, evaluation, target)
        if not problems:
            with _reading(record):
                if evaluation is not None:
                    problems += check_trained(evaluation, target, record.summary)
                if isinstance(evaluation, CertifyShift | Conform):
                    problems += _unproved_shift(record, target)
            redrawn = _choose(record.rows, share, seed)
            check: Any = _redraw_radii if isinstance(evaluation, Certify) else _redraw_errors
            problems += check(record, evaluation, redrawn, target, progress)
    found_from = smallest_found(len(record.rows), len(redrawn), MISSED)
    return {
        "record": str(path),
        "kind": record.kind,
        "finished": record.summary is not None,
        "examples": len(record.rows),
        "redrawn": len(redrawn),
        "draws": sum(row["n"] + record.settings["n0"] if "n" in row else row["draws"] for row in redrawn),
        "seed": seed,
        "found_from": found_from,
        "problems": problems,
    }


@contextmanager
def _reading(record: Record) -> Iterator[None]:
    """Blame the record for a missing or wrong key; what a network or its data raise is not read here."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise DamagedRecordError(
            f"{record.path} must hold the settings and rows of {record.kind}, but {error!r} is missing or wrong"
        ) from None


def _evaluation(record: Record) -> Any:
    try:
        return evaluation_of(record.kind, record.settings)
    except ValueError as error:
        raise DamagedRecordError(f"{record.path} must hold the settings of {record.kind}, but {error}") from None


def audit_seed() -> int:
    """A seed from the operating system, which whoever made a record cannot have known."""
    return secrets.randbelow(1 << 53)


def audit_file(path: Path | str, **options: Any) -> Row:
    """Audit any file that looks like a record.

    What cannot be read is a problem. Of a record of another kind than `AUDITED` nothing is sampled again: its digest is
    checked, its header against its name, and its summary against its rows.

    Args:
        path: The file.
        options: Those of `audit_record`.
    """
    kind, problems = "", list[str]()
    try:
        record = read_record(path)
        kind = str(record.kind)
        if kind in AUDITED:
            return audit_record(path, **options)
        problems = [*_digest(record), *_header(record)]
        if not problems and kind in READERS and record.summary is not None:
            with _reading(record):
                problems += _refused(record, lambda: measurements(record))
    except (DamagedRecordError, OSError) as error:
        problems = [f"it cannot be read: {error}"]
    nothing = {"finished": False, "examples": 0, "redrawn": 0, "draws": 0, "seed": None, "found_from": None}
    return {"record": str(path), "kind": kind, **nothing, "problems": problems}


def _digest(record: Record) -> Iterator[str]:
    if not record.intact:
        yield "it was changed after it was finished: its digest is not that of its lines"
    elif record.summary is not None and record.digest is None:
        yield "it has no digest: another program wrote it, or the digest was removed"


def _refused(record: Record, read: Callable[[], object]) -> Iterator[str]:
    """Why a finished record is refused: its rows are damaged, or its summary is not the one that they give."""
    try:
        read()
    except ValueError as error:
        yield str(error).replace(f"{record.path} ", "it ")


def _header(record: Record) -> Iterator[str]:
    name = record.path.name.removesuffix(COMPRESSED).removesuffix(PLAIN)
    if not name.endswith(settings_hash(record.settings)):
        yield "the header is not that of the file's name: it was changed, or the file was renamed"


def _smoothing(settings: Row) -> Smoothing:
    keys = ("sigma", "num_classes", "noise", "seed", "dtype", "compiled")
    return Smoothing(**{key: settings[key] for key in keys})


def _certified(record: Record) -> Iterator[str]:
    """What the rows do not add up to."""
    if record.summary is not None:
        yield from (f"the rows give another {key} than the summary" for key, *_ in other_parts(record))


def _target(record: Record, target: Target, identity: Row) -> Iterator[str]:
    settings, labels = record.settings, target.data.labels
    for key, found in identity.items():
        # On another device nothing is sampled again, and the rows are taken unchanged.
        if settings[key] != found:
            yield f"the record is of the {key} {settings[key]}, here it is {found}"
            return
    expected = set(target.data.places(settings["limit"], settings["stride"]))
    found = {row["index"] for row in record.rows}
    if found - expected or (record.summary is not None and expected - found):
        yield f"{len(found - expected)} examples are not those of the settings, and {len(expected - found)} are missing"
        return
    wrong = [row for row in record.rows if int(labels[row["index"]]) != row["label"]]
    if wrong:
        yield f"example {wrong[0]['index']}: the label is {int(labels[wrong[0]['index']])}, not {wrong[0]['label']}"


def _derived(record: Record, evaluation: Any, target: Target) -> Iterator[str]:
    """What the header says of the target's classes, images and groups, and they do not; older headers say less."""
    for key, found in plain_settings(evaluation.derived(target)).items():
        if not same(said := record.settings.get(key, found), found):
            yield f"the record is of the {key} {said}, here it is {found}"


def _surrogate(record: Record, root: Path | str | None) -> Target | None:
    """Surrogate for network and data of a run without its weights, or whose published data is not here; or None.

    It has the run's fingerprint, shape and classes and the record's own labels: nothing can be sampled with it, and a
    bound for distributions needs no more.
    """
    folder, settings = network_folder(record.path), record.settings
    if OwnNetwork.read(folder) is not None:
        return None
    run = open_run(folder)
    known = [source for source in KNOWN if source.name == run.config.data == settings["data"]]
    if not run.published and not (run.finished and known and known[0].locate(data_root(root)) is None):
        return None
    labels = torch.zeros(1 + max(row["index"] for row in record.rows), dtype=torch.int64)
    for row in record.rows:
        labels[row["index"]] = row["label"]
    pixel = torch.zeros(1, dtype=torch.uint8)
    data = Dataset(settings["data"], settings["split"], pixel.expand(len(labels), *run.shape), labels, run.classes)
    chose_epoch = settings["split"] == "validation" and run.config.keep != "last"
    about: dict[str, Any] = {"folder": run.folder, "model_hash": run.model_hash, "chose_epoch": chose_epoch}
    return Target(nn.Identity(), data, settings["sigma"], **about)


def _redraw_radii(
    record: Record, evaluation: Certify, rows: list[Row], target: Target, progress: ProgressCallback | None
) -> Iterator[str]:
    with _reading(record):
        smoothing = _smoothing(record.settings)
    counter = VoteCounter(target.model, target.data.images.to(target.device), smoothing)
    inputs = [(row["index"], row["index"]) for row in rows]
    stream = certify_stream(counter, evaluation.certification(), inputs, alpha=evaluation.alpha)
    with progress_or_default(progress) as notify:
        for number, (row, certificate) in enumerate(zip(rows, stream, strict=True), start=1):
            yield from _otherwise(row, certificate_row(row["index"], row["label"], certificate))
            notify(ProgressEvent(f"audit {record.path.name}", number, len(rows), "examples"))


def _unproved_shift(record: Record, target: Target) -> Iterator[str]:
    """What the rows of a shift certificate, or of prediction sets, do not prove."""
    settings, noise = record.settings, noise_kind(target.data.images)
    if settings["noise"] != noise:
        yield f"the record is of {settings['noise']} noise, the images need {noise}"
        return
    for row in record.rows:
        errors = row["errors"] if record.kind == "certify-shift" else 0
        if row["draws"] != settings["draws"] or not 0 <= errors <= row["draws"]:
            yield f"example {row['index']}: impossible counts, {errors} of {row['draws']}"
            return
    if record.summary is not None:
        yield from _refused(record, lambda: prove(record, target.data.dimension))


def _redraw_errors(
    record: Record,
    evaluation: CertifyShift | Conform,
    rows: list[Row],
    target: Target,
    progress: ProgressCallback | None,
) -> Iterator[str]:
    """What is different when a shift certificate is sampled again."""
    with progress_or_default(progress) as notify:
        for start in range(0, len(rows), BLOCK):
            block = rows[start : start + BLOCK]
            again = evaluation.rows(target, [row["index"] for row in block], no_progress)
            yield from (problem for row, found in zip(block, again, strict=True) for problem in _otherwise(row, found))
            notify(ProgressEvent(f"audit {record.path.name}", start + len(block), len(rows), "examples"))


def _otherwise(row: Row, again: Row) -> Iterator[str]:
    """What is not as a row says when it is sampled again."""
    for key, found in again.items():
        if not same(row.get(key), found) and (key in row or key not in RUNNER_UP):
            yield f"example {row['index']}: sampled again, its {key} is {found}, the record says {row.get(key)}"
    for key in row.keys() - again.keys():
        yield f"example {row['index']}: sampled again, it has no {key}, the record says {row[key]}"


def _choose(rows: list[Row], share: float, seed: int) -> list[Row]:
    order = np.random.default_rng(seed).permutation(len(rows))
    return [rows[place] for place in sorted(order[: math.ceil(share * len(rows))])]
