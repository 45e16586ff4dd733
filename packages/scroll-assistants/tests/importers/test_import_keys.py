"""The same message is recognised again; different ones never share a key."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scroll_context.importing.layouts import JSONL, read
from scroll_context.importing.messages import SourceKeys
from scroll_context.importing.records import Imported, Labels


def keys(messages: list[dict[str, Any]], session: str = "s") -> list[str]:
    source = SourceKeys()
    return [source.key(session, message) for message in messages]


words = st.sampled_from(["ok", "yes", "no", "go on"])
message = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "system"]),
    words,
)


@given(st.lists(message, max_size=12), st.lists(message, max_size=5))
def test_a_grown_file_gives_the_old_keys_and_new_ones(
    old: list[dict[str, Any]], new: list[dict[str, Any]]
) -> None:
    before, after = keys(old), keys(old + new)
    assert after[: len(old)] == before
    assert len(set(after)) == len(after)


@given(st.lists(message, min_size=2, max_size=12), st.randoms(use_true_random=False), message)
def test_an_insertion_behind_the_opening_adds_one_key(
    old: list[dict[str, Any]], chance: random.Random, new: dict[str, Any]
) -> None:
    old = [{"role": "user", "content": "opening"}, *old]
    at = chance.randint(1, len(old))
    before, after = Counter(keys(old)), Counter(keys([*old[:at], new, *old[at:]]))
    assert not before - after
    assert sum((after - before).values()) == 1


def test_key_order_and_spacing_do_not_matter_and_everything_else_does() -> None:
    one = json.loads('{"role":"user","content":"x","timestamp":1}')
    same = json.loads('{ "timestamp": 1, "content": "x", "role": "user" }')
    assert keys([one]) == keys([same])
    assert keys([one]) != keys([{**one, "timestamp": 2}])
    assert keys([one], "s") != keys([one], "t")


def test_equal_messages_of_two_conversations_under_one_name_are_both_kept() -> None:
    first = [{"role": "user", "content": "about Rome"}, {"role": "user", "content": "ok"}]
    second = [{"role": "user", "content": "about Oslo"}, {"role": "user", "content": "ok"}]
    assert not set(keys(first)) & set(keys(second))


def test_a_shared_system_prompt_does_not_make_conversations_one() -> None:
    prompt = {"role": "system", "content": "be brief"}
    first, second = (
        keys([prompt, {"role": "user", "content": "a"}]),
        keys([prompt, {"role": "user", "content": "b"}]),
    )
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_the_events_of_one_message_have_keys_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    call = {
        "role": "assistant",
        "content": "x",
        "tool_calls": [{"id": "1", "function": {"name": "f"}}],
    }
    path.write_text(json.dumps(call) + "\n" + json.dumps(call) + "\n")
    found = [
        item for item in read(path, JSONL, Labels(session_id="a")) if isinstance(item, Imported)
    ]
    assert len({piece.draft.source_key for item in found for piece in item.pieces}) == 4
