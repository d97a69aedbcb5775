"""The accounting under any order of events, deaths of workers at any step, losses and rollbacks of Redis and late
acknowledgements."""

import asyncio
import functools
import hashlib
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, initialize, invariant, multiple, precondition, rule
from sqlalchemy import select

from tests.support.at_rest import OnDisk, read_directory
from tests.support.bodies import Arrived, InPieces
from tests.support.held import held_of
from tests.support.invariants import OPEN_STATES, Shape, check_pending, checked_accounts
from tests.support.machines import Machine
from tests.support.rows import upload_row
from tests.support.servers import PrivateRedis
from uploader import errors
from uploader.accounting.keys import upload_keys
from uploader.accounting.pending import Outcome, RecordResult
from uploader.accounting.queue import Claim, UploadQueue
from uploader.database import models
from uploader.database.engine import Connection, Duplicate
from uploader.database.transactions.rows import NotOpen
from uploader.domain.upload import Reason, State, Upload, chunk_length, from_bitmap
from uploader.service.chunk import AlreadyComplete
from uploader.service.results import Appended, Complete, Target
from uploader.storage.base import Gone

T = TypeVar("T")

CHUNK = 100
CHUNK_COUNT = 9
SHAPE = Shape(size=CHUNK * CHUNK_COUNT - 30, chunk_size=CHUNK)
USERS = ("alice", "bob")
CONTENTS = tuple(bytes((number * 7 + seed) % 251 for number in range(SHAPE.size)) for seed in range(2))
QUIET, MAX_DELAY, LEASE = 5, 12, 30
# In so many looks at the queues all is accounted for and merged.
MAX_ROUNDS = 50
# What holds a lock keeps others out for this long before it goes on.
PAUSE_SECONDS = 0.1
CHUNKS = st.integers(0, CHUNK_COUNT - 1)
WAITS = st.sampled_from([0, QUIET, LEASE])


def _deaths(points: int) -> st.SearchStrategy[int | None]:
    """At which crash point from here on a worker dies, if it does, in work that passes so many."""
    return st.one_of(st.none(), st.integers(1, points))


DEATHS = _deaths(5)
OPENING_DEATHS, WITHDRAWAL_DEATHS, MERGE_DEATHS = _deaths(8), _deaths(7), _deaths(12)


@dataclass(eq=False)
class Transfer:
    """An upload as its client knows it, and what was seen of it."""

    upload: Upload
    content: bytes
    acknowledged: set[int] = field(default_factory=set)
    appended: int = 0  # up to where it was acknowledged by appends
    is_open: bool = True
    accounted: tuple[int, int] = (0, 0)  # generation and bytes
    era: tuple[str, int] = ("", 0)  # in which the arrivals were seen, and the generation
    arrivals: list[tuple[int, int]] = field(default_factory=list)  # when Redis held how many bytes
    leased_at_ms: int = 0
    may_be_old: bool = False  # the generation in Redis: a worker died while it withdrew chunks
    may_be_left: bool = False  # in a Redis that was rolled back to before it was closed

    def __str__(self) -> str:
        return self.upload.id[-4:]


@dataclass(eq=False)
class Grown:
    """An upload whose length is told late, if at all; it never becomes whole."""

    upload: Upload
    appended: int = 0
    is_open: bool = True
    leased_at_ms: int = 0


class Meanwhile(Enum):
    """What somebody does while a worker stands still in the middle of something."""

    FLUSH = "flush"
    HYDRATE = "hydrate"
    RECORD = "record"
    WITHDRAW = "withdraw"
    HEAL = "withdraw, and send again"
    CANCEL = "cancel"
    LOSE = "lose"
    ROLL_BACK = "roll back"


WITHDRAWALS = (Meanwhile.WITHDRAW, Meanwhile.HEAL)


class AccountingMachine(Machine):
    """Any number of workers, some of which die, and uploads that come and go."""

    transfers: Bundle[Transfer] = Bundle("transfers")

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Transfer] = []
        self.grown: list[Grown] = []
        self.late: list[list[Claim]] = []
        self.snapshot: list[tuple[bytes, int, bytes]] = []
        self.losses = 0
        self.now_ms = 30_000_000 * 60_000

    @initialize(target=transfers)
    def start(self) -> MultipleResults[Transfer]:
        self.serve(
            USERS,
            1 << 40,
            durability="process",
            quiet_interval_seconds=QUIET,
            max_delay_seconds=MAX_DELAY,
            max_pending_bytes=4 * CHUNK,
            claim_lease_seconds=LEASE,
        )
        # Merges come where the machine expects one: whoever stored a last chunk dies before it begins.
        self.services.uploads.begin_merge = lambda _: None  # type: ignore[assignment,method-assign]
        self.queue = self.pending.flush_queues[0]
        for verb in ("record_chunk", "record_tail", "hydrate", "lease"):
            setattr(self.pending, verb, self._at_my_time(getattr(self.pending, verb)))
        return multiple(*(self._open(*first, None) for first in (("alice", 0), ("alice", 1), ("bob", 0))))

    def _at_my_time(self, verb: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        """A verb of `Pending` by this machine's clock."""

        @functools.wraps(verb)
        async def call(*arguments: Any, **options: Any) -> T:
            return await verb(*arguments, now_ms=self.now_ms, **options)

        return call

    async def come_to_rest(self) -> None:
        """Invariant 7: once all is swept, merged and flushed, disk, Redis and database say the same."""
        await self.services.sweeping.sweep(0)
        for transfer in self.all:
            disk = self._disk(transfer) if transfer.is_open else None
            if disk and (disk.present - transfer.acknowledged or disk.leading > transfer.appended):
                await self._hydrate(transfer)  # as its client's question would: a worker died before Redis knew
        rounds = 0
        while (waits := await self._next_due()) is not None:
            rounds += 1
            assert rounds < MAX_ROUNDS, "what is due is never done"
            self.now_ms += round(waits * 1000)
            await self._do_what_is_due()
        await self._check()
        rows = await self.database.read(_rows)
        for transfer in self.all:
            row, up = rows[transfer.upload.id], upload_keys(0, transfer.upload.id).up
            if row.state == State.OPEN:
                disk = self._disk(transfer)
                assert row.flushed_bytes == disk.received, f"invariant 7: {transfer} in the database"
                assert (await held_of(self.redis, up)).received == disk.received, f"invariant 7: {transfer} in Redis"
                assert len(disk.present) < CHUNK_COUNT, f"nobody merged {transfer}"
            elif not transfer.may_be_left:
                state = await self.redis.hget(up, "state")
                assert state is None or state.decode() not in OPEN_STATES, f"{transfer} is left in Redis"

    async def _do_what_is_due(self) -> None:
        await self.services.flushing.flush_due(_held(await self.queue.claim(300, self.now_ms)))
        for claim in await self.pending.merge_queues[0].claim(300, self.now_ms):
            await self._merge(self._of(claim))

    async def _next_due(self) -> float | None:
        queues = (self.queue, self.pending.merge_queues[0])
        delays = [delay for queue in queues if (delay := await queue.next_due(self.now_ms)) is not None]
        return min(delays) if delays else None

    @rule(target=transfers, user_id=st.sampled_from(USERS), content=st.integers(0, 1), dies_at=OPENING_DEATHS)
    def open(self, user_id: str, content: int, dies_at: int | None) -> Transfer:
        """Also what was cancelled, or is a file already; what is open is resumed."""
        return self._open(user_id, content, dies_at)

    @rule(transfer=transfers, numbers=st.lists(CHUNKS, min_size=1, max_size=4), dies_at=DEATHS)
    def record(self, transfer: Transfer, numbers: list[int], dies_at: int | None) -> None:
        """Chunks arrive, for the first time or again, one after the other."""
        for number in numbers[:-1]:
            self._record(transfer, number)
        self._record(transfer, numbers[-1], dies_at)

    @rule(transfer=transfers, numbers=st.lists(CHUNKS, min_size=2, max_size=5), dies_at=DEATHS)
    def record_at_once(self, transfer: Transfer, numbers: list[int], dies_at: int | None) -> None:
        """Several workers take chunks of an upload at one moment, perhaps the same chunk."""

        self.run(_together(*(self._store(transfer, number) for number in numbers), died=True), dies_at)

    @rule(transfer=transfers, length=st.sampled_from([1, 30, CHUNK, 3 * CHUNK - 50]), dies_at=_deaths(15))
    def append(self, transfer: Transfer, length: int, dies_at: int | None) -> None:
        """A stream goes on where the upload ends, and ends anywhere."""
        transfer = self._unfinished(transfer)
        self.run(self._append(transfer, length), dies_at)

    @rule(
        transfer=transfers,
        lengths=st.lists(st.sampled_from([30, 3 * CHUNK - 50]), min_size=2, max_size=3),
        number=CHUNKS,
    )
    def append_at_once(self, transfer: Transfer, lengths: list[int], number: int) -> None:
        """Several streams on one upload, of which the newest wins, beside a chunk of it."""
        transfer = self._unfinished(transfer)
        self.runner.run(
            _together(*(self._append(transfer, length) for length in lengths), self._store(transfer, number))
        )

    @rule(transfer=transfers, dies_at=_deaths(40))
    def append_all(self, transfer: Transfer, dies_at: int | None) -> None:
        """A stream that makes it whole, and so makes the file. It begins anew behind each chunk that is there."""
        transfer = self._unfinished(transfer)
        transfer.leased_at_ms = self.now_ms

        async def to_the_end() -> object:
            for _ in range(CHUNK_COUNT):
                with suppress(errors.OffsetMismatch):
                    return await self._append_from_the_offset(transfer, SHAPE.size, up_to=SHAPE.size)
            return None

        told = self.run(to_the_end(), dies_at)
        assert dies_at or isinstance(told, Complete)

    async def _append(self, transfer: Transfer, length: int) -> None:
        """What makes it whole comes otherwise, so that a merge is where the machine expects one."""
        with suppress(NotOpen, Gone, errors.OffsetMismatch, errors.UploadGone, errors.UploadBusy):
            await self._append_from_the_offset(transfer, length, up_to=SHAPE.size - 1)

    async def _append_from_the_offset(self, transfer: Transfer, length: int, up_to: int) -> object:
        """As a client that lost the answer: it asks first."""
        target = Target(transfer.upload.caller, upload_id=transfer.upload.id)
        stands = await self.services.appends.status(target)
        told: object = stands
        if isinstance(stands, Appended):
            data = transfer.content[stands.offset : min(stands.offset + length, up_to)]
            told = await self.services.appends.append(target, stands.offset, Arrived(data))
            if isinstance(told, Appended):
                transfer.appended = max(told.offset, transfer.appended)
        return told

    @rule(
        user_id=st.sampled_from(USERS),
        length=st.sampled_from([1, 30, CHUNK, 3 * CHUNK - 50]),
        end=st.sampled_from(["", "", "told", "cancelled"]),
        dies_at=_deaths(15),
    )
    def grow(self, user_id: str, length: int, end: str, dies_at: int | None) -> None:
        """A stream goes on in an upload whose length is not known, and then perhaps it is told, or the upload cancelled."""
        grown = next((each for each in self.grown if each.is_open and each.upload.user_id == user_id), None)
        if grown is None:
            upload_id = f"{0xF << 120 | len(self.grown):032x}"
            grown = Grown(upload_row(user_id, 0, id=upload_id, md5=None, chunk_size=CHUNK, length_known=False))
            self.runner.run(self.services.openings._create(grown.upload))
            self.grown.append(grown)
        self.run(self._grow(grown, length, end), dies_at)

    async def _grow(self, grown: Grown, length: int, end: str) -> None:
        target, appends = Target(grown.upload.caller, upload_id=grown.upload.id), self.services.appends
        with suppress(errors.QuotaExceeded, errors.FileTooLarge, errors.SizeMismatch):
            told = await appends.status(target)
            assert isinstance(told, Appended)
            data = CONTENTS[0][told.offset : told.offset + length]
            await appends.append(target, told.offset, Arrived(data))
            grown.appended = told.offset + len(data)
            if end == "told":
                await appends.append(target, grown.appended, Arrived(b""), length=len(CONTENTS[0]) + 1)
        if end == "cancelled":
            await appends.cancel(target)

    @rule(
        transfer=transfers,
        length=st.sampled_from([30, CHUNK + 30]),
        number=CHUNKS,
        meanwhile=st.sampled_from(Meanwhile),
    )
    def append_while(self, transfer: Transfer, length: int, number: int, meanwhile: Meanwhile) -> None:
        """A worker stands still after a tail is on disk, and records it late."""
        transfer = self._unfinished(transfer)
        deed = self._do(meanwhile, transfer, number)
        self.runner.run(self._beside("record_tail", self._append(transfer, length), deed))
        if meanwhile in WITHDRAWALS:  # it waits for the tail, and comes after it
            transfer.appended = min(transfer.appended, number * CHUNK)

    @rule(transfer=transfers, last_dies_at=st.sampled_from([None, 1, 2, 3, 4, 5, 5, 5]))
    def record_all(self, transfer: Transfer, last_dies_at: int | None) -> None:
        """5: Redis knows of the last chunk, and nobody has begun the merge."""
        transfer = self._unfinished(transfer)
        missing = [number for number in range(CHUNK_COUNT) if number not in transfer.acknowledged]
        for number in missing[:-1]:
            self._record(transfer, number)
        self._record(transfer, missing[-1] if missing else 0, last_dies_at)

    def _record(self, transfer: Transfer, number: int, dies_at: int | None = None) -> None:
        was_open, has_map = transfer.is_open, (self._directory(transfer) / "map").exists()
        figures = self.run(self._store(transfer, number), dies_at)
        if figures is None:
            assert dies_at or not was_open, "an open upload takes its chunk"
            return
        assert has_map, "an upload that is gone takes no chunk"
        if not was_open:
            return  # whoever closed it died before Redis knew; a task sees to the rest
        if transfer.may_be_old:
            return  # until somebody ends the withdrawal
        disk = self._disk(transfer)
        acknowledged = sum(chunk_length(number, SHAPE.size, CHUNK) for number in transfer.acknowledged)
        assert acknowledged <= figures.received <= disk.received
        assert len(transfer.acknowledged) <= figures.chunks <= len(disk.present)
        assert figures.settled == (figures.chunks == CHUNK_COUNT)

    async def _store(self, transfer: Transfer, number: int) -> RecordResult | None:
        """A chunk on its way; where the upload stands if it was acknowledged, None if the upload is closed."""
        upload = transfer.upload
        body = InPieces(transfer.content[number * CHUNK : (number + 1) * CHUNK])
        try:
            target = Target(upload.caller, upload_id=upload.id)
            stored = await self.services.receiving.store(target, upload, number, body)
        except (errors.UploadGone, AlreadyComplete):
            return None
        transfer.acknowledged.add(number)
        return stored.result

    @rule(transfer=transfers, reason=st.sampled_from([Reason.CANCELLED, Reason.MD5_MISMATCH]), dies_at=DEATHS)
    def cancel(self, transfer: Transfer, reason: Reason, dies_at: int | None) -> None:
        transfer.leased_at_ms = self.now_ms
        self.run(self._close(transfer, reason), dies_at)

    async def _close(self, transfer: Transfer, reason: Reason = Reason.CANCELLED) -> None:
        with suppress(NotOpen):
            await self.services.closers.close(transfer.upload, reason)

    @rule(transfer=transfers, idle_seconds=st.sampled_from([-10, 3600]), dies_at=DEATHS)
    def expire(self, transfer: Transfer, idle_seconds: int, dies_at: int | None) -> None:
        """An upload that is not idle, or complete, does not expire."""
        complete = transfer.is_open and len(self._disk(transfer).present) == CHUNK_COUNT
        transfer.leased_at_ms = self.now_ms
        expired = self.run(self.services.closers.expire(transfer.upload, idle_seconds), dies_at)
        if dies_at is None:
            assert expired == (transfer.is_open and idle_seconds < 0 and not complete)

    @rule(transfer=transfers, dies_at=MERGE_DEATHS)
    def merge(self, transfer: Transfer, dies_at: int | None) -> None:
        """By any worker; one that comes late finds the upload closed and tidies, one that comes early merges nothing."""
        complete = transfer.is_open and len(self._disk(transfer).present) == CHUNK_COUNT
        transfer.leased_at_ms = self.now_ms
        merged = self.run(self._merge(transfer), dies_at)
        if complete and dies_at is None:
            assert merged

    async def _merge(self, transfer: Transfer) -> bool:
        with suppress(errors.ChunksMissing, errors.UploadGone):
            return await self.services.merging.wait(transfer.upload.id) is not None
        return False

    @rule(transfer=transfers, number=CHUNKS, limit=st.integers(1, 5), wait_seconds=WAITS, dies_at=DEATHS)
    def flush(self, transfer: Transfer, number: int, limit: int, wait_seconds: int, dies_at: int | None) -> None:
        """A chunk arrives, and some time later a flusher takes what is due; if it dies it comes late."""
        self._record(transfer, number)
        self.now_ms += wait_seconds * 1000
        claims = self._claim(limit)
        assert len(claims) <= limit
        self._go_on(claims, dies_at)

    def _claim(self, limit: int) -> list[Claim]:
        return self.runner.run(self._claimed(limit))

    async def _claimed(self, limit: int) -> list[Claim]:
        claims = await self.queue.claim(limit, self.now_ms)
        of = {claim.upload_id for claim in claims}
        leased: list[Transfer | Grown] = [*self.all, *self.grown]
        for each in leased:
            if each.upload.id in of:
                each.leased_at_ms = self.now_ms
        return claims

    @rule(
        transfer=transfers,
        number=CHUNKS,
        meanwhile=st.sampled_from([*Meanwhile, Meanwhile.RECORD, *WITHDRAWALS]),
        other=CHUNKS,
        committed=st.booleans(),
    )
    def flush_while(self, transfer: Transfer, number: int, meanwhile: Meanwhile, other: int, committed: bool) -> None:
        """A flusher stands still after it claimed, or after its commit, while another does something."""
        transfer = self._unfinished(transfer)
        number, other = self._missing(transfer, number)[0], self._missing(transfer, other)[-1]
        self._record(transfer, number)
        self.now_ms += QUIET * 1000
        claims = self._claim(300)
        deed = self._do(meanwhile, transfer, number if meanwhile in WITHDRAWALS else other)
        if committed:
            self.runner.run(self._beside("ack_flush", self.services.flushing.flush_due(_held(claims)), deed))
        else:
            self.runner.run(deed)
            self._go_on(claims, None)

    @rule(transfer=transfers, number=CHUNKS, committed=st.booleans())
    def flush_what_was_healed(self, transfer: Transfer, number: int, committed: bool) -> None:
        """The commit, or the ack, of a chunk comes when it was withdrawn and sent again: as many bytes, of another
        generation."""
        self.flush_while(transfer, number, Meanwhile.HEAL, number, committed)

    @rule(transfer=transfers, number=CHUNKS, dies_at=st.integers(1, 3))
    def die_flushing(self, transfer: Transfer, number: int, dies_at: int) -> None:
        """Something is pending and claimed: before its commit, before its ack, or after it the flusher dies."""
        transfer = self._unfinished(transfer)
        self._record(transfer, self._missing(transfer, number)[0])
        self.now_ms += LEASE * 1000
        self._go_on(self._claim(300), dies_at)

    @rule(transfer=transfers, number=CHUNKS, dies_at=st.integers(1, 3))
    def die_ending_what_is_accounted(self, transfer: Transfer, number: int, dies_at: int) -> None:
        """With nothing pending there is no task; still somebody has to find what a worker left that died."""
        transfer = self._unfinished(transfer)
        self._record(transfer, number)
        self.now_ms += LEASE * 1000
        self._go_on(self._claim(300), None)
        self.cancel(transfer, Reason.CANCELLED, dies_at)

    @rule(transfer=transfers, numbers=st.permutations(range(CHUNK_COUNT)))
    def keep_sending(self, transfer: Transfer, numbers: list[int]) -> None:
        """A steady uploader is accounted for, too."""
        transfer = self._unfinished(transfer)
        for number in numbers[:4]:
            self._record(transfer, number)
            self.the_accounts_hold()
            self.now_ms += (QUIET - 1) * 1000

    @rule(transfer=transfers, numbers=st.permutations(range(CHUNK_COUNT)))
    def overtake(self, transfer: Transfer, numbers: list[int]) -> None:
        """A flusher stands still for longer than its lease; another flushes more, and then the first one goes on."""
        transfer = self._unfinished(transfer)
        batches = []
        for number in numbers[:2]:
            self._record(transfer, number)
            self.now_ms += LEASE * 1000
            batches.append(self._claim(300))
        for claims in reversed(batches):
            self._go_on(claims, None)

    @rule(which=st.integers(0, 100), wait_seconds=WAITS, dies_at=DEATHS)
    def come_late(self, which: int, wait_seconds: int, dies_at: int | None) -> None:
        """A flusher that stood still goes on, however late, and perhaps after another has done its work."""
        self.now_ms += wait_seconds * 1000
        if self.late:
            self._go_on(self.late[which % len(self.late)], dies_at)

    def _go_on(self, claims: list[Claim], dies_at: int | None) -> None:
        self.run(self.services.flushing.flush_due(_held(claims)), dies_at)
        if claims and dies_at is not None:
            self.late.append(claims)

    @rule(transfer=transfers, dies_at=DEATHS, wait_seconds=WAITS)
    def hydrate(self, transfer: Transfer, dies_at: int | None, wait_seconds: int) -> None:
        """Somebody asks, compares the map with Redis, and mends it."""
        self.now_ms += wait_seconds * 1000
        figures = self.run(self._hydrate(transfer), dies_at)
        if figures is not None:
            assert (figures.outcome, figures.received) == (Outcome.HYDRATED, self._disk(transfer).received)

    async def _hydrate(self, transfer: Transfer) -> RecordResult | None:
        with suppress(Gone, NotOpen):
            return await self.services.closers.hydrate(transfer.upload)
        return None

    @rule(transfer=transfers, number=CHUNKS)
    def keep_asking(self, transfer: Transfer, number: int) -> None:
        """To hydrate again and again does not put off the flush."""
        transfer = self._unfinished(transfer)
        self._record(transfer, self._missing(transfer, number)[0])
        for _ in range(4):
            self.the_accounts_hold()
            self.now_ms += (QUIET - 1) * 1000
            self.runner.run(self._hydrate(transfer))

    @rule(transfer=transfers, meanwhile=st.sampled_from(Meanwhile), number=CHUNKS)
    def hydrate_while(self, transfer: Transfer, meanwhile: Meanwhile, number: int) -> None:
        """A worker that hydrates stands still after it read the map, while another does something."""
        transfer = self._unfinished(transfer)
        deed = self._do(meanwhile, transfer, number)
        self.runner.run(self._beside("hydrate", self._hydrate(transfer), deed))

    @rule(transfer=transfers, number=CHUNKS, meanwhile=st.sampled_from(Meanwhile), other=CHUNKS)
    def record_while(self, transfer: Transfer, number: int, meanwhile: Meanwhile, other: int) -> None:
        """A worker stands still after a chunk is on disk, and records it late."""
        transfer = self._unfinished(transfer)
        number, other = self._missing(transfer, number)[0], self._missing(transfer, other)[-1]
        if meanwhile in WITHDRAWALS:
            other = (number + 1) % CHUNK_COUNT  # of the same one, who was first would decide what was promised
        deed = self._do(meanwhile, transfer, other)
        self.runner.run(self._beside("record_chunk", self._store(transfer, number), deed))

    def _do(self, meanwhile: Meanwhile, transfer: Transfer, number: int) -> Coroutine[Any, Any, object]:
        transfer.leased_at_ms = self.now_ms
        deeds: dict[Meanwhile, Callable[[], Coroutine[Any, Any, object]]] = {
            Meanwhile.FLUSH: lambda: self._flush_after_the_lease(transfer, number),
            Meanwhile.HYDRATE: lambda: self._hydrate(transfer),
            Meanwhile.RECORD: lambda: self._store(transfer, number),
            Meanwhile.WITHDRAW: lambda: self._withdraw(transfer, [number]),
            Meanwhile.HEAL: lambda: self._heal(transfer, number),
            Meanwhile.CANCEL: lambda: self._close(transfer),
            Meanwhile.LOSE: self.redis.flushall,
            Meanwhile.ROLL_BACK: self._restore,
        }
        return deeds[meanwhile]()

    async def _flush_after_the_lease(self, transfer: Transfer, number: int) -> None:
        """Another worker takes over what one had claimed that stood still, with a chunk more."""
        await self._store(transfer, number)
        self.now_ms += LEASE * 1000
        await self.services.flushing.flush_due(_held(await self._claimed(300)))

    async def _beside(self, verb: str, work: Coroutine[Any, Any, object], deed: Coroutine[Any, Any, object]) -> None:
        """Let whoever works stand still before `verb`, a script, while another does something."""
        real, others = getattr(self.pending, verb), list[asyncio.Task[object]]()

        async def stand_still(*arguments: Any, **options: Any) -> Any:
            if not others:
                others.append(asyncio.create_task(deed))
                await asyncio.wait(others, timeout=PAUSE_SECONDS)  # unless it waits for the lock that is held here
            return await real(*arguments, **options)

        setattr(self.pending, verb, stand_still)
        try:
            await work
            await (others[0] if others else deed)
        finally:
            setattr(self.pending, verb, real)

    @rule(dies_at=DEATHS)
    def sweep(self, dies_at: int | None) -> None:
        self.run(self.services.sweeping.sweep(0), dies_at)

    @rule(transfer=transfers, numbers=st.sets(CHUNKS, min_size=1, max_size=3), dies_at=WITHDRAWAL_DEATHS)
    def withdraw(self, transfer: Transfer, numbers: set[int], dies_at: int | None) -> None:
        """A merge found that stored chunks went bad."""
        transfer = self._unfinished(transfer)
        self._record(transfer, min(numbers))
        transfer.may_be_old = transfer.may_be_old or dies_at is not None
        transfer.leased_at_ms = self.now_ms
        self.run(self._withdraw(transfer, sorted(numbers)), dies_at)

    @rule(transfer=transfers, number=CHUNKS, dies_at=st.integers(2, 5))
    def die_withdrawing(self, transfer: Transfer, number: int, dies_at: int) -> None:
        """Even if the chunk is sent again, somebody ends within a lease what a worker left that died after its commit."""
        transfer = self._unfinished(transfer)
        self._record(transfer, number)
        self.withdraw(transfer, {number}, dies_at)
        self._record(transfer, number)
        self.now_ms += LEASE * 1000
        for other in self.all:
            other.leased_at_ms = self.now_ms
        self.runner.run(self._do_what_is_due())
        transfer.may_be_old = False

    async def _heal(self, transfer: Transfer, number: int) -> None:
        await self._withdraw(transfer, [number])
        await self._store(transfer, number)

    async def _withdraw(self, transfer: Transfer, numbers: list[int]) -> None:
        transfer.acknowledged -= set(numbers)
        transfer.appended = min(transfer.appended, min(numbers) * CHUNK)
        with suppress(Gone, NotOpen):
            await self.services.closers.withdraw(transfer.upload, numbers)
            transfer.may_be_old = False

    @precondition(lambda self: self.losses < 2)
    @rule(transfer=transfers, number=CHUNKS, dies_at=DEATHS)
    def lose_redis(self, transfer: Transfer, number: int, dies_at: int | None) -> None:
        self.losses += 1
        self.runner.run(self.redis.flushall())
        self._record(transfer, number, dies_at)

    @rule()
    def remember_redis(self) -> None:
        """What a rollback comes back to."""
        self.snapshot = self.runner.run(self._dump())

    async def _dump(self) -> list[tuple[bytes, int, bytes]]:
        keys = await self.redis.keys()
        return [(key, max(await self.redis.pttl(key), 0), await self.redis.dump(key)) for key in keys]

    @precondition(lambda self: self.losses < 2)
    @rule(transfer=transfers, number=CHUNKS, later=CHUNKS, dies_at=DEATHS)
    def roll_back_redis(self, transfer: Transfer, number: int, later: int, dies_at: int | None) -> None:
        """To before some chunks arrived, of which one or another is sent again."""
        transfer = self._unfinished(transfer)
        self.losses += 1
        self._record(transfer, number)
        self.remember_redis()
        self._record(transfer, later)
        self.runner.run(self._restore())
        self._record(transfer, number, dies_at)
        self._record(transfer, number)

    async def _restore(self) -> None:
        """As a restart with an older file: the data of that moment, and another replication id."""
        await self.redis.flushall()
        for key, ttl_ms, content in self.snapshot:
            await self.redis.restore(key, ttl_ms, content)
        await self.redis.replicaof("127.0.0.1", "1")
        await self.redis.replicaof("NO", "ONE")
        for transfer in self.all:
            transfer.may_be_left = True

    @invariant()
    def the_accounts_hold(self) -> None:
        self.runner.run(self._check())

    async def _check(self) -> None:
        await checked_accounts(self.database)
        rows = await self.database.read(_rows)
        shapes = {transfer.upload.id: SHAPE for transfer in self.all}
        await check_pending(
            self.redis, shapes | {grown.upload.id: self._check_grown(grown, rows) for grown in self.grown}
        )
        for transfer in self.all:
            row = rows[transfer.upload.id]
            assert transfer.is_open or row.state != State.OPEN, f"{transfer} was closed"
            transfer.is_open = row.state == State.OPEN
            if transfer.is_open:
                disk = self._disk(transfer)
                self._check_disk(transfer, disk, row)
                await self._check_known(transfer, disk, row)
            else:
                await self._check_closed(transfer)

    def _check_grown(self, grown: Grown, rows: dict[str, Any]) -> Shape:
        row = rows[grown.upload.id]
        grown.is_open = row.state == State.OPEN
        if not grown.is_open:
            return SHAPE
        disk = read_directory(self.services.settings.data / grown.upload.place)
        assert disk.sound == disk.present
        assert disk.tail_is_sound
        assert grown.appended <= disk.leading == disk.received <= row.size, f"{row} was not reserved before its bytes"
        return disk.shape

    def _check_disk(self, transfer: Transfer, disk: OnDisk, row: Any) -> None:
        assert disk.sound == disk.present, f"invariant 6: {transfer} lost bytes of {disk.present - disk.sound}"
        lost = transfer.acknowledged - disk.present
        assert not lost, f"invariant 6: {transfer} lost {lost} of what was acknowledged"
        assert disk.tail_is_sound, f"invariant 6: {transfer} lost bytes of its tail"
        assert disk.leading >= transfer.appended, f"invariant 6: {transfer} lost bytes that were appended"
        assert row.flushed_bytes <= disk.received, f"{transfer}: bytes were invented"
        accounted = (row.flushed_generation, row.flushed_bytes)
        assert accounted >= transfer.accounted, f"{transfer}: what is accounted went down within a generation"
        transfer.accounted = accounted

    async def _check_known(self, transfer: Transfer, disk: OnDisk, row: Any) -> None:
        """What Redis knows in this era and generation is between what was acknowledged and what is on disk."""
        keys = upload_keys(0, transfer.upload.id)
        known = await self.pending.read(transfer.upload.id)
        if not known.state:
            return
        held = await held_of(self.redis, keys.up)
        if held.generation != row.generation:
            assert transfer.may_be_old, f"{transfer}: Redis is of another generation"
            return
        bits = from_bitmap(await self.redis.get(keys.chunks) or b"", CHUNK_COUNT)
        counted = {number for number, bit in enumerate(bits) if bit}
        assert transfer.acknowledged <= counted, f"{transfer}: an acknowledged chunk does not count"
        assert counted <= disk.present, f"{transfer}: {counted - disk.present} count and are not on disk"
        assert held.received <= disk.received, f"{transfer}: {held.tail} counts and is not on disk"
        if counted >= set(range(transfer.appended // CHUNK)):
            in_tail = transfer.appended % CHUNK if transfer.appended // CHUNK not in counted else 0
            assert (held.tail.length if held.tail else 0) >= in_tail, f"{transfer}: appended bytes do not count"
        assert held.flushed <= row.flushed_bytes, f"{transfer}: Redis takes for accounted what is not"
        if known.state == "open" and known.received != row.flushed_bytes:
            assert held.due_ms is not None
            self._check_delay(transfer, known.era, row, known.received, held.due_ms)

    def _check_delay(self, transfer: Transfer, era: str, row: Any, received: int, due_ms: int) -> None:
        """Invariant 8: bytes are due to be accounted within the maximum delay, or the lease of who took that on."""
        if transfer.era != (era, row.generation):
            transfer.era, transfer.arrivals = (era, row.generation), []
        if not transfer.arrivals or received > transfer.arrivals[-1][1]:
            transfer.arrivals.append((self.now_ms, received))
        oldest_ms = next(at_ms for at_ms, held in transfer.arrivals if held > row.flushed_bytes)
        latest_ms = max(oldest_ms + MAX_DELAY * 1000, transfer.leased_at_ms + LEASE * 1000, self.now_ms)
        assert due_ms <= latest_ms, f"invariant 8: {transfer} is due {due_ms - latest_ms} ms too late"

    async def _check_closed(self, transfer: Transfer) -> None:
        """Whoever closed it may have died before Redis knew; then a task sees to it that somebody looks."""
        held = await held_of(self.redis, upload_keys(0, transfer.upload.id).up)
        if held.state in OPEN_STATES and not transfer.may_be_left:
            assert held.due_ms is not None, f"{transfer} is closed, open in Redis, and nobody will look"

    def _open(self, user_id: str, content: int, dies_at: int | None) -> Transfer:
        # Ids decide the order of claims that are due at one moment: the same ones in every run.
        upload_id = f"{len(self.all) + 1:032x}"
        md5 = hashlib.md5(CONTENTS[content]).hexdigest()
        upload = upload_row(user_id, SHAPE.size, id=upload_id, md5=md5, chunk_size=CHUNK)
        try:
            self.run(self.services.openings._create(upload), dies_at)
        except Duplicate:
            return next(t for t in self.all if t.is_open and (t.upload.user_id, t.upload.md5) == (user_id, md5))
        if upload_id not in self.runner.run(self.database.read(_rows)):
            return self.all[0]  # its worker died before the commit
        transfer = Transfer(upload, CONTENTS[content])
        self.all.append(transfer)
        return transfer

    def _unfinished(self, transfer: Transfer) -> Transfer:
        """An upload to which something can still happen, rather than one to which nothing can."""
        candidates = (transfer, *self.all)
        unfinished = (t for t in candidates if t.is_open and len(t.acknowledged) < CHUNK_COUNT)
        return next(unfinished, None) or self._open("bob", 1, None)

    def _missing(self, transfer: Transfer, first: int) -> list[int]:
        """The chunks to send, from `first` on and round; that one if there is none."""
        numbers = [(first + offset) % CHUNK_COUNT for offset in range(CHUNK_COUNT)]
        return [number for number in numbers if number not in transfer.acknowledged] or [first]

    def _disk(self, transfer: Transfer) -> OnDisk:
        return read_directory(self._directory(transfer))

    def _directory(self, transfer: Transfer) -> Path:
        return self.services.settings.data / transfer.upload.place

    def _of(self, claim: Claim) -> Transfer:
        return next(transfer for transfer in self.all if transfer.upload.id == claim.upload_id)


def _held(claims: list[Claim]) -> UploadQueue:
    """A queue of which a worker has claimed these some time ago."""

    async def claim_many(_scripts: int) -> tuple[list[Claim], bool]:
        return claims, False

    return cast(UploadQueue, SimpleNamespace(claim_many=claim_many, shard=0))


async def _together(*works: Awaitable[object], died: bool = False) -> None:
    """`died`: one of them may."""
    await asyncio.gather(*works, return_exceptions=died)


async def _rows(connection: Connection) -> dict[str, Any]:
    return {row.id: row for row in await connection.execute(select(models.upload))}


def test_no_order_of_events_makes_the_accounts_wrong(
    anyio_backend: str, sqlite_template: Path, own_redis: PrivateRedis, tmp_path: Path
) -> None:
    AccountingMachine.pass_examples(tmp_path, sqlite_template, own_redis)
