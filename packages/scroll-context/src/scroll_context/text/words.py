"""How text is split into running text, sentences and words; which words carry no subject, and the
stems of words.

Importers put a tag before a message (`[Session 3 | 2024-07-05] user: …`); people paste code,
formulas, links and quotations. `body` removes the tag, `prose` blanks everything that is not
running text, and `sentences` splits the rest.

The stemmer is a light one of our own: it joins plurals, participles and gerunds with their word,
and keeps words apart that a full stemmer would join wrongly (integral and integrate, transformer
and transformation). Texts that are made with these stems are shown to models and recorded, so the
stems must not change with the version of a library.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

WORD = re.compile(r"[^\W_]+(?:[-'’.+#][^\W_]+)*(?:\+\+|#)?")
"""A word as people write it: `state-of-the-art`, `don't`, `3.11`, `C++` are one each."""

STOP_WORDS = frozenset(
    """a about above across actually after again against all almost along already also although
    always am among an and another any anybody anyone anything anyway are aren't around as ask
    asked asking at away back be became because become been before being below best better
    between beyond both but by can can't cannot come could couldn't did didn't do does doesn't
    doing don't done down during each either else enough especially etc even ever every
    everything exactly far feel feeling few find for from further gave get gets getting give
    given go goes going gone got great had hadn't has hasn't have haven't having he hello help
    helpful her here hers hey hi him his how however i i'd i'll i'm i've if in instead into is
    isn't it it'd it'll it's its itself just keep kind know known last least less let let's like
    likely little look looking lot made make makes making many may maybe me mean might mine more
    most much must my myself near need needed needs neither never new next nice no none nor not
    nothing now of off often oh ok okay on once one ones only onto or other others ought our
    ours out over own part per perhaps please possible possibly pretty probably put quite rather
    really right said same saw say says see seem seems seen several shall she should shouldn't
    show since so some somebody someone something sometimes somewhere soon sort still such sure
    take taken tell than thank thanks that that's the their theirs them then there there's these
    they they'd they'll they're they've thing things think this those though thought through
    throughout thus to together too took toward towards tried try trying two under unless until
    up upon us use used useful uses using usually various very via want wanted wants was wasn't
    way ways we we'd we'll we're we've well went were weren't what what's whatever when whenever
    where whether which while who whom whose why will with within without won't would wouldn't
    wondering yeah yep yes yet you you'd you'll you're you've your yours yourself able add added
    additional advice aim answer anymore appreciate aspect bit case cases certain certainly
    clear common considering consider correct currently current day days decided detail details
    detailed different difficult ensure example examples explain explained feels first following
    follow full general good guess guide hard hey hope idea ideas important improve improving
    include including information interested interesting issue issues key learn learned learning
    left list long love main making mentioned mention never number numbers order overall part
    people planning plan plans point points possible problem problems provide question questions
    ready real really recommend recommendation recommendations related second share simple small
    specific specifically start started starting step steps struggling stuff suggest suggested
    suggestion suggestions talk talking term terms test three time times tips today tomorrow top
    trouble type types understand understanding understood work worked working works worried
    wrong year years yesterday week weeks month months cool got gotta gonna hmm kinda lol super
    wow sounds january february march april may june july august september october november
    december monday tuesday wednesday thursday friday saturday sunday""".split()
)
"""Grammar, the calendar, and words of any conversation, whatever its subject."""


def words(text: str) -> list[str]:
    """The words of a text, lower case, with plain apostrophes."""
    return WORD.findall(text.lower().replace("’", "'"))


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """The part that a lower-case English word shares with its plural, participle and gerund."""
    if word.endswith("'s"):
        word = word[:-2]
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return word
    word = _singular(word)
    for ending in ("ing", "ed"):
        rest = word[: -len(ending)]
        if word.endswith(ending) and len(rest) >= 3 and any(vowel in rest for vowel in "aeiouy"):
            if rest[-1] == rest[-2] and rest[-1] not in "aeioslz":
                return rest[:-1]
            return rest.removesuffix("e")
    return word[:-1] if len(word) > 4 and word[-1] == "e" else word


def _singular(word: str) -> str:
    if not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("zzes"):
        return word[:-3]
    if word.endswith(("sses", "shes", "ches", "xes", "zes")):
        return word[:-2]
    return word[:-1]


def words_of(query: str) -> re.Pattern[str]:
    """A pattern for the words of a query in a text, with any ending."""
    beginnings = []
    for word in re.findall(r"\w+", query):
        if word in ("AND", "OR", "NOT"):
            continue
        if len(word) >= 5:
            word = word[: max(4, len(word) - 2)]
        beginnings.append(re.escape(word))
    if not beginnings:
        # It matches nothing.
        return re.compile(r"(?!)")
    return re.compile(rf"\b(?:{'|'.join(beginnings)})\w*", re.IGNORECASE)


# running text -------------------------------------------------------------------------------------

# Each of these takes linear time: foreign text is split by them while the interpreter is locked.
_TAG = re.compile(
    r"\s*\[[^\]\n]{1,120}\] ?(?:user|assistant|system|tool|human|ai)\s?: ?", re.IGNORECASE
)
_FENCED = re.compile(r"(```|~~~).*?(?:\1|\Z)", re.DOTALL)
_BLOCK_MATHS = re.compile(r"\$\$.*?(?:\$\$|\Z)|\\\[.*?(?:\\\]|\Z)|\\\(.{0,200}?\\\)", re.DOTALL)
_INLINE = re.compile(r"`[^`\n]*`|\$[^$\n]{1,200}\$")
_LINK = re.compile(
    r"(?:https?://|www\.)\S+"
    r"|(?<![\w.+-])[\w.+-]++@[\w-]+\.\w+"
    r"|(?<!\w)(?:~?/|[A-Za-z]:\\)[\w.-]+(?:[/\\][\w.-]+)+"
)
_QUOTED_LINE = re.compile(r"^[ \t]*>.*$", re.MULTILINE)
_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)\]]*+(?=\s|\Z)|[。！？]+|\n\s*")
_ABBREVIATION = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|mr|mrs|ms|dr|prof|st|no|approx|fig|eq)|\b[A-Za-z])\Z", re.I
)
_BULLET = re.compile(r"(?:[-*•–·]|\(?\d{1,3}[.)]|#{1,6})\s+")


def body(text: str) -> str:
    """A message without the tag that an importer put before it."""
    tag = _TAG.match(text) if "[" in text[:10] else None
    return text[tag.end() :] if tag else text


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
    """The sentences of a text, each with its last mark, without bullets and surrounding space.

    A line end ends a sentence; a dot inside a number, a name or a common abbreviation does not.
    """
    start = 0
    for end in _END.finditer(text):
        at = end.start()
        if end[0] == "." and _ABBREVIATION.search(text, max(start, at - 8), at):
            continue
        sentence = _trimmed(text[start : end.end()])
        if sentence:
            yield sentence
        start = end.end()
    sentence = _trimmed(text[start:])
    if sentence:
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
    bullet = _BULLET.match(sentence)
    while bullet:
        sentence = sentence[bullet.end() :]
        bullet = _BULLET.match(sentence)
    return sentence
