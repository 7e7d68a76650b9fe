"""The demo as a folder that can be pushed to a Space of the Hugging Face Hub: page, package, weights, examples."""

import json
import shutil
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import as_file, files
from pathlib import Path

from safetensors.torch import save_file

from rhobust.data.images import pillow_image
from rhobust.demo.classifier import DemoClassifier
from rhobust.files import check_folder, write_whole
from rhobust.models import MODELS
from rhobust.models.sources import SOURCES
from rhobust.models.weights import read_weights
from rhobust.records import CONFIG, FINGERPRINT, WEIGHTS
from rhobust.training import open_run
from rhobust.training.run import write_fingerprint

GRADIO = "gradio>=6.20,<7"
"""What the page needs, as in the extra `demo`."""


@dataclass(frozen=True)
class NamedNetwork:
    """A network by name, as in `rhobust.load_model`."""

    model: str
    weights: Path | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def write_space(folder: Path | str, classifier: DemoClassifier, network: NamedNetwork | Path | str) -> list[str]:
    """Write the demo of a classifier into a new or empty folder, and return the names of its files.

    The folder holds everything that the page needs, this package too, and names no path outside.

    Args:
        folder: Where.
        classifier: What answers; its examples go with it.
        network: Its run folder, or the network by name.

    Raises:
        ValueError: The folder is not empty, or the network's code is not in one file.
    """
    folder = Path(folder)
    check_folder("space", folder)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"space must name a new or an empty folder, but {folder} holds files")
    code = _run_code(Path(network), classifier) if isinstance(network, Path | str) else _named_code(network, classifier)
    requirements = _requirements(None if isinstance(network, Path | str) else network.model.partition(":")[0])
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(network, Path | str):
        _copy_run(Path(network), folder / "model")
    else:
        _copy_named(network, folder)
    if len(classifier.examples):
        (folder / "examples").mkdir()
    for number, image in enumerate(classifier.examples):
        pillow_image(image.numpy()).save(folder / "examples" / f"{number:02d}.png")
    with as_file(files("rhobust")) as package:
        shutil.copytree(package, folder / "rhobust", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    write_whole(folder / "app.py", code)
    write_whole(folder / "requirements.txt", "".join(f"{line}\n" for line in requirements))
    write_whole(folder / "README.md", _readme(classifier))
    own = {path.relative_to(folder).parts[0] for path in folder.rglob("*")}
    return sorted(own)


def _copy_run(run: Path, folder: Path) -> None:
    """What opens a run folder again: its config, its weights and their fingerprint."""
    folder.mkdir()
    for name in (CONFIG, WEIGHTS):
        shutil.copyfile(run / name, folder / name)
    if (run / FINGERPRINT).exists():
        shutil.copyfile(run / FINGERPRINT, folder / FINGERPRINT)
    else:
        write_fingerprint(run, folder)


def _copy_named(network: NamedNetwork, folder: Path) -> None:
    place = network.model.rpartition(":")[0]
    if place.endswith(".py"):
        shutil.copyfile(place, folder / Path(place).name)
    if network.weights is not None:
        tensors = {name: tensor.clone().contiguous() for name, tensor in read_weights(network.weights).items()}
        save_file(tensors, folder / WEIGHTS)


_HEAD = '''"""Demo of a smoothed classifier, written by rhobust."""

from pathlib import Path

from rhobust.demo import DemoClassifier, build_app, read_example_images, serve

HERE = Path(__file__).parent
'''
_LOADING = "from rhobust import load_model\nfrom rhobust.data.sizing import Sizing\n"
"""What the page of a network by name imports besides."""
_TAIL = """
if __name__ == "__main__":
    serve(build_app(classifier), host="0.0.0.0", port=7860)
"""


def _settings(classifier: DemoClassifier) -> str:
    """Arguments of the classifier; `repr` makes strings of whatever the names hold."""
    return (
        f"    name={classifier.name!r},\n    sigma={classifier.sigma!r},\n    n={classifier.n!r},\n"
        f"    alpha={classifier.alpha!r},\n"
        f'    examples=read_example_images(HERE / "examples", {classifier.shape!r}),\n'
    )


def _run_code(run: Path, classifier: DemoClassifier) -> str:
    if (model := open_run(run).config.model) not in MODELS:
        raise ValueError(
            f"{run} must hold a network of this package to be a Space, or be given by --model, got {model}"
        )
    return f'{_HEAD}classifier = DemoClassifier.from_run(\n    HERE / "model",\n{_settings(classifier)})\n{_TAIL}'


def _named_code(network: NamedNetwork, classifier: DemoClassifier) -> str:
    place, _, factory = network.model.rpartition(":")
    scheme = network.model.partition(":")[0]
    if place.endswith(".py"):
        file = Path(place).name
        if file in ("app.py", "rhobust.py"):
            raise ValueError(f"model must be in a file of another name to be a Space, got {file}")
        name = f'f"{{HERE / {file!r}}}:" + {factory!r}'
    elif scheme in SOURCES and not Path(network.model.partition(":")[2]).exists():
        name = repr(network.model)
    else:
        raise ValueError(f"model must be in one file to be a Space, file.py:factory, or on a hub, got {network.model}")
    weights = "None" if network.weights is None else f"HERE / {WEIGHTS!r}"
    return (
        f"{_HEAD}model = load_model(\n    {name},\n    {weights},\n    num_classes={len(classifier.classes)},\n"
        f"    mean={network.mean!r},\n    std={network.std!r},\n)\n"
        f"classifier = DemoClassifier(\n    model,\n    classes={classifier.classes!r},\n"
        f"    shape={classifier.shape!r},\n    sizing={classifier.sizing!r},\n{_settings(classifier)})\n{_TAIL}"
    ).replace("from rhobust.demo import", f"{_LOADING}from rhobust.demo import", 1)


def _requirements(scheme: str | None) -> list[str]:
    """What the copied package needs, and the page, and the hub that builds the network."""
    declared = metadata.requires("rhobust") or []
    needed = [line for line in declared if ";" not in line]
    return sorted({*needed, GRADIO, *([SOURCES[scheme]] if scheme in SOURCES else [])})


def _readme(classifier: DemoClassifier) -> str:
    title = classifier.name or "rhobust demo"
    front = {
        "title": title,
        "colorFrom": "indigo",
        "colorTo": "green",
        "sdk": "gradio",
        "sdk_version": _version("gradio", GRADIO.partition(">=")[2].partition(",")[0]),
        "python_version": "3.11",
        "app_file": "app.py",
        "pinned": False,
    }
    lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in front.items())
    return (
        f"---\n{lines}---\n\n# {title}\n\nDrop an image or draw one: the page shows the votes of the smoothed"
        f" classifier (noise sigma {classifier.sigma:g}), its answer, and the L2 radius within which that answer is"
        f" proved, with alpha {classifier.alpha:g} per image. The radius is valid at any time it is looked at. A"
        " certificate does not say that the answer is right.\n\n"
        "Written by `rhobust demo --space`; the folder `rhobust` is the package.\n"
    )


def _version(package: str, least: str) -> str:
    """The version of a package that is installed here; else the oldest one that works."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return f"{least}.0"
