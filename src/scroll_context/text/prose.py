"""Running text: what a person wrote, without what stands around it and between it, cut into sentences.

Importers put a tag before a message (`[Session 3 | 2024-07-05] user: …`); people paste code, formulas, links and
quotations. `body` takes the tag away, `prose` blanks what is not running text, and `sentences` cuts the rest.
"""

import re
from collections.abc import Iterator

_TAG = re.compile(r"\s*\[[^\]\n]{1,120}\] ?(?:user|assistant|system|tool|human|ai)\s?: ?", re.IGNORECASE)
_FENCED = re.compile(r"(```|~~~).*?(?:\1|\Z)", re.DOTALL)
_BLOCK_MATHS = re.compile(r"\$\$.*?(?:\$\$|\Z)|\\\[.*?(?:\\\]|\Z)|\\\(.*?\\\)", re.DOTALL)
_INLINE = re.compile(r"`[^`\n]*`|\$[^$\n]{1,200}\$")
_LINK = re.compile(r"(?:https?://|www\.)\S+|\b[\w.+-]+@[\w-]+\.\w+|(?<!\w)(?:~?/|[A-Za-z]:\\)[\w.-]+(?:[/\\][\w.-]+)+")
_QUOTED_LINE = re.compile(r"^[ \t]*>.*$", re.MULTILINE)
_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s|\Z)|[。！？]+|\n\s*")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf|mr|mrs|ms|dr|prof|st|no|approx|fig|eq)|\b[A-Za-z])\Z", re.I)
_BULLET = re.compile(r"(?:[-*•–·]|\(?\d{1,3}[.)]|#{1,6})\s+")


def body(text: str) -> str:
    """A message without the tag that an importer put before it."""
    if "[" in text[:10] and (tag := _TAG.match(text)):
        return text[tag.end() :]
    return text


def prose(text: str) -> str:
    """Text without code, formulas, links and quoted lines; a full stop stands where a block was."""
    if "```" in text or "~~~" in text:
        text = _FENCED.sub("\n", text)
    if "$" in text or "\\" in text:
        text = _BLOCK_MATHS.sub(" . ", text)
    if "`" in text or "$" in text:
        text = _INLINE.sub(" . ", text)
    if "/" in text or "\\" in text or "www." in text or "@" in text:
        text = _LINK.sub(" . ", text)
    return _QUOTED_LINE.sub("", text) if ">" in text else text


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, each with its last mark, bullets and surrounding space taken away.

    A line end ends a sentence; a dot inside a number, a name or a common abbreviation does not.
    """
    start = 0
    for end in _END.finditer(text):
        if (
            text[end.start()] == "."
            and end[0] == "."
            and _ABBREVIATION.search(text, max(start, end.start() - 8), end.start())
        ):
            continue
        if sentence := _trimmed(text[start : end.end()]):
            yield sentence
        start = end.end()
    if sentence := _trimmed(text[start:]):
        yield sentence


def clip(text: str, chars: int) -> str:
    """Text on one line, cut at a word where it is longer than so many characters."""
    text = " ".join(text.split())
    if len(text) <= chars:
        return text
    cut = text.rfind(" ", max(0, chars - 20), chars)
    return text[: cut if cut > 0 else chars - 1].rstrip(" ,;:.-") + "…"


def _trimmed(sentence: str) -> str:
    sentence = sentence.strip()
    while bullet := _BULLET.match(sentence):
        sentence = sentence[bullet.end() :]
    return sentence
