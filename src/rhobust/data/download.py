"""Downloads that resume, and that leave a file only when it is the published one."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rhobust.progress import Report, Step

from rhobust.data.integrity import digest_of_file

if TYPE_CHECKING:
    from http.client import HTTPResponse

# Seconds without a byte. Short, because another address follows, and a broken transfer resumes.
_PATIENCE = 6.0
_ATTEMPTS = 20
_PIECE = 1 << 16


class UnavailableError(ValueError):
    """Nobody who was asked delivered the published bytes; the message says who was asked and what came."""


def download(addresses: Sequence[str], path: Path, expected: str, report: Report) -> str:
    """Bring one file from the first address that delivers it, and return that address.

    What has arrived waits in `path` + ".part", also after a kill, and the next call goes on from there. The file
    gets its name only when its digest is right.

    Args:
        addresses: where the file is published, best first.
        path: where it goes; its folder must exist.
        expected: its digest, "algorithm:hex".
        report: told of every piece and of every address that fails.
    """
    part = path.with_name(path.name + ".part")
    reasons = []
    for address in addresses:
        try:
            _complete(address, part, expected, report)
        except UnavailableError as error:
            reasons.append(f"{address}: {error}")
            report(f"{path.name} did not come from {address}: {error}")
        else:
            part.replace(path)
            return address
    raise UnavailableError(
        f"{path.name} must come from one of its addresses, but none delivered it ({'; '.join(reasons)}); "
        f"try again later, or put it at {path} yourself"
    )


def _complete(address: str, part: Path, expected: str, report: Report) -> None:
    algorithm = expected.partition(":")[0]
    if _size(part) and digest_of_file(part, algorithm) == expected:
        return
    for _ in range(_ATTEMPTS):
        before = _size(part)
        if not _receive(address, part, report):
            if _size(part) <= before:
                raise UnavailableError("the connection was lost")
            continue
        found = digest_of_file(part, algorithm)
        if found == expected:
            return
        part.unlink()
        if before == 0:
            raise UnavailableError(f"it sent other bytes than the published ones ({found} and not {expected})")
        # What was resumed may have been damaged before: once more, from the start.
    raise UnavailableError(f"the connection was lost {_ATTEMPTS} times")


def _receive(address: str, part: Path, report: Report) -> bool:
    """Append to the part what it lacks; False when the connection broke on the way."""
    from http.client import HTTPException

    held = _size(part)
    response = _open(address, held)
    if response is None:
        return True
    with response:
        # A server that knows no ranges sends all of it again, with status 200.
        resumes = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {held}-")
        done = held if resumes else 0
        length = response.headers.get("Content-Length", "")
        total = done + int(length) if length.isdecimal() else None
        with part.open("ab" if resumes else "wb") as file:
            while True:
                try:
                    piece = response.read(_PIECE)
                except (OSError, HTTPException):
                    return False
                if not piece:
                    return total is None or done >= total
                file.write(piece)
                done += len(piece)
                report(Step(part.name.removesuffix(".part"), done, total, "bytes"))


def _open(address: str, held: int) -> "HTTPResponse | None":
    """The answer to a request for what is missing; None when the server has nothing beyond what is held."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    headers = {"User-Agent": "rhobust", "Accept-Encoding": "identity"}
    if held:
        headers["Range"] = f"bytes={held}-"
    try:
        return urlopen(Request(address, headers=headers), timeout=_PATIENCE)
    except HTTPError as error:
        error.close()
        if error.code == 416 and held:
            return None
        raise UnavailableError(f"it answered {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        raise UnavailableError(f"it could not be reached ({getattr(error, 'reason', None) or error})") from None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
