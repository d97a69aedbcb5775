"""Services → the HTTP application, and how uvicorn is to serve it."""

import asyncio
import logging
import math
import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from uploader.accounting.queue import wakeups
from uploader.bell import Bell
from uploader.bootstrap.processes import Terminal
from uploader.bootstrap.services import Services
from uploader.clock import Clock
from uploader.cores import SharedCore, run_anywhere, share_a_core
from uploader.crashpoints import crash_point
from uploader.database import meta, migrate
from uploader.database.audit_log import note
from uploader.database.engine import Connection
from uploader.domain.audit_log import Action
from uploader.embedded import end_with_parent
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
from uploader.http.server import connections
from uploader.http.server.tls import CertificateInForce
from uploader.http.shared.exchange import ConcurrencyLimit, is_news
from uploader.http.shared.mount import Mount, lookalikes
from uploader.http.shared.operation import DECLARED_PATHS, operations_of
from uploader.http.shared.proxies import Proxies
from uploader.jobs.events import EventKeeper, relay_job, takeover_job, wake_channel
from uploader.jobs.maintenance import (
    COPY_GRACE_SECONDS,
    BallastKeeper,
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
from uploader.meter import QUIET_SECONDS
from uploader.observability import configure_logging, tell_beginnings_of_troubles, tell_ended_troubles
from uploader.service.audit_log import act
from uploader.service.installation import Installation
from uploader.service.leases import Lease
from uploader.settings import Settings


@asynccontextmanager
async def running(
    services: Services, *, jobs: bool, begins: bool = True, shared_core: SharedCore | None = None
) -> AsyncIterator[None]:
    """Let services serve within, with the background jobs if asked for; all are ended in order afterwards. `begins`: an
    installation that is none yet becomes one. Raises ConfigurationError if the database or the store is not fit,
    Unavailable if the database is away."""
    try:
        await migrate.check(services.database)
        await (services.installation.begin() if begins else services.installation.compare())
        if begins:  # what serves or runs jobs; a command signs nothing
            await services.secret.begin()
        await services.storage.prepare()
        await services.spool.prepare()
        with suppress(Unavailable):  # without Redis a server waits for it, and each job asks again
            await services.installation.check_redis()
            await services.probe.run()
        await check_shards(services)
        await services.revocations.begin()
        tell_beginnings_of_troubles()
        # What every process relies on is looked after in one without jobs, too; and a worker may wait for a task in any.
        async with (
            services.exposition,
            wakeups(services.redis, services.work.bells),
            _run(_create_watch(services, shared_core)),
            _jobs(services) if jobs else nullcontext(),
        ):
            yield
    finally:
        services.storage.stop()
        await services.close()


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
    """Refuse another number of shards than before: it is part of every key in Redis, and with another one they would
    not be found. So are their tags, and an installation keeps those it has. Raises ConfigurationError, Unavailable."""
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
    """Return the word in the database for so many shards whose tags are spread. A single one has the tag it always had."""
    return f"{number} spread" if number > 1 else "1"


async def reset_redis(services: Services) -> int:
    """Forget all that Redis knows, which is rebuilt from disk and database, and take the number of shards in force;
    returns how many keys were deleted. Raises ConfigurationError if Redis is another installation's, Unavailable."""
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
        """Return a look that is seldom while nobody asks for anything, and at once when somebody does."""

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
    """Return a job that removes things, and does not run where disk, database and Redis don't belong together."""

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
        Job("copies", CopyKeeper(services.copy_keeping).run_once, first_delay_seconds=COPY_GRACE_SECONDS),
        Job(
            "trash",
            TrashKeeper(services.trash, services.deleted_files, services.admission, lease("trash"), clock).run_once,
        ),
    ]
    jobs += [_checked(job, services.installation) for job in removing]
    jobs += [relay_job(relay) for relay in services.relays]
    if services.relays:
        jobs.append(takeover_job(services.takeover, services.wake_relays))
    jobs.append(Job("gates", services.gates.keep))  # also of gates that are no more
    jobs += [Job(f"tasks of {name}", queue.keep) for name, queue in services.work.queues.items()]
    jobs += [
        Job("ballast keeper", BallastKeeper(services.ballast_keeping, services.installation, clock).run_once),
        Job("joiner", Joiner(services.concatenations).run_once),
        Job("event keeper", EventKeeper(services.watching, clock).run_once),  # also of sinks that are no more
        Reconciler(services.reconciling, services.cleanup, lease("reconciler"), clock).as_job(),
        Job("snapshot", Snapshot(services.overview, clock).run_once),
    ]
    bells = {wake_channel(name): bell for name, bell in services.bells.items()}
    return Runner(jobs, {**announced, **bells})


@contextmanager
def certificate_in_force(settings: Settings) -> Iterator[CertificateInForce | None]:
    """Yield the certificate of this process, if there is one, read anew at each SIGHUP; or the server ends, where that
    says that its terminal is gone. A process that has just been started holds SIGHUP back until it can answer it, and
    reads the files only after that, so that none is left with what was before. Raises ConfigurationError."""
    loop, clock, terminal = asyncio.get_running_loop(), Clock(), Terminal()
    certificate: CertificateInForce | None = None
    reloads: set[asyncio.Task[None]] = set()

    def hang_up() -> None:
        if terminal.is_gone:
            signal.raise_signal(signal.SIGTERM)
        elif certificate is not None:
            task = loop.create_task(certificate.reload(clock.now()))
            reloads.add(task)
            task.add_done_callback(reloads.discard)

    loop.add_signal_handler(signal.SIGHUP, hang_up)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    try:
        if settings.tls_certificate is not None:
            certificate = CertificateInForce(settings)
        yield certificate
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


# How long a thread that computes keeps the interpreter from others: a request takes it back from them dozens of times. What
# it costs is lost in the noise of a busy machine. In turn with Python's 5 ms, a chunk of 64 KiB took 1.29 ms of CPU
# (0.91 to 1.84, 24 rounds) and 1.25 (0.97 to 1.72), one of 8 MiB 34.9 (33.1 to 44.2, eight rounds) and 36.2 (35.6 to 43.1).
_SWITCH_SECONDS = 0.0005

if TYPE_CHECKING:
    import uvicorn

    from uploader.http.auth.jwt import Verifier

# What each server process makes and runs, as uvicorn names it.
APPLICATION = "uploader.bootstrap:create_app"


def build_application(
    services: Services, lifespan: Lifespan | None = None, *, identify: Identify | None = None
) -> Application:
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
        UploadHandlers(services.openings, services.receiving, services.uploads, services.instant, services.delta_bases),
        WholeFileHandlers(services.whole),
        resumable,
        FileHandlers(
            services.files,
            services.folders,
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
        operations,
        authenticator,
        lifespan,
        origins=origins,
        concurrency_limit=ConcurrencyLimit(settings, proxies),
        intake=intake,
        proxies=proxies,
        mount=Mount.at(settings.public_url),
        meter=services.meter,
        revocations=services.revocations,
        pre_creates=services.pre_create_hook.is_on,
        dialect=resumable,
        shutdown_timeout_seconds=settings.shutdown_timeout_seconds,
    )


def check_public_url(settings: Settings) -> None:
    """Raises ConfigurationError where a route below its path would look like another one."""
    prefix = Mount.at(settings.public_url).prefix
    if found := lookalikes(prefix, sorted(DECLARED_PATHS)) if prefix else None:
        raise ConfigurationError(
            f"UPLOADER_PUBLIC_URL: with the path {prefix}, {found[0]} would be taken for {found[1]}: choose another path"
        )


def create_verifier(settings: Settings, clock: Clock) -> "Verifier | None":
    """Raises ConfigurationError."""
    if settings.auth != "jwt":
        return None
    # Here, because who does without JWTs does without the memory that cryptography takes.
    from uploader.http.auth.jwt import Verifier, keys_in_force

    return Verifier(settings, keys_in_force(settings, clock), clock)


# For the answers to requests that have had their time, and for clients to read them.
_LAST_ANSWERS_SECONDS = 3


def server_config(settings: Settings) -> "uvicorn.Config":
    import uvicorn

    from uploader.http.server.http11 import HttpConnection
    from uploader.http.server.tls import Handshake

    return uvicorn.Config(
        APPLICATION,
        factory=True,
        workers=settings.workers,
        http=HttpConnection if settings.tls_certificate is None else Handshake,  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=math.ceil(settings.shutdown_timeout_seconds) + _LAST_ANSWERS_SECONDS,
        # A process that starts on a busy machine is slow, not hung: one in its place would be as slow, and so on for ever.
        timeout_worker_healthcheck=60,
    )


@contextmanager
def connection_state(settings: Settings) -> Iterator[dict[str, Any]]:
    """Make what the connections of a process share, where it need not look after TLS."""
    limits, proxies = connections.connection_limits(settings), Proxies(settings.trusted_proxies)
    with closing(connections.Senders()) as senders:
        yield {
            connections.CONNECTIONS_STATE: connections.Connections(limits, proxies, Mount.at(settings.public_url)),
            connections.SENDERS_STATE: senders,
        }


@asynccontextmanager
async def listening_state(settings: Settings) -> AsyncIterator[dict[str, Any]]:
    """Make the lifespan state of the application, which its connections share. Raises ConfigurationError."""
    from uploader.http.server.tls import HANDSHAKES_STATE, Handshakes

    with ExitStack() as stack:
        certificate = stack.enter_context(certificate_in_force(settings))
        state = stack.enter_context(connection_state(settings))
        if certificate is not None:
            state[HANDSHAKES_STATE] = stack.enter_context(closing(Handshakes(certificate)))
        yield state


def _follow_parent() -> None:
    """End with the process that started this one, or the port would stay taken."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    end_with_parent(signal.SIGKILL)
    if os.getppid() != parent.pid:  # it ended before the kernel was asked
        raise SystemExit(1)


def create_app() -> Application:
    """Make, for uvicorn in each server process, an application that starts and ends its services, set up by the
    environment."""
    _follow_parent()
    connections.keep_freed_memory()
    connections.collect_seldom()
    settings = Settings.load()
    shared_core = None
    if settings.cpu_affinity == "auto" and share_a_core(settings.data) is not None:
        shared_core = SharedCore()
    configure_logging(settings.log_level, settings.log_format)
    logging.getLogger("uvicorn.error").addFilter(is_news)
    services = Services(settings)
    sys.setswitchinterval(_SWITCH_SECONDS)

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[dict[str, Any]]:
        asyncio.get_running_loop().set_default_executor(
            ThreadPoolExecutor(thread_name_prefix="default", initializer=run_anywhere)
        )
        async with running(services, jobs=settings.jobs, shared_core=shared_core), listening_state(settings) as state:
            yield state

    return build_application(services, lifespan)
