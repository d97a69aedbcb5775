"""The jobs, one batch at a time and in their loop; and recovery when any one part was killed and started again."""

import asyncio
import errno
import logging
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from tests.conftest import MakeStack
from tests.support.background import (
    account_of,
    becomes,
    collector_of,
    flush_due,
    is_in_state,
    open_with_chunks,
    settle_without_merge,
    upload_of,
)
from tests.support.bodies import InPieces
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.dying import Death, dying
from tests.support.faults import failing_call, paused_call
from tests.support.invariants import Account
from tests.support.rows import NOW
from tests.support.servers import PrivateDatabase, PrivateRedis
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.accounting.queue import IDLE_SECONDS, UploadQueue
from uploader.database import models, transactions
from uploader.domain.upload import Reason, Upload
from uploader.errors import Unavailable
from uploader.jobs.runner import Job, Runner, last_tick
from uploader.jobs.uploads import Expirer, Flusher, Merger
from uploader.runtime.bell import Bell
from uploader.service.cleanup import Expiry
from uploader.service.ids import new_id

CONTENT = Content(5 * 64 * KIB - 100)
CHUNK = CONTENT.chunk_size
# Every chunk is due for the flusher at once.
AT_ONCE = {"max_pending_bytes": 1}
DAY = 86_400.0
# The grace of an expirer is no longer than its expiry.
EXPIRY = 0.1
# What makes the jobs quick.
QUICK = {"quiet_interval_seconds": 0.05, "max_delay_seconds": 0.1, "claim_lease_seconds": 0.3}


def flusher_of(stack: Stack) -> Flusher:
    return Flusher(stack.services.pending.flush_queues[0], stack.services.flushing)


async def merge_due(stack: Stack) -> float:
    """Have a merger begin what is due, and wait for it; how long it would sleep then."""
    merger = Merger(stack.services.pending.merge_queues[0], stack.services.merging)
    while not (pause_seconds := await merger.run_once()):
        pass
    return pause_seconds


async def expirer_of(stack: Stack) -> Expirer:
    """An expirer that is past its grace."""
    services = stack.services
    expirer = Expirer(Expiry(services.database, services.closers, expiry_seconds=EXPIRY), services.clock)
    assert stack.clock is not None
    stack.clock.advance(EXPIRY)
    return expirer


async def wait_until_due(queue: UploadQueue) -> None:
    delay = await queue.next_due()
    assert delay is not None
    await asyncio.sleep(delay)


async def uploads_of(stack: Stack) -> list[str]:
    """The ids of all rows of uploads."""
    async with stack.services.database.engine.connect() as connection:
        return [row.id for row in await connection.execute(models.upload.select())]


async def assert_merged(stack: Stack, content: Content = CONTENT) -> None:
    """The file is there, whole, and nothing is left of its upload."""
    await is_in_state(lambda: stack.client.get(f"/files/{content.md5}"), "complete")
    file_id = (await stack.client.get(f"/files/{content.md5}")).json()["file"]["id"]
    assert (await stack.client.get(f"/me/files/{file_id}/content")).content == content.data
    assert await account_of(stack) == Account(finished=content.size)
    # A job takes the task away after the answer.
    await becomes(stack.services.pending.merge_queues[0].next_due, None)
    assert [path.parts[-4] for path in stack.bytes_on_disk()] == ["blobs"]


# The flusher


async def test_several_flushers_at_once_account_exactly_what_was_acknowledged(make_stack_on: MakeStack) -> None:
    async with make_stack_on(**AT_ONCE) as stack:
        for seed in range(5):
            await open_with_chunks(stack, Content(CONTENT.size, seed=seed), 1, 4)
        await asyncio.gather(*(flusher_of(stack).run_once() for _ in range(4)))
        assert await account_of(stack) == Account(unfinished=5 * (2 * CHUNK - 100), reserved=5 * CONTENT.size)
        assert await stack.services.pending.flush_queues[0].next_due() is None


async def test_the_flusher_leaves_alone_what_is_not_due_and_sleeps_no_longer_than_until_then(
    make_stack: MakeStack,
) -> None:
    async with make_stack(quiet_interval_seconds=0.5) as stack:
        assert await flusher_of(stack).run_once() == IDLE_SECONDS
        await open_with_chunks(stack, CONTENT, 0)
        assert 0 < await flusher_of(stack).run_once() <= 0.5
        assert await account_of(stack) == Account(reserved=CONTENT.size)


async def test_one_failing_row_holds_up_no_other_of_its_batch(
    make_stack_on: MakeStack, caplog: pytest.LogCaptureFixture
) -> None:
    good = [Content(CONTENT.size, seed=seed) for seed in range(1, 5)]
    async with make_stack_on(**AT_ONCE, claim_lease_seconds=0.1) as stack:
        bob = await stack.client_of("bob")
        await stack.open(CONTENT, bob)
        await stack.put(CONTENT, 0, bob)
        bad = await upload_of(stack, CONTENT, "bob")
        for content in good:
            await open_with_chunks(stack, content, 0)

        async def write_figures(generation: int, flushed_bytes: int) -> None:
            row = update(models.upload).where(models.upload.c.id == bad.id)
            async with stack.services.database.engine.begin() as connection:
                await connection.execute(row.values(flushed_generation=generation, flushed_bytes=flushed_bytes))

        # By these figures bytes are to be taken back that the account does not have: the check of the table refuses.
        await write_figures(generation=-1, flushed_bytes=CONTENT.size)
        with caplog.at_level(logging.ERROR):
            await flush_due(stack)
        assert [record.upload_id for record in caplog.records] == [bad.id]  # type: ignore[attr-defined]
        await write_figures(generation=0, flushed_bytes=0)
        assert await account_of(stack) == Account(unfinished=4 * CHUNK, reserved=4 * CONTENT.size)
        assert await account_of(stack, "bob") == Account(reserved=CONTENT.size)
        # It was neither acknowledged nor forgotten, so it is written once it can be.
        await wait_until_due(stack.services.pending.flush_queues[0])
        await flush_due(stack)
        assert await account_of(stack, "bob") == Account(unfinished=CHUNK, reserved=CONTENT.size)


# The merger


@pytest.mark.parametrize(
    "ended", ["before its claim", "with its claim", "for the disk", "before its commit", "after its commit"]
)
async def test_a_merge_whose_worker_ended_is_made_by_one_of_the_others_after_its_lease(
    make_stack: MakeStack, caplog: pytest.LogCaptureFixture, ended: str
) -> None:
    async with make_stack(claim_lease_seconds=0.1) as stack:
        upload = await settle_without_merge(stack, CONTENT)
    async with make_stack(claim_lease_seconds=0.1) as stack:
        queue = stack.services.pending.merge_queues[0]
        assert await account_of(stack) == Account(reserved=CONTENT.size)
        await wait_until_due(queue)
        if ended == "with its claim":
            assert len(await queue.claim()) == 1
        elif ended == "for the disk":
            with failing_call("link", times=None) as fault, caplog.at_level(logging.CRITICAL):
                await merge_due(stack)
            assert fault.hits > 0
            assert await account_of(stack) == Account(reserved=CONTENT.size)
        elif ended != "before its claim":
            await place(stack, upload, commits=ended == "after its commit")
            assert len(stack.bytes_on_disk()) > 1
        await wait_until_due(queue)
        await asyncio.gather(*(merge_due(stack) for _ in range(3)))
        await assert_merged(stack)
        assert await merge_due(stack) == IDLE_SECONDS


async def test_a_last_chunk_that_is_recorded_is_merged_though_its_worker_dies_at_that_moment(
    make_stack: MakeStack,
) -> None:
    async with make_stack(claim_lease_seconds=0.1) as stack:
        last = CONTENT.chunk_count - 1
        upload = await open_with_chunks(stack, CONTENT, *range(last))
        with pytest.raises(Death, match=r"chunk\.after_record"), dying(5):
            await stack.services.receiving.hold_and_record(upload, last, InPieces(CONTENT.chunk(last)))
        await wait_until_due(stack.services.pending.merge_queues[0])
        await merge_due(stack)
        await assert_merged(stack)


async def place(stack: Stack, upload: Upload, *, commits: bool) -> None:
    """What a worker does that merges, up to its commit at the most."""
    services = stack.services
    await services.storage.digest(upload)
    async with services.storage.closing(upload) as closer:
        if not commits:
            await closer.place_blob(CONTENT.sha256)
            return
        place_blob = services.database.outside(lambda: closer.place_blob(CONTENT.sha256))
        await services.database.transact(
            lambda connection: transactions.uploads.merge(
                connection,
                upload_id=upload.id,
                file_id=new_id(),
                md5=CONTENT.md5,
                sha256=CONTENT.sha256,
                place_blob=place_blob,
                now=services.clock.now(),
            )
        )


async def test_a_merge_that_takes_longer_than_its_lease_is_claimed_by_no_other(make_stack: MakeStack) -> None:
    content, lease_seconds = Content(CHUNK), 1.0  # one chunk, so that the merge itself reads it
    async with (
        make_stack(merge_wait_seconds=0, claim_lease_seconds=lease_seconds) as stack,
        make_stack(claim_lease_seconds=lease_seconds) as other,
    ):
        await stack.open(content)
        queue = other.services.pending.merge_queues[0]

        async def lease_ends_at() -> float:
            due_at = await queue.next_due(now_ms=0)
            assert due_at is not None
            return due_at

        with paused_call("preadv", only=lambda path: path.name == "data") as pause:
            assert (await stack.put(content, 0)).status_code == 202
            ended_at = await lease_ends_at() + lease_seconds

            async def outlived() -> bool:
                return await lease_ends_at() > ended_at

            await eventually(outlived)
            assert not pause.ended.is_set()
            assert await queue.claim(now_ms=round(ended_at * 1000)) == []

        await assert_merged(stack, content)


async def test_the_merger_refuses_wrong_bytes_and_gives_everything_back(make_stack: MakeStack) -> None:
    async with make_stack(claim_lease_seconds=0.1) as stack:
        await stack.open(CONTENT)
        await stack.client.put(f"/files/{CONTENT.md5}/chunks/0", content=bytes(CHUNK))
        await settle_without_merge(stack, CONTENT)
    async with make_stack() as stack:
        await wait_until_due(stack.services.pending.merge_queues[0])
        await merge_due(stack)
        assert await account_of(stack) == Account()
        assert stack.bytes_on_disk() == []
        response = await stack.client.get(f"/files/{CONTENT.md5}")
        assert (response.status_code, response.json()["reason"]) == (410, "md5-mismatch")


# What a crash leaves between the commit and what follows it


@pytest.mark.parametrize("pending", [True, False])
async def test_a_cancel_that_died_after_its_commit_is_tidied_by_the_flusher(
    make_stack: MakeStack, pending: bool
) -> None:
    async with make_stack(**AT_ONCE, claim_lease_seconds=0.1) as stack:
        upload = await open_with_chunks(stack, CONTENT, 0)
        if not pending:
            await flush_due(stack)
        await stack.services.closers.announce(upload)
        await stack.services.database.transact(
            lambda connection: transactions.uploads.close_upload(connection, upload.id, Reason.CANCELLED, NOW)
        )
        assert stack.bytes_on_disk() != []
        await wait_until_due(stack.services.pending.flush_queues[0])
        await flush_due(stack)
        assert stack.bytes_on_disk() == []
        assert await account_of(stack) == Account()
        assert await stack.services.pending.flush_queues[0].next_due() is None


# The collector


async def test_a_deletion_that_died_after_its_commit_is_ended_by_the_collector(make_stack_on: MakeStack) -> None:
    async with make_stack_on() as stack:
        file_id = (await stack.upload(CONTENT)).json()["file"]["id"]
        file = await stack.services.files.get("alice", file_id)
        await collector_of(stack).run_once()
        assert [path.name for path in stack.bytes_on_disk()] == [CONTENT.sha256], "it is in use"
        delete = stack.services.database.transact
        assert await delete(transactions.files.delete_file, file, stack.services.clock.now())
        assert len(stack.bytes_on_disk()) == 1
        await collector_of(stack).run_once()
        assert stack.bytes_on_disk() == []
        assert await account_of(stack) == Account()


async def test_the_collector_forgets_uploads_that_were_closed_long_ago(
    make_stack: MakeStack, clock: ManualClock
) -> None:
    async with make_stack(clock=clock) as stack:
        await stack.open(CONTENT)
        is_open = await open_with_chunks(stack, Content(CONTENT.size, seed=1))
        await stack.client.delete(f"/files/{CONTENT.md5}")
        for days, rows in ((29, 2), (2, 1)):
            clock.advance(days * DAY)
            await collector_of(stack).run_once()
            assert len(await uploads_of(stack)) == rows
        assert await uploads_of(stack) == [is_open.id]


async def test_a_closed_upload_that_can_not_be_tidied_is_kept_and_holds_up_no_other(
    make_stack: MakeStack, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Without its row nobody could tell that its bytes may go."""
    async with make_stack(clock=clock) as stack:
        contents = [Content(CONTENT.size, seed=seed) for seed in range(3)]
        for content in contents:
            await stack.open(content)
        damaged = await upload_of(stack, contents[1])
        with failing_call("unlink", errno.EIO, only=lambda path: damaged.id in path.parts):
            for content in contents:
                assert (await stack.client.delete(f"/files/{content.md5}")).status_code == 204
        clock.advance(31 * DAY)
        with failing_call("open", errno.EIO, times=None, only=lambda path: damaged.id in path.parts):
            await collector_of(stack).run_once()
        assert [record.message for record in caplog.records if "kept" in record.message] == ["a closed upload is kept"]
        assert {path.parent.name for path in stack.bytes_on_disk()} == {damaged.id}
        assert await uploads_of(stack) == [damaged.id]
        for kept in ([damaged.id], []):
            await collector_of(stack).run_once()
            assert (stack.bytes_on_disk(), await uploads_of(stack)) == ([], kept)


# The expirer


async def test_idle_uploads_expire_in_one_round_and_give_everything_back(
    make_stack_on: MakeStack, clock: ManualClock
) -> None:
    """One that is lost as well."""
    async with make_stack_on(**AT_ONCE, clock=clock) as stack:
        await open_with_chunks(stack, CONTENT, 0)
        lost, _ = [await open_with_chunks(stack, Content(CONTENT.size, seed=seed)) for seed in (1, 2)]
        await flush_due(stack)
        shutil.rmtree(stack.data / lost.place)
        expirer = await expirer_of(stack)
        await expirer.run_once()
        idle = Account(unfinished=CHUNK, reserved=3 * CONTENT.size)
        assert await account_of(stack) == idle
        clock.advance(DAY)
        await expirer.run_once()
        assert await account_of(stack) == idle, "a day without a run was an outage"
        clock.advance(EXPIRY)
        await expirer.run_once()
        assert await account_of(stack) == Account()
        assert stack.bytes_on_disk() == []
        response = await stack.put(CONTENT, 1)
        assert (response.status_code, response.json()["reason"]) == (410, "expired")


async def test_after_its_start_the_expirer_gives_clients_time_to_come_back(
    make_stack: MakeStack, clock: ManualClock
) -> None:
    async with make_stack(clock=clock) as stack:
        await stack.open(CONTENT)
        clock.advance(8 * DAY)
        assert stack.services.expiry.expiry_seconds == 7 * DAY
        await Expirer(stack.services.expiry, clock).run_once()
        assert await account_of(stack) == Account(reserved=CONTENT.size)


async def test_an_upload_that_received_a_chunk_lately_does_not_expire_though_its_row_is_old(
    make_stack: MakeStack, clock: ManualClock
) -> None:
    async with make_stack(clock=clock) as stack:
        clock.advance(-DAY)
        await stack.open(CONTENT)
        clock.advance(DAY)
        await stack.put(CONTENT, 0)
        assert (await upload_of(stack, CONTENT)).updated_at == clock.now() - timedelta(days=1)
        await (await expirer_of(stack)).run_once()
        assert (await stack.put(CONTENT, 1)).status_code == 200


# One part is killed and started again, with the jobs in their loop


@pytest.fixture(params=["with its append-only file", "with nothing"])
def mortal_redis(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PrivateRedis]:
    """A Redis that comes back from a kill with what it had, or empty."""
    server = PrivateRedis(tmp_path / "mortal", append_only="file" in request.param).start()
    yield server
    server.stop()


async def test_redis_is_killed_and_started_in_the_middle_of_an_upload(
    make_stack: MakeStack, mortal_redis: PrivateRedis
) -> None:
    """And of another one, that nobody touches then."""
    untouched = Content(CONTENT.size, seed=1)
    async with make_stack(redis_url=mortal_redis.url, jobs=True, **QUICK) as stack:
        await open_with_chunks(stack, CONTENT, 0, 1)
        await open_with_chunks(stack, untouched, 0, 1)
        mortal_redis.kill()
        assert (await stack.put(CONTENT, 2)).status_code == 503
        mortal_redis.start()
        again = await stack.put(CONTENT, 2)
        assert (again.status_code, again.json()["received_bytes"]) == (200, 3 * CHUNK)
        await becomes(lambda: account_of(stack), Account(unfinished=5 * CHUNK, reserved=2 * CONTENT.size))
        assert (await stack.client.delete(f"/files/{untouched.md5}")).status_code == 204
        await stack.put(CONTENT, 3)
        assert (await stack.put(CONTENT, 4)).status_code == 201
        await assert_merged(stack)


async def test_the_database_is_killed_and_started_in_the_middle_of_an_upload(
    make_stack: MakeStack, own_server: PrivateDatabase, own_server_url: str
) -> None:
    async with make_stack(database_url=own_server_url, jobs=True, **QUICK) as stack:
        await open_with_chunks(stack, CONTENT, 0)
        own_server.kill()
        for number in (1, 2, 3):
            acknowledged = await stack.put(CONTENT, number)
            assert (acknowledged.status_code, acknowledged.json()["received_bytes"]) == (200, (number + 1) * CHUNK)
        assert (await stack.put(CONTENT, 4)).status_code == 503
        own_server.start()
        await assert_merged(stack)


# The loop


class Watched(Runner):
    """A runner that takes down how long it would sleep instead of sleeping, and stops after `rounds`."""

    def __init__(self, jobs: list[Job], rounds: int) -> None:
        super().__init__(jobs)
        self.delays: list[float] = []
        self._rounds = rounds

    async def _sleep(self, bell: Bell, rings: int, delay_seconds: float) -> None:
        self.delays.append(delay_seconds)
        if len(self.delays) >= self._rounds:
            self._stopping = True


async def finished(runner: Runner) -> None:
    runner.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.wait(runner._tasks)


@pytest.mark.parametrize("until", [1000.25, 1234.5, 2000.75])
def test_a_job_sleeps_about_as_long_as_it_says_until_a_tick_of_its_process(until: float) -> None:
    tick = last_tick(until)
    assert until - 1 < tick <= until
    assert last_tick(tick + 10 + 1e-6) == pytest.approx(tick + 10), "in step from then on"
    assert last_tick(tick + 5.5) == pytest.approx(last_tick(tick + 5.9)), "many wake up at once"


async def test_a_job_that_fails_backs_off_says_so_once_and_recovers(caplog: pytest.LogCaptureFixture) -> None:
    results: Iterator[Exception | float] = iter([*[Unavailable("Redis is away.")] * 12, 1.0, ValueError("a bug"), 1.0])

    async def run_once() -> float:
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    runner = Watched([Job("unlucky", run_once)], rounds=15)
    with caplog.at_level(logging.INFO):
        await finished(runner)
    backing_off = runner.delays[:12]
    assert 0 < backing_off[0] <= 0.2
    assert all(1.5 <= delay <= 3.0 for delay in backing_off[6:])
    assert 0 < runner.delays[13] <= 0.2, "after a success it begins anew"
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "job waits for what it needs"),
        ("INFO", "job works again"),
        ("ERROR", "job failed, and is tried again"),
        ("INFO", "job works again"),
    ]


async def test_jobs_that_wait_for_the_same_say_so_once_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    away, failed = False, set[str]()

    def job(name: str) -> Job:
        async def run_once() -> float:
            if away:
                failed.add(name)
                raise Unavailable("Redis is away.")
            return 0.01

        return Job(name, run_once)

    async def all_failed() -> bool:
        return len(failed) == 3

    async def all_work_again() -> bool:
        return caplog.messages.count("job works again") == 3

    runner = Runner([job(name) for name in ("first", "second", "third")])
    runner.start()
    for _ in range(2):
        caplog.clear()
        failed.clear()
        with caplog.at_level(logging.INFO):
            away = True
            await eventually(all_failed)
            away = False
            await eventually(all_work_again)
        assert caplog.messages.count("job waits for what it needs") == 1
    await runner.stop()


async def test_a_second_outage_is_told_though_some_have_not_seen_the_end_of_the_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    results: Iterator[Exception | float] = iter(
        [Unavailable("Redis is away."), 0.0, Unavailable("Redis is away."), 0.0]
    )

    async def waits() -> float:
        await asyncio.sleep(0)
        raise Unavailable("Redis is away.")

    async def sees_both() -> float:
        await asyncio.sleep(0)
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    runner = Watched([Job("waits", waits), Job("sees both", sees_both)], rounds=8)
    with caplog.at_level(logging.INFO):
        await finished(runner)
    assert caplog.messages == [*["job waits for what it needs", "job works again"] * 2]


async def test_stopping_lets_a_job_end_what_it_does_and_wakes_one_that_sleeps() -> None:
    started, asleep, ended = asyncio.Event(), asyncio.Event(), list[bool]()

    async def work() -> float:
        started.set()
        await asyncio.sleep(0.05)
        ended.append(True)
        return 0.0

    async def fall_asleep() -> float:
        asleep.set()
        return 3600.0

    runner = Runner([Job("busy", work), Job("asleep", fall_asleep)])
    runner.start()
    await started.wait()
    await asleep.wait()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await runner.stop()
        await Runner([]).stop()
    count = len(ended)
    assert count >= 1
    await asyncio.sleep(0.1)
    assert len(ended) == count, "nothing goes on after the stop"
