"""Frames: every byte stream gives whole frames, or a clean error, and never more memory than the
cap.
"""

import contextlib
import socket
import tracemalloc
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import Decoder

from scroll_context.errors import KernelDied
from scroll_context.kernel.broker import Connection
from scroll_context.kernel.frames import MAX_FRAME, FrameReader, FrameTooLarge, encode_frame
from scroll_context.kernel.protocol import CallRequest, Done, Printed, ToHost, ToWorker
from scroll_context.kernel.values import count_items, portable, revive
from wire_values import to_host, to_worker

bodies = st.lists(st.binary(max_size=200), max_size=20)


def feed(data: bytes, chunks: list[int]) -> list[bytes]:
    """What a reader makes of `data` when it arrives in chunks of these sizes."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        reader, frames, position = FrameReader(ours), [], 0
        while position < len(data):
            size = chunks[position % len(chunks)] if chunks else len(data)
            theirs.sendall(data[position : position + size])
            position += size
            try:
                while True:
                    while (frame := reader.take()) is not None:
                        frames.append(bytes(frame))
                    reader.receive()
            except BlockingIOError:
                pass
        return frames


@given(bodies, st.lists(st.integers(1, 50), max_size=5))
def test_frames_come_out_as_they_went_in_however_they_arrive(
    contents: list[bytes], chunks: list[int]
) -> None:
    data = b"".join(bytes(encode_frame(Printed(content))) for content in contents)
    decoder = Decoder(ToHost)
    assert [decoder.decode(frame).data for frame in feed(data, chunks)] == contents


@given(
    st.lists(to_host, max_size=6),
    st.lists(to_worker, max_size=6),
    st.lists(st.integers(1, 50), max_size=5),
)
def test_every_message_survives_the_way_in_its_own_direction_only(
    up: list[msgspec.Struct], down: list[msgspec.Struct], chunks: list[int]
) -> None:
    for messages, union, other in ((up, ToHost, ToWorker), (down, ToWorker, ToHost)):
        frames = feed(b"".join(map(bytes, map(encode_frame, messages))), chunks)
        assert [Decoder(union).decode(frame) for frame in frames] == messages
        for frame in frames:
            with pytest.raises(msgspec.ValidationError):
                Decoder(other).decode(frame)


@given(to_host | to_worker, st.data())
def test_a_changed_byte_gives_a_message_of_the_set_or_an_error(
    message: msgspec.Struct, data: st.DataObject
) -> None:
    frame = encode_frame(message)[4:]
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    for union in (ToHost, ToWorker):
        try:
            read = Decoder(union).decode(frame)
        except (msgspec.MsgspecError, ValueError):
            continue
        assert isinstance(read, union)
        again = encode_frame(read)
        assert (
            encode_frame(Decoder(union).decode(again[4:])) == again
        )  # as bytes: a float may be no number now


@pytest.mark.parametrize("size", [0, 1, 65_531, 65_532, 65_533, 65_536, 70_000, 1 << 20])
def test_frames_around_the_size_of_the_buffer(size: int) -> None:
    data = b"".join(bytes(encode_frame(Printed(b"x" * size))) for _ in range(3)) + bytes(
        encode_frame(Printed(b"end"))
    )
    sizes = [len(Decoder(ToHost).decode(frame).data) for frame in feed(data, [50_000])]
    assert sizes == [size, size, size, 3]


def test_a_message_above_the_cap_is_not_sent() -> None:
    with pytest.raises(FrameTooLarge):
        encode_frame(Printed(b"x" * (MAX_FRAME + 1)))


@pytest.mark.parametrize("claimed", [MAX_FRAME + 1, 0xFFFFFFFF])
def test_a_claimed_length_above_the_cap_is_refused_before_it_is_allocated(claimed: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="at most"):
            feed(claimed.to_bytes(4, "big") + b"x", [])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("unread", [[], [b"the last answer"]], ids=["all read", "not all read"])
def test_a_process_that_ended_is_called_that_whether_or_not_it_had_read_everything(
    unread: list[bytes],
) -> None:
    ours, theirs = socket.socketpair()
    with contextlib.closing(Connection(ours)) as connection:
        for data in unread:
            ours.send(data)
        theirs.close()
        for use in (lambda: connection.receive(1.0), lambda: connection.send(Printed(b"x"))):
            with pytest.raises(KernelDied, match="the kernel process ended"):
                use()


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_the_end_of_the_kernel(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    connection = Connection(ours)
    with theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(KernelDied):
            for _ in range(len(data) + 2):
                connection.receive(0)
    connection.close()


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.dates()
    | st.datetimes(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(json_like)
def test_portable_values_survive_the_wire(value: object) -> None:
    data = msgspec.msgpack.encode(portable(value))
    assert msgspec.msgpack.Decoder(ext_hook=revive).decode(data) == value


@given(json_like)
def test_items_are_counted_as_they_are(value: object) -> None:
    def count(one: object) -> int:
        if isinstance(one, dict):
            return 1 + sum(count(k) + count(v) for k, v in one.items())
        return 1 + sum(map(count, one)) if isinstance(one, list) else 1

    assert count_items(msgspec.msgpack.encode(portable(value)), 10**9) == count(value)


@given(st.binary(max_size=500), st.integers(0, 50))
def test_counting_hostile_bytes_ends_and_allocates_nothing(data: bytes, limit: int) -> None:
    with contextlib.suppress(ValueError):  # a key that no dict of ours has
        assert 0 <= count_items(data, limit) <= limit + 1


@pytest.mark.parametrize("key", [None, True, 1.5, b"x", (1, 2), msgspec.msgpack.Ext(3, b"5"), {}])
@pytest.mark.parametrize(
    "inside", [lambda pair: pair, lambda pair: b"\x92\x01" + pair, lambda pair: b"\x81\x01" + pair]
)
def test_only_text_and_integers_may_be_keys(key: object, inside: Callable[[bytes], bytes]) -> None:
    pair = b"\x82\x02\x90" + msgspec.msgpack.encode(key) + b"\x02"
    with pytest.raises(ValueError, match="neither text nor an integer"):
        count_items(inside(pair))
    assert count_items(inside(b"\x82\x02\x90" + msgspec.msgpack.encode("key") + b"\x02")) >= 5


@given(st.sampled_from([CallRequest, Done, Printed]), st.lists(json_like, max_size=8))
def test_messages_with_fields_of_other_types_are_refused(kind: type, fields: list[object]) -> None:
    tag = kind.__struct_config__.tag
    data = msgspec.msgpack.encode(portable([tag, *fields]))
    try:
        message = Decoder(ToHost).decode(data)
    except msgspec.ValidationError:
        return
    assert type(message) is kind
