"""What the model saw: rebuilt from kept views, compared with the request before, and told for each
event.
"""

import itertools
import random
import re
from pathlib import Path

import pytest

from scroll_context.agent.agent import Agent
from scroll_context.contents import EvictionPlan
from scroll_context.events import BOOKKEEPING, Draft, Event, Kind
from scroll_context.messages import Media, ToolCall
from scroll_context.models import Reply, ScriptedModel, exec_cell
from scroll_context.models.scripted import Entry
from scroll_context.session.explain import whereabouts
from scroll_context.session.host import HostMessage
from scroll_context.session.options import SessionOptions
from scroll_context.session.past import Past, lineage
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.view.eviction import ViewBudget, raw_marks
from scroll_context.view.working import RENDERER_VERSION, WorkingView
from scroll_inspector import seen, visibility
from scroll_inspector.charts import Pressure, chart
from served import Serve, Site

SESSION = "trip-4-september"
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360"
    "606060000000050001a5f645400000000049454e44ae426082"
)
"""A picture of one point, as a PNG file."""


def plan_in(event: Event) -> EvictionPlan:
    return EvictionPlan.from_metadata(event.metadata)


def folding_plan(past: Past) -> Event:
    """The first eviction that folds a result and moves a step to the index."""
    plans = ((event, plan_in(event)) for event in past.evictions)
    return next(event for event, plan in plans if plan.folded and plan.evicted)


def is_quoted(view: WorkingView, seq: int) -> bool:
    """Whether the index of a view quotes an event as a standing instruction."""
    return any(standing.seq == seq for standing in view.index.standing)


def test_every_request_is_verified_in_any_order_from_kept_views(
    past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scroll_context.session.past.EVERY", 9)
    order = [*past.requests, *past.requests]
    random.Random(3).shuffle(order)
    for request in order:
        assert past.seen(request).doubt == ""


def test_pieces_make_up_every_message_and_name_their_events(past: Past) -> None:
    for request in past.requests:
        page = seen.page(past, request)
        assert page.seen.rendered
        assert [one.message for one in page.messages] == list(page.seen.rendered.messages)
        for one in page.messages:
            assert "\n\n".join(piece.text for piece in one.pieces) == one.message.text
            assert all(piece.seq for piece in one.pieces if piece.kind not in ("index", "harness"))
            for piece in one.pieces:
                if piece.lines:
                    assert "\n".join(line for line, _ in piece.lines) == piece.text
        shown = {
            piece.seq for one in page.messages for piece in one.pieces if piece.kind == "reply"
        }
        replies = [entry.seq for entry in page.seen.context.view.entries if hasattr(entry, "reply")]
        assert shown == set(replies)


def test_the_difference_accounts_for_all_that_came_and_went(past: Past) -> None:
    def shown(page: seen.SeenPage) -> dict[int, str]:
        return {
            piece.seq: piece.form for one in page.messages[1:] for piece in one.pieces if piece.seq
        }

    pages = [seen.page(past, request) for request in past.requests]
    plans = 0
    for before, after in itertools.pairwise(pages):
        old, new = shown(before), shown(after)
        assert {one.seq for one in after.difference.entered if one.seq} == new.keys() - old.keys()
        gone = old.keys() - new.keys()
        evicted = [one for one in after.difference.left if one.how == "evicted"]
        assert all(any(one.seq <= seq <= one.last for one in evicted) for seq in gone)
        assert all("index: seq" in one.now for one in evicted)
        folded = {one.seq for one in after.difference.left if one.how == "folded"}
        assert folded == {
            seq for seq in new.keys() & old.keys() if new[seq] == "folded" and old[seq] != "folded"
        }
        assert bool(after.difference.left) == bool(after.difference.plans)
        plans += len(after.difference.plans)
    assert plans == len(past.evictions) >= 3


def test_each_event_is_told_in_which_requests_it_was_seen(past: Past) -> None:
    events = [event for event in past.events() if event.kind not in BOOKKEEPING]
    views = {
        request.seq: WorkingView.replay(past.events(until=request.seq - 1))
        for request in past.requests
    }
    for event in events:
        found = visibility.stretches(past, event)
        told = {
            request: one.how
            for request in views
            for one in found
            if one.first <= request <= one.last
        }
        if "inside_cell" in event.metadata:
            assert not found
            continue
        for request, view in views.items():
            if request > event.seq:
                now = whereabouts(view, event.seq)
                place = "as a line of the index" if now.startswith("index: ") else now
                assert place.startswith("not") or told[request].startswith(place)
                assert ("quoted" in told.pop(request)) == is_quoted(view, event.seq)
        assert not told
        assert sum(one.count for one in found) == sum(request > event.seq for request in views)


def test_a_fork_tells_in_which_of_its_requests_an_event_was_seen(
    serve: Serve, tmp_path: Path
) -> None:
    def count(steps: int) -> list[Entry]:
        return [
            *(exec_cell(f"print('step {n}', 'detail ' * 120)") for n in range(steps)),
            "counted",
        ]

    with Store(tmp_path / "s", create=True) as store:
        with Session.open(store, session_id="first") as session:
            Agent(session, ScriptedModel(count(3), window=5_000)).run("Count.")
            with session.fork(store.log.last_seq(), session_id="second") as branch:
                Agent(branch, ScriptedModel(count(24), window=5_000)).run("Count on.")
        asked = next(store.log.iterate(session_id="first", kind=Kind.OBSERVATION))
    with serve(tmp_path / "s") as site:
        page = site.get(f"/event/{asked.seq}").text
        assert site.inspector.catalogue.continued_by("first", asked.seq) == ["second"]
        assert "In the fork" in page
        with site.inspector.past("second") as past:
            assert any(one.session_id == "first" for one in past.requests)
            views = {
                one.seq: WorkingView.replay(past.events(until=one.seq - 1))
                for one in past.requests
                if one.session_id == "second"
            }
            told = visibility.stretches(past, asked)
        assert sum(one.count for one in told) == len(views)
        assert len(told) >= 2  # it left on the way
        for request, view in views.items():
            how = next(one.how for one in told if one.first <= request <= one.last)
            now = whereabouts(view, asked.seq)
            assert how.startswith("as a line of the index" if now.startswith("index: ") else now)


def test_why_an_event_was_not_there(past: Past) -> None:
    plan = folding_plan(past)
    request = next(one for one in past.requests if one.seq > plan.seq)
    by_kind = {
        event.kind: event
        for event in past.events(until=plan.seq)
        if event.kind != Kind.CONVERSATION
    }
    gone = plan_in(plan).evicted[0][0]
    log = past.store.log
    evicted = visibility.why(past, request, log.get(gone))
    assert "line of the index" in evicted.sentence
    assert [seq for seq, _ in evicted.plans] == [plan.seq]
    assert str(gone) in evicted.line
    assert "inside a cell" in visibility.why(past, request, by_kind[Kind.TOOL_RESULT]).sentence
    assert "bookkeeping" in visibility.why(past, request, by_kind[Kind.REQUEST]).sentence
    assert "after this request" in visibility.why(past, request, log.get(log.last_seq())).sentence
    assert (
        "line of the index" in visibility.why(past, request, log.get(3)).sentence
    )  # an earlier session
    plan = next(one for one in past.evictions if plan_in(one).folded)
    request = next(one for one in past.requests if one.seq > plan.seq)
    folded = plan_in(plan).folded[0]
    assert "stub" in visibility.why(past, request, log.get(folded)).sentence


def test_a_past_takes_in_what_is_recorded_while_it_is_kept(tmp_path: Path) -> None:
    def request(upto: int, tokens: int) -> Draft:
        return Draft(
            kind=Kind.REQUEST,
            session_id="s",
            metadata={"upto": upto, "tokens": tokens, "renderer": RENDERER_VERSION},
        )

    with Store(tmp_path / "s", create=True) as store:
        tools = {"context": "scroll", "window": 1000, "tools": []}
        store.append(Draft(kind=Kind.SESSION, session_id="s", metadata=tools))
        store.append(Draft(session_id="s", role="user", content="one"))
        store.append(request(2, 5))
        past = Past(store, "s")
        past.catch_up()
        assert len(past.requests) == 1
        store.append(Draft(session_id="s", role="assistant", content="two"))
        store.append(Draft(session_id="other", role="user", content="not ours"))
        store.append(request(4, 9))
        past.catch_up()
        past.catch_up()
        assert [one.seq for one in past.requests] == [3, 6]
        found = seen.page(past, past.requests[1])
        assert [one.message.text for one in found.messages][:2] == ["one", "two"]
        assert found.seen.doubt  # these drafts have no hash
        assert [event.seq for event in past.events()] == [
            event.seq for event in lineage(store, "s")
        ]


def test_the_page_of_a_request_says_what_changed_and_why(demo: Site, past: Past) -> None:
    plan = folding_plan(past)
    request = next(one for one in past.requests if one.seq > plan.seq)
    page = demo.get(f"/request/{request.seq}").text
    assert "Verified." in page
    assert str(request.metadata["hash"]) in page
    assert "above the high mark" in page
    lo, hi = plan_in(plan).evicted[0]
    assert f'href="/events/{lo}-{hi}"' in page
    folded = plan_in(plan).folded[0]
    assert re.search(rf'\[scroll: folded seq <a href="/event/{folded}">', page)
    assert "Up to here, the request before was the same" in page
    assert demo.get(f"/request/{request.seq + 1}").headers["location"] == f"/request/{request.seq}"
    assert demo.get("/request/31").status == 404
    assert demo.get("/request/2").status == 404
    left = len(plan_in(plan).folded) + len(plan_in(plan).evicted)
    assert demo.get(f"/request/{request.seq}/left/{plan.seq}").text.count("<li>") == left > 5
    assert "evicted" in demo.get(f"/request/{request.seq}/left/{plan.seq}").text
    assert demo.get(f"/request/{request.seq}/left/{request.seq}").status == 404
    message = demo.get(f"/request/{request.seq}/message/0").text
    assert '<span class="json-key">role</span> <span class="json-string">&#34;system' in message
    assert demo.get(f"/request/{request.seq}/message/999").status == 404
    assert f'href="/request/{request.seq}?about={folded}"' in demo.get(f"/event/{folded}").text
    assert "line of the index" in demo.get(f"/request/{request.seq}?about={lo}").text


def test_a_request_that_cannot_be_verified_says_so(serve: Serve, tmp_path: Path) -> None:
    with Store(tmp_path / "s", create=True) as store:
        facts = {"context": "scroll", "window": 1000, "tools": []}
        store.append(
            Draft(kind=Kind.SESSION, session_id="s", content="<b>system</b>", metadata=facts)
        )
        store.append(Draft(session_id="s", role="user", content="[scroll: folded seq 1 <script>]"))
        store.append(
            Draft(
                kind=Kind.REQUEST,
                session_id="s",
                metadata={"hash": "00", "renderer": RENDERER_VERSION, "digest": "<i>x"},
            )
        )
        unknown = {"context": "of another package", "window": 1000, "tools": []}
        store.append(Draft(kind=Kind.SESSION, session_id="s", metadata=unknown))
        store.append(
            Draft(
                kind=Kind.REQUEST,
                session_id="s",
                metadata={"hash": "00", "renderer": RENDERER_VERSION},
            )
        )
    with serve(tmp_path / "s") as site:
        page = site.get("/request/3").text
        assert "Not verified:" in page
        assert 'folded seq <a href="/event/1">1</a> &lt;script&gt;' in page
        assert not re.search("<script>|<b>|<i>x", page)
        assert "context that is not installed" in site.get("/request/5").text


def test_a_hosts_request_is_shown_as_it_was_sent(tmp_path: Path) -> None:
    options = SessionOptions(context="plain")
    with Store(tmp_path / "store", create=True) as store:
        with Session.open(store, session_id="host", options=options) as session:
            messages = [HostMessage(role="user", text="read every page")]
            for number in range(30):
                session.follow(messages, system="You work.", window=4_000)
                call = ToolCall(f"c{number}", "read", {"page": number})
                session.replied(Reply(tool_calls=(call,)))
                text = f"page {number} " * 80
                messages.append(HostMessage(role="assistant", calls=(call,)))
                messages.append(HostMessage(role="tool", call_id=call.id, name="read", text=text))
        past = Past(store, "host")
        past.catch_up()
        for request in past.requests:
            page = seen.page(past, request)
            assert page.seen.doubt == "" and page.seen.rendered is not None
            assert [sent.message for sent in page.messages] == list(page.seen.rendered.messages)
            kinds = [piece.kind for sent in page.messages for piece in sent.pieces]
            assert "harness" not in kinds and "notice" not in kinds
        assert kinds[:3] == ["system", "user", "index"]


def test_the_tokens_of_a_request_add_up_to_its_estimate_on_every_page(
    demo: Site, past: Past
) -> None:
    pressure = Pressure()
    pressure.catch_up(past)
    columns = {column.first: column for column in chart(past, pressure).columns}
    for request in past.requests:
        page = seen.page(past, request)
        assert page.seen.context is not None
        recorded = request.metadata["tokens"]
        assert page.tokens == sum(part.tokens for part in page.parts) == recorded
        rows = sum(message.tokens for message in page.messages)
        assert rows + page.sum_of("tools") + page.sum_of("variables") == recorded
        index = page.seen.context.view.index.tokens
        assert page.sum_of("index") == columns[request.seq].index == index
    text = demo.get(f"/request/{request.seq}").text
    assert f"<dd>{recorded:,} tokens</dd>" in text
    assert f"</i>index {index:,}</span>" in text
    assert f"about {index:,} tokens," in demo.get(f"/request/{request.seq}/index").text
    assert (
        f"what it saw · about {recorded:,} tokens"
        in demo.get(f"/session/{SESSION}?at={request.seq}").text
    )


def test_the_marks_of_a_request_are_those_that_its_plan_was_made_by(past: Past) -> None:
    for request in past.requests:
        page = seen.page(past, request)
        low, high, window = page.marks
        assert (low.tokens, high.tokens, window.tokens) == (2_400, 4_800, 6_000)
        assert page.seen.context is not None
        gauge = page.seen.context.view.gauge
        assert (high.estimated, low.estimated) == raw_marks(ViewBudget(), 6_000, gauge)
        # Nothing is sent above the mark, unless nothing more could leave.
        assert page.tokens <= high.estimated


def test_an_event_that_the_index_quotes_is_said_to_be_quoted(past: Past) -> None:
    request = past.requests[-1]
    _, context = past.context(request)
    assert context is not None
    index = context.view.index
    assert index.standing and index.state
    for standing in index.standing:
        answer = visibility.why(past, request, past.store.log.get(standing.seq))
        kind = standing.stance or "standing instruction"
        assert f"The index also had it quoted as a {kind}" in answer.sentence
    outside = [seq for fact in index.state for seq in fact.seqs if context.view.get(seq) is None]
    answer = visibility.why(past, request, past.store.log.get(outside[0]))
    assert "quoted in the state of the work" in answer.sentence or answer.cell


def test_a_hosts_message_is_shown_in_the_form_that_it_is_sent_in(
    serve: Serve, tmp_path: Path
) -> None:
    raw = b'{"role": "user", "content": [{"type": "text", "text": "<b>look</b>"}], "x-own": [1]}'
    picture = Media(media_type="image/png", name="drawing.png", data=PIXEL)
    message = HostMessage(role="user", text="<b>look</b>", media=(picture,), raw=raw)
    with (
        Store(tmp_path / "s", create=True) as store,
        Session.open(store, session_id="s") as session,
    ):
        layout = session.follow([message], system="You look.", window=4_000)
        session.replied(Reply(text="A point."), sent="ab" * 32)
    with serve(tmp_path / "s") as site:
        page = site.get(f"/request/{layout.request}").text
        assert "The program sent its own messages" in page
        assert "body as sent " + "ab" * 32 in page
        assert f'src="/event/{layout.seqs[0] - 1}/image"' in page
        assert site.get(f"/event/{layout.seqs[0] - 1}/image").body == PIXEL
        sent = site.get(f"/request/{layout.request}/message/1").text
        assert '<span class="json-key">x-own</span>' in sent
        assert "&lt;b&gt;look&lt;/b&gt;" in sent and "<b>" not in sent
        assert "in the form in which the program sends it" in sent
