"""Every verb of the accounting store on a real Valkey, with the clock turned by hand and the invariants checked after
every step."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.support.content import KIB, MIB
from tests.support.held import HeldUpload, held_of
from tests.support.invariants import Shape, check_pending
from tests.support.rows import upload_row
from tests.support.servers import PrivateRedis
from uploader.accounting.keys import Shards, shard_of
from uploader.accounting.pending import TOMBSTONE_SECONDS, Audit, Outcome, Pending, RecordResult
from uploader.accounting.queue import MAX_CLAIM, Claim, Measured, MinuteBucket, UploadQueue
from uploader.domain.upload import Tail, Upload, UploadKind, chunk_count, chunk_length
from uploader.settings import Settings

# The clock of these tests is in seconds from here, the first millisecond of a minute.
MINUTE = 30_000_000
QUIET, MAX_DELAY, LEASE = 5, 60, 30
DELAYS = Settings(
    quiet_interval_seconds=QUIET, max_delay_seconds=MAX_DELAY, max_pending_bytes=MIB, claim_lease_seconds=LEASE
)
CHUNK = 64 * KIB
SHAPE = Shape(size=10 * CHUNK - 1000, chunk_size=CHUNK)
LAST = 9
UP = "up:{s00}:u"


def at(seconds: float) -> int:
    return MINUTE * 60_000 + round(seconds * 1000)


def row_of(upload_id: str, shape: Shape) -> Upload:
    return upload_row("alice", shape.size, id=upload_id, chunk_size=shape.chunk_size)


class Ledger:
    """The store, checked after every verb."""

    def __init__(self, url: str, shards: int = 1) -> None:
        self.redis = Redis.from_url(url, protocol=2)
        self.pending = Pending(self.redis, shards=Shards(shards), settings=DELAYS)
        self.flush = self.pending.flush_queues[0]
        self.merge = self.pending.merge_queues[0]
        self.shapes: dict[str, Shape] = {}

    async def check(self) -> None:
        await check_pending(self.redis, self.shapes)

    async def hydrate(
        self,
        upload_id: str = "u",
        present: tuple[int, ...] = (),
        *,
        shape: Shape = SHAPE,
        era: str | None = None,
        generation: int = 0,
        flushed: int = 0,
        tail: Tail | None = None,
        is_part: bool = False,
        now: float = 0,
    ) -> RecordResult:
        self.shapes[upload_id] = shape
        kind = UploadKind.PART if is_part else None
        upload = replace(row_of(upload_id, shape), generation=generation, flushed_bytes=flushed, kind=kind)
        chunks = bytearray(number in present for number in range(chunk_count(shape.size, shape.chunk_size)))
        era = era or (await self.pending.read(upload_id)).era
        figures = await self.pending.hydrate(upload, chunks, tail, era=era, now_ms=at(now))
        await self.check()
        return figures

    async def introduce(self, upload_id: str = "u", *, era: str | None = None) -> None:
        self.shapes[upload_id] = SHAPE
        era = era or (await self.pending.read(upload_id)).era
        await self.pending.introduce(row_of(upload_id, SHAPE), era=era)
        await self.check()

    async def record(self, number: int, now: float = 0, upload_id: str = "u") -> RecordResult:
        shape = self.shapes.get(upload_id, SHAPE)
        length = chunk_length(number, shape.size, shape.chunk_size)
        figures = await self.pending.record_chunk(upload_id, number, length, at(now))
        await self.check()
        return figures

    async def record_tail(self, number: int, length: int, now: float = 0, upload_id: str = "u") -> RecordResult:
        figures = await self.pending.record_tail(upload_id, Tail(number, length), at(now))
        await self.check()
        return figures

    async def arrive(self, *uploads: str, now: float = 0) -> None:
        """The first chunks of new uploads; what they leave is checked by what follows."""
        for upload_id in uploads:
            self.shapes[upload_id] = SHAPE
            era = (await self.pending.read(upload_id)).era
            await self.pending.introduce(row_of(upload_id, SHAPE), era=era)
            await self.pending.record_chunk(upload_id, 0, CHUNK, at(now))

    async def settle(self) -> RecordResult:
        for number in range(LAST):
            await self.record(number)
        return await self.record(LAST)

    async def claim(self, queue: UploadQueue, now: float, limit: int = 300) -> list[Claim]:
        claims = await queue.claim(limit, at(now))
        await self.check()
        return claims

    async def claimed(self, queue: UploadQueue, now: float) -> list[str]:
        return [claim.upload_id for claim in await self.claim(queue, now)]

    async def ack(self, received: int, generation: int = 0, upload_id: str = "u") -> int:
        """As the worker whose claim holds the lease."""
        lease = (await self.held(upload_id)).lease_until
        removed = await self.pending.ack_flush(0, [Claim(upload_id, generation, received, "open", lease)])
        await self.check()
        return removed

    async def lease(self, now: float = 0, upload_id: str = "u") -> None:
        await self.pending.lease(upload_id, at(now))
        await self.check()

    async def forget(self, word: str = "cancelled", upload_id: str = "u") -> None:
        await self.pending.forget(upload_id, word)
        await self.check()

    async def due(self, queue: UploadQueue) -> float | None:
        """When the earliest task is due, in seconds of this clock."""
        return await queue.next_due(at(0))

    async def held(self, upload_id: str = "u") -> HeldUpload:
        return await held_of(self.redis, "up:{s00}:" + upload_id)

    async def buckets(self, queue: str) -> list[int]:
        """The minutes of the buckets there are, from the first minute of this clock."""
        minutes: Any = await self.redis.zrange(f"minutes:{{s00}}:{queue}", 0, -1)
        return [int(minute) - MINUTE for minute in minutes]


@pytest.fixture
async def ledger(redis_url: str) -> AsyncIterator[Ledger]:
    made = Ledger(redis_url)
    yield made
    await made.redis.aclose()


@pytest.fixture
async def opened(ledger: Ledger) -> Ledger:
    """A ledger that knows the open upload `u`."""
    assert (await ledger.hydrate()).outcome is Outcome.HYDRATED
    return ledger


# record_chunk


async def test_a_chunk_counts_once_and_becomes_due_after_the_quiet_interval(opened: Ledger) -> None:
    assert await opened.record(3) == RecordResult(Outcome.RECORDED, CHUNK, 1, 10, settled=False)
    assert await opened.buckets("flush") == [0]
    assert await opened.due(opened.merge) is None
    assert await opened.record(3, now=4) == RecordResult(Outcome.DUPLICATE, CHUNK, 1, 10, settled=False)
    assert await opened.due(opened.flush) == QUIET, "nothing is pushed back by what is there"
    assert (await opened.record(LAST)).received == 2 * CHUNK - 1000
    known, unknown = await opened.pending.read("u"), await opened.pending.read("nobody")
    assert (known.state, known.received, known.chunks) == ("open", 2 * CHUNK - 1000, 2)
    assert (unknown.state, unknown.received, unknown.chunks) == ("", 0, 0)
    other = Pending(opened.redis, shards=Shards(1), settings=DELAYS)
    assert unknown.era == known.era == (await other.read("u")).era
    assert (await other.record_chunk("u", 0, CHUNK, at(0))).outcome is Outcome.RECORDED


async def test_a_tail_counts_once_grows_only_and_is_a_part_of_its_chunk(opened: Ledger) -> None:
    assert await opened.record_tail(0, 100) == RecordResult(Outcome.RECORDED, 100, 0, 10, settled=False)
    assert await opened.due(opened.flush) == QUIET
    assert (await opened.record_tail(0, 700, now=4)).received == 700
    assert await opened.claimed(opened.flush, now=QUIET) == [], "it is pushed back"
    for length in (700, 100):
        assert await opened.record_tail(0, length, now=5) == RecordResult(Outcome.DUPLICATE, 700, 0, 10, settled=False)
    await opened.record(1)
    assert (await opened.record(0)).received == 2 * CHUNK
    assert (await opened.held()).tail is None
    assert (await opened.record_tail(0, 800)).outcome is Outcome.DUPLICATE, "its chunk is there"
    assert (await opened.record_tail(2, 5)).received == 2 * CHUNK + 5
    for number in range(3, LAST + 1):
        await opened.record(number)
    assert await opened.record(2) == RecordResult(Outcome.RECORDED, SHAPE.size, 10, 10, settled=True)
    assert (await opened.record_tail(2, 6)).outcome is Outcome.DUPLICATE


async def test_a_tail_has_the_delays_of_a_chunk(opened: Ledger) -> None:
    for second in range(0, MAX_DELAY, 4):
        await opened.record_tail(0, second + 1, now=second)
    assert await opened.due(opened.flush) == MAX_DELAY
    [claim] = await opened.claim(opened.flush, now=MAX_DELAY)
    await opened.record_tail(0, 1000, now=MAX_DELAY + LEASE - 1)
    assert await opened.due(opened.flush) == MAX_DELAY + LEASE, "never beyond the lease of a claim"
    assert await opened.ack(claim.received) == 0
    await opened.hydrate("large", shape=Shape(size=16 * MIB, chunk_size=8 * MIB))
    await opened.record_tail(0, MIB, upload_id="large")
    assert await opened.due(opened.flush) == 0


async def test_a_tail_of_another_chunk_than_the_first_gap_asks_to_be_hydrated(opened: Ledger) -> None:
    """The disk has chunks of which nobody told Redis."""
    await opened.record_tail(0, 100)
    assert (await opened.record_tail(1, 5)).outcome is Outcome.REHYDRATE
    assert (await opened.hydrate(present=(0,), tail=Tail(1, 5))).received == CHUNK + 5
    assert (await opened.record_tail(1, 5)).outcome is Outcome.DUPLICATE
    assert (await opened.record_tail(9, 5)).outcome is Outcome.REHYDRATE
    await opened.redis.hset(UP, "tail", b"1 \xb5")
    assert (await opened.pending.record_tail("u", Tail(1, 6), at(0))).outcome is Outcome.REHYDRATE
    assert (await opened.pending.record_chunk("u", 1, CHUNK, at(0))).outcome is Outcome.REHYDRATE


async def test_to_hydrate_brings_the_tail_of_the_map_and_takes_away_what_is_none_any_more(opened: Ledger) -> None:
    assert (await opened.hydrate(tail=Tail(0, 100))).received == 100
    assert await opened.due(opened.flush) == QUIET
    assert (await opened.hydrate(tail=Tail(0, 300), flushed=100)).received == 300
    assert (await opened.hydrate(present=(0, LAST), tail=Tail(1, 1))).received == 2 * CHUNK - 999
    assert (await opened.hydrate(present=(LAST,), generation=1)).received == CHUNK - 1000
    assert (await opened.held()).tail is None


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("word", ["done", "cancelled", "expired", "failed", "consumed"])
async def test_a_closed_upload_leaves_a_tombstone_that_tells_how_it_ended(
    opened: Ledger, word: str, settled: bool
) -> None:
    await (opened.settle() if settled else opened.record(0))
    await opened.forget(word)
    assert sorted(await opened.redis.keys()) == [b"era:{s00}", UP.encode()]
    assert 0 < await opened.redis.ttl(UP) <= TOMBSTONE_SECONDS
    await opened.introduce()
    await opened.lease()
    told = RecordResult(Outcome(word), 0, 0, 0, settled=False)
    assert (await opened.record(1), await opened.record_tail(1, 5), await opened.hydrate(present=(0,))) == (told,) * 3
    assert await opened.ack(CHUNK) == 0
    assert await opened.redis.hgetall(UP) == {b"state": word.encode()}
    assert sorted(await opened.redis.keys()) == [b"era:{s00}", UP.encode()]


async def test_forgetting_twice_or_what_is_unknown_leaves_a_tombstone_and_others_due(opened: Ledger) -> None:
    await opened.record(0)
    await opened.forget("cancelled", "nobody")
    await opened.forget("failed", "nobody")
    assert (await opened.record(0, upload_id="nobody")).outcome is Outcome.FAILED
    assert await opened.claimed(opened.flush, now=QUIET) == ["u"]


async def test_an_unknown_upload_asks_to_be_hydrated_and_leaves_nothing(opened: Ledger) -> None:
    await opened.record(0)
    era = (await opened.pending.read("u")).era
    await opened.redis.flushall()
    assert (await opened.record(0)).outcome is Outcome.REHYDRATE
    assert (await opened.record_tail(0, 5)).outcome is Outcome.REHYDRATE
    assert (await opened.hydrate(present=(0,), era=era)).outcome is Outcome.ERA_MOVED
    await opened.introduce(era=era)
    assert (await opened.record(1)).outcome is Outcome.REHYDRATE, "it is left to whoever reads the map"
    await opened.lease()
    assert await opened.ack(CHUNK) == 0
    assert await opened.redis.keys() == [b"era:{s00}"]
    await opened.hydrate(present=(0, 1))
    assert (await opened.record(1)).outcome is Outcome.DUPLICATE


async def test_an_upload_that_was_introduced_takes_chunks_and_one_that_others_know_is_left_alone(
    ledger: Ledger,
) -> None:
    await ledger.introduce()
    assert await ledger.record(3) == RecordResult(Outcome.RECORDED, CHUNK, 1, 10, settled=False)
    assert await ledger.record_tail(0, 5) == RecordResult(Outcome.RECORDED, CHUNK + 5, 1, 10, settled=False)
    assert await ledger.due(ledger.flush) == QUIET
    await ledger.hydrate(present=(0, 1), generation=1, flushed=CHUNK)
    await ledger.introduce()
    assert (await ledger.record(1)).outcome is Outcome.DUPLICATE
    held = await ledger.held()
    assert (held.generation, held.flushed) == (1, CHUNK)


async def test_a_part_stays_open_with_its_last_chunk_and_is_accounted_for(ledger: Ledger) -> None:
    await ledger.hydrate(is_part=True)
    last = await ledger.settle()
    assert (last.outcome, last.settled, last.chunks) == (Outcome.RECORDED, False, last.chunk_count)
    again = await ledger.hydrate(present=tuple(range(LAST + 1)), is_part=True)
    assert (again.received, again.settled) == (SHAPE.size, False)
    assert (await ledger.record(LAST)).outcome is Outcome.DUPLICATE
    assert await ledger.claimed(ledger.merge, 1000) == []
    (claim,) = await ledger.claim(ledger.flush, 1000)
    assert claim.received == SHAPE.size
    assert await ledger.ack(SHAPE.size) == 1


async def test_what_an_older_version_wrote_is_rebuilt_and_not_read(opened: Ledger) -> None:
    """Its hashes, in an era of its own, and its buckets: `0.1.0` wrote so."""
    era = (await opened.pending.read("u")).era
    older = ":".join(era.split(":")[:2])
    assert older != era
    facts: dict[Any, Any] = {"era": older, "generation": 0, "received": 3 * CHUNK, "flushed": CHUNK, "chunks": 3}
    facts |= {"chunk_count": 10, "state": "open", "pending_since": at(0), "due_minute": MINUTE}
    await opened.redis.delete(UP)
    await opened.redis.hset(UP, mapping=facts)
    await opened.redis.zadd(f"due:{{s00}}:flush:{MINUTE}", {"u": at(QUIET)})
    await opened.redis.zadd("minutes:{s00}:flush", {str(MINUTE): MINUTE})
    assert (await opened.pending.read("u")).state == ""
    assert (await Audit(opened.redis, shards=Shards(1)).upload("u")).state == ""
    assert (await opened.flush.claim(300, at(QUIET))) == []
    assert (await opened.pending.record_chunk("u", 3, CHUNK, at(0))).outcome is Outcome.REHYDRATE
    assert (await opened.pending.claim_sweep(0)) == era, "all of it"
    assert (await opened.hydrate(present=(0, 1), flushed=CHUNK)).received == 2 * CHUNK
    assert await opened.claimed(opened.flush, now=QUIET) == ["u"]


async def test_after_a_restart_all_is_hydrated_anew_even_if_everything_was_kept(own_redis: PrivateRedis) -> None:
    ledger = Ledger(own_redis.url)
    await ledger.hydrate()
    for number in range(3):
        await ledger.record(number)
    era = (await ledger.pending.read("u")).era
    await ledger.redis.aclose()
    own_redis.kill()
    own_redis.start()
    assert (await ledger.pending.read("u")).state == ""
    assert (await ledger.record(1)).outcome is Outcome.REHYDRATE
    assert (await ledger.hydrate(present=(3, 4), era=era)).outcome is Outcome.ERA_MOVED
    assert (await ledger.held()).received == 3 * CHUNK
    figures = await ledger.hydrate(present=(5,), flushed=CHUNK, now=70)
    assert (figures.received, figures.chunks) == (CHUNK, 1)
    assert await ledger.due(ledger.flush) is None
    assert (await ledger.record(1)).received == 2 * CHUNK
    await ledger.redis.aclose()


async def test_what_is_pushed_back_stays_in_its_bucket_until_somebody_looks(opened: Ledger) -> None:
    await opened.hydrate("v")
    await opened.record(0, now=40)
    await opened.record(1, now=58)
    assert await opened.due(opened.flush) == 58 + QUIET
    assert await opened.buckets("flush") == [0]
    assert (await opened.held()).at_ms == at(40 + QUIET)
    await opened.record(0, now=41, upload_id="v")
    assert await opened.due(opened.flush) == 41 + QUIET
    assert await opened.claim(opened.flush, now=40 + QUIET) == []
    assert await opened.buckets("flush") == [0, 1], "one stays for the other"
    await opened.record(1, now=42, upload_id="v")
    assert await opened.claimed(opened.flush, now=42 + QUIET) == ["v"]
    assert await opened.buckets("flush") == [1], "and none is left empty"
    assert await opened.redis.keys("due:*") == [f"due:{{s00}}:flush:{MINUTE + 1}".encode()]
    assert await opened.claimed(opened.flush, now=58 + QUIET) == ["u"]


async def test_what_was_pushed_back_many_times_is_claimed_once_and_in_time(opened: Ledger) -> None:
    """Whoever looks in between, and however often."""
    await opened.hydrate("steady", shape=Shape(size=100 * CHUNK // 16, chunk_size=CHUNK // 16))
    for number in range(40):
        await opened.record(number, now=number, upload_id="steady")
        if number % 7 == 0:
            assert await opened.claim(opened.flush, now=number) == []
    assert await opened.claim(opened.flush, now=39 + QUIET - 0.001) == []
    assert await opened.claimed(opened.flush, now=39 + QUIET) == ["steady"]
    assert await opened.claimed(opened.flush, now=39 + QUIET) == []
    assert await opened.ack(40 * CHUNK // 16, upload_id="steady") == 1
    assert await opened.claimed(opened.flush, now=1000) == []


async def test_what_becomes_due_earlier_moves_at_once(opened: Ledger) -> None:
    """By a lease, by too much pending, by the merge: whoever claims looks at nothing that waits later."""
    await opened.hydrate("large", shape=Shape(size=4 * MIB, chunk_size=MIB // 2))
    await opened.record(0, now=10, upload_id="large")
    assert await opened.due(opened.flush) == 10 + QUIET
    await opened.record(1, now=12, upload_id="large")
    assert (await opened.held("large")).at_ms == at(12)
    assert await opened.claimed(opened.flush, now=12) == ["large"]
    await opened.record(2, now=13, upload_id="large")
    assert (await opened.held("large")).at_ms == at(13), "not when its lease ends"
    assert await opened.claimed(opened.flush, now=13) == ["large"]
    await opened.ack(3 * MIB // 2, upload_id="large")
    await opened.record(3, now=20, upload_id="large")
    assert (await opened.held("large")).due_ms == at(20 + QUIET), "what is flushed is not pending"
    await opened.record(0, now=70)
    await opened.lease(now=80)
    await opened.record(1, now=81)
    assert (await opened.held()).at_ms == at(70 + QUIET), "a lease that is later is as lazy"
    assert (await opened.held()).due_ms == at(81 + QUIET)


async def test_a_claim_counts_what_it_looks_at_and_is_followed_by_another(ledger: Ledger) -> None:
    """Seven were pushed back, one is due: with a limit of three that takes three scripts."""
    pushed_back = [f"upload-{number}" for number in range(7)]
    await ledger.arrive(*pushed_back)
    await ledger.arrive("waits", now=1)
    for upload_id in pushed_back:
        await ledger.record(1, now=4, upload_id=upload_id)
    await ledger.redis.config_resetstat()
    assert [claim.upload_id for claim in await ledger.flush.claim(3, at(1 + QUIET))] == ["waits"]
    assert (await ledger.redis.info("commandstats"))["cmdstat_evalsha"]["calls"] == 3
    assert await ledger.claimed(ledger.flush, now=4 + QUIET) == pushed_back


async def test_many_claims_say_whether_more_may_be_due(ledger: Ledger) -> None:
    """A claim that only scheduled anew is not the end."""
    uploads = [f"upload-{number:03d}" for number in range(2 * MAX_CLAIM + 1)]
    await ledger.arrive(*uploads)
    for upload_id in uploads[:MAX_CLAIM]:
        await ledger.pending.record_chunk(upload_id, 1, CHUNK, at(1))
    claims, more = await ledger.flush.claim_many(1, at(QUIET))
    assert (claims, more) == ([], True)
    claims, more = await ledger.flush.claim_many(5, at(QUIET))
    assert ([claim.upload_id for claim in claims], more) == (uploads[MAX_CLAIM:], False)
    claims, more = await ledger.flush.claim_many(5, at(1 + QUIET))
    assert ([claim.upload_id for claim in claims], more) == (uploads[:MAX_CLAIM], False)
    await ledger.check()


async def test_lateness_goes_by_when_a_task_is_due_not_by_where_it_waits(opened: Ledger) -> None:
    await opened.arrive("v", now=3)
    await opened.record(0, now=0)
    await opened.record(1, now=40)
    measured = await opened.flush.measure(at(45))
    assert (measured.tasks, measured.pending_bytes, measured.lag_seconds) == (2, 3 * CHUNK, 45 - (3 + QUIET))
    assert await opened.due(opened.flush) == 3 + QUIET
    (claim,) = [claim for claim in await opened.claim(opened.flush, now=44) if claim.upload_id == "v"]
    assert claim.late_ms == (44 - (3 + QUIET)) * 1000
    assert (await opened.flush.measure(at(44))).lag_seconds == 0
    assert await opened.due(opened.flush) == 40 + QUIET


async def test_what_waits_is_told_by_minute_of_all_and_of_one(ledger: Ledger) -> None:
    """More than a page of uploads, in two minutes; those of one that has no bytes wait nowhere."""
    uploads = [f"upload-{number:03d}" for number in range(MAX_CLAIM + 5)]
    await ledger.arrive(*uploads[:3])
    await ledger.arrive(*uploads[3:], now=60)
    first, second = (await ledger.flush.measure(at(0))).buckets
    assert (first.tasks, first.pending_bytes) == (3, 3 * CHUNK)
    assert (second.tasks, second.pending_bytes) == (MAX_CLAIM + 2, (MAX_CLAIM + 2) * CHUNK)
    assert first.minute is not None
    assert second.minute == first.minute + 1
    one = await ledger.pending.measure(uploads[-1], at(60 + QUIET + 4))
    assert one == {"flush": Measured([MinuteBucket(second.minute, 1, CHUNK)], 4.0)}
    await ledger.hydrate("idle")
    assert await ledger.pending.measure("idle") == {"flush": Measured([], 0.0)}
    assert await ledger.pending.measure("nobody") == {}


async def test_where_many_were_pushed_back_a_worker_looks_again_before_the_earliest_is_due(ledger: Ledger) -> None:
    """Who sleeps looks at few, and is never late."""
    for number in range(60):
        await ledger.arrive(f"upload-{number}", now=number / 100)
        await ledger.pending.record_chunk(f"upload-{number}", 1, CHUNK, at(40 - number / 100))
    earliest = await ledger.due(ledger.flush)
    assert earliest is not None
    assert QUIET < earliest < 39.41 + QUIET
    assert await ledger.claim(ledger.flush, now=39) == []
    assert await ledger.due(ledger.flush) == 39.41 + QUIET


async def test_without_a_given_time_the_time_of_redis_counts(opened: Ledger) -> None:
    await opened.pending.record_chunk("u", 0, CHUNK)
    delay = await opened.flush.next_due()
    assert delay is not None
    assert 0 < delay <= QUIET
    await opened.check()


# The last chunk


async def test_the_last_chunk_settles_and_its_merge_is_leased_again_and_again(opened: Ledger) -> None:
    settled = RecordResult(Outcome.RECORDED, SHAPE.size, 10, 10, settled=True)
    assert await opened.settle() == settled
    assert await opened.due(opened.flush) is None
    assert (await opened.pending.read("u")).state == "merging"
    assert await opened.record(3, now=4) == replace(settled, outcome=Outcome.MERGING)
    assert await opened.hydrate(present=tuple(range(10)), now=8) == replace(settled, outcome=Outcome.HYDRATED)
    assert await opened.ack(SHAPE.size) == 0
    assert (await opened.held()).flushed == SHAPE.size
    assert await opened.due(opened.merge) == LEASE, "none of them has moved it"
    assert await opened.claim(opened.merge, now=LEASE) == [Claim("u", 0, SHAPE.size, "merging", at(2 * LEASE))]
    await opened.lease(now=45)
    assert await opened.due(opened.merge) == 45 + LEASE
    assert await opened.claim(opened.merge, now=45 + LEASE - 0.001) == []
    assert await opened.buckets("merge") == [1]
    assert await opened.claimed(opened.merge, now=45 + LEASE) == ["u"]


async def test_a_duplicate_on_a_full_upload_arms_its_merge(opened: Ledger) -> None:
    await opened.settle()
    await opened.redis.delete(f"due:{{s00}}:merge:{MINUTE}", "minutes:{s00}:merge")
    await opened.redis.hset(UP, "timer", "")
    assert (await opened.record(3, now=100)).outcome is Outcome.MERGING
    assert await opened.due(opened.merge) == 100 + LEASE


async def test_an_upload_of_one_chunk_settles_with_it(ledger: Ledger) -> None:
    await ledger.hydrate(shape=Shape(size=10, chunk_size=CHUNK))
    assert await ledger.record(0) == RecordResult(Outcome.RECORDED, 10, 1, 1, settled=True)
    assert await ledger.due(ledger.flush) is None


# Claims and acks


async def test_a_claimed_task_is_due_again_when_its_lease_ends_until_it_is_acknowledged(opened: Ledger) -> None:
    await opened.record(0)
    assert await opened.claim(opened.flush, now=QUIET - 0.001) == []
    assert await opened.claim(opened.flush, now=QUIET) == [Claim("u", 0, CHUNK, "open", at(QUIET + LEASE))]
    assert await opened.claim(opened.flush, now=QUIET + LEASE - 0.001) == []
    await opened.record(1, now=20)
    assert await opened.due(opened.flush) == 20 + QUIET
    await opened.record(2, now=QUIET + LEASE - 2)
    assert await opened.due(opened.flush) == QUIET + LEASE, "no chunk pushes it back further"
    assert await opened.ack(CHUNK) == 0, "more landed meanwhile"
    assert (await opened.held()).flushed == CHUNK
    claim = Claim("u", 0, 3 * CHUNK, "open", at(QUIET + 2 * LEASE))
    assert await opened.claim(opened.flush, now=QUIET + LEASE) == [claim]
    assert await opened.ack(3 * CHUNK) == 1
    assert await opened.due(opened.flush) is None
    assert await opened.buckets("flush") == []
    await opened.record(3, now=100)
    assert (await opened.held()).pending_since == at(100), "the maximum delay counts anew"
    assert await opened.due(opened.flush) == 100 + QUIET


async def test_a_claim_takes_at_most_its_limit_from_the_oldest_buckets(ledger: Ledger) -> None:
    order = [f"upload-{n}" for n in (3, 1, 4, 0, 2)]
    assert await ledger.flush.next_due(at(0)) is None
    for n, upload_id in enumerate(order):
        await ledger.arrive(upload_id, now=50 * n)
    assert await ledger.flush.next_due(at(-10)) == 10 + QUIET
    assert await ledger.flush.next_due(at(300)) == 0
    assert await ledger.merge.next_due(at(300)) is None
    assert [claim.upload_id for claim in await ledger.claim(ledger.flush, now=1000, limit=3)] == order[:3]
    assert [claim.upload_id for claim in await ledger.claim(ledger.flush, now=1000, limit=3)] == order[3:]
    assert await ledger.claim(ledger.flush, now=1000, limit=3) == []


async def test_left_overs_are_dropped_by_a_claim(opened: Ledger) -> None:
    await opened.record(0)
    # A task whose hash is gone, and one that its hash says waits elsewhere.
    for minute, upload_id in ((MINUTE - 3, "nobody"), (MINUTE - 1, "u")):
        await opened.redis.zadd(f"due:{{s00}}:flush:{minute}", {upload_id: minute * 60_000 + 30_000})
        await opened.redis.zadd("minutes:{s00}:flush", {str(minute): minute})
    assert await opened.claim(opened.flush, now=0) == []
    assert await opened.buckets("flush") == [0]
    assert await opened.claimed(opened.flush, now=QUIET) == ["u"]


async def test_each_shard_has_queues_of_its_own(redis_url: str) -> None:
    ledger = Ledger(redis_url, shards=4)
    uploads = [f"upload-{n}" for n in range(12)]
    await ledger.arrive(*uploads)
    for queue in ledger.pending.flush_queues:
        mine = [upload_id for upload_id in uploads if shard_of(upload_id, 4) == queue.shard]
        assert mine
        assert sorted(await ledger.claimed(queue, now=QUIET)) == sorted(mine)
    await ledger.redis.aclose()


async def test_an_ack_that_is_late_of_another_generation_or_of_too_much_changes_nothing(opened: Ledger) -> None:
    await opened.hydrate(present=(0, 1), generation=2)
    for generation, received in ((1, CHUNK), (3, CHUNK), (2, 3 * CHUNK)):
        assert await opened.ack(received, generation) == 0
        assert (await opened.held()).flushed == 0
    assert await opened.ack(2 * CHUNK, generation=2) == 1
    assert await opened.ack(CHUNK, generation=2) == 0
    assert (await opened.held()).flushed == 2 * CHUNK


async def test_an_ack_takes_a_batch(opened: Ledger) -> None:
    await opened.arrive("v")
    await opened.record(0)
    claims = await opened.claim(opened.flush, now=QUIET)
    await opened.record(1, now=QUIET, upload_id="v")
    assert await opened.pending.ack_flush(0, claims) == 1
    await opened.check()
    assert await opened.claimed(opened.flush, now=100) == ["v"]


async def test_leasing_an_open_upload_has_a_worker_look_at_it_when_the_lease_ends(opened: Ledger) -> None:
    await opened.lease(now=1)
    assert await opened.claimed(opened.flush, now=1 + LEASE) == ["u"]
    assert await opened.ack(0) == 1
    assert await opened.due(opened.flush) is None


# hydrate


async def test_hydrating_counts_what_the_map_has_and_within_an_era_only_adds(ledger: Ledger) -> None:
    figures = await ledger.hydrate(present=(0, LAST), flushed=CHUNK, now=3)
    assert figures == RecordResult(Outcome.HYDRATED, 2 * CHUNK - 1000, 2, 10, settled=False)
    assert await ledger.due(ledger.flush) == 3 + QUIET
    await ledger.hydrate(present=(0, LAST), flushed=0, now=6)
    assert (await ledger.held()).flushed == CHUNK
    assert await ledger.due(ledger.flush) == 3 + QUIET, "to hydrate puts nothing off"
    await ledger.ack(2 * CHUNK - 1000)
    figures = await ledger.hydrate(present=(1,))
    assert (figures.received, figures.chunks) == (3 * CHUNK - 1000, 3)
    assert (await ledger.record(0)).outcome is Outcome.DUPLICATE
    await ledger.hydrate("flushed", present=(0, 1), flushed=2 * CHUNK)
    assert (await ledger.held("flushed")).due_ms is None


async def test_a_newer_generation_replaces_and_reopens_what_was_settled(opened: Ledger) -> None:
    for number in range(3):
        await opened.record(number)
    await opened.ack(2 * CHUNK)
    figures = await opened.hydrate(present=(0,), generation=1, flushed=CHUNK)
    assert (figures.received, figures.chunks) == (CHUNK, 1)
    assert (await opened.held()).flushed == CHUNK
    assert await opened.due(opened.flush) is None
    assert (await opened.record(2)).outcome is Outcome.RECORDED
    figures = await opened.hydrate(present=tuple(range(10)), generation=1, now=8)
    assert figures == RecordResult(Outcome.HYDRATED, SHAPE.size, 10, 10, settled=True)
    assert await opened.due(opened.flush) is None
    assert await opened.due(opened.merge) == 8, "it is merged at once"
    assert (await opened.hydrate(present=(0, 1), generation=2)).settled is False
    assert await opened.due(opened.merge) is None
    assert await opened.due(opened.flush) == QUIET
    assert (await opened.record(2)).outcome is Outcome.RECORDED
