"""Pack finished runs and their records, without weights, into one archive per experiment, and open archives again.

Inside, a run's folder has the name of its config (`TrainConfig.run_id`). A second network of the same config, trained
again, gets the letter b after its name, a third c, so that a name means one network in all archives of a folder.
"""

import io
import json
import lzma
import shutil
import string
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from reproduction.runner import CLAIMS
from reproduction.unfinished import read_counted, unfinished
from rhobust.archives import ENDING, unpack
from rhobust.files import read_json, write_whole
from rhobust.records import ANSWERS, CONFIG, ENVIRONMENT, FINGERPRINT, METRICS, WEIGHTS, is_finished, record_paths
from rhobust.training import open_run, write_fingerprint

KEPT = (CONFIG, ENVIRONMENT, METRICS, ANSWERS)
"""Files of a run folder that are packed, besides the fingerprint of the weights and the records."""
PRESET = 9 | lzma.PRESET_EXTREME


def pack(out: Path, archive: Path, *, stopped: bool = False) -> list[str]:
    """Add a reproduction's finished runs and records to an archive, and return the names of its runs.

    What the archive holds already stays. Equal contents give equal bytes.

    Args:
        out: The reproduction: its run folders are in `runs`.
        archive: NAME.tar.xz; the other archives of its folder decide which names are taken.
        stopped: Whether to add unfinished certificates and attacks, with the images up to the first that they lack.
    """
    if not archive.name.endswith(ENDING):
        raise ValueError(f"an archive's name must end with {ENDING}, got {archive.name}")
    with tempfile.TemporaryDirectory(prefix="rhobust-") as temporary:
        folder, others = Path(temporary) / "own", Path(temporary) / "others"
        if archive.exists():
            unpack(archive, folder)
        for number, other in enumerate(sorted(archive.parent.glob(f"*{ENDING}"))):
            if other != archive:
                unpack(other, others / str(number))
        taken = {path.parent.name: read_json(path)["model_hash"] for path in Path(temporary).rglob(FINGERPRINT)}
        for run in sorted((out / "runs").iterdir()):
            if (run / WEIGHTS).exists() or (run / FINGERPRINT).exists():
                _copy(run, folder, taken, stopped)
        for path in record_paths(out / CLAIMS):
            (folder / CLAIMS).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / CLAIMS / path.name)
        archive.parent.mkdir(parents=True, exist_ok=True)
        write_whole(archive, compressed(folder, archive.name.removesuffix(ENDING)))
        return sorted(path.name for path in folder.iterdir())


@contextmanager
def unpacked(archives: Sequence[Path]) -> Iterator[Path]:
    """A folder that holds the runs of some archives as a reproduction writes them; it goes at the end."""
    with tempfile.TemporaryDirectory(prefix="rhobust-") as temporary:
        out = Path(temporary)
        for archive in archives:
            if not archive.exists():
                raise ValueError(f"{archive} must exist, but there is no such file")
            unpack(archive, out / "runs")
        if (out / "runs" / CLAIMS).exists():
            (out / "runs" / CLAIMS).rename(out / CLAIMS)
        yield out


def compressed(folder: Path, name: str) -> bytes:
    """A folder of run folders as an archive: sorted names, no times, no owners."""
    buffer = io.BytesIO()
    with (
        lzma.open(buffer, "wb", preset=PRESET) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for path in sorted(folder.glob("*/*")):
            content = path.read_bytes()
            member = tarfile.TarInfo(f"{name}/{path.parent.name}/{path.name}")
            member.size, member.mode = len(content), 0o644
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _copy(run: Path, folder: Path, taken: dict[str, str], stopped: bool) -> None:
    """Copy a run without its weights into a folder, under a name that no other network has."""
    with tempfile.TemporaryDirectory(prefix="rhobust-") as temporary:
        if (run / WEIGHTS).exists():
            write_fingerprint(run, Path(temporary))
        else:
            shutil.copyfile(run / FINGERPRINT, Path(temporary) / FINGERPRINT)
        model_hash = read_json(Path(temporary) / FINGERPRINT)["model_hash"]
        name = open_run(run).config.run_id
        letters = ("", *(f"-{letter}" for letter in string.ascii_lowercase[1:]))
        name = next(f"{name}{letter}" for letter in letters if taken.get(f"{name}{letter}", model_hash) == model_hash)
        taken[name] = model_hash
        target = folder / name
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(temporary) / FINGERPRINT, target / FINGERPRINT)
    records = [path for path in record_paths(run) if is_finished(path)]
    pictures = [path.with_suffix(".npz") for path in records]
    for path in (*(run / name for name in KEPT), *records, *pictures):
        if path.exists():
            shutil.copyfile(path, target / path.name)
    for path in unfinished(run) if stopped else ():
        record = read_counted(path)
        if record.rows:
            header = {"kind": record.kind, "settings": record.settings}
            write_whole(target / path.name, "".join(json.dumps(row) + "\n" for row in (header, *record.rows)))
