"""The inspector over HTTP: who may see it, what its pages hold, and that it writes nothing."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from scroll_context.cli.app import app
from scroll_context.errors import StoreReadOnly
from scroll_context.events import Draft, Grant, Kind, Payload
from scroll_context.log.titles import session_titles
from scroll_context.session.accounts import accounts
from scroll_context.store import Store
from scroll_inspector import markup
from served import TOKEN, Serve, Site

SESSION = "/session/trip-4-september"
HOSTILE = (
    "<script>alert(1)</script><svg onload=alert(2)> \x1b[31mred\x1b[0m \u202egnp.exe \"'& {{ 7*7 }}"
)


def test_the_token_in_the_address_becomes_a_cookie(demo: Site) -> None:
    answer = demo.get(f"/search?q=a%26b&token={TOKEN}", cookie="")
    assert answer.status == 303
    assert answer.headers["location"] == "/search?q=a%26b"
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert demo.get("/", cookie=answer.headers["set-cookie"].split(";")[0]).status == 200
    assert TOKEN not in answer.headers["set-cookie"]
    assert demo.get("/", cookie=f"{demo.cookie}={TOKEN}").status == 401


@pytest.mark.parametrize(
    "path", ["/", SESSION, "/event/32", "/static/style.css", "/live/trip-4-september", "/nowhere"]
)
def test_nothing_is_shown_without_the_token(demo: Site, path: str) -> None:
    for cookie in ("", f"{demo.cookie}=wrong", f"{demo.cookie}=", f"other={TOKEN}"):
        assert demo.get(path, cookie=cookie).status == 401
    assert demo.get(f"{path}?token=wrong").status == 401  # with a good cookie, too


def test_another_host_and_another_method_are_refused(demo: Site) -> None:
    assert demo.get("/", host="evil.example").status == 421
    assert demo.get("/", host=f"evil.example:{demo.port}").status == 421
    assert demo.get("/", host=f"localhost:{demo.port}").status == 200
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert demo.get("/", method=method).status == 405


@pytest.mark.parametrize(
    "path", ["/", SESSION, "/event/32", "/search?q=walnut", "/event/0", "/?token=no"]
)
def test_every_answer_has_a_strict_policy(demo: Site, path: str) -> None:
    answer = demo.get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(
        r"<script(?! type=\"module\" src=\"/static/)|\son\w+=|\sstyle=", answer.text
    )


def test_the_list_of_sessions_says_what_the_log_says(demo: Site, demo_store: Path) -> None:
    page = demo.get("/").text
    for name in ("trip-1-ideas", "trip-2-booking", "trip-3-details", "trip-4-september"):
        assert f"/session/{name}" in page
    assert page.index("trip-4") < page.index("trip-1")
    assert "answered" in page
    with Store(demo_store, read_only=True) as store:
        for one in demo.inspector.catalogue.sessions():
            sums = accounts(store.log.iterate(session_id=one.session_id))
            assert (one.events, one.requests, one.evictions) == (
                sums.events,
                sums.requests,
                sums.evictions,
            )
            assert (one.input_tokens, one.output_tokens) == (sums.input_tokens, sums.output_tokens)
            assert one.cached_tokens == sums.cache_read_tokens


def test_titles_are_those_of_the_command_line(serve: Serve, tmp_path: Path) -> None:
    long = "Compare the tariffs of all nine ferry lines between the islands,\n\n  season by season"
    with Store(tmp_path / "s", create=True) as store, serve(tmp_path / "s") as site:
        store.append(Draft(session_id="a", role="user", content="Hello there!"))
        first = site.inspector.catalogue.get("a")
        assert first is not None
        for number in range(5):
            store.append(Draft(session_id="a", role="user", content=f"{long} {number}"))
            store.append(Draft(session_id="b", role="user", content="Book the {{ ferry }} <now>."))
            titles = session_titles(store.log)
            for session in site.inspector.catalogue.sessions():
                assert session.title == titles[session.session_id]
        listed = CliRunner().invoke(app, ["sessions", "--store", str(tmp_path / "s"), "--json"])
        assert [row["title"] for row in json.loads(listed.output)] == list(titles.values())
        assert len(titles["a"]) <= 70 and "\n" not in titles["a"]
        page = site.get("/session/a").text
        assert f"<h1>{titles['a']}</h1>" in page


def test_a_title_comes_from_events_within_reach(serve: Serve, tmp_path: Path) -> None:
    with Store(tmp_path / "s", create=True) as store:
        store.append(Draft(session_id="s", role="user", content="The secret plan.", agent_id="x"))
        store.append(Draft(session_id="s", role="user", content="The public plan.", agent_id="y"))
    with serve(tmp_path / "s", Grant(agent_id="y")) as site:
        assert "The public plan." in site.get("/").text
        assert "secret" not in site.get("/").text


def test_an_empty_page_says_what_to_do(serve: Serve, demo: Site, tmp_path: Path) -> None:
    Store(tmp_path / "s", create=True).close()
    with serve(tmp_path / "s") as site:
        page = site.get("/").text
    for command in re.findall(r"<code>scroll ([a-z]+)", page):
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0
    assert page.count("<code>scroll") == 4
    assert "show all 4 sessions" in demo.get("/?q=nothing+like+this").text
    assert "Type a few words" in demo.get("/search").text
    assert "Try fewer or other words" in demo.get("/search?q=zzzz").text
    assert "search without the filters" in demo.get("/search?q=zzzz&role=tool").text
    assert "read the steps" in demo.get("/pressure/trip-1-ideas").text
    assert "all sessions" in demo.get("/nowhere").text


def test_filters_leave_the_sessions_that_pass(demo: Site) -> None:
    assert "trip-2" in demo.get("/?q=looked+at+flights").text
    assert "trip-1" not in demo.get("/?q=looked+at+flights").text
    assert "trip-1" not in demo.get("/?from=2026-06-01").text
    assert "trip-4" not in demo.get("/?to=2026-06-01").text
    assert "trip-4" not in demo.get("/?state=imported").text


def test_search_marks_the_words_and_takes_the_filters(demo: Site) -> None:
    page = demo.get("/search?q=walnut+allergy").text
    assert "<mark>" in page
    assert re.search(r'href="/event/\d+"', page)
    assert "/event/" not in demo.get("/search?q=walnut&role=tool&session=trip-1-ideas").text
    assert "/event/" not in demo.get("/search?q=walnut&lo=9000").text


def test_the_steps_of_a_session_come_in_order_and_in_pages(demo: Site, demo_store: Path) -> None:
    shown: list[int] = []
    page = demo.get("/steps/trip-4-september?after=0").text
    pages = 0
    while True:
        pages += 1
        shown += [int(one) for one in re.findall(r'<a class="seq" href="/event/(\d+)"', page)]
        section = re.search(r'data-last="(\d+)" data-more="(\d)"', page)
        assert section
        if section[2] == "0":
            break
        page = demo.get(f"/steps/trip-4-september?after={section[1]}").text
    assert pages > 1
    assert len(shown) == len(set(shown))
    with Store(demo_store, read_only=True) as store:
        events = list(store.log.iterate(session_id="trip-4-september"))
    requests = {event.seq for event in events if event.kind == Kind.REQUEST}
    saved = {event.seq for event in events if event.kind == Kind.SNAPSHOT}
    assert set(shown) | saved >= {event.seq for event in events} - requests
    heads = [
        seq for seq in shown if seq in {one.seq for one in events if one.kind == Kind.CONVERSATION}
    ]
    assert heads == sorted(heads)


def test_a_page_before_a_step_ends_where_that_begins(demo: Site) -> None:
    page = demo.get(f"{SESSION}?at=200").text
    found = re.search(r'data-after="(\d+)" data-first="(\d+)" data-last="(\d+)"', page)
    assert found
    assert int(found[2]) <= 200 <= int(found[3])
    before = demo.get(f"/steps/trip-4-september?after=-1&before={found[2]}").text
    earlier = re.search(r'data-first="(\d+)" data-last="(\d+)"', before)
    assert earlier
    assert int(earlier[2]) < int(found[2])
    assert "seq-" in demo.get(f"{SESSION}?at=end").text


def test_a_cell_is_highlighted_and_its_calls_are_inside_it(demo: Site) -> None:
    page = demo.get(SESSION).text
    step = next(one for one in page.split("</article>") if "search_flights" in one)
    assert 'class="nb">print' in step
    assert (
        step.index("search_flights")
        < step.index("returned")
        < step.index("printed")
        < step.index("bound flights")
    )
    assert "Show all 37 kB" in step
    assert re.search(r'href="/request/\d+"', step)


def test_a_long_payload_loads_whole_and_folded_and_downloads(demo: Site, demo_store: Path) -> None:
    with Store(demo_store, read_only=True) as store:
        long = next(event for event in store.log.iterate() if event.payload)
        whole = store.log.text(long)
    answer = demo.get(f"/event/{long.seq}/download")
    assert answer.body.decode() == whole
    assert answer.headers["content-disposition"].startswith("attachment")
    assert 'class="json"' in demo.get(f"/event/{long.seq}/text").text
    assert 'class="json"' not in demo.get(f"/event/{long.seq}/text?plain=1").text


@pytest.fixture
def hostile_store(tmp_path: Path) -> Path:
    png = b"\x89PNG\r\n\x1a\n" + b"\0" * 64
    with Store(tmp_path / "s", create=True) as store:
        name = "a/b <i>?#%"
        image = store.payloads.put(png, "image/png")
        fake = store.payloads.put(b"<svg onload=alert(1)>", "image/png")
        vector = store.payloads.put(b"<svg onload=alert(1)>", "image/svg+xml")
        text = store.payloads.put_text("é" * 150_001)
        drafts = [
            Draft(session_id=name, role="user", content=HOSTILE, agent_id=HOSTILE, task_id="t1"),
            Draft(
                session_id=name, role="assistant", content=HOSTILE, headline=HOSTILE, task_id="t1"
            ),
            Draft(
                session_id=name,
                kind=Kind.CELL,
                content=f"print({HOSTILE!r})\n{HOSTILE}",
                name=HOSTILE,
            ),
            Draft(
                session_id=name,
                kind=Kind.OBSERVATION,
                reply_to=3,
                content=f'{{"a": "{HOSTILE!a}"}}',
                tool_state="ok",
            ),
            Draft(session_id=name, kind=HOSTILE, content=HOSTILE, metadata={HOSTILE: HOSTILE}),
            Draft(session_id=name, kind=Kind.ARTIFACT, payload=image, content="picture"),
            Draft(session_id=name, kind=Kind.ARTIFACT, payload=fake, content="picture"),
            Draft(session_id=name, kind=Kind.ARTIFACT, payload=vector, content="picture"),
            Draft(
                session_id="other",
                role="user",
                content="secret of another task",
                task_id="t2",
                payload=text,
            ),
            Draft(session_id="gone", role="user", content="lost", payload=Payload("0" * 64, 5)),
        ]
        store.log.append_many(drafts)
    return tmp_path / "s"


def test_hostile_text_is_shown_and_does_nothing(serve: Serve, hostile_store: Path) -> None:
    with serve(hostile_store) as site:
        name = "a%2Fb%20%3Ci%3E%3F%23%25"
        pages = [
            "/",
            "/search?q=alert",
            f"/session/{name}",
            *(f"/event/{seq}" for seq in range(1, 9)),
            "/events/1-9",
        ]
        for path in (
            *pages,
            "/event/1/text",
            "/search?q=%3Cscript%3Ealert(1)",
            "/?q=%22%3E%3Cscript%3E",
        ):
            answer = site.get(path)
            assert answer.status == 200, path
            for bad in ("<script>", "<svg", "\x1b", "\u202e", "<i>", "49 "):
                assert bad not in answer.text, (path, bad)
        assert "\\x1b[31mred" in site.get("/event/1").text
        assert "\\u202egnp.exe" in site.get("/event/1").text


def test_pictures_are_shown_only_when_they_are_pictures(serve: Serve, hostile_store: Path) -> None:
    with serve(hostile_store) as site:
        good = site.get("/event/6/image")
        assert (good.status, good.headers["content-type"]) == (200, "image/png")
        assert "sandbox" in good.headers["content-security-policy"]
        assert site.get("/event/7/image").status == 404  # says that it is a PNG
        assert site.get("/event/8/image").status == 404  # SVG can hold a script
        assert site.get("/event/8/download").headers["content-type"] == "application/octet-stream"


def test_pieces_of_a_long_text_are_cut_between_characters(
    serve: Serve, hostile_store: Path
) -> None:
    with serve(hostile_store) as site:
        path, letters = "/event/9/text", 0
        while path:
            page = site.get(path).text
            assert "\ufffd" not in page
            letters += page.count("é")
            following = re.search(r'data-load="([^"]+)"', page)
            path = following[1] if following else ""
        assert letters == 150_001


def test_a_missing_payload_is_said(serve: Serve, hostile_store: Path) -> None:
    with serve(hostile_store) as site:
        assert site.get("/event/10").status == 200
        for path in ("/event/10/text", "/event/10/download"):
            assert site.get(path).status == 404
            assert "missing" in site.get(path).text


def test_what_is_out_of_reach_is_not_shown(serve: Serve, hostile_store: Path) -> None:
    with serve(hostile_store, Grant(task_id="t1")) as site:
        assert site.get("/event/1").status == 200
        for path in (
            "/event/9",
            "/event/9/text",
            "/event/9/download",
            "/session/other",
            "/steps/other",
            "/live/other",
        ):
            assert site.get(path).status == 404, path
        assert "/session/other" not in site.get("/").text
        assert "secret of another" not in site.get("/search?q=secret").text
        assert "gnp.exe" not in site.get("/steps/a%2Fb%20%3Ci%3E%3F%23%25?after=2").text
        assert "secret" not in site.get("/events/1-9").text


@pytest.mark.parametrize(
    "path",
    ["/event/{}", "/request/{}", "/events/1-{}", "/session/other?at={}", "/steps/other?after={}"],
)
def test_addresses_of_any_length_are_answered(serve: Serve, hostile_store: Path, path: str) -> None:
    with serve(hostile_store) as site:
        for seq in ("9" * 40, "-1", "x", "0"):
            answer = site.get(path.format(seq))
            assert answer.status in (200, 204, 400, 404), (path, seq)
            assert "Traceback" not in answer.text


def test_what_was_erased_is_gone_from_pages_and_from_memory(serve: Serve, tmp_path: Path) -> None:
    with Store(tmp_path / "s", create=True) as store:
        store.append(Draft(session_id="s", role="user", content="keep the *password* quiet"))
        store.append(Draft(session_id="s", role="assistant", content="noted"))
        with serve(tmp_path / "s") as site:
            assert "<em>password</em>" in site.get("/session/s").text
            store.erase(seqs=[1], by="test")
            for path in ("/", "/session/s", "/event/1", "/search?q=quiet"):
                assert "password" not in site.get(path).text, path
            assert "erased" in site.get("/event/1").text
            assert markup.markdown.cache_info().currsize <= 1


def test_no_event_is_ever_written(serve: Serve, hostile_store: Path) -> None:
    before = (hostile_store / "log.db").read_bytes()
    with serve(hostile_store) as site:
        for path in ("/", "/search?q=secret", "/session/other", "/event/9"):
            assert site.get(path).status == 200
        with pytest.raises(StoreReadOnly):
            site.inspector.store.append(Draft(content="no"))
    assert (hostile_store / "log.db").read_bytes() == before


def test_an_import_with_nonsense_in_its_metadata_is_shown(serve: Serve, tmp_path: Path) -> None:
    names = (
        "inside_cell",
        "bound",
        "thinking",
        "tool_calls",
        "tokens",
        "tools",
        "session_id",
        "at_seq",
        "usage",
    )
    with Store(tmp_path, create=True) as store:
        for kind in (
            Kind.CONVERSATION,
            Kind.CELL,
            Kind.OBSERVATION,
            Kind.REQUEST,
            Kind.SESSION,
            Kind.FORK,
        ):
            for value in ({"a": 1}, 2.5, [7], "x"):
                said, key = dict.fromkeys(names, value), f"import:{kind}:{value}"
                store.append(
                    Draft(
                        kind=kind,
                        session_id="s",
                        role="assistant",
                        content="hi",
                        metadata=said,
                        source_key=key,
                    )
                )
    with serve(tmp_path) as site:
        for path in ("/", "/session/s", "/steps/s"):
            assert site.get(path).status == 200, path
