"""Members of a store that send the server whatever their rights allow: no host stops, and no
history is rewritten.

The members hold a plain connection and only the rights of their login. Every attack here worked
once.
"""

import logging
import os
import resource
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest

from members import Member, body
from scroll_context import Draft, Store
from scroll_context.errors import SessionBusy, StoreLocked
from scroll_context.events import Kind, Scope
from scroll_context.log.erasing import blanked
from scroll_context.log.journal import Journal
from scroll_context.log.rows import ERASED, UNREADABLE
from scroll_context.upkeep.integrity import verify
from scroll_shared import admin
from scroll_shared.address import parse
from scroll_shared.backend import shared_backend
from servers import Postgres
from stores import Hosts, hosts_of

UNREADABLE_BODIES = {
    "bytes that are no MessagePack": body()[:7] + b"\xc1" * 20 + b"\xc0",
    "a column too few": b"\xdc\x00\x14" + msgspec.msgpack.encode(["s", "", ""])[1:] + b"\xa1x\xc0",
    "a column too many": body()[:-1] + b"\xc0\xc0",
    "a number instead of a text": body(content=7),
    "a list instead of a text": body(headline=[1, 2]),
    "a number of more than 64 bits": body(reply_to=2**64 - 1),
    "a text in a longer form than Scroll writes": body().replace(b"\xa5words", b"\xd9\x05words"),
    "a text that is not UTF-8": body().replace(b"words", b"wor\xffs"),
    "a date that is none": body(created_at="yesterday"),
    "a payload that names a file": body(
        payload="../../etc/passwd", payload_size=1, payload_type="text/plain"
    ),
    "metadata that is no object": body(metadata="[1]"),
    "metadata that is nested very deeply": body(metadata='{"a":' + "[" * 100_000),
    "metadata that says it was erased": body(metadata='{"erased":true}'),
    "metadata that says it is unreadable": body(metadata='{"\\u0075nreadable":true}'),
}


class Members:
    """A store with one host, and a login for each kind of member."""

    def __init__(self, database: str, hosts: Hosts) -> None:
        self.database = database
        self.hosts = hosts
        self.name = str(psycopg.conninfo.conninfo_to_dict(database)["dbname"])
        self.store = hosts.open("owner", create=True)
        self.owner = Member(database)
        rights = {"reader": (False, False), "appender": (True, False), "eraser": (True, True)}
        for role, (can_append, can_erase) in rights.items():
            self.owner.sql(f"CREATE ROLE {role}_{self.name} LOGIN PASSWORD 'pw'")
            admin.grant(
                parse(hosts.url), f"{role}_{self.name}", can_append=can_append, can_erase=can_erase
            )
        self.reader, self.appender, self.eraser = (Member(self.url(role)) for role in rights)

    def url(self, role: str) -> str:
        return f"postgresql://{role}_{self.name}:pw@{self.database.partition('@')[2]}"

    def host(self, role: str, name: str) -> Store:
        """A host that uses the login of a role; the test closes it."""
        rest = self.hosts.address(name).partition("@")[2]
        return Store(f"postgresql://{role}_{self.name}:pw@{rest}")

    def close(self) -> None:
        for member in (self.reader, self.appender, self.eraser):
            member.close()
        for role in ("reader", "appender", "eraser"):
            self.owner.sql(f"DROP OWNED BY {role}_{self.name}")
            self.owner.sql(f"DROP ROLE {role}_{self.name}")
        self.owner.close()


@pytest.fixture
def members(database: str, tmp_path: Path) -> Iterator[Members]:
    with hosts_of(database, tmp_path, lease=30, timeout=20) as hosts:
        members = Members(database, hosts)
        yield members
        members.close()


def reach(store: Store, seq: int) -> None:
    assert shared_backend(store.log).replica.wait_for(seq, 60)


def is_refused(state: str) -> "pytest.RaisesExc[psycopg.Error]":
    return pytest.raises(psycopg.Error, check=lambda error: error.sqlstate == state)


# rows that cannot be read ---------------------------------------------------------------------------


def test_rows_that_cannot_be_read_become_placeholders_on_every_host(
    members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    members.store.append(Draft(content="before"))
    for content in UNREADABLE_BODIES.values():
        members.appender.append(content)
    last = members.store.append(Draft(content="after"))
    reach(members.store, last)
    for store in (members.store, members.hosts.open("fresh")):
        assert [event.content for event in store.log.iterate()] == [
            "before",
            *[UNREADABLE] * len(UNREADABLE_BODIES),
            "after",
        ]
        assert {event.session_id for event in store.log.iterate(kind=Kind.FOREIGN)} == {"s"}
        assert not any(event.is_erased for event in store.log.iterate())
        verdict = verify(store.log)
        assert verdict.ok and len(verdict.known) == len(UNREADABLE_BODIES)
        assert not store.index.search("words")
        assert not (store.folder / "quarantine.json").exists()
    warnings = [
        record.getMessage() for record in caplog.records if record.levelno == logging.WARNING
    ]
    assert any("shown as [unreadable]" in text for text in warnings)


def test_a_second_row_with_a_source_key_becomes_a_placeholder(members: Members) -> None:
    members.store.append(Draft(content="first", source_key="k"))
    members.owner.sql("DELETE FROM scroll.source")  # the server lets no member record a key twice
    second = members.hosts.open("second")
    assert second.append(Draft(content="second", source_key="k")) == 2
    assert second.append(Draft(content="third")) == 3
    reach(members.store, 3)
    for store in (members.store, second, members.hosts.open("fresh")):
        assert [event.content for event in store.log.iterate()] == ["first", UNREADABLE, "third"]
        assert verify(store.log).ok


def test_an_unreadable_row_can_be_erased(members: Members) -> None:
    secret = b"xylophonist"
    seq = members.appender.append(body()[:-1] + bytes([0xA0 + len(secret)]) + secret + b"\xc0")
    members.store.log.backend.refresh()
    assert members.store.log.get(seq).content == UNREADABLE
    members.store.erase(seqs=[seq])
    assert members.store.log.get(seq).is_erased and verify(members.store.log).bad == ()
    assert not [
        row for (row,) in members.owner.sql("SELECT body FROM scroll.event") if secret in row
    ]
    assert members.hosts.open("fresh").log.get(seq).content == ERASED


def test_rows_that_the_server_can_tell_are_no_events_are_refused(members: Members) -> None:
    refused = [
        (body(), {"session_id": b"another"}),
        (body(), {"agent_id": b"another"}),
        (body(), {"task_id": b"another"}),
        (body(), {"source": b"key"}),
        (body(source_key="key"), {}),
        (body(source_key="a key"), {"source": b"key"}),
        (b"", {}),
        (body(content="x" * (17 << 20)), {}),
        (body(session_id="x" * 13_000), {"session_id": b"x" * 13_000}),
    ]
    for content, names in refused:
        with is_refused("SC005"):
            members.appender.append(content, **names)  # type: ignore[arg-type]
    for length in (0, 1, 31, 32, 255, 256, 70_000):
        key = "k" * length if length else None
        content = body(content="x" * length, source_key=key, agent_id="é" * min(length, 1_000))
        names = {
            "source": key.encode() if key else None,
            "agent_id": b"\xc3\xa9" * min(length, 1_000),
        }
        members.appender.append(content, **names)  # type: ignore[arg-type]
    assert members.store.append(Draft(content="goes on")) == 8
    reach(members.store, 8)
    assert UNREADABLE not in [event.content for event in members.store.log.iterate()]


# events about the store -----------------------------------------------------------------------------


def test_events_about_the_store_need_the_right_to_erase(members: Members) -> None:
    own_session = {"session_id": b"scroll.store"}
    attempts = [
        (
            body(kind="erasure", session_id="scroll.store", metadata='{"spans":[[1,1]]}'),
            own_session,
        ),
        (body(session_id="scroll.store"), own_session),
        (body(kind="erasure"), {}),
        (body(kind="salvage", metadata='{"altered":[1]}'), {}),
    ]
    for content, names in attempts:
        with is_refused("SC001"):
            members.appender.append(content, **names)
        members.eraser.append(content, **names)


def test_spans_of_an_erasure_are_walked_only_as_far_as_there_are_events(members: Members) -> None:
    for n in range(3):
        members.store.append(Draft(content=f"event {n}"))
    spans = [[1, 10**12], [-(10**15), 2], [5, -5], ["x", 1], [1], 7, None, [1, 2.5], [True, 3]]
    metadata = msgspec.json.encode({"spans": spans * 2_000}).decode()
    forged = body(kind="erasure", session_id="scroll.store", metadata=metadata)
    seq = members.eraser.append(forged, session_id=b"scroll.store")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.monotonic()
    fresh = members.hosts.open("fresh")
    reach(members.store, seq)
    for store in (members.store, fresh):
        store.log.backend.refresh()
        assert [event.content for event in store.log.iterate(until=3)] == [
            f"event {n}" for n in range(3)
        ]
        assert not verify(store.log).bad
    assert time.monotonic() - begun < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


# erasing ----------------------------------------------------------------------------------------------

_ERASE = "SELECT scroll.erase(%s, %s, %s::bigint[], %s::bytea[], %s, %s)"


def erase(member: Member, seq: int, content: bytes) -> None:
    record = body(
        kind="erasure", session_id="scroll.store", role="", metadata=f'{{"spans":[[{seq},{seq}]]}}'
    )
    name = uuid.uuid4().bytes
    member.sql(_ERASE, member.store_id, name, [seq], [content], os.urandom(16), record)


def test_an_erasure_puts_no_words_in_the_place_of_others(members: Members) -> None:
    seq = members.appender.append(body(content="said by another", tool_call_id="call-1"))
    blank = {"content": "[erased]", "metadata": '{"erased":true}'}
    for changes in (
        {"content": "never said"},
        {**blank, "headline": "never said"},
        {**blank, "name": "never said"},
        {**blank, "role": "never said"},
        {**blank, "tool_call_id": "never said"},
        {**blank, "created_at": "2020-01-01"},
        {**blank, "session_id": "another"},
        {**blank, "source_key": "import:x"},
        {**blank, "payload": "ab" * 32, "payload_size": 1, "payload_type": "text/plain"},
    ):
        with is_refused("SC005"):
            erase(members.eraser, seq, body(**{"tool_call_id": "call-1", **changes}))
    for content in (b"", b"words", body()[:-3], b"\xdc\x00\x14" + b"\xdb\xff\xff\xff\xff" * 20):
        with is_refused("SC005"):
            erase(members.eraser, seq, content)
    erase(members.eraser, seq, body(**blank))
    members.store.log.backend.refresh()
    assert members.store.log.get(seq).is_erased
    with is_refused("SC005"):
        erase(members.eraser, seq + 1, body(**blank, session_id="scroll.store", kind="erasure"))


def test_hosts_show_an_erased_row_blank_whatever_the_server_has(members: Members) -> None:
    running = members.hosts.open("running")
    seqs = [members.appender.append(body(content="said by another")) for _ in range(3)]
    reach(running, seqs[-1])
    forged = body(content="never said", role="From now on", source_key="import:x")
    members.owner.sql(
        "UPDATE scroll.event SET leaf = sha256(nonce || body), nonce = NULL, body = %s WHERE seq = %s",
        forged,
        seqs[0],
    )
    members.owner.sql(
        "UPDATE scroll.event SET leaf = sha256(nonce || body), nonce = NULL, body = 'x' WHERE seq = %s",
        seqs[1],
    )
    record = body(kind="erasure", session_id="scroll.store", metadata='{"spans":[[1,2]]}')
    last = members.eraser.append(record, session_id=b"scroll.store")
    reach(running, last)
    running.log.backend.refresh()
    for store in (running, members.hosts.open("fresh")):
        for seq in seqs[:2]:
            event = store.log.get(seq)
            assert event.is_erased and (event.content, event.headline, event.source_key) == (
                ERASED,
                "",
                "",
            )
            assert event.role in ("", "user")
        assert store.log.get(seqs[2]).content == "said by another"
        assert verify(store.log).bad == ()


def test_the_server_accepts_what_a_host_blanks(members: Members) -> None:
    drafts = [
        Draft(content="plain", session_id="x" * 300, role="user"),
        Draft(
            content="a tool",
            kind=Kind.TOOL_RESULT,
            role="tool",
            tool_call_id="call",
            reply_to=1,
            step_index=-5,
        ),
        Draft(
            content="large " * 20_000, role="user", metadata={"n": ["é" * 70_000]}, msg_index=2**40
        ),
        Draft(
            content="imported", source_key="import:f:1", role="narrator", metadata={"imported": "f"}
        ),
    ]
    seqs = members.store.log.append_many(drafts)
    rows = members.store.log.rows(0, 10)
    assert [blanked(row, None).content for row in rows] == [ERASED] * 4
    members.store.erase(seqs=seqs)
    assert all(members.store.log.get(seq).is_erased for seq in seqs)
    assert verify(members.store.log).bad == ()


# replicas ---------------------------------------------------------------------------------------------


def test_nobody_reports_for_the_copy_of_another_host(members: Members) -> None:
    members.store.append(Draft(content="secret"))
    shared_backend(members.store.log).follower.report()
    shown = "SELECT replica::text, host, applied, purged FROM scroll.replica WHERE replica = %s"
    name = shared_backend(members.store.log).facts.replica
    before = members.reader.sql(shown, name)
    for guess in (uuid.UUID(name).bytes, name.encode(), name.replace("-", "").encode(), b"\0" * 16):
        members.reader.sql(
            "SELECT scroll.report(%s, %s, 'forged', 99, 99)", members.reader.store_id, guess
        )
    assert members.reader.sql(shown, name) == before
    with is_refused("SC005"):
        members.reader.sql(
            "SELECT scroll.report(%s, ''::bytea, 'forged', 99, 99)", members.reader.store_id
        )
    assert members.reader.sql("SELECT max(applied), max(purged) FROM scroll.replica") == [(1, 1)]


# leases -----------------------------------------------------------------------------------------------

_CLAIM = "SELECT o_epoch FROM scroll.claim(%s, 's', %s, %s, %s::interval)"


def test_a_live_session_cannot_be_taken_renewed_or_released_by_another_member(
    members: Members,
) -> None:
    journal = Journal(members.store.log, Scope("s"))
    same_login = Member(members.database)
    ((epoch,),) = members.owner.sql("SELECT epoch FROM scroll.session")
    for member in (members.appender, members.eraser, same_login):
        ((owner,),) = member.sql("SELECT scroll.holder(%s, 's')", member.store_id)
        for secret in (b"\0" * 32, owner.encode()):
            assert member.sql(_CLAIM, member.store_id, owner, secret, "1 minute") == [(None,)]
        for secret in (None, b""):
            with is_refused("SC005"):
                member.sql(_CLAIM, member.store_id, owner, secret, "1 minute")
        for secret in (None, b"", b"\0" * 32):
            member.sql("SELECT scroll.release(%s, 's', %s, %s)", member.store_id, epoch, secret)
            renewed = "SELECT scroll.renew(%s, ARRAY['s'::bytea], ARRAY[%s::bigint], ARRAY[%s::bytea], '1 hour')"
            assert member.sql(renewed, member.store_id, epoch, secret) == [(b"s",)], (
                "it is told that it lost it"
            )
    same_login.close()
    ((now, left),) = members.owner.sql(
        "SELECT epoch, lease_until - now() < interval '1 minute' FROM scroll.session"
    )
    assert now == epoch and left
    assert journal.append(journal.draft(Kind.NOTICE, content="still mine")).seq == 1
    journal.close()
    assert members.store.log.backend.holder("s") is None


def test_another_login_cannot_use_the_secret_of_a_lease(members: Members) -> None:
    secret = os.urandom(32)
    assert members.appender.sql(_CLAIM, members.appender.store_id, "{}", secret, "1 minute") == [
        (1,)
    ]
    assert members.eraser.sql(_CLAIM, members.eraser.store_id, "{}", secret, "1 minute") == [
        (None,)
    ]
    assert members.appender.sql(_CLAIM, members.appender.store_id, "{}", secret, "1 minute") == [
        (2,)
    ]


def test_no_lease_lasts_longer_than_an_hour(members: Members) -> None:
    secret = os.urandom(32)
    left = "SELECT lease_until - now() <= interval '1 hour' FROM scroll.session"
    for length in ("100 years", "-100 years", None):
        members.appender.sql(_CLAIM, members.appender.store_id, "{}", secret, length)
        assert members.owner.sql(left) == [(True,)]
    ((epoch,),) = members.owner.sql("SELECT epoch FROM scroll.session")
    renew = "SELECT scroll.renew(%s, ARRAY['s'::bytea], ARRAY[%s::bigint], ARRAY[%s::bytea], '100 years')"
    assert members.appender.sql(renew, members.appender.store_id, epoch, secret) == []
    assert members.owner.sql(left) == [(True,)]


def test_a_holder_that_describes_itself_in_nonsense_is_named_all_the_same(members: Members) -> None:
    for owner in (
        "not JSON",
        '{"session_id":"s","process":1,"host":"\\u001b[2Jhost","since":"then"}',
    ):
        members.owner.sql("DELETE FROM scroll.session")
        members.appender.sql(_CLAIM, members.appender.store_id, owner, os.urandom(32), "1 minute")
        with pytest.raises(SessionBusy, match="host") as refused:
            Journal(members.store.log, Scope("s"))
        assert "\x1b" not in str(refused.value)


# locks ------------------------------------------------------------------------------------------------


def test_a_member_that_keeps_the_lock_of_the_store_makes_appends_fail_in_time_and_clearly(
    members: Members,
) -> None:
    patience = "CREATE OR REPLACE FUNCTION scroll.lock_patience() RETURNS text LANGUAGE sql AS $$ SELECT '1s' $$"
    members.owner.sql(patience)
    members.store.append(Draft(content="first"))
    members.appender.sql("BEGIN")
    members.appender.sql(_CLAIM, members.appender.store_id, "{}", os.urandom(32), "1 minute")
    with pytest.raises(StoreLocked, match="another login holds a lock"):
        members.store.append(Draft(content="held up"))
    members.appender.sql("ROLLBACK")
    assert members.store.append(Draft(content="again")) == 2
    assert [event.content for event in members.store.log.iterate()] == ["first", "again"]


# source keys ------------------------------------------------------------------------------------------


def test_a_source_key_that_another_login_took_first_hides_no_words(members: Members) -> None:
    for session_id in ("v", "elsewhere"):
        key = f"observed:{session_id}:msg-2"
        forged = body(session_id=session_id, content="I agree to pay", source_key=key)
        members.appender.append(forged, session_id=session_id.encode(), source=key.encode())
    journal = Journal(members.store.log, Scope("v"))
    for session_id in ("v", "elsewhere"):
        key = f"observed:{session_id}:msg-2"
        draft = journal.draft(Kind.CONVERSATION, role="user", content="I do NOT agree to pay")
        event, is_new = journal.append_once(key, draft)
        assert is_new and event.content == "I do NOT agree to pay" and event.session_id == "v"
        assert members.store.log.get(event.seq).source_key.startswith(f"{key}~")
        again, is_new = journal.append_once(key, draft)
        assert again.seq == event.seq and not is_new, "a repetition is recognised"
    journal.close()
    fresh = members.hosts.open("fresh")
    contents = [event.content for event in fresh.log.iterate()]
    assert contents == ["I agree to pay"] * 2 + ["I do NOT agree to pay"] * 2
    assert verify(fresh.log).ok


def test_rows_appended_under_a_key_that_another_login_took_are_recorded(members: Members) -> None:
    members.appender.append(body(content="noise", source_key="import:f:1"), source=b"import:f:1")
    drafts = [
        Draft(content=text, role="user", session_id="chat", source_key=f"import:f:{n}")
        for n, text in enumerate(("hello", "the contract is void", "bye"))
    ]
    seqs = members.store.log.append_many(drafts)
    assert [members.store.log.get(seq).content for seq in seqs] == [d.content for d in drafts]
    assert members.store.log.append_many(drafts) == seqs


def test_an_import_on_a_host_with_another_login_is_still_recognised(members: Members) -> None:
    draft = Draft(content="hello", role="user", session_id="chat", source_key="import:f:1")
    seq = members.store.append(draft)
    with members.host("eraser", "other") as other:
        assert other.append(draft) == seq
        other.erase(seqs=[seq])
    assert members.store.append(draft) == seq, "an erased event is recognised, too"
    with members.host("appender", "third") as third:
        assert third.append(draft) == seq


def test_a_key_that_ends_in_another_one_hides_no_event(members: Members) -> None:
    """Packed, the longer key ends with the bytes of the shorter one."""
    short = "x" * 128
    long = "\u0640" + short
    forged = members.appender.append(body(content="forged", source_key=long), source=short.encode())
    seq = members.store.append(Draft(content="the real words", source_key=long))
    reach(members.store, seq)
    for store in (members.store, members.hosts.open("fresh")):
        assert store.log.get(forged).content == UNREADABLE
        assert store.log.get(seq).content == "the real words"
        assert verify(store.log).ok


# payloads ---------------------------------------------------------------------------------------------

_PIN = """SELECT o_seqs FROM scroll.append(
    %s, %s, 1, 0, NULL, '{s}', '{""}', '{""}', '{NULL}', %s::text[], '{0}', '{NULL}',
    %s::bytea[], %s::bytea[])"""


def pin(member: Member, digests: str, content: bytes) -> None:
    values = [[digests], [os.urandom(16)], [content]]
    member.sql(_PIN, member.store_id, uuid.uuid4(), *values)


def test_an_append_names_only_the_payloads_that_its_body_names(members: Members) -> None:
    digest, another = "ab" * 32, "cd" * 32
    named = {"payload": digest, "payload_size": 9, "payload_type": "text/plain"}
    saved = msgspec.json.encode({"saved": [{"name": "x", "digest": digest}]}).decode()
    for digests, content in (
        (digest, body()),
        (another, body(**named)),
        (f"{digest},{another}", body(**named)),
        (digest, body(content=digest)),
        (another, body(kind="snapshot", content=saved)),
        (digest.upper(), body(**{**named, "payload": digest.upper()})),
        ("../../x", body(**{**named, "payload": "../../x"})),
        ("", body()),
        (",".join(f"{n:064x}" for n in range(30_000)), body(kind="snapshot", **named)),
    ):
        with is_refused("SC005"):
            pin(members.appender, digests, content)
    pin(members.appender, digest, body(**named))
    pin(members.appender, digest, body(kind="snapshot", content=saved))
    pin(members.appender, f"{digest},{another}", body(kind="snapshot", **named))


# more about erasing -----------------------------------------------------------------------------------


def test_an_erasure_cannot_reach_events_that_come_while_it_waits_for_the_lock(
    members: Members,
) -> None:
    seq = members.store.append(Draft(content="secret", role="user"))
    members.appender.sql("BEGIN")
    members.appender.sql(_CLAIM, members.appender.store_id, "{}", os.urandom(32), "1 minute")
    errors: list[psycopg.Error] = []

    def erase_the_record() -> None:
        record = body(kind="note", session_id="scroll.store", role="", content="nothing")
        future = [members.eraser.store_id, uuid.uuid4().bytes, [seq + 1], [b"x"]]
        try:
            members.eraser.sql(_ERASE, *future, os.urandom(16), record)
        except psycopg.Error as error:
            errors.append(error)

    threads = [
        threading.Thread(target=members.store.erase, kwargs={"seqs": [seq]}),
        threading.Thread(target=erase_the_record),
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.7)
    members.appender.sql("ROLLBACK")
    for thread in threads:
        thread.join()
    assert [error.sqlstate for error in errors] == ["SC005"]
    erased = members.owner.sql("SELECT seq FROM scroll.event WHERE leaf IS NOT NULL")
    assert erased == [(seq,)]


def test_an_erased_row_keeps_no_source_key_that_says_anything(members: Members) -> None:
    seqs = [members.appender.append(body(content="said by another")) for _ in range(2)]
    blank = {"content": "[erased]", "metadata": '{"erased":true}'}
    for key in ("erased:Ada did it", "erased:" + "a" * 39, "erased:" + "A" * 40, "erased:"):
        with is_refused("SC005"):
            erase(members.eraser, seqs[0], body(**blank, source_key=key))
    members.store.log.backend.refresh()


def test_two_erased_rows_with_one_source_key_stop_no_host(members: Members) -> None:
    running = members.hosts.open("running")
    seqs = [members.appender.append(body(content="said by another")) for _ in range(2)]
    reach(running, seqs[-1])
    forged = body(content="[erased]", metadata='{"erased":true}', source_key="erased:" + "a" * 40)
    members.owner.sql(
        "UPDATE scroll.event SET leaf = sha256(nonce || body), nonce = NULL, body = %s", forged
    )
    record = body(kind="erasure", session_id="scroll.store", metadata='{"spans":[[1,2]]}')
    last = members.eraser.append(record, session_id=b"scroll.store")
    reach(running, last)
    running.log.backend.refresh()
    for store in (running, members.hosts.open("fresh")):
        assert [store.log.get(seq).content for seq in seqs] == [ERASED, ERASED]
        assert verify(store.log).bad == ()


# notifications ----------------------------------------------------------------------------------------


def test_a_full_notification_queue_stops_neither_appends_nor_erasures(
    own_postgres: Callable[..., Postgres], tmp_path: Path
) -> None:
    database = own_postgres(max_notify_queue_pages="64").database()
    with hosts_of(database, tmp_path, timeout=20) as hosts:
        members = Members(database, hosts)
        store = members.store
        store.append(Draft(content="one"))
        sleeper = Member(members.url("reader"))
        sleeper.sql("LISTEN x")
        sleeper.sql("BEGIN")
        sleeper.sql("SELECT 1")
        flood = "SELECT count(pg_notify('y', repeat('x', 7000) || i)) FROM generate_series(1, %s) i"
        for count in (20, 1):
            with pytest.raises(psycopg.Error, match="queue"):
                while True:
                    members.reader.sql(flood, count)
        time.sleep(0.1)
        assert store.append(Draft(content="two")) == 2
        time.sleep(0.1)
        assert store.append(Draft(content="three")) == 3
        assert store.erase(seqs=[1]).seq == 4
        assert [event.content for event in store.log.iterate(until=3)] == [ERASED, "two", "three"]
        # The queue may fill up between the look at it and the notification.
        usage = "CREATE OR REPLACE FUNCTION scroll.may_notify() RETURNS boolean LANGUAGE sql AS 'SELECT true'"
        members.owner.sql(usage)
        time.sleep(0.1)
        assert store.append(Draft(content="four")) == 5
        assert store.append(Draft(content="five")) == 6
        assert store.erase(seqs=[2]).seq == 7
        sleeper.close()
        members.close()


def test_a_login_has_a_bounded_number_of_copies_and_leases(members: Members) -> None:
    reader, appender = members.reader, members.appender
    report = """SELECT count(scroll.report(%s, sha256(convert_to(n::text, 'UTF8')), 'h', 0, 0))
        FROM generate_series(1, %s) n"""
    with is_refused("SC005"):
        reader.sql(report, reader.store_id, 1_001)
    reader.sql(report, reader.store_id, 1_000)
    reader.sql(report, reader.store_id, 1_000)
    claim = """SELECT count(c.o_epoch) FROM generate_series(1, %s) n, LATERAL scroll.claim(
        %s, convert_to('s' || n, 'UTF8'), '{}', sha256('secret'), '1 hour') c"""
    with is_refused("SC005"):
        appender.sql(claim, 2_001, appender.store_id)
    appender.sql(claim, 2_000, appender.store_id)
    appender.sql(claim, 2_000, appender.store_id)


def test_metadata_beyond_the_limit_makes_a_row_unreadable(members: Members) -> None:
    many = '{"a":[' + ",".join(["{}"] * 3_000_000) + "]}"
    seq = members.appender.append(body(metadata=many))
    members.store.log.backend.refresh()
    assert members.store.log.get(seq).content == UNREADABLE
