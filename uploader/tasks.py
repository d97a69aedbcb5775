"""Asyncio tasks that nothing leaves half done."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")

_PATIENCE_SECONDS = 0.1


async def uninterrupted(work: Awaitable[T]) -> T:
    """Run `work` to its end even if the caller is cancelled meanwhile; the cancellation is raised afterwards.

    Whatever holds a lock, a connection in mid-command or a thread goes through here: a cancelled request leaves
    none of them behind.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await _end_of(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen: the caller is gone
        raise cancelled
    return task.result()


def _end_of(task: "asyncio.Task[Any]") -> "asyncio.Future[None]":
    """As `asyncio.wait`, in half the time: each chunk goes through here."""
    end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task.add_done_callback(lambda _: None if end.done() else end.set_result(None))
    return end


async def ended(task: "asyncio.Task[Any]") -> None:
    """Cancel a task that runs for ever, and wait for its end; its errors are nobody's.

    It takes more than one cancellation: `asyncio.wait_for` of Python 3.11, through which redis-py sends, drops one that
    comes at the moment of its result (https://github.com/python/cpython/issues/86296).
    """
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_PATIENCE_SECONDS)
