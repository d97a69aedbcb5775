"""Valkeys with many open uploads, under the product's delay queue or under another one it is compared with."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from benchmarks.accounting.stores import cpu_seconds, upload_id, valkey
from benchmarks.accounting.wire import Wire, pack
from tests.support.servers import PrivateRedis
from uploader.accounting.keys import FLUSH_QUEUE, upload_keys, upload_queue_keys
from uploader.accounting.redis import PRELUDES, assembled

_HERE = Path(__file__).parent
_SCRIPTS = _HERE.parents[1] / "uploader" / "accounting" / "scripts"
_FILLED_A_CALL = 1000
_SENT_AT_ONCE = 500
# Due times lie this far apart, from one upload to the next, so that neighbours lie in different places of a minute.
_STEP_MS = 7919
_HOUR_MS = 3_600_000
_NEVER_PENDING = 1 << 60


def source_of(verb: str | Path, queue: str | None = None) -> str:
    """A script of the product, or another one, with the product's delay queue under it or another one."""
    delay, *preludes = (_SCRIPTS / name for name in PRELUDES)
    if queue is not None:
        delay = _HERE / "alternatives" / f"{queue}.lua"
    return assembled(*(path.read_text() for path in (delay, *preludes, _SCRIPTS / verb)))


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call (or a task of it) costs the server in µs: its script alone, and all the CPU the process used."""

    script_us: float
    process_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the uploads are: without `due_ms` nothing of them is pending."""

    chunk_count: int = 200
    chunk_bytes: int = 4096  # so small that none is due at once for having too much pending
    due_ms: int | None = None
    due_over_ms: int = 60_000

    def due_of(self, number: int) -> int:
        """When the flush of an upload is due: within `due_over_ms` from `due_ms` on."""
        assert self.due_ms is not None
        return self.due_ms + number * _STEP_MS % self.due_over_ms


class Filled:
    """A Valkey with `count` open uploads."""

    def __init__(
        self, server: PrivateRedis, count: int, shape: Shape, *, queue: str | None = None, shards: int = 1
    ) -> None:
        self.client: redis.Redis = redis.Redis(port=server.port, protocol=2)
        self.server_port = server.port
        self.count, self.shape, self._queue, self._shards = count, shape, queue, shards
        self.process_id = int(self.client.info("server")["process_id"])
        self._wire = Wire(server.port)
        self._recorded: dict[int, int] = {}
        self._record_sha = self.client.script_load(source_of("record_chunk.lua", queue))
        self._claim_sha = self.client.script_load(source_of("claim_due.lua", queue))
        self._ack_sha = self.client.script_load(source_of("ack_flush.lua", queue))
        before = self._used_memory()
        self._fill()
        self.bytes_an_upload = (self._used_memory() - before) / count

    def _fill(self) -> None:
        sha = self.client.script_load(source_of(_HERE / "fill.lua", self._queue))
        first_bytes = 0 if self.shape.due_ms is None else self.shape.chunk_bytes
        for shard in range(self._shards):
            keys = upload_keys(shard, "")
            names = [keys.era, keys.flush_due, keys.flush_minutes]
            end = self._first_of(shard + 1)
            for first in range(self._first_of(shard), end, _FILLED_A_CALL):
                arguments: list[Any] = ["token", keys.up, keys.chunks, first, min(_FILLED_A_CALL, end - first)]
                arguments += [
                    self.shape.chunk_count,
                    first_bytes,
                    self.shape.due_ms or 0,
                    self.shape.due_over_ms,
                    _STEP_MS,
                ]
                self._wire.send([pack("EVALSHA", sha, len(names), *names, *arguments)])

    def _first_of(self, shard: int) -> int:
        return shard * self.count // self._shards

    def _used_memory(self) -> int:
        return int(self.client.info("memory")["used_memory"])

    def _keys_of(self, number: int) -> list[str]:
        shard = next(shard for shard in range(self._shards) if number < self._first_of(shard + 1))
        return list(upload_keys(shard, upload_id(number)))

    @property
    def bitmap_bytes(self) -> int:
        """The memory of an upload's bitmap, with its key."""
        return self.client.memory_usage(self._keys_of(0)[1]) or 0

    def recording(self, number: int, now_ms: int | str, delays: list[int]) -> bytes:
        """The command that records the next chunk of an upload, for `send`."""
        first = 0 if self.shape.due_ms is None else 1
        chunk = self._recorded[number] = self._recorded.get(number, first - 1) + 1
        arguments: list[Any] = [now_ms, "token", upload_id(number), chunk, self.shape.chunk_bytes, *delays]
        return pack("EVALSHA", self._record_sha, 7, *self._keys_of(number), *arguments)

    def send(self, commands: list[bytes], at_once: int = _SENT_AT_ONCE) -> None:
        """Record chunks, many on their way at once; every one has to be new."""
        for start in range(0, len(commands), at_once):
            replies: list[Any] = self._wire.send(commands[start : start + at_once])
            assert all(reply.startswith(b"recorded ") for reply in replies), replies[:3]

    def record(self, count: int) -> Cost:
        """Record chunks of uploads taken at random; each puts off its flush by a second, as if one came every second."""
        now_ms, commands = int(time.time() * 1000), []
        for number in random.choices(range(self.count), k=count):
            due_ms = self.shape.due_of(number) + 1000 * (self._recorded.get(number, 0) + 1)
            commands.append(self.recording(number, "", [due_ms - now_ms, 10 * _HOUR_MS, _NEVER_PENDING, 30_000]))
        self.client.config_resetstat()
        before = cpu_seconds(self.process_id)
        self.send(commands)
        return Cost(self._script_us(), (cpu_seconds(self.process_id) - before) * 1e6 / count)

    def _script_us(self) -> float:
        return float(self.client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"])

    def claim_and_ack(self, limit: int) -> tuple[float, float]:
        """Claim tasks as if all were due, and acknowledge them; the µs a task of each."""
        assert self.shape.due_ms is not None
        queue = upload_queue_keys(0, FLUSH_QUEUE)
        names = [queue.due, queue.minutes]
        arguments: list[Any] = [self.shape.due_ms + _HOUR_MS, 30_000, limit, queue.task_prefix]
        self.client.config_resetstat()
        claims: Any = self.client.evalsha(self._claim_sha, 2, *names, *arguments)
        claim_us = self._script_us()
        looked, _, lease, *tasks = claims
        assert (looked, len(tasks)) == (limit, 4 * limit)
        acks = [word for task in zip(tasks[::4], tasks[1::4], tasks[2::4], strict=True) for word in (*task, lease)]
        self.client.config_resetstat()
        assert self.client.evalsha(self._ack_sha, 2, *names, queue.task_prefix, *acks) == limit
        return claim_us / limit, self._script_us() / limit

    def close(self) -> None:
        self._wire.close()
        self.client.close()


def in_an_hour() -> int:
    """A time at the middle of a minute, in ms, that no worker waits for."""
    return (int(time.time() * 1000) + _HOUR_MS) // 60_000 * 60_000 + 30_000


@contextmanager
def filled(directory: Path, count: int, *, queue: str | None = None, shards: int = 1) -> Iterator[Filled]:
    """A Valkey of uploads that all wait for their flush; without AOF, so that the scripts alone are measured."""
    with valkey(directory, append_only=False) as server:
        uploads = Filled(server, count, Shape(due_ms=in_an_hour(), chunk_count=1000), queue=queue, shards=shards)
        try:
            yield uploads
        finally:
            uploads.close()
