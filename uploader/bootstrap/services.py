"""Stores → services: everything that a server, a worker or a command needs, made once a process."""

from dataclasses import dataclass
from functools import partial

from uploader.accounting.audit import Audit
from uploader.accounting.challenges import Budgets, Challenges
from uploader.accounting.keys import Shards
from uploader.accounting.marks import RedisMark
from uploader.accounting.pending import Delays, Pending
from uploader.accounting.scripting import RedisConnection
from uploader.bootstrap.events import Bells, create_asking, create_outbox, create_relays
from uploader.bootstrap.stores import create_redis, create_storage, database_url, list_aside
from uploader.clock import Clock
from uploader.database.engine import Database
from uploader.exposition import Exposition
from uploader.service.access.accounts import Accounts
from uploader.service.access.links import Links
from uploader.service.appends.appending import Appends
from uploader.service.appends.growing import Growing
from uploader.service.audit.reconciling import Reconciling
from uploader.service.audit.recounting import Recounting
from uploader.service.backups.making import Backups
from uploader.service.backups.restoring import Restoring
from uploader.service.concatenation.filling import Filling
from uploader.service.concatenation.joining import Joining
from uploader.service.concatenation.ordering import Concatenations
from uploader.service.contents.healing import Healing
from uploader.service.contents.trash import TrashKeeping
from uploader.service.events.asking import Asking
from uploader.service.events.relaying import Relay
from uploader.service.events.reviewing import Reviewing
from uploader.service.events.watching import Watching
from uploader.service.files import Files
from uploader.service.folders import Folders
from uploader.service.insight.gauges import Gauges
from uploader.service.insight.health import Health
from uploader.service.insight.integrity import Integrity
from uploader.service.insight.overview import Overview
from uploader.service.insight.queues import Queues
from uploader.service.insight.reports import Reports
from uploader.service.insight.trail import TrailReports
from uploader.service.installation import Installation
from uploader.service.trail.keeping import Trail
from uploader.service.upkeep.cleanup import Cleanup
from uploader.service.upkeep.expiry import Expiry
from uploader.service.upkeep.flushing import Flushing
from uploader.service.upkeep.scrubbing import Goals, Scrubbing
from uploader.service.upkeep.sweeping import Sweeping
from uploader.service.uploads.admission import Admission
from uploader.service.uploads.bases import Bases
from uploader.service.uploads.closers import Closers
from uploader.service.uploads.instant import BUDGET_WINDOW_SECONDS, Instant
from uploader.service.uploads.merging import Merging
from uploader.service.uploads.opening import Openings
from uploader.service.uploads.receiving import ChunksAtOnce, Receiving
from uploader.service.uploads.status import Uploads
from uploader.service.uploads.storing import Storing
from uploader.service.uploads.whole import WholeFiles
from uploader.settings import Settings
from uploader.sinks.configuration import load_events
from uploader.storage.spool import Spool
from uploader.storage.store import Store


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
    bases: Bases
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
    asking: Asking
    relays: list[Relay]
    bells: Bells
    watching: Watching
    reviewing: Reviewing
    backups: Backups
    restoring: Restoring
    trail: Trail
    trail_reports: TrailReports

    async def close(self) -> None:
        await self.appends.close()
        await self.concatenations.close()
        await self.merging.close()
        for relay in self.relays:
            await relay.close()
        self.asking.close()
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
    trail = Trail(database, clock, retention_seconds=settings.audit_retention_seconds)
    healing = Healing(database, storage, storage.trash, clock)
    retention = settings.trash_retention_seconds
    trash = TrashKeeping(database, storage, healing, trail, clock, retention_seconds=retention)
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
    closers = Closers(database, storage, storage.trash, pending, clock)
    merging = Merging(
        database,
        storage,
        pending,
        closers,
        clock,
        wait_seconds=settings.merge_wait_seconds,
        lease_seconds=settings.claim_lease_seconds,
    )
    uploads = Uploads(settings, database, storage, storage, pending, closers, merging, clock)
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
    asking = create_asking(events, clock)
    instant = Instant(settings, database, storage, storage, healing, closers, uploads, challenges, asking, clock)
    at_once = ChunksAtOnce(settings.max_concurrent_chunks)
    receiving = Receiving(database, storage, pending, closers, uploads, at_once=at_once)
    max_bytes = min(settings.max_chunk_size_bytes, settings.max_file_size_bytes)
    openings = Openings(settings, database, storage, instant, uploads, receiving, admission, asking, clock)
    growing = Growing(database, closers, admission, clock, max_file_size_bytes=openings.max_file_size_bytes)
    storing = Storing(database, storage.arrivals, closers, uploads, admission, asking, clock, max_bytes=max_bytes)
    concatenations = Concatenations(
        settings,
        database,
        uploads,
        Joining(settings, database, storage, storage.wholes, closers, admission, clock),
        Filling(database, storage, storage.wholes, closers, receiving, merging),
        asking,
        clock,
        max_file_size_bytes=openings.max_file_size_bytes,
    )
    files = Files(database, storage, storage.trash, healing, clock)
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
        bases=Bases(files, storage, healing),
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
        cleanup=Cleanup(database, storage, closers, trail, clock),
        recounting=recounting,
        reconciling=Reconciling(database, storage, Audit(redis, shards=shards), closers, recounting, trail, clock),
        scrubbing=scrubbing,
        trash=trash,
        admission=admission,
        asking=asking,
        relays=relays,
        reviewing=Reviewing({relay.name: relay for relay in relays}, database, clock),
        bells=bells,
        watching=watching,
        backups=Backups(database, storage, installation, trail, settings.data, clock),
        restoring=Restoring(database, storage, pending, RedisMark(redis), settings.data),
        trail=trail,
        trail_reports=TrailReports(database),
    )
