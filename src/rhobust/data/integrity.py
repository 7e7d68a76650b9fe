"""A file is what its publisher published, or it is refused by name."""

import hashlib
from pathlib import Path


def digest_of(content: bytes, algorithm: str) -> str:
    """The digest of some bytes, written "algorithm:hex"."""
    return f"{algorithm}:{hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()}"


def digest_of_file(path: Path, algorithm: str) -> str:
    """The digest of a file, read in pieces, written "algorithm:hex"."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"


def verify(content: bytes, expected: str, path: Path, remedy: str) -> None:
    """Refuse bytes whose digest is not the expected one, in one line that names their file.

    Args:
        content: the bytes.
        expected: their digest, "algorithm:hex".
        path: the file they come from.
        remedy: what the reader of the message should do.
    """
    found = digest_of(content, expected.partition(":")[0])
    if found != expected:
        raise ValueError(
            f"{path} must have {expected}, got {found} ({len(content):,} bytes): "
            f"it is damaged or another file; {remedy}"
        )
