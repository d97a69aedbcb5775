"""Waiting for what happens in the background.

Only a test that fails waits so long: on a machine ten times as busy all passes, slower.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

# Until what was started serves, and until what was ended is gone.
SERVER_SECONDS = 600.0
# Until what goes on in the background has come about.
PATIENCE_SECONDS = 300.0


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float = PATIENCE_SECONDS) -> None:
    """Ask again and again until `condition` holds; fail with TimeoutError if it does not in time."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS, what: str = "it") -> None:
    """The same without a loop; AssertionError."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true in time"
        time.sleep(0.05)
