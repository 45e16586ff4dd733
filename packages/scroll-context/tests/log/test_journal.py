"""The journal: one writer of a session, in order, with a lease, observers that change nothing, and
a quota.
"""

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest

from scroll_context.errors import BadInput, QuotaReached, SessionBusy, StoreClosed
from scroll_context.events import Event, Kind, Scope
from scroll_context.log.journal import Journal, Quota
from scroll_context.log.redact import Redactor
from scroll_context.store import Store


@pytest.fixture
def journal(store: Store) -> Iterator[Journal]:
    journal = Journal(store.log, Scope("s", "me", "task"))
    yield journal
    journal.close()


def said(journal: Journal, text: str) -> Event:
    return journal.append(journal.draft(Kind.CONVERSATION, role="user", content=text))


def test_an_event_is_what_the_log_gives_back(store: Store, journal: Journal) -> None:
    texts = ["plain", "\ud800 lone", "日本語" * 10, "long " * 20_000]
    events = [said(journal, text) for text in texts]
    events += journal.append_many(
        journal.draft("note", content=str(n), metadata={"n": n}) for n in range(3)
    )
    assert [store.log.get(event.seq) for event in events] == events
    assert (events[0].session_id, events[0].agent_id, events[0].task_id) == ("s", "me", "task")
    assert events[3].payload is not None and store.log.text(events[3]) == texts[3]


def test_a_body_becomes_a_payload_and_content_what_is_shown(store: Store, journal: Journal) -> None:
    image = journal.append(
        journal.draft(Kind.ARTIFACT, content="[a picture]"), body=b"\x89PNG", media_type="image/png"
    )
    assert (
        image.content == "[a picture]" and store.payloads.read(image.payload.digest) == b"\x89PNG"
    )  # type: ignore[union-attr]
    rows = "[" + "1," * 40_000 + "1]"
    result = journal.append(
        journal.draft(Kind.TOOL_RESULT, content=rows), media_type="application/json"
    )
    assert result.payload is not None and result.payload.media_type == "application/json"
    assert len(result.content) < 3_000 and store.log.text(result) == rows


def test_threads_append_in_one_order_that_everyone_sees(store: Store, journal: Journal) -> None:
    viewed: list[int] = []
    observed: list[int] = []
    journal.follow(lambda event: viewed.append(event.seq))
    journal.subscribe(lambda event: observed.append(event.seq))

    def work(number: int) -> None:
        for n in range(40):
            said(journal, f"{number} {n}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said(journal, "last")
    assert viewed == observed == [event.seq for event in store.log.iterate()] == list(range(1, 322))


def test_what_an_observer_raises_changes_nothing(
    store: Store, journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: Event) -> None:
        raise RuntimeError(f"no room for {event.content}")

    heard: list[str] = []
    journal.subscribe(broken)
    end = journal.subscribe(lambda event: heard.append(event.content))
    assert said(journal, "one").seq == 1
    end()
    assert said(journal, "two").seq == 2
    assert heard == ["one"]
    assert "no room for one" in caplog.text and "no room for two" in caplog.text


def test_an_observer_may_append_and_order_holds(journal: Journal) -> None:
    heard: list[str] = []

    def answer(event: Event) -> None:
        heard.append(event.content)
        if event.content == "question":
            said(journal, "answer")

    journal.subscribe(answer)
    said(journal, "question")
    assert heard == ["question", "answer"]


def test_a_repeated_source_key_yields_the_first_event_and_tells_nobody(journal: Journal) -> None:
    told: list[Event] = []
    journal.follow(told.append)
    first, new = journal.append_once("host:1", journal.draft(Kind.CONVERSATION, content="hello"))
    again, newer = journal.append_once(
        "host:1", journal.draft(Kind.CONVERSATION, content="hello, changed")
    )
    assert (new, newer) == (True, False)
    assert again == first and told == [first]


def test_only_events_of_its_own_session(journal: Journal) -> None:
    with pytest.raises(BadInput, match="records session 's'"):
        journal.append(journal.draft(Kind.NOTICE).__class__(session_id="other", content="x"))


def test_work_above_the_quota_is_refused_and_what_has_begun_is_recorded(store: Store) -> None:
    journal = Journal(store.log, Scope("small"), quota=Quota(events=3, payload_bytes=1_000_000))
    for n in range(3):
        journal.require_room()
        said(journal, str(n))
    with pytest.raises(QuotaReached, match=r"3 of 3 events.*larger SessionOptions\.quota"):
        journal.require_room()
    assert said(journal, "the result of what had begun").seq == 4
    journal.quota = Quota(events=100, payload_bytes=10)
    journal.append(journal.draft(Kind.ARTIFACT), body=b"0123456789", media_type="image/png")
    with pytest.raises(QuotaReached, match="10 of 10 payload bytes"):
        journal.require_room()
    journal.close()


def test_the_reserve_ends_too(store: Store) -> None:
    journal = Journal(store.log, Scope("small"), quota=Quota(events=1))
    journal.append_many(journal.draft(Kind.NOTICE) for _ in range(2_001))
    with pytest.raises(QuotaReached, match="its reserve included"):
        said(journal, "one more")
    journal.close()


def test_a_quota_that_was_passed_at_one_stroke_is_reached(store: Store) -> None:
    journal = Journal(store.log, Scope("small"), quota=Quota(row_bytes=1_000, snapshot_bytes=50))
    said(journal, "x" * 5_000)
    assert 5_000 < journal.used.row_bytes < 6_000
    with pytest.raises(QuotaReached, match=r"of 1,000 row bytes"):
        journal.require_room()
    journal.quota = Quota(snapshot_bytes=50)
    journal.append(journal.draft(Kind.NOTICE, metadata={"bytes": 70}))
    journal.require_room()
    journal.append(journal.draft(Kind.SNAPSHOT, metadata={"bytes": 70}))
    with pytest.raises(QuotaReached, match="70 of 50 snapshot bytes"):
        journal.require_room()
    with pytest.raises(BadInput, match="a quota of events must be at least 1, not 0"):
        Quota(events=0)
    journal.close()


def test_a_resumed_session_has_used_what_it_recorded_before(store: Store, journal: Journal) -> None:
    for text in ("x" * 4_000, "y" * 3_000):
        said(journal, text)
    other = Journal(store.log, Scope("another"))
    said(other, "of a session that this one was forked from")
    other.close()
    used = journal.used
    viewed: list[int] = []
    journal.follow(lambda event: viewed.append(event.seq), list(store.log.iterate()))
    assert viewed == [1, 2, 3] and journal.used.events == used.events == 2
    assert (
        7_000 < journal.used.row_bytes < 8_000
        and abs(journal.used.row_bytes - used.row_bytes) < 500
    )


def test_an_append_that_was_interrupted_after_the_commit_is_shown_with_the_next(
    journal: Journal,
) -> None:
    viewed: list[str] = []
    interrupts = [KeyboardInterrupt()]

    def view(event: Event) -> None:
        if event.content == "interrupted" and interrupts:
            raise interrupts.pop()
        viewed.append(event.content)

    journal.follow(view)
    said(journal, "first")
    with pytest.raises(KeyboardInterrupt):
        said(journal, "interrupted")
    said(journal, "next")
    with journal.hold():
        assert viewed == ["first", "interrupted", "next"]


def test_secrets_are_redacted_in_content_and_in_text_bodies(store: Store, journal: Journal) -> None:
    key = "ghp_" + "a1B2c3D4e5" * 4
    journal.redact = Redactor()
    for body in (f"token {key}\n" * 3_000, f"token {key}\n".encode() * 3_000):
        event = journal.append(journal.draft(Kind.TOOL_RESULT, content=f"shown {key}"), body=body)
        assert key not in event.content and "shown" in event.content
        assert key not in store.log.text(event) and store.log.text(event).count("token") == 3_000
    picture = key.encode()
    event = journal.append(journal.draft(Kind.ARTIFACT), body=picture, media_type="image/png")
    assert event.payload is not None and store.payloads.read(event.payload.digest) == picture, (
        "no text, left alone"
    )


def test_a_source_key_of_another_session_is_refused_loudly(store: Store, journal: Journal) -> None:
    with contextlib.closing(Journal(store.log, Scope("other"))) as other:
        first, is_new = other.append_once(
            "key:1", other.draft(Kind.CONVERSATION, role="user", content="first")
        )
        assert is_new
        last = store.log.last_seq()
        with pytest.raises(BadInput, match=f"belongs to seq {first.seq} of session 'other'"):
            journal.append_once(
                "key:1", journal.draft(Kind.CONVERSATION, role="user", content="lost in silence")
            )
        assert store.log.last_seq() == last
        again, is_new = other.append_once(
            "key:1", other.draft(Kind.CONVERSATION, role="user", content="first")
        )
        assert (again.seq, is_new) == (first.seq, False)
    said(journal, "goes on")


def test_a_closed_journal_refuses(store: Store, journal: Journal) -> None:
    said(journal, "one")
    journal.close()
    with pytest.raises(StoreClosed, match="resume it"):
        said(journal, "two")
    assert store.log.last_seq() == 1


# the lease ----------------------------------------------------------------------------------------------


def test_a_second_journal_in_the_same_process_is_refused_by_name(
    store: Store, journal: Journal
) -> None:
    with pytest.raises(SessionBusy, match=f"process {os.getpid()} on ") as busy:
        Journal(store.log, Scope("s"))
    assert busy.value.holder == journal.log.backend.holder(journal.session_id)
    Journal(store.log, Scope("another")).close()
    journal.close()
    Journal(store.log, Scope("s")).close()


def test_waiting_for_a_lease(store: Store, journal: Journal) -> None:
    taken: list[Journal] = []
    thread = threading.Thread(
        target=lambda: taken.append(Journal(store.log, Scope("s"), wait=30.0))
    )
    thread.start()
    journal.close()
    thread.join()
    holder = taken[0].log.backend.holder("s")
    assert holder is not None and holder.process == os.getpid()
    assert said(taken[0], "mine now").seq == 1
    taken[0].close()
