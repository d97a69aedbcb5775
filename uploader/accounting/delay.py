"""The delay queue: tasks that become due at a time of their own, are pushed back or cancelled, and claimed with a lease.

The logic is the Lua prelude `scripts/_delay.lua`, which the scripts about uploads use, too; the verbs here are thin. Knows
nothing of what a task means. Time is Redis `TIME`; tests pass `now_ms` instead.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from uploader.accounting.keys import QueueKeys, queue_keys
from uploader.accounting.scripting import RedisConnection, Script, time_argument
from uploader.accounting.wakeups import Wakeups

# A claim looks at so many tasks at most: about 1 ms, which holds up no other caller of Redis.
MAX_CLAIM = 100
# To tell when the earliest is due, so many tasks that were pushed back are looked at.
_LOOKED_AT = 50
# A worker sleeps for so long at most before it looks again; `_delay.lua` announces a task that is due sooner.
POLL_SECONDS = 1.0

_SCHEDULE = Script("delay_schedule")
_CANCEL = Script("delay_cancel")
_CLAIM = Script("delay_claim")
_NEXT_DUE = Script("next_due")


@dataclass(frozen=True, slots=True)
class Task:
    """A claimed task; the token tells this claim from all others."""

    id: str
    token: str


class DelayQueue:
    """One named queue in one shard. Every verb is one script, and raises Unavailable if Redis is away."""

    def __init__(self, redis: RedisConnection, name: str, *, shard: int = 0, lease_seconds: float = 30.0) -> None:
        self._redis = redis
        self._keys = queue_keys(shard, name)
        self._lease_ms = round(lease_seconds * 1000)

    async def schedule(
        self, task_id: str, delay_seconds: float, *, only_new: bool = False, now_ms: int | None = None
    ) -> bool:
        """Let a task become due after a delay of its own, which replaces an earlier one; returns whether it did.

        With `only_new`, a task that waits already stays as it is.
        """
        return await self._schedule(task_id, delay_seconds, "absent" if only_new else "always", now_ms)

    async def push_back(self, task_id: str, delay_seconds: float, *, now_ms: int | None = None) -> bool:
        """Let a waiting task become due later (or sooner), counted from now; False if the task does not wait."""
        return await self._schedule(task_id, delay_seconds, "present", now_ms)

    async def _schedule(self, task_id: str, delay_seconds: float, when: str, now_ms: int | None) -> bool:
        arguments = [time_argument(now_ms), task_id, round(delay_seconds * 1000), when]
        return bool(await _SCHEDULE.run(self._redis, self._task_keys(task_id), arguments))

    async def cancel(self, task_id: str) -> bool:
        """Take a task out, claimed or not; False if it is not there."""
        return bool(await _CANCEL.run(self._redis, self._task_keys(task_id), [task_id, ""]))

    async def claim(self, limit: int = MAX_CLAIM, *, now_ms: int | None = None) -> list[Task]:
        """Claim at most `limit` due tasks, none only if none is due. Each is due again when the lease ends, unless it was
        acknowledged before."""
        token = secrets.token_hex(8)
        arguments = [time_argument(now_ms), self._lease_ms, limit, self._keys.task_prefix, token]
        while True:
            looked, ids = await _CLAIM.run(self._redis, [self._keys.due, self._keys.minutes], arguments)
            if ids or looked < limit:
                return [Task(task_id.decode(), token) for task_id in ids]

    async def ack(self, task: Task) -> bool:
        """Say that a claimed task is done. False, and nothing happens, if this worker has lost its claim: its lease ended
        and another worker claimed the task, or the task was scheduled anew."""
        return bool(await _CANCEL.run(self._redis, self._task_keys(task.id), [task.id, task.token]))

    async def next_due(self, *, now_ms: int | None = None) -> float | None:
        """Seconds until the earliest task is due, or None if the queue is empty."""
        return await next_due(self._redis, self._keys, now_ms)

    async def due(self) -> AsyncGenerator[Task, None]:
        """Tasks as they become due, each claimed for the caller, without end. Close it (`aclosing`) to stop listening."""
        async with Wakeups(self._redis, [self._keys.wake]) as waker:
            woken = waker.events[self._keys.wake]
            while True:
                woken.clear()  # before the claim, so that a task that is scheduled after it wakes this worker
                tasks = await self.claim()
                for task in tasks:
                    yield task
                if not tasks:
                    await _sleep(woken, await self.next_due())

    def _task_keys(self, task_id: str) -> list[str]:
        return [self._keys.due, self._keys.minutes, f"{self._keys.task_prefix}{task_id}"]


async def next_due(redis: RedisConnection, keys: QueueKeys, now_ms: int | None = None) -> float | None:
    """Seconds until the earliest task of any queue is due, or None if it is empty; less, where many were pushed back.

    Raises Unavailable.
    """
    arguments = [time_argument(now_ms), keys.task_prefix, _LOOKED_AT]
    delay_ms = await _NEXT_DUE.run(redis, [keys.due, keys.minutes], arguments)
    return None if delay_ms < 0 else delay_ms / 1000


async def _sleep(woken: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(POLL_SECONDS if seconds is None else min(seconds, POLL_SECONDS)):
            await woken.wait()
    except TimeoutError:
        return
