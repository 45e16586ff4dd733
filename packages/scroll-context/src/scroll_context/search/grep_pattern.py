"""The pattern of a grep: what it matches, and texts that every match must hold.

Matching is linear in the text (RE2), so that no pattern can stall the host. The texts are for
SQLite, which skips most rows by them without a copy.
"""

import re
from itertools import islice
from typing import Any

import msgspec

from scroll_context.errors import BadInput

# Characters of a pattern.
LONGEST_PATTERN = 1_000
# Occurrences that are counted in one text.
MOST_COUNTED = 100

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
_FLAGS = re.compile(r"\A\(\?[ims]+\)")
_GROUP = re.compile(r"\((?:\?:|\?P?<\w+>)?([^()?]|[^()?]*[^()])?\)([?*]|\{[\d,]*\})?")
_OPTIONAL = re.compile(r".(?:[?*]|\{[\d,]*\})", re.DOTALL)
_PRIVATE = 0xE000
_HIDDEN = re.compile("[\ue000-\ue0ff]")
_PLAIN = re.compile("[A-Za-z0-9 _,;:=@#%&<>/'\"~\ue000-\ue0ff-]+")


class Pattern(msgspec.Struct, frozen=True):
    """A text or expression to search for, and texts that a row must hold for it, in any case.

    A row holds all texts of at least one tuple in `must_hold`; nothing is known when it is empty.
    """

    # A compiled pattern of re2, which is imported when it is first used.
    matcher: Any
    must_hold: tuple[tuple[str, ...], ...] = ()
    # Whether a row that holds these matches, so that it need not be read again.
    is_held: bool = False

    def occurs(self, text: bytes) -> bool:
        return self.matcher.search(text) is not None

    def places(self, text: bytes) -> list[tuple[int, int]]:
        """Where it occurs, in bytes, up to a number of times."""
        return [place.span() for place in islice(self.matcher.finditer(text), MOST_COUNTED)]

    def condition(self) -> tuple[str, list[str]]:
        """A condition that every matching row fulfils, as far as SQLite can tell by LIKE."""
        if not self.must_hold:
            return "1", []
        like = "content LIKE ? ESCAPE '\\'"
        alternatives = ["(" + " AND ".join([like] * len(texts)) + ")" for texts in self.must_hold]
        values = []
        for texts in self.must_hold:
            values += ["%" + re.sub(r"([%_\\])", r"\\\1", text) + "%" for text in texts]
        return f"payload IS NOT NULL OR {' OR '.join(alternatives)}", values


def pattern(text: str, *, regex: bool = False, case: bool = False) -> Pattern:
    """A pattern of plain text, in which white space matches any white space, or of a regular
    expression.
    """
    if not isinstance(text, str) or not text.strip():
        raise BadInput("the pattern must be a non-empty text")
    if len(text) > LONGEST_PATTERN:
        raise BadInput(f"a pattern has at most {LONGEST_PATTERN:,} characters, not {len(text):,}")
    if regex:
        return Pattern(_compiled(text, case), _alternatives(text))
    parts = text.split()
    must_hold = _one_of([_longest(parts)])
    is_held = not case and must_hold == ((text.strip(),),)
    return Pattern(_compiled(r"\s+".join(map(re.escape, parts)), case), must_hold, is_held)


def _compiled(expression: str, case: bool) -> Any:
    import re2

    options = re2.Options()
    options.case_sensitive = case
    options.log_errors = False
    try:
        return re2.compile(expression.encode(errors="replace"), options)
    except re2.error as error:
        reason = str(error)
        if error.args and isinstance(error.args[0], bytes):
            reason = error.args[0].decode(errors="replace")
        raise BadInput(
            f"{expression[:80]!r} cannot be used as a regular expression ({reason}). "
            "Look-around, back-references and repetitions above 1,000 are not supported; "
            "leave out regex=True to look for the text itself."
        ) from None


def _alternatives(expression: str) -> tuple[tuple[str, ...], ...]:
    """Texts that every match of a regular expression holds, as far as they can be found without
    parsing all of it.

    Syntax that is not understood counts as "anything": no match is missed then, and the scan is
    slower. An escaped character becomes a private one, so that it is not read as syntax.
    """

    def hide_escaped(match: re.Match[str]) -> str:
        return "\0" if match[1].isalnum() else chr(_PRIVATE + ord(match[1]) % 256)

    def open_group(match: re.Match[str]) -> str:
        inside = match[1] or ""
        is_optional = bool(match[2])
        return "\0" if is_optional or "|" in inside else f"\0{inside}\0"

    plain = _ESCAPED.sub(hide_escaped, expression)
    if re.search(r"\\[QEpPx]", expression) or re.search(r"[^\x00-\uffff]", expression):
        return ()
    plain = _CLASS.sub("\0", _FLAGS.sub("", plain))
    while _GROUP.search(plain):
        plain = _GROUP.sub(open_group, plain, 1)
    if "(" in plain or ")" in plain:
        return ()
    parts = [_PLAIN.findall(_OPTIONAL.sub("\0", part)) for part in plain.split("|")]
    return _one_of([_longest([_restored(text) for text in texts]) for texts in parts])


def _restored(text: str) -> str:
    """The text with its escaped characters in place of the private ones."""
    return _HIDDEN.sub(lambda match: chr(ord(match[0]) - _PRIVATE), text)


def _longest(parts: list[str]) -> tuple[str, ...]:
    """The longest of these texts that SQLite compares without regard to case."""
    usable = {run for part in parts for run in re.findall(r"[\x20-\x7e]+", part)}
    return tuple(sorted(usable, key=lambda run: (-len(run), run))[:3])


def _one_of(alternatives: list[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    return tuple(alternatives) if all(alternatives) else ()
