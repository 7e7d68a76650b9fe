"""Compressed records: gzip files whose header has a digest of all that follows, so that any changed byte shows.

gzip itself checks the content only. Its header has bytes that nobody reads, and its stream ends with bits that nobody
uses.
"""

import gzip
import hashlib
import struct

_START = bytes([0x1F, 0x8B, 8, 4, 0, 0, 0, 0, 2, 255]) + struct.pack("<H2sH", 36, b"RB", 32)
"""A gzip header with one extra field (RFC 1952) of 32 bytes, without a time, a name or a system."""
_PLAIN = 10
"""Bytes of a gzip header without fields."""


def seal(content: bytes) -> bytes:
    """A gzip file of some content; equal content gives equal bytes."""
    rest = gzip.compress(content, mtime=0)[_PLAIN:]
    return _START + hashlib.sha256(rest).digest() + rest


def is_broken(packed: bytes) -> bool:
    """Whether the bytes of a gzip file were changed after `seal` made it; False for files of other programs."""
    # Of the flags and the field's name one may have been changed, not both.
    if packed[3:4] != _START[3:4] and packed[12:16] != _START[12:16]:
        return False
    digest, rest = packed[len(_START) : len(_START) + 32], packed[len(_START) + 32 :]
    return not packed.startswith(_START) or digest != hashlib.sha256(rest).digest()
