"""The reconciler: no false alarm while the server works, every planted drift found, mended, and nothing else touched."""

import asyncio
import json
import logging
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, update
from sqlalchemy.sql.dml import UpdateBase

from tests.conftest import MakeStack
from tests.support.background import (
    account_of,
    flush_due,
    open_with_chunks,
    reconciler_of,
    settle_without_merge,
    still_waits,
    upload_of,
)
from tests.support.bodies import InPieces
from tests.support.content import KIB, Content
from tests.support.held import held_of
from tests.support.invariants import Account
from tests.support.layout import blob_path
from tests.support.process import Server, client_of_owner, ended, run_cli
from tests.support.rows import file_row, upload_row
from tests.support.stack import Stack, go_on
from uploader.accounting.keys import upload_keys
from uploader.accounting.pending import AuditedUpload
from uploader.database import models, queries, recount, transactions
from uploader.database.engine import Connection, Database
from uploader.domain.upload import IfExists, Upload, to_bitmap
from uploader.service import reconcile
from uploader.service.flush import FlushedBatch
from uploader.service.reconcile import Drift, Findings, Kind, drifts_of_upload
from uploader.storage.base import PresentChunks

CHUNK = 64 * KIB
# Finished, so that there are a file and a blob.
DONE = Content(2 * CHUNK + 7, seed=1, name="done.bin")
# Open, with chunks that are accounted.
OPEN = Content(9 * CHUNK - 100, seed=2, name="open.bin")
# Complete, and nobody merges it.
WHOLE = Content(3 * CHUNK - 5, seed=3, name="whole.bin")
STORED = 3 * CHUNK
REAL_PAUSE_SECONDS = reconcile._PAUSE_SECONDS
# What of an upload's hash is a number, by field and place.
FIELDS = {
    **{name: ("figures", n) for n, name in enumerate(("received", "flushed", "chunks", "chunk_count", "generation"))},
    **{name: ("timer", n) for n, name in enumerate(("at", "due", "pending_since", "lease_until"))},
}


@dataclass
class Scene:
    """A stack at rest that has some of everything."""

    stack: Stack
    open: Upload
    whole: Upload

    @property
    def up(self) -> str:
        return upload_keys(0, self.open.id).up

    @property
    def chunks(self) -> str:
        return upload_keys(0, self.open.id).chunks

    async def sql(self, statement: UpdateBase) -> None:
        async with self.stack.services.database.engine.begin() as connection:
            await connection.execute(statement)

    async def redis(self, *command: Any) -> Any:
        return await self.stack.services.redis.execute_command(*command)

    async def reconcile(self, *, repair: bool = False) -> Findings:
        return await self.stack.services.reconciling.reconcile(repair=repair)

    async def bucket(self, key: str | None = None) -> tuple[str, str]:
        """The bucket in which an upload's task waits, and its minute."""
        at_ms = (await held_of(self.stack.services.redis, key or self.up)).at_ms
        assert at_ms is not None
        minute = str(at_ms // 60_000)
        return f"due:{{s00}}:flush:{minute}", minute

    async def garble(self, part: str, value: bytes) -> None:
        """Another byte than was written, in a field of the upload's hash or in one of the figures of a field."""
        field, number = FIELDS.get(part, (part, None))
        if number is not None:
            figures = (await self.redis("HGET", self.up, field)).split(b" ")
            value = b" ".join([*figures[:number], value, *figures[number + 1 :]])
        await self.redis("HSET", self.up, field, value)

    async def add(self, part: str, more: int) -> None:
        field, number = FIELDS[part]
        figure = int((await self.redis("HGET", self.up, field)).split(b" ")[number])
        await self.garble(part, b"%d" % (figure + more))

    async def store(self, body: bytes, number: int) -> None:
        """On the disk alone."""
        (await self.stack.services.storage.hold_chunk(self.open, number, InPieces(body))).release()

    async def pend(self) -> tuple[str, str]:
        """One chunk more, which is not flushed yet; as `bucket`."""
        assert (await self.stack.put(OPEN, 3)).status_code == 200
        return await self.bucket()

    async def begin_anew(self) -> None:
        """The open upload is another one, of which all is accounted."""
        assert (await self.stack.client.delete(f"/files/{OPEN.md5}")).status_code == 204
        self.open = await _opened(self.stack)


@asynccontextmanager
async def a_scene(make_stack: MakeStack) -> AsyncIterator[Scene]:
    async with make_stack(quiet_interval_seconds=30.0) as stack:
        assert (await stack.upload(DONE)).status_code == 201
        opened = await _opened(stack)
        whole = await settle_without_merge(stack, WHOLE)
        go_on(stack)
        yield Scene(stack, opened, whole)


async def _opened(stack: Stack) -> Upload:
    opened = await open_with_chunks(stack, OPEN, 0, 1, 2)
    await _flush(stack, opened)
    return opened


@pytest.fixture(autouse=True)
def nothing_moves_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "_PAUSE_SECONDS", 0.001)


@pytest.fixture
async def scene(make_stack: MakeStack) -> AsyncIterator[Scene]:
    async with a_scene(make_stack) as made:
        yield made


@pytest.fixture
async def scene_on(make_stack_on: MakeStack) -> AsyncIterator[Scene]:
    """On each kind of database: where rows are counted, locked or mended."""
    async with a_scene(make_stack_on) as made:
        yield made


async def _flush(stack: Stack, upload: Upload) -> None:
    """Flush what is pending of an upload now, though it is not due yet."""
    keys = upload_keys(0, upload.id)
    for key in [keys.flush_minutes, *[k async for k in stack.services.redis.scan_iter(match=f"{keys.flush_due}:*")]]:
        await stack.services.redis.delete(key)
    await stack.services.redis.hset(keys.up, "timer", "60000 60000 60000 0")
    await stack.services.redis.zadd(f"{keys.flush_due}:1", {upload.id: 60_000})
    await stack.services.redis.zadd(keys.flush_minutes, {"1": 1})
    assert await flush_due(stack) == FlushedBatch(1, more=False)


async def _state_of_everything(stack: Stack) -> tuple[Any, Any, Any]:
    """All rows but their times, all of Redis but times and costs, all names on disk: to see what a repair touched."""
    rows: dict[str, Any] = {}
    async with stack.services.database.engine.connect() as connection:
        for table in (models.user_info, models.upload, models.blob, models.file):
            found = (await connection.execute(table.select().order_by(*table.primary_key))).mappings()
            rows[table.name] = [{name: value for name, value in row.items() if name != "updated_at"} for row in found]
    redis: Any = stack.services.redis
    keys: dict[bytes, Any] = {}
    for key in sorted([key async for key in redis.scan_iter() if not key.startswith(b"cost:")]):
        kind = (await redis.type(key)).decode()
        if kind == "hash":
            facts = await redis.hgetall(key)
            keys[key] = {name: facts[name] for name in facts if name != b"timer"}
        elif kind == "zset":
            # The minute may be another one after a mend.
            name = key.decode().rsplit(":", 1)[0] if key.startswith(b"due:") else key.decode()
            members = await redis.zrange(key, 0, -1)
            keys[name.encode()] = sorted(members) if name.startswith("due:") else len(members)
        else:
            keys[key] = await redis.get(key)
    await stack.services.storage.drain()  # the digests have files, too
    return rows, keys, stack.bytes_on_disk()


# What is right


async def test_a_system_at_rest_has_no_drift_and_looking_changes_nothing(scene: Scene) -> None:
    before = await _state_of_everything(scene.stack)
    for repair in (False, True):
        found = await scene.reconcile(repair=repair)
        assert (found.drifts, found.notes, found.repaired) == ([], [], 0)
        assert found.checked == {"uploads": 2, "tasks": 1, "users": 1, "links": 0, "blobs": 1}
    assert await _state_of_everything(scene.stack) == before

    await scene.stack.services.accounts.set_total_space("alice", 100)
    found = await scene.reconcile()
    held = DONE.size + OPEN.size + WHOLE.size
    assert (found.drifts, found.notes) == ([], [Drift(Kind.OVER_TOTAL_SPACE, "alice", 100, held)])
    # What Redis does not know is right if all is accounted.
    await scene.redis("DEL", scene.up, scene.chunks)
    assert (await scene.reconcile()).drifts == []


async def test_there_is_no_false_alarm_while_traffic_runs(
    make_stack_on: MakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "_PAUSE_SECONDS", REAL_PAUSE_SECONDS)
    quick = {"quiet_interval_seconds": 0.02, "max_delay_seconds": 0.05, "claim_lease_seconds": 1.0}
    async with make_stack_on(jobs=True, **quick) as stack:
        ended_uploads = 0
        stopping = asyncio.Event()

        async def traffic(worker: int) -> None:
            nonlocal ended_uploads
            seed = worker
            while not stopping.is_set():
                seed += 10
                content = Content(4 * CHUNK + seed, seed=seed, name=f"{seed}.bin")
                await stack.open(content)
                await asyncio.gather(*(stack.put(content, number) for number in (3, 1, 0)))
                if seed % 4 == 0:
                    assert (await stack.client.delete(f"/files/{content.md5}")).status_code == 204
                    continue
                for number in (2, 4):
                    answer = await stack.put(content, number)
                if seed % 3 == 0:
                    file_id = answer.json()["file"]["id"]
                    assert (await stack.client.delete(f"/me/files/{file_id}")).status_code == 204
                ended_uploads += 1

        workers = [asyncio.create_task(traffic(number)) for number in range(3)]
        looks: list[Findings] = []
        try:
            while len(looks) < 4 or ended_uploads < 8:
                looks.append(await stack.services.reconciling.reconcile())
                if len(looks) == 2:
                    await stack.services.redis.flushall()
        finally:
            stopping.set()
            await asyncio.gather(*workers)
        assert [look.drifts for look in looks] == [[] for _ in looks]
        assert any(look.checked["uploads"] for look in looks)
        await account_of(stack)


async def test_a_chunk_between_disk_and_redis_is_motion_and_no_drift(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "_LOOKS", 1)  # the lock alone has to do
    services = scene.stack.services
    held = await services.storage.hold_chunk(scene.open, 5, InPieces(OPEN.chunk(5)))
    looking = asyncio.create_task(scene.reconcile())
    assert await still_waits(looking), "for the writer"
    await services.pending.record_chunk(scene.open.id, 5, CHUNK)
    held.release()
    assert (await looking).drifts == []


async def test_an_upload_that_is_about_to_be_rebuilt_is_motion_and_no_drift(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "_PAUSE_SECONDS", 0.5)
    await _redis_lost(scene)
    looking = asyncio.create_task(scene.reconcile())
    await asyncio.sleep(0.1)
    await scene.stack.services.closers.hydrate(scene.open)
    assert (await looking).drifts == []


# What is planted, found and mended: (plant, the drifts to be found)

Facts = list[tuple[Kind, str, Any, Any]]
Plant = Callable[[Scene], Awaitable[Facts]]


def _rows(*drifts: tuple[Kind, str, Any, Any], flushed: int | None = None, **values: int) -> Plant:
    """Figures of the user or the blob; or what is flushed of the upload, of which its user's row says the same."""

    async def plant(scene: Scene) -> Facts:
        for name, value in values.items():
            table = models.blob if name == "refs" else models.user_info
            await scene.sql(update(table).values({name: value}))
        if flushed is not None:
            row = update(models.upload).where(models.upload.c.id == scene.open.id)
            await scene.sql(row.values(flushed_bytes=flushed))
        return [(kind, subject or scene.open.id, expected, actual) for kind, subject, expected, actual in drifts]

    return plant


def _garbled(part: str, value: bytes, *drifts: tuple[Kind, Any, Any], pends: bool = False) -> Plant:
    """As if a byte of the append-only file had flipped."""

    async def plant(scene: Scene) -> Facts:
        if pends:
            await scene.pend()
        await scene.garble(part, value)
        return [(kind, scene.open.id, expected, actual) for kind, expected, actual in drifts]

    return plant


ROWS = {
    "finished": _rows((Kind.USE_SPACE_FINISHED, "alice", DONE.size, DONE.size + 11), use_space_finished=DONE.size + 11),
    "unfinished": _rows((Kind.USE_SPACE_UNFINISHED, "alice", STORED, STORED - 1), use_space_unfinished=STORED - 1),
    "reserved": _rows((Kind.RESERVED, "alice", OPEN.size + WHOLE.size, 0), reserved=0),
    "files": _rows((Kind.FILES, "alice", 3, 5), files=5),
    "refs": _rows((Kind.REFS, DONE.sha256, 1, 3), refs=3),
    # The row and its user agree, and the disk has less, or more.
    "flushed too much": _rows(
        (Kind.FLUSHED_BYTES, "", STORED, STORED + 5), flushed=STORED + 5, use_space_unfinished=STORED + 5
    ),
    "flushed too little": _rows((Kind.FLUSHED_BYTES, "", STORED, CHUNK), flushed=CHUNK, use_space_unfinished=CHUNK),
}


async def _received(scene: Scene) -> Facts:
    await scene.pend()
    await scene.add("received", 9)
    return [(Kind.RECEIVED, scene.open.id, 4 * CHUNK, 4 * CHUNK + 9)]


async def _bit_without_chunk(scene: Scene) -> Facts:
    """A restored disk under a Redis that knows more."""
    await scene.redis("SETBIT", scene.chunks, 7, 1)
    await scene.add("received", CHUNK)
    await scene.add("chunks", 1)
    await scene.add("flushed", CHUNK)
    return [(Kind.CHUNKS, scene.open.id, STORED, STORED + CHUNK), (Kind.FLUSHED, scene.open.id, STORED, STORED + CHUNK)]


async def _chunk_without_bit(scene: Scene) -> Facts:
    """A server that died between the map and Redis."""
    await scene.store(OPEN.chunk(4), 4)
    return [(Kind.CHUNKS, scene.open.id, STORED + CHUNK, STORED)]


async def _tail(scene: Scene) -> Facts:
    """A server that died between the map and Redis, in an append."""
    await scene.store(OPEN.chunk(3)[:70], 3)
    return [(Kind.TAIL, scene.open.id, STORED + 70, None)]


async def _tail_in_redis_alone(scene: Scene) -> Facts:
    """A restored disk under a Redis that knows more."""
    await _tail(scene)
    await scene.redis("HSET", scene.up, "tail", "3 90")
    await scene.add("received", 90)
    await scene.add("flushed", 90)
    on_disk, in_redis = STORED + 70, STORED + 90
    return [
        (Kind.FLUSHED_BYTES, scene.open.id, on_disk, STORED),
        (Kind.TAIL, scene.open.id, on_disk, in_redis),
        (Kind.FLUSHED, scene.open.id, on_disk, in_redis),
    ]


async def _redis_lost(scene: Scene) -> Facts:
    await _chunk_without_bit(scene)
    await scene.redis("DEL", scene.up, scene.chunks)
    return [(Kind.RECEIVED, scene.open.id, STORED + CHUNK, None)]


async def _task_missing(scene: Scene) -> Facts:
    bucket, minute = await scene.pend()
    await scene.redis("ZREM", bucket, scene.open.id)
    await scene.redis("ZREM", "minutes:{s00}:flush", minute)
    return [(Kind.TASK, scene.open.id, "flush", None)]


async def _merge_task_missing(scene: Scene) -> Facts:
    _, minute = await scene.bucket(upload_keys(0, scene.whole.id).up)
    await scene.redis("ZREM", f"due:{{s00}}:merge:{minute}", scene.whole.id)
    await scene.redis("ZREM", "minutes:{s00}:merge", minute)
    return [(Kind.TASK, scene.whole.id, "merge", None)]


async def _bucket_not_indexed(scene: Scene) -> Facts:
    _, minute = await scene.pend()
    await scene.redis("ZREM", "minutes:{s00}:flush", minute)
    return [(Kind.TASK, scene.open.id, "flush", None), (Kind.INDEX, f"flush/0/{minute}", "bucket", None)]


async def _index_without_bucket(scene: Scene) -> Facts:
    await scene.redis("ZADD", "minutes:{s00}:flush", 77, "77")
    return [(Kind.INDEX, "flush/0/77", None, "bucket")]


async def _stray(scene: Scene) -> Facts:
    """In a second bucket, and in the queue of the other kind."""
    await scene.pend()
    for queue in ("flush", "merge"):
        await scene.redis("ZADD", f"due:{{s00}}:{queue}:99", 99 * 60_000, scene.open.id)
        await scene.redis("ZADD", f"minutes:{{s00}}:{queue}", 99, "99")
    return [(Kind.STRAY_TASK, scene.open.id, None, f"{queue}/0/99") for queue in ("flush", "merge")]


async def _timer_that_is_none(scene: Scene) -> Facts:
    _, minute = await scene.pend()
    await scene.garble("due", b"17\x92")
    return [(Kind.TASK, scene.open.id, "flush", None), (Kind.STRAY_TASK, scene.open.id, None, f"flush/0/{minute}")]


async def _task_found_too_late(scene: Scene) -> Facts:
    """In the right minute, later than the upload's hash says that it is due."""
    bucket, minute = await scene.pend()
    await scene.garble("at", b"%d" % (int(minute) * 60_000))
    await scene.garble("due", b"%d" % (int(minute) * 60_000))
    await scene.redis("ZADD", bucket, int(minute) * 60_000 + 1, scene.open.id)
    return [(Kind.TASK, scene.open.id, "flush", None)]


async def _minute_that_is_no_number(scene: Scene) -> Facts:
    await scene.redis("ZADD", "minutes:{s00}:flush", 77, "7N")
    return [(Kind.INDEX, "flush/0/7N", None, "bucket")]


async def _bucket_of_no_minute(scene: Scene) -> Facts:
    bucket, minute = await scene.pend()
    await scene.redis("RENAME", bucket, f"{bucket[:-1]}N")
    wrong = f"flush/0/{minute[:-1]}N"
    return [
        (Kind.TASK, scene.open.id, "flush", None),
        (Kind.INDEX, f"flush/0/{minute}", None, "bucket"),
        (Kind.STRAY_TASK, scene.open.id, None, wrong),
        (Kind.INDEX, wrong, "bucket", None),
    ]


async def _bucket_indexed_for_another_minute(scene: Scene) -> Facts:
    _, minute = await scene.pend()
    await scene.redis("ZADD", "minutes:{s00}:flush", int(minute) * 2, minute)
    return [(Kind.TASK, scene.open.id, "flush", None), (Kind.INDEX, f"flush/0/{minute}", "bucket", None)]


async def _task_due_in_another_minute(scene: Scene) -> Facts:
    bucket, minute = await scene.pend()
    await scene.redis("ZADD", bucket, (int(minute) - 1) * 60_000, scene.open.id)
    return [(Kind.TASK, scene.open.id, "flush", None)]


async def _task_of_closed(scene: Scene) -> Facts:
    """A server that died between the commit and Redis."""
    content = Content(3 * CHUNK, seed=9)
    upload = await open_with_chunks(scene.stack, content, 0)
    hash_, bits = upload_keys(0, upload.id).up, upload_keys(0, upload.id).chunks
    dumped, map_of_chunks = await scene.redis("DUMP", hash_), await scene.redis("DUMP", bits)
    bucket, minute = await scene.bucket(hash_)
    assert (await scene.stack.client.delete(f"/files/{content.md5}")).status_code == 204
    await scene.redis("RESTORE", hash_, 0, dumped, "REPLACE")
    await scene.redis("RESTORE", bits, 0, map_of_chunks, "REPLACE")
    await scene.redis("ZADD", bucket, int(minute) * 60_000, upload.id)
    await scene.redis("ZADD", "minutes:{s00}:flush", minute, minute)
    return [(Kind.TASK, upload.id, None, "flush")]


_NO_NUMBER = ((Kind.RECEIVED, STORED, -1), (Kind.FLUSHED, STORED, -1))
PLANTS: dict[str, Plant] = {
    "a tail that is none": _garbled("tail", b"3 7\xb0", (Kind.RECEIVED, STORED, -1), (Kind.TASK, "flush", None)),
    "received that is no number": _garbled("received", b"19660N", *_NO_NUMBER),
    "flushed that is no number": _garbled("flushed", b"19\x826608", *_NO_NUMBER),
    "a state that is no word": _garbled("state", b"op\xe5n", (Kind.STATE, "open", "op\ufffdn")),
    **{
        plant.__name__.strip("_"): plant
        for plant in (
            *(_received, _bit_without_chunk, _chunk_without_bit, _tail, _tail_in_redis_alone, _redis_lost),
            *(_task_missing, _merge_task_missing, _bucket_not_indexed, _index_without_bucket, _stray, _task_of_closed),
            *(_minute_that_is_no_number, _bucket_of_no_minute, _bucket_indexed_for_another_minute),
            *(_task_due_in_another_minute, _timer_that_is_none, _task_found_too_late),
        )
    },
}


@pytest.mark.parametrize("plants", [ROWS, PLANTS], ids=["of rows", "of Redis and the disk"])
async def test_drifts_are_reported_then_mended(scene: Scene, plants: dict[str, Plant]) -> None:
    """One after the other."""
    for what, plant in plants.items():
        changed = what.startswith("flushed") if plants is ROWS else what != "index_without_bucket"
        await _reported_then_mended(scene, what, plant, all_is_as_before=not changed)
        if changed:
            await scene.begin_anew()


async def _reported_then_mended(scene: Scene, what: str, plant: Plant, *, all_is_as_before: bool) -> None:
    """And nothing else is touched."""
    clean = await _state_of_everything(scene.stack)
    expected = [Drift(*facts) for facts in await plant(scene)]
    planted = await _state_of_everything(scene.stack)

    assert (await scene.reconcile()).drifts == expected, what
    assert await _state_of_everything(scene.stack) == planted, f"{what}: to look must change nothing"

    found = await scene.reconcile(repair=True)
    assert (found.drifts, found.repaired) == (expected, len(expected)), what
    assert (await scene.reconcile()).drifts == [], what
    await account_of(scene.stack)
    rows, keys, disk = await _state_of_everything(scene.stack)
    if all_is_as_before:
        assert (rows, keys, disk) == clean, f"{what}: all is as it was before"
    # The other upload, the file and its blob are none of its business.
    whole = upload_keys(0, scene.whole.id)
    assert rows["file"] == clean[0]["file"]
    assert rows["blob"] == clean[0]["blob"]
    assert [row for row in rows["upload"] if row["id"] == scene.whole.id] == [
        row for row in clean[0]["upload"] if row["id"] == scene.whole.id
    ]
    assert {key: keys[key.encode()] for key in (whole.up, whole.chunks)} == {
        key: clean[1][key.encode()] for key in (whole.up, whole.chunks)
    }
    assert disk == planted[2]


@pytest.mark.places
@pytest.mark.parametrize("part", [*FIELDS, "figures", "timer", "state", "era"])
async def test_an_upload_that_redis_has_garbled_goes_on(scene: Scene, part: str) -> None:
    await scene.pend()
    await scene.garble(part, b"1\x82N")
    assert (await scene.stack.put(OPEN, 4)).status_code == 200
    answer = (await scene.stack.client.get("/uploads")).json()["uploads"]
    assert {upload["md5"]: upload["received_bytes"] for upload in answer}[OPEN.md5] == 5 * CHUNK
    held = await held_of(scene.stack.services.redis, scene.up)
    assert (held.received, held.flushed, held.chunks, held.generation) == (5 * CHUNK, STORED, 5, 0)
    assert held.due_ms is not None


@pytest.mark.places
@pytest.mark.parametrize("part", ["received", "flushed", "generation", "state", "timer", "lease_until"])
async def test_an_upload_that_redis_has_garbled_keeps_no_other_from_its_account(scene: Scene, part: str) -> None:
    other = Content(3 * CHUNK, seed=8)
    await open_with_chunks(scene.stack, other, 0)
    await scene.pend()
    await scene.garble(part, b"1\x82N")
    minutes = [int(minute) for minute in await scene.redis("ZRANGE", "minutes:{s00}:flush", 0, -1)]
    queue = scene.stack.services.pending.flush_queues[0]
    assert (await queue.measure()).tasks == 2
    claims = await queue.claim(now_ms=(max(minutes) + 1) * 60_000)
    assert len(claims) == 2
    is_open = await scene.stack.services.flushing._write(claims)
    await scene.stack.services.pending.ack_flush(0, [claim for claim in claims if is_open[claim.upload_id]])
    assert (await scene.stack.usage("alice"))["unfinished"] >= STORED + CHUNK
    assert (await upload_of(scene.stack, other)).flushed_bytes == CHUNK


async def test_a_figure_that_went_down_stays_down_when_a_late_flush_comes(scene: Scene) -> None:
    await ROWS["flushed too much"](scene)
    assert (await scene.reconcile(repair=True)).repaired == 1
    late = [transactions.uploads.Received(scene.open.id, 0, STORED + 5)]
    flushed = await scene.stack.services.database.transact(
        lambda connection: transactions.uploads.flush(connection, late, scene.stack.services.clock.now())
    )
    assert flushed.changed == 0
    assert (await account_of(scene.stack)).unfinished == STORED
    assert (await scene.reconcile()).drifts == []


async def test_a_recount_waits_for_a_change_that_is_not_committed(scene_on: Scene) -> None:
    recounting = scene_on.stack.services.recounting
    copy = file_row(size=DONE.size, md5=DONE.md5, sha256=DONE.sha256, name="copy.bin")
    await ROWS["refs"](scene_on)
    await ROWS["finished"](scene_on)
    async with scene_on.stack.services.database.engine.begin() as connection:
        await transactions.files.add_file(connection, copy, IfExists.KEEP, replaced_upload_id=None, max_files=99)
        repairing = asyncio.gather(
            recounting._repair(recount.CONTENTS, DONE.sha256), recounting._repair(recount.USERS, "alice")
        )
        assert await still_waits(asyncio.ensure_future(repairing))
    assert list(await repairing) == [True, True]
    assert await account_of(scene_on.stack) == Account(2 * DONE.size, STORED, OPEN.size + WHOLE.size)


async def test_a_snapshot_is_of_one_moment(scene_on: Scene) -> None:
    async def look(connection: Connection) -> bool:
        before = await queries.usage(connection, "alice")
        await scene_on.sql(update(models.user_info).values(reserved=1))
        return await queries.usage(connection, "alice") == before

    assert await scene_on.stack.services.database.read(look, snapshot=True)


async def test_users_are_mended_while_others_change_their_figures(scene_on: Scene) -> None:
    """The recount is exact although uploads open, end and are deleted meanwhile."""
    await scene_on.sql(update(models.user_info).values(use_space_finished=0, reserved=1 << 30, use_space_unfinished=0))

    async def work(seed: int) -> None:
        for number in range(4):
            content = Content(2 * CHUNK, seed=seed + number)
            await scene_on.stack.open(content)
            await scene_on.stack.put(content, 0)
            await scene_on.stack.client.delete(f"/files/{content.md5}")

    working = asyncio.gather(work(100), work(200))
    while not working.done():
        await scene_on.reconcile(repair=True)
    await working
    assert await account_of(scene_on.stack) == Account(DONE.size, STORED, OPEN.size + WHOLE.size)


# What cannot be mended


async def test_a_blob_without_its_bytes_and_an_open_upload_that_redis_calls_closed_stay_reported(scene: Scene) -> None:
    path = blob_path(scene.stack.data, DONE.sha256)
    await scene.stack.services.pending.forget(scene.open.id, "cancelled")
    for actual in (3, None):
        if actual is None:
            path.unlink()
        else:
            os.truncate(path, actual)
        found = await scene.reconcile(repair=True)
        assert set(found.drifts) == {
            Drift(Kind.BLOB_BYTES, DONE.sha256, DONE.size, actual),
            Drift(Kind.STATE, scene.open.id, "open", "cancelled"),
        }
        assert (len(found.drifts), found.repaired) == (2, 0)


async def test_an_upload_without_its_files_is_reported_and_begins_anew(scene: Scene) -> None:
    for name in ("map", "digest", "data"):
        (scene.stack.data / scene.open.place / name).unlink()
    drift = Drift(Kind.TEMP, scene.open.id, scene.open.place, None)
    assert (await scene.reconcile()).drifts == [drift]
    found = await scene.reconcile(repair=True)
    assert found.drifts == [drift]
    assert found.repaired == 1
    assert (await scene.reconcile()).drifts == []
    assert (await scene.stack.client.get(f"/files/{OPEN.md5}")).json()["upload"]["received_bytes"] == 0


async def test_files_without_their_blob_or_their_user_stay_reported(scene_on: Scene) -> None:
    await scene_on.sql(delete(models.blob))
    await scene_on.sql(delete(models.user_info))
    found = await scene_on.reconcile(repair=True)
    assert found.drifts == [
        Drift(Kind.USE_SPACE_FINISHED, "alice", DONE.size, None),
        Drift(Kind.USE_SPACE_UNFINISHED, "alice", STORED, None),
        Drift(Kind.RESERVED, "alice", OPEN.size + WHOLE.size, None),
        Drift(Kind.FILES, "alice", 3, None),
        Drift(Kind.REFS, DONE.sha256, 1, None),
    ]
    assert found.repaired == 0


async def test_accounted_bytes_above_the_reserved_ones_are_reported(scene: Scene) -> None:
    """The row has more flushed than its size, and the user's figures agree with it."""
    too_much = OPEN.size + WHOLE.size + 1
    await _rows(flushed=too_much, use_space_unfinished=too_much)(scene)
    found = await scene.reconcile(repair=True)
    assert found.drifts == [
        Drift(Kind.FLUSHED_BYTES, scene.open.id, STORED, too_much),
        Drift(Kind.OVER_RESERVED, "alice", OPEN.size + WHOLE.size, too_much),
    ]
    assert found.repaired == 2
    assert (await scene.reconcile()).drifts == []


# The job and the command


async def test_the_job_reports_drifts_as_warnings_counts_them_and_floods_no_log(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("uploader.jobs.maintenance._RECONCILE_EVERY", timedelta())
    job = reconciler_of(scene.stack)
    await ROWS["refs"](scene)
    await ROWS["reserved"](scene)

    async def said() -> list[dict[str, Any]]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "uploader.jobs.maintenance"):
            assert await job.run_once() == 60
        return [vars(record) for record in caplog.records]

    lines = await said()
    assert {line["message"] for line in lines} == {"drift"}
    assert [(line["subject"], line["kind"], line["expected"], line["actual"]) for line in lines] == [
        ("alice", "reserved", OPEN.size + WHOLE.size, 0),
        (DONE.sha256, "refs", 1, 3),
    ]
    assert await _gauge(scene) == 2
    monkeypatch.setattr("uploader.jobs.maintenance._MAX_LINES", 1)
    first, more = await said()
    assert (first["message"], more["message"], more["drifts"]) == ("drift", "more drifts", 2)
    scene.stack.services.storage.stop()  # it ends with its process
    assert (await said(), await _gauge(scene)) == ([], 2)
    go_on(scene.stack)
    await scene.reconcile(repair=True)
    assert (await said(), await _gauge(scene)) == ([], 0)
    monkeypatch.undo()
    assert job.as_job().first_delay_seconds == 3600, "not amid the work that an outage leaves"


async def test_the_command_tells_and_mends_while_the_server_runs(
    tmp_path: Path, stack_kind: str, stack_url: str, redis_url: str
) -> None:
    """With stores of its own where the kind is SQLite, else with those that it is pointed at."""
    data, embedded = tmp_path / "data", stack_kind == "sqlite"
    url = f"sqlite:///{data}/uploader.db" if embedded else stack_url
    settings = {"DATA": str(data), "FREE_SPACE_FLOOR": "0"}
    settings |= {} if embedded else {"DATABASE_URL": url, "REDIS_URL": redis_url}
    server = Server(tmp_path / "server.log", settings)
    with ended(server):
        clean = run_cli(settings, "reconcile")
        assert (clean.returncode, clean.stderr) == (0, "")
        assert clean.stdout.startswith("0 drifts, 0 repaired; checked ")

        database = Database(url)
        await database.transact(lambda connection: connection.execute(update(models.user_info).values(reserved=5)))
        await database.close()
        told = run_cli(settings, "reconcile")
        assert told.returncode == 1
        assert told.stdout.splitlines()[0] == "reserved of owner: expected 0, actual 5"

        mended = run_cli(settings, "reconcile", "--repair", "--json")
        assert mended.returncode == 1
        said = json.loads(mended.stdout)
        assert said["drifts"] == [{"kind": "reserved", "subject": "owner", "expected": 0, "actual": 5}]
        assert said["repaired"] == 1
        assert said["checked"] == {"uploads": 0, "tasks": 0, "users": 1, "links": 0, "blobs": 0}

        again = run_cli(settings, "reconcile", "--json")
        assert (again.returncode, json.loads(again.stdout)["drifts"]) == (0, [])

        with client_of_owner(server.url, data) as client:
            opened = client.post(f"/files/{'0' * 32}", json={"name": "a", "size": 1, "instant": False}).json()["upload"]
        for year in (data / "temp").iterdir():  # as after a restore without it
            shutil.rmtree(year)
        told = run_cli(settings, "reconcile")
        assert told.stdout.splitlines()[0].startswith(f"temp of {opened['id']}: ")
        assert "its chunks are lost, as after a restore" in told.stdout.splitlines()[0]
        assert "`uploader reset-unfinished --lost --yes`" in told.stdout.splitlines()[1]
        closed = run_cli(settings, "reset-unfinished", "--lost", "--yes")
        assert closed.stdout.splitlines()[0] == "uploads cancelled: 1"
        assert run_cli(settings, "reconcile").returncode == 0
        assert server.process.poll() is None


async def _gauge(scene: Scene) -> float:
    scene.stack.services.gauges._asked_at = float("-inf")
    (line,) = [line for line in (await scene.stack.metrics()).splitlines() if line.startswith("uploader_drifts ")]
    return float(line.split()[1])


def test_pending_bytes_may_be_accounted_up_to_what_is_on_disk() -> None:
    """A commit whose ack has not come is no drift, and nothing below the ack or above the disk is right."""
    row, present = upload_row(size=4 * CHUNK, chunk_size=CHUNK), bytearray([1, 1, 1, 0])
    stored = PresentChunks(present, None, 4 * CHUNK, CHUNK, written_at=0.0)
    snapshot = AuditedUpload("open", 3 * CHUNK, CHUNK, to_bitmap(present), "flush")
    wrong = []
    for accounted in range(5):
        accounts = replace(row, flushed_bytes=accounted * CHUNK)
        wrong += [(accounted, drift.kind, drift.expected) for drift in drifts_of_upload(accounts, stored, snapshot)]
    assert wrong == [(0, Kind.FLUSHED_BYTES, CHUNK), (4, Kind.FLUSHED_BYTES, 3 * CHUNK)]
