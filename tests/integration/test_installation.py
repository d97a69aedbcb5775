"""Data directory, database and Redis say of which installation they are, and what does not belong together stops."""

import asyncio
import json
import logging
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.background import until
from tests.support.content import KIB, Content
from tests.support.faults import recorded_calls
from tests.support.problems import problem
from tests.support.servers import PrivateRedis
from tests.support.stack import Stack
from uploader.accounting import keys
from uploader.accounting.keys import INSTALLATION
from uploader.bootstrap import Services, reset_redis
from uploader.bootstrap.application import _jobs
from uploader.database import meta
from uploader.errors import ConfigurationError
from uploader.service.cleanup import Cleanup
from uploader.service.installation import FACT
from uploader.settings import Settings
from uploader.storage.local.store import FORMAT
from uploader.storage.store import mark_of, parse_mark

CONTENT = Content(3 * 64 * KIB - 100)
OTHER = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def empty_url(sqlite_template: Path, tmp_path: Path) -> str:
    """Another database, migrated and empty."""
    path = tmp_path / "empty.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


async def said(stack: Stack) -> set[str | None]:
    belonging = await stack.services.installation.belonging()
    return {belonging.disk, belonging.database, belonging.redis}


async def set_fact(stack: Stack, value: str) -> None:
    await stack.services.database.transact(lambda connection: meta.replace_fact(connection, FACT, value))


async def forget_ids(stack: Stack) -> None:
    """As an installation of 0.1.0 is."""
    (stack.data / "installation").unlink()
    await stack.services.database.transact(lambda connection: meta.forget_fact(connection, FACT))
    await stack.services.redis.delete(INSTALLATION)


async def refusal(make_stack: MakeStack, **settings: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        async with make_stack(**settings):
            pass
    assert "\n" not in refused.value.detail
    return refused.value.detail


async def test_the_first_start_makes_an_id_and_every_other_finds_it(make_stack_on: MakeStack) -> None:
    async with make_stack_on() as stack:
        (first,) = await said(stack)
        assert first is not None
        assert (stack.data / "installation").read_bytes() == mark_of(FORMAT, first)
        assert await stack.services.redis.get(INSTALLATION) == f"{keys.FORMAT} {first}".encode()
        assert [path.name for path in stack.data.glob("installation*")] == ["installation"]
    async with make_stack_on() as stack:
        assert await said(stack) == {first}


async def test_an_empty_database_stops_and_gets_nothing(make_stack: MakeStack, empty_url: str) -> None:
    async with make_stack() as stack:
        (mine,) = await said(stack)
    detail = await refusal(make_stack, database_url=empty_url)
    assert f"the data directory belongs to installation {mine}, the database to none" in detail
    assert "UPLOADER_DATABASE_URL" in detail
    assert "uploader adopt" in detail
    assert detail == await refusal(make_stack, database_url=empty_url), "nothing was written"


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("database", "belongs to installation {mine}, the database to {other}"),
        ("redis", "Redis belongs to installation {other}, the data directory and the database to {mine}"),
        ("data", "the database belongs to installation {mine}, the data directory to none: is it mounted?"),
        ("newer disk", f"format {FORMAT + 1}, newer than this version's {FORMAT}"),
        ("newer redis", f"format {keys.FORMAT + 1}, newer than this version's {keys.FORMAT}"),
    ],
)
async def test_what_is_of_another_installation_or_version_stops(make_stack: MakeStack, place: str, told: str) -> None:
    async with make_stack() as stack:
        (mine,) = await said(stack)
        redis, mark = stack.services.redis, stack.data / "installation"
        match place:
            case "database":
                await set_fact(stack, OTHER)
            case "redis":
                await redis.set(INSTALLATION, f"1 {OTHER}")
            case "newer disk":
                mark.write_text(json.dumps({"format": FORMAT + 1, "id": mine}))
            case "newer redis":
                await redis.set(INSTALLATION, f"{keys.FORMAT + 1} {mine}")
    if place == "data":
        stack.data.rename(stack.data.with_name("elsewhere"))
    assert told.format(mine=mine, other=OTHER) in await refusal(make_stack)
    assert mark.exists() == (place != "data")


async def test_a_redis_that_was_lost_is_told_again(make_stack: MakeStack) -> None:
    async with make_stack() as stack:
        (mine,) = await said(stack)
        await stack.services.redis.flushdb()
        assert (await stack.anonymous().get("/readyz")).status_code == 200
        assert await said(stack) == {mine}
        await stack.services.redis.flushdb()
    async with make_stack() as stack:
        assert await said(stack) == {mine}


async def test_a_reset_spares_the_redis_of_another_installation(stack: Stack) -> None:
    (mine,) = await said(stack)
    redis = stack.services.redis
    await stack.open(CONTENT)
    await redis.set(INSTALLATION, f"1 {OTHER}")
    before = sorted(await redis.keys())
    with pytest.raises(ConfigurationError, match=OTHER):
        await reset_redis(stack.services)
    assert sorted(await redis.keys()) == before
    assert await stack.services.installation.adopt() == mine
    assert await reset_redis(stack.services) == len(before)
    assert await redis.keys() == []


async def test_an_installation_without_ids_gets_one(make_stack: MakeStack) -> None:
    """As 0.1.0 left it: a file and an open upload, and the rows that name them."""
    opened = Content(CONTENT.size, seed=1)
    async with make_stack() as stack:
        assert (await stack.upload(CONTENT)).status_code == 201
        await stack.open(opened)
        await stack.put(opened, 0)
        await forget_ids(stack)
    async with make_stack() as stack:
        (made,) = await said(stack)
        assert made is not None
        assert len((await stack.client.get("/me/files")).json()["files"]) == 1


@pytest.mark.parametrize("chunks", [2, 3])
async def test_content_that_an_empty_database_does_not_name_stops(
    make_stack: MakeStack, empty_url: str, chunks: int
) -> None:
    """An open upload that has chunks, or a file."""
    async with make_stack() as stack:
        await stack.open(CONTENT)
        for number in range(chunks):
            await stack.put(CONTENT, number)
        await forget_ids(stack)
    assert "holds content of which the database names nothing" in await refusal(make_stack, database_url=empty_url)
    async with make_stack() as stack:
        assert (await stack.client.get(f"/files/{CONTENT.md5}")).status_code == 200


async def test_what_an_older_version_marked_is_marked_anew_and_only_if_it_belongs_here(make_stack: MakeStack) -> None:
    """So that the older one refuses it from now on."""
    async with make_stack() as stack:
        (mine,) = await said(stack)
        await stack.services.redis.set(INSTALLATION, f"1 {mine}")
        await stack.services.installation.check()
        assert await stack.services.redis.get(INSTALLATION) == f"{keys.FORMAT} {mine}".encode()
        await stack.services.redis.set(INSTALLATION, f"1 {OTHER}")
        with pytest.raises(ConfigurationError, match=OTHER):
            await stack.services.installation.check()
        assert await stack.services.redis.get(INSTALLATION) == f"1 {OTHER}".encode()
        await stack.services.redis.delete(INSTALLATION)
        mark = stack.data / "installation"
        mark.write_text(json.dumps({"format": FORMAT - 1, "id": mine}))
        assert mine is not None
    async with make_stack():
        assert mark.read_bytes() == mark_of(FORMAT, mine)
        assert [path.name for path in mark.parent.glob("installation*")] == ["installation"]


async def test_a_damaged_mark_stops(make_stack: MakeStack) -> None:
    async with make_stack() as stack:
        mark = stack.data / "installation"
    for content in ("", "{}", "[1]", '{"format": 1, "id": "x"}', '{"format": "x", "id": 1}'):
        mark.write_text(content)
        assert "the file installation in it is damaged" in await refusal(make_stack), content


async def test_damaged_mark_is_written_anew_from_the_database(make_stack: MakeStack) -> None:
    async with make_stack() as stack:
        (mine,) = await said(stack)
        mark = stack.data / "installation"
    assert mine is not None
    sound = mark.read_bytes()
    older = json.dumps({"format": FORMAT, "id": mine}).encode()
    for content in (
        flipped(sound, 3),
        flipped(sound, sound.index(b'"id"') + 8),
        flipped(older, older.index(b'"id"') + 8),
    ):
        mark.write_bytes(content)
        async with make_stack() as stack:
            assert mark.read_bytes() == sound, content
            assert meta.Mishap.DAMAGED_MARK in (await stack.client.get("/readyz")).text
    foreign = json.dumps({"format": FORMAT, "id": OTHER}).encode()
    other_digits = older.replace(mine.encode(), ("0" * 2 if mine[:2] == "11" else "11").encode() + mine[2:].encode())
    for content in (mark_of(FORMAT, OTHER), foreign, other_digits):
        mark.write_bytes(content)
        assert "the data directory belongs to installation" in await refusal(make_stack), content
        assert mark.read_bytes() == content
    mark.write_bytes(flipped(mark_of(FORMAT, OTHER), 3))
    assert "the file installation in it is damaged" in await refusal(make_stack)


def flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


@pytest.mark.parametrize("newest", [1, FORMAT, FORMAT + 1])
def test_mark_with_any_flipped_bit_belongs_to_the_known_installation_alone(newest: int) -> None:
    """Of a mark without a checksum as well, unless the flip leaves another mark of the same installation."""
    unchecked = json.dumps({"format": newest, "id": OTHER}).encode()
    for sound in (mark_of(newest, OTHER), unchecked):
        for position in range(len(sound)):
            for bit in range(8):
                content = sound[:position] + bytes([sound[position] ^ (1 << bit)]) + sound[position + 1 :]
                found = parse_mark(content, newest, OTHER)
                assert found is not None, content
                assert found.installation == OTHER, content
                stranger = parse_mark(content, newest, "f" * 32)
                assert stranger is None or stranger.installation != "f" * 32, content


@pytest.fixture
async def racers(tmp_path: Path, stack_url: str, redis_url: str) -> AsyncIterator[list[Services]]:
    """As many processes have them, on what is new."""
    settings = Settings(data=tmp_path / "data", database_url=stack_url, redis_url=redis_url)
    made = [Services(settings) for _ in range(8)]
    yield made
    for services in made:
        await services.close()


async def test_a_command_makes_no_id_and_keeps_away_from_the_redis_of_another(racers: list[Services]) -> None:
    (services, *_) = racers
    await services.installation.compare()
    await services.installation.check()
    assert (await services.installation.belonging()).disk is None
    await services.redis.set(INSTALLATION, f"1 {OTHER}")
    with pytest.raises(ConfigurationError, match=f"Redis belongs to installation {OTHER}"):
        await services.installation.check()


async def test_all_who_start_at_once_agree(racers: list[Services]) -> None:
    await asyncio.gather(*(services.installation.begin() for services in racers))
    await asyncio.gather(*(services.installation.check() for services in racers))
    found = {await services.installation.belonging() for services in racers}
    assert len(found) == 1
    (belonging,) = found
    assert len({belonging.disk, belonging.database, belonging.redis}) == 1
    data = racers[0].settings.data
    assert [path.name for path in data.glob("installation*")] == ["installation"]


async def test_a_first_start_that_comes_late_keeps_what_is_settled(racers: list[Services]) -> None:
    """It has looked before the other one began, and proposes after it has ended."""
    first, late = racers[:2]
    await first.installation.begin()
    (settled,) = {(await first.installation.belonging()).disk}
    assert await late.storage.marks.propose(OTHER) == settled
    await late.storage.marks.settle(OTHER)
    assert (await late.installation.belonging()).disk == settled
    assert [path.name for path in late.settings.data.glob("installation*")] == ["installation"]


async def test_a_mark_whose_maker_died_is_made_durable_by_the_next_start(racers: list[Services]) -> None:
    first, later = racers[:2]
    await first.installation.begin()
    data = first.settings.data
    shutil.copy(data / "installation", data / "installation.new")
    (data / f"installation.{OTHER}").touch()
    with recorded_calls("fsync", "unlink") as calls:
        await later.installation.begin()
    assert calls[0] == ("fsync", "data")
    assert {name for call, name in calls if call == "unlink"} == {"installation.new", f"installation.{OTHER}"}
    with recorded_calls("fsync", "unlink", "link") as calls:
        await later.installation.begin()
    assert calls == []


# While a server runs


async def test_a_server_whose_redis_is_another_ones_is_not_ready_and_runs_no_job_that_removes(
    stack: Stack, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = 0
    purge = Cleanup.purge_closed

    async def counted(*arguments: Any) -> int:
        nonlocal runs
        runs += 1
        return await purge(*arguments)

    monkeypatch.setattr(Cleanup, "purge_closed", counted)
    mine = json.loads((stack.data / "installation").read_text())["id"]
    await stack.services.redis.set(INSTALLATION, f"1 {OTHER}")
    ready = await stack.anonymous().get("/readyz")
    checks = ready.json()["checks"]
    assert (ready.status_code, [name for name in checks if not checks[name]["ok"]]) == (503, ["redis"])
    assert OTHER in checks["redis"]["reason"]
    await stack.services.redis.delete(INSTALLATION)
    await set_fact(stack, OTHER)
    checks = (await stack.anonymous().get("/readyz")).json()["checks"]
    assert [name for name in checks if not checks[name]["ok"]] == ["database"]

    def refusals() -> list[logging.LogRecord]:
        return [each for each in caplog.records if "put right" in each.message and each.job == "collector"]  # type: ignore[attr-defined]

    async with _jobs(stack.services):
        await until(refusals)
        assert (len(refusals()), runs) == (1, 0)
        await set_fact(stack, mine)
        await until(lambda: runs > 0)


async def test_without_redis_at_the_start_the_server_serves(make_stack: MakeStack, own_redis: PrivateRedis) -> None:
    own_redis.kill()
    async with make_stack(redis_url=own_redis.url) as stack:
        assert (await stack.client.get("/me/usage")).status_code == 200
        own_redis.start()
        assert (await stack.anonymous().get("/readyz")).status_code == 200
        assert len(await said(stack)) == 1


# The file of a SQLite


def path_of(stack: Stack) -> Path:
    return Path(str(stack.services.database.engine.url.database))


@pytest.mark.parametrize("replaced", [False, True])
async def test_after_the_database_file_went_nothing_is_acknowledged(
    make_stack: MakeStack, sqlite_url: str, sqlite_template: Path, replaced: bool
) -> None:
    async with make_stack(database_url=sqlite_url) as stack:
        await stack.open(CONTENT)
        assert (await stack.put(CONTENT, 0)).status_code == 200
        path = path_of(stack)
        away = path.rename(path.with_name("away.db"))
        if replaced:
            shutil.copy(sqlite_template, path)
        there = path.read_bytes() if replaced else None

        problem(await stack.open(Content(100, seed=7)), 503, "unavailable")  # a commit
        problem(await stack.put(CONTENT, 1), 503, "unavailable")  # asks no SQL
        problem(await stack.open(CONTENT), 503, "unavailable")  # only reads
        checks = (await stack.anonymous().get("/readyz")).json()["checks"]
        assert [name for name in checks if not checks[name]["ok"]] == ["database"]
        assert "removed or replaced" in checks["database"]["reason"]
        await stack.services.database.engine.dispose()  # what connects anew makes no file
        problem(await stack.open(CONTENT), 503, "unavailable")
        assert (path.read_bytes() if path.exists() else None) == there

        away.replace(path)
        assert (await stack.put(CONTENT, 1)).status_code in (200, 503)
        assert (await stack.open(CONTENT)).status_code == 200
        assert (await stack.put(CONTENT, 2)).status_code == 201


async def test_a_database_file_that_goes_is_seen_without_any_commit(make_stack: MakeStack, sqlite_url: str) -> None:
    async with make_stack(database_url=sqlite_url) as stack:
        await stack.open(CONTENT)
        away = path_of(stack).rename(path_of(stack).with_name("away.db"))
        await until(lambda: stack.services.database.is_lost)
        problem(await stack.put(CONTENT, 0), 503, "unavailable")
        away.rename(path_of(stack))
