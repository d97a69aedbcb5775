"""A merge that waits until a test lets it go on."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.stack import Stack
from uploader.storage.disk import try_lock


@asynccontextmanager
async def merge_held_up(stack: Stack, upload_id: str) -> AsyncIterator[None]:
    """Hold the lock of an upload's digests, as another worker does while it computes them."""
    await stack.services.storage.drain()
    (path,) = (stack.data / "temp").glob(f"*/*/{upload_id}/digest")
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        assert try_lock(descriptor, 0, 0)
        yield
    finally:
        os.close(descriptor)
