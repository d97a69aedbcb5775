"""Stops one request at a step in the database, and lets another request run meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeVar

import pytest

from uploader.database.engine import Database

T = TypeVar("T")
# A step that waits for a lock of the paused request waits longer.
_OTHER_SECONDS = 0.3


class Pause:
    """Counts the steps of one request, and stops the request after a chosen step until `go_on` is set."""

    def __init__(self, step: int | None) -> None:
        self._step = step
        self.steps = 0
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    async def pass_step(self) -> None:
        self.steps += 1
        if self.steps == self._step:
            self.reached.set()
            await self.go_on.wait()


_paused: ContextVar[Pause | None] = ContextVar("paused", default=None)


class _Connection:
    """A connection whose every statement is a step."""

    def __init__(self, connection: Any, pause: Pause) -> None:
        self._connection = connection
        self._pause = pause

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def execute(self, *arguments: Any) -> Any:
        result = await self._connection.execute(*arguments)
        await self._pause.pass_step()
        return result


def make_steps(monkeypatch: pytest.MonkeyPatch, database: Database) -> None:
    """Make each call of the database a step of the request that runs. On MySQL and MariaDB each statement of a transaction
    that writes is a step, too; on SQLite nobody else writes meanwhile."""
    plain: dict[str, Any] = {"read": database.read, "transact": database.transact}

    def stepping(name: str) -> Callable[..., Awaitable[Any]]:
        async def call(work: Callable[..., Awaitable[Any]], *of: Any, **options: Any) -> Any:
            pause = _paused.get()
            if pause is None:
                return await plain[name](work, *of, **options)

            async def stepwise(connection: Any, *of: Any) -> Any:
                return await work(_Connection(connection, pause), *of)

            by_statement = name == "transact" and database.engine.dialect.name != "sqlite"
            result = await plain[name](stepwise if by_statement else work, *of, **options)
            await pause.pass_step()
            return result

        return call

    for name in plain:
        monkeypatch.setattr(database, name, stepping(name))


async def count_steps(request: Callable[[], Awaitable[object]]) -> int:
    pause = Pause(None)
    token = _paused.set(pause)
    try:
        await request()
    finally:
        _paused.reset(token)
    return pause.steps


async def interleave(first: Callable[[], Awaitable[T]], step: int, second: Callable[[], Awaitable[T]]) -> tuple[T, T]:
    """Stop the first request after a step until the second request has ended, or waits for a lock."""
    pause = Pause(step)

    async def paused() -> T:
        _paused.set(pause)
        return await first()

    running = asyncio.create_task(paused())
    reached = asyncio.create_task(pause.reached.wait())
    await asyncio.wait({running, reached}, return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    other = asyncio.ensure_future(second())
    await asyncio.wait({other}, timeout=_OTHER_SECONDS)
    pause.go_on.set()
    return await running, await other
