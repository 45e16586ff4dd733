"""What @tool makes of a function: its stub, its schema, and the checking of arguments."""

import dataclasses
import datetime as dt
import enum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest

from scroll_context.errors import BadInput
from scroll_context.tools.tools import Tool, tool


class Cabin(enum.Enum):
    ECONOMY = "economy"
    BUSINESS = "business"


@dataclasses.dataclass
class Passenger:
    name: str
    born: dt.date
    bags: int = 0


class Leg(msgspec.Struct):
    origin: str
    stops: list[str] = []


class Price(TypedDict):
    amount: float
    currency: str


class Point(NamedTuple):
    lat: float
    lon: float


@tool
def search_flights(
    origin: str, day: dt.date, cabin: Cabin = Cabin.ECONOMY, most: int | None = None
) -> list[Price]:
    """Flights on a day, cheapest first.

    Prices include taxes.
    """
    return [Price(amount=float(most or 1), currency=f"{origin} {day:%A} {cabin.value}")]


def converted(found: Tool[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    return dict(found.convert(found.names(args, kwargs)).arguments)


# being a tool ---------------------------------------------------------------------------------------------


def test_a_tool_is_still_the_function() -> None:
    assert isinstance(search_flights, Tool)
    assert search_flights.__name__ == "search_flights"
    assert search_flights("VIE", dt.date(2026, 7, 3)) == [
        {"amount": 1.0, "currency": "VIE Friday economy"}
    ]


def test_options_are_given_in_either_form() -> None:
    @tool(name="book", effects=True, timeout=5, max_calls=2, max_concurrent=1)
    def book_flight(number: str) -> str:
        return number

    def other(number: str) -> str:
        return number

    renamed = tool(other, name="also_book", effects=True)
    assert (book_flight.name, book_flight.effects, book_flight.limits.timeout) == ("book", True, 5)
    assert (book_flight.limits.max_calls, book_flight.limits.max_concurrent) == (2, 1)
    assert (renamed.name, renamed.effects, renamed.limits.max_calls) == ("also_book", True, None)


def test_a_bound_method_and_a_callable_object_are_functions_too() -> None:
    class Shop:
        def price(self, item: str) -> int:
            return len(item)

        def __call__(self, item: str) -> int:
            return -len(item)

    assert converted(tool(Shop().price), "ham") == {"item": "ham"}
    assert tool(Shop(), name="shop").header == "shop(item: str) -> int"


# the prompt -----------------------------------------------------------------------------------------------


def test_the_stub_shows_signature_docstring_and_shapes() -> None:
    assert search_flights.stub == (
        "# Price: {amount: float, currency: str}\n"
        "def search_flights(origin: str, day: date, cabin: Literal['economy', 'business'] = 'economy', "
        "most: int | None = None) -> list[Price]:\n"
        '    """Flights on a day, cheapest first.\n'
        "\n"
        '    Prices include taxes."""'
    )


def test_shapes_mark_what_may_be_left_out() -> None:
    @tool
    def book(
        passengers: list[Passenger], *, legs: dict[str, Leg], where: Point | None = None
    ) -> None: ...

    assert book.stub.split("\n") == [
        "# Passenger: {name: str, born: date, bags?: int}",
        "# Leg: {origin: str, stops?: list[str]}",
        "# Point: [lat: float, lon: float]",
        "def book(passengers: list[Passenger], *, legs: dict[str, Leg], where: Point | None = None) -> None:",
        "    ...",
    ]


def test_effects_are_announced_and_long_docstrings_are_cut() -> None:
    @tool(effects=True)
    def pay(amount: Annotated[float, "in euros"]) -> str:
        return ""

    pay.doc = "\n".join(f"line {n}" for n in range(50))
    assert "def pay(amount: float) -> str:\n    # has effects" in pay.stub
    assert 'line 7 …"""' in pay.stub
    assert "line 8" not in pay.stub


def test_a_docstring_cannot_end_the_stub_early() -> None:
    @tool
    def sly() -> None:
        '''Says """ in the middle.'''

    assert sly.stub.count('"""') == 2


def test_the_schema_is_one_that_providers_take() -> None:
    @tool
    def book(
        who: Passenger,
        seat: Annotated[str, "such as 12A"],
        class_: Literal["a", "b"] = "a",
        note: str | None = None,
    ) -> None:
        """Book a seat."""

    spec = book.spec
    assert (spec.name, spec.description) == ("book", "Book a seat.")
    assert spec.parameters["required"] == ["who", "seat"]
    assert spec.parameters["additionalProperties"] is False
    assert spec.parameters["properties"]["who"] == {"$ref": "#/$defs/Passenger"}
    assert spec.parameters["properties"]["seat"] == {"type": "string", "description": "such as 12A"}
    assert spec.parameters["properties"]["class_"] == {"enum": ["a", "b"], "default": "a"}
    assert spec.parameters["$defs"]["Passenger"]["properties"]["born"] == {
        "type": "string",
        "format": "date",
    }


# arguments ------------------------------------------------------------------------------------------------


def test_json_values_become_what_the_annotations_say() -> None:
    @tool
    def take(
        n: int,
        f: float,
        flag: bool,
        day: dt.date,
        at: dt.datetime,
        cabin: Cabin,
        who: Passenger,
        leg: Leg,
        pair: tuple[int, int],
        tags: set[str],
        price: Price,
        where: Point,
        folder: Path,
        raw: bytes,
        any: Any,
    ) -> None: ...

    assert converted(
        take,
        3,
        2,
        True,
        "2026-07-03",
        "2026-07-03T10:00:00",
        "business",
        {"name": "Ann", "born": "1990-01-02"},
        {"origin": "VIE"},
        [1, 2],
        ["x"],
        {"amount": 1, "currency": "EUR"},
        [1.0, 2.0],
        "a/b",
        b"\0",
        {"k": [1]},
    ) == {
        "n": 3,
        "f": 2.0,
        "flag": True,
        "day": dt.date(2026, 7, 3),
        "at": dt.datetime(2026, 7, 3, 10),
        "cabin": Cabin.BUSINESS,
        "who": Passenger("Ann", dt.date(1990, 1, 2)),
        "leg": Leg("VIE"),
        "pair": (1, 2),
        "tags": {"x"},
        "price": {"amount": 1.0, "currency": "EUR"},
        "where": Point(1.0, 2.0),
        "folder": Path("a/b"),
        "raw": b"\0",
        "any": {"k": [1]},
    }


@pytest.mark.parametrize(
    ("wanted", "sent", "got"),
    [
        (int, "5", 5),
        (float, "1.5", 1.5),
        (bool, "false", False),
        (int, 3.0, 3),
        (list[int], ["1", 2], [1, 2]),
        (int | None, None, None),
        (str, dt.date(2026, 7, 3), "2026-07-03"),
        (dt.date, dt.date(2026, 7, 3), dt.date(2026, 7, 3)),
        (str | int, "5", "5"),
        (str | None, "null", "null"),
    ],
)
def test_near_misses_of_models_are_understood(wanted: Any, sent: Any, got: Any) -> None:
    def take(value): ...  # type: ignore[no-untyped-def]

    take.__annotations__ = {"value": wanted}
    assert converted(tool(take), sent) == {"value": got}


def test_pydantic_models_are_taken_and_described() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Room(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        beds: int

    class Stay(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        room: Room
        nights: int = 1

    def reserve(stay): ...  # type: ignore[no-untyped-def]

    reserve.__annotations__ = {"stay": Stay}
    made = tool(reserve)
    assert converted(made, {"room": {"beds": "2"}}) == {"stay": Stay(room=Room(beds=2))}
    assert made.spec.parameters["$defs"]["Room"]["properties"]["beds"]["type"] == "integer"
    with pytest.raises(BadInput, match=r"parameter 'stay' must be Stay.*room"):
        converted(made, {})


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        (("VIE", "tomorrow"), {}, "parameter 'day' must be date, not 'tomorrow'"),
        (
            ("VIE", "2026-07-03", "first"),
            {},
            "parameter 'cabin' must be Literal['economy', 'business'], not 'first'",
        ),
        (("VIE",), {}, "missing a required argument: 'day'"),
        (("VIE",), {"dy": "2026-07-03"}, "missing a required argument: 'day'"),
        (("VIE", "2026-07-03"), {"seats": 2}, "got an unexpected keyword argument 'seats'"),
        (("VIE", "2026-07-03", "economy", 1, 2), {}, "too many positional arguments"),
        ((5, "2026-07-03"), {}, "parameter 'origin' must be str, not 5"),
    ],
)
def test_a_misfit_names_the_parameter_and_the_signature(args: Any, kwargs: Any, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        converted(search_flights, *args, **kwargs)
    assert said in str(caught.value)
    assert f"The signature is {search_flights.header}" in str(caught.value)


def test_a_huge_wrong_argument_is_not_repeated_whole() -> None:
    with pytest.raises(BadInput) as caught:
        converted(search_flights, ["x" * 1_000_000], "2026-07-03")
    assert len(str(caught.value)) < 1_000


# what cannot work -----------------------------------------------------------------------------------------


def bare(value): ...  # type: ignore[no-untyped-def]
def many(*values: int) -> None: ...
def options(**values: int) -> None: ...
def positional(value: int, /) -> None: ...
def unknown(value: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def opaque(value: object) -> None: ...
def ambiguous(value: list[int] | list[str]) -> None: ...
def print(value: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (bare, "'value' has no annotation"),
        (many, "*values: int cannot be passed by name"),
        (options, "**values: int cannot be passed by name"),
        (positional, "cannot be passed by name"),
        (unknown, "annotations of unknown cannot be read: name 'Nowhere'"),
        (opaque, "'value' of type object cannot be made from JSON"),
        (ambiguous, "'value' of type list[int] | list[str] cannot be made from JSON"),
        (print, "a tool cannot be called 'print'"),
        (lambda: None, "a tool cannot be called '<lambda>'"),
    ],
)
def test_what_cannot_work_is_refused_when_decorated(function: Any, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        tool(function)
    assert said in str(caught.value)


def test_a_method_decorated_in_its_class_says_what_to_do() -> None:
    with pytest.raises(BadInput, match="decorate the bound method"):

        class Shop:
            @tool
            def price(self, item: str) -> int:
                return len(item)


def test_limits_must_make_sense() -> None:
    with pytest.raises(BadInput, match="timeout must be above 0"):
        tool(search_flights._function, timeout=0)
