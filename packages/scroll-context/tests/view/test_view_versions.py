"""Requests are rebuilt to the byte by the rules that made them: a change to the rules needs a new
version.
"""

import msgspec
import pytest

from frozen_histories import DATA
from scroll_context.events import Event, Kind
from scroll_context.view.working import RENDERER_VERSION, WorkingView, render

FROZEN = msgspec.json.decode((DATA / f"version{RENDERER_VERSION}.json").read_bytes())


@pytest.mark.parametrize("history", FROZEN["histories"], ids=lambda history: str(history["name"]))
def test_every_frozen_request_has_its_hash(history: dict[str, list[dict[str, object]]]) -> None:
    view = WorkingView()
    requests = 0
    for event in (
        msgspec.convert({"recorded_at": "", **fields}, Event) for fields in history["events"]
    ):
        if event.kind == Kind.REQUEST:
            requests += 1
            assert event.metadata["renderer"] == RENDERER_VERSION
            sent = render(view, FROZEN["system"], event.metadata["digest"])
            assert sent.hash == event.metadata["hash"], f"seq {event.seq}"
        view.add(event)
    assert requests > 5


OLDER = {
    version: msgspec.json.decode(file.read_bytes())
    for file in sorted(DATA.glob("version*.json"))
    if (version := int(file.stem.removeprefix("version"))) < RENDERER_VERSION
}
OLDER_HISTORIES = [
    pytest.param(version, history, id=f"{version}-{history['name']}")
    for version, frozen in OLDER.items()
    for history in frozen["histories"]
]


@pytest.mark.parametrize(("version", "history"), OLDER_HISTORIES)
def test_a_log_of_an_older_version_can_be_continued(
    version: int, history: dict[str, list[dict[str, object]]]
) -> None:
    view = WorkingView()
    for fields in history["events"]:
        event = msgspec.convert({"recorded_at": "", **fields}, Event)
        assert event.metadata.get("renderer", version) == version
        view.add(event)
    rendered = render(view, OLDER[version]["system"], "")
    assert rendered.renderer == RENDERER_VERSION
    assert rendered.messages[-1].role != "system"
