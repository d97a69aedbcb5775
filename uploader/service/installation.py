"""Checks that the store, the database and Redis belong together: each of them holds the id of its installation.

The first start makes the id, in steps that a crash may interrupt anywhere: propose the id in the store, put it into the
database (where the first proposal wins), settle it in the store. A store without an id beside a database with one is a
wrong or lost store, and its bytes without a row would be thrown away: so the start fails. Redis is simply marked again,
because losing it is ordinary.
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

# The name of the id among the facts of the database.
FACT = "installation"
# Later than the opening of any upload.
_ANY_TIME = datetime(9999, 12, 31, tzinfo=UTC)
_ADOPT = "if they are meant to belong together from now on, stop all servers and run `uploader adopt`"


@dataclass(frozen=True, slots=True)
class Belonging:
    # The id in the store, of any kind; the audit log has it under this name.
    disk: str | None
    database: str | None
    redis: str | None


@dataclass(eq=False, repr=False)
class Installation:
    database: Database
    storage: Store
    redis: RedisMark
    clock: Clock
    # None until store and database agree.
    id: str | None = field(default=None, init=False)

    async def begin(self) -> None:
        """Make a new installation if there is none, for a server or a worker. Raises as `compare`."""
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
        # In this order: a first start puts the proposal into the database before the store settles.
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
        """Compare as `compare` does, but without reading the store, which this process has open."""
        if self.id is None:
            await self.compare()
            return
        in_database = await self._fact()
        if in_database != self.id:
            raise ConfigurationError(difference(self.storage.marks.store, self.id, in_database))

    async def check_redis(self) -> None:
        """Mark a new or lost Redis. Raises ConfigurationError if Redis belongs to another installation, Unavailable."""
        in_redis = await (self.redis.read() if self.id is None else self.redis.claim(self.id))
        if in_redis != self.id:
            raise ConfigurationError(
                f"Redis belongs to installation {in_redis}, the {self.store_name} and the database to "
                f"{self.id or 'none'}: correct UPLOADER_REDIS_URL, and give each installation a Redis of its own; "
                f"or, {_ADOPT}"
            )

    async def check(self) -> None:
        """Check before anything is removed. Raises ConfigurationError if the three do not belong together, Unavailable."""
        await self.database.look()
        await self.check_database()
        # Read first: the release of space on a full disk must go on while Redis takes no writes.
        if self.id is None or not await self.redis.names(self.id):
            await self.check_redis()

    async def look(self) -> float:
        """Check that the file of the database was not replaced, for callers that acknowledge without a commit. Return
        the seconds until the next look. Raises Unavailable."""
        await self.database.look()
        return 2.0

    # By hand

    @property
    def store_name(self) -> str:
        return self.storage.marks.store.name

    async def belonging(self) -> Belonging:
        """Return the ids of the three stores. Raises ConfigurationError, Unavailable."""
        known = await self._fact()
        marks = await self.storage.marks.read(known)
        return Belonging(marks.installation, known, await self.redis.read())

    async def adopt(self) -> str:
        """Let all three belong together, by the id of the database, else that of the store, else a new id. Nothing else
        may use them meanwhile. Raises ConfigurationError, Unavailable."""
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
        """Refuse bytes that the database does not name: they belong to another installation. Neither a new installation
        nor one of 0.1.0 has an id. Raises ConfigurationError."""
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
