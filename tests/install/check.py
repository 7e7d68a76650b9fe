"""Install rhobust from a clean clone, and use it in an empty folder: `make install-check PYTHON=python3.13`.

Once by `pip install .`, once from the wheel; each installation trains, attacks, certifies and writes a report. Needs
only the Python that it is run with, which is the one that is tested, and a package registry.

    python3.13 tests/install/check.py                   the newest of every dependency
    python3.12 tests/install/check.py --oldest          the oldest that pyproject.toml allows
    python3.11 tests/install/check.py --torch 2.13.0    this torch
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("py.typed", "__init__.pyi", "data/digits.npz", "commands/help.json", "report/templates/page.html.jinja")
"""Files without which the wheel does not work."""
USE = """
import sys
from pathlib import Path
import rhobust, torch

inside = Path(rhobust.__file__).resolve()
assert inside.is_relative_to(Path(sys.prefix).resolve()), f"imported from {inside}, not from the environment"
digits = rhobust.load("digits", "test")
model = rhobust.open_run("quickstart/nal").load_model()
result = rhobust.evaluate(
    model, digits.images[:20].numpy(), digits.labels[:20].tolist(), sigma=0.25, effort="quick", out="results"
)
assert result.page.is_file() and len(result.measurements) > 10
print(sys.version.split()[0], "torch", torch.__version__, "rhobust", rhobust.__version__)
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--torch", help="version of torch; default: the newest")
    options.add_argument("--oldest", action="store_true", help="the lower bound of every dependency")
    options.add_argument("--env", type=Path, help="environment to use, and keep; default: a new one that is deleted")
    options.add_argument("--extras", default="", help="extras to install too, such as hub,plots")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="rhobust-install-") as scratch:
        check(Path(scratch), chosen)


def check(scratch: Path, chosen: argparse.Namespace) -> None:
    """Install twice, and use both."""
    clone, env, wheels = scratch / "clone", chosen.env or scratch / "env", scratch / "wheels"
    call(scratch, "git", "clone", "--quiet", "--no-local", ROOT, clone)
    call(scratch, sys.executable, "-m", "venv", env)
    python, pins = env / "bin" / "python", scratch / "pins.txt"
    pins.write_text("\n".join(pinned(clone, oldest=chosen.oldest, torch=chosen.torch)) + "\n")
    extras = f"[{chosen.extras}]" if chosen.extras else ""
    install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", pins)
    call(scratch, *install, f"{clone}{extras}")
    call(scratch, python, "-m", "pip", "check", "--disable-pip-version-check")
    use(scratch / "from source", env)
    wheel_command = ("-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir")
    call(scratch, python, *wheel_command, wheels, clone)
    (wheel,) = wheels.glob("rhobust-*.whl")
    inside = zipfile.ZipFile(wheel).namelist()
    if missing := [part for part in PARTS if f"rhobust/{part}" not in inside]:
        sys.exit(f"{wheel.name} must hold {missing[0]}, but it does not")
    if strange := [name for name in inside if not re.match(r"rhobust(-[\d.]+\.dist-info)?/", name)]:
        sys.exit(f"{wheel.name} must hold the package only, got {strange[0]}")
    call(scratch, python, "-m", "pip", "uninstall", "--quiet", "--yes", "rhobust")
    call(scratch, *install, wheel)
    use(scratch / "from wheel", env)
    print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB, {len(inside)} files")


def pinned(clone: Path, *, oldest: bool, torch: str | None) -> list[str]:
    """Constraints for pip: the lower bounds of all dependencies, and the version of torch that was named."""
    needed = tomllib.loads((clone / "pyproject.toml").read_text())["project"]["dependencies"]
    bounds = dict(one.split(">=") for one in needed) if oldest else {}
    if torch:
        bounds["torch"] = torch
    return [f"{name}=={version}{'' if version.count('.') > 1 else '.*'}" for name, version in bounds.items()]


def use(folder: Path, env: Path) -> None:
    """Run the commands of a first day in an empty folder."""
    folder.mkdir()
    start, rhobust = time.monotonic(), env / "bin" / "rhobust"
    call(folder, rhobust, "--version")
    call(folder, rhobust, "evaluate", "--help")
    call(folder, rhobust, "data", "check", "digits", "--quiet")
    tiny = ("--epochs", "1", "--limit", "5", "--n", "100", "--quiet")
    call(folder, rhobust, "quickstart", *tiny)
    call(folder, rhobust, "audit", "quickstart/nal", "--quiet")
    print(call(folder, env / "bin" / "python", "-c", USE).strip().splitlines()[-1], end=", ")
    print(f"{folder.name}: works in an empty folder, {time.monotonic() - start:.0f} s", flush=True)


def call(folder: Path, *command: object) -> str:
    """What a command prints; the program ends with its last lines if it fails."""
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "RHOBUST_DATA")}
    done = subprocess.run(list(map(str, command)), cwd=folder, env=clean, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command[:6]))} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
