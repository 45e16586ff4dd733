"""The inspector in a real Chromium: every page, keys, narrow and dark screens, live steps, and
hostile text.
"""

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scroll_context import tool
from scroll_context.agent.agent import Agent
from scroll_context.events import Draft, Kind
from scroll_context.models import ScriptedModel, exec_cell
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.view.working import RENDERER_VERSION
from scroll_inspector.export import export
from scroll_inspector.inspector import Inspector
from served import TOKEN, Serve, Site

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed; `make browser` installs it"
)

SESSION = "/session/trip-4-september"
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        arguments = ["--no-sandbox", "--host-resolver-rules=MAP evil.example 127.0.0.1"]
        browser = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Open]:
    """Opens a path of a site as the holder of the token; whatever the browser complains of fails
    the test.
    """
    contexts: list[Any] = []
    complaints: list[str] = []

    def opened(site: Site, path: str, *, width: int = 1200) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 800})
        contexts.append(context)
        context.add_cookies(
            [{"name": site.cookie, "value": site.cookie_value, "url": site.address}]
        )
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on(
            "console",
            lambda said: (
                complaints.append(said.text) if said.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append("a dialog opened"), dialog.dismiss()))
        page.goto(site.address + path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not complaints


def until(page: Any, condition: str) -> None:
    """Wait for a condition in a page.

    Playwright's own way evaluates text inside it, which the policy forbids.
    """
    for _ in range(400):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never came true: {condition}")


def pages_of(site: Site, session: str) -> list[str]:
    with site.inspector.past(session) as past:
        plan = past.evictions[len(past.evictions) // 2].seq
        request = next(one.seq for one in past.requests if one.seq > plan)
        event = past.requests[0].seq + 1
    return [
        "/",
        "/search?q=walnut",
        f"/session/{session}",
        f"/event/{event}",
        f"/event/{plan}",
        f"/request/{request}",
        f"/request/{request}/index",
        f"/request/{request}/variables",
        f"/pressure/{session}",
        f"/events/{plan - 60}-{plan - 40}",
        "/nowhere",
    ]


def test_each_page_is_accessible_and_fits_a_phone(demo: Site, open_page: Open) -> None:
    # Of the many entries of a page that are alike, the first ones stand for all.
    alike = [
        ["section.page > article:nth-child(n+6)"],
        ["section.page ~ section.page"],
        ["details.sent:nth-of-type(n+6)"],
        ["tr:nth-child(n+6)"],
        ["svg.pressure a:nth-of-type(n+4)"],
        [".span > li:nth-child(n+6)"],
        [".hits > li:nth-child(n+6)"],
    ]
    page = open_page(demo, "/", width=360)
    for path in pages_of(demo, "trip-4-september")[:-1]:
        page.set_viewport_size({"width": 360, "height": 800})
        page.goto(demo.address + path)
        assert page.locator("h1").count() == 1, path
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        assert page.get_by_role("link", name="Sessions").first.is_visible(), path
        page.set_viewport_size({"width": 1200, "height": 800})
        assert not serious_faults(page, alike), path
        page.emulate_media(color_scheme="dark")
        assert not serious_faults(page, alike, runOnly=["color-contrast"]), path
        page.emulate_media(color_scheme="light")


def serious_faults(page: Any, alike: list[list[str]], **options: Any) -> list[tuple[str, str]]:
    answer = axe.Axe().run(page, context={"exclude": alike}, options=options)
    return [
        (fault["id"], node["html"])
        for fault in answer.response["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"][:2]
    ]


def test_dark_mode_is_dark(demo: Site, open_page: Open) -> None:
    shade = "Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"
    page = open_page(demo, "/")
    assert page.evaluate(shade) > 230
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(shade) < 40


def test_the_meaning_of_a_word_opens_by_key_and_by_touch(demo: Site, open_page: Open) -> None:
    with demo.inspector.past("trip-4-september") as past:
        plan = past.evictions[1].seq
        request = next(event.seq for event in past.requests if event.seq > plan)
    page = open_page(demo, f"/request/{request}", width=400)
    for word in ("plan", "stub", "high mark", "estimate"):
        button = page.locator(f"button.term[popovertarget='term-{word.replace(' ', '-')}']").first
        meaning = page.locator(f"#term-{word.replace(' ', '-')}")
        button.focus()
        page.keyboard.press("Enter")
        assert meaning.is_visible()
        assert meaning.inner_text().startswith(word)
        box = meaning.bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= 400
        page.keyboard.press("Escape")
        assert not meaning.is_visible()
    button.click()
    assert meaning.is_visible()


def test_a_message_row_has_a_preview_and_labelled_numbers(demo: Site, open_page: Open) -> None:
    with demo.inspector.past("trip-4-september") as past:
        request = past.requests[-1].seq
    page = open_page(demo, f"/request/{request}", width=400)
    rows = page.locator("details.sent > summary")
    for row in rows.all():
        assert row.locator(".preview").inner_text().strip()
        assert re.search(r"[\d,]+ tokens?$", row.locator(".numbers").inner_text())
        assert row.bounding_box()["height"] < 70
    assert page.get_by_text("high mark 4,800").is_visible()


def test_something_shows_while_a_part_is_loaded(demo: Site, open_page: Open) -> None:
    page = open_page(demo, SESSION)
    # The answer never comes.
    page.route("**/text", lambda _: None)
    assert not page.locator("#loading").is_visible()
    page.get_by_role("button", name="Show all 37 kB").first.click()
    assert page.locator("#loading").is_visible()
    assert page.get_by_role("button", name="Loading…").is_visible()
    page.unroute_all(behavior="ignoreErrors")


def test_keys(demo: Site, open_page: Open) -> None:
    page = open_page(demo, "/")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.locator("[data-item]").nth(1).get_attribute("aria-current") == "true"
    page.keyboard.press("k")
    assert page.locator("[aria-current=true]").count() == 1
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{SESSION}")
    page.keyboard.press("?")
    assert page.locator("dialog#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("dialog#help").is_visible()
    page.keyboard.press("/")
    page.keyboard.type("walnut j k ?")
    assert page.locator("#q").input_value() == "walnut j k ?"
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?q=*")
    assert page.locator("mark").count()
    with demo.inspector.past("trip-4-september") as past:
        first, second = past.requests[3].seq, past.requests[4].seq
    page.goto(f"{demo.address}/request/{first}")
    page.keyboard.press("]")
    page.wait_for_url(f"**/request/{second}")
    closed = page.locator("details.sent:not([open])").count()
    assert closed
    page.keyboard.press("c")
    assert page.locator("details.sent:not([open])").count() == 0
    page.keyboard.press("[")
    page.wait_for_url(f"**/request/{first}")


def test_long_results_load_when_asked_for_and_can_be_downloaded(
    demo: Site, open_page: Open
) -> None:
    page = open_page(demo, SESSION)
    button = page.get_by_role("button", name="Show all 37 kB").first
    button.click()
    page.locator(".json summary", has_text="0 to 99").first.click()
    page.locator(".json summary", has_text="8 items").first.click()
    page.locator(".json-key", has_text="flight").first.wait_for()
    with page.expect_download() as download:
        page.locator("a[download]").nth(1).click()
    assert re.fullmatch(r"seq-\d+\.(json|txt)", download.value.suggested_filename)


def test_the_chart_leads_to_requests_and_stubs_to_originals(demo: Site, open_page: Open) -> None:
    page = open_page(demo, "/pressure/trip-4-september")
    page.locator("svg.pressure a").nth(25).click()
    page.wait_for_url("**/request/*")
    assert page.locator(".verdict.good").count() == 1
    link = page.locator("details.sent pre a").first
    page.keyboard.press("c")
    wanted = str(link.get_attribute("href"))
    link.click()
    page.wait_for_url(f"**{wanted}")
    page.go_back()
    page.get_by_label("of the event").fill("40")
    page.get_by_role("button", name="Explain").click()
    assert "inside a cell" in page.locator(".answer").inner_text()


OPEN_EVERYTHING = """(() => {
    for (const part of document.querySelectorAll('details:not([open])')) part.open = true;
    const buttons = document.querySelectorAll('button[data-load]:not([disabled])');
    for (const button of buttons) button.click();
    return document.querySelectorAll('[data-fill], button[data-load]').length;
})()"""
"""Opens and loads each part of a page; gives the number of those that are not loaded yet."""


def test_a_stored_script_does_not_run(serve: Serve, tmp_path: Path, open_page: Open) -> None:
    evil = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1> [x](javascript:window.hacked=1) \u202e"
    tools = [{"name": evil, "description": "", "parameters": {}}]
    with Store(tmp_path / "s", create=True) as store:
        store.log.append_many(
            [
                Draft(
                    kind=Kind.SESSION,
                    session_id="s",
                    content=evil,
                    name=evil,
                    metadata={"context": "scroll", "window": 900, "tools": tools},
                ),
                Draft(session_id="s", role="user", content=evil, agent_id=evil),
                Draft(
                    kind=Kind.REQUEST,
                    session_id="s",
                    name=evil,
                    metadata={"renderer": RENDERER_VERSION, "digest": f"x: {evil}"},
                ),
                Draft(
                    session_id="s",
                    role="assistant",
                    content=evil,
                    headline=evil,
                    metadata={
                        "tool_calls": [
                            {"id": evil, "name": evil, "arguments": {evil: evil, "source": evil}}
                        ]
                    },
                ),
                Draft(kind=Kind.CELL, session_id="s", content=evil, tool_call_id=evil),
                Draft(
                    kind=Kind.OBSERVATION, session_id="s", content=evil, reply_to=5, tool_state=evil
                ),
                Draft(
                    kind=Kind.REQUEST,
                    session_id="s",
                    name=evil,
                    metadata={"renderer": RENDERER_VERSION},
                ),
                Draft(session_id="s", role="user", content=json.dumps({evil: [evil] * 50})),
            ]
        )
        last = store.log.last_seq()
    with serve(tmp_path / "s") as site:
        paths = [
            "/",
            "/search?q=hacked",
            "/session/s",
            "/request/3",
            "/request/7",
            "/request/7/variables",
            "/pressure/s",
        ]
        page = open_page(site, "/")
        for path in [*paths, *(f"/event/{seq}" for seq in range(1, last + 1))]:
            page.goto(site.address + path)
            page.evaluate(OPEN_EVERYTHING)
            until(page, f"{OPEN_EVERYTHING} === 0")
            assert page.evaluate("window.hacked") is None, path
            assert page.locator("img").count() == 0
            assert page.locator("a[href^=javascript]").count() == 0


def test_a_script_that_got_into_a_page_would_not_run(demo: Site, chromium: Any) -> None:
    context = chromium.new_context()
    context.add_cookies([{"name": demo.cookie, "value": demo.cookie_value, "url": demo.address}])
    page = context.new_page()
    page.goto(demo.address)
    page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked=1\">')"
    )
    page.evaluate(
        "const s = document.createElement('script'); s.text = 'window.hacked=1'; document.body.append(s)"
    )
    page.evaluate("fetch('http://evil.example/').catch(() => { window.refused = 1 })")
    until(page, "window.refused === 1")
    assert page.evaluate("window.hacked") is None
    context.close()


def test_a_wrong_token_and_a_foreign_host_see_nothing(demo: Site, chromium: Any) -> None:
    context = chromium.new_context()
    page = context.new_page()
    assert page.goto(f"{demo.address}/?token=wrong").status == 401
    assert "trip" not in page.content()
    assert page.goto(f"http://evil.example:{demo.port}/?token={TOKEN}").status == 421
    assert page.goto(f"{demo.address}{SESSION}").status == 401
    assert page.goto(f"{demo.address}{SESSION}?token={TOKEN}").status == 200
    assert "token" not in page.url
    assert page.goto(f"{demo.address}/").status == 200
    context.close()


def test_the_steps_of_a_running_agent_appear(serve: Serve, tmp_path: Path, open_page: Open) -> None:
    gates = [threading.Event() for _ in range(3)]

    @tool
    def wait_for(gate: int) -> str:
        """Wait until the test goes on."""
        assert gates[gate].wait(60)
        return f"gate {gate} opened"

    script = [
        exec_cell(f"print(wait_for({n}))", headline=f"gate {n} | waiting | on | ok")
        for n in range(3)
    ]
    model = ScriptedModel([*script, "All gates are open."])
    with Store(tmp_path / "s", create=True) as store:
        session = Session.open(store, session_id="live", tools=[wait_for])
        session.say("Open the gates.")
        with serve(tmp_path / "s") as site:
            page = open_page(site, "/session/live")
            assert page.locator("#state").inner_text() == "running"
            worker = threading.Thread(target=lambda: Agent(session, model).run())
            worker.start()
            for number, gate in enumerate(gates):
                page.locator(".open", has_text="under way").first.wait_for()
                gate.set()
                page.locator(".result pre", has_text=f"gate {number} opened").first.wait_for()
            page.get_by_text("All gates are open.").first.wait_for()
            worker.join(30)
            session.close()
            page.locator("#state", has_text="answered").wait_for()
            assert page.locator("article.step").count() == 4


def test_each_page_works_with_many_events(serve: Serve, large_store: Path, open_page: Open) -> None:
    with serve(large_store) as site:
        page = open_page(site, "/")
        for path in pages_of(site, "long")[:-1]:
            page.goto(site.address + path)
            assert page.locator("h1").count() == 1, path
        page.goto(site.address + "/session/long")
        seen: set[str] = set()
        for _ in range(8):
            before = page.locator("section.page").count()
            page.evaluate(
                "scrollTo({top: document.documentElement.scrollHeight, behavior: 'instant'})"
            )
            until(page, f"document.querySelectorAll('section.page').length > {before}")
            seen |= {
                str(one)
                for one in page.evaluate(
                    "[...document.querySelectorAll('article[id]')].map(a => a.id)"
                )
            }
        assert len(seen) > 25
        until(
            page, "document.querySelectorAll('article').length < 150"
        )  # what is far away is let go
        page.evaluate("scrollTo({top: 0, behavior: 'instant'})")
        page.locator("article").first.wait_for()  # and comes back
        middle = open_page(site, "/session/long?at=10000#seq-10000")
        first = middle.locator("section.page").first.get_attribute("data-first")
        middle.evaluate("scrollTo({top: 0, behavior: 'instant'})")
        until(middle, f"document.querySelector('section.page').dataset.first !== '{first}'")
        chart = open_page(site, "/pressure/long")
        assert chart.locator("svg.pressure a").count() <= 300
        chart.locator("svg.pressure a").nth(40).click()
        chart.wait_for_url("**/pressure/long?from=*")
        chart.locator("svg.pressure a").nth(2).click()
        chart.wait_for_url("**/request/*")
        assert chart.locator(".verdict.good").count() == 1


def test_an_exported_page_opens_without_a_server(
    demo_store: Path, tmp_path: Path, chromium: Any
) -> None:
    target = tmp_path / "page.html"
    with Store(demo_store, read_only=True) as store:
        target.write_text("".join(export(Inspector(store), "trip-4-september")))
    said: list[str] = []
    context = chromium.new_context(viewport={"width": 400, "height": 800})
    page = context.new_page()
    page.on("console", lambda one: said.append(one.text))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(target.as_uri())
    assert page.locator("article.step").count() == 40
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert not said
    assert asked == [target.as_uri()]
    context.close()
