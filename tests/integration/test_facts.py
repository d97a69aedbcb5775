"""Facts about an installation, of which there is one of each name."""

import asyncio
from datetime import timedelta

from tests.support.rows import NOW
from uploader.database import meta
from uploader.database.engine import Database, Duplicate


async def test_of_all_who_replace_one_at_once_nobody_fails(database: Database) -> None:
    for _ in range(5):
        values = {f"of {number}" for number in range(8)}
        await database.transact(lambda connection: meta.forget_fact(connection, "a fact"))
        await asyncio.gather(*(replace(database, value) for value in values))
        assert await database.read(lambda connection: meta.fact(connection, "a fact")) in values


async def replace(database: Database, value: str) -> None:
    await database.transact(lambda connection: meta.replace_fact(connection, "a fact", value))


async def test_of_all_who_want_a_lease_at_once_one_has_it(database: Database) -> None:
    """The first, and the next after it ran out."""
    for hours in (0, 2):
        assert sum(await asyncio.gather(*(leased(database, f"{hours}-{n}", hours) for n in range(8)))) == 1


async def leased(database: Database, owner: str, hours: int) -> bool:
    now = NOW + timedelta(hours=hours)
    until = now + timedelta(hours=1)
    try:
        return await database.transact(
            lambda connection: meta.lease(connection, "a lease", owner, now=now, until=until)
        )
    except Duplicate:
        return False


async def test_of_processes_that_start_at_once_each_gets_what_the_first_one_stored(database: Database) -> None:
    for number in range(10):
        values = [f"{number}.{process}" for process in range(4)]
        stored = await asyncio.gather(*(meta.remember(database, f"fact {number}", value) for value in values))
        assert len(set(stored)) == 1
        assert stored[0] in values
        assert await meta.remember(database, f"fact {number}", "later") == stored[0]
