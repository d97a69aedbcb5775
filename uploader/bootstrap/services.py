"""Settings → stores and sinks → services: everything that a server, a worker or a command needs, made once a process."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from uploader import embedded
from uploader.accounting.keys import Shards
from uploader.accounting.pending import Audit, Budgets, Challenges, Delays, Pending
from uploader.accounting.redis import RedisConnection, RedisMark, connect, connect_to_socket
from uploader.clock import Clock
from uploader.database.engine import Database
from uploader.database.outbox import Outbox
from uploader.observability import Exposition
from uploader.service.access import Accounts, Links
from uploader.service.append import Appends, DeferredLength
from uploader.service.audit_log import AuditLog, AuditLogReports
from uploader.service.backup import Backups, Restoring
from uploader.service.chunk import ChunksAtOnce, Receiving
from uploader.service.cleanup import Cleanup, Expiry
from uploader.service.close import Closers
from uploader.service.concatenate import Concatenations, Filling, Joining
from uploader.service.delta import DeltaBases
from uploader.service.events import Relay, Reviewing, Watching
from uploader.service.files import Files, Folders
from uploader.service.flush import Flushing, Sweeping
from uploader.service.heal import Healing
from uploader.service.health import Gauges, Health, Integrity
from uploader.service.ids import new_id
from uploader.service.installation import Installation
from uploader.service.instant import BUDGET_WINDOW_SECONDS, Instant
from uploader.service.merge import Merging
from uploader.service.open import Admission, Openings
from uploader.service.precreate import TIMEOUT_SECONDS, PreCreateHook
from uploader.service.reconcile import Reconciling, Recounting
from uploader.service.reports import Overview, Queues, Reports
from uploader.service.scrub import Goals, Scrubbing
from uploader.service.status import Uploads
from uploader.service.trash import TrashKeeping
from uploader.service.whole import Storing, WholeFiles
from uploader.settings import Settings
from uploader.sinks.base import EventSink
from uploader.sinks.configuration import (
    EventSettings,
    KafkaSettings,
    SinkSettings,
    StreamSettings,
    WebhookSettings,
    load_events,
)
from uploader.sinks.stream import KafkaSink, StreamSink
from uploader.sinks.webhook import SignedPost, WebhookSink
from uploader.storage.local.store import LocalStore
from uploader.storage.store import Spool, Store


def database_url(settings: Settings) -> str:
    """The URL of the database in force."""
    return settings.database_url or f"sqlite:///{settings.data.absolute() / 'uploader.db'}"


def sqlite_path(settings: Settings) -> Path | None:
    """The file of a SQLite; None of another database."""
    url = database_url(settings)
    name = url.removeprefix("sqlite:///")
    return None if name in (url, "", ":memory:") else Path(name)


def redis_directory(settings: Settings) -> Path:
    """Where the embedded Valkey lives."""
    return settings.data.absolute() / "redis"


def list_aside(settings: Settings) -> list[Path]:
    """Directories of the embedded Valkey, if that is in force, that it could not load and that are still there; blocks."""
    return [] if settings.redis_url is not None else embedded.list_aside(redis_directory(settings))


def create_redis(settings: Settings) -> RedisConnection:
    """Connects to nothing yet."""
    connections, timeout_seconds = settings.redis_connections, settings.redis_timeout_seconds
    if settings.redis_url is not None:
        return connect(settings.redis_url, connections=connections, timeout_seconds=timeout_seconds)
    path = embedded.socket_path(redis_directory(settings))
    return connect_to_socket(path, connections=connections, timeout_seconds=timeout_seconds)


def create_storage(settings: Settings, database: Database, clock: Clock) -> Store:
    """Connects to nothing yet. Raises ConfigurationError."""
    address = settings.bucket()
    if address is None:
        return LocalStore(
            settings.data, durable=settings.durability == "power", keeps_trash=settings.trash_retention_seconds > 0
        )
    # Here, because who keeps all on a disk does without the memory that they take.
    from uploader.database.ledger import LedgerRows
    from uploader.storage.s3.bucket import Bucket
    from uploader.storage.s3.store import S3Store

    smallest = settings.min_chunk_size_bytes
    return S3Store(Bucket(address), LedgerRows(database), clock, min_chunk_size_bytes=smallest)


def create_precreate_hook(settings: EventSettings, clock: Clock) -> PreCreateHook:
    """Connects to nothing yet."""
    asked = settings.pre_create
    if asked is None:
        return PreCreateHook(None, allows_on_failure=True)
    post = SignedPost(asked.to, clock, timeout_seconds=TIMEOUT_SECONDS)
    return PreCreateHook(post, allows_on_failure=asked.allows_on_failure, timeout_seconds=TIMEOUT_SECONDS)


class Bells:
    """An event for each sink, which ends the sleep of its relay in this process."""

    def __init__(self, settings: EventSettings) -> None:
        self.of_sink = {name: asyncio.Event() for name in settings.sinks}

    def ring(self) -> None:
        for bell in self.of_sink.values():
            bell.set()


def create_outbox(settings: EventSettings, clock: Clock, bells: Bells) -> Outbox | None:
    """None if nobody is told of anything."""
    return Outbox(settings.sinks_of, new_id, clock.now, bells.ring) if settings.sinks else None


def create_relays(
    settings: EventSettings, database: Database, redis: RedisConnection, clock: Clock, source: Callable[[], str]
) -> list[Relay]:
    """Connects to nothing yet."""
    return [
        Relay(name, _create_sink(sink, redis, clock), database, clock, source) for name, sink in settings.sinks.items()
    ]


def _create_sink(sink: SinkSettings, redis: RedisConnection, clock: Clock) -> EventSink:
    match sink:
        case WebhookSettings():
            return WebhookSink(sink.to, clock)
        case StreamSettings():
            client = redis if sink.url is None else connect(sink.url)
            return StreamSink(client, sink.stream, sink.maxlen, owns=sink.url is not None)
        case KafkaSettings():
            return KafkaSink(sink.topic, sink.options)


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that a server, a worker or a command needs, made once a process."""

    settings: Settings
    clock: Clock
    database: Database
    storage: Store
    spool: Spool
    redis: RedisConnection
    pending: Pending
    installation: Installation
    accounts: Accounts
    closers: Closers
    merging: Merging
    flushing: Flushing
    uploads: Uploads
    openings: Openings
    instant: Instant
    receiving: Receiving
    appends: Appends
    whole: WholeFiles
    concatenations: Concatenations
    files: Files
    bases: DeltaBases
    folders: Folders
    reports: Reports
    overview: Overview
    queues: Queues
    links: Links
    health: Health
    gauges: Gauges
    exposition: Exposition
    sweeping: Sweeping
    expiry: Expiry
    cleanup: Cleanup
    recounting: Recounting
    reconciling: Reconciling
    scrubbing: Scrubbing
    trash: TrashKeeping
    admission: Admission
    pre_create_hook: PreCreateHook
    relays: list[Relay]
    bells: Bells
    watching: Watching
    reviewing: Reviewing
    backups: Backups
    restoring: Restoring
    audit_log: AuditLog
    audit_log_reports: AuditLogReports

    async def close(self) -> None:
        await self.appends.close()
        await self.concatenations.close()
        await self.merging.close()
        for relay in self.relays:
            await relay.close()
        self.pre_create_hook.close()
        await self.storage.drain()
        self.storage.close()
        self.spool.close()
        await self.redis.aclose()
        await self.database.close()


def create_services(settings: Settings, clock: Clock | None = None) -> Services:
    """Connects to nothing yet. Raises ConfigurationError for the file of UPLOADER_EVENTS."""
    clock = clock or Clock()
    events = load_events(settings.events)
    bells = Bells(events)
    database = Database(
        database_url(settings),
        connections=settings.database_connections,
        timeout_seconds=settings.database_timeout_seconds,
        outbox=create_outbox(events, clock, bells),
    )
    storage = create_storage(settings, database, clock)
    audit_log = AuditLog(database, clock, retention_seconds=settings.audit_retention_seconds)
    healing = Healing(database, storage, clock)
    retention = settings.trash_retention_seconds
    trash = TrashKeeping(database, storage, healing, audit_log, clock, retention_seconds=retention)
    redis = create_redis(settings)
    shards = Shards(settings.shards)
    delays = Delays(
        quiet_seconds=settings.quiet_interval_seconds,
        max_delay_seconds=settings.max_delay_seconds,
        max_pending_bytes=settings.max_pending_bytes,
        lease_seconds=settings.claim_lease_seconds,
    )
    pending = Pending(redis, shards=shards, delays=delays)
    installation = Installation(database, storage, RedisMark(redis), clock)
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
        shards=shards,
        budgets=Budgets(
            max_probes=settings.proof_max_probes,
            max_unproven=settings.proof_max_failures,
            window_seconds=BUDGET_WINDOW_SECONDS,
        ),
    )
    admission = Admission(settings, database, storage, trash, clock)
    pre_create_hook = create_precreate_hook(events, clock)
    instant = Instant(
        settings, database, storage, storage, healing, closers, uploads, challenges, pre_create_hook, clock
    )
    at_once = ChunksAtOnce(settings.max_concurrent_chunks)
    receiving = Receiving(database, storage, pending, closers, uploads, at_once=at_once)
    max_bytes = min(settings.max_chunk_size_bytes, settings.max_file_size_bytes)
    openings = Openings(settings, database, storage, instant, uploads, receiving, admission, pre_create_hook, clock)
    growing = DeferredLength(database, closers, admission, clock, max_file_size_bytes=openings.max_file_size_bytes)
    storing = Storing(database, storage, closers, uploads, admission, pre_create_hook, clock, max_bytes=max_bytes)
    concatenations = Concatenations(
        settings,
        database,
        uploads,
        Joining(settings, database, storage, closers, admission, clock),
        Filling(database, storage, closers, receiving, merging),
        pre_create_hook,
        clock,
        max_file_size_bytes=openings.max_file_size_bytes,
    )
    files = Files(database, storage, healing, clock)
    recounting = Recounting(database, clock)
    samples = settings.scrub == "sample" if settings.scrub is not None else settings.storage is not None
    goals = Goals(settings.scrub_first_seconds, settings.scrub_every_seconds, samples=samples)
    scrubbing = Scrubbing(database, healing, clock, goals)
    integrity = Integrity(database, scrubbing)
    aside = partial(list_aside, settings)
    watching = Watching(tuple(events.sinks), database, clock)
    relays = create_relays(events, database, redis, clock, lambda: f"/uploader/{installation.id}")
    return Services(
        settings=settings,
        clock=clock,
        database=database,
        storage=storage,
        spool=Spool(settings.data),
        redis=redis,
        pending=pending,
        installation=installation,
        accounts=Accounts(database, clock, default_total_space_bytes=settings.default_total_space_bytes),
        closers=closers,
        merging=merging,
        flushing=Flushing(database, pending, closers, clock),
        uploads=uploads,
        openings=openings,
        instant=instant,
        receiving=receiving,
        appends=Appends(
            storage,
            pending,
            closers,
            uploads,
            receiving,
            growing,
            at_once=at_once,
            admission=admission,
            max_whole_bytes=max_bytes,
            part_completed=concatenations.part_completed,
        ),
        whole=WholeFiles(storing, at_once),
        concatenations=concatenations,
        files=files,
        bases=DeltaBases(files, storage, healing),
        folders=Folders(database),
        reports=Reports(database, files, clock),
        overview=Overview(database, storage, admission, clock),
        queues=Queues(database, pending, clock),
        links=Links(database, clock, settings.link_secret, lifetime_seconds=settings.link_lifetime_seconds),
        gauges=Gauges(database, storage, pending, integrity, watching, aside),
        exposition=Exposition(settings.data.absolute() / "metrics", alone=settings.workers == 1),
        health=Health(database, storage, pending, integrity, installation, watching, aside, clock),
        sweeping=Sweeping(database, pending, closers),
        expiry=Expiry(database, closers, expiry_seconds=settings.upload_expiry_seconds),
        cleanup=Cleanup(database, storage, closers, audit_log, clock),
        recounting=recounting,
        reconciling=Reconciling(database, storage, Audit(redis, shards=shards), closers, recounting, audit_log, clock),
        scrubbing=scrubbing,
        trash=trash,
        admission=admission,
        pre_create_hook=pre_create_hook,
        relays=relays,
        reviewing=Reviewing({relay.name: relay for relay in relays}, database, clock),
        bells=bells,
        watching=watching,
        backups=Backups(database, storage, installation, audit_log, settings.data, clock),
        restoring=Restoring(database, storage, pending, RedisMark(redis), settings.data),
        audit_log=audit_log,
        audit_log_reports=AuditLogReports(database),
    )
