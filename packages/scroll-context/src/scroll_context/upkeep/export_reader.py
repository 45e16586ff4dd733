"""Reading an export, which may come from anywhere: its lines, its payloads, and the links of its
chain.

Every line is checked before anything of it is built, each payload against its digest, and each row
against the hash of the row before it.
"""

import base64
import hashlib
import itertools
from collections import deque
from collections.abc import Iterator
from typing import IO, Annotated, Any

import msgspec

from scroll_context.errors import BadInput
from scroll_context.events import Kind, Progress
from scroll_context.log.chain import GENESIS, expected
from scroll_context.log.payloads import PayloadStore, hashed
from scroll_context.log.rows import COLUMNS, TableRow, event_from_row, is_blank
from scroll_context.text.json_bounds import TooManyValues, check_line
from scroll_context.upkeep.transfer import EXPORT_VERSION

# Bytes of a line. A row has at most 8 MiB of metadata, and a part of a payload is 1 MiB.
LONGEST_LINE = 64 << 20

_Number = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
# SQLite assigns no address after 2^63-1.
_Address = Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]
_Nonce = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
_TYPES: dict[str, Any] = {
    "seq": _Address,
    "payload": _Digest | None,
    "payload_size": _Number | None,
    "payload_type": str | None,
    "reply_to": _Number | None,
    "step_index": _Number | None,
    "msg_index": _Number | None,
    "source_key": str | None,
    "chain": _Digest,
}
_Record = msgspec.defstruct(
    "_Record",
    [
        *((column, _TYPES.get(column, str)) for column in COLUMNS),
        ("nonce", _Nonce | None, None),
        # Erased rows have a leaf.
        ("leaf", _Digest | None, None),
    ],
)
"""An event of an export, checked column by column: the file may come from anywhere."""


def check_export(lines: IO[bytes], progress: Progress | None = None) -> None:
    """Read an export to its end and write nothing.

    Raises BadInput if it is cut short, altered or not an export.
    """
    links = ChainLinks()
    for row in ExportReader(lines, None, progress):
        links.check(row)
    links.finish()


class ChainLinks:
    """Checks the rows of an export against their hashes, except those that a salvage declares."""

    def __init__(self) -> None:
        self._seq, self._chain = 0, GENESIS
        self._altered: set[int] = set()

    def check(self, row: TableRow) -> None:
        if row.seq == self._seq + 1 and expected(self._chain, row) != row.chain:
            self._altered.add(row.seq)
        if row.leaf is not None and not is_blank(row):
            self._altered.add(row.seq)
        if row.kind == Kind.SALVAGE:
            self._altered.difference_update(event_from_row(row).metadata.get("altered", ()))
        self._seq, self._chain = row.seq, row.chain

    def finish(self) -> None:
        if self._altered:
            raise BadInput(
                f"seq {min(self._altered)} of the export does not match its hash; nothing was "
                "imported"
            )


class ExportReader:
    """The event rows of an export.

    With a payload store, each payload is stored before the event that names it is returned.
    """

    def __init__(
        self, lines: IO[bytes], payloads: PayloadStore | None, progress: Progress | None
    ) -> None:
        # Digests of payloads that the exported store had lost, in order.
        self.missing: dict[str, None] = {}
        # Digests of payloads that the export contains.
        self.stored: set[str] = set()
        self._payloads = payloads
        self._progress = progress
        self._numbered = _documents(lines)
        _, self._header = next(self._numbered, (0, {}))
        version = self._header.get("scroll_export")
        if version != EXPORT_VERSION:
            raise BadInput(
                f"this version of Scroll reads exports of version {EXPORT_VERSION}, and this file "
                f"is of version {version!r:.20}. Nothing was imported; import it with the version "
                "that wrote it."
            )

    def __iter__(self) -> Iterator[TableRow]:
        numbered = self._numbered
        total = self._header.get("last_seq", 0)
        count, seq, head = 0, 0, GENESIS.hex()
        digests: set[str] = set()
        for digest, group in itertools.groupby(numbered, lambda item: item[1].get("payload")):
            if digest is not None:
                self._store_payload(digest, (document for _, document in group))
                digests.add(digest)
                continue
            for number, document in group:
                if "end" in document:
                    if document["end"] != count or document.get("head") != head:
                        raise BadInput(
                            f"line {number}: the end line does not match the events before it"
                        )
                    return
                row = _row(number, document)
                if row.payload is not None and row.payload not in digests:
                    raise BadInput(
                        f"line {number} of the export names payload {row.payload[:12]}…, which "
                        "does not come before it"
                    )
                if row.seq <= seq:
                    raise BadInput(f"line {number} of the export has seq {row.seq} after seq {seq}")
                count, seq, head = count + 1, row.seq, row.chain.hex()
                if self._progress and count % 1000 == 0:
                    self._progress(seq, total)
                yield row
        raise BadInput(
            "the export is cut short: it has no end line. Nothing more can be read from it."
        )

    def _store_payload(self, digest: str, parts: Iterator[dict[str, Any]]) -> None:
        first = next(parts)
        if first.get("missing") is True:
            self.missing[digest] = None
            return
        try:
            hasher = hashlib.sha256()
            parts = itertools.chain([first], parts)
            decoded = (base64.b64decode(part["base64"], validate=True) for part in parts)
            pieces = hashed(decoded, hasher)
            if self._payloads is not None:
                self._payloads.put(pieces, "application/octet-stream")
            else:
                deque(pieces, maxlen=0)
        except (KeyError, TypeError, ValueError) as error:
            raise BadInput(
                f"payload {str(digest)[:12]}… of the export is damaged: {error}"
            ) from error
        if hasher.hexdigest() != digest:
            raise BadInput(f"payload {str(digest)[:12]}… of the export does not match its digest")
        self.stored.add(digest)


def _documents(lines: IO[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for number in itertools.count(1):
        line = lines.readline(LONGEST_LINE)
        if not line:
            return
        if len(line) == LONGEST_LINE:
            raise BadInput(
                f"line {number} of the export is longer than {LONGEST_LINE >> 20} MiB; Scroll "
                "writes no such lines"
            )
        try:
            check_line(line)
            yield number, decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, TooManyValues) as error:
            raise BadInput(f"line {number} of the export is damaged: {error}") from error


def _row(number: int, document: dict[str, Any]) -> TableRow:
    try:
        record = msgspec.convert(document.get("event"), _Record)
    except msgspec.ValidationError as error:
        raise BadInput(f"line {number} of the export is not a complete event ({error})") from error
    *columns, chain, nonce, leaf = msgspec.structs.astuple(record)
    hashes = (value if value is None else bytes.fromhex(value) for value in (chain, nonce, leaf))
    return TableRow._make((*columns, *hashes))
