"""The store on S3 below the services, on a real gateway and a real ledger: several nodes, and what becomes of those that
were asleep."""

import asyncio
import hashlib
from dataclasses import replace
from typing import Any

import pytest

from tests.support.bodies import InPieces
from tests.support.content import Content
from tests.support.nodes import Node, digests_of
from tests.support.statements import statements
from tests.support.stores import CHUNK, CONTENT
from tests.support.waiting import PATIENCE_SECONDS
from uploader.domain.upload import Upload
from uploader.errors import StorageFailed
from uploader.storage.base import Arrival, Busy, BytesBody, Gone
from uploader.storage.s3 import multipart
from uploader.storage.s3.blobs import S3Blob
from uploader.storage.s3.bucket import NoSuchMultipart, ObjectReader

OTHER = Content(CONTENT.size, seed=1, chunk_size=CHUNK)
SMALL = Content(1000, seed=2)


@pytest.fixture(autouse=True)
def nobody_else_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for somebody's Complete waits in vain."""
    monkeypatch.setattr(multipart, "_PAUSES_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(multipart, "_PATIENCE_SECONDS", 0.05)


# Chunks


async def test_a_duplicate_is_not_stored_and_needs_no_body(node: Node, another: Node) -> None:
    upload = await node.open()
    assert await node.put(upload, 1)
    calls = another.bucket.calls.copy()
    assert not await another.put(upload, 1)
    assert not (await another.store.hold_chunk(upload, 1, None)).written
    assert another.bucket.calls == calls, "the bucket is not asked for it"
    with pytest.raises(Gone):
        await another.store.hold_chunk(upload, 2, None)


@pytest.mark.parametrize("size", [1, CHUNK])
async def test_a_file_of_one_chunk_is_one_object(node: Node, another: Node, size: int) -> None:
    content = Content(size, chunk_size=CHUNK)
    upload = await node.open(content)
    assert await node.put(upload, 0, content)
    assert not await another.put(upload, 0, content)
    assert (node.bucket.multiparts(), len(node.bucket.left())) == ([], 1)
    assert await another.store.digest(upload) == digests_of(content)
    assert await another.bytes_of(upload) == content.data


# Tails


async def test_of_two_that_append_at_once_one_counts(node: Node, another: Node) -> None:
    upload = await node.open()
    assert await node.append(upload, CONTENT.data[:100], 0)
    async with node.bucket.asleep("put", node.append(upload, b"z" * 50, 100), after=True) as zombie:
        assert await another.append(upload, CONTENT.data[100:200], 100)
    with pytest.raises(Gone):
        await zombie
    for start, end in [(200, CHUNK), (CHUNK, CHUNK + 10)]:
        await another.send(upload, start, end)
    await node.put(upload, 1)
    for start, end in [(2 * CHUNK, 3 * CHUNK - 1), (3 * CHUNK - 1, 3 * CHUNK), (3 * CHUNK, CONTENT.size)]:
        await another.send(upload, start, end)
    assert node.bucket.keys("u/") == [], "every former tail is removed"
    assert await another.store.digest(upload) == digests_of(CONTENT)
    await node.store.discard(upload)
    assert node.bucket.left() == []


async def test_the_right_to_append_goes_to_who_asks_last(node: Node, another: Node) -> None:
    upload = await node.open()
    async with node.store.appending(upload) as first:
        watching = asyncio.create_task(first.watch())
        async with another.store.appending(upload) as second:
            await asyncio.wait_for(watching, PATIENCE_SECONDS)
            assert (first.is_claimed, second.is_claimed) == (True, False)


# Lengths that are told late


async def test_a_length_that_is_settled_by_two_at_once(node: Node, another: Node) -> None:
    upload = await node.open(Content(0), length_known=False)
    await node.append(upload, SMALL.data, 0)
    told = replace(upload, size=SMALL.size, length_known=True)
    async with node.bucket.asleep("upload_part", node.store.settle_length(told), after=True) as first:
        assert await another.store.settle_length(told)
        assert await another.store.digest(told) == digests_of(SMALL)
    with pytest.raises(Gone):
        await first
    assert await node.store.digest(told) == digests_of(SMALL)
    assert await node.bytes_of(told) == SMALL.data


# Digests


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 1, 3, 0)])
async def test_what_comes_is_hashed_from_memory_also_after_a_gap(node: Node, order: tuple[int, ...]) -> None:
    upload = await node.open()
    bodies = {number: InPieces(CONTENT.chunk(number)) for number in order}
    for number, body in bodies.items():
        await node.store.hold_chunk(upload, number, body)
        body.close()
    assert await node.store.digest(upload) == digests_of(CONTENT)
    assert await node.store.digested_bytes(upload) == 0, "it is over"
    assert (node.bucket.calls["get"], {body.keepers for body in bodies.values()}) == (0, {0})


async def test_what_one_node_has_read_no_other_reads(node: Node, another: Node) -> None:
    upload = await node.full()
    await node.store.forget_digests(upload)
    assert await another.store.digest(upload) == digests_of(CONTENT)
    assert another.bucket.read_bytes == CONTENT.size
    assert await node.store.digest(upload) == digests_of(CONTENT)
    assert node.bucket.read_bytes == 0, "they are saved"


async def test_digests_go_on_from_where_they_were_saved(
    node: Node, another: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multipart, "_SAVE_BYTES", CHUNK)
    upload = await node.open()
    await node.put_these(upload, *reversed(range(CONTENT.chunk_count)))
    await node.store.forget_digests(upload)
    answers, stream = iter([True, True]), node.bucket.stream

    def break_off(*arguments: Any) -> ObjectReader:
        if not next(answers, False):
            raise StorageFailed(inside="S3 is away")
        return stream(*arguments)

    monkeypatch.setattr(node.bucket, "stream", break_off)
    with pytest.raises(StorageFailed):
        await node.store.digest(upload)
    saved = (await node.entry(upload)).digest
    assert saved is not None
    assert (saved.position, saved.digests) == (2 * CHUNK, None)
    assert await another.store.digest(upload) == digests_of(CONTENT)
    assert another.bucket.calls["get"] == 2, "of four"


# Parts that are not what was acknowledged


async def test_a_single_object_that_is_cut_is_missing_again(node: Node) -> None:
    upload = await node.open(SMALL)
    await node.put(upload, 0, SMALL)
    (key,) = node.bucket.keys("u/")
    node.bucket.put(key, BytesBody(b"cut"))
    with pytest.raises(StorageFailed):
        await node.store.digest(upload)
    assert await node.store.find_bad_chunks(upload) == [0]
    await node.withdraw(upload, [0])
    assert await node.put(upload, 0, SMALL)
    assert await node.store.digest(upload) == digests_of(SMALL)


async def test_a_tail_that_is_lost_is_a_bad_chunk(node: Node, another: Node) -> None:
    upload = await node.open()
    await node.put(upload, 0)
    await node.append(upload, CONTENT.data[CHUNK : CHUNK + 100], CHUNK)
    assert await node.store.find_bad_chunks(upload) == []
    node.bucket.delete(node.bucket.keys("u/"))
    assert await another.store.find_bad_chunks(upload) == [1]
    with pytest.raises((Gone, StorageFailed)):
        await node.append(upload, b"more", CHUNK + 100)
    await another.withdraw(upload, [1])
    assert (await node.store.read_map(upload)).received_bytes == CHUNK
    assert await node.append(upload, CONTENT.data[CHUNK : 2 * CHUNK], CHUNK)


async def test_one_completes_and_the_other_waits(node: Node, another: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "_PATIENCE_SECONDS", PATIENCE_SECONDS)
    upload = await node.full()
    digests = await asyncio.gather(*(each.store.digest(upload) for each in (node, another, node, another)))
    assert set(digests) == {digests_of(CONTENT)}
    assert node.bucket.calls["complete"] + another.bucket.calls["complete"] == 1
    assert await another.bytes_of(upload) == CONTENT.data


async def die(node: Node, upload: Upload) -> None:
    """In the middle of its digest: nothing of Complete reaches S3."""

    def vanish(*_: object) -> None:
        raise SystemError

    with pytest.MonkeyPatch.context() as dying:
        dying.setattr(node.bucket, "complete", vanish)
        with pytest.raises(SystemError):
            await node.store.digest(upload)


async def test_who_waits_for_somebody_that_died_completes_by_himself(node: Node, another: Node) -> None:
    upload = await node.full()
    await die(node, upload)
    assert await another.store.digest(upload) == digests_of(CONTENT)
    assert await another.bytes_of(upload) == CONTENT.data


async def test_what_two_have_completed_is_not_believed_before_it_was_compared(
    node: Node, another: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JuiceFS, seldom: the object that another one finds completed is neither short nor whole."""
    upload = await node.full()
    hole = CONTENT.chunk(0) + bytes(CHUNK) + CONTENT.data[2 * CHUNK :]

    def damaged(key: str, multipart_id: str, _etags: list[str]) -> None:
        another.bucket.abort(key, multipart_id)
        another.bucket.put(key, BytesBody(hole))
        raise NoSuchMultipart

    await die(node, upload)
    monkeypatch.setattr(another.bucket, "complete", damaged)
    with pytest.raises(StorageFailed, match="reports an error"):
        await another.store.digest(upload)
    assert await another.store.find_bad_chunks(upload) == [0, 1, 2, 3]


async def test_a_place_whose_digests_were_withdrawn_is_none(node: Node, another: Node) -> None:
    """A node stands still between its digests and its transaction; to the others the object was lost meanwhile."""
    upload = await node.full()
    digests = await node.store.digest(upload)
    async with node.store.closing(upload) as closer:
        place = await closer.place_blob(digests.sha256)
        assert place == (await node.multipart(upload)).key
        node.bucket.delete([place])
        await another.withdraw(upload, [0, 1, 2, 3])
        with pytest.raises(Gone):
            await closer.place_blob(digests.sha256)
        await another.put_all(upload, OTHER)
        with pytest.raises(Gone):
            await closer.place_blob(digests.sha256)
        await another.store.digest(upload)
        with pytest.raises(Gone):
            await closer.place_blob(digests.sha256)
        assert await closer.place_blob(OTHER.sha256) == (await node.multipart(upload)).key != place


@pytest.mark.parametrize("completed", [False, True])
async def test_when_all_is_lost_all_is_missing(node: Node, another: Node, completed: bool) -> None:
    upload = await node.full()
    begun = await node.multipart(upload)
    if completed:
        await node.store.digest(upload)
        node.bucket.delete([begun.key])
        await node.store.forget_digests(upload)
    else:
        node.bucket.abort(begun.key, begun.id)
    with pytest.raises(StorageFailed):
        await another.store.digest(upload)
    assert await another.store.find_bad_chunks(upload) == [0, 1, 2, 3]
    with pytest.raises(StorageFailed):
        await another.withdraw(upload, [1])
    await another.withdraw(upload, [0, 1, 2, 3])
    assert (await node.store.read_map(upload)).received_bytes == 0
    await node.put_all(upload)
    assert await another.store.digest(upload) == digests_of(CONTENT)
    assert await node.multipart(upload) != begun


# Their endings


async def test_removing_leaves_nothing(node: Node, another: Node) -> None:
    opened, completed, single = await node.open(), await node.open(), await node.open(SMALL)
    tailed, empty = await node.open(), await node.open(Content(0))
    await node.put(opened, 1)
    await node.put_all(completed)
    await node.store.digest(completed)
    await node.put(single, 0, SMALL)
    await node.append(tailed, b"abc", 0)
    await node.store.digest(empty)
    for upload in (opened, completed, single, tailed, empty):
        assert await another.store.discard(upload)
        assert await node.ledger.entry(upload.id) is None
    assert node.bucket.left() == []


async def test_the_object_of_a_content_stays_and_the_rest_goes_in_one_transaction(node: Node, another: Node) -> None:
    for content in (CONTENT, SMALL):
        upload = await node.full(content)
        digests = await node.store.digest(upload)
        async with another.store.closing(upload) as closer:
            await another.name(digests.sha256, content.size, await closer.place_blob(digests.sha256))
            calls = another.bucket.calls.copy()
            with statements(another.database) as sql:
                assert await closer.unlink()
            assert (sql.count("COMMIT"), another.bucket.calls) == (1, calls)
            assert not await closer.unlink()
        assert await node.store.read_blob(content.sha256, [(0, content.size)]) == [content.data]


# Several at once


@pytest.mark.parametrize("after", [True, False])
async def test_two_nodes_with_other_bytes_for_one_chunk_never_make_a_wrong_content(
    node: Node, another: Node, after: bool
) -> None:
    upload = await node.open()
    await node.put_these(upload, 0, 2, 3)
    async with node.bucket.asleep("upload_part", node.put(upload, 1, OTHER), after=after) as zombie:
        assert await another.put(upload, 1)
    assert not await zombie, "the row of the other one came first"
    if after:  # the bytes of the other one came last, too
        assert await node.store.digest(upload) == digests_of(CONTENT)
        return
    with pytest.raises(StorageFailed):
        await node.store.digest(upload)
    assert await another.store.find_bad_chunks(upload) == [1]
    assert node.bucket.keys("u/") == [], "nothing was made of it"
    await another.withdraw(upload, [1])
    found = await node.store.read_map(upload)
    assert (bytes(found.present), found.received_bytes) == (b"\1\0\1\1", CONTENT.size - CHUNK)
    with pytest.raises(Busy):
        await node.store.digest(upload)
    assert await another.put(upload, 1)
    assert await node.store.find_bad_chunks(upload) == []
    for each in (node, another):
        assert await each.store.digest(upload) == digests_of(CONTENT)
    assert await node.bytes_of(upload) == CONTENT.data


async def test_many_that_race_for_every_chunk_never_make_a_wrong_content(node: Node, another: Node) -> None:
    for seed in range(5):
        upload = await node.open()
        sent = [
            each.put(upload, number, content)
            for number in range(CONTENT.chunk_count)
            for each, content in ((node, CONTENT), (another, OTHER))
        ]
        await asyncio.gather(*sent[seed:], *sent[:seed])
        entry = await node.entry(upload)
        parts = [
            next(c.chunk(n) for c in (CONTENT, OTHER) if hashlib.md5(c.chunk(n)).hexdigest() == entry.parts[n].etag)
            for n in range(CONTENT.chunk_count)
        ]
        try:
            digests = await another.store.digest(upload)
        except StorageFailed:
            assert await node.store.find_bad_chunks(upload)
            continue
        whole = b"".join(parts)
        assert digests.sha256 == hashlib.sha256(whole).hexdigest(), "what was acknowledged"
        assert await node.bytes_of(upload) == whole


async def test_a_chunk_that_comes_while_the_upload_is_frozen_is_refused(node: Node, another: Node) -> None:
    """A node stands still between its part and its row."""
    upload = await node.open()
    await node.put_these(upload, 0, 2, 3)
    async with node.bucket.asleep("upload_part", node.put(upload, 1), after=True) as zombie:
        assert await another.ledger.freeze(upload.id) is not None
    with pytest.raises(Gone):
        await zombie
    with pytest.raises(Busy):
        await another.store.digest(upload)
    assert await node.put(upload, 1), "it was let go of"
    assert await another.store.digest(upload) == digests_of(CONTENT)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("content", [CONTENT, SMALL])
async def test_a_chunk_that_comes_when_the_upload_is_removed_is_gone(
    node: Node, another: Node, content: Content, after: bool
) -> None:
    upload = await node.open(content)
    async with node.bucket.asleep(
        "put" if content is SMALL else "upload_part", node.put(upload, 0, content), after=after
    ) as zombie:
        assert await another.store.discard(upload)
    with pytest.raises(Gone):
        await zombie
    assert node.bucket.left() == []


async def test_removing_goes_on_where_another_one_stands_still(node: Node, another: Node) -> None:
    upload = await node.open()
    await node.put(upload, 0)
    async with node.bucket.asleep("abort", node.store.discard(upload), after=False) as zombie:
        with pytest.raises(Busy):  # a merge that comes late, of what it takes for complete
            await another.store.digest(upload)
        assert await another.store.discard(upload)
    assert not await zombie
    assert node.bucket.left() == []


async def test_a_digest_meets_a_removal(node: Node, another: Node) -> None:
    upload = await node.full()
    async with node.bucket.asleep("complete", node.store.digest(upload), after=False) as zombie:
        assert await another.store.discard(upload)
    with pytest.raises((Gone, StorageFailed)):
        await zombie
    with pytest.raises(Gone):
        await node.store.find_bad_chunks(upload)
    assert node.bucket.left() == []


async def test_what_was_withdrawn_does_not_come_back_by_a_zombie(node: Node, another: Node) -> None:
    upload = await node.full()
    async with node.bucket.asleep("complete", node.store.digest(upload), after=False) as zombie:
        await another.withdraw(upload, [2])
        assert await another.put(upload, 2, OTHER)
    # What it completes are not the parts that it has read.
    with pytest.raises((Busy, StorageFailed)):
        await zombie
    expected = CONTENT.data[: 2 * CHUNK] + OTHER.chunk(2) + CONTENT.chunk(3)
    digests = await another.store.digest(upload)
    assert digests.sha256 == hashlib.sha256(expected).hexdigest()
    assert await node.bytes_of(upload) == expected


async def test_what_a_zombie_completes_is_compared_with_the_rows(node: Node, another: Node) -> None:
    """It has the bytes of before a withdrawal, which came once more just now: those of the rows are others."""
    upload = await node.full()
    begun = await node.multipart(upload)
    async with node.bucket.asleep("complete", node.store.digest(upload), after=False) as zombie:
        await another.withdraw(upload, [0, 1, 2, 3])
        await another.put_all(upload, OTHER)
        for number in range(CONTENT.chunk_count):
            another.bucket.upload_part(begun.key, begun.id, number, BytesBody(CONTENT.chunk(number)))
    await zombie
    async with node.store.closing(upload) as closer:
        with pytest.raises(Gone):
            await closer.place_blob(CONTENT.sha256)
    with pytest.raises(StorageFailed):
        await another.store.digest(upload)
    assert await another.store.find_bad_chunks(upload) == [0, 1, 2, 3]
    await another.withdraw(upload, [0, 1, 2, 3])
    await another.put_all(upload, OTHER)
    assert await another.store.digest(upload) == digests_of(OTHER)
    assert await another.bytes_of(upload) == OTHER.data


async def test_a_chunk_that_a_zombie_has_completed_is_there(node: Node, another: Node) -> None:
    upload = await node.full()
    async with node.bucket.asleep("complete", node.store.digest(upload), after=False) as zombie:
        await another.withdraw(upload, [1, 2])
    await zombie
    with pytest.raises(Gone):
        await another.put(upload, 1, OTHER)
    assert await another.put(upload, 1)
    assert await another.put(upload, 2)
    assert await another.store.digest(upload) == digests_of(CONTENT)
    assert await node.bytes_of(upload) == CONTENT.data


# Contents that come whole


async def test_contents_that_come_whole_are_objects_of_their_own(node: Node) -> None:
    arrivals = [Arrival(InPieces(data), None, None) for data in (SMALL.data, CONTENT.data, SMALL.data, b"")]
    await node.store.store_arrivals([*arrivals, Arrival(InPieces(b"x"), "0" * 32, None)])
    assert len(node.bucket.keys("w/")) == 3


async def test_a_reader_goes_on_where_the_content_is_now(node: Node, another: Node) -> None:
    blob = await node.store.open_blob(await node.arrive(CONTENT), CONTENT.size)
    begin = await blob.read(CHUNK, 0)
    (key,) = node.bucket.keys("w/")
    node.bucket.put("w/moved", BytesBody(CONTENT.data))
    await another.name(CONTENT.sha256, CONTENT.size, "w/moved")
    node.bucket.delete([key])
    far = await blob.read(1000, 2 * CHUNK)  # another place: it asks S3 anew
    assert (begin, far) == (CONTENT.chunk(0), CONTENT.data[2 * CHUNK : 2 * CHUNK + 1000])
    await blob.close()


async def test_a_signature_that_is_damaged_is_made_anew_and_it_goes_with_its_content(node: Node, another: Node) -> None:
    sha256 = await node.arrive(CONTENT)
    signature = await node.store.read_signature(sha256, CONTENT.size)
    (kept,) = node.bucket.keys("s/")
    node.bucket.put(kept, BytesBody(b"damaged"))
    assert await another.store.read_signature(sha256, CONTENT.size) == signature
    assert await another.store.remove(await node.put_away(sha256))
    assert node.bucket.left() == []


async def test_what_a_purge_has_deleted_does_not_come_back(node: Node) -> None:
    """It has not committed yet, or died."""
    away = await node.put_away(await node.arrive(CONTENT))
    node.bucket.delete([away.place])
    with pytest.raises(Gone):
        await node.store.restore_blob(away)


async def test_what_is_purged_while_it_is_read_ends_in_words(node: Node) -> None:
    blob = await node.store.open_blob(await node.arrive(CONTENT), CONTENT.size)
    (key,) = node.bucket.keys("w/")
    node.bucket.delete([key])
    with pytest.raises(StorageFailed) as failed:
        await blob.read(1000, 0)
    assert failed.value.reason == f"object {key} was removed while it was read"
    await blob.close()


async def test_a_reader_that_is_cancelled_leaves_no_stream(node: Node) -> None:
    blob = await node.store.open_blob(await node.arrive(CONTENT), CONTENT.size)
    with node.bucket.held("get", after=True) as hold:
        reading = asyncio.create_task(blob.read(1000, 0))
        await hold.is_there()
        reading.cancel()
        closing = asyncio.create_task(blob.close())
        await asyncio.sleep(0.05)
        assert not closing.done(), "what is being opened can't be closed yet"
        hold.let_go()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await closing
    assert isinstance(blob, S3Blob)
    assert blob._stream is None
