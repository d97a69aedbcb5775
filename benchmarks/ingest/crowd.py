"""Very many open uploads, made behind the back of a running server: their files, their rows, and what Redis knows of them.

Opened one by one over HTTP they would take longer than everything that is measured.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import redis

from benchmarks.ingest.scale import KIB
from uploader.accounting.keys import upload_keys
from uploader.accounting.redis import Script
from uploader.bootstrap import Services, redis_directory
from uploader.database import models
from uploader.database.engine import Connection
from uploader.database.transactions.rows import row_of
from uploader.domain.upload import State, Upload, chunk_count
from uploader.runtime.embedded import socket_path
from uploader.service.ids import new_id
from uploader.settings import Settings
from uploader.storage.disk import Root
from uploader.storage.local.chunks import ChunkFiles
from uploader.storage.local.directories import month_path

CHUNK_BYTES = 64 * KIB
# So that the map of an upload is not larger than a page.
CHUNKS = 400
_INSERTED_AT_ONCE = 5000
_SENT_AT_ONCE = 1000


async def open_uploads(data: Path, users: Sequence[str], count: int) -> list[str]:
    """Open so many, each of the next user in turn; their ids."""
    settings = Settings(data=data)
    services = Services(settings)
    try:
        now = datetime.now(UTC)
        uploads = [_upload(users[number % len(users)], now) for number in range(count)]
        root = Root(data)
        root.open()
        chunk_files = ChunkFiles(
            root,
            durable=True,
            boot_id="",
            keep=lambda _: None,
            forget_digests=lambda _: None,
        )
        for upload in uploads:
            chunk_files.create(upload)

        async def insert(connection: Connection) -> None:
            for start in range(0, count, _INSERTED_AT_ONCE):
                rows = [_row(upload) for upload in uploads[start : start + _INSERTED_AT_ONCE]]
                await connection.execute(models.upload.insert(), rows)

        await services.database.transact(insert)
        era = (await services.pending.read(uploads[0].id)).era
        _hydrate(socket_path(redis_directory(settings)), uploads, era)
        return [upload.id for upload in uploads]
    finally:
        await services.close()


def _upload(user_id: str, now: datetime) -> Upload:
    upload_id = new_id()
    return Upload(
        id=upload_id,
        user_id=user_id,
        session="",
        md5=None,
        sha256=None,
        name=f"{upload_id}.bin",
        size=CHUNKS * CHUNK_BYTES,
        chunk_size=CHUNK_BYTES,
        flushed_bytes=0,
        flushed_generation=0,
        generation=0,
        state=State.OPEN,
        close_reason=None,
        file_id=None,
        place=f"temp/{month_path(now)}/{upload_id}",
        idempotency_key=None,
        created_at=now,
        updated_at=now,
        closed_at=None,
    )


def _row(upload: Upload) -> dict[str, object]:
    return row_of(upload) | {"state": upload.state.value}


def _hydrate(path: str, uploads: Sequence[Upload], era: str) -> None:
    script = Script("hydrate")
    with redis.Redis(unix_socket_path=path) as client:
        client.script_load(script.source)
        for start in range(0, len(uploads), _SENT_AT_ONCE):
            pipeline = client.pipeline(transaction=False)
            for upload in uploads[start : start + _SENT_AT_ONCE]:
                keys = upload_keys(0, upload.id)
                count = chunk_count(upload.size, upload.chunk_size)
                facts = ["", "token", upload.id, era, 0, b"\0", upload.size, upload.chunk_size, count, 0, 5000]
                pipeline.evalsha(script.sha, len(keys), *keys, *facts)
            assert all(reply.startswith(b"hydrated") for reply in pipeline.execute())
