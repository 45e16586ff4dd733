"""Which turn of the user each reply answers.

A reply lends weight to the turn that it answers, and turns weigh more than replies (ranking.py).
"""

from scroll_context.events import UNSEARCHABLE, Event, Kind
from scroll_context.log.log import EventLog
from scroll_context.origin import FROM_PERSON_SQL

# Characters of a short reply.
SHORT_REPLY = 400
# Events of a session that are searched for the user turn which a reply answers.
LOOK_BACK = 10_000

_NOT_REPLIES = frozenset({Kind.TOOL_CALL, Kind.TOOL_RESULT, Kind.CELL, Kind.OBSERVATION})


def is_user_turn(event: Event) -> bool:
    """Whether a person speaks, which weighs more in any conversation, an imported one too."""
    return event.is_from_person and event.is_searchable


def is_reply(event: Event) -> bool:
    """Whether an event speaks to the user, and so may lend weight to the turn that it answers."""
    return event.role == "assistant" and event.kind not in _NOT_REPLIES


def only_makes_calls(event: Event) -> bool:
    """Whether a reply has no text besides its calls, which have events of their own."""
    return not event.content and is_reply(event) and bool(event.metadata.get("tool_calls"))


def is_short_reply(event: Event) -> bool:
    """Whether a reply is as short as what people say to each other, and makes no calls."""
    return len(event.content) <= SHORT_REPLY and not event.metadata.get("tool_calls")


class Turns:
    """Which turn each reply answers, followed along the log.

    A short first reply that makes no calls is a turn of its own: between two people, or with an
    assistant that talks like one, both say what is asked for later. Long replies and the remarks of
    an agent at work are not.
    """

    _NEVER = ", ".join(f"'{kind}'" for kind in UNSEARCHABLE)

    def __init__(self, log: EventLog) -> None:
        self._log = log
        # The newest user turn of each session so far; 0 for none.
        self._newest: dict[str, int] = {}
        # The user turn of each session that was answered last.
        self._last_answered: dict[str, int] = {}

    def answered_by(self, event: Event) -> int:
        """The seq of the user turn, 0 for none; a turn answers itself."""
        if is_user_turn(event):
            self._newest[event.session_id] = event.seq
            return event.seq
        if not is_reply(event):
            return 0
        if event.session_id not in self._newest:
            turn = self._newest[event.session_id] = self._before(event)
            if turn and self._is_answered(turn, event):
                self._last_answered[event.session_id] = turn
        turn = self._newest[event.session_id]
        if event.reply_to and event.reply_to != turn:
            events = self._log.get_many([event.reply_to])
            if events and is_user_turn(events[0]):
                return event.reply_to
        is_first = self._last_answered.get(event.session_id) != turn
        self._last_answered[event.session_id] = turn
        if turn and is_first and is_short_reply(event):
            return event.seq
        return turn

    def _is_answered(self, turn: int, event: Event) -> bool:
        """Whether a reply before this one, in an earlier batch, answers the same turn."""
        between = self._log.iterate(
            after=turn, until=event.seq - 1, session_id=event.session_id, role="assistant"
        )
        return any(map(is_reply, between))

    def _before(self, event: Event) -> int:
        """The newest user turn of the session before an event."""
        rows = self._log.query(
            f"""SELECT seq FROM (
                SELECT seq, role, kind FROM event WHERE session_id = ? AND seq < ?
                ORDER BY seq DESC LIMIT {LOOK_BACK}
            ) WHERE {FROM_PERSON_SQL} AND kind NOT IN ({self._NEVER}) ORDER BY seq DESC LIMIT 20""",
            [event.session_id, event.seq],
        )
        for candidate in self._log.get_many([seq for (seq,) in rows]):
            if is_user_turn(candidate):
                return candidate.seq
        return 0
