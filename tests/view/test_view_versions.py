"""Requests that an older version of the renderer made are rebuilt to the byte, for ever."""

import msgspec
import pytest
from frozen_histories import DATA

from scroll_context.errors import BadInput
from scroll_context.events import Event, Kind
from scroll_context.view.working import RENDERER_VERSION, WorkingView, render

FROZEN = [
    pytest.param(
        version,
        frozen["system"],
        [msgspec.convert({"recorded_at": "", **event}, Event) for event in history["events"]],
        id=f"version {version}, {history['name']}",
    )
    for version in range(1, RENDERER_VERSION + 1)
    for frozen in (msgspec.json.decode((DATA / f"version{version}.json").read_bytes()),)
    for history in frozen["histories"]
]


@pytest.mark.parametrize(("version", "system", "events"), FROZEN)
def test_every_frozen_request_has_its_hash(version: int, system: str, events: list[Event]) -> None:
    view = WorkingView(version)
    requests = 0
    for event in events:
        if event.kind == Kind.REQUEST:
            requests += 1
            assert event.metadata.get("renderer", 1) == version
            assert render(view, system, event.metadata["digest"]).hash == event.metadata["hash"], f"seq {event.seq}"
        view.add(event)
    assert requests > 5


def test_the_newest_rules_can_replay_the_oldest_log() -> None:
    for _, system, events in (parameters.values for parameters in FROZEN):
        view = WorkingView.replay(events)
        assert render(view, system).metadata()["renderer"] == view.version == RENDERER_VERSION
        assert view.copy().version == RENDERER_VERSION


@pytest.mark.parametrize("version", [0, RENDERER_VERSION + 1])
def test_rules_that_are_not_known_are_refused(version: int) -> None:
    with pytest.raises(BadInput, match="newer"):
        WorkingView(version)
