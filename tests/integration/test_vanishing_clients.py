"""Clients that vanish at any moment leave nothing behind: no task, descriptor, lock, memory, or reply of a store."""

import asyncio
import gc
import logging
import random
import socket
import struct
from collections import Counter
from collections.abc import Set
from pathlib import Path

import pytest
from redis.asyncio import Redis
from sqlalchemy.pool import QueuePool

from tests.conftest import MakeStack
from tests.support.content import KIB, MIB, Content
from tests.support.sockets import Server, serving_stack
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.accounting import redis as accounting
from uploader.http.bodies.body import BodyBudget

CLIENTS = 1000
AT_ONCE = 50
OPEN = Content(4 * MIB, seed=1, chunk_size=512 * KIB)
FILE = Content(8 * MIB, seed=2, chunk_size=8 * MIB)
RESET_AT_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time


async def test_a_thousand_vanishing_clients_leave_nothing_behind(
    make_stack: MakeStack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounting, "_CONNECT_SECONDS", 60.0)  # in the end 200 want a connection at once
    async with serving_stack(make_stack, max_concurrent_chunks=CLIENTS, body_budget_bytes=16 * MIB) as server:
        stack = server.stack
        await stack.open(OPEN)
        file_id = (await stack.upload(FILE)).json()["file"]["id"]
        requests = _requests(stack, file_id)
        await _vanish(server, requests[0], 0)  # fills pools and loads modules
        await eventually(lambda: _is_quiet(server, {}))
        await stack.services.storage.drain()
        tasks, descriptors = _tasks(), _descriptors()

        for begin in range(0, CLIENTS, AT_ONCE):
            numbers = range(begin, begin + AT_ONCE)
            await asyncio.gather(*(_vanish(server, requests[number % len(requests)], number) for number in numbers))

        await eventually(lambda: _is_quiet(server, tasks))
        # Stores keep connections, up to their bound; what belongs to clients and to files has gone.
        await eventually(lambda: _are_closed(stack, descriptors.keys()))
        budgets = [known for known in gc.get_objects() if type(known) is BodyBudget]
        assert [budget._charged for budget in budgets] == [{}] * len(budgets)
        await _every_store_answers_what_it_is_asked(stack)
        await _no_chunk_is_locked(stack)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def _requests(stack: Stack, file_id: str) -> list[bytes]:
    """Whole requests; each client vanishes somewhere in one, or in its answer."""

    def request(method: str, path: str, body: bytes = b"") -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n"
        return f"{head}Authorization: {stack.client.headers['authorization']}\r\n\r\n".encode() + body

    chunks = [request("PUT", f"/files/{OPEN.md5}/chunks/{number}", OPEN.chunk(number)) for number in range(7)]
    return [
        *chunks,
        request("GET", f"/me/files/{file_id}/content"),
        request("GET", f"/me/files/{file_id}/content"),
        request("GET", f"/files/{OPEN.md5}"),
        request("GET", "/me/files"),
        request("POST", f"/files/{OPEN.md5}/merge"),
        request("POST", f"/files/{OPEN.md5}", b'{"name": "a", "size": %d}' % OPEN.size),
        request("POST", "/files/status", b'{"md5s": ["%s"]}' % OPEN.md5.encode()),
    ]


async def _vanish(server: Server, request: bytes, number: int) -> None:
    """Send a part of a request, or all of it, take a part of the answer, and go: with or without a word."""
    generator = random.Random(number)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    if generator.random() < 0.5:
        linger = writer.get_extra_info("socket")
        linger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
    try:
        whole = generator.random() < 0.5
        writer.write(request if whole else request[: generator.randrange(len(request))])
        if generator.random() < 0.8:
            await writer.drain()
        if generator.random() < 0.3:
            writer.write_eof()
        if whole and generator.random() < 0.5:
            await reader.read(generator.randrange(1, 4 * KIB))
        if generator.random() < 0.5:
            await asyncio.sleep(generator.random() * 0.02)
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()


def _tasks() -> Counter[str]:
    return Counter(task.get_coro().__qualname__ for task in asyncio.all_tasks())  # type: ignore[union-attr]


def _descriptors() -> Counter[str]:
    """The descriptors of this process by kind: files are of chunks, maps, spools and blobs."""
    kinds: Counter[str] = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue  # the descriptor of this very listing
        if "/data/metrics/" not in target:  # which a process takes some time after its start, and keeps
            kinds["files" if "/data/" in target else target.partition(":")[0]] += 1
    return kinds


async def _are_closed(stack: Stack, kinds: Set[str]) -> bool:
    """Threads may be about to close what nobody waits for."""
    await stack.services.storage.drain()
    now = _descriptors()
    return now.keys() <= kinds and not now["files"]


async def _is_quiet(server: Server, tasks: dict[str, int]) -> bool:
    """Whether the server has no connection and no task, and this process no more tasks than at the start."""
    state = server.uvicorn.server_state
    if state.connections or state.tasks:
        return False
    gc.collect()
    return not tasks or _tasks() <= Counter(tasks)


async def _every_store_answers_what_it_is_asked(stack: Stack) -> None:
    redis = stack.services.redis
    assert isinstance(redis, Redis)
    pool = stack.services.database.engine.sync_engine.pool
    assert isinstance(pool, QueuePool)

    async def is_unused() -> bool:
        return pool.checkedout() == 0

    await eventually(is_unused)  # the look for revocations takes a connection once a second
    # On a connection with the reply to another's command the next reply would be that one.
    await redis.mset({f"test:{number}": number for number in range(200)})
    replies = await asyncio.gather(*(redis.get(f"test:{number}") for number in range(200)))
    assert replies == [b"%d" % number for number in range(200)]


async def _no_chunk_is_locked(stack: Stack) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        for number in range(OPEN.chunk_count):
            response = await stack.put(OPEN, number)
            assert response.status_code in (200, 201)
        assert (await stack.client.get(f"/files/{OPEN.md5}")).json()["file"]["sha256"] == OPEN.sha256
