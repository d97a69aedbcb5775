"""The digests of uploads on S3 that come through several nodes: each goes on from where the others have come, and nothing is
read that one of them had in its memory."""

import asyncio
import hashlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from tests.support.background import becomes
from tests.support.bodies import InPieces
from tests.support.content import Content
from tests.support.local import waits
from tests.support.nodes import MakeNode, Node, digests_of
from tests.support.statements import statements
from tests.support.stores import CHUNK, CONTENT
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.database import models
from uploader.domain.ledger import PartNoted
from uploader.domain.upload import Upload
from uploader.errors import StorageFailed
from uploader.storage import hashes
from uploader.storage.base import Gone
from uploader.storage.hashes import PrefixHashes
from uploader.storage.s3 import digests
from uploader.storage.s3.digests import sealed

OTHER = Content(CONTENT.size, seed=1, chunk_size=CHUNK)


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody loses patience because others are slow."""
    for name in ("_WATCH_SECONDS", "_STALLED_SECONDS", "_LAST_SECONDS"):
        monkeypatch.setattr(digests, name, 3600)


@pytest.fixture
def only_with_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is saved by itself."""
    monkeypatch.setattr(digests, "_QUIET_SECONDS", 3600)


async def check_unread(by: Node, upload: Upload) -> None:
    """Its digests are right, and known without reading."""
    assert await by.store.digest(upload) == digests_of(CONTENT)
    assert by.bucket.read_bytes == 0


async def saved_bytes(node: Node, upload: Upload) -> int:
    saved = (await node.entry(upload)).digest
    return 0 if saved is None else saved.position


async def until_saved(node: Node, upload: Upload, position: int) -> None:
    await becomes(lambda: saved_bytes(node, upload), position)


async def until_hashed(node: Node, upload: Upload, position: int) -> None:
    """Of chunks that count."""
    await becomes(lambda: node.store.digested_bytes(upload), position)


async def put_hashed(node: Node, upload: Upload, number: int, content: Content = CONTENT) -> bool:
    """Put a chunk whose digests come as fast as S3 does."""
    async with node.bucket.asleep("upload_part", node.put(upload, number, content), after=True) as putting:
        await until_ahead(node, upload)
    return await putting


async def until_ahead(node: Node, upload: Upload) -> None:
    """Of a chunk whose row is still to come."""

    async def is_ahead() -> bool:
        known = node.store._prefixes.get(upload.id)
        return known is not None and known.ahead is not None

    await eventually(is_ahead)


# From node to node


@pytest.mark.usefixtures("only_with_rows")
async def test_what_the_rows_of_chunks_tell_is_enough(node: Node, another: Node) -> None:
    """Each step: the node, the chunk, and whether its digests come as fast as S3 does."""
    for first, then, saved in [
        ("n0! n1!", "a2 a3", 2),  # where a node dies, which has time for nothing, another goes on
        ("n0! a1! n2! a3!", "", 4),
        ("a1 a2 a3 n0!", "", 1),  # what waits in memory goes on from what others saved
        ("a1 a2 n0!", "a3", 1),
        ("n1 n3 a2 a0!", "", 4),  # each goes on as soon as others have come so far: no chunk comes to say so
    ]:
        upload, nodes = await node.open(), {"n": node, "a": another}
        for step in first.split():
            put = put_hashed if step.endswith("!") else Node.put
            assert await put(nodes[step[0]], upload, int(step[1]))
        if saved > 1:
            await until_saved(another, upload, min(saved * CHUNK, CONTENT.size))
        for step in then.split():
            await nodes[step[0]].put(upload, int(step[1]))
        await check_unread(another, upload)
        assert node.bucket.read_bytes == 0, first


@pytest.mark.usefixtures("only_with_rows")
async def test_what_a_row_tells_of_digests_costs_no_statement(node: Node) -> None:
    upload = await node.open()
    with statements(node.database) as sql:
        await put_hashed(node, upload, 0)
    written = [statement.split()[0] for statement in sql if not statement.startswith(("BEGIN", "PRAGMA"))]
    assert [word for word in written if word in ("INSERT", "UPDATE", "DELETE", "COMMIT")] == [
        "INSERT",
        "UPDATE",
        "COMMIT",
    ]
    assert await saved_bytes(node, upload) == CHUNK


@pytest.mark.usefixtures("only_with_rows")
async def test_no_chunk_waits_for_its_digests(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = await node.open()
    go_on, real = threading.Event(), PrefixHashes.update_by

    def update_by(*arguments: Any) -> None:
        assert go_on.wait(PATIENCE_SECONDS)
        real(*arguments)

    monkeypatch.setattr(PrefixHashes, "update_by", update_by)
    await node.put_these(upload, *range(3))
    assert await saved_bytes(node, upload) == 0
    go_on.set()
    await until_hashed(node, upload, 3 * CHUNK)
    await put_hashed(node, upload, 3)
    assert await saved_bytes(node, upload) == CONTENT.size


@pytest.mark.parametrize("ends", [False, True])
async def test_what_no_row_takes_along_is_saved_by_itself_or_where_the_node_ends(
    node: Node, another: Node, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_QUIET_SECONDS", 3600 if ends else 0)
    upload = await node.open()
    await node.put_these(upload, 1, 0)  # its row can't know of the one that waits
    if ends:
        await node.store.drain()
        assert await saved_bytes(another, upload) == 2 * CHUNK
    await until_saved(another, upload, 2 * CHUNK)
    await another.put_these(upload, 2, 3)
    await check_unread(another, upload)


async def test_only_what_nobody_had_in_order_is_read(make_node: MakeNode, node: Node, another: Node) -> None:
    upload = await node.open()
    await put_hashed(node, upload, 0)
    await another.put(upload, 2)
    another.store._forget_prefix(upload.id)  # it has died
    await make_node().put(upload, 1)
    await node.put(upload, 3)
    last = make_node()
    assert await last.store.digest(upload) == digests_of(CONTENT)
    known = await saved_bytes(node, upload)
    assert known == CONTENT.size
    assert last.bucket.read_bytes in (CONTENT.size - CHUNK, CONTENT.size - 2 * CHUNK), (
        "the one of chunk 1 went on, perhaps"
    )


@pytest.mark.usefixtures("only_with_rows")
async def test_where_others_wait_it_is_saved_though_chunks_are_on_their_way(node: Node, another: Node) -> None:
    upload = await node.open()
    await node.put(upload, 1)
    async with node.bucket.asleep("upload_part", node.put(upload, 3), after=False) as putting:
        await put_hashed(another, upload, 0)
        await until_saved(another, upload, 2 * CHUNK)
    assert await putting


@pytest.mark.usefixtures("only_with_rows")
async def test_what_a_node_has_just_saved_is_not_of_others(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = await node.open()
    add_part, is_added, may_go_on = node.ledger.add_part, asyncio.Event(), asyncio.Event()

    async def add_slowly(*arguments: Any) -> PartNoted:
        noted = await add_part(*arguments)
        is_added.set()
        await may_go_on.wait()
        return noted

    with monkeypatch.context() as slow:
        slow.setattr(node.ledger, "add_part", add_slowly)
        putting = asyncio.create_task(put_hashed(node, upload, 0))
        await is_added.wait()
    await node.put(upload, 1)
    assert not node.store._prefixes[upload.id].is_shared
    may_go_on.set()
    assert await putting


async def test_of_others_that_come_nearer_a_sender_waits(
    node: Node, another: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_SHARED_SECONDS", 3600)
    monkeypatch.setattr(hashes, "_PATIENCE_SECONDS", 3600)
    upload = await node.open()
    await node.put(upload, 1)
    monkeypatch.setattr(digests, "_FAR_BYTES", 0)
    await node.store.keep_pace(upload, 1)  # nobody knows whether the one before it is on its way
    await put_hashed(another, upload, 0)
    await until_hashed(node, upload, 2 * CHUNK)
    monkeypatch.setattr(digests, "_NEAR_BYTES", 0)  # for those who are alone
    await node.put(upload, 3)
    waiting = asyncio.create_task(node.store.keep_pace(upload, 3))
    assert await waits(waiting)
    await another.put(upload, 2)
    await waiting
    assert await node.store.digested_bytes(upload) == CONTENT.size


async def test_what_others_have_hashed_is_durable_before_it_is_gone_on_from(
    node: Node, another: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that crashes could forget their chunk otherwise, and another one come in its place."""
    upload = await node.open()
    known, synced = [0], list[int]()
    sync = node.database.sync

    async def note() -> None:
        synced.append(known[0])
        await sync()

    monkeypatch.setattr(node.database, "sync", note)
    await node.put(upload, 2)
    assert not synced
    await put_hashed(another, upload, 0)
    known[0] = await saved_bytes(another, upload)
    await node.put(upload, 1)
    await until_hashed(node, upload, 3 * CHUNK)
    assert set(synced) == {CHUNK}
    del synced[:]
    await until_saved(node, upload, 3 * CHUNK)
    await node.put(upload, 3)
    assert not synced  # it is its own


async def test_it_is_durable_for_who_looks_for_it_as_well(
    node: Node, another: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await node.open()
    await node.put(upload, 1)
    sync, reached = node.database.sync, list[int]()

    async def note() -> None:
        reached.append(await node.store.digested_bytes(upload))
        await sync()

    monkeypatch.setattr(node.database, "sync", note)
    await put_hashed(another, upload, 0)
    await until_hashed(node, upload, 2 * CHUNK)
    assert reached == [0]


async def test_streams_go_on_at_another_node(node: Node, another: Node) -> None:
    """A tail is of no node: who makes a chunk of it has all of its bytes."""
    upload = await node.open()
    assert await node.append(upload, CONTENT.data[: CHUNK // 2], 0)
    assert await another.append(upload, CONTENT.data[CHUNK // 2 : CHUNK], CHUNK // 2)
    await until_saved(node, upload, CHUNK)
    for number in (1, 2):
        assert await node.append(upload, CONTENT.chunk(number), number * CHUNK)
    await until_saved(node, upload, 3 * CHUNK)
    before = another.bucket.read_bytes
    assert await another.append(upload, CONTENT.chunk(3), 3 * CHUNK)
    assert await another.store.digest(upload) == digests_of(CONTENT)
    assert another.bucket.read_bytes == before


async def test_a_length_that_is_told_late_costs_the_tail(node: Node, another: Node) -> None:
    upload = await node.open(Content(0), length_known=False, md5=None)
    for number in range(CONTENT.chunk_count):
        assert await node.append(upload, CONTENT.chunk(number), number * CHUNK)
    await until_saved(node, upload, 3 * CHUNK)
    told = replace(upload, size=CONTENT.size, length_known=True)
    assert await another.store.settle_length(told)
    before = another.bucket.read_bytes
    assert await another.store.digest(told) == digests_of(CONTENT)
    assert another.bucket.read_bytes - before == CONTENT.size - 3 * CHUNK


# What is no longer, or never was


@pytest.mark.usefixtures("only_with_rows")
async def test_a_body_that_does_not_count_is_not_hashed(node: Node, another: Node) -> None:
    upload = await node.open()
    body = InPieces(OTHER.chunk(0))
    async with node.bucket.asleep("upload_part", node.store.hold_chunk(upload, 0, body), after=True) as losing:
        await until_ahead(node, upload)
        assert await put_hashed(another, upload, 0)
    assert not (await losing).written
    body.close()
    assert body.keepers == 0
    await node.put_these(upload, 1, 2, 3)
    await check_unread(node, upload)


async def test_what_s3_does_not_take_is_given_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = await node.open()
    body, may_fail = InPieces(OTHER.chunk(0)), threading.Event()

    def fail(*_: object) -> None:
        assert may_fail.wait(PATIENCE_SECONDS)
        raise StorageFailed(inside="S3 is away")

    with monkeypatch.context() as failing, pytest.raises(StorageFailed):
        failing.setattr(node.bucket, "upload_part", fail)
        putting = asyncio.create_task(node.store.hold_chunk(upload, 0, body))
        await until_ahead(node, upload)
        may_fail.set()
        await putting
    body.close()
    assert body.keepers == 0
    await node.put_all(upload)
    await check_unread(node, upload)


async def test_bodies_that_wait_in_vain_are_given_up_for_others(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "MAX_KEPT_BYTES", 2 * CHUNK)
    monkeypatch.setattr(digests, "_STALLED_SECONDS", 0)
    upload = await node.open()
    bodies = {number: InPieces(CONTENT.chunk(number)) for number in (1, 2, 3, 0)}
    for number, body in bodies.items():
        assert (await node.store.hold_chunk(upload, number, body)).written
        body.close()
    assert await node.store.digest(upload) == digests_of(CONTENT)
    assert {body.keepers for body in bodies.values()} == {0}


async def test_of_what_comes_far_too_early_little_is_kept(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have the memory of what comes next."""
    monkeypatch.setattr(digests, "_NEAR_BYTES", CHUNK)
    upload = await node.open()
    bodies = {number: InPieces(CONTENT.chunk(number)) for number in (1, 3, 2, 0)}
    for number, body in bodies.items():
        assert (await node.store.hold_chunk(upload, number, body)).written
        body.close()
        if number == 2:
            assert {other: bodies[other].keepers for other in (1, 2, 3)} == {1: 1, 2: 0, 3: 0}
    assert await node.store.digest(upload) == digests_of(CONTENT)
    assert node.bucket.read_bytes == CONTENT.size - 2 * CHUNK


@pytest.mark.usefixtures("only_with_rows")
async def test_nothing_of_what_was_withdrawn_is_saved_later(node: Node, another: Node) -> None:
    upload = await node.open()
    await node.put_these(upload, 1, 0, content=OTHER)
    await until_hashed(node, upload, 2 * CHUNK)
    await another.withdraw(upload, [0, 1])
    assert (await another.entry(upload)).digest is None
    assert await put_hashed(another, upload, 0)
    await node.store.drain()
    assert await saved_bytes(another, upload) == CHUNK
    await node.put_these(upload, 1, 2, 3)
    assert await another.store.digest(upload) == digests_of(CONTENT)


async def test_after_a_withdrawal_all_of_them_begin_anew(node: Node, another: Node) -> None:
    upload = await node.open()
    await node.put_these(upload, 0, 2, content=OTHER)
    await until_saved(node, upload, CHUNK)
    await another.withdraw(upload, [0, 2])
    await node.put_all(upload)
    await check_unread(node, upload)


async def test_what_somebody_else_has_completed_is_read_all_the_same(node: Node, another: Node) -> None:
    """He may have slept since before a withdrawal: then it is not what came."""
    upload = await node.full()
    await until_saved(node, upload, CONTENT.size)
    async with node.bucket.asleep("complete", node.store.digest(upload), after=True) as completing:
        assert await another.store.digest(upload) == digests_of(CONTENT)
    assert another.bucket.read_bytes == CONTENT.size
    assert await another.store.find_bad_chunks(upload) == []
    assert await completing == digests_of(CONTENT)


# Damage


async def damage(node: Node, upload: Upload, **columns: object) -> None:
    async with node.database.engine.begin() as connection:
        await connection.execute(update(models.multipart).where(models.multipart.c.upload_id == upload.id), columns)


def wrong(upload: Upload, content: Content, length: int) -> bytes:
    """A state that looks right."""
    hashes = PrefixHashes()
    hashes.update(memoryview(content.data)[:length])
    return sealed(upload.id, 0, hashes).state


DAMAGE: dict[str, Callable[[Upload], dict[str, object]]] = {
    "another position": lambda _: {"digest_position": 2 * CHUNK},
    "a position behind the end": lambda _: {"digest_position": 1 << 40},
    "no state": lambda _: {"digest_state": None},
    "a state that is none": lambda _: {"digest_state": bytes(216)},
    "the state of other bytes": lambda upload: {"digest_state": wrong(upload, OTHER, 3 * CHUNK)},
    "digests": lambda _: {"digest_position": CONTENT.size, "digest_md5": OTHER.md5, "digest_sha256": OTHER.sha256},
}


async def test_a_damaged_row_refuses_no_upload(make_node: MakeNode, node: Node, another: Node) -> None:
    last = make_node()
    for kind, damaged in DAMAGE.items():
        upload = await node.open()
        await node.put_these(upload, *range(3))
        await until_saved(node, upload, 3 * CHUNK)
        await damage(node, upload, **damaged(upload))
        await another.put(upload, 3)
        assert await another.store.digest(upload) == digests_of(CONTENT), kind
        assert await last.bytes_of(upload) == CONTENT.data, kind


async def test_digests_that_are_not_those_of_the_content_are_computed_once_more(node: Node, another: Node) -> None:
    upload = await node.full()
    await node.store.digest(upload)
    hashes = PrefixHashes()
    hashes.update(memoryview(OTHER.data))
    saved = sealed(upload.id, 1, hashes, digests_of(OTHER))
    await damage(node, upload, digest_state=saved.state, digest_md5=OTHER.md5, digest_sha256=OTHER.sha256)
    assert await another.store.digest(upload) == digests_of(CONTENT)
    assert hashlib.md5(await another.bytes_of(upload)).hexdigest() == CONTENT.md5


async def test_what_was_claimed_wrongly_stays_wrong(node: Node, another: Node) -> None:
    upload = await node.open(md5=OTHER.md5)
    await node.put_all(upload)
    await until_saved(node, upload, CONTENT.size)
    assert await another.store.digest(upload) == digests_of(CONTENT)
    with pytest.raises(Gone):
        async with another.store.closing(upload) as closer:
            await closer.place_blob(OTHER.sha256)
