"""What tools return: as a value for the cell, and as the whole of it in the log."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import types
from pathlib import Path
from typing import Any

import msgspec
import pytest

from open_journals import journal_of
from scroll_context.errors import StoreError, ToolFailed
from scroll_context.events import Event, Scope
from scroll_context.kernel.values import Pickled, Portable, portable, revive, revive_in_jail
from scroll_context.log.log import EventLog
from scroll_context.log.payloads import ArtifactRef, ToolResultRef, ref
from scroll_context.tools import recorder
from scroll_context.tools.plain import MediaBytes
from scroll_context.tools.recorder import ToolOutcome
from scroll_context.tools.toolbox import Toolbox
from scroll_context.tools.tools import tool

PNG = b"\x89PNG\r\n\x1a\n" + bytes(5_000)


class Grade(enum.Enum):
    GOOD = "good"


@dataclasses.dataclass
class Hotel:
    name: str
    since: dt.date
    tags: set[str]


class Name(str):
    """A subclass of a plain type."""


def returned(log: EventLog, value: Any) -> tuple[ToolOutcome, Event]:
    """What comes of a tool that returns `value`: the outcome and the event."""

    def give() -> Any:
        return value

    outcome = Toolbox([give], journal=journal_of(log, Scope("s", "a"))).call("give", cell_seq=1)
    event = log.get(outcome.result_seq)
    assert (event.tool_state, event.reply_to) == ("ok", outcome.call_seq)
    portable(outcome.value)  # can cross to a cell
    return outcome, event


@pytest.mark.parametrize(
    ("value", "arrives", "text"),
    [
        (None, None, "null"),
        ("plain text", "plain text", "plain text"),
        ({"a": [1, 2.5, True, None]}, {"a": [1, 2.5, True, None]}, '{"a": [1, 2.5, true, null]}'),
        (math.inf, math.inf, "Infinity"),
        ({3}, [3], "[3]"),
        ((1, (2,)), (1, (2,)), "[1, [2]]"),
        (dt.date(2026, 7, 3), dt.date(2026, 7, 3), '"2026-07-03"'),
        ([dt.datetime(2026, 7, 3, 8)], [dt.datetime(2026, 7, 3, 8)], '["2026-07-03T08:00:00"]'),
        (
            Hotel("Sacher", dt.date(1876, 1, 1), {"cake"}),
            {"name": "Sacher", "since": dt.date(1876, 1, 1), "tags": ["cake"]},
            '{"name": "Sacher", "since": "1876-01-01", "tags": ["cake"]}',
        ),
        (
            [Grade.GOOD, Name("x"), decimal.Decimal("1.10"), Path("a/b")],
            ["good", "x", "1.10", "a/b"],
            None,
        ),
        (range(3), [0, 1, 2], "[0, 1, 2]"),
        (collections.deque([1]), [1], "[1]"),
        ({"a": 1}.items(), [("a", 1)], '[["a", 1]]'),
        (types.MappingProxyType({"a": 1}), {"a": 1}, '{"a": 1}'),
        ({1: "one"}, {1: "one"}, '{"1": "one"}'),
        (10**30, 10**30, str(10**30)),
        ("Grüße, 東京", "Grüße, 東京", "Grüße, 東京"),
        (["Grüße"], ["Grüße"], '["Grüße"]'),
        ({"k": b"\0\1"}, {"k": b"\0\1"}, '{"k": {"base64": "AAE="}}'),
        (bytearray(b"x"), b"x", None),
    ],
)
def test_common_results_arrive_and_are_recorded(
    log: EventLog, value: Any, arrives: Any, text: str | None
) -> None:
    outcome, event = returned(log, value)
    assert outcome.value == arrives
    assert type(outcome.value) is type(arrives)
    assert text is None or event.content == text
    assert outcome.ref is None


def test_nan_survives_in_both_places(log: EventLog) -> None:
    outcome, event = returned(log, [math.nan, 1.0])
    assert math.isnan(outcome.value[0])
    assert math.isnan(json.loads(event.content)[0])


def test_generators_are_read_to_their_end(log: EventLog) -> None:
    assert returned(log, (n * n for n in range(4)))[0].value == [0, 1, 4, 9]


def test_models_arrays_and_frames(log: EventLog) -> None:
    pydantic, numpy, pandas = (
        pytest.importorskip(name) for name in ("pydantic", "numpy", "pandas")
    )

    class Room(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        beds: int
        free: dt.date

    assert returned(log, [Room(beds=2, free=dt.date(2026, 7, 3))])[0].value == [
        {"beds": 2, "free": dt.date(2026, 7, 3)}
    ]
    assert returned(log, numpy.float64(0.5))[0].value == 0.5
    outcome, event = returned(log, {"m": numpy.array([[1, 2]])})
    assert outcome.value["m"].plain == [[1, 2]] and event.content == '{"m": [[1, 2]]}'
    # An array of objects may hold anything, so it is lists.
    assert returned(log, numpy.array([1, "a"], dtype=object))[0].value == [1, "a"]
    frame = pandas.DataFrame(
        {"city": ["Wien", "Graz"], "n": [1, None], "day": pandas.Timestamp("2026-07-03")}
    )
    outcome, event = returned(log, frame)
    rows = json.loads(event.content)
    assert rows == outcome.value.plain
    assert [row["city"] for row in rows] == ["Wien", "Graz"]
    assert [row["n"] for row in rows] == [1.0, None]
    assert rows[0]["day"].startswith("2026-07-03T00:00:00")
    assert returned(log, frame["city"])[0].value.plain == ["Wien", "Graz"]


def test_the_host_refuses_a_pickle_that_a_kernel_sends() -> None:
    sent = msgspec.msgpack.encode([portable(Pickled("DataFrame", b"cos\nsystem\n", []))])
    assert isinstance(msgspec.msgpack.decode(sent, ext_hook=revive_in_jail)[0], Pickled)
    with pytest.raises(ValueError, match=r"codec|unknown extension"):
        msgspec.msgpack.decode(sent, ext_hook=revive)


def test_a_result_is_walked_once() -> None:
    # A set is refused by a walk and can be encoded, so it shows that there was no second walk.
    walked = Portable([1, {2}])
    assert portable({"value": walked}) == {"value": [1, {2}]}
    with pytest.raises(TypeError, match="set cannot be sent"):
        portable({"value": [1, {2}]})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (object(), "a value of type builtins.object cannot be given to a cell"),
        ([print], "builtin_function_or_method cannot be given"),
        ({(1, 2): 3}, "keys must be str, int"),
        ({None: 1}, "a dict key of type NoneType"),
        ((lambda a: a.append(a) or a)([]), "recursion"),
    ],
)
def test_what_cannot_be_used_is_an_error_that_names_it(
    log: EventLog, value: Any, said: str
) -> None:
    with pytest.raises(ToolFailed) as caught:
        returned(log, value)
    assert said in str(caught.value)
    event = log.tail(1)[0]
    assert event.tool_state == "error"
    assert said in event.content


def test_lone_surrogates_are_replaced(log: EventLog) -> None:
    outcome, event = returned(log, {"name": "bad \ud800 name"})
    assert outcome.value == {"name": "bad ? name"}
    assert json.loads(event.content) == outcome.value


# bytes ----------------------------------------------------------------------------------------------------


def test_bytes_are_a_payload_with_their_type(log: EventLog) -> None:
    outcome, event = returned(log, PNG)
    handle = ref(event, log.payloads)
    assert outcome.value == PNG
    assert event.content == "[image/png, 5,008 bytes]"
    assert isinstance(handle, ArtifactRef)
    assert (handle.media_type, handle.bytes()) == ("image/png", PNG)


def test_media_say_what_they_are(log: EventLog) -> None:
    outcome, event = returned(log, MediaBytes(b"RIFF", "audio/wav"))
    assert outcome.value == b"RIFF"
    assert event.payload is not None
    assert event.payload.media_type == "audio/wav"


def test_bytes_among_other_values_are_events_of_their_own(log: EventLog) -> None:
    sound = MediaBytes(b"sound" * 1_000, "audio/mpeg")
    outcome, event = returned(log, {"caption": "a dog", "image": PNG, "more": [sound]})
    assert outcome.value == {"caption": "a dog", "image": PNG, "more": [sound.data]}
    said = json.loads(event.content)
    image, track = log.get(said["image"]["artifact"]), log.get(said["more"][0]["artifact"])
    assert said["image"] == {"artifact": image.seq, "media_type": "image/png", "size": len(PNG)}
    assert (image.kind, image.reply_to, image.metadata) == (
        "artifact",
        outcome.call_seq,
        {"inside_cell": 1},
    )
    assert track.payload is not None
    assert (track.payload.media_type, log.payloads.read(track.payload.digest)) == (
        "audio/mpeg",
        sound.data,
    )
    assert outcome.call_seq < image.seq < track.seq < outcome.result_seq


# large ----------------------------------------------------------------------------------------------------


def test_a_middling_result_is_a_payload_and_still_a_value(log: EventLog) -> None:
    rows = [{"n": n, "text": "x" * 100} for n in range(1_000)]
    outcome, event = returned(log, rows)
    handle = ref(event, log.payloads)
    assert outcome.value == rows
    assert isinstance(handle, ToolResultRef)
    assert (handle.media_type, handle.json()) == ("application/json", rows)
    assert len(event.content) == 2_000


@pytest.mark.parametrize(
    ("value", "media_type", "text"),
    [
        ([{"n": n, "text": "y" * 1_000} for n in range(2_000)], "application/json", True),
        ("lots of text\n" * 200_000, "text/plain; charset=utf-8", True),
        (bytes(2_000_000), "application/octet-stream", False),
    ],
)
def test_what_is_too_large_to_cross_at_once_is_a_reference(
    log: EventLog, value: Any, media_type: str, text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert returned(log, value)[0].value == value, "up to sixteen megabytes cross as they are"
    monkeypatch.setattr(recorder, "CROSSING", 1 << 20)
    outcome, event = returned(log, value)
    found = outcome.ref
    assert outcome.value is None
    assert found is not None and event.payload is not None
    assert (found.seq, found.media_type, found.text) == (event.seq, media_type, text)
    assert (found.size, found.preview) == (event.payload.size, event.content)
    assert set(msgspec.to_builtins(found)) == {"seq", "size", "media_type", "text", "preview"}
    handle = ref(event, log.payloads)
    if isinstance(handle, ToolResultRef):
        assert (handle.json() if media_type == "application/json" else handle.text()) == value
    else:
        assert isinstance(handle, ArtifactRef)
        assert handle.bytes() == value


def test_large_media_beside_a_small_text_do_not_cross_either(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "CROSSING", 1 << 20)
    outcome, event = returned(log, {"image": bytes(2_000_000)})
    assert outcome.value is None
    assert outcome.ref is not None
    said = json.loads(log.text(event))
    assert said["image"]["size"] == 2_000_000
    assert log.get(said["image"]["artifact"]).payload is not None


@pytest.mark.parametrize(
    "value", ["x" * 5_000, [b"x" * 3_000, b"y" * 3_000], b"z" * 5_000, ["x" * 5_000]]
)
def test_a_huge_result_is_refused_and_said_so(
    log: EventLog, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "MAX_RESULT", 4_096)
    with pytest.raises(ToolFailed, match="at most 4,096 are accepted"):
        returned(log, value)
    assert log.tail(1)[0].tool_state == "error"


def test_large_arguments_are_kept_whole(log: EventLog) -> None:
    @tool
    def write(text: str) -> int:
        return len(text)

    outcome = Toolbox([write], journal=journal_of(log, Scope("s"))).call(
        "write", ("word " * 100_000,)
    )
    call = log.get(outcome.call_seq)
    assert call.payload is not None
    assert json.loads(log.text(call)) == {"text": "word " * 100_000}


def test_a_result_that_cannot_be_kept_ends_its_call_all_the_same(
    log: EventLog, folder: Path
) -> None:
    (folder / "payloads").write_text(
        "in the way"
    )  # the log still takes lines; no payload can be stored

    def give() -> str:
        return "x" * 100_000

    with pytest.raises(StoreError, match="payload"):
        Toolbox([give], journal=journal_of(log, Scope("s", "a"))).call("give", cell_seq=1)
    call, result = log.iterate()
    assert (call.kind, result.kind, result.reply_to) == ("tool_call", "tool_result", call.seq)
    assert result.tool_state == "error"
    assert "could not be recorded" in result.content
