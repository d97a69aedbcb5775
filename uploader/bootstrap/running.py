"""The time in which services serve, with the background jobs if asked for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from uploader.accounting.wakeups import Wakeups
from uploader.bootstrap.services import Services
from uploader.crashpoints import crash_point
from uploader.database import meta, migrate
from uploader.database.engine import Database
from uploader.errors import ConfigurationError
from uploader.jobs.cleanup import Cleaner
from uploader.jobs.collector import Collector
from uploader.jobs.expirer import Expirer
from uploader.jobs.flusher import Flusher
from uploader.jobs.merger import Merger
from uploader.jobs.reconciler import Reconciler
from uploader.jobs.runner import Runner
from uploader.jobs.scrubber import Scrubber
from uploader.jobs.snapshot import Snapshot
from uploader.jobs.sweeper import Sweeper
from uploader.jobs.trash import TrashKeeper
from uploader.settings import Settings


@asynccontextmanager
async def running(services: Services, *, jobs: bool) -> AsyncIterator[None]:
    """The time in which services serve, with the background jobs if asked for; all ended in order afterwards.

    Raises ConfigurationError if the database or the data directory is not fit, Unavailable if the database is away.
    """
    try:
        await migrate.check(services.database)
        await check_shards(services.database, services.settings)
        await services.storage.prepare()
        await services.spool.prepare()
        async with services.exposition, _jobs(services) if jobs else nullcontext():
            yield
    finally:
        services.storage.stop()
        await services.close()


@asynccontextmanager
async def _jobs(services: Services) -> AsyncIterator[None]:
    async with _listen(services) as wakeups:
        runner = _create_runner(services, wakeups)
        runner.start()
        try:
            yield
        finally:
            services.storage.stop()
            await runner.stop()


async def check_shards(database: Database, settings: Settings) -> None:
    """The number of shards is part of every key in Redis: another one would not find them. Raises ConfigurationError,
    Unavailable."""
    wanted = str(settings.shards)
    stored = await meta.remember(database, "shards", wanted)
    if stored != wanted:
        raise ConfigurationError(
            f"UPLOADER_SHARDS: this installation has {stored}, not {wanted}: stop all servers and workers, then run "
            "`uploader redis reset --yes`"
        )


async def reset_redis(services: Services) -> int:
    """Forget all that Redis knows, and take the number of shards in force; how many keys were deleted.

    Everything is rebuilt from the disk and the database. Raises Unavailable.
    """
    deleted = await services.pending.reset()
    crash_point("reset.after_keys")
    await services.database.transact(
        lambda connection: meta.replace_fact(connection, "shards", str(services.settings.shards))
    )
    return deleted


def _listen(services: Services) -> Wakeups:
    """For what ends the sleep of the jobs."""
    queues = [*services.pending.flush_queues, *services.pending.merge_queues]
    return Wakeups(services.redis, [queue.wake_channel for queue in queues])


def _create_runner(services: Services, wakeups: Wakeups) -> Runner:
    settings, clock, pending = services.settings, services.clock, services.pending
    jobs = [job for queue in pending.flush_queues for job in Flusher(queue, services.flushing).as_jobs()]
    jobs += [Merger(queue, services.merging).as_job() for queue in pending.merge_queues]
    jobs += [Sweeper(shard, services.sweeping).as_job() for shard in range(pending.shards)]
    retention = settings.closed_retention_seconds
    jobs += [
        Collector(
            services.files, services.closers, services.cleanup, clock, closed_retention_seconds=retention
        ).as_job(),
        Expirer(services.expiry, clock).as_job(),
        Cleaner(services.cleanup, clock).as_job(),
        Reconciler(services.reconciling).as_job(),
        Scrubber(services.scrubbing, rate_bytes_per_second=settings.scrub_rate_bytes).as_job(),
        Snapshot(services.overview, clock).as_job(),
        TrashKeeper(services.trash, services.admission, clock).as_job(),
    ]
    return Runner(jobs, wakeups.events)
