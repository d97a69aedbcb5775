"""Settings → stores → services → application: the only wiring."""

import ipaddress
import logging
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uploader.accounting.audit import Audit
from uploader.accounting.challenges import Budgets, Challenges
from uploader.accounting.connection import connect, connect_to_socket
from uploader.accounting.pending import Delays, Pending
from uploader.accounting.scripting import RedisConnection
from uploader.accounting.wakeups import Wakeups
from uploader.clock import Clock
from uploader.crashpoints import crash_point
from uploader.database import meta, migrate
from uploader.database.engine import Database
from uploader.embedded import end_with_parent, socket_path
from uploader.errors import ConfigurationError
from uploader.exposition import Exposition
from uploader.http.admin.handlers import AdminHandlers
from uploader.http.admin.routes import admin_operations
from uploader.http.app import Application, Lifespan
from uploader.http.auth.authenticator import Authenticator
from uploader.http.auth.origins import Origins
from uploader.http.bodies.intake import Intake
from uploader.http.native import routes
from uploader.http.native.uploads import FileHandlers, UploadHandlers
from uploader.http.ops.handlers import OperationsHandlers
from uploader.http.ops.pages import PageHandlers
from uploader.http.server.allocation import collect_seldom, keep_freed_memory
from uploader.http.server.limits import LIMITS_STATE, connection_limits
from uploader.http.server.sendfile import SENDERS_STATE, Senders
from uploader.jobs.cleanup import Cleaner
from uploader.jobs.collector import Collector
from uploader.jobs.expirer import Expirer
from uploader.jobs.flusher import Flusher
from uploader.jobs.merger import Merger
from uploader.jobs.reconciler import Reconciler
from uploader.jobs.runner import Runner
from uploader.jobs.snapshot import Snapshot
from uploader.jobs.sweeper import Sweeper
from uploader.observability import configure_logging
from uploader.service.access.accounts import Accounts
from uploader.service.access.links import Links
from uploader.service.access.owner import owner_token
from uploader.service.audit.reconciling import Reconciling
from uploader.service.audit.recounting import Recounting
from uploader.service.files import Files
from uploader.service.insight.gauges import Gauges
from uploader.service.insight.health import Health
from uploader.service.insight.overview import Overview
from uploader.service.insight.reports import Reports
from uploader.service.upkeep.cleanup import Cleanup
from uploader.service.upkeep.flushing import Flushing
from uploader.service.upkeep.scrubbing import Scrubbing
from uploader.service.upkeep.sweeping import Sweeping
from uploader.service.uploads.admission import Admission
from uploader.service.uploads.closers import Closers
from uploader.service.uploads.instant import BUDGET_WINDOW_SECONDS, Instant
from uploader.service.uploads.merging import Merging
from uploader.service.uploads.opening import Openings
from uploader.service.uploads.receiving import Chunks
from uploader.service.uploads.status import Uploads
from uploader.settings import Settings
from uploader.storage.local.store import LocalStorage

if TYPE_CHECKING:
    from uploader.http.auth.jwt import Verifier

logger = logging.getLogger(__name__)


def database_url(settings: Settings) -> str:
    """The URL of the database in force."""
    return settings.database_url or f"sqlite:///{settings.data.absolute() / 'uploader.db'}"


def redis_directory(settings: Settings) -> Path:
    """Where the embedded Valkey lives."""
    return settings.data.absolute() / "redis"


def _create_redis(settings: Settings) -> RedisConnection:
    if settings.redis_url is not None:
        return connect(settings.redis_url)
    return connect_to_socket(socket_path(redis_directory(settings)))


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that a server, a worker or a command needs, made once a process."""

    settings: Settings
    clock: Clock
    database: Database
    storage: LocalStorage
    redis: RedisConnection
    pending: Pending
    accounts: Accounts
    closers: Closers
    merging: Merging
    flushing: Flushing
    uploads: Uploads
    openings: Openings
    instant: Instant
    chunks: Chunks
    files: Files
    reports: Reports
    overview: Overview
    links: Links
    health: Health
    gauges: Gauges
    exposition: Exposition
    sweeping: Sweeping
    cleanup: Cleanup
    recounting: Recounting
    reconciling: Reconciling
    scrubbing: Scrubbing

    def waker(self) -> Wakeups:
        """Listens for what ends the sleep of the jobs."""
        queues = [*self.pending.flush_queues, *self.pending.merge_queues]
        return Wakeups(self.redis, [queue.wake_channel for queue in queues])

    def runner(self, waker: Wakeups) -> Runner:
        """The background jobs."""
        settings = self.settings
        jobs = [job for queue in self.pending.flush_queues for job in Flusher(queue, self.flushing).as_jobs()]
        jobs += [Merger(queue, self.merging).as_job() for queue in self.pending.merge_queues]
        jobs += [Sweeper(shard, self.sweeping).as_job() for shard in range(self.pending.shards)]
        collector = Collector(
            self.files, self.cleanup, self.clock, closed_retention_seconds=settings.closed_retention_seconds
        )
        expirer = Expirer(self.database, self.closers, self.clock, expiry_seconds=settings.upload_expiry_seconds)
        cleaner = Cleaner(self.cleanup, self.clock)
        reconciler = Reconciler(self.reconciling)
        snapshot = Snapshot(self.overview, self.clock)
        jobs += [collector.as_job(), expirer.as_job(), cleaner.as_job(), reconciler.as_job(), snapshot.as_job()]
        return Runner(jobs, waker.events)

    async def close(self) -> None:
        await self.merging.close()
        await self.storage.drain()
        self.storage.close()
        await self.redis.aclose()
        await self.database.close()


def create_services(settings: Settings, clock: Clock | None = None) -> Services:
    """Connects to nothing yet."""
    clock = clock or Clock()
    database = Database(database_url(settings))
    storage = LocalStorage(settings.data, durable=settings.durability == "power")
    redis = _create_redis(settings)
    delays = Delays(
        quiet_seconds=settings.quiet_interval_seconds,
        max_delay_seconds=settings.max_delay_seconds,
        max_pending_bytes=settings.max_pending_bytes,
        lease_seconds=settings.claim_lease_seconds,
    )
    pending = Pending(redis, shards=settings.shards, delays=delays)
    closers = Closers(database, storage, pending, clock)
    merging = Merging(
        database,
        storage,
        pending,
        closers,
        clock,
        wait_seconds=settings.merge_wait_seconds,
        lease_seconds=settings.claim_lease_seconds,
    )
    uploads = Uploads(settings, database, storage, pending, closers, merging, clock)
    challenges = Challenges(
        redis,
        shards=settings.shards,
        budgets=Budgets(
            max_probes=settings.proof_max_probes,
            max_unproven=settings.proof_max_failures,
            window_seconds=BUDGET_WINDOW_SECONDS,
        ),
    )
    admission = Admission(settings, database, storage, clock)
    instant = Instant(settings, database, storage, closers, uploads, challenges, clock)
    files = Files(database, storage)
    recounting = Recounting(database)
    return Services(
        settings=settings,
        clock=clock,
        database=database,
        storage=storage,
        redis=redis,
        pending=pending,
        accounts=Accounts(database, clock, default_total_space_bytes=settings.default_total_space_bytes),
        closers=closers,
        merging=merging,
        flushing=Flushing(database, pending, closers, clock),
        uploads=uploads,
        openings=Openings(settings, database, storage, instant, uploads, admission, clock),
        instant=instant,
        chunks=Chunks(storage, pending, closers, uploads),
        files=files,
        reports=Reports(database, files, clock),
        overview=Overview(database, storage, admission, clock),
        links=Links(database, clock, settings.link_secret, lifetime_seconds=settings.link_lifetime_seconds),
        gauges=Gauges(database, storage, pending),
        exposition=Exposition(settings.data.absolute() / "metrics", alone=settings.workers == 1),
        health=Health(database, storage, pending),
        sweeping=Sweeping(database, pending, closers),
        cleanup=Cleanup(database, storage, closers, clock),
        recounting=recounting,
        reconciling=Reconciling(database, storage, Audit(redis, shards=settings.shards), closers, recounting, clock),
        scrubbing=Scrubbing(database, storage, clock),
    )


@asynccontextmanager
async def running(services: Services, *, jobs: bool) -> AsyncIterator[None]:
    """The time in which services serve, with the background jobs if asked for; all ended in order afterwards.

    Raises ConfigurationError if the database or the data directory is not fit, Unavailable if the database is away.
    """
    try:
        await migrate.check(services.database)
        await _check_shards(services)
        await services.storage.prepare()
        async with services.exposition, _jobs(services) if jobs else nullcontext():
            yield
    finally:
        services.storage.stop()
        await services.close()


@asynccontextmanager
async def _jobs(services: Services) -> AsyncIterator[None]:
    async with services.waker() as waker:
        runner = services.runner(waker)
        runner.start()
        try:
            yield
        finally:
            services.storage.stop()
            await runner.stop()


async def _check_shards(services: Services) -> None:
    """The number of shards is part of every key in Redis: another one would not find them."""
    wanted = str(services.settings.shards)
    stored = await meta.remember(services.database, "shards", wanted)
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


def build_application(services: Services, lifespan: Lifespan | None = None) -> Application:
    """The HTTP application over services."""
    settings = services.settings
    origins = Origins(settings.cors_origins)
    verifier = _create_verifier(settings, services.clock)
    authenticator = Authenticator(settings, services.accounts, services.links, origins, verifier)
    intake = Intake(settings, services.storage)
    uploads = UploadHandlers(services.openings, services.instant, services.uploads, services.chunks, intake)
    operations = [
        *routes.upload_operations(uploads),
        *routes.file_operations(FileHandlers(services.files, services.links)),
        *admin_operations(
            AdminHandlers(
                services.reports,
                services.overview,
                services.recounting,
                services.accounts,
                services.uploads,
                services.clock,
            )
        ),
        *routes.open_operations(
            OperationsHandlers(settings, services.openings, services.health, services.gauges, services.exposition),
            settings,
        ),
        *routes.page_operations(PageHandlers(settings)),
    ]
    return Application(operations, authenticator, lifespan, origins=origins, intake=intake)


def _create_verifier(settings: Settings, clock: Clock) -> "Verifier | None":
    """Raises ConfigurationError."""
    if settings.auth != "jwt":
        return None
    # Here, because who does without JWTs does without the memory that cryptography takes.
    from uploader.http.auth.jwt import Verifier
    from uploader.http.auth.keys import keys_in_force

    return Verifier(settings, keys_in_force(settings, clock), clock)


def check_settings(settings: Settings) -> None:
    """What can be told before anything starts. Raises ConfigurationError."""
    if settings.auth == "none" and not _is_loopback(settings.host):
        raise ConfigurationError(
            f"UPLOADER_AUTH: 'none' lets everybody in; it is refused on {settings.host}, which is not a loopback address"
        )
    _create_verifier(settings, Clock())


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def warn_of_settings(settings: Settings) -> None:
    """Say at the start what a setting gives away."""
    if settings.instant == "trust":
        logger.warning("UPLOADER_INSTANT=trust: whoever knows the MD5 and size of a file can get it")
    if settings.auth == "jwt" and (settings.jwt_jwks or "").startswith("http://"):
        logger.warning("UPLOADER_JWT_JWKS: over plain http whoever is on the way can put in keys of their own")
    if settings.auth == "jwt" and settings.jwt_jwks is not None and settings.jwt_audience is None:
        logger.warning("UPLOADER_JWT_AUDIENCE is not set: tokens that its issuer made for others are taken, too")


async def prepare_database(settings: Settings) -> None:
    """Migrate an embedded database; an external one has to be migrated already. Raises ConfigurationError, Unavailable."""
    database = Database(database_url(settings))
    try:
        if settings.database_url is None:
            await migrate.upgrade(database)
        else:
            await migrate.check(database)
    finally:
        await database.close()


async def prepare_installation(settings: Settings) -> str | None:
    """As `prepare_database`, and make the owner at the first start; the owner's token where it lies on disk."""
    settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    await prepare_database(settings)
    if settings.auth != "token":
        return None
    database = Database(database_url(settings))
    try:
        accounts = Accounts(database, Clock(), default_total_space_bytes=settings.default_total_space_bytes)
        return await owner_token(settings.data, accounts)
    finally:
        await database.close()


def _follow_parent() -> None:
    """A server process of several ends with the one that started them, or the port would stay taken."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    end_with_parent(signal.SIGKILL)
    if os.getppid() != parent.pid:  # it ended before the kernel was asked
        raise SystemExit(1)


def create_app() -> Application:
    """For uvicorn, in each server process: an application that starts and ends its services, set up by the environment."""
    _follow_parent()
    keep_freed_memory()
    collect_seldom()
    settings = Settings.load()
    configure_logging(settings.log_level, settings.log_format)
    services = create_services(settings)

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[dict[str, Any]]:
        async with running(services, jobs=settings.jobs):
            with closing(Senders()) as senders:
                yield {LIMITS_STATE: connection_limits(settings), SENDERS_STATE: senders}

    return build_application(services, lifespan)
