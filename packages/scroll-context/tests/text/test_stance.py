"""Standing instructions and preferences are told from everything else that people say with the same
words.
"""

import time

import pytest

from scroll_context.text.stance import stance, standing, statements

INSTRUCTIONS = """
Always use metric units.
Always cite your sources when I ask about medicine.
[Session 3 | 2024-07-05] user: Always answer in French.
please always show the SQL before you run it
Never delete branches without asking me first.
Never use emojis!
Don't ever push to main.
From now on, call me Sam.
From now on, please keep answers below five sentences.
from now on I want you to speak German
From now on your answers should be in bullet points.
Going forward, include the ticket number in each commit message.
In future, don't explain basic Python to me.
By default, write tests with pytest.
When I ask for code, give only code.
Whenever I mention a restaurant, remind me of my budget.
If I say "stop", stop at once.
Every time I paste a stack trace, look for the root cause first.
Include the price whenever I ask about flights.
Use British spelling from now on.
Please stop apologising... and never repeat my question back to me.
Make sure you always double-check the totals.
I want you to always give the source of a number.
You must never mention my employer.
Remember that I'm using Windows 11.
Keep in mind that my knee is injured.
Don't forget I'm colour-blind.
Remember, I have two kids.
For emails to my boss, always use a formal tone.
When writing Python, always add type hints.
I have celiac disease, so never suggest bread.
Can you please always add units?
- Always run the linter before committing
Also, always confirm the time zone.
Thanks! And always translate the quotes, please.
In emails, never sign with my full name.
Going forward you should answer in Spanish.
Remember: amounts are in cents.
Migrations must never lock the table.
Commit messages must always name the ticket.
As I said before, always use metric units.
Like I said: never call me on Sundays.
I told you to always add units.
""".strip().splitlines()

DECISIONS = """
We decided that the pool stays closed.
I've decided to use Postgres for this.
OK, I've opted for the smaller engine.
Let's go with the blue tiles.
We'll stick with the weekly call, can you move it?
After some thought, we have agreed on a budget of 900.
""".strip().splitlines()

PREFERENCES = """
I prefer window seats.
I'd prefer something without nuts.
I really love hiking in the Alps, can you suggest a tour?
Could you suggest a book, since I prefer short ones?
I hate long meetings.
I usually avoid red meat.
I prioritize recipes that can be frozen, do you know any?
I don't like horror films.
I'm allergic to peanuts.
My preference is for aisle seats.
My favourite colour is green.
I'd rather walk than take a taxi.
I like working early in the morning.
My daughter has an allergy to penicillin.
""".strip().splitlines()

NEITHER = """
I always get this error when I start the server.
It never works on Fridays.
never mind
Never mind, I found it.
Never heard of it.
Never thought about it that way.
Never again!
Never too late to start, I guess.
what should I always do?
Should I always use HTTPS?
Do I need to always derive it by hand, or can software do it?
Can you always trust the compiler?
Why does it never end?
I've never been to Japan before.
My mother always said that breakfast matters.
He told me "always check twice" and left.
"Always look on the bright side" is a song.
She never calls me back.
They say you should always warm up.
Always a pleasure!
Always the same problem.
Always failing with exit code 1.
Always happens after lunch.
2024-05-01 12:00:03 WARN always retry failed for job 7
> Always wash your hands
From now on I will go to the gym every day.
Going forward, we plan to hire two people.
In the future, cars will drive themselves.
By default, Python uses UTF-8.
by default, the port is 8080
When I ask my boss, he says no.
When I start the app, it crashes.
Whenever I say something, she gets mad.
If I use the second formula, I get 12.
Tell me when I need to leave.
Do you remember the trip to Rome?
Remember when we talked about Rome?
I remember that well.
I can't remember his name.
Please remember to buy milk
I love it!
I love that idea, thanks.
I'd love to hear more about it.
I would like to know more.
I'd like a table of the results.
How do I avoid null pointers?
How do I prioritize my tasks?
What if I prefer the other one?
it looks like rain
Make sure the tests pass.
You should see a therapist.
I want you to write a poem about never giving up hope, can you?
The function must never return None, how do I check that?
Have we decided on a name?
Should we go with the blue one?
What if I decided to leave?
They must always be late.
He must never have seen it.
Do you remember: was it red?
always
never
import never; always = never()
Siempre responde en español.
Immer auf Deutsch antworten.
今後は常に日本語で答えてください。
""".strip().splitlines()


@pytest.mark.parametrize("text", INSTRUCTIONS)
def test_standing_instructions_are_found(text: str) -> None:
    assert stance(text) == 2


@pytest.mark.parametrize("text", PREFERENCES)
def test_preferences_are_found(text: str) -> None:
    assert stance(text) == 1


@pytest.mark.parametrize("text", DECISIONS)
def test_decisions_are_found(text: str) -> None:
    assert [(one.stance, one.level) for one in statements(text)] == [("decision", 1)]


@pytest.mark.parametrize("text", NEITHER)
def test_reports_questions_quotations_logs_and_other_languages_are_neither(text: str) -> None:
    assert stance(text) == 0


def test_code_is_no_instruction() -> None:
    assert (
        stance("What does this do?\n```\n# Always close the file.\nNever use eval.\n```\nThanks")
        == 0
    )
    assert (
        stance("What does this do?\n```\n# cut off, Always close the file.\nNever use eval.") == 0
    )


def test_an_instruction_among_other_sentences_is_found_with_its_words_alone() -> None:
    text = "My server is slow today. Why is that? Always show me the query plan when I ask about speed. Thanks!"
    assert standing([(7, text)]) == [(7, "Always show me the query plan when I ask about speed.")]


def test_only_the_beginning_of_a_long_turn_is_read() -> None:
    assert stance("word " * 1_000 + "\nAlways use metric units.") == 0


def test_the_newest_of_two_that_conflict_stands_and_the_list_is_in_order() -> None:
    turns = [
        (1, "Always use tabs for indentation."),
        (2, "From now on, answer in English."),
        (3, "Always include the price when I ask about flights."),
        (4, "Never use tabs for indentation."),
        (5, "Call me Sam from now on."),
        (6, "From now on, answer in German."),
        (7, "always include the price when I ask about flights"),
        (8, "From now on, call me Alex."),
        (9, "I prefer window seats."),
    ]
    assert [seq for seq, _ in standing(turns)] == [4, 6, 7, 8]
    assert [seq for seq, _ in standing(turns, least=1)] == [4, 6, 7, 8, 9]


def test_the_same_wish_for_two_things_is_two_instructions() -> None:
    turns = [
        (n, f"Always mention the colour when I ask about {thing}.")
        for n, thing in enumerate(("hotels", "trains"))
    ]
    assert len(standing(turns)) == 2


def test_a_long_sentence_is_shown_by_its_beginning() -> None:
    [(_, shown)] = standing([(1, "Always mention " + "the weather and " * 30 + "the news.")])
    assert (
        len(shown) <= 160 and shown.startswith("Always mention the weather") and shown.endswith("…")
    )


@pytest.mark.parametrize(
    "text",
    [
        "always " * 285,
        "and so, " * 250,
        "remember, " * 200,
        "when i ask, " * 160,
        "i really " * 220,
        "please " * 280,
        "use " * 490 + "when",
        "for a " * 300,
        "always, " + "a" * 1_990,
        "my " * 660,
        "\n" * 1_990,
        "$" * 1_999,
        "`" * 1_999,
        "\\(" * 990,
        "a@" * 990,
        "/a" * 990,
        "e.g. " * 400,
        "> " * 990,
    ],
)
def test_no_text_takes_long(text: str) -> None:
    began = time.process_time()
    stance("i never " + text)
    stance(text)
    assert time.process_time() - began < 2  # milliseconds; a careless pattern takes minutes
