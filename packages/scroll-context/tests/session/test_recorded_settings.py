"""Settings in the log of a session open neither the jail nor the store when it is resumed."""

import logging
from pathlib import Path

import pytest

from scroll_context.events import Draft, Kind, Scope
from scroll_context.session.options import SessionOptions
from scroll_context.session.session import Session, fork
from scroll_context.store import Store

READ = "import pathlib\ntry:\n    print(pathlib.Path({path!r}).read_text())\nexcept OSError as error:\n    print(error)"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A private key in a folder that a session may name as a package."""
    file = tmp_path / "private" / "id_rsa"
    file.parent.mkdir()
    file.write_text("BEGIN PRIVATE KEY")
    (file.parent / "secrets.py").write_text("KEY = 'BEGIN PRIVATE KEY'")
    return file


def hostile(store: Store, **settings: object) -> None:
    """A session as another person may have put it into a store."""
    scope = Scope("theirs", "claude-code", "their-task")
    store.log.append_many(
        [
            scope.draft(Kind.SESSION, content="opened", metadata={"settings": settings}),
            scope.draft(Kind.CONVERSATION, role="user", content="hello"),
            Draft(
                session_id="mine",
                agent_id="claude-code",
                task_id="their-task",
                role="user",
                content="hidden pearl",
            ),
        ]
    )


def test_recorded_packages_are_not_readable_unless_they_are_given_again(
    store: Store, key: Path
) -> None:
    hostile(store, reach="session", packages=[str(key.parent)])
    with Session.resume(store, "theirs") as session:
        assert session.withheld.packages == (str(key.parent),)
        assert "PRIVATE KEY" not in session.run(READ.format(path=str(key))).content
    again = SessionOptions(packages=(str(key.parent),))
    with Session.resume(store, "theirs", options=again) as session:
        assert session.withheld == SessionOptions()
        assert "PRIVATE KEY" in session.run(READ.format(path=str(key))).content


@pytest.mark.parametrize("reach", ["task", "agent", "all"])
def test_a_recorded_reach_beyond_the_session_must_be_given_again(store: Store, reach: str) -> None:
    hostile(store, reach=reach)
    search = "print(len(ms.search('pearl')))"
    with Session.resume(store, "theirs") as session:
        assert (session.reach, session.withheld.reach) == ("session", reach)
        assert session.run(search).content.startswith("0")
    hostile(store, reach=reach)
    with Session.resume(store, "theirs", options=SessionOptions(reach=reach)) as session:  # type: ignore[arg-type]
        assert session.reach == reach and not session.run(search).content.startswith("0")


def test_naming_the_agent_again_gives_its_reach_again(store: Store) -> None:
    with Session.open_or_resume(store, "chat", agent_id="me") as session:
        assert session.reach == "agent"
    with Session.open_or_resume(store, "chat", agent_id="me") as session:
        assert session.reach == "agent" and session.withheld == SessionOptions()
    with Session.open_or_resume(store, "chat", agent_id="another") as session:
        assert session.reach == "session" and session.withheld.reach == "agent"


def test_a_fork_of_a_session_is_given_nothing_that_was_recorded(store: Store, key: Path) -> None:
    hostile(store, reach="all", packages=[str(key.parent)])
    with fork(store, "theirs", 2, session_id="branch") as session:
        assert session.reach == "session" and session.withheld.packages == (str(key.parent),)


def test_the_warning_prints_the_arguments(
    store: Store, key: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hostile(store, reach="all", packages=[str(key.parent)])
    with (
        caplog.at_level(logging.WARNING, "scroll_context.session"),
        Session.resume(store, "theirs") as session,
    ):
        options = f"SessionOptions(reach='all', packages={(str(key.parent),)!r})"
        assert f"Session.resume(store, 'theirs', options={options})" in caplog.text
        notice = next(event for event in session.events() if event.kind == Kind.NOTICE)
        assert "reaches this session only" in notice.content
