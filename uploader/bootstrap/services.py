"""Settings → stores and sinks → services: everything that a server, a worker or a command needs, made once per process."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from uploader.accounting.costs import CostsByHour
from uploader.accounting.keys import Shards
from uploader.accounting.pending import Audit, Challenges, Pending
from uploader.accounting.probe import Probe
from uploader.accounting.queue import DelayQueue
from uploader.accounting.redis import RedisConnection, RedisMark, connect, connect_to_socket
from uploader.database.copies import RollingCopies
from uploader.database.engine import Database
from uploader.database.outbox import Outbox, Told
from uploader.database.trash import TrashPolicy
from uploader.diagnosis.health import Gauges, Health, Integrity, Start
from uploader.domain.reasons import Check
from uploader.runtime import embedded
from uploader.runtime.bell import Bell
from uploader.runtime.clock import Clock
from uploader.runtime.meter import Meter
from uploader.runtime.observability import Exposition
from uploader.service.access import Accounts
from uploader.service.append import Appends, DeferredLength
from uploader.service.audit_log import AuditLog, AuditLogReports
from uploader.service.backup import Backups, Restoring
from uploader.service.ballast import BallastKeeping
from uploader.service.bulk import BulkOperations
from uploader.service.chunk import ConcurrentBodies, Receiving
from uploader.service.cleanup import Cleanup, Expiry
from uploader.service.close import Closers
from uploader.service.concatenate import Concatenations, Filling, Joining
from uploader.service.costs import Costs
from uploader.service.deleted import DeletedFiles
from uploader.service.delta import DeltaBases
from uploader.service.events import Relay, Reviewing, Takeover, Watching
from uploader.service.files import Files, Folders
from uploader.service.flush import Flushing, Sweeping
from uploader.service.gates import Gates
from uploader.service.heal import Healing
from uploader.service.ids import new_id
from uploader.service.installation import Installation
from uploader.service.instant import Instant
from uploader.service.leases import Interruption, ProcessMark
from uploader.service.links import LinkKeeping, Shared, Sharing, Visitors
from uploader.service.maintenance import Maintenance
from uploader.service.merge import Merging
from uploader.service.open import Admission, Openings
from uploader.service.precreate import TIMEOUT_SECONDS, PreCreateHook
from uploader.service.reconcile import Reconciling, Recounting
from uploader.service.recovery import RedisRecovery
from uploader.service.reports import Overview, Queues, Reports
from uploader.service.revocations import Revocations
from uploader.service.scrub import Scrubbing
from uploader.service.secret import InstallationSecret
from uploader.service.signed_urls import SignedUrls
from uploader.service.status import Uploads
from uploader.service.trash import TrashKeeping
from uploader.service.whole import Storing, WholeFiles
from uploader.service.work import Work, WorkQueue
from uploader.settings import Settings
from uploader.sinks import configuration
from uploader.sinks.base import EventSink
from uploader.sinks.handler import HandlerSink
from uploader.sinks.stream import KafkaSink, StreamSink
from uploader.sinks.webhook import SignedPost, WebhookSink
from uploader.storage.ballast import Ballast
from uploader.storage.local.store import LocalStore
from uploader.storage.store import Spool, Store


def database_url(settings: Settings) -> str:
    return settings.database_url or f"sqlite:///{settings.sqlite_path}"


def secret_of(settings: Settings, database: Database, clock: Clock) -> InstallationSecret:
    data, former = settings.data.absolute(), settings.link_secret
    return InstallationSecret(database, data, clock, given=settings.installation_secret, former=former)


def copies_of(settings: Settings, clock: Clock, check_stopping: Callable[[], None] = lambda: None) -> RollingCopies:
    path = settings.sqlite_path
    return RollingCopies(path and path.resolve(), clock, check_stopping=check_stopping)


def redis_directory(settings: Settings) -> Path:
    return settings.data.absolute() / "redis"


def list_aside(settings: Settings) -> list[Path]:
    """Return directories that the embedded Valkey could not load and set aside; empty with UPLOADER_REDIS_URL. Blocks."""
    return [] if settings.redis_url is not None else embedded.list_aside(redis_directory(settings))


def create_redis(settings: Settings) -> RedisConnection:
    connections, timeout_seconds = settings.redis_connections, settings.redis_timeout_seconds
    if settings.redis_url is not None:
        return connect(settings.redis_url, connections=connections, timeout_seconds=timeout_seconds)
    path = embedded.socket_path(redis_directory(settings))
    return connect_to_socket(path, connections=connections, timeout_seconds=timeout_seconds)


def create_storage(settings: Settings, database: Database, clock: Clock) -> Store:
    """Raises ConfigurationError."""
    address = settings.bucket()
    if address is None:
        return LocalStore(
            settings.data,
            durable=settings.durability == "power",
            keeps_trash=settings.trash_retention_seconds > 0,
            verifies=settings.verify_reads == "on",
        )
    # Imported here to save memory in installations with a local store.
    from uploader.database.ledger import LedgerRows
    from uploader.storage.s3.bucket import Bucket
    from uploader.storage.s3.store import S3Store

    smallest = settings.min_chunk_size_bytes
    return S3Store(Bucket(address), LedgerRows(database), clock, min_chunk_size_bytes=smallest)


def create_precreate_hook(settings: configuration.EventSettings, clock: Clock) -> PreCreateHook:
    asked = settings.pre_create
    if asked is None:
        return PreCreateHook(None, allows_on_failure=True)
    post = SignedPost(asked.to, clock, timeout_seconds=TIMEOUT_SECONDS)
    return PreCreateHook(post, allows_on_failure=asked.allows_on_failure, timeout_seconds=TIMEOUT_SECONDS)


def create_sink(sink: configuration.SinkSettings, redis: RedisConnection, clock: Clock) -> EventSink:
    match sink:
        case configuration.WebhookSettings():
            return WebhookSink(sink.to, clock)
        case configuration.StreamSettings():
            client = redis if sink.url is None else connect(sink.url)
            return StreamSink(client, sink.stream, sink.maxlen, owns=sink.url is not None)
        case configuration.KafkaSettings():
            return KafkaSink(sink.topic, sink.options)
        case configuration.HandlerSettings():
            return HandlerSink(sink.handler)


class Services:
    def __init__(  # noqa: PLR0915 (one line for each)
        self,
        settings: Settings,
        clock: Clock | None = None,
        *,
        handlers: Mapping[str, configuration.HandlerSettings] | None = None,
    ) -> None:
        """Create the services without connecting to anything. `handlers`: functions that get events. Raises
        ConfigurationError for the file of UPLOADER_EVENTS."""
        self.clock = clock = clock or Clock()
        self.start = Start()
        events = configuration.load_events(settings.events).with_handlers(handlers or {})
        # Each sink has a bell that wakes the relay in this process.
        self.bells = {name: Bell() for name in events.sinks}
        self.ballast = ballast = Ballast.beside(settings.data.absolute(), settings.sqlite_path)
        outbox = None
        if events.sinks or events.queues:
            outbox = Outbox(events.sinks_of, new_id, clock.now, self._tell, events.gates)
        self.database = database = Database(
            database_url(settings),
            connections=settings.database_connections,
            timeout_seconds=settings.database_timeout_seconds,
            outbox=outbox,
            trash=TrashPolicy(settings.trash_retention_seconds > 0, settings.max_files, clock.now),
            make_room=ballast.make_room,
        )
        self.secret = secret = secret_of(settings, database, clock)
        self.storage = storage = create_storage(settings, database, clock)
        storage.ballast = ballast
        self.audit_log = audit_log = AuditLog(database, clock, retention_seconds=settings.audit_retention_seconds)
        healing = Healing(database, storage, clock)
        retention = settings.trash_retention_seconds
        self.trash = trash = TrashKeeping(database, storage, healing, audit_log, clock, retention_seconds=retention)
        self.redis = redis = create_redis(settings)
        shards = Shards(settings.shards)
        self.pending = pending = Pending(redis, shards=shards, settings=settings)
        self.probe = probe = Probe(redis, shards)
        probe.refusals.embedded = settings.redis_url is None
        restart = partial(embedded.restart, redis_directory(settings)) if probe.refusals.embedded else None
        self.redis_recovery = RedisRecovery(probe, restart)
        self.installation = installation = Installation(database, storage, RedisMark(redis), clock)
        self.closers = closers = Closers(database, storage, pending, clock)
        self.merging = merging = Merging(settings, database, storage, pending, closers, clock)
        self.uploads = uploads = Uploads(settings, database, storage, pending, closers, merging, clock)
        challenges = Challenges(settings, redis, shards=shards)
        self.admission = admission = Admission(settings, database, storage, trash, clock)
        self.pre_create_hook = pre_create_hook = create_precreate_hook(events, clock)
        self.instant = instant = Instant(
            settings, database, storage, storage, healing, closers, uploads, challenges, pre_create_hook, clock
        )
        stores = (database.check_answers, storage.check_answers)
        concurrency = ConcurrentBodies(settings.max_concurrent_chunks, stores, pending.check_answers)
        self.revocations = revocations = Revocations(database, clock)
        self.visitors = visitors = Visitors(database, clock, revocations)
        self.receiving = receiving = Receiving(database, storage, pending, closers, uploads, concurrency=concurrency)
        max_bytes = min(settings.max_chunk_size_bytes, settings.max_file_size_bytes)
        self.openings = openings = Openings(
            *(settings, database, storage, instant, uploads, receiving, admission, pre_create_hook, visitors, clock)
        )
        deferred_length = DeferredLength(
            database, closers, admission, clock, max_file_size_bytes=openings.max_file_size_bytes
        )
        storing = Storing(
            *(database, storage, closers, uploads, admission, pre_create_hook, visitors, clock),
            max_bytes=max_bytes,
            max_files=settings.max_files,
        )
        self.concatenations = concatenations = Concatenations(
            settings,
            database,
            uploads,
            Joining(settings, database, storage, closers, admission, clock),
            Filling(database, storage, closers, receiving, merging),
            pre_create_hook,
            visitors,
            clock,
            max_file_size_bytes=openings.max_file_size_bytes,
        )
        self.files = files = Files(database, storage, healing, clock)
        self.deleted_files = DeletedFiles(
            *(database, storage, files, pre_create_hook, clock),
            retention_seconds=retention,
            wait_seconds=settings.merge_wait_seconds,
        )
        self.recounting = recounting = Recounting(database, clock)
        self.scrubbing = scrubbing = Scrubbing(settings, database, healing, clock)
        integrity = Integrity(database, scrubbing)
        aside = partial(list_aside, settings)
        self.watching = watching = Watching(tuple(events.sinks), tuple(events.queues), database, clock)

        def source() -> str:
            return f"/uploader/{installation.id}"

        self.process_mark = mark = ProcessMark(settings.data.absolute() / "metrics")
        self.relays = relays = [
            Relay(name, create_sink(sink, redis, clock), database, mark, clock, source)
            for name, sink in events.sinks.items()
        ]
        self.takeover = Takeover(tuple(events.sinks), database, mark, clock)
        interruption = Interruption(clock)
        self.gates = gates = Gates(database, tuple(events.queues), interruption, clock)
        queues = {
            name: WorkQueue(
                name,
                queue,
                DelayQueue(redis, shards, f"work:{name}"),
                *(database, files, gates, interruption, clock, source),
            )
            for name, queue in events.queues.items()
        }
        self.work = Work(queues, database, clock)
        self.settings = settings
        self.spool = Spool(settings.data, ballast)
        self.accounts = Accounts(
            database, clock, revocations, default_total_space_bytes=settings.default_total_space_bytes
        )
        self.flushing = Flushing(database, pending, closers, clock)
        self.appends = Appends(
            storage,
            pending,
            closers,
            uploads,
            receiving,
            deferred_length,
            concurrency=concurrency,
            admission=admission,
            max_whole_bytes=max_bytes,
            part_completed=concatenations.part_completed,
        )
        self.whole = WholeFiles(storing, concurrency)
        self.delta_bases = DeltaBases(files, storage, healing)
        self.folders = Folders(database, pre_create_hook, clock, max_files=settings.max_files)
        self.bulk_operations = BulkOperations(database, closers, pre_create_hook, clock)
        self.shared = Shared(database, files, self.folders)
        self.sharing = Sharing(
            *(database, pre_create_hook, secret, clock),
            max_lifetime_seconds=settings.share_lifetime_seconds,
            max_links=settings.max_links,
            max_files=settings.max_files,
        )
        self.link_keeping = LinkKeeping(
            database, closers, secret, clock, retention_seconds=settings.closed_retention_seconds
        )
        self.reports = Reports(database, files, clock)
        self.overview = Overview(database, storage, admission, clock)
        self.queues = Queues(database, pending, clock)
        self.meter = Meter()
        self.costs = Costs(self.meter, CostsByHour(redis, shards), clock)
        self.signed_urls = SignedUrls(secret, clock, lifetime_seconds=settings.link_lifetime_seconds)
        self.gauges = Gauges(database, storage, pending, integrity, watching, aside)
        self.exposition = Exposition(settings.data.absolute() / "metrics", alone=settings.workers == 1)
        self.sweeping = Sweeping(database, pending, closers)
        self.expiry = Expiry(database, closers, expiry_seconds=settings.upload_expiry_seconds)
        self.cleanup = Cleanup(database, storage, closers, audit_log, clock)
        self.reconciling = Reconciling(
            database, storage, Audit(redis, shards=shards), closers, recounting, audit_log, clock
        )
        self.reviewing = Reviewing({relay.name: relay for relay in relays}, tuple(queues), database, clock)
        embedded_redis = redis if settings.redis_url is None else None
        self.ballast_keeping = BallastKeeping(ballast, storage, trash, embedded_redis)
        self.copies = copies_of(settings, clock, storage.check_stopping)
        maintenance = Maintenance(database, clock, since=clock.now())
        asks = {Check.DATABASE: [self.copies.diagnoses], Check.MAINTENANCE: [maintenance.diagnoses]}
        self.health = Health(
            database, storage, pending, probe, integrity, installation, secret, watching, aside, clock, self.start, asks
        )
        self.backups = Backups(database, storage, installation, secret, audit_log, settings.data, clock)
        self.restoring = Restoring(
            database, storage, pending, RedisMark(redis), secret, self.copies, settings.data, clock
        )
        self.audit_log_reports = AuditLogReports(database)

    async def _tell(self, told: Sequence[Told]) -> None:
        for name in {sink for _, sink in told} & set(self.bells):
            self.bells[name].ring()
        await self.work.propose(told)

    def wake_relays(self) -> None:
        for bell in self.bells.values():
            bell.ring()

    async def close(self) -> None:
        await self.revocations.close()
        await self.appends.close()
        await self.concatenations.filling.close()
        await self.merging.close()
        await self.deleted_files.close()
        await self.bulk_operations.close()
        await self.work.close()
        for relay in self.relays:
            await relay.close()
        self.process_mark.close()
        self.pre_create_hook.close()
        await self.storage.drain()
        self.storage.close()
        self.spool.close()
        await self.redis.aclose()
        await self.database.close()
