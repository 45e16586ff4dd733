"""The made-up world of the demonstration, and the tools that search and book in it.

What a search returns is a function of its arguments: the same question has the same answer in every
process and on every machine, so that the demonstration can check what came out of a log against the
world itself. Nothing in it is true but the place names. The office keeps its book in a file,
outside the store, as a real one would: what it has booked stays booked, whatever becomes of the
process that asked for it.
"""

import datetime as dt
import random
import threading
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.tools.tools import Tool, tool

Row = dict[str, Any]


@cache
def places() -> Any:
    """The names that everything is made of."""
    return msgspec.json.decode(resources.files(__package__).joinpath("places.json").read_bytes())


def towns() -> list[str]:
    """The stages of the trip, in order."""
    return list(places()["towns"])


@tool
def search_flights(origin: str, destination: str, day: dt.date) -> list[Row]:
    """Every fare: flight, departs, cabin, price_chf, stops, arrives, carrier, seats_left."""
    luck = random.Random(f"{origin}-{destination}-{day}")
    rows = []
    for number in range(60):
        code = _pick(luck, list(places()["carriers"]))
        leaves = dt.datetime.combine(day, dt.time(6)) + dt.timedelta(
            minutes=5 * int(luck.random() * 190)
        )
        stops = int(luck.random() * 2.4)
        lands = leaves + dt.timedelta(minutes=155 + 95 * stops + int(luck.random() * 40))
        price = 96 + luck.random() * 190 - 22 * stops
        for cabin, factor in places()["cabins"].items():
            rows.append(
                {
                    "flight": f"{code}{200 + number * 13}",
                    "departs": f"{leaves:%H:%M}",
                    "cabin": cabin,
                    "price_chf": round(price * factor),
                    "stops": stops,
                    "arrives": f"{lands:%H:%M}",
                    "carrier": places()["carriers"][code],
                    "seats_left": 1 + int(luck.random() * 9),
                }
            )
    return rows


@tool
def search_routes(start: str, end: str) -> list[Row]:
    """Ways to drive: route, via, km, minutes, toll_chf, directions."""
    luck = random.Random(f"{start}-{end}")
    town_names, between = places()["towns"], towns()
    distance = (
        sum(
            town_names[town]["km"]
            for town in between[between.index(start) + 1 : between.index(end) + 1]
        )
        or 60
    )
    roads = places()["roads"]
    rows = []
    for number in range(48):
        taken = sorted({_pick(luck, list(roads)) for _ in range(1 + int(luck.random() * 3))})
        toll = round(sum(roads[road] for road in taken), 2)
        km = round(distance * (1 + luck.random() * 0.35))
        minutes = round(km * (0.72 if toll else 1.15) + luck.random() * 25)
        turns = [
            f"{_pick(luck, ['left', 'right', 'straight'])} onto {_pick(luck, taken)}"
            for _ in range(12)
        ]
        rows.append(
            {
                "route": f"{start[:3]}-{end[:3]}-{number:02}".upper(),
                "via": taken,
                "km": km,
                "minutes": minutes,
                "toll_chf": toll,
                "directions": [f"after {1 + int(luck.random() * 30)} km {turn}" for turn in turns],
            }
        )
    return rows


@tool
def find_rooms(town: str) -> list[Row]:
    """Rooms for two: name, price_chf, rating, parking, street, breakfast, quiet."""
    luck, streets = random.Random(f"rooms in {town}"), places()["towns"][town]["streets"]
    return [
        {
            "name": f"{house} {name}",
            "price_chf": 58 + int(luck.random() * 120),
            "rating": _rating(luck),
            "parking": luck.random() < 0.4,
            "street": _pick(luck, streets),
            "breakfast": luck.random() < 0.7,
            "quiet": luck.random() < 0.5,
        }
        for house in places()["houses"]
        for name in places()["names"]
    ]


@tool
def find_tables(town: str) -> list[Row]:
    """Places to eat: name, price_chf, rating, dish, sweet, street."""
    luck, streets = random.Random(f"tables in {town}"), places()["towns"][town]["streets"]
    return [
        {
            "name": f"{kitchen} {name}",
            "price_chf": 18 + int(luck.random() * 40),
            "rating": _rating(luck),
            "dish": _pick(luck, places()["dishes"]),
            "sweet": _pick(luck, places()["sweets"]),
            "street": _pick(luck, streets),
        }
        for kitchen in places()["kitchens"]
        for name in places()["names"]
    ]


def _crowd(luck: random.Random) -> dict[str, int]:
    """How crowded a place is, by the hour, in percent."""
    return {f"{hour}:00": int(luck.random() * 100) for hour in range(9, 19)}


@tool
def find_sights(town: str) -> list[Row]:
    """What to see: name, minutes, price_chf, crowd by the hour."""
    luck = random.Random(f"sights in {town}")
    return [
        {
            "name": name,
            "minutes": 30 + 15 * int(luck.random() * 7),
            "price_chf": int(luck.random() * 14),
            "crowd": _crowd(luck),
        }
        for name in places()["towns"][town]["sights"]
    ]


def _pick(luck: random.Random, choices: list[str]) -> str:
    return choices[int(luck.random() * len(choices))]


def _rating(luck: random.Random) -> float:
    return round(6 + 4 * luck.random(), 1)


class Office:
    """Books what it is told to, once each time.

    `slow_at` is the number of the booking whose answer never comes.
    """

    def __init__(
        self, book: Path, slow_at: int = 0, on_slow: Callable[[], None] = lambda: None
    ) -> None:
        self._book = book
        self._slow_at = slow_at
        self._on_slow = on_slow
        self._made = 0

    @property
    def entries(self) -> list[Row]:
        """The bookings so far."""
        lines = self._book.read_bytes().splitlines() if self._book.exists() else []
        return [msgspec.json.decode(line) for line in lines]

    def tools(self) -> list[Tool[..., Any]]:
        """Every tool of the demonstration, those of this office included."""

        @tool(effects=True)
        def book(item: str, price_chf: int) -> Row:
            """Book something for two; returns item, price_chf and reference."""
            entry = {
                "item": item,
                "price_chf": price_chf,
                "reference": f"B{1000 + 37 * len(self.entries)}",
            }
            with self._book.open("ab") as file:
                file.write(msgspec.json.encode(entry) + b"\n")
            self._made += 1
            if self._made == self._slow_at:
                self._on_slow()
                # Booked, but the answer is never sent.
                threading.Event().wait()
            return entry

        @tool
        def bookings() -> list[Row]:
            """Everything that is booked."""
            return self.entries

        return [search_flights, search_routes, find_rooms, find_tables, find_sights, book, bookings]
