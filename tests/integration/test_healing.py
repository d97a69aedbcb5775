"""Contents that went bad on the disk: nobody is given them, and they are whole again as soon as anybody has them."""

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.faults import failing_call
from tests.support.invariants import checked_accounts
from tests.support.layout import blob_path
from tests.support.problems import problem
from tests.support.rot import flip_bit
from tests.support.stack import Stack
from uploader.jobs.scrubber import Scrubber
from uploader.service.contents.healing import BlobProblem
from uploader.storage.contents import Digests, Found, Pace

CONTENT = Content(3 * 64 * KIB - 100)
DAY = 86_400.0
MIB = 1 << 20


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped": flip_bit,
    "zeroed": _zero,
    "cut": _cut,
    "missing": Path.unlink,
}
LOST = {name: DAMAGES[name] for name in ("cut", "missing")}


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


@pytest.mark.parametrize("damage", DAMAGES)
async def test_what_the_scrub_finds_is_given_to_nobody_until_somebody_sends_it_again(
    make_stack: MakeStack, damage: str
) -> None:
    async with make_stack(trash_retention_seconds=0) as stack:
        assert (await stack.upload(CONTENT)).status_code == 201
        bob = await _bobs(stack)
        DAMAGES[damage](_blob(stack))
        ((sha256, _, healed),) = await _scrub(stack)
        assert (sha256, healed) == (CONTENT.sha256, False)

        for client in (stack.client, bob):
            file_id = await _file_id(stack, client)
            assert (await client.get(f"/me/files/{file_id}")).json()["damaged"] is True
            for more in ({}, {"Range": "bytes=0-9"}):
                response = await client.get(f"/me/files/{file_id}/content", headers=more)
                assert not problem(response, 500, "content-damaged")["retryable"]
        absent = await bob.post("/files/status", json={"md5s": [CONTENT.md5]})
        assert absent.json() == {CONTENT.md5: {"state": "absent"}}
        assert "uploader_damaged_blobs 1.0" in (await stack.client.get("/metrics")).text
        ready = await stack.client.get("/readyz")
        assert (ready.status_code, "damaged contents: 1," in ready.json()["checks"]["content"]["reason"]) == (
            200,
            True,
        )

        carol = await stack.client_of("carol", total_space=10 * MIB)
        assert (await stack.open(CONTENT, carol, sha256=CONTENT.sha256)).json()["state"] == "uploading"
        assert (await stack.upload(CONTENT, carol)).status_code == 201
        for client in (stack.client, bob, carol):
            file = (await client.get(f"/me/files/{await _file_id(stack, client)}")).json()
            assert "damaged" not in file
            assert (await _download(stack, client)).content == CONTENT.data
        assert await _scrub(stack) == []
        assert await checked_accounts(stack.services.database)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_bytes_that_were_just_verified_win_over_those_that_are_there(stack: Stack, damage: str) -> None:
    """Nobody has noticed yet that they went bad."""
    assert (await stack.upload(CONTENT)).status_code == 201
    DAMAGES[damage](_blob(stack))
    bob = await stack.client_of("bob", total_space=10 * MIB)
    assert (await stack.upload(CONTENT, bob, instant=False)).status_code == 201
    for client in (stack.client, bob):
        assert (await _download(stack, client)).content == CONTENT.data
    left = [found.name for found in await stack.services.trash.entries()]
    assert left == ([] if damage == "missing" else [CONTENT.sha256])


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


@pytest.mark.parametrize("damage", LOST)
async def test_a_download_of_bytes_that_are_not_whole_says_so_before_the_first_byte(stack: Stack, damage: str) -> None:
    assert (await stack.upload(CONTENT)).status_code == 201
    LOST[damage](_blob(stack))
    problem(await _download(stack), 500, "content-damaged")
    assert (await stack.client.get("/me/files")).json()["files"][0]["damaged"] is True
    head = await stack.client.head(f"/me/files/{await _file_id(stack)}/content")
    assert head.status_code == 500


async def _with_a_copy_in_the_trash(stack: Stack) -> Path:
    """Bob's bytes have taken the place of Alice's, which are as good."""
    assert (await stack.upload(CONTENT)).status_code == 201
    await _bobs(stack)
    (copy,) = await stack.services.trash.entries()
    return stack.data / copy.place


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_good_copy_of_the_trash_takes_the_place_of_what_went_bad(make_stack: MakeStack, damage: str) -> None:
    async with make_stack(instant="off") as stack:
        copy = await _with_a_copy_in_the_trash(stack)
        DAMAGES[damage](_blob(stack))
        ((sha256, _, healed),) = await _scrub(stack)
        assert (sha256, healed) == (CONTENT.sha256, True)
        assert (await _download(stack)).content == CONTENT.data
        assert not copy.exists()
        bad = [found.name for found in await stack.services.trash.entries()]
        assert bad == ([] if damage == "missing" else [CONTENT.sha256]), "what went bad may be looked at"
        assert await _scrub(stack) == []


async def test_a_download_takes_a_good_copy_from_the_trash(make_stack: MakeStack) -> None:
    async with make_stack(instant="off") as stack:
        await _with_a_copy_in_the_trash(stack)
        _blob(stack).unlink()
        assert (await _download(stack)).content == CONTENT.data


async def test_a_bad_copy_of_the_trash_heals_nothing(make_stack: MakeStack) -> None:
    async with make_stack(instant="off") as stack:
        copy = await _with_a_copy_in_the_trash(stack)
        flip_bit(copy, 5)
        flip_bit(_blob(stack), 6)
        assert await _scrub(stack) == [(CONTENT.sha256, BlobProblem.ALTERED, False)]
        assert copy.exists()
        problem(await _download(stack), 500, "content-damaged")


async def test_what_the_disk_does_not_read_is_damaged_until_it_does(stack: Stack) -> None:
    assert (await stack.upload(CONTENT)).status_code == 201
    blob = _blob(stack)
    with failing_call("preadv", errno.EIO, only=lambda path: path == blob, times=None):
        assert await _scrub(stack) == [(CONTENT.sha256, BlobProblem.UNREADABLE, False)]
    problem(await _download(stack), 500, "content-damaged")
    assert await _scrub(stack) == []
    assert (await _download(stack)).content == CONTENT.data


async def test_only_the_bytes_that_were_read_are_called_damaged(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others took their place meanwhile."""
    assert (await stack.upload(CONTENT)).status_code == 201
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
    assert (await stack.upload(CONTENT)).status_code == 201
    flip_bit(_blob(stack))
    assert len(await _scrub(stack)) == 1
    assert (await stack.client.delete(f"/me/files/{await _file_id(stack)}")).status_code == 204
    stack.services.gauges._asked_at = float("-inf")
    assert "uploader_damaged_blobs 0.0" in (await stack.client.get("/metrics")).text
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
        assert f"uploader_unscrubbed_seconds {29.5 * 3600}" in (await stack.client.get("/metrics")).text
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


async def test_bytes_that_took_the_place_of_others_are_read_back_anew(
    make_stack: MakeStack, clock: ManualClock
) -> None:
    async with make_stack(clock=clock, instant="off") as stack:
        assert (await stack.upload(CONTENT)).status_code == 201
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


async def test_a_sample_is_one_content_an_hour_and_no_age_is_too_high(
    make_stack: MakeStack, clock: ManualClock
) -> None:
    async with make_stack(clock=clock, scrub="sample") as stack:
        assert (await stack.upload(CONTENT)).status_code == 201
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


async def test_the_job_reads_at_its_rate_and_goes_on_after_a_stop(make_stack: MakeStack, clock: ManualClock) -> None:
    async with make_stack(clock=clock, scrub_first_seconds=40) as stack:
        assert (await stack.upload(CONTENT)).status_code == 201
        flip_bit(_blob(stack))
        clock.advance(timedelta(seconds=31).total_seconds())
        scrubber = Scrubber(stack.services.scrubbing, rate_bytes_per_second=0)
        assert await scrubber.run_once() == 4.0, "ten looks within the goal"
        problem(await _download(stack), 500, "content-damaged")
