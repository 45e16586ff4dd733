"""A service with many users in one process: a session for each user, asyncio, and no user reads
another's history.

The same `answer` function is what a web endpoint calls. One store is used by one host; a session is
open in one place at a time, so a second request of the same user waits for the first.
"""

import asyncio
import tempfile
from collections import defaultdict

from scroll_context import Agent, ScriptedModel, Session, SessionOptions, Store, exec_cell


class Service:
    """Answers messages of users. Keep one for the life of the process."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def answer(self, user: str, message: str) -> str:
        async with self.turns[user]:
            session = await asyncio.to_thread(self._session, user)
            try:
                look = exec_cell(
                    "print([row['content'] for row in ms.search('secret', role='user')])"
                )
                run = await Agent(session, ScriptedModel([look, f"Noted, {user}."])).arun(message)
                return run.answer
            finally:
                await asyncio.to_thread(session.close)

    def _session(self, user: str) -> Session:
        options = SessionOptions(reach="agent")  # all sessions of this user, and of nobody else
        return Session.open_or_resume(
            self.store, f"chat-{user}", agent_id=user, options=options, wait=30
        )


async def main(folder: str) -> None:
    with Store(folder, create=True) as store:
        service = Service(store)
        asked = [
            ("ada", "my secret is 17"),
            ("grace", "my secret is 23"),
            ("ada", "what do you know?"),
        ]
        print(await asyncio.gather(*(service.answer(user, message) for user, message in asked)))
        for user in ("ada", "grace"):
            seen = [
                event.content
                for event in store.log.iterate(session_id=f"chat-{user}", kind="observation")
            ]
            print(
                user,
                "saw another user's secret:",
                any(other in str(seen) for other in {"17", "23"} - own(user)),
            )


def own(user: str) -> set[str]:
    return {"17"} if user == "ada" else {"23"}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(temporary))
