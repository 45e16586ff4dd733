"""The tools of the demonstration: five that search the made-up world, and an office that books.

The office keeps its book in a file, outside the store, as a real one would: what it has booked stays booked, whatever
becomes of the process that asked for it.
"""

import datetime as dt
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from scroll_context.demo import world
from scroll_context.surface.tools import Tool, tool

Row = dict[str, Any]


@tool
def search_flights(origin: str, destination: str, day: dt.date) -> list[Row]:
    """Every fare: flight, departs, cabin, price_chf, stops, arrives, carrier, seats_left."""
    return world.flights(origin, destination, day)


@tool
def search_routes(start: str, end: str) -> list[Row]:
    """Ways to drive: route, via, km, minutes, toll_chf, directions."""
    return world.routes(start, end)


@tool
def find_rooms(town: str) -> list[Row]:
    """Rooms for two: name, price_chf, rating, parking, street, breakfast, quiet."""
    return world.rooms(town)


@tool
def find_tables(town: str) -> list[Row]:
    """Places to eat: name, price_chf, rating, dish, sweet, street."""
    return world.tables(town)


@tool
def find_sights(town: str) -> list[Row]:
    """What to see: name, minutes, price_chf, crowd by the hour."""
    return world.sights(town)


class Office:
    """Books things, once each time it is told to. `slow_at` is the number of the booking whose answer never comes."""

    def __init__(self, book: Path, slow_at: int = 0, on_slow: Callable[[], None] = lambda: None) -> None:
        self._book = book
        self._slow_at = slow_at
        self._on_slow = on_slow
        self._made = 0

    @property
    def entries(self) -> list[Row]:
        """What was booked so far."""
        return [msgspec.json.decode(line) for line in self._book.read_bytes().splitlines()] if self._exists else []

    @property
    def _exists(self) -> bool:
        return self._book.exists()

    def tools(self) -> list[Tool[..., Any]]:
        """Every tool of the demonstration, those of this office included."""

        @tool(effects=True)
        def book(item: str, price_chf: int) -> Row:
            """Book something for two; returns item, price_chf and reference."""
            return self._enter(item, price_chf)

        @tool
        def bookings() -> list[Row]:
            """Everything that is booked."""
            return self.entries

        return [search_flights, search_routes, find_rooms, find_tables, find_sights, book, bookings]

    def _enter(self, item: str, price: int) -> Row:
        reference = f"B{1000 + 37 * len(self.entries)}"
        entry = {"item": item, "price_chf": price, "reference": reference}
        with self._book.open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")
        self._made += 1
        if self._made == self._slow_at:
            self._on_slow()
            threading.Event().wait()  # booked, but the answer is never sent
        return entry
