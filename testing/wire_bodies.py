"""Random request bodies of the three protocols, each with calls that are answered."""

import base64
import json
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]

PIXEL = base64.b64encode(b"\x89PNG a pixel").decode()
MARK = {"type": "ephemeral", "ttl": "1h"}

texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).filter(str.strip)
prompts = st.one_of(texts, texts.map(lambda text: f"<system-reminder>{text}</system-reminder>"))
steps = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": st.none() | prompts,
            "note": st.none() | texts,
            "image": st.booleans(),
            "says": st.none() | texts,
            "thinks": st.booleans(),
            "results": st.lists(texts, max_size=3),
        }
    ),
    min_size=1,
    max_size=6,
)
styles = st.sampled_from(
    [
        {"separators": (",", ":"), "ensure_ascii": False},
        {"separators": (", ", ": ")},
        {"indent": 2},
    ]
)


@st.composite
def bodies(draw: st.DrawFn, protocol: str) -> bytes:
    """A body as a client may write it: compact, with spaces, or on several lines."""
    conversation = draw(steps)
    marks = draw(st.integers(0, 4))
    body = {"messages": _messages, "chat": _chat, "responses": _responses}[protocol](conversation)
    if protocol == "messages":
        _set_marks(body, marks)
    return json.dumps(body, **draw(styles)).encode()


def _messages(conversation: list[Json]) -> Json:
    out: list[Json] = []
    for number, step in enumerate(conversation):
        user: list[Json] = _pending_results(out)
        user += [{"type": "text", "text": text} for text in (step["prompt"], step["note"]) if text]
        if step["image"] or not user:
            source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
            user.append({"type": "image", "source": source})
        single = len(user) == 1 and user[0]["type"] == "text"
        out.append({"role": "user", "content": user[0]["text"] if single else user})
        reply: list[Json] = []
        if step["thinks"]:
            reply.append({"type": "thinking", "thinking": "hm", "signature": f"sig{number}"})
        if step["says"] or not step["results"]:
            reply.append({"type": "text", "text": step["says"] or "yes"})
        for place, _ in enumerate(step["results"]):
            call_id = f"toolu_{number}_{place}"
            call = {"type": "tool_use", "id": call_id, "name": "read", "input": {"n": place}}
            reply.append(call)
        out.append({"role": "assistant", "content": reply, "_results": step["results"]})
    out.append({"role": "user", "content": [*_pending_results(out), _text("Go on.")]})
    for message in out:
        message.pop("_results", None)
    return {"model": "m", "system": "Be exact.", "messages": out, "tools": [], "max_tokens": 9}


def _pending_results(out: list[Json]) -> list[Json]:
    """The answers to the calls of the last reply; every second one reports an error."""
    if not out:
        return []
    calls = [block for block in out[-1]["content"] if block["type"] == "tool_use"]
    return [
        {
            "type": "tool_result",
            "tool_use_id": call["id"],
            "content": text,
            "is_error": place % 2 == 1,
        }
        for place, (call, text) in enumerate(zip(calls, out[-1]["_results"], strict=True))
    ]


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _set_marks(body: Json, count: int) -> None:
    blocks = [
        block
        for message in body["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] in ("text", "tool_result")
    ]
    for block in blocks[-count:] if count else []:
        block["cache_control"] = MARK


def _chat(conversation: list[Json]) -> Json:
    out: list[Json] = [{"role": "system", "content": "Be exact."}]
    for number, step in enumerate(conversation):
        if step["note"]:
            out.append({"role": "developer", "content": step["note"]})
        content: Any = step["prompt"] or "Go on."
        if step["image"]:
            url = {"url": f"data:image/png;base64,{PIXEL}"}
            content = [_text(content), {"type": "image_url", "image_url": url}]
        out.append({"role": "user", "content": content})
        reply: Json = {"role": "assistant", "content": step["says"]}
        if step["thinks"]:
            reply["reasoning_content"] = "hm"
        if not step["says"] and not step["results"]:
            reply["content"] = "yes"
        ids = [f"call_{number}_{place}" for place, _ in enumerate(step["results"])]
        if ids:
            function = {"name": "read", "arguments": '{"n": 1}'}
            reply["tool_calls"] = [
                {"id": call_id, "type": "function", "function": function} for call_id in ids
            ]
        out.append(reply)
        for call_id, text in zip(ids, step["results"], strict=True):
            out.append({"role": "tool", "tool_call_id": call_id, "content": text})
    out.append({"role": "user", "content": "Go on."})
    return {"model": "m", "messages": out, "tools": []}


def _responses(conversation: list[Json]) -> Json:
    out: list[Json] = []
    for number, step in enumerate(conversation):
        blocks = [
            {"type": "input_text", "text": text} for text in (step["prompt"], step["note"]) if text
        ]
        if step["image"] or not blocks:
            blocks.append({"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"})
        out.append({"type": "message", "role": "user", "content": blocks})
        if step["thinks"]:
            reasoning = {"type": "reasoning", "id": f"rs_{number}", "summary": []}
            out.append({**reasoning, "encrypted_content": "secret"})
        if step["says"] or not step["results"]:
            content = [{"type": "output_text", "text": step["says"] or "yes", "annotations": []}]
            message = {"type": "message", "id": f"msg_{number}", "role": "assistant"}
            out.append({**message, "status": "completed", "content": content})
        ids = [f"call_{number}_{place}" for place, _ in enumerate(step["results"])]
        for call_id in ids:
            call = {"type": "function_call", "id": f"fc_{call_id}", "call_id": call_id}
            out.append({**call, "name": "read", "arguments": '{"n": 1}'})
        for call_id, text in zip(ids, step["results"], strict=True):
            out.append({"type": "function_call_output", "call_id": call_id, "output": text})
    out.append({"type": "message", "role": "user", "content": "Go on."})
    return {"model": "m", "instructions": "Be exact.", "input": out, "tools": []}
