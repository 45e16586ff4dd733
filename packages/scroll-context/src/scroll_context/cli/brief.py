"""The command that shows what a prompt hook would offer: brief."""

import click

from scroll_context.cli.options import (
    Narrowing,
    Place,
    json_option,
    narrowing_options,
    open_store,
    store_option,
)
from scroll_context.cli.output import Command, echo, note, print_document, utf8, visible


@click.command(cls=Command)
@click.argument("prompt")
@click.option(
    "--tokens",
    type=click.IntRange(100, 20_000),
    default=600,
    show_default=True,
    help="The maximum size of the brief, in tokens.",
)
@narrowing_options()
@store_option
@json_option
def brief(prompt: str, tokens: int, narrowing: Narrowing, store: Place, as_json: bool) -> None:
    """Show the few earlier events that are relevant to a prompt.

    After `scroll install`, Claude Code, Codex and the Gemini CLI receive these events with a
    prompt, from the history of their project. For most prompts no earlier event is relevant, and
    nothing is added or printed. Files, commands and errors that the prompt names are looked up in
    earlier tool calls. No model is called.

    \b
    Examples:
      scroll brief 'Which port did we choose for the staging server?'
      scroll brief 'Fix the login test in tests/test_login.py' --json
    """
    from scroll_context.brief.brief import brief as brief_of
    from scroll_context.events import Grant

    with open_store(store) as opened:
        place = narrowing.resolve(opened.log)
        grant = Grant(place.session, place.task, place.agent)
        offer = brief_of(opened, utf8(prompt), tokens, grant=grant)
    if as_json:
        print_document(
            {
                "quotations": [quotation._asdict() for quotation in offer.quotations],
                "deeds": [deed._asdict() for deed in offer.deeds],
                "text": offer.text,
            }
        )
        return
    if not offer.text:
        note("nothing in this store is relevant to that prompt")
        return
    echo(visible(offer.text))
