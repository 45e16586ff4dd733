"""Contents of events: their JSON shapes on disk, and how tolerant their decoders are."""

import json
from typing import Any

import msgspec
import pytest

from scroll_context.contents import (
    EarlierWork,
    EntryTopic,
    EvictionPlan,
    Snapshot,
    SnapshotVariable,
    Standing,
    Topic,
    Usage,
    index_sources,
    usage_of,
    well_formed,
)
from scroll_context.errors import BadInput
from scroll_context.events import Event, Kind

PLAN = EvictionPlan(
    reason="full",
    before=900,
    after=300,
    limit=400,
    folded=(3,),
    clipped=((5, 80),),
    evicted=((7, 9),),
    topics=(EntryTopic(7, "the route", ("Porto",)),),
    standing=(Standing(2, "Use metric units."),),
    index_tokens=100,
    ratio=1.0,
)
EARLIER = EarlierWork(
    topics=(Topic(((10, 20),), 4, terms=("tolls",)),), standing=(Standing(11, "Never fly."),)
)
SNAPSHOT = Snapshot(
    2,
    "3.12",
    (SnapshotVariable(name="x", group=0, inline=b"abc", cells=(2,), made_by=(7,)),),
    ("y",),
    {2: (5, 6)},
)


def event(kind: str, **metadata: Any) -> Event:
    return Event(seq=30, recorded_at="", kind=kind, metadata=metadata)


def test_shapes_on_disk_are_as_they_were() -> None:
    assert json.loads(SNAPSHOT.encode()) == {
        "cell": 2,
        "python": "3.12",
        "saved": [{"name": "x", "group": 0, "inline": "YWJj", "cells": [2], "made_by": [7]}],
        "gone": ["y"],
        "sources": {"2": [5, 6]},
    }
    plan = json.loads(json.dumps(PLAN.metadata()))["plan"]
    assert plan["about"] == [[7, "the route", ["Porto"]]]
    assert plan["over_budget"] is False
    assert json.loads(json.dumps(EARLIER.metadata())) == {
        "earlier": {
            "topics": [{"spans": [[10, 20]], "turns": 4, "terms": ["tolls"]}],
            "standing": [{"seq": 11, "words": "Never fly."}],
        }
    }
    assert msgspec.to_builtins(Usage(input_tokens=5)) == {"input_tokens": 5}


def test_contents_are_read_back_from_the_json_of_the_log() -> None:
    assert Snapshot.decode(SNAPSHOT.encode()) == SNAPSHOT
    metadata = json.loads(json.dumps(PLAN.metadata() | EARLIER.metadata()))
    assert EvictionPlan.from_metadata(metadata) == PLAN
    assert EarlierWork.from_metadata(metadata) == EARLIER


@pytest.mark.parametrize("text", ["", "no JSON", "[1]", "3", '{"saved": 3}', '{"saved": [4]}'])
def test_a_snapshot_of_another_shape_is_refused_or_read_as_far_as_possible(text: str) -> None:
    with pytest.raises(BadInput, match="not a readable snapshot"):
        Snapshot.decode(text)
    readable = Snapshot.decode_readable(text)
    assert [variable.name for variable in readable.variables] in ([], [""])


def test_readable_fields_of_a_damaged_snapshot_are_not_lost() -> None:
    value = json.loads(SNAPSHOT.encode())
    value["python"] = 3
    value["saved"][0] |= {"group": "none", "digest": "d" * 64}
    value["saved"].append({"name": "z", "digest": "e" * 64, "made_by": "all"})
    readable = Snapshot.decode_readable(json.dumps(value))
    assert [variable.digest for variable in readable.variables] == ["d" * 64, "e" * 64]
    assert readable.variables[0].made_by == (7,)
    assert readable.variables[1].made_by == ()
    assert readable.sources == {2: (5, 6)}
    assert readable.cell == 2


@pytest.mark.parametrize("value", [None, 3, [], "many", {"input_tokens": "five"}])
def test_a_usage_of_another_shape_counts_as_not_reported(value: object) -> None:
    assert usage_of(event(Kind.CONVERSATION, usage=value)) == Usage()
    assert usage_of(event(Kind.CONVERSATION)) == Usage()


def test_readable_counts_of_a_usage_are_used() -> None:
    usage = {"input_tokens": 7, "output_tokens": None}
    assert usage_of(event(Kind.CONVERSATION, usage=usage)) == Usage(input_tokens=7)


def test_plans_and_earlier_work_name_the_events_that_they_quote() -> None:
    assert index_sources(event(Kind.EVICTION, **PLAN.metadata())) == [(7, 7), (2, 2)]
    assert index_sources(event(Kind.SESSION, **EARLIER.metadata())) == [(11, 11), (10, 20)]
    damaged = PLAN.metadata()["plan"] | {"reason": 3, "about": None}
    assert index_sources(event(Kind.EVICTION, plan=damaged)) == [(2, 2)]
    assert index_sources(event(Kind.EVICTION, plan=[1], earlier="none")) == []


def test_unreadable_plans_are_refused_and_unreadable_earlier_work_is_missing() -> None:
    with pytest.raises(BadInput, match="readable plan"):
        EvictionPlan.from_metadata({"plan": {"reason": "full"}})
    assert EarlierWork.from_metadata({"earlier": {"topics": 3}}) is None
    assert EarlierWork.from_metadata({}) is None


def test_metadata_of_another_shape_counts_as_missing() -> None:
    odd = event(Kind.REQUEST, tokens=-3, window=10, usage={"input_tokens": "x"}, other=[1])
    assert well_formed(odd).metadata == {"window": 10, "other": [1]}
    good = event(Kind.REQUEST, tokens=3)
    assert well_formed(good) is good
