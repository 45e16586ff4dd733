"""Pressure, index, variables, live steps, the exported page and the command itself."""

import http.client
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import msgspec
import pytest
from click.testing import CliRunner
from markupsafe import escape

from scroll_context.cli.app import app
from scroll_context.contents import Snapshot
from scroll_context.events import Draft, Kind, Scope
from scroll_context.log.journal import Journal
from scroll_context.session.explain import explain
from scroll_context.session.past import Past
from scroll_context.session.variables import namespace_after
from scroll_context.store import Store
from scroll_inspector.charts import COLUMNS, Pressure, RequestNumbers, chart
from scroll_inspector.variables import Namespaces
from served import Serve, Site

SESSION = "trip-4-september"


def test_pressure_has_the_numbers_of_every_request(past: Past) -> None:
    pressure = Pressure()
    pressure.catch_up(past)
    pressure.catch_up(past)
    drawn = chart(past, pressure)
    assert [one.seq for one in pressure.requests] == [one.seq for one in past.requests]
    assert sum(one.evictions for one in drawn.columns) == len(past.evictions)
    for asked, column in zip(pressure.requests, drawn.columns, strict=True):
        told = explain(past.store, asked.seq)
        assert (asked.tokens, asked.reported, asked.cached) == (
            told.tokens,
            told.reported,
            told.cached,
        )
        assert (asked.reply or None) == told.reply
        assert column.window == told.window == 6000
        context = past.seen(past.request_at(asked.seq)).context
        assert context
        assert column.index == context.view.index.tokens


def test_a_chart_of_many_requests_has_few_columns_that_lead_to_all(past: Past) -> None:
    pressure = Pressure()
    pressure.catch_up(past)
    pressure.requests = [RequestNumbers(seq, seq % 100, False) for seq in range(1, 5_001)]
    drawn = chart(past, pressure)
    assert len(drawn.columns) <= COLUMNS
    assert sum(one.count for one in drawn.columns) == 5_000
    assert all(
        later.first == one.last + 1
        for one, later in zip(drawn.columns, drawn.columns[1:], strict=False)
    )
    part = drawn.columns[3]
    assert len(chart(past, pressure, part.first, part.last).columns) == part.count


def test_the_chart_links_to_each_request(demo: Site, past: Past) -> None:
    page = demo.get(f"/pressure/{SESSION}").text
    for request in past.requests:
        assert (
            f'<a href="/request/{request.seq}" tabindex="-1" aria-label="request {request.seq}:'
            in page
        )
    assert page.count('class="evicted"') == len(past.evictions)
    assert "This session has no model requests" in demo.get("/pressure/trip-1-ideas").text
    assert (
        "the complete session" in demo.get(f"/pressure/{SESSION}?from={past.requests[3].seq}").text
    )


def test_the_index_page_has_every_line_with_its_events(demo: Site, past: Past) -> None:
    request = past.requests[-1]
    context = past.seen(request).context
    assert context
    page = demo.get(f"/request/{request.seq}/index").text
    for line in context.view.index.lines:
        for lo, hi in line.spans:
            assert f"/events/{lo}-{hi}" in page or f'href="/event/{lo}"' in page
        assert str(escape(line.description)) in page
    assert page.count("<strong>Level") == len(context.view.index.levels)
    assert f"tokens, {context.view.index.blocks} block" in page
    assert "Standing instructions" in page
    assert demo.get("/request/32/index").status == 404


def test_variables_are_those_of_the_snapshots_and_name_their_cells(demo: Site, past: Past) -> None:
    log = past.store.log
    namespaces = Namespaces()
    for request in [*past.requests, past.requests[5]]:
        before = [one.seq for one in past.snapshots if (one.reply_to or 0) < request.seq]
        changes = [
            msgspec.json.decode(log.text(one), type=Snapshot) for one in log.get_many(before)
        ]
        manifest = namespace_after(changes)
        found = {one.name: one for one in namespaces.at(past, request)}
        assert {name for name, one in found.items() if one.type} == {
            one.name for one in manifest.variables
        }
        for saved in manifest.variables:
            one = found[saved.name]
            assert (one.type, one.size) == (saved.type, saved.size)
            assert set(one.seqs) == {
                seq for cell in saved.cells for seq in manifest.sources.get(cell, ())
            }
            assert log.get(one.bound_by).kind == Kind.CELL
            assert re.search(rf"\b{one.name}\b", log.get(one.bound_by).content)
    page = demo.get(f"/request/{past.requests[20].seq}/variables").text
    assert "list 240 of dict" in page
    # The list of variables is followed by the shapes of results, which are none.
    assert not re.search(r"<td[^>]*>find_rooms</td>", page)
    first = demo.get(f"/request/{past.requests[0].seq}/variables").text
    assert "There were no variables at this request" in first


def _lines(site: Site, path: str) -> Iterator[str]:
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
    connection.request("GET", path, headers={"Cookie": f"{site.cookie}={site.cookie_value}"})
    answer = connection.getresponse()
    assert answer.getheader("content-type", "").startswith("text/event-stream")
    while line := answer.readline():
        if line.strip():
            yield line.decode().strip()


def test_a_page_is_told_of_new_events_and_of_the_end(serve: Serve, tmp_path: Path) -> None:
    with Store(tmp_path / "s", create=True) as store:
        journal = Journal(store.log, Scope("s"))
        journal.append(journal.draft(Kind.CONVERSATION, role="user", content="hello"))
        with serve(tmp_path / "s") as site:
            told = _lines(site, "/live/s")
            assert next(told) == "data: 1 running"
            store.append(Draft(session_id="other", role="user", content="not here"))
            event = journal.append(
                journal.draft(Kind.CONVERSATION, role="assistant", content="done")
            )
            assert next(told) == f"data: {event.seq} running"
            assert "done" in site.get("/steps/s?after=0").text
            journal.close()
            assert next(told) == f"data: {event.seq} answered"


def test_how_a_session_ended_is_told(serve: Serve, tmp_path: Path) -> None:
    ends = {
        "answered": Draft(role="assistant", content="yes"),
        "stopped": Draft(kind=Kind.OBSERVATION, content="1", reply_to=1),
        "crashed": Draft(kind=Kind.CELL, content="print(1)"),
        "unanswered": Draft(kind=Kind.REQUEST, content=""),
        "imported": Draft(role="user", content="old", source_key="import:x:1"),
        "empty": Draft(kind=Kind.SESSION, content="opened"),
    }
    with Store(tmp_path / "s", create=True) as store:
        for state, draft in ends.items():
            store.append(msgspec.structs.replace(draft, session_id=f"is-{state}"))
    with serve(tmp_path / "s") as site:
        for state in ends:
            assert site.inspector.catalogue.state(f"is-{state}") == state
            assert f"is-{state}" in site.get(f"/?state={state}").text


@pytest.mark.parametrize("name", [".", "..", "~..", "a/../b"])
def test_a_session_of_dots_has_an_address_that_browsers_leave_alone(
    serve: Serve, tmp_path: Path, name: str
) -> None:
    with Store(tmp_path / "s", create=True) as store:
        store.append(Draft(role="user", content="Where is the weir?", session_id=name))
    with serve(tmp_path / "s") as site:
        (address,) = re.findall(
            r'class="title oneline" href="(/session/[^"]*)"', site.get("/").text
        )
        assert urljoin("http://here/", address) == f"http://here{address}"
        assert "Where is the weir?" in site.get(address).text


def test_an_exported_page_is_whole_and_needs_nothing(demo_store: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    arguments = ["serve", "--store", str(demo_store), "--export", str(target), SESSION]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    page = target.read_text()
    assert not re.search(
        r"<script|<link|href=\"/|src=\"/|https?://(?!www\.w3\.org)", page.replace("http-equiv", "")
    )
    assert "default-src 'none'" in page
    assert page.count("verified; ") == 40
    assert "above the high mark" in page
    assert "Show all" not in page
    anchors = set(re.findall(r'id="(seq-\d+)"', page))
    with Store(demo_store, read_only=True) as store:
        said = [
            one.seq
            for one in store.log.iterate(
                session_id=SESSION, kind=[Kind.CONVERSATION, Kind.OBSERVATION]
            )
        ]
    assert {f"seq-{seq}" for seq in said} <= anchors
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 1
    assert "not overwritten" in again.output
    missing = CliRunner().invoke(app, [*arguments[:4], str(tmp_path / "other.html"), "nobody"])
    assert missing.exit_code == 1
    assert not (tmp_path / "other.html").exists()
    assert CliRunner().invoke(app, arguments[:-1]).exit_code == 2


def test_the_command_serves_until_it_is_interrupted(demo_store: Path) -> None:
    command = [sys.executable, "-c", "from scroll_context.cli.main import main; main()"]
    process = subprocess.Popen(
        [*command, "serve", "--store", str(demo_store), "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"SCROLL_SERVE_TOKEN": "t"},
    )
    try:
        assert process.stderr
        said = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=t", said)
        assert found, said
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(found[0], timeout=30) as answer:
            assert b"trip-4-september" in answer.read()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
