"""A reproduction to give away: all that its tables and figures rest on, small, without the weights."""

from pathlib import Path

from reproduction.evaluate import CLAIMS
from reproduction.workshop import finished
from rhobust.records import compress, record_paths, write_whole
from rhobust.training.run import CONFIG, ENVIRONMENT, METRICS, WEIGHTS, write_fingerprint


def publish(out: Path, to: Path) -> list[Path]:
    """Copy a reproduction's finished runs and records into a folder, compressed; what is there already stays.

    Tables and figures can be made again from the copy with `draw_only`. A run that lies there with other weights is
    refused: its records would speak of two networks.

    Args:
        out: The reproduction.
        to: Where the copy goes.
    """
    written = _records(out / CLAIMS, to / CLAIMS)
    for weights in sorted(out.glob(f"runs/*/{WEIGHTS}")):
        run = weights.parent
        target = to / "runs" / run.name
        target.mkdir(parents=True, exist_ok=True)
        write_fingerprint(run, target)
        for name in (CONFIG, ENVIRONMENT, METRICS):
            write_whole(target / name, (run / name).read_bytes())
        written += _records(run, target)
    return written


def _records(folder: Path, target: Path) -> list[Path]:
    """Compress the finished records of a folder; those that are compressed already came from elsewhere."""
    paths = [path for path in record_paths(folder) if path.suffix != ".gz" and finished(path)]
    if paths:
        target.mkdir(parents=True, exist_ok=True)
    return [compress(path, target) for path in paths]
