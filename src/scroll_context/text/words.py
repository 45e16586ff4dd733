"""Words: how text is cut into them, which of them carry no subject, and what the forms of one share.

The stemmer is a light one of our own: it joins plurals, participles and gerunds with their word, and leaves apart
what a full stemmer would join wrongly (integral and integrate, transformer and transformation). What is made of stems
here is shown to models and recorded, so it must not change with the version of a library.
"""

import re
from functools import lru_cache

WORD = re.compile(r"[^\W_]+(?:[-'’.+#][^\W_]+)*(?:\+\+|#)?")
"""A word as people write it: `state-of-the-art`, `don't`, `3.11`, `C++` are one each."""

STOP_WORDS = frozenset(
    """a about above across actually after again against all almost along already also although always am among an and
    another any anybody anyone anything anyway are aren't around as ask asked asking at away back be became because
    become been before being below best better between beyond both but by can can't cannot come could couldn't did
    didn't do does doesn't doing don't done down during each either else enough especially etc even ever every
    everything exactly far feel feeling few find for from further gave get gets getting give given go goes going gone
    got great had hadn't has hasn't have haven't having he hello help helpful her here hers hey hi him his how however
    i i'd i'll i'm i've if in instead into is isn't it it'd it'll it's its itself just keep kind know known last least
    less let let's like likely little look looking lot made make makes making many may maybe me mean might mine more
    most much must my myself near need needed needs neither never new next nice no none nor not nothing now of off
    often oh ok okay on once one ones only onto or other others ought our ours out over own part per perhaps please
    possible possibly pretty probably put quite rather really right said same saw say says see seem seems seen several
    shall she should shouldn't show since so some somebody someone something sometimes somewhere soon sort still such
    sure take taken tell than thank thanks that that's the their theirs them then there there's these they they'd
    they'll they're they've thing things think this those though thought through throughout thus to together too took
    toward towards tried try trying two under unless until up upon us use used useful uses using usually various very
    via want wanted wants was wasn't way ways we we'd we'll we're we've well went were weren't what what's whatever
    when whenever where whether which while who whom whose why will with within without won't would wouldn't wondering
    yeah yep yes yet you you'd you'll you're you've your yours yourself
    able add added additional advice aim answer anymore appreciate aspect bit case cases certain certainly clear common
    considering consider correct currently current day days decided detail details detailed different difficult ensure
    example examples explain explained feels first following follow full general good guess guide hard hey hope idea
    ideas important improve improving include including information interested interesting issue issues key learn
    learned learning left list long love main making mentioned mention never number numbers order overall part people
    planning plan plans point points possible problem problems provide question questions ready real really recommend
    recommendation recommendations related second share simple small specific specifically start started starting step
    steps struggling stuff suggest suggested suggestion suggestions talk talking term terms test three time times tips
    today tomorrow top trouble type types understand understanding understood work worked working works worried wrong
    year years yesterday week weeks month months cool got gotta gonna hmm kinda lol super wow sounds
    january february march april may june july august september october november december
    monday tuesday wednesday thursday friday saturday sunday""".split()
)
"""Grammar, the calendar, and what people say in any conversation whatever it is about."""


def words(text: str) -> list[str]:
    """The words of a text, lower case, with plain apostrophes."""
    return WORD.findall(text.lower().replace("’", "'"))


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """What the plural, the participle and the gerund of a lower-case English word share with it."""
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
    """What matches the words of a query where they stand in a text, whatever their ending."""
    words = [word for word in re.findall(r"\w+", query) if word not in ("AND", "OR", "NOT")]
    stems = [re.escape(word if len(word) < 5 else word[: max(4, len(word) - 2)]) for word in words]
    return re.compile(rf"\b(?:{'|'.join(stems)})\w*" if stems else r"(?!)", re.IGNORECASE)
