"""Text as the search index reads it: its fields and its words.

The same functions split events and queries, so a query word matches exactly the document words that
were made the same way. Words are runs of letters and digits, lower case, without accents; an id, a
date or a path is a run of words, looked up as a phrase. English words are kept a second time by
their stem, and so are the parts of compounds (InternalError), which only complete words outrank.
Scripts that do not put spaces between words (Chinese, Japanese, Korean, Thai and their like) are
cut into overlapping pairs in a field of their own. The index stores no message text: only large
bodies keep their passages, so that a hit deep inside one can show where it matched.

Changing anything here or in documents.py that changes what is stored needs a new VERSION: the
index is then rebuilt from the log. A prompt hook imports this module while an assistant waits, so
it imports next to nothing.
"""

import hashlib
import re
import string
import unicodedata
from functools import lru_cache

import tantivy

from scroll_context.origin import LABELS

VERSION = 6

# Letters of a word that has a stem.
SHORTEST_STEMMED = 3
# Letters of a compound's part that is indexed by itself.
SHORTEST_PART = 3
# Characters of a compound. Longer runs (base64) have no parts.
LONGEST_COMPOUND = 80
# Bytes of a word. Longer runs (base64) are not words.
LONGEST_WORD = 128

_SPACELESS = (
    # Thai, Lao.
    "\u0e00-\u0eff"
    # Myanmar.
    "\u1000-\u109f"
    # Hangul letters.
    "\u1100-\u11ff"
    # Khmer.
    "\u1780-\u17ff"
    # Kana, bopomofo, compatibility Hangul.
    "\u3005-\u3007\u3041-\u30ff\u3100-\u318f\u31a0-\u31ff"
    # Han.
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    # Hangul syllables.
    "\uac00-\ud7ff"
    # Rarer Han.
    "\U00020000-\U0003ffff"
)
SPACELESS = re.compile(f"[{_SPACELESS}]+")
_ESCAPES = re.compile(
    # Colours and cursor movements.
    "(?:\x1b\\[|\x9b)[0-?]*+[ -/]*+[@-~]"
    # Titles and links.
    "|\x1b\\][^\x07\x1b]*+(?:\x07|\x1b\\\\)?+"
    "|\x1b[ -/]*+[0-Z\\\\^-~]"
)
# It begins with the last digit, which is quick to search for.
_UNIT = re.compile(r"[0-9](%| %| percent\b|[A-Za-z]{1,4}\b)")
_NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)*")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_WORD_BEFORE = re.compile(r"[^\W_]{1,20}\Z")

STOP_WORDS = frozenset(
    """a about also am an and any are as at be because been being but by could did do does doing
    for from give had has have having he her him his how i if in into is it its just let me my
    of on or our please she should so some such tell than that the their them then there these
    they this those to too very was we were what when where which while who whom whose why with
    would you your yours can not""".split()
)
WEAK_WORDS = STOP_WORDS | frozenset(
    """above across again against all almost along already although always among another anyone
    anything around away back before after below between beyond both down during each either
    else enough ever every everything few further get go going got here like made make many may
    maybe might more most much must neither never next no none nor nothing now off once one only
    onto other others out over own per quite rather really same shall since someone something
    sometimes still though through throughout together toward towards under unless until up upon
    us using various via want well whatever whenever whether will within without yes yet ask
    asked aspects chat chats comprehensive conversation conversations cover covered detail
    details different discuss discussed discussion discussions including interactions involving
    item items know list mention mentioned order overview question questions recall regarding
    related remember remind said say session sessions summarise summarize summary talk talked
    talking told""".split()
)
"""The words of a question besides its subject: grammar, and words for conversing itself."""


def _analyzer(tokenizer: tantivy.Tokenizer, *filters: tantivy.Filter) -> tantivy.TextAnalyzer:
    builder = tantivy.TextAnalyzerBuilder(tokenizer)
    for step in filters:
        builder = builder.filter(step)
    return builder.build()


_PLAIN = (
    tantivy.Filter.remove_long(LONGEST_WORD),
    tantivy.Filter.lowercase(),
    tantivy.Filter.ascii_fold(),
)
_ENGLISH = tantivy.Filter.stemmer("english")
_WORDS = _analyzer(tantivy.Tokenizer.simple(), *_PLAIN)
_STEMS = _analyzer(tantivy.Tokenizer.simple(), *_PLAIN, _ENGLISH)
_SPLIT = _analyzer(tantivy.Tokenizer.whitespace(), tantivy.Filter.lowercase())
_STEMMER = _analyzer(tantivy.Tokenizer.raw(), _ENGLISH)


def schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("text", tokenizer_name="words")
    builder.add_text_field("stems", tokenizer_name="stems", index_option="freq")
    # Words such as C++ and F#.
    builder.add_text_field("signs", tokenizer_name="split", index_option="basic")
    # Scripts without spaces.
    builder.add_text_field("pairs", tokenizer_name="split")
    for name in LABELS:
        builder.add_text_field(name, tokenizer_name="raw", index_option="basic")
    builder.add_unsigned_field("seq", indexed=True, fast=True)
    # The user turn that this replies to; its own seq for a user turn.
    builder.add_unsigned_field("answers", fast=True)
    builder.add_unsigned_field("created", fast=True)
    # 2 for a user turn with a standing instruction, 1 for one with a preference.
    builder.add_unsigned_field("stance", fast=True)
    builder.add_text_field("mark", tokenizer_name="raw", index_option="basic")
    builder.add_unsigned_field("upto", fast=True)
    builder.add_bytes_field("chain", stored=True)
    builder.add_bytes_field("passage", stored=True)
    return builder.build()


SCHEMA = schema()


def register(index: tantivy.Index) -> None:
    """Teach an opened index the analyzers that its schema names."""
    index.register_tokenizer("words", _WORDS)
    index.register_tokenizer("stems", _STEMS)
    index.register_tokenizer("split", _SPLIT)


# words --------------------------------------------------------------------------------------------


def normal(text: str) -> str:
    """Text as the index reads it: without colours, and with plain letters in place of full-width
    ones and other variants.
    """
    text = without_colours(text)
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


def without_colours(text: str) -> str:
    """Text without the escape sequences of terminals, which would become parts of its words."""
    return _ESCAPES.sub("", text) if "\x1b" in text or "\x9b" in text else text


def words(text: str) -> list[str]:
    """The words of normal text, scripts without spaces left out."""
    return _WORDS.analyze(text if text.isascii() else SPACELESS.sub(" ", text))


def stems(text: str) -> list[str]:
    """The same words by their stems, as the index keeps them."""
    return _STEMS.analyze(text if text.isascii() else SPACELESS.sub(" ", text))


def runs(text: str) -> list[str]:
    """The runs of scripts without spaces in normal text."""
    return [] if text.isascii() else SPACELESS.findall(text)


def pairs(run: str) -> list[str]:
    """The overlapping pairs of a run, then its last character, which also keeps neighbouring runs
    apart.
    """
    return [run[at : at + 2] for at in range(len(run))]


def signs(text: str) -> list[str]:
    """Words that end in a sign which belongs to their name: C++, C#."""
    places: list[tuple[int, str]] = []
    for sign in ("#", "++"):
        at = text.find(sign)
        while at >= 0:
            end = at + len(sign)
            if text[at - 1 : at].isalnum() and not text[end : end + 1].isalnum():
                word = _WORD_BEFORE.search(text, max(0, at - 20), at)
                if word is not None:
                    places.append((at, (word[0] + sign).lower()))
            at = text.find(sign, end)
    return [word for _, word in sorted(places)]


def _kind(character: str) -> str:
    """The kind of a character.

    Quantities and compounds are rare in texts, and finding them in a text of kinds takes a tenth of
    the time that a pattern takes.
    """
    if character in string.digits:
        return "0"
    if character in string.ascii_uppercase:
        return "A"
    if character in string.ascii_lowercase:
        return "a"
    return "%" if character == "%" else " "


_KINDS = "".join(_kind(chr(code)) for code in range(256)).encode()


def kinds(text: str) -> bytes:
    """The kind of each character of a text, for `quantities` and `compounds`."""
    return text.encode("latin-1", "replace").translate(_KINDS)


def quantities(text: str, kinds_of_text: bytes | None = None) -> tuple[list[str], list[str]]:
    """Numbers with a unit as words side by side (16gb: "16 gb"), and percentages as signs (79
    percent: "79%").
    """
    units: list[str] = []
    percentages: list[str] = []
    for place in _digits_before_units(text, kinds_of_text or kinds(text)):
        match = _UNIT.match(text, place)
        number = _number_ending(text, place + 1) if match is not None else ""
        if match is None or not number:
            continue
        unit = match[1].strip()
        if unit in ("%", "percent"):
            units.append(f"{number} percent")
            percentages.append(f"{number}%")
        else:
            units.append(f"{number} {unit}")
    return units, percentages


def _digits_before_units(text: str, kinds_of_text: bytes) -> list[int]:
    """Where a digit may stand before a unit, in order."""
    places = _places(kinds_of_text, b"0a") + _places(kinds_of_text, b"0A")
    if "%" in text:
        places += _places(kinds_of_text, b"0%") + _places(kinds_of_text, b"0 %")
    if " percent" in text:
        places += _places(kinds_of_text, b"0 aaaaaaa")
    return sorted(places)


def _places(kinds_of_text: bytes, pattern: bytes) -> list[int]:
    # From the end: the search then starts with the first character of the pattern, a digit, which
    # is rarer than a letter.
    places = []
    at = kinds_of_text.rfind(pattern)
    while at >= 0:
        places.append(at)
        at = kinds_of_text.rfind(pattern, 0, at)
    return places


def _number_ending(text: str, end: int) -> str:
    """The number that ends here, if it stands apart from what is before it; else an empty text."""
    start = max(0, end - 20)
    near = text[start:end]
    before = near.rstrip("0123456789.,")
    number = near[len(before) :]
    is_apart = start == 0 if not before else not (before[-1].isalnum() or before[-1] == "_")
    return number if is_apart and _NUMBER.fullmatch(number) else ""


def compounds(text: str, kinds_of_text: bytes | None = None) -> list[str]:
    """The parts of words with capitals inside, each word once: InternalError, parseHTML and OAuth
    as "Internal Error", "parse HTML" and "Auth".
    """
    kinds_of_text = kinds_of_text or kinds(text)
    if b"aA" not in kinds_of_text and b"AAaa" not in kinds_of_text:
        return []
    words: dict[str, None] = {}
    for pattern in (b"aA", b"AAaa"):
        at = kinds_of_text.find(pattern)
        while at >= 0:
            start = kinds_of_text.rfind(b" ", 0, at) + 1
            end = kinds_of_text.find(b" ", at)
            end = len(text) if end < 0 else end
            if end - start <= LONGEST_COMPOUND:
                words[text[start:end]] = None
            at = kinds_of_text.find(pattern, end)
    compounds = []
    for word in words:
        parts = [part for part in _PART.findall(word) if len(part) >= SHORTEST_PART]
        if parts:
            compounds.append(" ".join(parts))
    return compounds


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """The part that the grammatical forms of an English word share; empty for an id, a number or
    a short word, which have no forms.
    """
    has_forms = len(word) >= SHORTEST_STEMMED and word.isascii() and word.isalpha()
    return _STEMMER.analyze(word)[0] if has_forms else ""


_INFLECTIONS = frozenset(("", "d", "e", "ed", "es", "ied", "ies", "ing", "s", "y", "ying"))


def is_inflection(word: str, other: str) -> bool:
    """Whether two words with the same stem differ in number or tense only: study and studied, but
    not serialization and serial.
    """
    pairs_of_letters = enumerate(zip(word, other, strict=False))
    shorter = min(len(word), len(other))
    common = next((at for at, (a, b) in pairs_of_letters if a != b), shorter)
    # "run" and "running" differ in a doubled letter too.
    doubled = word[common - 1 : common]
    endings = {word[common:], other[common:]}
    return endings <= _INFLECTIONS | {f"{doubled}ed", f"{doubled}ing"}


# values -------------------------------------------------------------------------------------------


def exact(value: str) -> str:
    """An id as the index keeps it: never empty, never too long for a term."""
    return "=" + (value if len(value) <= 1_000 else hashlib.sha256(value.encode()).hexdigest())
