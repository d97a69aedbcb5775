"""Services → the HTTP application, and how uvicorn is to serve it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from uploader.accounting.queue import wakeups
from uploader.bootstrap.services import Services
from uploader.database import meta, migrate
from uploader.database.audit_log import note
from uploader.database.engine import Connection
from uploader.domain.audit_log import Action
from uploader.errors import ConfigurationError, Unavailable
from uploader.http.admin import AdminHandlers, AuditLogHandlers, EventHandlers, TokenHandlers
from uploader.http.app import Application, Lifespan
from uploader.http.auth.authenticator import Authenticator, Identify, Origins, WrongTokens
from uploader.http.bodies.intake import Intake
from uploader.http.native.files import FileHandlers
from uploader.http.native.links import AdminLinkHandlers, ShareHandlers, VisitorHandlers
from uploader.http.native.trash import TrashHandlers
from uploader.http.native.uploads import UploadHandlers
from uploader.http.native.whole_file import WholeFileHandlers
from uploader.http.native.work import WorkHandlers
from uploader.http.ops import OpsHandlers, PageHandlers, answer_link_page, ops_operations
from uploader.http.resumable.dialect import ResumableHandlers
from uploader.http.resumable.rufh import RufhHandlers
from uploader.http.resumable.tus import TusHandlers
from uploader.http.shared.exchange import ConcurrencyLimit
from uploader.http.shared.mount import Mount, lookalikes
from uploader.http.shared.operation import DECLARED_PATHS, operations_of
from uploader.http.shared.proxies import Proxies
from uploader.jobs.events import EventKeeper, relay_job, takeover_job, wake_channel
from uploader.jobs.maintenance import (
    COPY_GRACE_SECONDS,
    BallastKeeper,
    BulkFinisher,
    Cleaner,
    Collector,
    CopyKeeper,
    LinkKeeper,
    Reconciler,
    Scrubber,
    Snapshot,
    TrashKeeper,
)
from uploader.jobs.runner import Job, Runner
from uploader.jobs.uploads import Expirer, Flusher, Joiner, Merger, Sweeper
from uploader.runtime.bell import Bell
from uploader.runtime.clock import Clock
from uploader.runtime.cores import SharedCore
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.meter import QUIET_SECONDS
from uploader.runtime.observability import tell_beginnings_of_troubles, tell_ended_troubles
from uploader.service.audit_log import act
from uploader.service.installation import Installation
from uploader.service.leases import Lease
from uploader.settings import Settings


@asynccontextmanager
async def running(services: Services, *, jobs: bool, begins: bool = True) -> AsyncIterator[None]:
    """Start services, with background jobs if `jobs`; stop and close them in order on exit. Raises as `serving`."""
    async with closing_services(services), serving(services, jobs=jobs, begins=begins):
        yield


@asynccontextmanager
async def closing_services(services: Services) -> AsyncIterator[None]:
    try:
        yield
    finally:
        services.storage.stop()
        await services.close()


@asynccontextmanager
async def serving(
    services: Services, *, jobs: bool, begins: bool = True, shared_core: SharedCore | None = None
) -> AsyncIterator[None]:
    """Check and prepare everything, then run the watch, and the background jobs if `jobs`. May be entered again after an
    error. `begins`: begin a new installation if there is none. Raises ConfigurationError if the database or the store is
    unfit, Unavailable if the database is away, StorageFailed and StorageFull."""
    try:
        await _begin(services, begins)
    except Exception:
        await asyncio.to_thread(services.database.drop_connections)
        raise
    tell_beginnings_of_troubles()
    # The watch runs also in processes without jobs. Workers may wait for tasks in any process.
    async with (
        services.exposition,
        wakeups(services.redis, services.work.bells),
        _run(_create_watch(services, shared_core)),
        _jobs(services) if jobs else nullcontext(),
    ):
        yield


async def _begin(services: Services, begins: bool) -> None:
    await migrate.check(services.database)
    await (services.installation.begin() if begins else services.installation.compare())
    if begins:  # for servers and jobs; a command signs nothing
        await services.secret.begin()
    await services.storage.prepare()
    await services.spool.prepare()
    with suppress(Unavailable):  # without Redis a server waits for it, and each job asks again
        await services.probe.run()
        await services.installation.check_redis()
    await check_shards(services)
    await services.revocations.begin()


@asynccontextmanager
async def _run(runner: Runner) -> AsyncIterator[None]:
    runner.start()
    try:
        yield
    finally:
        await runner.stop()


@asynccontextmanager
async def _jobs(services: Services) -> AsyncIterator[None]:
    queues = [*services.pending.flush_queues, *services.pending.merge_queues]
    announced = {queue.wake_channel: Bell() for queue in queues}
    async with wakeups(services.redis, announced), _run(_create_runner(services, announced)):
        try:
            yield
        finally:
            services.storage.stop()


async def check_shards(services: Services) -> None:
    """Refuse a changed number of shards. Every key in Redis contains the number and the tag of its shard; with other ones,
    keys would not be found. So an installation keeps its tags, too. Raises ConfigurationError, Unavailable."""
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
    """Return the word in the database for a number of shards with spread tags. A single shard keeps its original tag."""
    return f"{number} spread" if number > 1 else "1"


async def reset_redis(services: Services) -> int:
    """Delete all keys in Redis, which are rebuilt from disk and database, and store the configured number of shards. Return
    the number of deleted keys. Raises ConfigurationError if Redis belongs to another installation, Unavailable."""
    await services.installation.check_redis()
    deleted = await services.pending.reset()
    crash_point("reset.after_keys")
    told = act(Action.REDIS_RESET, services.clock.now(), subject="redis", details={"keys": deleted})

    async def replace_number(connection: Connection) -> None:
        await meta.replace_fact(connection, "shards", _spread(services.settings.shards))
        await note(connection, told)

    await services.database.transact(replace_number)
    return deleted


_REQUESTS, _REFUSALS = "requests", "refusals"
_PUBLISH_SECONDS = 1.0


def _create_watch(services: Services, shared_core: SharedCore | None) -> Runner:
    meter = services.meter

    async def publish() -> float:
        tell_ended_troubles()
        is_news = await services.exposition.publish()
        return QUIET_SECONDS if meter.is_quiet and not is_news else _PUBLISH_SECONDS

    def seldom(look: Callable[[], Awaitable[float]]) -> Callable[[], Awaitable[float]]:
        """Return a job function with long pauses while there are no requests."""

        async def run_once() -> float:
            pause_seconds = await look()
            return QUIET_SECONDS if meter.is_quiet else pause_seconds

        return run_once

    looks = {
        "watch": seldom(services.installation.look),
        "ballast": seldom(services.ballast_keeping.look),
        "costs": seldom(services.costs.tell),
        "exposition": publish,
    }
    if shared_core is not None:
        looks["core"] = seldom(shared_core.look)
    jobs = [Job(name, look, wake_channel=_REQUESTS) for name, look in looks.items()]
    jobs.append(Job("redis recovery", services.redis_recovery.look, wake_channel=_REFUSALS))
    return Runner(jobs, {_REQUESTS: meter.bell, _REFUSALS: services.probe.refusals.bell})


def _checked(job: Job, installation: Installation) -> Job:
    """Return a job that runs only if disk, database and Redis belong together."""

    async def run_once() -> float:
        await installation.check()
        return await job.run_once()

    return replace(job, run_once=run_once)


def _create_runner(services: Services, announced: Mapping[str, Bell]) -> Runner:
    settings, clock, pending = services.settings, services.clock, services.pending
    jobs = [job for queue in pending.flush_queues for job in Flusher(queue, services.flushing).as_jobs()]
    jobs += [Merger(queue, services.merging).as_job() for queue in pending.merge_queues]
    jobs += [Sweeper(queue, services.sweeping).as_job() for queue in pending.flush_queues]
    collector = Collector(
        services.files,
        services.closers,
        services.cleanup,
        services.audit_log,
        clock,
        closed_retention_seconds=settings.closed_retention_seconds,
    )
    lease = partial(Lease, services.database, clock)
    removing = [
        Job("collector", collector.run_once),
        Job("expirer", Expirer(services.expiry, clock).run_once),
        Job("link keeper", LinkKeeper(services.link_keeping, clock).run_once),
        Cleaner(services.cleanup, lease("cleanup"), clock).as_job(),
        Job("scrubber", Scrubber(services.scrubbing, rate_bytes_per_second=settings.scrub_rate_bytes).run_once),
        Job("copies", CopyKeeper(services.copies.keep).run_once, first_delay_seconds=COPY_GRACE_SECONDS),
        Job(
            "trash",
            TrashKeeper(services.trash, services.deleted_files, services.admission, lease("trash"), clock).run_once,
        ),
    ]
    jobs += [_checked(job, services.installation) for job in removing]
    jobs += [relay_job(relay) for relay in services.relays]
    if services.relays:
        jobs.append(takeover_job(services.takeover, services.wake_relays))
    jobs.append(Job("gates", services.gates.keep))  # also for removed gates
    jobs += [Job(f"tasks of {name}", queue.keep) for name, queue in services.work.queues.items()]
    jobs += [
        Job("ballast keeper", BallastKeeper(services.ballast_keeping, services.installation, clock).run_once),
        Job("joiner", Joiner(services.concatenations).run_once),
        Job("bulk operations", BulkFinisher(services.bulk_operations).run_once),
        Job("event keeper", EventKeeper(services.watching, clock).run_once),  # also for removed sinks
        Reconciler(services.reconciling, services.cleanup, lease("reconciler"), clock).as_job(),
        Job("snapshot", Snapshot(services.overview, clock).run_once),
    ]
    bells = {wake_channel(name): bell for name, bell in services.bells.items()}
    return Runner(jobs, {**announced, **bells})


if TYPE_CHECKING:
    from uploader.http.auth.jwt import Verifier


def build_application(
    services: Services,
    lifespan: Lifespan | None = None,
    *,
    identify: Identify | None = None,
    paths: Collection[str] | None = None,
) -> Application:
    """Build the HTTP application. `paths`: the only paths to answer; None: all."""
    settings = services.settings
    origins = Origins(settings.cors_origins)
    verifier = create_verifier(settings, services.clock)
    authenticator = Authenticator(
        settings, services.accounts, services.signed_urls, services.visitors, origins, verifier, identify
    )
    intake = Intake(settings, services.spool)
    proxies = Proxies(settings.trusted_proxies)
    resumable = ResumableHandlers(
        TusHandlers(services.openings, services.appends, services.uploads, services.concatenations, proxies),
        RufhHandlers(
            services.openings,
            services.appends,
            services.uploads,
            services.clock,
            sends_interim=settings.interim_responses,
            expiry_seconds=settings.upload_expiry_seconds,
            max_append_size_bytes=settings.max_append_size_bytes,
        ),
    )
    link_handlers = (
        (
            ShareHandlers(services.sharing),
            VisitorHandlers(
                services.visitors,
                services.shared,
                services.files,
                services.signed_urls,
                WrongTokens(settings.max_wrong_tokens),
                proxies,
                answer_link_page if settings.web_pages else None,
            ),
            AdminLinkHandlers(services.sharing),
        )
        if settings.links == "on"
        else ()
    )
    handlers = (
        UploadHandlers(
            services.openings,
            services.receiving,
            services.uploads,
            services.concatenations,
            services.instant,
            services.delta_bases,
        ),
        WholeFileHandlers(services.whole),
        resumable,
        FileHandlers(
            services.files,
            services.folders,
            services.bulk_operations,
            services.signed_urls,
            services.delta_bases,
            sends_on=settings.s3_presigned_downloads,
        ),
        TrashHandlers(services.deleted_files, services.signed_urls),
        *link_handlers,
        AdminHandlers(
            services.files,
            services.reports,
            services.overview,
            services.recounting,
            services.accounts,
            services.uploads,
            services.queues,
            services.costs,
            services.clock,
        ),
        TokenHandlers(services.accounts, settings.auth),
        EventHandlers(services.watching, services.reviewing, services.clock),
        WorkHandlers(services.work),
        AuditLogHandlers(services.audit_log_reports, services.clock),
    )
    ops = OpsHandlers(settings, services.openings, services.health, services.gauges, services.exposition)
    operations = [*operations_of(*handlers), *ops_operations(ops, PageHandlers(settings), settings)]
    return Application(
        [each for each in operations if paths is None or each.route.partition(" ")[2] in paths],
        authenticator,
        lifespan,
        origins=origins,
        concurrency_limit=ConcurrencyLimit(settings, proxies),
        intake=intake,
        proxies=proxies,
        mount=Mount.at(settings.public_url),
        meter=services.meter,
        revocations=services.revocations,
        start=services.start,
        pre_creates=services.pre_create_hook.is_on,
        dialect=resumable,
        shutdown_timeout_seconds=settings.shutdown_timeout_seconds,
    )


def check_public_url(settings: Settings) -> None:
    """Raises ConfigurationError if a route below the path of the public URL looks like another route."""
    prefix = Mount.at(settings.public_url).prefix
    if found := lookalikes(prefix, sorted(DECLARED_PATHS)) if prefix else None:
        raise ConfigurationError(
            f"UPLOADER_PUBLIC_URL: with the path {prefix}, {found[0]} would be taken for {found[1]}: choose another path"
        )


def create_verifier(settings: Settings, clock: Clock) -> "Verifier | None":
    """Raises ConfigurationError."""
    if settings.auth != "jwt":
        return None
    # Imported here to save the memory of `cryptography` in installations without JWTs.
    from uploader.http.auth.jwt import Verifier, keys_in_force

    return Verifier(settings, keys_in_force(settings, clock), clock)
