"""Small histories written so that the published cells find something at the addresses they name.

Three conversations, one for each task that the cells come from. Most rows are filler; `SAID` places
what matters. All of it is made up for these tests.
"""

import datetime as dt
from collections.abc import Iterator

from scroll_context.events import Draft
from scroll_context.store import Store

FILLER = (
    "What else should I bring along for the afternoon?",
    "A hat, some water and a little patience would do.",
)

# Each row has a number, a date, the first seq and the last seq.
Session = tuple[int, str, int, int]

SPRINT: list[Session] = [
    (4, "2024-07-05", 500, 700),
    (22, "2024-08-05", 4200, 4400),
    (42, "2024-11-05", 8047, 8400),
]
EVENTS: list[Session] = [
    (31, "2023-07-01", 7200, 7600),
    (36, "2023-07-14", 8400, 8600),
    (37, "2023-07-15", 8601, 9000),
    (73, "2023-08-22", 16850, 16960),
]
_TRIP_SIZES = {
    61: 188,
    62: 222,
    63: 196,
    64: 190,
    65: 194,
    66: 278,
    67: 200,
    68: 198,
    69: 196,
    70: 200,
    71: 180,
    72: 240,
    73: 230,
    74: 250,
    75: 200,
    76: 236,
    77: 470,
    78: 322,
    79: 178,
}


def _trip() -> list[Session]:
    sessions: list[Session] = [(1, "2022-05-01", 1, 60), (10, "2022-07-01", 2300, 2400)]
    first = 13611
    for number, size in _TRIP_SIZES.items():
        day = min(dt.date(2023, 4, 8) + dt.timedelta(number - 61), dt.date(2023, 4, 24))
        sessions.append((number, day.isoformat(), first, first + size - 1))
        first += size
    sessions += [(80, "2023-04-25", first, 18058), (100, "2023-05-31", 18323, 18400)]
    return sessions


TRIP = _trip()

SAID = {
    "sprint": {
        565: (
            "I've added 10 feasibility tasks to my Jira board for the sprint, aiming at 85% of "
            "them."
        ),
        4283: "I use Jira 9.5.0 and have added 18 tasks on ingestion to this sprint.",
        8123: (
            "For the sprint of 2024-11-05 I have 14 tasks on dynamic resizing and aim for 85% "
            "completion."
        ),
        8349: (
            "Please correct the sprint of 2024-11-05: the new total is 17 tasks, the target is 88%."
        ),
    },
    "events": {
        7496: "Pamela could look after the vendor stands while they are set up.",
        8434: "Morning: Pamela watches the vendor trucks arrive and unload.",
        8675: "How do I brief the five entertainers, now that Pamela has taken that on?",
        8867: (
            "Pamela didn't brief anybody and saved me no time; that was a misunderstanding. "
            "Please correct it."
        ),
        8868: "Understood: Pamela wasn't involved in the briefing. I will keep that in mind.",
        16899: (
            "Why did Pamela call three vendor offices, and how did that save me fifteen minutes?"
        ),
        16900: "Pamela asked each vendor for a quick rating, so you need not follow up.",
        16901: "That makes sense. Her calls did save me time.",
        16902: "Glad to hear that Pamela and her vendor calls were of use.",
    },
    "trip": {
        25: "How does the Roadtrippers app work, and can it map out a route with five parks?",
        2335: (
            "I'll use Google Maps and Roadtrippers to map out the route, and avoid every toll road."
        ),
        14809: "I want eight hours of sleep and two litres of water a day from now on.",
        15138: "My patience grew by 40% on this trip: personal growth, I would say.",
        15489: "The canyon hike changed me; I learned about myself.",
        16009: "The delay in Pittsburgh cost 70 dollars.",
        16018: "We spent 250 dollars too much on food: an overspend.",
        16441: "Lessons learned: fewer stops.",
        16614: "Maps.me is your current tool for detours.",
        16678: "Growth means looser plans.",
        16685: "Two stops at most, from now on.",
        16824: "Another lesson learned about budgets.",
        17171: "I drive three hours at most now, and I am far less tired.",
        17216: "Flexibility grew by 35%.",
        17712: "Two stops at most: that is how future travel will look.",
        17932: "I rate my growth at 82%.",
    },
}


def build(store: Store, name: str) -> None:
    """Append one of the histories: `sprint`, `events` or `trip`."""
    store.log.append_many(drafts(name))


def drafts(name: str) -> Iterator[Draft]:
    """The events of one of the histories."""
    sessions = {"sprint": SPRINT, "events": EVENTS, "trip": TRIP}[name]
    texts = SAID[name]
    last = max(hi for _, _, _, hi in sessions)
    place = {seq: (n, day) for n, day, lo, hi in sessions for seq in range(lo, hi + 1)}
    for seq in range(1, last + 1):
        yield _draft(seq, *place.get(seq, (0, "2020-01-01")), texts, name)


def _draft(seq: int, number: int, day: str, texts: dict[int, str], task: str) -> Draft:
    role = "user" if seq % 2 else "assistant"
    if seq in texts:
        role = "assistant" if seq in (7496, 8434, 8868, 16614, 16900, 16902) else "user"
    text = texts.get(seq, FILLER[seq % 2])
    return Draft(
        kind="conversation",
        session_id=f"{task}-{number}",
        agent_id="agent",
        task_id=task,
        role=role,
        content=f"[Session {number} | {day}] {role}: {text}",
        step_index=number,
        msg_index=seq,
        created_at=day,
        metadata={"date": day},
    )
