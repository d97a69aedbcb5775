"""The time in which services serve, with the background jobs if asked for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace

from uploader.accounting.wakeups import Wakeups
from uploader.bootstrap.services import Services
from uploader.crashpoints import crash_point
from uploader.database import meta, migrate
from uploader.database.engine import Connection
from uploader.database.trail.acts import note
from uploader.domain.trail.acts import Action
from uploader.errors import ConfigurationError, Unavailable
from uploader.jobs.cleanup import Cleaner
from uploader.jobs.collector import Collector
from uploader.jobs.concatenation.joiner import Joiner
from uploader.jobs.events.relay import EventKeeper, relay_job, wake_channel
from uploader.jobs.expirer import Expirer
from uploader.jobs.flusher import Flusher
from uploader.jobs.merger import Merger
from uploader.jobs.reconciler import Reconciler
from uploader.jobs.runner import Job, Runner
from uploader.jobs.scrubber import Scrubber
from uploader.jobs.snapshot import Snapshot
from uploader.jobs.sweeper import Sweeper
from uploader.jobs.trash import TrashKeeper
from uploader.service.installation import Installation
from uploader.service.trail.acting import act


@asynccontextmanager
async def running(services: Services, *, jobs: bool, begins: bool = True) -> AsyncIterator[None]:
    """The time in which services serve, with the background jobs if asked for; all ended in order afterwards.

    `begins`: an installation that is none yet becomes one.

    Raises ConfigurationError if the database or the store is not fit, Unavailable if the database is away.
    """
    try:
        await migrate.check(services.database)
        await (services.installation.begin() if begins else services.installation.compare())
        await services.storage.prepare()
        await services.spool.prepare()
        with suppress(Unavailable):  # without Redis a server waits for it, and each job asks again
            await services.installation.check_redis()
        await check_shards(services)
        async with services.exposition, _watch(services), _jobs(services) if jobs else nullcontext():
            yield
    finally:
        services.storage.stop()
        await services.close()


@asynccontextmanager
async def _watch(services: Services) -> AsyncIterator[None]:
    """Look after what every process relies on, also one without jobs."""
    runner = Runner([Job("watch", services.installation.look)])
    runner.start()
    try:
        yield
    finally:
        await runner.stop()


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


async def check_shards(services: Services) -> None:
    """The number of shards is part of every key in Redis: another one would not find them. So are their tags, and an
    installation keeps those it has. Raises ConfigurationError, Unavailable."""
    number = services.settings.shards
    stored = await meta.remember(services.database, "shards", _spread(number))
    if stored not in (str(number), _spread(number)):
        told = stored.removesuffix(" spread")
        raise ConfigurationError(
            f"UPLOADER_SHARDS: this installation has {told}, not {number}: stop all servers and workers, then "
            "run `uploader redis reset --yes`"
        )
    if number > 1 and stored == _spread(number):
        services.pending.shards.spread()


def _spread(number: int) -> str:
    """What the database remembers of so many shards whose tags are spread. A single one has the tag it always had."""
    return f"{number} spread" if number > 1 else "1"


async def reset_redis(services: Services) -> int:
    """Forget all that Redis knows, and take the number of shards in force; how many keys were deleted.

    Everything is rebuilt from the disk and the database. Raises ConfigurationError if Redis is another installation's,
    Unavailable.
    """
    await services.installation.check_redis()
    deleted = await services.pending.reset()
    crash_point("reset.after_keys")
    told = act(Action.REDIS_RESET, services.clock.now(), subject="redis", details={"keys": deleted})

    async def replace_number(connection: Connection) -> None:
        await meta.replace_fact(connection, "shards", _spread(services.settings.shards))
        await note(connection, told)

    await services.database.transact(replace_number)
    return deleted


def _checked(job: Job, installation: Installation) -> Job:
    """A job that removes things, and does not run where disk, database and Redis don't belong together."""

    async def run_once() -> float:
        await installation.check()
        return await job.run_once()

    return replace(job, run_once=run_once)


def _listen(services: Services) -> Wakeups:
    """For what ends the sleep of the jobs."""
    queues = [*services.pending.flush_queues, *services.pending.merge_queues]
    return Wakeups(services.redis, [queue.wake_channel for queue in queues])


def _create_runner(services: Services, wakeups: Wakeups) -> Runner:
    settings, clock, pending = services.settings, services.clock, services.pending
    jobs = [job for queue in pending.flush_queues for job in Flusher(queue, services.flushing).as_jobs()]
    jobs += [Merger(queue, services.merging).as_job() for queue in pending.merge_queues]
    jobs += [Sweeper(shard, services.sweeping).as_job() for shard in range(pending.shards.number)]
    retention = settings.closed_retention_seconds
    removing = [
        Collector(
            services.files,
            services.closers,
            services.cleanup,
            services.trail,
            clock,
            closed_retention_seconds=retention,
        ).as_job(),
        Expirer(services.expiry, clock).as_job(),
        Cleaner(services.cleanup, clock).as_job(),
        Scrubber(services.scrubbing, rate_bytes_per_second=settings.scrub_rate_bytes).as_job(),
        TrashKeeper(services.trash, services.admission, clock).as_job(),
    ]
    jobs += [_checked(job, services.installation) for job in removing]
    jobs += [relay_job(relay) for relay in services.relays]
    jobs += [
        Joiner(services.concatenations).as_job(),
        EventKeeper(services.watching, clock).as_job(),  # also of sinks that are no more
        Reconciler(services.reconciling).as_job(),
        Snapshot(services.overview, clock).as_job(),
    ]
    bells = {wake_channel(name): bell for name, bell in services.bells.of_sink.items()}
    return Runner(jobs, {**wakeups.events, **bells})
