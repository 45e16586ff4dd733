"""Standing instructions and preferences of the user: "Always …", "From now on …", "I prefer …".

`stance` says how much a turn binds what comes later: 2 for a standing instruction, 1 for a
preference or a decision, 0 for everything else. It reads English, sentence by sentence; a turn in
another language is 0. A sentence counts only if the user speaks in it to the assistant: questions,
quotations, code, logs and reports ("I always get this error", "it never works") do not. The rules
are about grammar, not about topics, and they lean towards silence: an instruction that is missed
can still be searched for, a false one would stand in every request.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from scroll_context.text.words import body, clip, prose, sentences, stem, words
from scroll_context.work import check as check_work

INSTRUCTION = 2
PREFERENCE = 1
# Characters of a turn that are read.
READ = 2_000
# Characters of a statement in a list.
SHOWN = 160


class Statement(NamedTuple):
    """One sentence that binds later work, or as much of it as a list shows."""

    # INSTRUCTION, or PREFERENCE for preferences and decisions.
    level: int
    # "instruction", "preference" or "decision".
    stance: str
    # At most SHOWN characters, with the binding words among them.
    text: str


def stance(text: str) -> int:
    """How far a turn of the user binds later ones: 2 a standing instruction, 1 a preference or a
    decision, 0 neither.
    """
    return max([statement.level for statement in statements(text)], default=0)


def statements(text: str) -> Iterator[Statement]:
    """The sentences of a turn that are standing instructions, preferences or decisions."""
    head = body(text[:READ])
    if not _has_cue(_normal(head)):
        return
    for sentence in sentences(prose(head)):
        line = " ".join(sentence.split())
        reading = _reading(_normal(line))
        if reading is not None:
            name, end = reading
            level = INSTRUCTION if name == "instruction" else PREFERENCE
            yield Statement(level, name, _excerpt(line, end))


def standing(turns: Iterable[tuple[int, str]], least: int = INSTRUCTION) -> list[tuple[int, str]]:
    """The instructions that stand after these turns of the user (seq and text, in order), newest
    last.

    With `least` 1, preferences and decisions too. A sentence that a later one repeats or
    contradicts is left out: the newest holds.
    """
    texts: list[tuple[int, str]] = []
    for seq, text in turns:
        for statement in statements(text):
            if statement.level >= least:
                texts.append((seq, statement.text))
    return newest(texts)


def newest(items: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """The sentences (seq and text, in order) that no later one repeats or contradicts."""
    holding: dict[int, tuple[int, str, frozenset[str]]] = {}
    by_word: dict[str, set[int]] = {}
    for number, (seq, sentence) in enumerate(items):
        check_work()
        subject = _subject(sentence)
        for other in _sharing_a_word(subject, by_word):
            old = holding[other][2]
            if _overlap(subject, old) >= SAME_SUBJECT:
                del holding[other]
                for word in old:
                    by_word[word].discard(other)
        holding[number] = (seq, clip(sentence, SHOWN), subject)
        for word in subject:
            by_word.setdefault(word, set()).add(number)
    return [(seq, sentence) for seq, sentence, _ in holding.values()]


def _sharing_a_word(subject: frozenset[str], by_word: Mapping[str, Collection[int]]) -> list[int]:
    """The numbers of earlier sentences that have a word of a subject, in order."""
    numbers: set[int] = set()
    for word in subject:
        numbers.update(by_word.get(word, ()))
    return sorted(numbers)


class Standing(NamedTuple):
    """A statement, its seq, and the seq of a later one that repeats or contradicts it."""

    seq: int
    statement: Statement
    replaced_by: int | None = None


def by_subject(items: Iterable[tuple[int, Statement]]) -> list[list[Standing]]:
    """Statements (with seqs, in order) in groups with a common subject, newest group last.

    A statement that is repeated word for word is listed once, at its newest seq.
    """
    by_text = {_normal(statement.text): (seq, statement) for seq, statement in items}
    listed = sorted(by_text.values(), key=lambda item: item[0])
    subjects = [_subject(statement.text) for _, statement in listed]
    group_of = list(range(len(listed)))
    replaced_by: dict[int, int] = {}
    by_word: dict[str, list[int]] = {}
    for number, subject in enumerate(subjects):
        check_work()
        for other in _sharing_a_word(subject, by_word):
            overlap = _overlap(subject, subjects[other])
            if overlap < RELATED_SUBJECT:
                continue
            joined = group_of[other]
            group_of = [group_of[number] if group == joined else group for group in group_of]
            _, earlier = listed[other]
            seq, later = listed[number]
            if overlap >= SAME_SUBJECT or _conflict(earlier.text, later.text):
                replaced_by[other] = seq
        for word in subject:
            by_word.setdefault(word, []).append(number)
    groups: dict[int, list[Standing]] = {}
    for number, (seq, statement) in enumerate(listed):
        standing = Standing(seq, statement, replaced_by.get(number))
        groups.setdefault(group_of[number], []).append(standing)
    return sorted(groups.values(), key=lambda group: group[-1].seq)


def _excerpt(line: str, end: int) -> str:
    """As much of a sentence as a list shows, with the words before `end` that make it binding."""
    start = 0
    if len(line) > SHOWN and end > SHOWN - 40:
        start = max(0, end - SHOWN // 2)
        start = line.find(" ", start) + 1
    return ("…" if start else "") + clip(line[start:], SHOWN - bool(start))


# grammar ------------------------------------------------------------------------------------------

# A rule is tried where one of its cues occurs.
_Rules = list[tuple[tuple[str, ...], str]]

_VERBS = """act add address adjust aim annotate answer append apply ask assume attach avoid back
    base be begin break bring bold build call capitalize categorize change check choose cite
    clarify clean code combine comment commit compare complete confirm connect consider consult
    convert correct cover create cross-check cross-reference deploy describe detail display
    distinguish document do double-check draft draw elaborate emphasize end ensure estimate
    evaluate exclude explain express factor favor favour fix flag focus follow format frame
    generate give greet group handle highlight hold identify ignore illustrate include indent
    indicate insert inform introduce justify keep label lead leave limit link list log look
    maintain make mark match mention minimize motivate name note number offer omit open outline
    output pause pick point present print prioritize prioritise produce propose provide put
    quote rank read recommend refer reference refrain refuse relate rely remind remove rephrase
    reply report request require respond restrict return reuse review rewrite round run save say
    schedule send separate set shorten show sign simplify skip sort speak specify spell split
    start state stay stick stop structure submit suggest summarise summarize support switch tag
    take talk tell test thank track translate treat try turn type update use validate verify
    visualize walk warn watch weigh word work wrap write""".split()
"""Verbs of commands to an assistant. Where grammar alone cannot tell a command from a statement, a
command begins with one of these.
"""

_NO_COMMANDS = frozenset(
    """a an the this that these those my your his her its our their some any no each every both
    all more most i you he she it we they me him us them one ones someone everyone who what
    which where when how why there here on in at for to of from by with without about under over
    up down out off into through again too so very quite really just only enough if and or but
    than as before after until since because been had was were did done went gone got gotten saw
    seen knew known thought felt found told said came took taken wrote written made kept left
    lost meant met paid sent spent stood understood became began begun won ran ate eaten gave
    given heard fallen fell flown driven broken shown slept taught tried get happen occur seem
    appear have know understand want wonder hear mind end able ready sure true false right wrong
    good bad nice great happy sad glad fun easy hard difficult late early available present
    possible different same new old fine okay ok best better worst worse interesting curious
    sometimes usually often rarely seldom mostly almost nearly ever never always mine yours once
    twice""".split()
)
"""Words after "always" and "never" that make no instruction: pronouns, determiners, participles,
states.
"""
_ENDING_OF_NO_COMMAND = re.compile(
    r"(?!bring|embed|apply|reply|rely|supply|comply|multiply|feed|proceed|need|ping|shed|focus|"
    r"bias|alias|fly\Z)"
    r"\w+(?:ing|ed|ly|[^su]s)\Z"
)

_VERB = rf"(?:{'|'.join(sorted(_VERBS, key=len, reverse=True))})(?![\w'])"
_DO = (
    r"(?:(?:also|then|just|only|clearly|explicitly|carefully|briefly|first|at least|ever) )?"
    r"(?P<do>[a-z][\w-]+)"
)
_NOT = r"(?:don't|do not|dont|never|avoid|refrain from|stop|no)"
_POLITE = (
    r"(?:(?:please|pls|kindly|also|and|but|so|then|ok|okay|oh|hey|hi|hello|well|yes|yeah|no|great|"
    r"perfect|thanks|"
    r"thank you|note|important|reminder|rule|instruction|btw|by the way|one more thing|in addition|"
    r"additionally|"
    r"in general|generally|again|remember|just|as (?:i )?(?:said|mentioned)(?: before| earlier)?|"
    r"like i (?:said|mentioned)(?: before)?|once (?:more|again)|i repeat)(?:[,:!. ]|\s-)\s*)*"
)
_OF_YOU = (
    r"(?:(?:you (?:must|should|shall|have to|need to|are to|will)|"
    r"i(?:'d| would)? (?:want|need|like|expect|prefer|require|ask|love|"
    r"appreciate)(?: it if)?(?: for)? you(?: to)?|"
    r"i(?:'ve| have)? (?:told|asked) you to|"
    r"make sure(?: that)?(?: to| you)?|be sure(?: to)?|ensure(?: that)?(?: you)?|try to|"
    r"(?:can|could|would) you please|let's|(?:remember|don't forget|do not forget) to|it(?: i|"
    r"')s important to) )?"
)
_WHERE = (
    r"(?:(?:for|in|on|with|when|whenever|if|while|before|after|during|as|since|because|at)\b"
    r"[^,.;?!]{2,80}, ?)?"
)
_NOW_ON = r"(?:from now on|from here on(?: out)?|henceforth|going forward|moving forward)"
_LATER = rf"(?:{_NOW_ON}|in (?:the )?future|by default)"
_I_SAY = (
    r"(?:when|whenever|if|each time|every time|any ?time)(?: that)? (?:i|we)(?:'m| am|"
    r" ever)? (?:ask|asking|say|"
    r"mention|request|write|type|send|tell|talk|talking|inquire|bring up|discuss|discussing|share|"
    r"paste|give|want|need|"
    r"report|describe|query|seek|look for|post|upload|provide|start|call|use|run|submit|refer)\b"
)
_I_ASK = (
    r"(?:(?:when|if)(?: that)? (?:i|we)(?:'m| am| ever)? (?:ask|asking|say|mention|request|inquire|"
    r"bring up|"
    r"talk about|discuss|query)|(?:whenever|each time|every time|any ?time)(?: that)? (?:i|we))\b"
)

_ALWAYS_CUES = ("always", "never", "n't ever", "not ever", "nt ever")
_LATER_CUES = ("from now on", "from here on", "henceforth", "ing forward", "future", "by default")
_ASKING_CUES = (
    "when i",
    "whenever",
    "if i ",
    "each time",
    "every time",
    "any time",
    "anytime",
    "when we",
    "if we ",
)
_REMEMBER_CUES = ("remember", "in mind", "forget", "note that")


def _rule(cues: tuple[str, ...], *parts: str) -> tuple[tuple[str, ...], str]:
    return cues, "".join(parts)


# A rule is compiled when it is first tried: all together take as long as the rest of an import.
_compiled = cache(re.compile)


# Each is matched from the beginning of a sentence.
_INSTRUCTIONS: _Rules = [
    # always, never, don't ever + a verb: alone, after a request to the assistant or after a
    # condition
    _rule(
        _ALWAYS_CUES,
        _POLITE,
        _WHERE,
        _POLITE,
        _OF_YOU,
        r"(?:always|never|(?:don't|do not|dont) ever),? ",
        _DO,
    ),
    _rule(
        _ALWAYS_CUES,
        r"[^,;:–—]{3,160}(?:[,;:–—]| -) ?(?:so|and|but|therefore|hence)?,? ?",
        rf"(?:please |you (?:must|should) )?(?:always|never) {_VERB}",
    ),
    # from now on, in future, by default: before a command or behind it
    _rule(
        _LATER_CUES,
        rf"{_POLITE}{_NOW_ON},? (?:please |kindly )*{_OF_YOU}",
        rf"(?:{_NOT} )?(?:always |never |only )?(?:{_VERB}|when i ask|no more )",
    ),
    _rule(
        _LATER_CUES,
        rf"{_POLITE}{_NOW_ON},? (?:i want you|i'd like you|i would like you|you are|you're|",
        r"(?:all |every )?(?:your )?(?:answer|reply|response|answers|replies|responses) )",
    ),
    _rule(
        _LATER_CUES,
        _POLITE,
        rf"(?:in (?:the )?future|by default),? (?:please |{_NOT} |always )*{_OF_YOU}{_VERB}",
    ),
    _rule(_LATER_CUES, _POLITE, _OF_YOU, rf"(?:{_NOT} )?{_VERB}[^?]*\b{_LATER}\W*\Z"),
    # when I ask …, do …; do … when I ask …
    _rule(
        _ASKING_CUES,
        rf"{_POLITE}{_I_SAY}[^?,:]*(?:,[^?,:]*)?[,:] ?(?:then )?(?:please |kindly )?{_OF_YOU}",
        rf"(?:{_NOT} |always |never |only |just |first )*(?:{_VERB}|i want you|i'd like you|"
        rf"i expect you)",
    ),
    _rule(_ASKING_CUES, _POLITE, _OF_YOU, rf"(?:{_NOT} |only |just )?{_VERB}[^?]* {_I_ASK}"),
    # make sure …, I want you to …, you must … always, never, from now on
    _rule(
        (*_ALWAYS_CUES, *_LATER_CUES, "at all times", "every time", "every single time"),
        rf"{_POLITE}(?:make sure|be sure|ensure|i(?:'d| would)? (?:want|need|like|expect) you to|",
        r"you (?:must|should|have to))\b",
        rf"[^?]*\b(?:always|never|at all times|every (?:single )?time|{_LATER})\b",
    ),
    # Remember: anything; a rule about things: migrations must never lock the table
    _rule(
        ("remember", "rule", "reminder"),
        r"(?:please |also,? |and |ok,? |so,? )*(?:please )?(?:remember|(?:a )?(?:rule|"
        r"reminder)) ?: ?\w",
    ),
    _rule(
        _ALWAYS_CUES,
        rf"{_POLITE}(?!(?:i|he|she|they|it|people|everyone) )[^,;:?\"]{{3,80}} must (?:never|"
        rf"always) ",
        _DO,
    ),
    # remember, keep in mind
    _rule(
        _REMEMBER_CUES,
        rf"{_POLITE}(?:remember|keep in mind|bear in mind|don't forget|do not forget)(?:,|:| -|"
        rf",? that)? ",
        r"(?:i|i'm|i've|i'd|i'll|my|we|we're|our|your|always|never)(?![\w'])",
    ),
    _rule(
        _REMEMBER_CUES,
        rf"{_POLITE}(?:remember|keep in mind|bear in mind)(?:,|:| that) ",
        r"(?:the|all|every|any|no|it|it's|there|he|she|they|you)\b",
    ),
    _rule(_REMEMBER_CUES, rf"{_POLITE}note that (?:i|i'm|i've|my|we|our)(?![\w'])"),
]

_CLAUSE = (
    r"(?:\A|[,;:.!–—(-] ?|\b(?:and|but|because|since|so|that|as|though|although|while|plus|also|"
    r"well|now|yes|no) )"
)
_SOMEWHAT = (
    r"(?:(?:really|personally|generally|usually|typically|normally|always|also|still|much|strongly|"
    r"absolutely|just|"
    r"definitely|actually|mostly|particularly|especially|do|tend to|truly|often|simply|would) )*"
)
# "I love it" and "I'd love to hear" say nothing about the user's tastes.
_OWN_WORD = (
    r"(?!(?:it|that|this|these|those|you|your|him|them|how|what|when|where|the (?:idea|way|sound|"
    r"look)|"
    r"to (?:see|know|hear|ask|say|bother|admit|have|get|be|understand|learn))\b)\w"
)
_LIKING_CUES = (
    "i like",
    "ly like",
    "o like",
    "n't like",
    "not like",
    "i love",
    "ly love",
    " hate",
    "enjoy",
    "t stand ",
    "n't eat",
    "not eat",
    "drink",
    "favo",
)

# Each may match anywhere in a sentence.
_PREFERENCES: _Rules = [
    _rule(
        ("prefer",),
        rf"{_CLAUSE}i(?:'d|'ll)? {_SOMEWHAT}prefer\b(?! (?:it|that|this)\b)|\bmy (?:\w+ )?prefer",
    ),
    _rule(
        ("avoid", "dislike", "prioriti"),
        rf"{_CLAUSE}i {_SOMEWHAT}(?:avoid|dislike|prioriti[sz]e) (?!(?:it|that|this)\b)\w",
    ),
    _rule(("rather",), rf"{_CLAUSE}i(?: would|'d) (?:much )?rather \w"),
    _rule(
        _LIKING_CUES,
        rf"{_CLAUSE}i {_SOMEWHAT}(?:love|hate|enjoy|can't stand|cannot stand|(?:don't|"
        rf"do not) (?:really |much )?like|",
        rf"(?:don't|do not) (?:eat|drink)) {_OWN_WORD}",
    ),
    _rule(_LIKING_CUES, rf"{_CLAUSE}i {_SOMEWHAT}like (?:to {_OWN_WORD}|my\b|when\b|\w+ing\b)"),
    _rule(_LIKING_CUES, r"\bmy (?:all-time )?favou?rite\b"),
    _rule(
        ("allerg", "vegetarian", "vegan", "intolerant"),
        r"\bi(?:'m| am) (?:\w+ ){0,2}(?:allergic|vegetarian|vegan|intolerant)\b|\ballerg(?:y|ies|"
        r"ic) to\b|",
        r"\bmy (?:\w+ ){0,2}allerg|\bi have (?:a |an )?(?:\w+ ){0,3}allerg",
    ),
]

_DECISION_CUES = (
    "decided",
    "opted",
    "settled on",
    "agreed",
    "chosen",
    "go with",
    "stick with",
    "going with",
)

# Each may match anywhere in a sentence.
_DECISIONS: _Rules = [
    _rule(
        _DECISION_CUES,
        rf"{_CLAUSE}(?:i|we)(?:'ve| have)? (?:(?:finally|now|just|already|both|all) )*",
        r"(?:decided|opted|chosen|settled|agreed) (?:to|on|for|that|against|not|upon) ?\w",
    ),
    _rule(_DECISION_CUES, rf"{_CLAUSE}let's (?:just )?(?:go|stick|stay) with \w"),
    _rule(
        _DECISION_CUES,
        rf"{_CLAUSE}(?:i|we)(?:'ll| will|'m going to|'re going to| are going to) (?:go|stick|"
        rf"stay) with \w",
        rf"|{_CLAUSE}(?:i'm|we're|we are|i am) going with \w",
    ),
]

_CUES = (
    "always",
    "ever ",
    "now on",
    "here on",
    "henceforth",
    "forward",
    "future",
    "default",
    "when i",
    "if i ",
    " time i",
    "when we",
    "if we ",
    " time we",
    "at all times",
    "remember",
    "in mind",
    "forget",
    "note that",
    "prefer",
    "avoid",
    "islike",
    "rather",
    "prioriti",
    *_LIKING_CUES,
    "llerg",
    "vegetarian",
    "vegan",
    "intolerant",
    "rule:",
    "reminder:",
    *_DECISION_CUES,
)
"""A text that holds none of these holds nothing that the rules could find: most turns are done with
here.
"""


def _normal(text: str) -> str:
    return text.lower().replace("’", "'")


def _has_cue(low: str, cues: tuple[str, ...] = _CUES) -> bool:
    for cue in cues:  # noqa: SIM110 - any() takes twice as long, and this runs for each turn
        if cue in low:
            return True
    return False


def _reading(low: str) -> tuple[str, int] | None:
    """The stance of a sentence, and where the words that show it end; None for most sentences."""
    if not _has_cue(low):
        return None
    asks = low.rstrip("\"')”").endswith("?")
    if not asks or " you please " in low:
        for rule in _tried(_INSTRUCTIONS, low):
            end = _command_end(rule, low)
            if end is not None:
                return "instruction", end
    for name, rules in (("preference", _PREFERENCES), ("decision", _DECISIONS)):
        for rule in _tried(rules, low):
            match = rule.search(low)
            if match is not None:
                return name, match.end()
    return None


def _tried(rules: _Rules, low: str) -> Iterator[re.Pattern[str]]:
    return (_compiled(rule) for cues, rule in rules if _has_cue(low, cues))


def _command_end(rule: re.Pattern[str], low: str) -> int | None:
    """Where the command ends that a rule finds at the beginning of a sentence."""
    match = rule.match(low)
    if match is None:
        return None
    verb = match.groupdict().get("do")
    if verb is not None and (verb in _NO_COMMANDS or _ENDING_OF_NO_COMMAND.match(verb)):
        return None
    return match.end()


# conflicts ----------------------------------------------------------------------------------------

# The share of common words from which the later of two sentences replaces the earlier.
SAME_SUBJECT = 0.7
# The share of common words from which two sentences are shown together.
RELATED_SUBJECT = 0.5
_CONDITION = re.compile(
    r"\b(?:when|whenever|if|for|in|on|each time|every time|with|about)\b", re.IGNORECASE
)

_FORM = frozenset(
    """always never ever don't do not no from now on going moving forward in the future by
    default please must should i you to want make sure remember when whenever if each every time
    ask asking say request about a an of for with my me your is are at it and or any all that
    this""".split()
)
_ONE_VALUE = (
    (
        re.compile(r"\b(?:answer|reply|respond|write|speak|talk)\b[^.,;]{0,30}? in [A-Z]\w+"),
        "language of answers",
    ),
    (re.compile(r"\bcall me\b", re.IGNORECASE), "name of the user"),
)
"""Instructions of which only one can hold, whatever their words."""


def _subject(sentence: str) -> frozenset[str]:
    """The subject of an instruction: its words without those that only mark it as one."""
    for rule, topic in _ONE_VALUE:
        if rule.search(sentence):
            return frozenset((topic,))
    return _stems(sentence)


def _stems(text: str) -> frozenset[str]:
    parts: list[str] = []
    for word in words(text):
        parts += word.split("-")
    return frozenset(stem(word) for word in parts if word and word not in _FORM)


def _overlap(first: frozenset[str], second: frozenset[str]) -> float:
    shared = len(first & second)
    return shared / (len(first) + len(second) - shared) if shared else 0.0


def _conflict(first: str, second: str) -> bool:
    """Whether two related statements ask for different things in one and the same case."""
    splits = [_CONDITION.split(text, maxsplit=1) for text in (first, second)]
    if any(len(parts) < 2 for parts in splits):
        return False
    (action, case), (other_action, other_case) = splits
    return _stems(case) == _stems(other_case) and _stems(action) != _stems(other_action)
