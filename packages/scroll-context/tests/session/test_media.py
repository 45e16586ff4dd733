"""Images and files: recorded with addresses of their own, counted, folded to stubs, recovered."""

import struct
import zlib
from collections.abc import Callable

import pytest

from scroll_context.agent.agent import Agent
from scroll_context.contents import media_of
from scroll_context.errors import BadInput, PayloadMissing
from scroll_context.events import Kind
from scroll_context.messages import Media, ToolCall, image_size
from scroll_context.models import Reply, Request, ScriptedModel
from scroll_context.session.host import HostMessage, Keep, Replace
from scroll_context.session.options import SessionOptions
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.tools.tools import tool

Opened = Callable[..., Session]
PLAIN = SessionOptions(context="plain")


def png(width: int, height: int) -> bytes:
    """A grey image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\0" + b"\x80" * width for _ in range(height)))
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


CHART = Media(media_type="image/png", data=png(750, 400), name="chart.png")


def test_sizes_are_read_from_the_headers_of_images() -> None:
    assert image_size(png(640, 480)) == (640, 480)
    assert image_size(b"GIF89a" + struct.pack("<HH", 3, 5) + b"\0" * 9) == (3, 5)
    frame = b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", 7, 9) + b"\0" * 9
    assert image_size(b"\xff\xd8\xff\xe0\x00\x04ab" + frame) == (9, 7)
    assert image_size(b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0" + b"\x01\0\0\x02\0\0") == (2, 3)
    assert image_size(b"\xff\xd8\xff") == image_size(b"text") == image_size(b"") == (0, 0)


def test_an_image_in_a_hosts_message_is_recorded_counted_and_recovered(
    store: Store, opened: Opened
) -> None:
    session = opened(options=PLAIN)
    messages = [HostMessage(role="user", text="What is this?", media=(CHART,))]
    layout = session.follow(messages)
    assert layout.is_unchanged and layout.tokens >= 400
    event = store.log.get(layout.seqs[0])
    [facts] = media_of(event)
    assert facts.name == "chart.png" and facts.tokens == 400
    assert store.log.payloads.read(facts.digest) == CHART.data
    before = len(list(session.events()))
    session.follow(messages)
    assert len(list(session.events())) == before + 1, "only the request is new"
    other = HostMessage(role="user", text="What is this?", media=())
    assert not session.follow([other]).evicted
    assert [event.kind for event in session.events()].count(Kind.RETRACTION) == 1


def test_images_of_past_messages_leave_for_a_note_that_names_their_seq(
    store: Store, opened: Opened
) -> None:
    session = opened(options=PLAIN)
    messages: list[HostMessage] = []
    for number in range(12):
        messages.append(HostMessage(role="user", text=f"image {number}", media=(CHART,)))
        layout = session.follow(messages, window=4_000)
        assert layout.tokens <= 4_000
        session.replied(Reply(text=f"a chart {number}"))
        messages.append(HostMessage(role="assistant", text=f"a chart {number}"))
    notes = [item.text for item in layout if isinstance(item, Replace)]
    assert isinstance(layout.items[-1], Keep), "the newest image is shown"
    assert notes and all("image chart.png" in note and "expand(" in note for note in notes)


def test_a_result_with_an_image_folds_to_a_stub(opened: Opened) -> None:
    session = opened(options=PLAIN)
    messages = [HostMessage(role="user", text="look at all pages")]
    for number in range(12):
        call = ToolCall(f"c{number}", "look", {"page": number})
        messages.append(HostMessage(role="assistant", calls=(call,)))
        messages.append(
            HostMessage(role="tool", call_id=call.id, name="look", text="ok", media=(CHART,))
        )
        layout = session.follow(messages, window=3_000)
        session.replied(Reply(text="", tool_calls=()))
        messages.append(HostMessage(role="assistant", text="next"))
    stubs = [item.text for item in layout if isinstance(item, Replace)]
    assert stubs and all("folded seq" in stub and "chart.png" in stub for stub in stubs)


def test_the_model_of_our_own_agent_is_sent_the_bytes_after_a_restart_too(store: Store) -> None:
    seen: list[Request] = []

    def look(request: Request) -> str:
        seen.append(request)
        return "a chart"

    with Session.open(store, session_id="s", options=PLAIN) as session:
        Agent(session, ScriptedModel([look])).run("What is this?", media=[CHART])
    with Session.resume(store, "s", options=PLAIN) as session:
        Agent(session, ScriptedModel([look])).run("And what is in it?")
    for request in seen:
        [message] = [message for message in request.messages if message.media]
        assert message.media[0].data == CHART.data and "What is this?" in message.text


def test_a_model_that_takes_no_images_is_refused_before_it_is_asked(store: Store) -> None:
    model = ScriptedModel(["never"], takes_media=False)
    with Session.open(store, options=PLAIN) as session:
        with pytest.raises(BadInput, match="does not take images"):
            Agent(session, model).run("What is this?", media=[CHART])
        assert not model.requests
        assert not [event for event in session.events() if event.role == "user"]


def test_a_tool_that_returns_an_image_shows_it_to_the_model(store: Store) -> None:
    @tool
    def screenshot() -> bytes:
        """The screen."""
        return png(300, 200)

    script = [Reply(tool_calls=(ToolCall("c1", "screenshot", {}),)), "a grey screen"]
    model = ScriptedModel(script)
    with Session.open(store, options=PLAIN, tools=[screenshot]) as session:
        assert Agent(session, model).run("Look at the screen").answer == "a grey screen"
    answer = model.requests[-1].messages[-1]
    assert answer.role == "tool" and answer.media[0].data == png(300, 200)


def test_a_cell_reads_the_image_of_a_message(store: Store, opened: Opened) -> None:
    session = opened()
    layout = session.follow([HostMessage(role="user", text="What is this?", media=(CHART,))])
    source = (
        f"row = ms.expand({layout.seqs[0]})[0]\n"
        "image = row['media'][0]\n"
        "print(image['name'], len(image['payload'].bytes()))\n"
        "print(ms.search('chart.png')[0]['kind'])"
    )
    observation = session.run(source).content
    assert f"chart.png {len(CHART.data)}" in observation and "artifact" in observation


def test_erasing_a_message_erases_its_image(store: Store) -> None:
    with Session.open(store, session_id="s", options=PLAIN) as session:
        layout = session.follow([HostMessage(role="user", text="my passport", media=(CHART,))])
    [facts] = media_of(store.log.get(layout.seqs[0]))
    store.erase(seqs=[layout.seqs[0]], copies=True)
    assert store.log.get(facts.seq).is_erased
    with pytest.raises(PayloadMissing):
        store.payloads.read(facts.digest)
