"""Waiting for locks of open files: nobody waits in a thread. A lock goes with its descriptor, so a crash lets go of it."""

import asyncio
import time

from uploader.errors import Unavailable
from uploader.storage import disk
from uploader.storage.disk import try_lock
from uploader.wait_budget import wait_budget

# Who has a lock for longer may wait for a store that is silent.
_LONG_SECONDS = 1.0


async def wait_for_lock(
    descriptor: int, start: int, length: int, timeout_seconds: float, refusal: type[Unavailable] = Unavailable
) -> None:
    """Raises `refusal` if others keep it for that long."""
    began, pause = time.monotonic(), 0.0005
    while not try_lock(descriptor, start, length):
        if time.monotonic() > began + timeout_seconds:
            raise refusal("This upload is busy; try again.")
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.01)
    note_wait(began)


def note_wait(began: float) -> None:
    """A lock was waited for since then."""
    wait_budget().note(began, _LONG_SECONDS)


def is_unlinked(descriptor: int) -> bool:
    try:
        return disk.is_unlinked(descriptor)
    except OSError as error:
        raise disk.refusal(error) from error
