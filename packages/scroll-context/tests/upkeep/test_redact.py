"""Secrets: found whole, replaced before they are recorded, recognised when equal, and found in what
is there.
"""

import json
import time
from pathlib import Path

import pytest

from scroll_context.events import Draft, Kind, Scope
from scroll_context.importing.run import import_file
from scroll_context.log.journal import Journal
from scroll_context.log.redact import Redactor, find_secrets, scan
from scroll_context.messages import ToolCall
from scroll_context.session.session import Session
from scroll_context.store import Store
from scroll_context.tools.plain import MediaBytes
from scroll_context.upkeep.integrity import verify

AWS = "AKIA" + "IOSFODNN7EXAMPLE"
GITHUB = "ghp_" + "abcdefghijklmnopqrstuvwxyz0123456789"
OPENAI = "sk-proj-" + "Abcdefghijklmnopqrstuvwxyz0123456789T3BlbkFJ_x-y"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
BLOCK = (
    "-----BEGIN RSA PRIVATE KEY-----\n"
    + "MIIEowIBAAKCAQEA0Z3VS5JJcds3xfn\n" * 20
    + "-----END RSA PRIVATE KEY-----"
)
SECRETS = {"aws": AWS, "github": GITHUB, "openai": OPENAI, "jwt": JWT, "block": BLOCK}

pytestmark = pytest.mark.usefixtures("key_file")


def held(folder: Path, word: str) -> list[str]:
    return [
        str(file)
        for file in folder.rglob("*")
        if file.is_file() and word.encode() in file.read_bytes()
    ]


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize(
    "around", ["{}", "the key is {}, keep it", "export KEY={}\nnext", '{{"key": "{}"}}', "<{}>"]
)
def test_a_secret_is_found_whole_wherever_it_stands(name: str, around: str) -> None:
    value = SECRETS[name]
    for written in {value, json.dumps(value)[1:-1]}:
        text = around.format(written)
        (found,) = find_secrets(text)
        assert text[found.start : found.end] == written
        redacted = Redactor().text(text)
        assert (
            written not in redacted
            and redacted.replace(redacted[redacted.index("[") :], "") == text[: found.start]
        )
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
        "MAX_TOKENS=409600000000 PRIMARY_KEY=identifier PWD=/home/ada/project1 API_KEY=$OTHER_KEY_12345 PASSWORD=${DB}",
        "http://localhost:8080/@scope/package1 git@github.com:ada/booth.git ssh://git@host:22/x ?key=overview",
        'cluster_key = "ElasticsearchClusterConfiguration"',
        ".sk-hidden-navigation-bar-wide { token: bearer of good-news-for-everybody }",
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
        journal.draft(
            Kind.CONVERSATION, content=f"it is {GITHUB}", metadata={"a": [{"b": GITHUB}], "n": 1}
        )
    )
    journal.append(
        journal.draft(Kind.TOOL_RESULT, content="preview"), body=f"{BLOCK}\n" + "x" * 100_000
    )
    journal.append_many([journal.draft(Kind.CONVERSATION, headline=OPENAI)])
    journal.append_once("key", journal.draft(Kind.CONVERSATION, content=JWT))
    journal.close()
    assert (
        "[redacted" in event.content
        and event.metadata["n"] == 1
        and event.metadata["redacted"] is True
    )
    assert seen == [one.content for one in store.log.iterate()]
    assert not any(
        held(store.folder, secret) for secret in (GITHUB, "MIIEowIBAAKCAQEA", OPENAI, JWT)
    )


@pytest.mark.parametrize(
    "media_type",
    [
        "application/json",
        "text/csv",
        "application/problem+json",
        "application/xml",
        "Text/Markdown; charset=utf-8",
        "application/x-ndjson",
        "application/yaml",
        "application/octet-stream",
        "",
    ],
)
@pytest.mark.parametrize("as_bytes", [True, False])
def test_the_body_of_every_textual_media_type_is_redacted(
    store: Store, media_type: str, as_bytes: bool
) -> None:
    journal = Journal(store.log, Scope("s"))
    journal.redact = Redactor()
    text = json.dumps({"rows": ["x" * 50_000, {"key": GITHUB}]})
    draft = journal.draft(Kind.TOOL_RESULT, content="preview")
    event = journal.append(draft, body=text.encode() if as_bytes else text, media_type=media_type)
    journal.close()
    assert event.payload is not None and not held(store.folder, GITHUB)
    body = json.loads(store.payloads.read(event.payload.digest))
    assert body["rows"][1]["key"].startswith("[redacted GitHub Token ")


def test_redaction_keeps_every_other_byte_of_a_body() -> None:
    redactor = Redactor()
    latin = f"Stra\xdfe,{AWS}\r\n".encode("latin-1")
    marker = redactor.text(AWS).encode()
    assert redactor.body(latin, "text/csv") == latin.replace(AWS.encode(), marker)
    plain = "Stra\xdfe,1\r\n".encode("latin-1")
    assert redactor.body(plain, "text/csv") == plain
    wide = redactor.body(f"key,{AWS}\n".encode("utf-16"), "text/csv")
    assert isinstance(wide, bytes) and wide.decode("utf-16") == redactor.text(f"key,{AWS}\n")
    picture = b"\x89PNG\0" + AWS.encode()
    assert redactor.body(picture, "image/png") == picture
    assert redactor.body(picture, "application/octet-stream") == picture


def test_a_secret_that_stands_only_in_the_metadata_of_a_call_is_redacted(store: Store) -> None:
    journal = Journal(store.log, Scope("s"))
    journal.redact = Redactor()
    call = {
        "id": "c1",
        "name": "fetch",
        "arguments": {"headers": [{"x-api-key": OPENAI}], GITHUB: "as a name"},
    }
    event = journal.append(
        journal.draft(Kind.CONVERSATION, content="I look.", metadata={"tool_calls": [call]})
    )
    journal.close()
    assert event.metadata["redacted"] is True and event.metadata["tool_calls"][0]["id"] == "c1"
    assert not held(store.folder, OPENAI) and not held(store.folder, GITHUB)


def test_what_tools_return_and_are_called_with_is_redacted(store: Store) -> None:
    def fetch(header: str) -> dict[str, object]:
        """Fetch a record."""
        return {"token": GITHUB, "filler": "x" * 50_000, "header": header}

    def table() -> MediaBytes:
        """Fetch a table."""
        return MediaBytes(f"name,key\nAda,{AWS}\n".encode(), "text/csv")

    with Session.open(store, session_id="s", tools=[fetch, table]) as session:
        session.journal.redact = Redactor()
        session.call_tool(ToolCall("c1", "fetch", {"header": OPENAI}))
        session.call_tool(ToolCall("c2", "table", {}))
    assert not any(held(store.folder, secret) for secret in (GITHUB, OPENAI, AWS))
    results = [store.log.text(event) for event in store.log.iterate(kind=Kind.TOOL_RESULT)]
    assert "[redacted GitHub Token" in results[0] and "[redacted OpenAI key" in results[0]


def test_an_import_is_redacted_when_asked_and_repeats_are_still_known(
    store: Store, tmp_path: Path
) -> None:
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
        (1, "AWS Access Key"),
        (3, "private key"),
        (3, "GitHub Token"),
    ]
    assert len({one.fingerprint for one in found}) == 3
    store.erase(
        seqs=[one.seq for one in found],
        words=[one.value for one in found],
        reason="secret",
        copies=True,
    )
    assert list(scan(store.log)) == [] and verify(store.log).ok
    assert not any(held(store.folder, secret) for secret in (AWS, GITHUB, "MIIEowIBAAKCAQEA"))


HEX = "0123456789abcdef" * 4
MIXED = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7" * 4
SAMPLES = {
    "AWS Access Key": [AWS, f"aws_secret_access_key = '{MIXED[:40]}'"],
    "Artifactory Credentials": [f"token AKC{MIXED[:40]} ", f'"AP5{MIXED[:40]}"'],
    "Azure Storage Account access key": [f"AccountKey={MIXED[:86]}=="],
    "Basic Auth Credentials": ["postgres://app:hunter2@db.internal:5432/booths"],
    "Cloudant Credentials": [f"cloudant_password: '{HEX}'", f"https://ada:{HEX}@ada.cloudant.com"],
    "Discord Bot Token": [f"M{MIXED[:23]}.{MIXED[:6]}.{MIXED[:27]}"],
    "GitHub Token": [GITHUB],
    "GitLab Token": [
        f"glpat-{MIXED[:20]}",
        f"GR1348941{MIXED[:20]}",
        f"glcbt-1f_{MIXED[:20]}",
        f"gloas-{MIXED[:64]}",
    ],
    "IBM COS HMAC Credentials": [f"cos_hmac_secret_access_key={HEX[:48]}"],
    "IBM Cloud IAM Key": [f"ibm_cloud_api_key: {MIXED[:44]}"],
    "JSON Web Token": [JWT],
    "Mailchimp Access Key": [f"{HEX[:32]}-us12"],
    "NPM tokens": [
        f"//registry.npmjs.org/:_authToken=npm_{MIXED[:36]}",
        f"//r.org/:_authToken={HEX[:36]}",
    ],
    "OpenAI Token": [OPENAI.replace("_x-y", "a" * 20)],
    "PyPI Token": [f"pypi-AgEIcHlwaS5vcmc{MIXED[:80]}"],
    "SendGrid API Key": [f"SG.{MIXED[:22]}.{MIXED[:43]}"],
    "Slack Token": [
        "xoxb-1234567890-0987654321-abcDEF",
        "https://hooks.slack.com/services/T01/B02/abcDEF123",
    ],
    "SoftLayer Credentials": [
        f"softlayer_api_key = {HEX}",
        f"https://api.softlayer.com/soap/v3/{HEX}",
    ],
    "Square OAuth Secret": [f"sq0csp-{MIXED[:43]}"],
    "Stripe Access Key": [f"sk_live_{MIXED[:24]}"],
    "Telegram Bot Token": [f"123456789:{MIXED[:35]}"],
    "Twilio API Key": [f"AC{HEX[:32]}", f"SK{HEX[:32]}"],
}


def test_every_kind_of_token_that_detect_secrets_knows_is_found() -> None:
    util = pytest.importorskip("detect_secrets.core.plugins.util")
    from detect_secrets.plugins.base import RegexBasedDetector

    guesses = {"IPPublicDetector", "KeywordDetector", "PrivateKeyDetector"}
    known = {
        kind: detector()
        for kind, detector in util.get_mapping_from_secret_type_to_class().items()
        if issubclass(detector, RegexBasedDetector) and detector.__name__ not in guesses
    }
    assert known.keys() == SAMPLES.keys()
    for kind, samples in SAMPLES.items():
        for sample in samples:
            assert any(pattern.search(sample) for pattern in known[kind].denylist), sample
            assert find_secrets(f"it is {sample} now"), sample


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("git clone https://ada:hunter2@git.example.org/x", "password in a URL", "hunter2"),
        (f"https://{MIXED[:24]}@git.example.org", "token in a URL", MIXED[:24]),
        ("GET /v1?page=2&access_token=abc123def456&x=1", "token in a URL", "abc123def456"),
        ("https://x.org/#id_token=abc123def456", "token in a URL", "abc123def456"),
        ("HOST=db\nDB_PASSWORD=hunter2\nPORT=1", ".env line", "hunter2"),
        (r'{"text": "HOST=db\nAPP_SECRET=blue-barrier\nPORT=1"}', ".env line", "blue-barrier"),
        ('export MAPS_API_KEY="abcd1234efgh"', ".env line", "abcd1234efgh"),
        ("SMTP_PASS='it1s'", ".env line", "it1s"),
        (r'{"text": "a\nAKIAIOSFODNN7EXAMPLE"}', "AWS Access Key", AWS),
        (
            "curl -H 'Authorization: Bearer abc123def456ghi789jkl'",
            "bearer token",
            "abc123def456ghi789jkl",
        ),
        (f"HF={'hf_' + 'aB3' * 12}", "Hugging Face token", "hf_" + "aB3" * 12),
    ],
)
def test_only_the_secret_itself_is_replaced(text: str, kind: str, value: str) -> None:
    (found,) = find_secrets(text)
    assert (found.kind, text[found.start : found.end]) == (kind, value)
    redactor = Redactor()
    redacted = redactor.text(text)
    assert redacted == text.replace(value, redactor.marker(kind, value))
    assert redactor.text(redacted) == redacted


def test_a_long_text_that_nearly_holds_many_secrets_takes_no_longer_than_its_length_allows() -> (
    None
):
    for start in ("eyJ-", "sk-", "A_", "aws ", "://a:", "key key ", "?key=", "Bearer ", "SECRET="):
        text = start * (100_000 // len(start))
        began = time.process_time()
        find_secrets(f"{text} {AWS}")
        assert time.process_time() - began < 10, (
            start
        )  # it takes half a second; quadratic work takes minutes
