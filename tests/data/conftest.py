"""A server on this machine that misbehaves on demand, an npm that needs no registry, and a flipped bit."""

import http.server
import io
import json
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rhobust.data import decoded


@dataclass
class Site:
    """What the server serves, how it misbehaves, and what it was requests."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    cut_after: int | None = None
    """Break the connection after so many bytes of an answer."""
    requests: list[tuple[str, str | None]] = field(default_factory=list)


class _Handler(http.server.BaseHTTPRequestHandler):
    site: Site

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        requests = self.headers.get("Range")
        self.site.requests.append((self.path, requests))
        content = self.site.files.get(self.path.removeprefix("/"))
        if content is None:
            self.send_error(404)
            return
        start = int(requests.removeprefix("bytes=").removesuffix("-")) if requests and self.site.ranges else 0
        if start and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:][: self.site.cut_after])


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    served = Site()
    handler = type("Handler", (_Handler,), {"site": served})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        served.address = f"http://127.0.0.1:{server.server_address[1]}/"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield served
        server.shutdown()
        thread.join()


def tar_of(files: dict[str, bytes]) -> bytes:
    """A packed archive of files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, bytes] | None], None]:
    """Put on the PATH an npm whose every package holds these files; with None, one that fails; before, none."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))

    def install(files: dict[str, bytes] | None) -> None:
        program = programs / "npm"
        script = "import sys; sys.exit('npm error code E404')"
        if files is not None:
            archive = tmp_path / "package.tgz"
            archive.write_bytes(tar_of(files))
            script = f"import shutil; shutil.copy({json.dumps(str(archive))}, '.')"
        program.write_text(f"#!{sys.executable}\n{script}\n")
        program.chmod(0o755)

    return install


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded images of any number are worth a file."""
    monkeypatch.setattr(decoded, "WORTH_IMAGES", 1)


def flip_bit(path: Path, place: int = -1) -> None:
    """Change one bit of a file, by default in its last byte."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.fixture(name="flip_bit")
def flip_bit_fixture() -> Callable[..., None]:
    return flip_bit
