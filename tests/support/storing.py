"""Storages on a real directory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from uploader.storage.local.store import LocalStore
from uploader.storage.store import Store


def new_storage(root: Path, *, durable: bool) -> Store:
    """One that nobody prepared yet, as every process has one: its locks are its own, too."""
    return LocalStore(root, durable=durable)


@asynccontextmanager
async def running_storage(root: Path, *, durable: bool) -> AsyncIterator[Store]:
    """One that is ready; its threads end with it, but nothing is drained."""
    storage = new_storage(root, durable=durable)
    await storage.prepare()
    try:
        yield storage
    finally:
        storage.close()
