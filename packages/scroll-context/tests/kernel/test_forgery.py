"""Model code that takes over the worker's socket: it can break its own kernel, and nothing else.

Each cell here writes bytes of its own to the connection. Whatever they are, the host answers in
time, stays whole, and goes on with a fresh process.
"""

import time
import tracemalloc

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forgery import FORGE, forged, is_whole
from forms import form
from scroll_context.errors import KernelDied
from scroll_context.jail.spec import JailLimits
from scroll_context.kernel.frames import MAX_FRAME, encode_frame
from scroll_context.kernel.kernel import Kernel, KernelOptions
from scroll_context.kernel.protocol import (
    CallRequest,
    Done,
    Facts,
    Failed,
    Loaded,
    Prepared,
    Printed,
    Saved,
    SavedValue,
    SavePiece,
)
from scroll_context.kernel.results import MemoryBlobs
from wire_values import to_host

FORGERIES = {
    "garbage": b"\x00\x00\x00\x05hello",
    "not a message": b"\x00\x00\x00\x03\x90\x90\x90",
    "length above the cap": (MAX_FRAME + 1).to_bytes(4, "big"),
    "largest length": b"\xff\xff\xff\xff",
    "empty frame": b"\x00\x00\x00\x00",
    "an answer to nothing": encode_frame(Saved(("x",), ())),
    "facts": encode_frame(Facts(())),
    "a piece of a pickle": encode_frame(SavePiece(b"x")),
    "kept": encode_frame(SavedValue(("x",), "int", True, 1, "", "")),
    "loaded": encode_frame(Loaded("")),
    "prepared": encode_frame(Prepared()),
    "failed": encode_frame(Failed("the jail is broken, please turn it off")),
    "another cell": encode_frame(Done(99)),
    "call with bad arguments": encode_frame(
        CallRequest(7, "echo", msgspec.Raw(b"\x93\x01\x02\x03"))
    ),
    "call with id 0": encode_frame(CallRequest(1, "echo", msgspec.Raw(b"\x92\x90\x80"))).replace(
        b"\x01\xa4echo", b"\x00\xa4echo"
    ),
    "deep nesting": encode_frame(
        CallRequest(7, "echo", msgspec.Raw(b"\x92" + b"\x91" * 50_000 + b"\x90\x80"))
    ),
    "extension of its own": encode_frame(
        CallRequest(7, "echo", msgspec.Raw(b"\x92\x91\xd4\x63\x00\x80"))
    ),
    "unparsable date": encode_frame(
        CallRequest(7, "echo", msgspec.Raw(b"\x92\x91\xc7\x03\x02abc\x80"))
    ),
    "long name": encode_frame(CallRequest(7, "e" * 300, msgspec.Raw(b"\x92\x90\x80"))),
    "two calls with one id": bytes(
        encode_frame(CallRequest(7, "wait", msgspec.Raw(b"\x92\x90\x80")))
    )
    * 2,
    "names without end": encode_frame(Done(2, bound=("n",) * 30_000)),
    "unknown limit": encode_frame(Done(2)).replace(b"\xc0", b"\x94\xa0\xa0\xa0\xa3abc"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_message_ends_the_kernel_that_sent_it(make_kernel, name: str) -> None:
    calls = {"echo": lambda v=None: v, "wait": lambda: time.sleep(0.5)}
    kernel = make_kernel(calls)
    result = forged(kernel, FORGERIES[name], "time.sleep(120)")
    assert (result.ended, result.duration < 30) == ("killed", True), result
    assert is_whole(kernel)


def test_an_answer_in_advance_gains_nothing(make_kernel) -> None:
    seen = []
    kernel = make_kernel({"echo": lambda v: seen.append(v)})
    result = forged(kernel, encode_frame(Done(2, bound=("a",))), "echo('still here')\nx = 1")
    assert result.ended == "ok"
    assert is_whole(kernel)


def test_a_call_that_nobody_waits_for_is_an_ordinary_call(make_kernel) -> None:
    seen = []
    kernel = make_kernel({"echo": lambda v: seen.append(v)})
    forged(
        kernel,
        encode_frame(CallRequest(1 << 40, "echo", msgspec.Raw(b"\x92\x91\x05\x80"))),
        "echo(6)",
    )
    assert seen == [5, 6]
    assert (
        forged(
            kernel,
            encode_frame(CallRequest(1 << 40, "secret", msgspec.Raw(b"\x92\x90\x80"))),
            "echo(7)",
        ).ended
        == "ok"
    )
    assert is_whole(kernel)


forgeries = st.one_of(
    st.binary(max_size=100),
    st.binary(max_size=60).map(lambda body: len(body).to_bytes(4, "big") + body),
    st.lists(to_host, min_size=1, max_size=3).map(
        lambda several: b"".join(bytes(encode_frame(one)) for one in several)
    ),
    st.sampled_from(["echo", "secret", "ms.search", "", "__import__"]).flatmap(
        lambda name: st.integers(1, 9).map(
            lambda ident: bytes(
                encode_frame(CallRequest(ident, name, msgspec.Raw(b"\x92\x91\x2a\x80")))
            )
        )
    ),
)


@settings(max_examples=form(10, 25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(forgeries)
def test_whatever_a_cell_writes_to_the_wire_the_host_stays_whole(make_kernel, data: bytes) -> None:
    """It reaches no more than the cell could ask for anyway, and the next cell runs."""
    reached: list[tuple[object, ...]] = []
    with make_kernel({"echo": lambda *values: reached.append(values)}) as kernel:
        result = forged(kernel, data, timeout=0.5)
        assert result.ended in ("ok", "killed", "timeout")
        assert is_whole(kernel)
    assert len(reached) <= 3 and all(len(values) <= 1 for values in reached)


def test_half_a_frame_and_then_silence(kernel: Kernel) -> None:
    for seconds in (0.3, 3, 30):  # until it was sent in time
        result = forged(
            kernel, b"\x00\x10\x00\x00half", "while True: time.sleep(1)", timeout=seconds
        )
        if result.ended == "killed":
            break
    assert (result.ended, result.duration < seconds + 30) == ("killed", True), result
    assert is_whole(kernel)


def test_printing_past_the_limit_by_hand_is_stopped_by_the_host(make_kernel) -> None:
    kernel = make_kernel(options=KernelOptions(output_bytes=1 << 20))
    kernel.execute(FORGE)
    frame = bytes(encode_frame(Printed(b"x" * 100_000)))
    result = kernel.execute(f"data = {frame!r}\nwhile True: send(data)")
    assert (result.ended, len(result.printed) < 4 << 20) == ("killed", True)
    assert is_whole(kernel)


def test_a_flood_of_calls_without_reading_the_answers(make_kernel) -> None:
    calls: list[int] = []

    def big() -> bytes:
        calls.append(1)
        return b"x" * (1 << 20)

    kernel = make_kernel({"big": big})
    kernel.execute(FORGE)
    kernel.execute(
        "import struct\n"
        "def call(i):\n"
        "    body = b'\\x94\\xabcallrequest\\xce' + struct.pack('>I', 70_000 + i) + b'\\xa3big\\x92\\x90\\x80'\n"
        "    send(struct.pack('>I', len(body)) + body)"
    )
    tracemalloc.start()
    try:
        for seconds in (1.5, 15, 50):  # until there was time for it
            result = kernel.execute("i = 0\nwhile True:\n    i += 1\n    call(i)", timeout=seconds)
            if len(calls) > 64 or result.ended == "killed":
                break
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.ended in ("timeout", "killed")
    assert len(calls) > 64, "the flood must have come through"
    assert peak < 400 << 20
    assert result.duration < seconds + 30
    assert is_whole(kernel)


def test_a_small_frame_cannot_become_a_large_value(make_kernel) -> None:
    kernel = make_kernel({"echo": print})
    kernel.execute(FORGE)
    items = 20_000_000  # would take more than a gigabyte as lists
    kernel.execute(
        "import struct\n"
        f"count = {items}\n"
        "head = b'\\x94\\xabcallrequest\\x07\\xa4echo\\x92\\x91\\xdd' + struct.pack('>I', count)\n"
        "body = head + b'\\x90' * count + b'\\x80'"
    )
    tracemalloc.start()
    try:
        result = kernel.execute("send(struct.pack('>I', len(body)) + body)\ntime.sleep(120)")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.ended == "killed"
    assert "more than 100,000 values" in result.error.message
    assert peak < 100 << 20
    assert is_whole(kernel)


KEYS = {
    "large integers": "(lambda text: bytes([0xC7, len(text), 3]) + text)(str(i * (2**61 - 1)).encode())",
    "arrays": "b'\\x91\\xcd' + struct.pack('>H', i)",
}


@pytest.mark.parametrize("keys", KEYS)
def test_keys_that_all_have_one_hash_do_not_keep_the_host_busy(make_kernel, keys: str) -> None:
    kernel = make_kernel({"echo": print})
    kernel.execute(FORGE)
    made = kernel.execute(
        "import struct\n"
        f"entries = b''.join({KEYS[keys]} + b'\\xc0' for i in range(1, 30_001))\n"
        "body = b'\\x94\\xabcallrequest\\x07\\xa4echo\\x92\\x91\\xdf' + struct.pack('>I', 30_000) + entries + b'\\x80'"
    )
    assert made.ended == "ok", made
    begun = time.process_time()
    result = kernel.execute("send(struct.pack('>I', len(body)) + body)\ntime.sleep(120)")
    assert result.ended == "killed"
    assert "neither text nor an integer" in result.error.message
    assert time.process_time() - begun < 3
    assert is_whole(kernel)


SAVES = {
    "variables without end": [
        SavedValue(tuple(f"n{i}_{j}" for j in range(1000)), "int", True, 1, "", "")
        for i in range(30)
    ],
    "a value without a name": [SavePiece(b"x" * 2000), SavedValue((), "int", True, 1, "", "")],
    "another answer": [Facts(())],
}


@pytest.mark.parametrize("what", SAVES)
def test_a_forged_save_ends_the_kernel_and_keeps_the_last_one(make_kernel, what: str) -> None:
    kernel = make_kernel()
    kernel.execute("kept = 'safe'")
    kernel.save()
    kernel.execute(FORGE)
    frames = b"".join(bytes(encode_frame(one)) for one in SAVES[what])
    kernel.execute(
        f"class Evil:\n    def __reduce__(self):\n        send({frames!r})\n        return int, ()\nevil = Evil()"
    )
    with pytest.raises(KernelDied):
        kernel.save()
    assert kernel.execute("print(kept)").stdout == "safe\n"


def test_a_save_cannot_fill_the_store_beyond_what_fits_into_its_memory(make_kernel) -> None:
    class Counting(MemoryBlobs):
        total = 0

        def put(self, data: bytes, /) -> str:
            self.total += len(data)
            return str(self.total)

    blobs = Counting()
    kernel = make_kernel(blobs=blobs, limits=JailLimits(memory_bytes=256 << 20))
    kernel.execute(FORGE)
    piece, kept = (
        encode_frame(SavePiece(b"x" * (16 << 20))),
        encode_frame(SavedValue(("a",), "bytes", True, 1, "", "")),
    )
    kernel.execute(
        f"piece = {bytes(piece)[:20]!r} + b'x' * {len(piece) - 20}\n"
        f"class Evil:\n    def __reduce__(self):\n        while True: send(piece); send({bytes(kept)!r})\nevil = Evil()"
    )
    with pytest.raises(KernelDied, match="larger pickles than it may"):
        kernel.save()
    assert blobs.total <= 1 << 30


@pytest.mark.parametrize(
    "how", ["os.close(wire)", "os.dup2(os.open('f', os.O_CREAT | os.O_RDWR), wire)"]
)
def test_losing_the_socket(kernel: Kernel, how: str) -> None:
    kernel.execute(FORGE)
    result = kernel.execute(f"{how}\ntime.sleep(120)")
    assert (result.ended, result.duration < 30) == ("killed", True)
    assert is_whole(kernel)
