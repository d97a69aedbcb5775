"""Waiting for what happens in the background."""

import asyncio
from collections.abc import Awaitable, Callable


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float = 30.0) -> None:
    """Ask again and again until `condition` holds; fail with TimeoutError if it does not in time."""
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)
