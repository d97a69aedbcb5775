"""Rows for tests that speak to the database below the services."""

import hashlib
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from uploader.database.engine import Database
from uploader.database.transactions import files, uploads, users
from uploader.domain.creations import RENAME
from uploader.domain.upload import File, IfExists, Reason, State, Upload
from uploader.service.ids import new_id

T = TypeVar("T")

NOW = datetime(2030, 1, 31, 23, 59, 59, 123456, tzinfo=UTC)


def digests(seed: str) -> dict[str, Any]:
    """An MD5 and a SHA-256 that belong together."""
    content = seed.encode()
    return {"md5": hashlib.md5(content).hexdigest(), "sha256": hashlib.sha256(content).hexdigest()}


def upload_row(user_id: str = "alice", size: int = 1000, seed: str | None = None, **more: Any) -> Upload:
    """An open upload; content of its own unless `seed` is given."""
    upload_id = new_id()
    values: dict[str, Any] = {
        "id": upload_id,
        "user_id": user_id,
        "session": "",
        "md5": digests(seed or upload_id)["md5"],
        "sha256": None,
        "name": "file.bin",
        "size": size,
        "chunk_size": 64 << 10,
        "flushed_bytes": 0,
        "flushed_generation": 0,
        "generation": 0,
        "state": State.OPEN,
        "close_reason": None,
        "file_id": None,
        "place": f"temp/2030/01/{upload_id}",
        "idempotency_key": None,
        "created_at": NOW,
        "updated_at": NOW,
        "closed_at": None,
    }
    return Upload(**(values | more))


def file_row(user_id: str = "alice", size: int = 1000, seed: str = "content", **more: Any) -> File:
    """An instant file of the content `seed`."""
    values: dict[str, Any] = {
        "id": new_id(),
        "user_id": user_id,
        "session": "",
        **digests(seed),
        "name": "file.bin",
        "size": size,
        "instant": True,
        "created_at": NOW,
    }
    return File(**(values | more))


class Transactions:
    """The transactions of the product, each committed on its own, with what tests leave out filled in."""

    def __init__(self, database: Database, max_files: int = 10**6) -> None:
        self.database = database
        self.max_files = max_files

    async def _act(self, work: Callable[..., Awaitable[T]], *arguments: Any, **options: Any) -> T:
        return await self.database.transact(lambda connection: work(connection, *arguments, **options))

    async def create_user(self, user_id: str = "alice", total_space: int = 10_000) -> None:
        await self._act(users.create_user, user_id, total_space)

    async def open(self, upload: Upload, max_open_uploads: int = 1000) -> Upload:
        limits = {"max_open_uploads": max_open_uploads, "max_files": self.max_files}
        await self._act(uploads.open_upload, upload, **limits, expires_at=NOW)
        return upload

    async def flush(self, *items: tuple[Upload, int, int]) -> uploads.Flushed:
        """Each item is an upload, a generation and the bytes received."""
        batch = [uploads.Received(upload.id, generation, received) for upload, generation, received in items]
        return await self._act(uploads.flush, batch, NOW)

    async def close(self, upload: Upload, reason: Reason = Reason.CANCELLED) -> Upload:
        return await self._act(uploads.close_upload, upload.id, reason, NOW)

    async def merge(self, upload: Upload, seed: str) -> File:
        async def place_blob() -> None:
            pass

        facts: dict[str, Any] = {"upload_id": upload.id, "file_id": new_id(), **digests(seed)}
        return await self._act(uploads.merge, **facts, place_blob=place_blob, now=NOW)

    async def upload_and_merge(self, user_id: str = "alice", size: int = 1000, seed: str = "content") -> File:
        upload = await self.open(upload_row(user_id, size, seed))
        await self.flush((upload, 0, size))
        return await self.merge(upload, seed)

    async def instant(self, file: File, replaced: Upload | None = None) -> tuple[File, bool]:
        replaced_id = None if replaced is None else replaced.id
        asked = {"replaced_upload_id": replaced_id, "max_files": self.max_files}
        added = await self._act(files.add_file, file, IfExists.KEEP, **asked)
        return added.file, added.is_new

    async def whole(
        self,
        file: File,
        if_exists: IfExists = IfExists.KEEP,
        *,
        replaced: Upload | None = None,
        place: Callable[[], Awaitable[None]] | None = None,
    ) -> files.Added:
        """`place`: what happens while the contents are locked, and nothing else is decided."""

        async def place_blob() -> None:
            if place is not None:
                await place()

        replaced_id = None if replaced is None else replaced.id
        asked = {"replaced_upload_id": replaced_id, "place_blob": place_blob, "max_files": self.max_files}
        return await self._act(files.add_file, file, if_exists, **asked)

    async def batch(self, added: Sequence[File], if_exists: IfExists = IfExists.KEEP) -> list[files.Verdict | None]:
        async def place_blobs(_: Collection[str]) -> dict[str, str]:
            return {}

        asked = {"place_blobs": place_blobs, "max_files": self.max_files}
        return await self._act(files.add_whole_files, added, if_exists, **asked)

    async def rename(self, file: File, name: str) -> bool:
        moved = await self._act(files.move_files, [file], {file.id: name}, IfExists.FAIL, NOW, RENAME)
        return moved == 1

    async def delete(self, file: File) -> bool:
        return await self._act(files.delete_file, file, NOW)

    async def collect(self, sha256: str, removed: list[str] | None = None) -> bool:
        async def remove() -> None:
            if removed is not None:
                removed.append(sha256)

        return await self._act(files.collect_blob, sha256, prepare=self.database.sync, remove=remove, now=NOW)
