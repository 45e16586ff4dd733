"""Bytes in and out: a tool returns a picture, a cell measures it, and the exact bytes come back
from the store.
"""

import struct
import tempfile
import zlib
from pathlib import Path

from scroll_context import Agent, Kind, ScriptedModel, Session, Store, exec_cell, tool
from scroll_context.log.payloads import ArtifactRef


def _png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = b"".join(b"\0" + b"\x80" * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


@tool
def chart(width: int, height: int) -> bytes:
    """A picture as PNG."""
    return _png(width, height)


CELL = "import struct\npicture = chart(640, 480)\nprint(struct.unpack('>II', picture[16:24]))"

with (
    tempfile.TemporaryDirectory() as folder,
    Store(Path(folder) / "store", create=True) as store,
    Session.open(store, tools=[chart]) as session,
):
    print(
        Agent(session, ScriptedModel([exec_cell(CELL), "It is 640 by 480."]))
        .run("How large is the chart?")
        .answer
    )
    result = next(store.log.iterate(kind=Kind.TOOL_RESULT))
    handle = store.ref(result)
    assert isinstance(handle, ArtifactRef)
    print(
        handle.media_type, handle.save_as(Path(folder) / "chart.png").stat().st_size == handle.size
    )
