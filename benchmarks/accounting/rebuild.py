"""How long it takes until all is known again after Redis lost everything, with the real service on a real disk."""

import asyncio
import time
from pathlib import Path

from benchmarks.accounting.scale import Scale
from benchmarks.accounting.stores import database_server, valkey
from benchmarks.report import Row, amount, at_most
from tests.support.bodies import InPieces
from tests.support.rows import Transactions, upload_row
from uploader.bootstrap import Services, running
from uploader.domain.upload import Upload
from uploader.service.results import Target
from uploader.settings import Settings

_CHUNK_BYTES = 1024
_AT_ONCE = 16


async def rebuild(directory: Path, scale: Scale) -> list[Row]:
    """FLUSHALL, then one sweep; every acknowledged chunk has to count again."""
    seconds = []
    with valkey(directory / "redis", append_only=True) as server:
        async with database_server(directory / "mariadb", "mariadb") as (database, _):
            settings = Settings(
                data=directory / "data",
                database_url=database.engine.url.render_as_string(hide_password=False),
                redis_url=server.url,
                free_space_floor_bytes=0,
                durability="process",  # what is written first only makes ready; the sweep writes nothing to the disk
            )
            services = Services(settings)
            async with running(services, jobs=False):
                uploads = await _send(services, scale)
                await services.sweeping.sweep(0)
                for _ in range(scale.rounds):
                    server.command("FLUSHALL")
                    begin = time.perf_counter()
                    await services.sweeping.sweep(0)
                    seconds.append(time.perf_counter() - begin)
                    for upload in uploads:
                        known = await services.pending.read(upload.id)
                        assert (known.state, known.chunks) == ("open", scale.rebuilt_chunks - 1), "a chunk was lost"
    figure = f"rebuild after FLUSHALL, {amount(scale.rebuilt)} open uploads of {amount(scale.rebuilt_chunks)} chunks"
    return [at_most(figure, 5, seconds, "s", "no acknowledged chunk lost")]


async def _send(services: Services, scale: Scale) -> list[Upload]:
    """Open the uploads, and send all chunks of each but the last. They are smaller than the service would let them be:
    what is rebuilt is their map, whatever their size."""
    size = _CHUNK_BYTES * scale.rebuilt_chunks
    rows = Transactions(services.database)
    await rows.create_user(total_space=size * scale.rebuilt)
    uploads = [upload_row(size=size, chunk_size=_CHUNK_BYTES) for _ in range(scale.rebuilt)]
    waiting = iter(uploads)

    async def send() -> None:
        for upload in waiting:
            await services.storage.create(upload)
            await rows.open(upload, scale.rebuilt)
            target = Target(upload.caller, upload_id=upload.id)
            for chunk in range(scale.rebuilt_chunks - 1):
                await services.receiving.store(target, upload, chunk, InPieces(bytes(_CHUNK_BYTES)))

    await asyncio.gather(*(send() for _ in range(_AT_ONCE)))
    return uploads
