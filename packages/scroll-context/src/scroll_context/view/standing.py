"""The user's instructions, preferences and decisions above the index: which ones there is room for.

Instructions come first, and the newest of them are listed. Preferences and decisions take the room
that is left. Statements about one subject stand together, so that a model never reads one of two
that conflict without the other: a group of preferences is listed complete or not at all. Which
statements are listed is decided when a session starts and at evictions, and recorded in the event;
a view only shows the list.
"""

from collections.abc import Collection, Iterable, Sequence

from scroll_context.contents import Standing
from scroll_context.text import stance
from scroll_context.text.stance import INSTRUCTION, PREFERENCE, Statement, by_subject, newest
from scroll_context.view.headline import cut
from scroll_context.view.tokens import estimate
from scroll_context.view.wording import MARK, PREFERENCES, STANDING, Words

STANDING_SHARE = 0.02
"""The share of the window for standing instructions and preferences, up to STANDING_TOKENS."""
STANDING_TOKENS = 600
NEWEST_READ = 200
"""Preferences that are compared with each other; there is never room for more."""
LINE_CHARS = 200
PREFERENCES_TOKENS = estimate(f"{MARK}{PREFERENCES}{Words().all_standing}]") + 1

Stated = tuple[int, Statement]
"""A statement and its seq."""


def standing_limit(window: int, ratio: float = 1.0) -> int:
    """Raw tokens that instructions and preferences may take together."""
    return int(min(STANDING_TOKENS, window * STANDING_SHARE) / ratio)


def chosen_statements(
    statements: Iterable[Stated], limit: int, still_shown: Collection[int] = ()
) -> tuple[tuple[Standing, ...], int]:
    """The statements to list within `limit` tokens, and how many instructions have no room.

    `statements` come in the order of their seqs. Those of `still_shown` are compared with the
    others and not listed: the conversation shows them.
    """
    stated = list(statements)
    instructions = newest((seq, said.text) for seq, said in stated if said.level == INSTRUCTION)
    holding = set(instructions)
    compared = [
        (seq, said)
        for seq, said in stated
        if said.level == INSTRUCTION and (seq, said.text) in holding
    ]
    others = [(seq, said) for seq, said in stated if said.level == PREFERENCE]
    compared += others[-NEWEST_READ:]
    groups = by_subject(sorted(compared, key=_seq))
    values = [[_value(item) for item in group if item.seq not in still_shown] for group in groups]
    binding = [value for group in values if _is_binding(group) for value in group]
    fitting, unlisted = newest_standing(binding, limit)
    room = limit - sum(map(_line_tokens, fitting)) - PREFERENCES_TOKENS
    chosen: list[Sequence[Standing]] = []
    for group in reversed(values):
        tokens = sum(map(_line_tokens, group))
        if group and not _is_binding(group) and tokens <= room:
            room -= tokens
            chosen.append(group)
    preferences = [value for group in reversed(chosen) for value in group]
    return (*fitting, *preferences), unlisted


def newest_standing(
    instructions: Sequence[Standing], limit: int
) -> tuple[tuple[Standing, ...], int]:
    """The last of these within `limit` tokens, and how many there was no room for."""
    room = limit
    for count, instruction in enumerate(reversed(instructions)):
        room -= _line_tokens(instruction)
        if room < 0:
            unlisted = len(instructions) - count
            return tuple(instructions[unlisted:]), unlisted
    return tuple(instructions), 0


def stated_by(standing: Standing) -> Stated:
    """A listed statement, to be compared with newer ones."""
    level = PREFERENCE if standing.stance else INSTRUCTION
    return standing.seq, Statement(level, standing.stance or "instruction", standing.words)


def standing_text(standing: Sequence[Standing], unlisted: int, words: Words) -> str:
    """The list as the model reads it: instructions, then preferences and decisions."""
    # A preference that is about the same subject as an instruction stands beside it.
    last = max((at for at, value in enumerate(standing, 1) if not value.stance), default=0)
    lines: list[str] = []
    if last:
        lines.append(f"{MARK}{STANDING}{words.more_standing(unlisted)}]")
        lines += map(standing_line, standing[:last])
    if standing[last:]:
        lines.append(f"{MARK}{PREFERENCES}{words.all_standing}]")
        lines += map(standing_line, standing[last:])
    return "\n".join(lines)


def standing_line(standing: Standing) -> str:
    """The line of a statement."""
    words = cut(standing.words, LINE_CHARS)
    if standing.imported:
        words = f'"{words}"'
    name = f", {standing.stance}" if standing.stance else ""
    line = f"- seq {standing.seq}{name}: {words}"
    if standing.replaced_by:
        line += f" (restated or changed at seq {standing.replaced_by})"
    return line


def _line_tokens(standing: Standing) -> int:
    return estimate(standing_line(standing)) + 1


def _value(item: stance.Standing) -> Standing:
    name = "" if item.statement.level == INSTRUCTION else item.statement.stance
    return Standing(item.seq, item.statement.text, stance=name, replaced_by=item.replaced_by or 0)


def _is_binding(group: Sequence[Standing]) -> bool:
    """Whether an instruction is among statements about one subject."""
    return any(not value.stance for value in group)


def _seq(stated: Stated) -> int:
    return stated[0]
