"""The accounting under any order of events, losses of Redis and late acknowledgements: a real Valkey and a real SQLite,
with the disk as a set of chunk numbers."""

import asyncio
import itertools
import shutil
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from redis.asyncio import Redis

from tests.support.invariants import Shape, check_pending, checked_accounts
from tests.support.rows import Transactions, upload_row
from uploader.accounting.delay import Claim
from uploader.accounting.pending import Delays, Figures, Pending, Word
from uploader.database import queries
from uploader.database.engine import Database
from uploader.database.transactions import NotOpen
from uploader.domain.chunks import chunk_length, to_bitmap
from uploader.domain.upload import Upload

T = TypeVar("T")

CHUNK = 100
CHUNK_COUNT = 9
SHAPE = Shape(size=CHUNK * CHUNK_COUNT - 30, chunk_size=CHUNK)
USERS = ("alice", "bob")
QUIET, MAX_DELAY, LEASE = 5, 60, 30
CHUNKS = st.integers(0, CHUNK_COUNT - 1)
WAITS = st.sampled_from([0, QUIET, LEASE])
SETTINGS = settings(
    max_examples=30,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],  # at most 20 steps are short enough to read as they are
    suppress_health_check=list(HealthCheck),
)


@dataclass
class Transfer:
    """An upload as this model knows it."""

    upload: Upload
    on_disk: set[int] = field(default_factory=set)
    is_open: bool = True
    forgotten: bool = False
    flushed: int = 0

    @property
    def received(self) -> int:
        return sum(chunk_length(number, SHAPE.size, SHAPE.chunk_size) for number in self.on_disk)

    @property
    def complete(self) -> bool:
        return len(self.on_disk) == CHUNK_COUNT


class Fate(Enum):
    """How far a flusher comes with what it claimed."""

    ACK = "ack"
    DIE_AFTER_WRITE = "die after write"
    DIE_AFTER_CLAIM = "die after claim"


class AccountingMachine(RuleBasedStateMachine):
    """Any number of flushers, some of which die, and uploads that come and go."""

    directory: Path
    template: Path
    redis_url: str
    _examples = itertools.count()

    transfers: Bundle[Transfer] = Bundle("transfers")

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.all: list[Transfer] = []
        self.late: list[list[Claim]] = []
        self.losses = 0
        self.now_ms = 30_000_000 * 60_000

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @initialize(target=transfers)
    def start(self) -> MultipleResults[Transfer]:
        path = self.directory / f"{next(self._examples)}.db"
        shutil.copy(self.template, path)
        self.database = Database(f"sqlite+aiosqlite:///{path}")
        self.act = Transactions(self.database)
        self.redis = Redis.from_url(self.redis_url, protocol=2)
        delays = Delays(
            quiet_seconds=QUIET, max_delay_seconds=MAX_DELAY, max_pending_bytes=4 * CHUNK, lease_seconds=LEASE
        )
        self.pending = Pending(self.redis, shards=1, delays=delays)
        self.queue = self.pending.flush_queues[0]
        self.run(self._flush_redis())
        for user_id in USERS:
            self.run(self.act.create_user(user_id))
        return multiple(*(self._open(user_id) for user_id in ("alice", "alice", "bob")))

    def teardown(self) -> None:
        if self.all:
            self.run(self._come_to_rest())
        if hasattr(self, "database"):
            self.run(self.redis.aclose())
            self.run(self.database.close())
        self.runner.close()

    async def _come_to_rest(self) -> None:
        """Invariant 7: once everything is hydrated and flushed, disk, Redis and database say the same."""
        for transfer in self.all:
            if transfer.is_open:
                await self._hydrate(transfer)
        while (delay := await self.queue.next_due(self.now_ms)) is not None:
            self.now_ms += round(delay * 1000)
            await self._write_and_ack(await self.queue.claim(300, self.now_ms))
        accounts = await checked_accounts(self.database)
        for user_id in USERS:
            # The bytes of a complete upload are compensated for at its merge, flushed or not.
            mine = [transfer for transfer in self.all if transfer.is_open and transfer.upload.user_id == user_id]
            expected = sum(transfer.received for transfer in mine if not transfer.complete)
            flushed = sum([(await self._row(transfer)).flushed_bytes for transfer in mine if transfer.complete])
            assert accounts[user_id].unfinished == expected + flushed
        for transfer in self.all:
            if transfer.is_open:
                assert (await self.pending.read(transfer.upload.id)).received == transfer.received

    # What clients do

    @rule(target=transfers, user_id=st.sampled_from(USERS))
    def open(self, user_id: str) -> Transfer:
        return self._open(user_id)

    @rule(transfer=transfers, numbers=st.lists(CHUNKS, min_size=1, max_size=4))
    def record(self, transfer: Transfer, numbers: list[int]) -> None:
        """Chunks arrive, for the first time or again; the client gets the figures of all that arrived."""
        for number in numbers:
            self._record_checked(transfer, number)

    @rule(transfer=transfers)
    def record_all(self, transfer: Transfer) -> None:
        for number in range(CHUNK_COUNT):
            self._record_checked(transfer, number)

    def _record_checked(self, transfer: Transfer, number: int) -> None:
        if not transfer.is_open:
            # Whoever closed it may have died before Redis knew; then the flusher finds out.
            figures = self.run(self._record(transfer, number))
            if transfer.forgotten:
                assert figures.word in (Word.CANCELLED, Word.DONE, Word.REHYDRATE)
            return
        is_new = number not in transfer.on_disk
        transfer.on_disk.add(number)
        figures = self.run(self._record(transfer, number))
        if figures.word is Word.REHYDRATE:
            assert self.run(self._hydrate(transfer)).word is Word.HYDRATED
            figures, is_new = self.run(self._record(transfer, number)), False
        counted = Word.RECORDED if is_new else Word.MERGING if transfer.complete else Word.DUPLICATE
        assert figures == Figures(counted, transfer.received, len(transfer.on_disk), CHUNK_COUNT, transfer.complete)

    @rule(transfer=transfers, lost=st.sets(CHUNKS, max_size=2))
    def hydrate(self, transfer: Transfer, lost: set[int]) -> None:
        """Somebody asks and compares the map with Redis; the workers of some chunks ended before they told it."""
        if transfer.is_open:
            transfer.on_disk |= lost
            assert self.run(self._hydrate(transfer)).word is Word.HYDRATED

    @rule(transfer=transfers, dies=st.booleans())
    def cancel(self, transfer: Transfer, dies: bool) -> None:
        """The worker may end after its commit."""
        if transfer.is_open:
            self.run(self.act.close(transfer.upload))
            transfer.is_open = False
            if not dies:
                self.run(self._forget(transfer, "cancelled"))

    @rule(transfer=transfers)
    def merge(self, transfer: Transfer) -> None:
        """By any worker; one that comes late finds the upload closed and tidies."""
        try:
            if transfer.complete:
                self.run(self.act.merge(transfer.upload, transfer.upload.id))
        except NotOpen:
            assert not transfer.is_open
            self.run(self._forget(transfer, "done"))
        else:
            assert transfer.is_open or not transfer.complete
            transfer.is_open = transfer.is_open and not transfer.complete

    # What flushers do

    @rule(transfer=transfers, number=CHUNKS, limit=st.integers(1, 5), wait_seconds=WAITS, fate=st.sampled_from(Fate))
    def claim(self, transfer: Transfer, number: int, limit: int, wait_seconds: int, fate: Fate) -> None:
        """A chunk arrives, and some time later a flusher claims what is due."""
        self._record_checked(transfer, number)
        self.now_ms += wait_seconds * 1000
        claims = self.run(self.queue.claim(limit, self.now_ms))
        assert len(claims) <= limit
        self._go_on(claims, fate)

    @rule(transfer=transfers, numbers=st.permutations(range(CHUNK_COUNT)))
    def overtake(self, transfer: Transfer, numbers: list[int]) -> None:
        """A flusher stands still for longer than its lease; another flushes more, and then the first one goes on."""
        claims = []
        for number in numbers[:2]:
            self._record_checked(transfer, number)
            self.now_ms += LEASE * 1000
            claims.append(self.run(self.queue.claim(300, self.now_ms)))
        for batch in reversed(claims):
            self.run(self._write_and_ack(batch))

    @precondition(lambda self: self.late)
    @rule(which=st.integers(0, 100), wait_seconds=WAITS, fate=st.sampled_from(Fate))
    def come_late(self, which: int, wait_seconds: int, fate: Fate) -> None:
        """A flusher that stood still goes on, however late, and perhaps after another has done its work."""
        self.now_ms += wait_seconds * 1000
        self._go_on(self.late[which % len(self.late)], fate)

    def _go_on(self, claims: list[Claim], fate: Fate) -> None:
        if fate is Fate.ACK:
            self.run(self._write_and_ack(claims))
        elif fate is Fate.DIE_AFTER_WRITE:
            self.run(self._write(claims))
        if claims and fate is not Fate.ACK:
            self.late.append(claims)

    # What goes wrong

    @precondition(lambda self: self.losses < 2)
    @rule()
    def lose_redis(self) -> None:
        self.losses += 1
        self.run(self._flush_redis())

    @invariant()
    def the_accounts_hold(self) -> None:
        if not hasattr(self, "database"):
            return
        accounts = self.run(checked_accounts(self.database))
        self.run(check_pending(self.redis, {transfer.upload.id: SHAPE for transfer in self.all}))
        for user_id in USERS:
            received = sum(t.received for t in self.all if t.is_open and t.upload.user_id == user_id)
            assert accounts[user_id].unfinished <= received, "nothing is invented"
        for transfer in self.all:
            flushed_bytes = self.run(self._row(transfer)).flushed_bytes
            assert flushed_bytes >= transfer.flushed, "what is accounted never goes down"
            transfer.flushed = flushed_bytes

    # The steps of the services, without the disk

    def _open(self, user_id: str) -> Transfer:
        # Ids decide the order of claims that are due at one moment: the same ones in every run.
        upload_id = f"{len(self.all):032x}"
        upload = upload_row(user_id, SHAPE.size, seed=upload_id, id=upload_id, chunk_size=CHUNK)
        transfer = Transfer(self.run(self.act.open(upload, 1000)))
        self.all.append(transfer)
        return transfer

    async def _flush_redis(self) -> None:
        await self.redis.flushdb()

    async def _record(self, transfer: Transfer, number: int) -> Figures:
        length = chunk_length(number, SHAPE.size, SHAPE.chunk_size)
        return await self.pending.record_chunk(transfer.upload.id, number, length, self.now_ms)

    async def _row(self, transfer: Transfer) -> Upload:
        row = await self.database.read(lambda connection: queries.upload_by_id(connection, transfer.upload.id))
        assert row is not None
        return row

    async def _hydrate(self, transfer: Transfer) -> Figures:
        row = await self._row(transfer)
        return await self.pending.hydrate(
            row.id,
            era=(await self.pending.read(row.id)).era,
            generation=row.generation,
            bitmap=to_bitmap([number in transfer.on_disk for number in range(CHUNK_COUNT)]),
            size=SHAPE.size,
            chunk_size=SHAPE.chunk_size,
            chunk_count=CHUNK_COUNT,
            flushed_bytes=row.flushed_bytes,
            now_ms=self.now_ms,
        )

    async def _forget(self, transfer: Transfer, word: str) -> None:
        await self.pending.forget(transfer.upload.id, word)
        transfer.forgotten = True

    async def _write(self, claims: list[Claim]) -> frozenset[str]:
        batch = [(self._of(claim).upload, claim.generation, claim.received) for claim in claims]
        return (await self.act.flush(*batch)).open_ids

    async def _write_and_ack(self, claims: list[Claim]) -> None:
        open_ids = await self._write(claims)
        await self.pending.ack_flush(0, [claim for claim in claims if claim.upload_id in open_ids])
        for claim in claims:
            if claim.upload_id not in open_ids:
                await self._forget(self._of(claim), "cancelled")

    def _of(self, claim: Claim) -> Transfer:
        return next(transfer for transfer in self.all if transfer.upload.id == claim.upload_id)


def test_no_order_of_events_makes_the_accounts_wrong(
    anyio_backend: str, sqlite_template: Path, redis_url: str, tmp_path: Path
) -> None:
    AccountingMachine.directory, AccountingMachine.template = tmp_path, sqlite_template
    AccountingMachine.redis_url = redis_url
    run_state_machine_as_test(AccountingMachine, settings=SETTINGS)
