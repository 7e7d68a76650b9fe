"""A run folder to a folder for the Hub: what is copied, and what is refused. No code that the folder names is run."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from rhobust.data.registry import KNOWN
from rhobust.data.source import HELD_OUT_IMAGES, TRAINING_IMAGES
from rhobust.evaluation.own_network import IN_MEMORY, OwnNetwork
from rhobust.files import check_folder, check_regular, read_json, write_json, write_whole
from rhobust.publish.card import model_card
from rhobust.records import ANSWERS, CONFIG, ENVIRONMENT, FINGERPRINT, METRICS, RECORDS, WEIGHTS
from rhobust.report.gather import gather
from rhobust.training.config import check_received
from rhobust.training.run import file_hash, open_run, weights_metadata, write_fingerprint
from rhobust.user_code import import_extra

CARD = "README.md"
"""The model card, as the Hub names it."""


LIVE = "the records name the network by its parameters: that these weights are theirs was not checked"
"""What is said of a network that was evaluated as a live module."""


@dataclass(frozen=True)
class Published:
    """A folder that was written, and what a reader should know of it."""

    folder: Path
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    """One line for each record that is damaged, unfinished or changed, and was not published."""
    contradictions: tuple[str, ...]
    """One line for each pair of numbers that cannot both be right; the card says so too."""
    warnings: tuple[str, ...]
    """What will be public and perhaps should not be."""


def publish_run(
    folder: Path | str,
    out: Path | str,
    *,
    weights: Path | str | None = None,
    trust: bool = False,
    licence: str | None = None,
    title: str | None = None,
) -> Published:
    """Write a model card, the weights and the finished records of a run into a new or empty folder.

    The result is a run folder itself: `open_run`, `certify`, `audit` and `report` take it. Weights and records are
    copied byte by byte, so that their hashes, digests and signatures hold.

    Args:
        folder: A finished training run, or the folder of your own network's records.
        out: Where to write.
        weights: Weights of your own network, a safetensors file; default: those that the folder names.
        trust: Read the weights that the folder names, wherever they are.
        licence: Licence of the weights, as the Hub names it.
        title: Heading of the card; default: the run's label.

    Raises:
        ValueError: There are no weights to publish, or they are not those of the records; `out` holds files.
    """
    folder, out = Path(folder), Path(out)
    check_folder("out", out)
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"out must name a new or an empty folder, but {out} holds files")
    own = OwnNetwork.read(folder)
    source, data = _training_weights(folder, weights) if own is None else _own_weights(folder, own, weights, trust)
    gathered = gather([folder])
    [run] = gathered.runs
    shown = [record for record in run.records if record.record.summary is not None]
    unfinished = [f"{one.file} is left out: it is unfinished" for one in run.records if one.record.summary is None]
    if own is None or not own.live:
        found = file_hash(source)
        for record in shown:
            if (named := record.settings.get("model_hash")) not in (None, found):
                raise ValueError(f"{record.record.path} must be about {source}, but its weights have the hash {named}")
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, out / WEIGHTS)
    if own is None:
        shutil.copyfile(folder / CONFIG, out / CONFIG)
        write_fingerprint(out, out)
    else:
        kept = replace(own, weights=WEIGHTS, data=own.data if data else Path(own.data).name)
        write_json(out / CONFIG, kept.to_json())
    for name in (ENVIRONMENT, METRICS, TRAINING_IMAGES, HELD_OUT_IMAGES, ANSWERS):
        if (folder / name).exists():
            _copy(folder / name, out / name)
    for record in shown:
        path = record.record.path
        stem = path.name.partition(".jsonl")[0]
        for file in (path, path.with_name(f"{path.name}.sig"), path.with_name(f"{stem}.npz")):
            if file.exists():
                _copy(file, out / RECORDS / file.name)
    write_whole(out / CARD, model_card(replace(run, records=tuple(shown)), data=data, licence=licence, title=title))
    return Published(
        folder=out,
        files=tuple(sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())),
        left_out=(*run.left_out, *unfinished),
        contradictions=tuple(run.contradictions),
        warnings=(*_paths(out), *([LIVE] if own is not None and own.live else [])),
    )


def _training_weights(folder: Path, weights: Path | str | None) -> tuple[Path, str | None]:
    """The weights of a training run, and its data set's name if it is a published one."""
    if weights is not None:
        raise ValueError(f"weights must be left out for {folder}, a training run, got {weights}")
    run = open_run(folder)
    path = folder / WEIGHTS
    if not run.finished:
        raise ValueError(f"{folder} must hold a finished run to be published, but {WEIGHTS} is missing")
    check_regular(path, own=True)
    weights_metadata(path)
    known = read_json(folder / FINGERPRINT) if (folder / FINGERPRINT).exists() else {"model_hash": file_hash(path)}
    if not isinstance(known, dict) or known.get("model_hash") != file_hash(path):
        raise ValueError(f"{path} must be unchanged since it was written, but its hash is not the one in {FINGERPRINT}")
    return path, _published_name(run.config.data)


def _own_weights(folder: Path, own: OwnNetwork, weights: Path | str | None, trust: bool) -> tuple[Path, str | None]:
    """The weights of the user's own network; a received folder cannot name a file of the user's to be published."""
    if own.weights == IN_MEMORY or (weights is None and own.weights is None):
        raise ValueError(
            f"{folder} must name a weights file to be published, but its network was in memory or came from a hub:"
            " save its weights as safetensors and evaluate it with --model and --weights"
        )
    if weights is None:
        check_received(folder, files={"weights": str(own.weights)}, trust=trust)
    path = Path(weights or str(own.weights))
    weights_metadata(path)  # refuses what is no safetensors file
    return path, _published_name(own.data)


def _published_name(data: str) -> str | None:
    return data if any(data == source.name for source in KNOWN) else None


def _copy(source: Path, to: Path) -> None:
    """Copy a regular file of a folder; a link that leads out of the folder is refused."""
    check_regular(source, own=True)
    to.parent.mkdir(exist_ok=True)
    shutil.copyfile(source, to)


def _paths(folder: Path) -> tuple[str, ...]:
    """A line for each local path that the config and the environment would make public."""
    found = []
    for name in (CONFIG, ENVIRONMENT):
        document = read_json(folder / name) if (folder / name).exists() else {}
        for key, value in document.items() if isinstance(document, dict) else ():
            texts = value if isinstance(value, list) else [value]
            words = [word for text in texts if isinstance(text, str) for word in text.split()]
            paths = [word for word in words if word.startswith(("/", "~", "..")) and len(word) > 2]
            found += [f"{name} names the path {path} ({key}), which will be public" for path in paths]
    return tuple(found)


def push_folder(folder: Path | str, repository: str, *, private: bool = False, kind: str = "model") -> str:
    """Upload a folder to the Hugging Face Hub as one commit, and return its address.

    Args:
        folder: A folder of `publish_run`, or of `rhobust.demo.write_space`.
        repository: Its name there, `user/name`; it is made if it is missing.
        private: Whether a repository that is made is private.
        kind: "model" or "space".

    Raises:
        ValueError: The package huggingface-hub is missing, or the Hub refused; the line says why.
    """
    hub = import_extra("huggingface_hub", "hub", "push needs")
    made = {"space_sdk": "gradio"} if kind == "space" else {}
    try:
        api = hub.HfApi()
        api.create_repo(repository, repo_type=kind, private=private, exist_ok=True, **made)
        commit = api.upload_folder(
            folder_path=str(folder), repo_id=repository, repo_type=kind, commit_message="Publish by rhobust"
        )
    except Exception as error:  # whatever the Hub's client raises: no login, no network, no right to write
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{repository} must take the folder {folder}, but the Hub's client says: {reason}") from None
    return str(getattr(commit, "commit_url", commit))
