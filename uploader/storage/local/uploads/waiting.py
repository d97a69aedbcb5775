"""Waiting for locks of open files: nobody waits in a thread. A lock goes with its descriptor, so a crash lets go of it."""

import asyncio
import time

from uploader.errors import Unavailable
from uploader.storage import disk
from uploader.storage.disk import try_lock


async def wait_for_lock(
    descriptor: int, start: int, length: int, timeout_seconds: float, refusal: type[Unavailable] = Unavailable
) -> None:
    """Raises `refusal` if others keep it for that long."""
    deadline, pause = time.monotonic() + timeout_seconds, 0.0005
    while not try_lock(descriptor, start, length):
        if time.monotonic() > deadline:
            raise refusal("This upload is busy; try again.")
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.01)


def is_unlinked(descriptor: int) -> bool:
    try:
        return disk.is_unlinked(descriptor)
    except OSError as error:
        raise disk.refusal(error) from error
