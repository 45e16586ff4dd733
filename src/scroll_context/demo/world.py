"""The made-up world that the demonstration's tools search: flights, roads, rooms, tables and sights in Portugal.

A function of its arguments: the same question has the same answer in every process and on every machine, so that the
demonstration can check what came out of a log against the world itself. Nothing in it is true but the place names.
"""

import datetime as dt
import random
from functools import cache
from importlib import resources
from typing import Any

import msgspec

Row = dict[str, Any]


@cache
def places() -> Any:
    """The names that everything is made of."""
    return msgspec.json.decode(resources.files(__package__).joinpath("places.json").read_bytes())


def towns() -> list[str]:
    """The stages of the trip, in order."""
    return list(places()["towns"])


def flights(origin: str, destination: str, day: dt.date) -> list[Row]:
    """Every fare of every flight of a day."""
    luck = random.Random(f"{origin}-{destination}-{day}")
    rows = []
    for number in range(60):
        code = _pick(luck, list(places()["carriers"]))
        leaves = dt.datetime.combine(day, dt.time(6)) + dt.timedelta(minutes=5 * int(luck.random() * 190))
        stops = int(luck.random() * 2.4)
        lands = leaves + dt.timedelta(minutes=155 + 95 * stops + int(luck.random() * 40))
        price = 96 + luck.random() * 190 - 22 * stops
        for cabin, factor in places()["cabins"].items():
            rows.append({
                "flight": f"{code}{200 + number * 13}", "departs": f"{leaves:%H:%M}", "cabin": cabin,
                "price_chf": round(price * factor), "stops": stops, "arrives": f"{lands:%H:%M}",
                "carrier": places()["carriers"][code], "seats_left": 1 + int(luck.random() * 9),
            })  # fmt: skip
    return rows


def routes(start: str, end: str) -> list[Row]:
    """Ways to drive from one town to another, with directions."""
    luck = random.Random(f"{start}-{end}")
    known, between = places()["towns"], towns()
    distance = sum(known[town]["km"] for town in between[between.index(start) + 1 : between.index(end) + 1]) or 60
    roads = places()["roads"]
    rows = []
    for number in range(48):
        taken = sorted({_pick(luck, list(roads)) for _ in range(1 + int(luck.random() * 3))})
        toll = round(sum(roads[road] for road in taken), 2)
        km = round(distance * (1 + luck.random() * 0.35))
        minutes = round(km * (0.72 if toll else 1.15) + luck.random() * 25)
        turns = [f"{_pick(luck, ['left', 'right', 'straight'])} onto {_pick(luck, taken)}" for _ in range(12)]
        rows.append({
            "route": f"{start[:3]}-{end[:3]}-{number:02}".upper(), "via": taken, "km": km, "minutes": minutes,
            "toll_chf": toll, "directions": [f"after {1 + int(luck.random() * 30)} km {turn}" for turn in turns],
        })  # fmt: skip
    return rows


def rooms(town: str) -> list[Row]:
    """Rooms for two, for one night."""
    luck = random.Random(f"rooms in {town}")
    rows = []
    for house in places()["houses"]:
        for name in places()["names"]:
            rows.append({
                "name": f"{house} {name}", "price_chf": 58 + int(luck.random() * 120), "rating": _rating(luck),
                "parking": luck.random() < 0.4, "street": _pick(luck, places()["towns"][town]["streets"]),
                "breakfast": luck.random() < 0.7, "quiet": luck.random() < 0.5,
            })  # fmt: skip
    return rows


def tables(town: str) -> list[Row]:
    """Places to eat, with what is on the menu."""
    luck = random.Random(f"tables in {town}")
    rows = []
    for kitchen in places()["kitchens"]:
        for name in places()["names"]:
            rows.append({
                "name": f"{kitchen} {name}", "price_chf": 18 + int(luck.random() * 40), "rating": _rating(luck),
                "dish": _pick(luck, places()["dishes"]), "sweet": _pick(luck, places()["sweets"]),
                "street": _pick(luck, places()["towns"][town]["streets"]),
            })  # fmt: skip
    return rows


def sights(town: str) -> list[Row]:
    """What there is to see, hour by hour how crowded it is."""
    luck = random.Random(f"sights in {town}")
    return [
        {
            "name": name, "minutes": 30 + 15 * int(luck.random() * 7), "price_chf": int(luck.random() * 14),
            "crowd": {f"{hour}:00": int(luck.random() * 100) for hour in range(9, 19)},
        }
        for name in places()["towns"][town]["sights"]
    ]  # fmt: skip


def _pick(luck: random.Random, choices: list[str]) -> str:
    return choices[int(luck.random() * len(choices))]


def _rating(luck: random.Random) -> float:
    return round(6 + 4 * luck.random(), 1)
