"""Options that several commands share, declared for Typer."""

import functools
import inspect
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

import typer

StoreFolder = Annotated[
    Path, typer.Option("--store", envvar="SCROLL_STORE", metavar="DIR", readable=False, help="The folder of the store.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
ModelSpec = Annotated[
    str,
    typer.Option(envvar="SCROLL_MODEL", metavar="SPEC", help="anthropic:NAME, openai:NAME, scripted:FILE.json, …"),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(envvar="SCROLL_BASE_URL", metavar="URL", help="A server that speaks the protocol of the model."),
]
Window = Annotated[
    int | None, typer.Option(min=1_000, metavar="TOKENS", help="The model's context window.", show_default="as known")
]

DEFAULT_STORE = Path(".scroll")

Command = Callable[..., None]


def spread(*, without: Collection[str] = (), **defaults: Any) -> Callable[[Command], Command]:
    """Let several commands declare the same options once, as the fields of a struct that they take as one argument.

    Typer reads options from a signature, so the command gets the one in which every field stands for itself. Fields
    `without` stay as the struct has them and are no options; `defaults` are other defaults than the struct's. All
    parameters of the command are keyword-only.
    """

    def spread_out(command: Command) -> Command:
        from msgspec.structs import fields

        signature = inspect.signature(command)
        [whole] = [one for one in signature.parameters.values() if hasattr(one.annotation, "__struct_fields__")]
        offered = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(field.name, field.default),
                annotation=field.type,
            )
            for field in fields(whole.annotation)
            if field.name not in without
        ]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            chosen = whole.annotation(**{option.name: given.pop(option.name) for option in offered})
            command(**given, **{whole.name: chosen})

        own = list(signature.parameters.values())
        place = own.index(whole)
        own[place : place + 1] = offered
        called.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
        return called

    return spread_out
