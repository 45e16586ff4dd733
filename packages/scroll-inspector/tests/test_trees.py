"""JSON as a tree: complete where it is small, loaded part by part where it is large, and never more
than text.
"""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scroll_context.events import Draft
from scroll_context.store import Store
from scroll_inspector import trees
from scroll_inspector.trees import Place
from served import Serve, Site

HOSTILE = "<img src=x onerror=alert(1)>\"&' \u202e \x1b[31m"

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda values: (
        st.lists(values, max_size=150) | st.dictionaries(st.text(max_size=8), values, max_size=150)
    ),
    max_leaves=400,
)


def parts(html: str) -> list[str]:
    return [unescape(url) for url in re.findall(r'data-fill="([^"]*)"', html)]


def leaves(value: Any) -> list[str]:
    if isinstance(value, dict | list) and value:
        items = value.values() if isinstance(value, dict) else value
        return [leaf for item in items for leaf in leaves(item)]
    return [json.dumps(value, ensure_ascii=False)]


def opened(value: Any) -> list[str]:
    """Every value that a reader finds who opens all parts, in order of the pages."""
    shown: list[str] = []
    waiting = [str(trees.tree(value, "/t"))]
    while waiting:
        html = waiting.pop()
        shown += re.findall(r'<span class="json-(?:string|value)">(.*?)</span>', html, re.DOTALL)
        for url in parts(html):
            query = dict(pair.split("=") for pair in url.partition("?")[2].split("&"))
            place = Place.of(query["path"], int(query.get("from", 0)), int(query.get("to", 0)))
            waiting.append(str(trees.part_of(value, place, "/t")))
    return shown


@settings(max_examples=40)
@given(VALUES)
def test_every_value_can_be_opened(value: Any) -> None:
    expected = sorted(trees.visible(leaf) for leaf in leaves(value))
    assert sorted(map(unescape, opened(value))) == expected


def test_a_large_list_is_divided_into_ranges_that_hold_all_of_it() -> None:
    value = {"rows": [{"number": number} for number in range(12_000)]}
    first = str(trees.tree(value, "/t"))
    assert len(first) < 2_000
    assert len(opened(value)) == 12_000


def test_hostile_keys_and_values_are_text() -> None:
    value = {HOSTILE: [HOSTILE, {HOSTILE: HOSTILE * 100}] * 40}
    waiting = [str(trees.tree(value, "/t")), str(trees.tree({HOSTILE: [HOSTILE]}, ""))]
    seen = 0
    while waiting:
        html = waiting.pop()
        seen += 1
        assert not re.search(r"<(?!/?(?:details|summary|small|ul|li|span|p|a|pre)\b)", html)
        assert "\u202e" not in html and "\x1b" not in html
        for url in parts(html):
            assert re.fullmatch(r"/t\?path=[0-9.]*(&from=\d+&to=\d+)?", url)
            path = re.findall(r"path=([0-9.]*)", url)[0]
            numbers = [int(number) for number in re.findall(r"=(\d+)(?=&|$)", url)][-2:]
            place = Place.of(path, *(numbers if "from" in url else (0, 0)))
            waiting.append(str(trees.part_of(value, place, "/t")))
    assert seen > 3


@pytest.mark.parametrize("text", ["", "12", '"x"', "{", "[1,", "not json", "[" * 100_000])
def test_a_text_that_is_no_list_or_object_has_no_tree(text: str) -> None:
    assert trees.text_tree(text, "/t") is None


def test_a_list_too_deep_for_a_page_opens_level_by_level() -> None:
    depth = 400
    value = json.loads("[" * depth + "1" + "]" * depth)
    assert opened(value) == ["1"]


@pytest.fixture
def site(serve: Serve, tmp_path: Path) -> Any:
    rows = [{"number": number, "text": "x" * 30} for number in range(6_000)]
    with Store(tmp_path / "s", create=True) as store:
        payload = store.payloads.put_text(json.dumps({"rows": rows}), "application/json")
        store.append(Draft(session_id="s", role="tool", kind="tool_result", payload=payload))
        store.append(Draft(session_id="s", role="user", content='{"a": [1, 2], "b": {}}'))
        store.append(Draft(session_id="s", role="user", content="[a link](http://x)"))
    with serve(tmp_path / "s") as site:
        yield site


def test_a_large_payload_is_a_tree_whose_parts_load(site: Site) -> None:
    first = site.get("/event/1/text").text
    assert "6,000 items" in first and len(first) < 3_000
    (rows,) = parts(first)
    ranges = parts(site.get(rows).text)
    assert len(ranges) == 60
    page = site.get(ranges[-1]).text
    assert '<span class="json-value">5999</span>' in page
    assert "json-key" in site.get("/session/s").text  # the short one is a tree at once
    assert '<a href="http://x">a link</a>' in site.get("/session/s").text


@pytest.mark.parametrize(
    "query", ["path=9", "path=0.99999999", "path=x", "path=-1", "path=0..1", "path=0.0.0.0", "to=x"]
)
def test_a_part_that_is_not_there_is_not_found(site: Site, query: str) -> None:
    for address in ("/event/1/tree", "/event/3/tree", "/event/3/metadata"):
        assert site.get(f"{address}?{query}").status in (200, 404)
    assert site.get("/event/3/tree").status == 404
    assert site.get("/event/99/tree").status == 404
