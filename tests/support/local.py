"""Open uploads in a store on a real directory, below the services."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.content import Content
from tests.support.faults import open_files_under
from tests.support.stores import Uploads
from tests.support.storing import running_storage
from tests.support.waiting import PATIENCE_SECONDS
from uploader.domain.upload import Upload
from uploader.storage.local.store import LocalStore

_running = Counter[Path]()


@dataclass
class Local(Uploads):
    """As a process has it: its locks are its own, too."""

    store: LocalStore
    root: Path

    def file(self, upload: Upload, name: str) -> Path:
        return self.root / upload.place / name

    def data(self, upload: Upload) -> bytes:
        return self.file(upload, "data").read_bytes()

    async def place_blob(self, upload: Upload) -> None:
        """Make it the blob of `content`."""
        async with self.store.closing(upload) as closer:
            await closer.place_blob(self.content.sha256)

    async def put_and_follow(self, upload: Upload, *numbers: int) -> None:
        """Store chunks, each once the digests have followed."""
        for number in numbers:
            await self.put(upload, number)
            await self.store.drain()


@asynccontextmanager
async def running_local(root: Path, content: Content, *, durable: bool = True) -> AsyncIterator[Local]:
    """It is ready; the last one on a directory leaves nothing open."""
    async with running_storage(root, durable=durable) as store:
        assert isinstance(store, LocalStore)
        _running[root] += 1
        yield Local(store, root, content=content)
        _running[root] -= 1
        await store.drain()
    assert _running[root] or open_files_under(root / "temp") == []


async def waits(task: "asyncio.Task[Any]") -> bool:
    """Whether a task is still waiting after a while."""
    await asyncio.wait({task}, timeout=0.03)
    return not task.done()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)
