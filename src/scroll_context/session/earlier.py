"""What a session starts from: what the sessions before it were about, and what the user asked for once and for all.

It is read from the log within the reach of the session, once, before the first request, and recorded in an event; the
view and everything that rebuilds it take it from there. It costs about a tenth of a millisecond for each turn that is
read, and the number of those is bounded: what is older keeps its seqs and dates and has no terms.
"""

from collections.abc import Sequence

from scroll_context.events import Event, Grant
from scroll_context.store.log import EventLog, SessionInfo
from scroll_context.text.stance import standing
from scroll_context.text.terms import TermTable, title
from scroll_context.view.eviction import Budget, newest_standing, standing_limit
from scroll_context.view.index import EarlierWork, Standing, Topic, outline

MOST_EVENTS = 40_000  # of the newest sessions that are read
TURNS = 96  # of a session, spread over it, whose words are counted
TURN_CHARS = 2_000  # of a turn
SESSION_TERMS = 4  # more of them find a session less often by the words of a question (26 chats of BEAM, 461 questions)
FEW_TURNS = 3  # up to which a title tells more than terms
OUTLINE_TOKENS = 4_000


def earlier_work(
    log: EventLog, grant: Grant, session_id: str, budget: Budget, *, most_events: int = MOST_EVENTS
) -> EarlierWork:
    """The sessions within a grant but this one, and the standing instructions of the user in them."""
    sessions = [info for info in log.sessions(grant) if info.session_id != session_id]
    read, events = len(sessions), 0
    while read and (events := events + sessions[read - 1].events) <= most_events:
        read -= 1
    said: dict[str, list[Event]] = {info.session_id: [] for info in sessions[read:]}
    after = min((info.first_seq for info in sessions[read:]), default=1) - 1
    for event in log.iterate(after=after, grant=grant, role="user") if said else ():
        if event.session_id in said and event.is_searchable and event.content.strip():
            said[event.session_id].append(event)
    topics = [_untold(info) for info in sessions[:read]] + _told(sessions[read:], said)
    turns = sorted((event for own in said.values() for event in own), key=lambda event: event.seq)
    imported = {event.seq: event.is_foreign for event in turns}
    found = standing((event.seq, event.content) for event in turns)
    instructions = [Standing(seq, words, imported[seq]) for seq, words in found]
    listed, unlisted = newest_standing(instructions, standing_limit(budget.window))
    room = min(OUTLINE_TOKENS, int(budget.window * budget.index_share / 2))
    return EarlierWork(outline(topics, room) if topics else (), listed, unlisted)


def _told(sessions: Sequence[SessionInfo], said: dict[str, list[Event]]) -> list[Topic]:
    """The topics of sessions whose turns were read; sessions in which no user spoke have none."""
    spoken = [(info, [event.content[:TURN_CHARS] for event in _spread(said[info.session_id])]) for info in sessions]
    spoken = [(info, texts) for info, texts in spoken if texts]
    table = TermTable()
    for _, texts in spoken:
        table.add(texts)
    topics = []
    for number, (info, texts) in enumerate(spoken):
        terms = table.terms(number)[:SESSION_TERMS]
        name = title(texts, terms) if len(texts) <= FEW_TURNS or not terms else ""
        topics.append(_topic(info, len(said[info.session_id]), name, terms))
    return topics


def _untold(info: SessionInfo) -> Topic:
    """A session that is too old to be read."""
    return _topic(info, info.events, "", ())


def _topic(info: SessionInfo, turns: int, name: str, terms: tuple[str, ...]) -> Topic:
    spans = ((info.first_seq, info.last_seq),)
    return Topic(spans, turns, 1, info.first_at[:10], info.last_at[:10], name, terms)


def _spread(events: Sequence[Event]) -> list[Event]:
    """As many of the events as are counted, evenly over all of them."""
    step = max(1.0, len(events) / TURNS)
    return [events[int(n * step)] for n in range(min(TURNS, len(events)))]
