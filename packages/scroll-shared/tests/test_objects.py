"""Payloads in an object store, on moto's S3: durable there, cached here, verified at every read."""

import hashlib
import os
from pathlib import Path

import obstore
import pytest
from obstore.store import from_url

from scroll_context.errors import BadInput, PayloadDamaged, PayloadMissing, StoreUnreachable
from scroll_shared.objects import Bucket, ObjectPlace, SharedPayloads, key_of
from servers import ObjectServer, free_port

UID = "6f1e0000-0000-4000-8000-000000000001"


@pytest.fixture
def payloads(bucket: str, tmp_path: Path) -> SharedPayloads:
    return SharedPayloads(ObjectPlace(Bucket(bucket, UID), tmp_path / "payloads"))


def other_host(payloads: SharedPayloads, tmp_path: Path, name: str = "other") -> SharedPayloads:
    return SharedPayloads(ObjectPlace(Bucket(payloads.place.bucket.url, UID), tmp_path / name))


def test_another_host_reads_what_was_put(payloads: SharedPayloads, tmp_path: Path) -> None:
    bodies = [b"", b"small", os.urandom(3 << 20), "Ünïcode \x00".encode()]
    stored = [payloads.put(body, "application/octet-stream") for body in bodies]
    reader = other_host(payloads, tmp_path)
    assert [reader.read(one.digest) for one in stored] == bodies
    assert sorted(reader.digests()) == sorted(one.digest for one in stored)
    assert reader.stored_sizes() == {one.digest: one.size for one in stored}
    assert reader.bytes_used() == sum(map(len, bodies))
    assert [reader.read(one.digest) for one in stored] == bodies, "from the cache"


def test_a_body_larger_than_one_request_goes_in_parts(
    payloads: SharedPayloads, tmp_path: Path
) -> None:
    body = os.urandom(1 << 20) * 17
    digest = payloads.put(
        (body[at : at + 999_999] for at in range(0, len(body), 999_999)), ""
    ).digest
    assert digest == hashlib.sha256(body).hexdigest()
    assert other_host(payloads, tmp_path).read(digest) == body


def test_the_key_names_store_and_digest(payloads: SharedPayloads, bucket: str) -> None:
    digest = payloads.put_text("here").digest
    assert (
        bytes(obstore.get(from_url(bucket), f"stores/{UID}/payloads/{digest[:2]}/{digest}").bytes())
        == b"here"
    )


def test_a_damaged_cache_is_replaced_and_a_damaged_object_refused(
    payloads: SharedPayloads, bucket: str, tmp_path: Path
) -> None:
    digest = payloads.put_text("exact").digest
    payloads.place.cache.path(digest).write_bytes(b"wrong")
    assert payloads.read(digest) == b"exact"
    assert payloads.place.cache.path(digest).read_bytes() == b"exact"
    obstore.put(from_url(bucket), f"stores/{UID}/{key_of(digest)}", b"wrong")
    reader = other_host(payloads, tmp_path)
    with pytest.raises(PayloadDamaged, match=digest[:12]):
        reader.read(digest)
    assert not list(reader.place.cache.folder.glob("??/*")), "nothing wrong is kept"


def test_a_large_damaged_cache_file_is_never_half_right(payloads: SharedPayloads) -> None:
    body = os.urandom(3 << 20)
    digest = payloads.put(body, "").digest
    with payloads.place.cache.path(digest).open("r+b") as file:
        file.seek(10)
        file.write(b"damage")
    with pytest.raises(PayloadDamaged):
        payloads.read(digest)
    assert payloads.read(digest) == body, "the second read fetched it anew"


def test_a_body_that_was_only_written_here_is_uploaded_by_the_next_process(
    payloads: SharedPayloads, tmp_path: Path
) -> None:
    body = b"killed between the file and the upload"
    digest = hashlib.sha256(body).hexdigest()
    payloads.place.cache.path(digest).parent.mkdir(parents=True)
    payloads.place.cache.path(digest).write_bytes(body)
    payloads.put(body, "")
    assert other_host(payloads, tmp_path).read(digest) == body


def test_the_cache_stays_within_its_bound_and_keeps_what_is_used(payloads: SharedPayloads) -> None:
    payloads.place.cache_bytes = 10_000
    bodies = [bytes([n]) * 1_000 for n in range(30)]
    digests = [payloads.put(bodies[0], "").digest]
    for body in bodies[1:]:
        digests.append(payloads.put(body, "").digest)
        payloads.read(digests[0])
    kept = {file.name for file in payloads.place.cache.folder.glob("??/*")}
    assert len(kept) <= 10
    assert digests[0] in kept and digests[-1] in kept
    assert [payloads.read(digest) for digest in digests] == bodies, "the rest is fetched"


def test_what_is_not_there_is_missing_by_name(payloads: SharedPayloads) -> None:
    with pytest.raises(PayloadMissing, match="is missing"):
        payloads.read("ab" * 32)
    with pytest.raises(PayloadMissing, match="64 hex digits"):
        payloads.read("../../etc/passwd")


def test_a_body_that_is_put_again_has_a_name_of_its_own(
    payloads: SharedPayloads, tmp_path: Path
) -> None:
    digest = payloads.put_text("again").digest
    assert payloads.generation([digest]) == 0
    payloads.put_again([digest], 7)
    payloads.place.bucket.delete([key_of(digest)])  # the deletion arrives late
    assert payloads.generation([digest]) == 7
    assert payloads.generation([digest, "ab" * 32]) == 0, "the oldest counts"
    assert other_host(payloads, tmp_path).read(digest) == b"again"


def test_a_damaged_body_is_not_put_again(payloads: SharedPayloads) -> None:
    digest = payloads.put_text("once good").digest
    payloads.place.bucket.delete([key_of(digest)])
    payloads.place.cache.path(digest).write_bytes(b"damaged")
    with pytest.raises(PayloadMissing):
        payloads.put_again([digest], 1)
    assert list(payloads.digests()) == []


def test_an_object_store_that_is_away_is_named_and_the_cache_goes_on(
    payloads: SharedPayloads,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    object_server: ObjectServer,
) -> None:
    digest = payloads.put_text("cached").digest
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    cut_off = SharedPayloads(
        ObjectPlace(Bucket(payloads.place.bucket.url, UID), payloads.place.cache.folder)
    )
    assert cut_off.read(digest) == b"cached"
    with pytest.raises(StoreUnreachable, match="try again"):
        cut_off.put_text("new")
    assert object_server.environment["AWS_SECRET_ACCESS_KEY"] not in str(cut_off.place.bucket.url)


def test_other_kinds_of_address_are_refused() -> None:
    with pytest.raises(BadInput, match="cannot be used"):
        Bucket("s3://", UID)
    for url in ("file:///tmp/x", "memory:///", "bucket"):
        with pytest.raises(BadInput, match="s3://"):
            Bucket(url, UID)
