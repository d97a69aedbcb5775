"""Checks that the store, the database and Redis belong together: each says of which installation it is.

Made by the first start, in an order that a crash may break off anywhere: proposed in the store, put into the database, where
the first one stands, then settled in the store. A store that says nothing though another one does is a forgotten or a lost
one, and what has no row there would be thrown away: so it stops. Redis is told again: to lose it is ordinary.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sized
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from uuid import uuid4

from uploader.accounting.redis import RedisMark
from uploader.database import meta, queries
from uploader.database.audit_log import note
from uploader.database.engine import Connection, Database
from uploader.domain.audit_log import Action
from uploader.errors import ConfigurationError
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.service.audit_log import act
from uploader.storage.store import Store, StoreName

logger = logging.getLogger(__name__)

# Its name among the facts of the database.
FACT = "installation"
# Later than any upload was opened.
_ANY_TIME = datetime(9999, 12, 31, tzinfo=UTC)
_ADOPT = "if they are meant to belong together from now on, stop all servers and run `uploader adopt`"


@dataclass(frozen=True, slots=True)
class Belonging:
    # In the store, whatever that is; acts of the audit log have it by this name.
    disk: str | None
    database: str | None
    redis: str | None


@dataclass(eq=False, repr=False)
class Installation:
    database: Database
    storage: Store
    redis: RedisMark
    clock: Clock
    # None until store and database have said the same.
    id: str | None = field(default=None, init=False)

    async def begin(self) -> None:
        """Let an installation that is none yet become one, for a server or a worker. Raises as `compare`."""
        known = await self._fact()
        marks = await self.storage.marks.read(known)
        if marks.installation is None and known is None:
            await self._refuse_what_is_named_elsewhere()
            proposed = await self.storage.marks.propose(uuid4().hex)
            await meta.remember(self.database, FACT, proposed)
            crash_point("installation.after_fact")
        await self.compare()
        if self.id is not None:
            await self.storage.marks.settle(self.id)
        if marks.is_damaged:
            logger.warning("the mark of the installation was damaged, and is written anew from the database")
            await self.database.transact(meta.note_mishap, meta.Mishap.DAMAGED_MARK, self.clock.now())

    async def compare(self) -> None:
        """Compare the store with the database. Raises ConfigurationError if they don't belong together, Unavailable."""
        # In this order: a first start puts its proposal into the database before it settles it.
        in_database = await self._fact()
        marks = await self.storage.marks.read(in_database)
        if in_database is None and marks.installation is not None:
            in_database = await self._fact()  # a first start may just have ended
        in_store = marks.installation or (in_database if in_database in marks.proposed else None)
        if in_store != in_database:
            raise ConfigurationError(difference(self.storage.marks.store, in_store, in_database))
        if in_store is None:
            await self._refuse_what_is_named_elsewhere()
        self.id = in_store

    async def check_database(self) -> None:
        """Compare as `compare`, without another look at the store, which this process has open."""
        if self.id is None:
            await self.compare()
            return
        in_database = await self._fact()
        if in_database != self.id:
            raise ConfigurationError(difference(self.storage.marks.store, self.id, in_database))

    async def check_redis(self) -> None:
        """Mark Redis if new or lost. Raises ConfigurationError if it is another installation's, Unavailable."""
        in_redis = await (self.redis.read() if self.id is None else self.redis.claim(self.id))
        if in_redis != self.id:
            raise ConfigurationError(
                f"Redis belongs to installation {in_redis}, the {self.store_name} and the database to "
                f"{self.id or 'none'}: correct UPLOADER_REDIS_URL, and give each installation a Redis of its own; "
                f"or, {_ADOPT}"
            )

    async def check(self) -> None:
        """Ask before anything is removed. Raises ConfigurationError if not all belong together, Unavailable."""
        await self.database.look()
        await self.check_database()
        # It is read first: what makes room on a full disk goes on while Redis takes no writes.
        if self.id is None or not await self.redis.names(self.id):
            await self.check_redis()

    async def look(self) -> float:
        """Look at what no commit looks at; return when to look again, in seconds. Raises Unavailable."""
        await self.database.look()
        return 2.0

    # By hand

    @property
    def store_name(self) -> str:
        return self.storage.marks.store.name

    async def belonging(self) -> Belonging:
        """Raises ConfigurationError, Unavailable."""
        known = await self._fact()
        marks = await self.storage.marks.read(known)
        return Belonging(marks.installation, known, await self.redis.read())

    async def adopt(self) -> str:
        """Let all belong together, by the id of the database, else of the store, else by a new one. Nothing else uses
        them meanwhile. Raises ConfigurationError, Unavailable."""
        said = await self.belonging()
        adopted = said.database or said.disk or uuid4().hex
        await self.storage.marks.replace(adopted)
        told = act(Action.INSTALLATION_ADOPTED, self.clock.now(), subject=adopted, details=asdict(said))

        async def replace(connection: Connection) -> None:
            await meta.replace_fact(connection, FACT, adopted)
            await note(connection, told)

        await self.database.transact(replace)
        await self.redis.replace(adopted)
        self.id = adopted
        return adopted

    # What was there before ids were

    async def _fact(self) -> str | None:
        return await self.database.read(meta.fact, FACT)

    async def _refuse_what_is_named_elsewhere(self) -> None:
        """An installation of 0.1.0 has no id, nor has a new one. But bytes of which this database names nothing are of
        another one. Raises ConfigurationError."""
        found = False
        async for batch, named in self._batches():
            if named:
                return
            found = found or bool(batch)
        if found:
            raise ConfigurationError(
                f"the {self.store_name} holds content of which the database names nothing: is "
                f"UPLOADER_DATABASE_URL the right one, and the database whole? Correct it, or restore the database; "
                f"or, {_ADOPT}"
            )

    async def _batches(self) -> AsyncIterator[tuple[list[str], bool]]:
        async for listed in self.storage.list_blobs():
            blobs = [found.name for found in listed if not found.is_draft]
            yield blobs, await self._names_any(queries.known_blobs, blobs)
        async for batch in self.storage.list_uploads(_ANY_TIME):
            uploads = [found.name for found in batch if await self.storage.holds_chunks(found)]
            yield uploads, await self._names_any(queries.uploads_by_id, uploads)

    async def _names_any(self, query: Callable[[Connection, list[str]], Awaitable[Sized]], names: list[str]) -> bool:
        return bool(names and await self.database.read(query, names))


def difference(store: StoreName, in_store: str | None, in_database: str | None) -> str:
    if in_database is None:
        return (
            f"the {store.name} belongs to installation {in_store}, the database to none: it is a new one, or another "
            f"program's; correct UPLOADER_DATABASE_URL, or restore the database; or, {_ADOPT}"
        )
    if in_store is None:
        return (
            f"the database belongs to installation {in_database}, the {store.name} to none: {store.question} Correct "
            f"{store.setting}, or restore the {store.name}; or, {_ADOPT}"
        )
    return (
        f"the {store.name} belongs to installation {in_store}, the database to {in_database}: correct {store.setting} or "
        f"UPLOADER_DATABASE_URL; or, {_ADOPT}"
    )
