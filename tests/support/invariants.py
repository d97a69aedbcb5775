"""The invariants of the accounts, computed from their definitions: 1 to 3 in the database, 4 and 5 in Redis."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from sqlalchemy import func, select, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.support.held import held
from uploader.database import models, queries
from uploader.database.engine import Database
from uploader.domain.upload import chunk_count, chunk_length, from_bitmap

OPEN_STATES = ("open", "merging")


@dataclass(frozen=True)
class Account:
    """What a user's row says, without the quota."""

    finished: int = 0
    unfinished: int = 0
    reserved: int = 0


async def checked_accounts(database: Database, *, lowered: bool = False) -> dict[str, Account]:
    """Check invariants 1 to 3 in one snapshot and return the accounts. `lowered`: a quota was lowered below what is used."""
    return await database.read(lambda connection: _checked_accounts(connection, lowered), snapshot=True)


async def _check_names(connection: AsyncConnection) -> None:
    """A name is of one file, and of none above another name; a folder has a row if and only if it is empty."""
    names: dict[str, set[str]] = defaultdict(set)
    for table in (models.file.c, models.folder.c):
        for user_id, name in await connection.execute(select(table.user_id, table.name)):
            assert name not in names[user_id], f"two files of {user_id!r} have the name {name!r}"
            names[user_id].add(name)
    for user_id, of_user in names.items():
        for name in of_user:
            segments = name.rstrip("/").split("/")
            for depth in range(1, len(segments)):
                above = "/".join(segments[:depth])
                assert above not in of_user, f"{above!r} of {user_id!r} is a file and a folder"
                assert f"{above}/" not in of_user, f"{above!r} of {user_id!r} is not empty"
            assert not name.endswith("/") or name[:-1] not in of_user, f"{name!r} of {user_id!r} is a file, too"


async def _checked_accounts(connection: AsyncConnection, lowered: bool) -> dict[str, Account]:
    uploads, blobs = models.upload.c, models.blob.c
    both = [select(table.c.user_id, table.c.size, table.c.sha256) for table in (models.file, models.held_file)]
    files = union_all(*both).subquery().c
    sums = select(uploads.user_id, func.sum(uploads.flushed_bytes), func.sum(uploads.size), func.count())
    found = await connection.execute(sums.where(uploads.state == "OPEN").group_by(uploads.user_id))
    open_sums = {user_id: tuple(map(int, figures)) for user_id, *figures in found}
    finished = select(files.user_id, func.sum(files.size), func.count()).group_by(files.user_id)
    file_sums = {user_id: tuple(map(int, figures)) for user_id, *figures in await connection.execute(finished)}

    alone: Counter[str] = Counter()
    for table in (models.folder, models.trashed_file):
        counts = select(table.c.user_id, func.count()).group_by(table.c.user_id)
        alone.update({user_id: int(count) for user_id, count in await connection.execute(counts)})
    await _check_names(connection)

    accounts = {}
    for row in (await connection.execute(select(models.user_info))).mappings():
        user_id = row["user_id"]
        account = Account(row["use_space_finished"], row["use_space_unfinished"], row["reserved"])
        bytes_made, made = file_sums.pop(user_id, (0, 0))
        unfinished, reserved, opened = open_sums.pop(user_id, (0, 0, 0))
        expected = Account(bytes_made, unfinished, reserved)
        assert account == expected, f"invariant 1: {user_id!r} has {account}, its rows make {expected}"
        others = alone.pop(user_id, 0)
        assert row["files"] == made + opened + others, (
            f"invariant 1: {user_id!r} has {row['files']} files, not {made} + {opened} + {others}"
        )
        assert 0 <= account.unfinished <= account.reserved, f"invariant 2: {user_id!r} has {account}"
        assert account.finished >= 0
        if not lowered:
            assert account.finished + account.reserved <= row["total_space"], f"invariant 2: {user_id!r} has {account}"
        accounts[user_id] = account
    assert not open_sums, f"uploads without a user: {open_sums}"
    assert not file_sums, f"files without a user: {file_sums}"
    assert not alone, f"empty folders or deleted files without a user: {alone}"
    promised = sum(account.reserved - account.unfinished for account in accounts.values())
    assert await queries.promised_bytes(connection) == promised, "what uploads may still write is something else"

    counted = select(files.sha256, func.count()).group_by(files.sha256)
    refs_expected = {row[0]: int(row[1]) for row in await connection.execute(counted)}
    refs = {row[0]: row[1] for row in await connection.execute(select(blobs.sha256, blobs.refs))}
    assert {sha256: count for sha256, count in refs.items() if count} == refs_expected, "invariant 3"

    flags = select(uploads.id).where((uploads.state == "OPEN") != (func.coalesce(uploads.open_flag, 0) == 1))
    assert not list(await connection.execute(flags)), "open_flag is 1 while OPEN and NULL after"
    return accounts


@dataclass(frozen=True)
class Shape:
    """What has to be known of an upload to tell its bytes from its bits."""

    size: int
    chunk_size: int


# All keys at one moment: name, seconds to live, and content.
_SNAPSHOT = """
local snapshot = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local kind, content = redis.call('TYPE', key).ok, nil
  if kind == 'hash' then content = redis.call('HGETALL', key)
  elseif kind == 'zset' then content = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  else content = redis.call('GET', key) end
  snapshot[#snapshot + 1] = {key, redis.call('TTL', key), content}
end
return snapshot
"""


async def check_pending(redis: Redis, shapes: Mapping[str, Shape]) -> None:
    """Check invariants 4 and 5 in one snapshot, for every upload that Redis knows, and that no bucket, entry of an index
    or task of a closed upload is left over."""
    snapshot = {key.decode(): (ttl, content) for key, ttl, content in await redis.eval(_SNAPSHOT, 0)}
    tasks = _tasks_by_upload(snapshot)
    for key, (ttl, content) in snapshot.items():
        if not key.startswith("up:"):
            continue
        upload_id = key.rsplit(":", 1)[1]
        facts = held({name.encode(): value for name, value in _pairs(content)})
        waiting = tasks.pop(upload_id, [])
        if facts.state not in OPEN_STATES:
            assert not waiting, f"{upload_id} is {facts.state} and still has a task"
            assert ttl > 0, f"the tombstone of {upload_id} stays for ever"
            continue
        assert ttl == -1, f"{upload_id} is open and goes away by itself"
        assert upload_id in shapes, f"{upload_id} is not open, and Redis has {facts}"
        _, bits = snapshot.get(key.replace("up:", "chunks:", 1), (-1, b""))
        in_tail = 0
        if facts.tail is not None:
            first_gap = from_bitmap(bits, len(bits) * 8 + 1).find(0)
            assert facts.tail.number == first_gap, f"invariant 4: {upload_id} has {facts.tail} somewhere else"
            in_tail = facts.tail.length
        assert facts.received == _bytes_of(bits, shapes[upload_id]) + in_tail, f"invariant 4: {upload_id} has {facts}"
        assert facts.chunks == sum(byte.bit_count() for byte in bits)
        settled = facts.chunks == facts.chunk_count and b"part" not in content
        assert facts.state == ("merging" if settled else "open")
        if facts.received != facts.flushed or settled:
            assert len(waiting) == 1, f"invariant 5: {upload_id} with {facts} waits in {waiting}"
        if facts.at_ms is None or facts.due_ms is None:
            assert not waiting, f"{upload_id} with {facts} waits in {waiting}"
            continue
        assert waiting == [("merge" if settled else "flush", facts.at_ms)]
        assert facts.at_ms <= facts.due_ms, f"invariant 8: {upload_id} with {facts} is found too late"
    assert not tasks, f"tasks of nothing: {tasks}"


def _tasks_by_upload(snapshot: Mapping[str, tuple[int, Any]]) -> dict[str, list[tuple[str, int]]]:
    """For each upload the queues and times at which it waits; every bucket is in its index and the reverse."""
    tasks: dict[str, list[tuple[str, int]]] = {}
    buckets, indexed = set(), set()
    for key, (_, content) in snapshot.items():
        if key.startswith("due:"):
            _, tag, queue, minute = key.rsplit(":", 3)
            buckets.add((tag, queue, int(minute)))
            for upload_id, at_ms in _pairs(content):
                assert int(at_ms) // 60_000 == int(minute), f"{upload_id} waits at {at_ms!r} in bucket {minute}"
                tasks.setdefault(upload_id, []).append((queue, int(at_ms)))
        elif key.startswith("minutes:"):
            _, tag, queue = key.rsplit(":", 2)
            for minute, score in _pairs(content):
                assert int(minute) == int(score)
                indexed.add((tag, queue, int(minute)))
    assert indexed == buckets, "invariant 5: the index names exactly the buckets that are not empty"
    return tasks


def _pairs(flat: list[bytes]) -> list[tuple[str, bytes]]:
    return [(name.decode(), value) for name, value in zip(flat[::2], flat[1::2], strict=True)]


def _bytes_of(bits: bytes, shape: Shape) -> int:
    present = [number for number, there in enumerate(from_bitmap(bits, len(bits) * 8)) if there]
    count = chunk_count(shape.size, shape.chunk_size)
    assert all(number < count for number in present), f"bits beyond the last chunk: {present}"
    return sum(chunk_length(number, shape.size, shape.chunk_size) for number in present)
