"""Small histories of every shape, with the hashes of the requests that a version of the renderer
made of them.

`python testing/frozen_histories.py` writes them for the newest version into data/, once, when
that version is finished. A history in the file is never written again: it stands for the logs that
people have. A shape that the file does not have yet is added to it.
"""

from pathlib import Path
from typing import Any

import msgspec

from coding_session import REQUEST, call_at
from scroll_context.contents import EarlierWork, MediaFacts, Standing, Topic
from scroll_context.events import Event, Kind, Payload
from scroll_context.view.index import outline
from scroll_context.view.tokens import estimate
from scroll_context.view.working import RENDERER_VERSION
from view_histories import SYSTEM, Scribe

DATA = Path(__file__).parent / "data"
CJK = "東京の天気は晴れです。"


def cells(scribe: Scribe) -> None:
    """Cells with calls of their own, with and without headlines, of every outcome."""
    scribe.user("Total the invoices by supplier, without those of May.")
    for n in range(14):
        asked = scribe.ask(f"rows_{n}: list[{n}]")
        headline = f"invoices | rows_{n} fetched | next page | running" if n % 3 else ""
        reply = scribe.reply(
            f"Part {n}.",
            [(f"c{n}", "exec", {"source": f"rows_{n} = fetch({n})\n" * 4})],
            headline,
            usage={"input_tokens": asked.tokens + 100},
            thinking=[{"text": f"hm {n}", "signature": "s"}],
        )
        state = ("ok", "ok", "error: NameError", "timeout", "")[n % 5]
        scribe.cell(
            reply, f"c{n}", f"supplier {n} owes 12.50\n" * (5 + 20 * n), inner=n % 3, state=state
        )
    scribe.ask("")
    scribe.reply(
        "412.50 in all.\n⟦ invoices | 412.50 | none | done ⟧",
        headline="invoices | 412.50 | none | done",
    )


def native_calls(scribe: Scribe) -> None:
    """Several calls per reply, repeated ids, arguments that are not JSON, missing results."""
    scribe.user("Compare the hotels.")
    for n in range(10):
        scribe.ask()
        made = [
            ("same", "fetch", {"page": n}),
            ("same", "fetch", "not json"),
            (f"x{n}", "write", {"body": "b" * 700}),
        ]
        reply = scribe.reply("" if n % 2 else "Reading.", made)
        scribe.native(reply, "same", "fetch", '{"hotel": "Lisboa"}' * (50 * n))
        if n % 3:
            scribe.native(reply, "same", "fetch", "refused by the user", state="denied")
        scribe.write(Kind.NOTICE, f"The limit of {n} calls is near.")
    scribe.fit(overflowed=True)
    scribe.ask()


def turns(scribe: Scribe) -> None:
    """Many turns in several scripts, with requests that continue a turn, that are long, and a reply
    that broke off.
    """
    for n in range(16):
        scribe.user(
            f"Question {n}: " + (CJK if n % 2 else "Привет мир ") * (220 if n == 5 else 3 + n * 3)
        )
        scribe.ask()
        if n % 4 == 1:
            scribe.user("And in May?", continues=True)
        scribe.reply("brok", cut=n % 5 == 2)
        scribe.ask()
        scribe.reply(f"Answer {n}. " + CJK * n, headline=f"{CJK} | {n} 🙂 | |" if n % 2 else "")
    scribe.ask()


def tiers(scribe: Scribe) -> None:
    """So many steps that lines of the index merge several times."""
    for n in range(90):
        if n % 30 == 0:
            scribe.user(f"Chapter {n // 30}: find every mention of the harbour.")
        scribe.ask("")
        reply = scribe.reply(
            "", [(f"c{n}", "exec", {"source": f"hits = ms.search('harbour {n}')"})]
        )
        scribe.cell(reply, f"c{n}", f"hit {n}\n" * 12)
    scribe.ask("")


def payloads(scribe: Scribe) -> None:
    """Bodies outside the log, by their previews, and texts whose payload is no longer than what is
    shown.
    """
    whole = CJK * 60
    scribe.write(
        Kind.CONVERSATION, "the first words", role="user", payload=Payload("0" * 64, 90_000)
    )
    scribe.ask()
    reply = scribe.reply("", [("a", "read", {}), ("b", "read", {})])
    for id, text, size in (("a", whole, len(whole.encode())), ("b", "row\n" * 500, 200_000)):
        call = scribe.write(Kind.TOOL_CALL, "{}", name="read", tool_call_id=id, reply_to=reply.seq)
        scribe.write(
            Kind.TOOL_RESULT,
            text,
            name="read",
            reply_to=call.seq,
            tool_call_id=id,
            payload=Payload("1" * 64, size),
        )
    scribe.ask()
    for n in range(6):
        scribe.reply(f"Working on it, {n}. " * 30)
        scribe.user(f"Go on, {n}.")
        scribe.ask()


def chat(scribe: Scribe) -> None:
    """Turns without notes, whose lines are made of terms, and standing instructions that leave the
    view.
    """
    rules = {3: "Always answer in metric units. ", 20: "Never answer in metric units. "}
    for n in range(40):
        subject = ("the heat equation", "a ferry to Naxos", "sourdough starters")[n // 14]
        rule = rules.get(n, "")
        scribe.user(
            f"{rule}I'm trying to understand {subject}, part {n}. How does {subject} behave?"
        )
        scribe.ask("")
        scribe.reply(f"Sure! Let me explain {subject} once more, part {n}. " * 4)
    scribe.ask("")


def opened(scribe: Scribe) -> None:
    """A session that starts from earlier ones, more than its index can hold for long."""
    topics = [
        Topic(
            ((n, n),),
            1,
            1,
            "2024-07-01",
            "2024-07-02",
            "kettle" if n % 9 == 0 else "",
            (f"term {n}", f"{CJK} {n}"),
            numbers=(n, n),
            is_misdated=n == 20,
        )
        for n in range(1, 30)
    ]
    standing = (Standing(3, "Always use metric units."), Standing(4, "Never fly.", imported=True))
    earlier = EarlierWork(outline(topics, 600), standing, 7)
    scribe.write(
        Kind.SESSION, earlier.summary(), metadata={"earlier": msgspec.to_builtins(earlier)}
    )
    turns(scribe)


def coding(scribe: Scribe) -> None:
    """Searches, edits, test runs and commits, whose outcomes stand in stubs, lines and the state of
    the work.
    """
    scribe.user(REQUEST)
    for n in range(60):
        scribe.ask("")
        name, arguments, result = call_at(n)
        reply = scribe.reply("", [(f"c{n}", name, arguments)])
        scribe.native(reply, f"c{n}", name, result, state="error" if n % 17 == 9 else "ok")
    scribe.ask("")


def media(scribe: Scribe) -> None:
    """Images and files of messages, by digest and by URL, and images that are a tool's result."""
    for n in range(12):
        chart = MediaFacts(
            media_type="image/png",
            name=f"chart_{n}.png",
            seq=1,
            digest=f"{n:x}" * 64,
            size=9_000 + n,
            tokens=300,
        )
        plan = MediaFacts(media_type="application/pdf", url=f"https://example.com/{n}", tokens=150)
        described = [msgspec.to_builtins(chart), msgspec.to_builtins(plan)]
        scribe.user(f"What does chart {n} show? " * (1 + n % 3), media=described)
        scribe.ask("")
        reply = scribe.reply("", [(f"c{n}", "screenshot", {"page": n})])
        call = scribe.write(
            Kind.TOOL_CALL, "{}", name="screenshot", tool_call_id=f"c{n}", reply_to=reply.seq
        )
        shot = MediaFacts(media_type="image/jpeg", size=5_000, tokens=250)
        scribe.write(
            Kind.TOOL_RESULT,
            "[image/jpeg, 5,000 bytes]",
            name="screenshot",
            tool_call_id=f"c{n}",
            reply_to=call.seq,
            payload=Payload("e" * 64, 5_000, "image/jpeg"),
            metadata={"media": [msgspec.to_builtins(shot)]},
        )
        scribe.ask("")
        scribe.reply(f"It shows the sales of year {n}. " * 6)
    scribe.ask("")


SHAPES = (
    (cells, 3_000),
    (native_calls, 6_000),
    (turns, 4_000),
    (tiers, 2_500),
    (payloads, 2_600),
    (chat, 2_500),
    (opened, 4_000),
    (coding, 8_000),
    (media, 6_000),
)
"""Each shape, and the window that it is worked on with."""


def write(version: int) -> Path:
    """Make the histories with the present code and keep them as those of this version."""
    path = DATA / f"version{version}.json"
    histories = []
    if path.exists():
        histories = msgspec.json.decode(path.read_bytes())["histories"]
    frozen = {history["name"] for history in histories}
    for shape, window in SHAPES:
        if shape.__name__ in frozen:
            continue
        scribe = Scribe(window, gap=2, overhead=estimate(SYSTEM))
        shape(scribe)
        histories.append(
            {"name": shape.__name__, "events": [_logged(event) for event in scribe.log]}
        )
    DATA.mkdir(exist_ok=True)
    path.write_bytes(msgspec.json.encode({"system": SYSTEM, "histories": histories}) + b"\n")
    return path


def _logged(event: Event) -> dict[str, Any]:
    """An event without the fields that say nothing."""
    return {
        name: value
        for name, value in msgspec.to_builtins(event).items()
        if value not in ("", None, {})
    }


if __name__ == "__main__":
    print(write(RENDERER_VERSION))
