"""The bodies of requests that a client compressed, as Codex does if it is told to.

A compressed body is read like any other, and the request goes upstream uncompressed. A few bytes
may stand for gigabytes, so no more than `MOST_BODY` is ever expanded. A body that is longer, broken
or compressed in another way is sent on as it came.
"""

import zlib

MOST_BODY = 64 * 2**20
"""Bytes of an expanded body: more than the list of any window takes."""

_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


def expanded(body: bytes, encoding: str) -> bytes | None:
    """A body without its compression; None if it cannot be read."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    plain: bytes | None = None
    if encoding in ("gzip", "x-gzip", "deflate"):
        plain = _inflated(body)
    elif encoding == "zstd":
        plain = _from_zstd(body)
    return plain if plain is not None and len(plain) <= MOST_BODY else None


def _inflated(body: bytes) -> bytes | None:
    try:
        return zlib.decompressobj(_GZIP_OR_ZLIB).decompress(body, MOST_BODY + 1)
    except zlib.error:
        return None


def _from_zstd(body: bytes) -> bytes | None:
    # Few clients compress, and every start of a gateway would pay for the import.
    import zstandard

    try:
        reader = zstandard.ZstdDecompressor(max_window_size=MOST_BODY).stream_reader(body)
        return reader.read(MOST_BODY + 1)
    except zstandard.ZstdError:
        return None
