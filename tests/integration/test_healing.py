"""Contents that went bad on the disk: nobody is given them, and they are whole again as soon as anybody has them."""

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import update

from tests.conftest import MakeStack
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.faults import Fault, failing
from tests.support.invariants import checked_accounts
from tests.support.layout import blob_path
from tests.support.problems import problem
from tests.support.rot import NO_FILES, flip_bit
from tests.support.stack import Stack
from uploader.database import models
from uploader.jobs.maintenance import Scrubber
from uploader.service.heal import BlobProblem
from uploader.storage.base import Digests, Found, Pace

CONTENT = Content(3 * 64 * KIB - 100)
DAY = 86_400.0
MIB = 1 << 20


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": flip_bit,
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "grown": lambda path: os.truncate(path, path.stat().st_size + 1),
    "missing": Path.unlink,
    **NO_FILES,
}
WITHOUT_BYTES = ("missing", *NO_FILES)
LOST = {name: DAMAGES[name] for name in ("cut", "grown", *WITHOUT_BYTES)}


@pytest.fixture
def settings() -> dict[str, Any]:
    """Of the stack, if a test says otherwise."""
    return {}


@pytest.fixture
async def stack(make_stack: MakeStack, clock: ManualClock, settings: dict[str, Any]) -> AsyncIterator[Stack]:
    """Alice has the content."""
    async with make_stack(clock=clock, **settings) as made:
        assert (await made.upload(CONTENT)).status_code == 201
        yield made


def with_settings(**settings: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("settings", [settings], ids=[""])


def _blob(stack: Stack) -> Path:
    return blob_path(stack.data, CONTENT.sha256)


async def _file_id(stack: Stack, client: httpx2.AsyncClient | None = None) -> str:
    (file,) = (await (client or stack.client).get("/me/files")).json()["files"]
    file_id: str = file["id"]
    return file_id


async def _download(stack: Stack, client: httpx2.AsyncClient | None = None) -> httpx2.Response:
    chosen = client or stack.client
    return await chosen.get(f"/me/files/{await _file_id(stack, chosen)}/content")


async def _bobs(stack: Stack) -> httpx2.AsyncClient:
    """Bob has the same content, by bytes of his own."""
    bob = await stack.client_of("bob", total_space=10 * MIB)
    assert (await stack.upload(CONTENT, bob)).status_code == 201
    return bob


async def _scrub(stack: Stack) -> list[tuple[str, BlobProblem, bool]]:
    scrubbing = stack.services.scrubbing
    return [
        (found.sha256, found.problem, found.healed) async for found in scrubbing.scrub(lambda _: None, restart=True)
    ]


@pytest.mark.places
@pytest.mark.parametrize("damage", DAMAGES)
@with_settings(trash_retention_seconds=0)
async def test_what_the_scrub_finds_is_given_to_nobody_until_somebody_sends_it_again(stack: Stack, damage: str) -> None:
    bob = await _bobs(stack)
    DAMAGES[damage](_blob(stack))
    what = BlobProblem.MISSING if damage in WITHOUT_BYTES else BlobProblem.ALTERED
    assert await _scrub(stack) == [(CONTENT.sha256, what, False)]

    for client in (stack.client, bob):
        file_id = await _file_id(stack, client)
        assert (await client.get(f"/me/files/{file_id}")).json()["damaged"] is True
        for more in ({}, {"Range": "bytes=0-9"}):
            response = await client.get(f"/me/files/{file_id}/content", headers=more)
            assert not problem(response, 500, "content-damaged")["retryable"]
    absent = await bob.post("/files/status", json={"md5s": [CONTENT.md5]})
    assert absent.json() == {CONTENT.md5: {"state": "absent"}}
    assert "uploader_damaged_blobs 1.0" in await stack.metrics()
    ready = await stack.client.get("/readyz")
    assert ready.status_code == 200
    assert "damaged contents: 1," in ready.json()["checks"]["content"]["reason"]

    carol = await stack.client_of("carol", total_space=10 * MIB)
    assert (await stack.open(CONTENT, carol, sha256=CONTENT.sha256)).json()["state"] == "uploading"
    assert (await stack.upload(CONTENT, carol)).status_code == 201
    for client in (stack.client, bob, carol):
        file = (await client.get(f"/me/files/{await _file_id(stack, client)}")).json()
        assert "damaged" not in file
        assert (await _download(stack, client)).content == CONTENT.data
    assert await _scrub(stack) == []
    assert await checked_accounts(stack.services.database)


@pytest.mark.places
@pytest.mark.parametrize("damage", DAMAGES)
async def test_bytes_that_were_just_verified_win_over_those_that_are_there(stack: Stack, damage: str) -> None:
    """Nobody has noticed yet that they went bad."""
    DAMAGES[damage](_blob(stack))
    bob = await stack.client_of("bob", total_space=10 * MIB)
    assert (await stack.upload(CONTENT, bob, instant=False)).status_code == 201
    for client in (stack.client, bob):
        assert (await _download(stack, client)).content == CONTENT.data
    left = [found.name for found in await stack.services.trash.entries()]
    assert left == ([] if damage in WITHOUT_BYTES else [CONTENT.sha256])


@pytest.mark.places
@pytest.mark.parametrize("mode", ["own", "proof", "trust"])
@pytest.mark.parametrize("damage", LOST)
async def test_instant_upload_asks_for_bytes_that_are_not_whole(make_stack: MakeStack, damage: str, mode: str) -> None:
    async with make_stack(instant=mode) as stack:
        assert (await stack.upload(CONTENT)).status_code == 201
        client = stack.client if mode == "own" else await stack.client_of("bob", total_space=10 * MIB)
        LOST[damage](_blob(stack))
        for name in ("folder/file.bin", "another name"):
            opened = await stack.open(CONTENT, client, sha256=CONTENT.sha256, name=name)
            assert opened.json()["state"] == "uploading", opened.text
        absent = await stack.client.post("/files/status", json={"md5s": [CONTENT.md5]})
        assert absent.json()[CONTENT.md5]["state"] == ("uploading" if mode == "own" else "absent")
        for number in range(CONTENT.chunk_count):
            last = await stack.put(CONTENT, number, client)
        assert last.status_code == 201
        assert (await _download(stack)).content == CONTENT.data


@pytest.mark.places
@pytest.mark.parametrize("damage", LOST)
async def test_a_download_of_bytes_that_are_not_whole_says_so_before_the_first_byte(stack: Stack, damage: str) -> None:
    LOST[damage](_blob(stack))
    problem(await _download(stack), 500, "content-damaged")
    assert (await stack.client.get("/me/files")).json()["files"][0]["damaged"] is True
    head = await stack.client.head(f"/me/files/{await _file_id(stack)}/content")
    assert head.status_code == 500


async def _with_a_copy_in_the_trash(stack: Stack) -> Path:
    """Bob's bytes have taken the place of Alice's, which are as good."""
    await _bobs(stack)
    (copy,) = await stack.services.trash.entries()
    return stack.data / copy.place


@pytest.mark.places
@pytest.mark.parametrize("damage", DAMAGES)
@with_settings(instant="off")
async def test_a_good_copy_of_the_trash_takes_the_place_of_what_went_bad(stack: Stack, damage: str) -> None:
    copy = await _with_a_copy_in_the_trash(stack)
    DAMAGES[damage](_blob(stack))
    ((sha256, _, healed),) = await _scrub(stack)
    assert (sha256, healed) == (CONTENT.sha256, True)
    assert (await _download(stack)).content == CONTENT.data
    assert not copy.exists()
    bad = [found.name for found in await stack.services.trash.entries()]
    assert bad == ([] if damage in WITHOUT_BYTES else [CONTENT.sha256]), "what went bad may be looked at"
    assert await _scrub(stack) == []


@with_settings(instant="off")
async def test_a_bad_copy_of_the_trash_heals_nothing(stack: Stack) -> None:
    copy = await _with_a_copy_in_the_trash(stack)
    flip_bit(copy, 5)
    flip_bit(_blob(stack), 6)
    assert await _scrub(stack) == [(CONTENT.sha256, BlobProblem.ALTERED, False)]
    assert copy.exists()
    problem(await _download(stack), 500, "content-damaged")


@with_settings(instant="off")
async def test_a_download_takes_a_good_copy_from_the_trash(stack: Stack) -> None:
    await _with_a_copy_in_the_trash(stack)
    _blob(stack).unlink()
    assert (await _download(stack)).content == CONTENT.data


# What can only not be read


def _unreadable(stack: Stack, error_number: int = errno.EIO) -> AbstractContextManager[Fault]:
    """The disk does not give the bytes of the content."""
    blob = _blob(stack)
    return failing(lambda call: call.name in ("pread", "preadv") and call.path == blob, error_number, times=None)


async def _reason(stack: Stack) -> str | None:
    """What the server says of its contents when it is asked whether it is ready."""
    stack.services.health._told.clear()
    ready = await stack.client.get("/readyz")
    check = ready.json()["checks"]["content"]
    assert (ready.status_code, check["ok"]) == (200, True)
    reason: str | None = check.get("reason")
    return reason


async def test_what_can_only_not_be_read_is_not_damaged(
    stack: Stack, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    file_id = await _file_id(stack)
    for error_number in (errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ESTALE, errno.ETIMEDOUT):
        caplog.clear()
        with _unreadable(stack, error_number):
            assert await _scrub(stack) == [(CONTENT.sha256, BlobProblem.UNREADABLE, False)], error_number
            for more in ({}, {"Range": "bytes=70000-70009"}):
                response = await stack.client.get(f"/me/files/{file_id}/content", headers=more)
                assert problem(response, 503, "unavailable")["retryable"]
        assert "damaged" not in (await stack.client.get(f"/me/files/{file_id}")).json()
        assert await _reason(stack) == "contents that can't be read: 1, see the log"
        told = [record for record in caplog.records if record.message == "a content can't be read"]
        assert [vars(record)["sha256"] for record in told] == [CONTENT.sha256]
        assert (await _download(stack)).content == CONTENT.data, "as soon as it can be read"
        clock.advance(30)
        read: list[int] = []
        await stack.services.scrubbing.scrub_due(read.append)
        assert (sum(read), await _reason(stack)) == (CONTENT.size, None)


async def test_what_a_download_can_not_read_is_looked_at_soon(stack: Stack, clock: ManualClock) -> None:
    with _unreadable(stack):
        for _ in range(2):
            problem(await _download(stack), 503, "unavailable")
    assert await _reason(stack) == "contents that can't be read: 1, see the log"
    flip_bit(_blob(stack))
    clock.advance(30)
    await stack.services.scrubbing.scrub_due(lambda _: None)
    problem(await _download(stack), 500, "content-damaged")


@pytest.mark.parametrize("scrub", ["all", "sample"])
async def test_what_can_not_be_read_is_tried_less_and_less_often(
    make_stack: MakeStack, clock: ManualClock, scrub: str
) -> None:
    """Whoever looks at it in between puts that off for nobody."""
    async with make_stack(clock=clock, scrub=scrub) as stack:
        assert (await stack.upload(CONTENT)).status_code == 201
        scrubbing = stack.services.scrubbing
        tries = []
        with _unreadable(stack) as fault:
            await _scrub(stack)
            for seconds in range(30, 30 * 62, 30):
                await stack.services.scrubbing.healing.examine(CONTENT.sha256)
                clock.advance(30)
                before = fault.hits
                assert not await scrubbing.scrub_due(lambda _: None)
                tries += [seconds] if fault.hits > before else []
        assert tries == [30, 90, 210, 450, 930]
        assert await _reason(stack) is not None


@with_settings(instant="own")
async def test_what_can_not_be_read_is_sent_again(stack: Stack) -> None:
    """And is as it was with that."""
    with _unreadable(stack):
        await _scrub(stack)
    absent = await stack.client.post("/files/status", json={"md5s": [CONTENT.md5]})
    assert absent.json() == {CONTENT.md5: {"state": "absent"}}
    assert (await stack.upload(CONTENT)).status_code == 201
    assert (await _download(stack)).content == CONTENT.data
    assert await _reason(stack) is None
    assert await checked_accounts(stack.services.database)


async def test_a_disk_that_does_not_even_tell_of_a_content_says_nothing_of_its_bytes(stack: Stack) -> None:
    blob = _blob(stack)
    with failing(lambda call: call.name in ("stat", "open") and call.path == blob, errno.EIO, times=None):
        assert await _scrub(stack) == [(CONTENT.sha256, BlobProblem.UNREADABLE, False)]
        assert (await stack.open(CONTENT, name="another")).json()["state"] == "uploading"
        problem(await _download(stack), 503, "unavailable")
    assert (await _download(stack)).content == CONTENT.data


@pytest.mark.parametrize("place", ["blobs", "the blob"])
@with_settings(trash_retention_seconds=0)
async def test_a_content_is_back_with_what_it_lies_in(stack: Stack, clock: ManualClock, place: str) -> None:
    """None is called damaged where all are away; one that is missing is looked for again soon, also after a long time."""
    scrubber = Scrubber(stack.services.scrubbing, rate_bytes_per_second=MIB)
    path = stack.data / "blobs" if place == "blobs" else _blob(stack)
    away = path.rename(stack.data / "away")
    problem(await _download(stack), *((503, "unavailable") if place == "blobs" else (500, "content-damaged")))
    for _ in range(8):
        clock.advance(700)
        await scrubber.run_once()
    away.rename(path)
    assert (await _download(stack)).status_code == (200 if place == "blobs" else 500)
    clock.advance(601)
    await scrubber.run_once()
    assert (await _download(stack)).content == CONTENT.data
    assert "uploader_damaged_blobs 0.0" in await stack.metrics()


async def test_an_error_of_the_pace_is_none_of_the_disk(stack: Stack) -> None:
    def pace(_: int) -> None:
        raise OSError(errno.EINTR, "no sleep")

    with pytest.raises(RuntimeError, match="pace"):
        await anext(stack.services.scrubbing.scrub(pace, restart=True))
    assert await _reason(stack) is None
    assert (await _download(stack)).content == CONTENT.data


@with_settings(instant="off")
async def test_a_good_copy_takes_the_place_of_what_can_not_be_read(stack: Stack) -> None:
    await _with_a_copy_in_the_trash(stack)
    with _unreadable(stack):
        assert await _scrub(stack) == [(CONTENT.sha256, BlobProblem.UNREADABLE, True)]
    assert (await _download(stack)).content == CONTENT.data
    assert await _reason(stack) is None


async def test_what_was_called_damaged_and_can_be_read_is_unmarked_when_it_is_looked_at_again(
    stack: Stack, clock: ManualClock
) -> None:
    """By a version before, which did not tell one from the other."""
    marked = {"damaged": True, "scrubbed_at": clock.now(), "reread_at": clock.now()}
    await stack.services.database.transact(lambda connection: connection.execute(update(models.blob).values(marked)))
    problem(await _download(stack), 500, "content-damaged")
    await stack.services.scrubbing.scrub_due(lambda _: None)
    assert (await _download(stack)).content == CONTENT.data


async def test_only_the_bytes_that_were_read_are_called_damaged(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others took their place meanwhile."""
    blob = _blob(stack)
    flip_bit(blob)
    storage = stack.services.storage
    before = storage.hash_blob

    async def replaced_meanwhile(found: Found, pace: Pace | None, *, with_md5: bool) -> Digests | None:
        digest = await before(found, pace, with_md5=with_md5)
        good = stack.data / "good"
        good.write_bytes(CONTENT.data)
        await asyncio.to_thread(shutil.move, good, blob)
        return digest

    monkeypatch.setattr(storage, "hash_blob", replaced_meanwhile)
    assert await _scrub(stack) == []
    assert (await _download(stack)).content == CONTENT.data


async def test_a_damaged_content_that_nobody_has_any_more_is_no_damage(stack: Stack) -> None:
    flip_bit(_blob(stack))
    assert len(await _scrub(stack)) == 1
    assert (await stack.client.delete(f"/me/files/{await _file_id(stack)}")).status_code == 204
    stack.services.gauges._asked_at = float("-inf")
    assert "uploader_damaged_blobs 0.0" in await stack.metrics()
    assert (await stack.upload(CONTENT)).status_code == 201
    assert (await _download(stack)).content == CONTENT.data


# The job


async def test_every_content_is_read_back_soon_and_then_again_and_again(
    make_stack_on: MakeStack, clock: ManualClock
) -> None:
    others = [Content(1000 + seed, seed=seed, name=f"{seed}.bin") for seed in range(1, 4)]
    async with make_stack_on(clock=clock) as stack:
        scrubbing = stack.services.scrubbing
        read: list[int] = []
        for content in (CONTENT, *others):
            assert (await stack.upload(content)).status_code == 201
            clock.advance(3600)
        assert not await scrubbing.scrub_due(read.append)
        assert (read, (await scrubbing.age()).seconds) == ([], 4 * 3600)

        clock.advance(15.5 * 3600)  # three quarters of a day since the first two
        assert not await scrubbing.scrub_due(read.append)
        assert sum(read) == CONTENT.size + others[0].size
        age = await scrubbing.age()
        assert (age.seconds, age.within_goal) == (17.5 * 3600, True)
        clock.advance(12 * 3600)
        assert not (await scrubbing.age()).within_goal
        stack.services.gauges._asked_at = float("-inf")
        assert f"uploader_unscrubbed_seconds {29.5 * 3600}" in await stack.metrics()
        assert "was not read back for" in (await stack.client.get("/readyz")).json()["checks"]["content"]["reason"]

        flip_bit(_blob(stack))
        assert not await scrubbing.scrub_due(read.append)
        assert sum(read) == CONTENT.size + sum(content.size for content in others)
        assert (await _download_of(stack, CONTENT.name)).content != CONTENT.data, "it is not due again yet"
        clock.advance(30 * DAY)
        assert not await scrubbing.scrub_due(read.append)
        assert sum(read) == 2 * (CONTENT.size + sum(content.size for content in others))
        problem(await _download_of(stack, CONTENT.name), 500, "content-damaged")
        assert (await scrubbing.age()).seconds == 0


async def _download_of(stack: Stack, name: str) -> httpx2.Response:
    files = (await stack.client.get("/me/files")).json()["files"]
    (file_id,) = (file["id"] for file in files if file["name"] == name)
    return await stack.client.get(f"/me/files/{file_id}/content")


@with_settings(instant="off")
async def test_bytes_that_took_the_place_of_others_are_read_back_anew(stack: Stack, clock: ManualClock) -> None:
    clock.advance(DAY)
    read: list[int] = []
    await stack.services.scrubbing.scrub_due(read.append)
    await _bobs(stack)
    clock.advance(DAY)
    await stack.services.scrubbing.scrub_due(read.append)
    assert sum(read) == 2 * CONTENT.size


async def test_one_of_several_workers_reads_at_a_time(make_stack_on: MakeStack, clock: ManualClock) -> None:
    async with make_stack_on(clock=clock) as one, make_stack_on(clock=clock) as two:
        assert (await one.upload(CONTENT)).status_code == 201
        clock.advance(DAY)
        read: list[str] = []
        assert not await one.services.scrubbing.scrub_due(lambda _: read.append("one"))
        clock.advance(30 * DAY)
        assert not await one.services.scrubbing.scrub_due(lambda _: read.append("one"))
        flags = {await two.services.scrubbing.scrub_due(lambda _: read.append("two"))}
        clock.advance(30 * DAY)  # whoever was at it is gone
        flags |= {await two.services.scrubbing.scrub_due(lambda _: read.append("two"))}
        assert (read, flags) == (["one", "one", "two"], {False})


@with_settings(scrub="sample")
async def test_a_sample_is_one_content_an_hour_and_no_age_is_too_high(stack: Stack, clock: ManualClock) -> None:
    read: list[int] = []
    for hours, read_bytes in ((0, CONTENT.size), (0.9, CONTENT.size), (0.2, 2 * CONTENT.size)):
        clock.advance(timedelta(hours=hours).total_seconds())
        assert not await stack.services.scrubbing.scrub_due(read.append)
        assert sum(read) == read_bytes
    clock.advance(365 * DAY)
    assert (await stack.services.scrubbing.age()).within_goal
    flip_bit(_blob(stack))
    assert not await stack.services.scrubbing.scrub_due(read.append)
    problem(await _download(stack), 500, "content-damaged")


@with_settings(scrub_first_seconds=40)
async def test_the_job_reads_at_its_rate_and_goes_on_after_a_stop(stack: Stack, clock: ManualClock) -> None:
    flip_bit(_blob(stack))
    clock.advance(timedelta(seconds=31).total_seconds())
    scrubber = Scrubber(stack.services.scrubbing, rate_bytes_per_second=0)
    assert await scrubber.run_once() == 4.0, "ten looks within the goal"
    problem(await _download(stack), 500, "content-damaged")
