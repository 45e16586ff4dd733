"""The script of the model in the demonstration.

It is no language model, but it is no recording either: nearly every entry is a function of the
request, and reads from it what a model would read (the hits that a search printed, a name in a
result, a span of seqs in the index). If the system did not show those, the script could not go on.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from scroll_context.demo import world
from scroll_context.models import Reply, Request, ScriptedModel, exec_cell
from scroll_context.models.scripted import Entry
from scroll_context.view.wording import CELLS

DAY = "2026-09-12"
# The window in tokens is far too small for the tour.
WINDOW = 6_000

FIRST = (
    "Nadia and I want to see Portugal again: Zürich to Porto on 12 September, and from there by "
    "car to Pinhão. Find the flight and the road, and book the flight. You know how I like to "
    "travel."
)
SECOND = (
    "Now plan the whole tour, Porto to Lisbon: for each town the drive, a quiet room with "
    "parking, a table for the evening and what to see. And think of Nadia's allergy."
)
THIRD = "Back to Porto for a moment: which room was your second choice there, and what did it cost?"
FOURTH = "Good. Book all the rooms."


class NotShown(LookupError):
    """The request does not hold what the script would read from it."""


def model(entries: Sequence[Entry]) -> ScriptedModel:
    """A model that says this, with the demonstration's window."""
    return ScriptedModel(entries, name="scripted:demo", window=WINDOW)


def flight_and_road() -> list[Entry]:
    """The three cells of the paper's figure, a booking, and an answer."""
    return [
        exec_cell(
            f'flights = search_flights("ZRH", "OPO", "{DAY}")\n'
            'routes = search_routes("Porto", "Pinhão")\n'
            'print(len(flights), "fares,", len(routes), "routes; two of each:")\n'
            "for row in flights[:2] + routes[:2]:\n"
            "    print([row[name] for name in list(row)[:5]])",
            headline="flight and road | nothing yet | look for the user's preferences | ok",
        ),
        exec_cell(
            'hits = ms.search("fly economy OR toll roads", role="user", k=4)\n'
            "for hit in hits:\n"
            '    print(hit["seq"], hit["snippet"][:70])',
            headline=(
                "preferences | 240 fares in flights, 48 in routes | expand what the user said | ok"
            ),
        ),
        _chosen,
        _booked_flight,
        lambda request: (
            f"Booked: {_line(request, 'booked')}. I took the cheapest economy fare and, because "
            "you want no toll roads, the fastest road without any."
        ),
    ]


def tour() -> list[Entry]:
    """Some thirty steps: more than the window holds several times over."""
    steps: list[tuple[str, str]] = [("Nadia's allergy", _ALLERGY)]
    for number, town in enumerate(world.towns()):
        if number:
            before = world.towns()[number - 1]
            steps.append((f"drive {before} to {town}", _DRIVE.format(start=before, end=town)))
        steps += [
            (f"{what} in {town}", source.format(town=town)) for what, source in _IN_TOWN.items()
        ]
    titles = [title for title, _ in steps[1:]] + ["answer"]
    entries: list[Entry] = [
        _reading(title, source, following)
        for (title, source), following in zip(steps, titles, strict=True)
    ]
    texts = (
        f"The tour is planned: {', '.join(world.towns())}. No toll on any road, no walnuts on any "
        "table."
    )
    return [*entries, texts]


def second_choice() -> list[Entry]:
    """Look the question up in the index, expand the exact rows, answer from them."""
    return [
        _expanding,
        lambda request: (
            f"In Porto my second choice was {_line(request, '2.')}. I read that again at seq "
            f"{_printed(request).partition(' ')[0]}; it had left my view long ago."
        ),
    ]


def all_rooms() -> list[Entry]:
    """Book room after room. The process does not live to see the end of this cell."""
    return [
        exec_cell(
            "for town, stay in plan.items():\n"
            '    room = stay["room"]\n'
            '    done = book(f"room in {town}: {room[\'name\']}", room["price_chf"])\n'
            '    print(town, done["reference"])',
            headline="book rooms | plan has a room for each of 7 towns | tell the references | ok",
        )
    ]


def after_the_kill() -> list[Entry]:
    """Look before booking again, since a booking was under way when the process died."""
    return [
        exec_cell(
            'booked = {one["item"] for one in bookings()}\n'
            "left = {\n"
            '    item: stay["room"]["price_chf"] for town, stay in plan.items()\n'
            "    if (item := f\"room in {town}: {stay['room']['name']}\") not in booked\n"
            "}\n"
            'print(len(booked), "booked already,", len(left), "rooms to go")',
            headline="book rooms | the process died in a booking | book only what is missing | ok",
        ),
        exec_cell(
            'for item, price in left.items():\n    print(item, book(item, price)["reference"])',
            headline="book rooms | what was booked before the crash is known | answer | ok",
        ),
        lambda request: (
            f"All rooms are booked, the last one as {_printed(request).split()[-1]}. One booking "
            "was under way when the process was killed, so I looked at the office's book first "
            "and booked nothing twice."
        ),
    ]


_ALLERGY = """\
said = ms.search("Nadia allergic", role="user", k=1)[0]
plan = {}
print("seq", said["seq"], "says:", said["content"])"""

_DRIVE = """\
way = min((r for r in search_routes("{start}", "{end}") if not r["toll_chf"]),
          key=lambda r: r["minutes"])
print("drive {start} to {end}:", way["route"], way["minutes"], "min, no toll")
for turn in way["directions"][:8]:
    print(" ", turn)"""

_IN_TOWN = {
    "rooms": """\
rooms = [r for r in find_rooms("{town}") if r["quiet"] and r["parking"]]
rooms = sorted((r for r in rooms if r["rating"] >= 8.5), key=lambda r: r["price_chf"])
plan["{town}"] = {{"room": rooms[0]}}
print("rooms in {town}: the cheapest of", len(rooms), "is", rooms[0]["name"])
for n, r in enumerate(rooms[:6], 1):
    print(f"{{n}}. {{r['name']}}, {{r['price_chf']}} CHF, rated {{r['rating']}}, \
{{r['street']}}")""",
    "tables": """\
safe = [t for t in find_tables("{town}") if "walnut" not in t["sweet"]]
safe.sort(key=lambda t: -t["rating"])
plan["{town}"]["table"] = safe[0]
print("tables in {town}:", len(safe), "without walnuts, best", safe[0]["name"])
for t in safe[:7]:
    print(f"- {{t['name']}}, {{t['rating']}}, {{t['dish']}}, then {{t['sweet']}}")""",
    "sights": """\
sights = find_sights("{town}")
plan["{town}"]["sights"] = [s["name"] for s in sights]
print("sights in {town}:", len(sights), "with the quietest hour of each")
for s in sights:
    hour = min(s["crowd"], key=s["crowd"].get)
    print(f"- {{s['name']}}: {{s['minutes']}} min, {{s['price_chf']}} CHF, best at {{hour}}")""",
}


def _chosen(request: Request) -> Reply:
    """The third cell of the figure: expand the two preferences that the search printed, and filter
    by them.
    """
    hits = _printed(request).splitlines()
    economy = _first(line.split()[0] for line in hits if "economy" in line)
    toll = _first(line.split()[0] for line in hits if "toll" in line)
    return exec_cell(
        f"for row in ms.expand([{economy}, {toll}]):\n"
        '    print(row["seq"], row["content"][:70])\n'
        'economy = [f for f in flights if f["cabin"] == "economy"]\n'
        'free = [r for r in routes if not r["toll_chf"]]\n'
        'flight = min(economy, key=lambda f: f["price_chf"])\n'
        'route = min(free, key=lambda r: r["minutes"])\n'
        'print("flight", flight["flight"], flight["price_chf"], "CHF")\n'
        'print("route", route["route"], route["minutes"], "min")',
        headline=(
            f"choose | seq {economy}: economy only; seq {toll}: no toll roads | book the flight | "
            "ok"
        ),
    )


def _booked_flight(request: Request) -> Reply:
    flight, road = (_line(request, word).split()[0] for word in ("flight", "route"))
    return exec_cell(
        'done = book("flight " + flight["flight"], 2 * flight["price_chf"])\n'
        'print("booked", flight["flight"], "for two,", done["price_chf"], "CHF,", '
        'done["reference"])',
        headline=f"book flight | cheapest economy {flight}, fastest toll-free {road} | answer | ok",
    )


def _expanding(request: Request) -> Reply:
    """Find the span that the index gives for the rooms in Porto, however coarse it has become by
    now.
    """
    lines = [line.removeprefix("- seq ").partition(": ") for line in _index(request)]
    where = next(
        (where for where, _, headline in lines if "rooms in Porto" in headline.partition("|")[0]),
        lines[0][0],
    )
    spans = re.findall(r"(\d+)(?:-(\d+))?", where.partition("(")[0])
    pairs = ", ".join(f"({lo}, {hi or lo})" for lo, hi in spans)
    return exec_cell(
        f"for lo, hi in [{pairs}]:\n"
        "    for row in ms.expand(lo, hi):\n"
        '        if row["content"].startswith("rooms in Porto"):\n'
        '            print(row["seq"], row["content"])',
        headline="Porto's second room | the index names its seqs | answer | ok",
    )


def _reading(title: str, source: str, following: str) -> Callable[[Request], Reply]:
    """A step whose headline says what the step before it found out."""

    def entry(request: Request) -> Reply:
        learned = _printed(request).partition("\n")[0].replace("|", "/")
        return exec_cell(source, headline=f"{title} | {learned[:70]} | {following} | ok")

    return entry


def _printed(request: Request) -> str:
    """The output of the newest cell, as the request shows it."""
    text = next(
        (message.text for message in reversed(request.messages) if message.role == "tool"), ""
    )
    # The line with calls and seconds differs from run to run.
    return re.sub(r"\n\[[^\n]*\]$", "", text)


def _line(request: Request, start: str) -> str:
    """The rest of the printed line that begins so."""
    lines = _printed(request).splitlines()
    return _first(line.removeprefix(start).strip() for line in lines if line.startswith(start))


def _index(request: Request) -> Iterator[str]:
    """The lines of the index for this session's own work, oldest first; those of earlier sessions
    have dates.
    """
    index = _first(message.text for message in request.messages if CELLS.header in message.text)
    lines = index.partition(CELLS.header)[2].splitlines()
    return (
        line
        for line in lines
        if line.startswith("- seq ") and not re.match(r"- seq [\d, -]+\([^)]*-", line)
    )


def _first(texts: Iterator[str]) -> str:
    for text in texts:
        return text
    raise NotShown(
        "the model was not shown what it needs to go on; the demonstration cannot be right"
    )
