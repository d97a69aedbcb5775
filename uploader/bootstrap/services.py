"""Stores → services: everything that a server, a worker or a command needs, made once a process."""

from dataclasses import dataclass

from uploader.accounting.audit import Audit
from uploader.accounting.challenges import Budgets, Challenges
from uploader.accounting.marks import RedisMark
from uploader.accounting.pending import Delays, Pending
from uploader.accounting.scripting import RedisConnection
from uploader.bootstrap.stores import create_redis, database_url
from uploader.clock import Clock
from uploader.database.engine import Database
from uploader.exposition import Exposition
from uploader.service.access.accounts import Accounts
from uploader.service.access.links import Links
from uploader.service.audit.reconciling import Reconciling
from uploader.service.audit.recounting import Recounting
from uploader.service.contents.healing import Healing
from uploader.service.contents.trash import TrashKeeping
from uploader.service.files import Files
from uploader.service.folders import Folders
from uploader.service.insight.gauges import Gauges
from uploader.service.insight.health import Health
from uploader.service.insight.integrity import Integrity
from uploader.service.insight.overview import Overview
from uploader.service.insight.reports import Reports
from uploader.service.installation import Installation
from uploader.service.upkeep.cleanup import Cleanup
from uploader.service.upkeep.expiry import Expiry
from uploader.service.upkeep.flushing import Flushing
from uploader.service.upkeep.scrubbing import Goals, Scrubbing
from uploader.service.upkeep.sweeping import Sweeping
from uploader.service.uploads.admission import Admission
from uploader.service.uploads.closers import Closers
from uploader.service.uploads.instant import BUDGET_WINDOW_SECONDS, Instant
from uploader.service.uploads.merging import Merging
from uploader.service.uploads.opening import Openings
from uploader.service.uploads.receiving import ChunksAtOnce, Receiving
from uploader.service.uploads.status import Uploads
from uploader.service.uploads.storing import Storing
from uploader.service.uploads.whole import WholeFiles
from uploader.settings import Settings
from uploader.storage.base import Store
from uploader.storage.local.store import LocalStore
from uploader.storage.spool import Spool


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
    whole: WholeFiles
    files: Files
    folders: Folders
    reports: Reports
    overview: Overview
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

    async def close(self) -> None:
        await self.merging.close()
        await self.storage.drain()
        self.storage.close()
        self.spool.close()
        await self.redis.aclose()
        await self.database.close()


def create_services(settings: Settings, clock: Clock | None = None) -> Services:
    """Connects to nothing yet."""
    clock = clock or Clock()
    database = Database(database_url(settings))
    storage = LocalStore(
        settings.data, durable=settings.durability == "power", keeps_trash=settings.trash_retention_seconds > 0
    )
    healing = Healing(database, storage, storage.trash, clock)
    retention = settings.trash_retention_seconds
    trash = TrashKeeping(database, storage, healing, clock, retention_seconds=retention)
    redis = create_redis(settings)
    delays = Delays(
        quiet_seconds=settings.quiet_interval_seconds,
        max_delay_seconds=settings.max_delay_seconds,
        max_pending_bytes=settings.max_pending_bytes,
        lease_seconds=settings.claim_lease_seconds,
    )
    pending = Pending(redis, shards=settings.shards, delays=delays)
    installation = Installation(database, storage, RedisMark(redis))
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
    uploads = Uploads(settings, database, storage, storage, pending, closers, merging, clock)
    challenges = Challenges(
        redis,
        shards=settings.shards,
        budgets=Budgets(
            max_probes=settings.proof_max_probes,
            max_unproven=settings.proof_max_failures,
            window_seconds=BUDGET_WINDOW_SECONDS,
        ),
    )
    admission = Admission(settings, database, storage, trash, clock)
    instant = Instant(settings, database, storage, storage, healing, closers, uploads, challenges, clock)
    at_once = ChunksAtOnce(settings.max_concurrent_chunks)
    receiving = Receiving(database, storage, pending, closers, uploads, at_once=at_once)
    max_bytes = min(settings.max_chunk_size_bytes, settings.max_file_size_bytes)
    storing = Storing(database, storage.arrivals, closers, uploads, admission, clock, max_bytes=max_bytes)
    files = Files(database, storage, storage.trash, healing)
    recounting = Recounting(database)
    goals = Goals(settings.scrub_first_seconds, settings.scrub_every_seconds)
    scrubbing = Scrubbing(database, healing, clock, goals)
    integrity = Integrity(database, scrubbing)
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
        openings=Openings(settings, database, storage, instant, uploads, receiving, admission, clock),
        instant=instant,
        receiving=receiving,
        whole=WholeFiles(storing, at_once),
        files=files,
        folders=Folders(database),
        reports=Reports(database, files, clock),
        overview=Overview(database, storage, admission, clock),
        links=Links(database, clock, settings.link_secret, lifetime_seconds=settings.link_lifetime_seconds),
        gauges=Gauges(database, storage, pending, integrity),
        exposition=Exposition(settings.data.absolute() / "metrics", alone=settings.workers == 1),
        health=Health(database, storage, pending, integrity, installation),
        sweeping=Sweeping(database, pending, closers),
        expiry=Expiry(database, closers, expiry_seconds=settings.upload_expiry_seconds),
        cleanup=Cleanup(database, storage, closers, clock),
        recounting=recounting,
        reconciling=Reconciling(database, storage, Audit(redis, shards=settings.shards), closers, recounting, clock),
        scrubbing=scrubbing,
        trash=trash,
        admission=admission,
    )
