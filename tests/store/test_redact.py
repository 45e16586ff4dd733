"""Secrets: found whole, replaced before they are recorded, recognised when equal, and found in what is there."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from scroll_context.errors import BadInput
from scroll_context.events import Draft, Kind, Scope
from scroll_context.importers import import_file
from scroll_context.store.journal import Journal
from scroll_context.store.redact import Redactor, find_secrets, scan
from scroll_context.store.store import Store
from scroll_context.store.verify import verify

AWS = "AKIA" + "IOSFODNN7EXAMPLE"
GITHUB = "ghp_" + "abcdefghijklmnopqrstuvwxyz0123456789"
OPENAI = "sk-proj-" + "Abcdefghijklmnopqrstuvwxyz0123456789T3BlbkFJ_x-y"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
BLOCK = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEowIBAAKCAQEA0Z3VS5JJcds3xfn\n" * 20 + "-----END RSA PRIVATE KEY-----"
SECRETS = {"aws": AWS, "github": GITHUB, "openai": OPENAI, "jwt": JWT, "block": BLOCK}


@pytest.fixture(autouse=True)
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "elsewhere" / "key"
    monkeypatch.setenv("SCROLL_KEY_FILE", str(path))
    return path


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    with Store(folder, create=True) as store:
        yield store


def held(folder: Path, word: str) -> list[str]:
    return [str(file) for file in folder.rglob("*") if file.is_file() and word.encode() in file.read_bytes()]


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("around", ["{}", "the key is {}, keep it", "export KEY={}\nnext", '{{"key": "{}"}}', "<{}>"])
def test_a_secret_is_found_whole_wherever_it_stands(name: str, around: str) -> None:
    value = SECRETS[name]
    for written in {value, json.dumps(value)[1:-1]}:
        text = around.format(written)
        (found,) = find_secrets(text)
        assert text[found.start : found.end] == written
        redacted = Redactor().text(text)
        assert written not in redacted and redacted.replace(redacted[redacted.index("[") :], "") == text[: found.start]
        assert redacted.endswith(text[found.end :])


def test_a_private_key_that_was_cut_short_is_found_as_far_as_it_goes() -> None:
    cut = BLOCK[:300]
    (found,) = find_secrets(f"look: {cut}")
    assert found.kind == "private key" and (found.start, found.end) == (6, 306)


@pytest.mark.parametrize(
    "text",
    [
        "a normal sentence about a trip to Lisbon in May, with a budget of 1,200 CHF",
        "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "commit 3b98125 in https://example.org/a/b?c=d&e=f#g",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
        "uuid 123e4567-e89b-12d3-a456-426614174000 at 192.168.0.1",
    ],
)
def test_what_is_no_secret_is_left_alone(text: str) -> None:
    assert find_secrets(text) == [] and Redactor().text(text) == text


def test_equal_secrets_have_equal_markers_and_only_with_the_same_key(key_file: Path) -> None:
    first = Redactor()
    assert first.text(AWS) == Redactor().text(AWS) != first.text("AKIA" + "IOSFODNN7EXAMPLF")
    key_file.write_text("ab" * 32)
    assert Redactor().text(AWS) != first.text(AWS)
    assert first.text(first.text(AWS)) == first.text(AWS)


def test_a_journal_records_what_is_redacted_and_a_view_sees_the_same(store: Store) -> None:
    journal = Journal(store.log, Scope("s"))
    journal.redact = Redactor()
    seen: list[str] = []
    journal.follow(lambda event: seen.append(event.content))
    event = journal.append(
        journal.draft(Kind.CONVERSATION, content=f"it is {GITHUB}", metadata={"a": [{"b": GITHUB}], "n": 1})
    )
    journal.append(journal.draft(Kind.TOOL_RESULT, content="preview"), body=f"{BLOCK}\n" + "x" * 100_000)
    journal.append_many([journal.draft(Kind.CONVERSATION, headline=OPENAI)])
    journal.append_once("key", journal.draft(Kind.CONVERSATION, content=JWT))
    journal.close()
    assert "[redacted" in event.content and event.metadata["n"] == 1 and event.metadata["redacted"] is True
    assert seen == [one.content for one in store.log.iterate()]
    assert not any(held(store.folder, secret) for secret in (GITHUB, "MIIEowIBAAKCAQEA", OPENAI, JWT))


def test_an_import_is_redacted_when_asked_and_repeats_are_still_known(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"role": "user", "content": f"my key: {AWS}", "extra": AWS}) + "\n")
    import_file(store, path, redact=True)
    assert not held(store.folder, AWS) and "[redacted AWS Access Key " in store.log.get(1).content
    assert import_file(store, path, redact=True).added == 0


def test_a_scan_finds_what_was_recorded_and_an_erasure_removes_it(store: Store) -> None:
    store.append(Draft(content=f"my key: {AWS} and again {AWS}"))
    store.append(Draft(content="nothing"))
    store.append(Draft(content=f"{BLOCK}\n" + "y" * 100_000, metadata={"token": GITHUB}))
    found = list(scan(store.log))
    assert [(one.seq, one.kind) for one in found] == [
        (1, "AWS Access Key"), (3, "private key"), (3, "GitHub Token"),
    ]  # fmt: skip
    assert len({one.fingerprint for one in found}) == 3
    store.erase(seqs=[one.seq for one in found], words=[one.value for one in found], reason="secret", copies=True)
    assert list(scan(store.log)) == [] and verify(store.log).ok
    assert not any(held(store.folder, secret) for secret in (AWS, GITHUB, "MIIEowIBAAKCAQEA"))


def test_without_the_patterns_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from scroll_context.store import redact

    monkeypatch.setitem(sys.modules, "detect_secrets.core.plugins.util", None)
    redact._patterns.cache_clear()
    with pytest.raises(BadInput, match=r"pip install 'scroll-context\[secrets\]'"):
        find_secrets("x")
