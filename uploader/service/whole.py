"""The use cases of whole files, alone or many in a request. Many files are stored in groups, which share their syncs
and a transaction, while the next group arrives."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Protocol

from uploader.database import links, queries, transactions, trash
from uploader.database.engine import Connection, Database, Duplicate
from uploader.database.outbox import gates
from uploader.database.transactions.files import Added, Room
from uploader.database.transactions.rows import BlobLost, NotOpen
from uploader.domain.creations import FILE
from uploader.domain.digest import ClaimedDigests
from uploader.domain.links import Caller
from uploader.domain.upload import File, IfExists, Usage
from uploader.errors import (
    FileTooLarge,
    NameTaken,
    NotAllowed,
    QuotaExceeded,
    Refused,
    StorageFull,
    TooManyFiles,
    Unavailable,
    UploaderError,
)
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.observability import BYTES_RECEIVED, QUOTA_REFUSALS, WHOLE_FILES
from uploader.runtime.tasks import all_or_none, uninterrupted
from uploader.service.chunk import ConcurrentBodies, check_digests
from uploader.service.close import Closers
from uploader.service.ids import new_id
from uploader.service.links import Visitors
from uploader.service.open import Admission
from uploader.service.precreate import PreCreateHook
from uploader.service.results import Complete, NewFile
from uploader.service.status import ATTEMPTS, PAUSE_SECONDS, Uploads
from uploader.storage.base import Arrival, BlobBytes, Body

Outcome = Complete | UploaderError


@dataclass(eq=False, repr=False)
class Storing:
    """Makes files of contents that came whole: refuses early, makes the bytes durable, and makes the files in one
    transaction. Opens no upload, and asks Redis nothing."""

    # `max_bytes`: the largest file, received in memory or spooled like a chunk.
    database: Database
    storage: BlobBytes
    closers: Closers
    uploads: Uploads
    admission: Admission
    pre_create_hook: PreCreateHook
    visitors: Visitors
    clock: Clock
    _: KW_ONLY
    max_bytes: int
    max_files: int

    # Before

    async def refuse_early(self, new: NewFile, size: int) -> None:
        """Refuse a file that can't be stored, before anything is written. The transaction decides again. Raises
        FileTooLarge, NameTaken, QuotaExceeded, TooManyFiles, StorageFull."""
        if size > self.max_bytes:
            raise FileTooLarge(limit=self.max_bytes)
        if new.caller.session:
            await self.visitors.refuse_early(new.caller, new.name, size, new.md5)
        if new.if_exists is IfExists.FAIL or not await self._fit(new.caller.user_id, 1, size):
            await self.database.read(_refuse, new, size, self.max_files)
        await self.admission.check(size)

    async def _fit(self, user_id: str, files: int, size: int) -> bool:
        usage = await self.database.read(_usage, user_id, files, self.max_files, brief=True)
        if usage is None or not usage.fits(size):
            return False
        lacking = 0 if usage.takes_files(files, self.max_files) else usage.files + files - self.max_files
        return lacking == 0 or len(await self.database.read(queries.left_folders, user_id, lacking)) == lacking

    async def has_room(self, user_id: str, files: int, size: int) -> bool:
        """Return whether `files` files fit, with `size` bytes together."""
        if not await self._fit(user_id, files, size):
            return False
        try:
            await self.admission.check(size)
        except StorageFull:
            return False
        return True

    # Storing

    async def store(self, files: Sequence[NewFile], bodies: Sequence[Body]) -> list[Outcome]:
        """Store, durably, the files that match their claims and are allowed. Raises Unavailable."""
        if not self.pre_create_hook.is_on:
            return await self._store(files, bodies)
        asked = await all_or_none(map(self._asked, files, bodies))
        allowed = [(new, body) for new, body in zip(asked, bodies, strict=True) if isinstance(new, NewFile)]
        stored = iter(await self._store(*zip(*allowed, strict=True)) if allowed else ())
        return [next(stored) if isinstance(each, NewFile) else each for each in asked]

    async def _asked(self, new: NewFile, body: Body) -> NewFile | NotAllowed:
        try:
            allowed = await self.visitors.ask(
                self.pre_create_hook, FILE, new.caller, new.name, body.length, new.md5, new.sha256
            )
        except NotAllowed as error:
            return error
        return replace(new, name=allowed.name)

    async def _store(self, files: Sequence[NewFile], bodies: Sequence[Body]) -> list[Outcome]:
        arrivals = [Arrival(body, new.md5, new.sha256) for new, body in zip(files, bodies, strict=True)]
        try:
            await self.storage.store_arrivals(arrivals)
            whole = [(new, arrival) for new, arrival in zip(files, arrivals, strict=True) if arrival.error is None]
            made = iter(await self._make(whole) if whole else [])
        except StorageFull as error:
            return [error] * len(arrivals)
        outcomes = [arrival.error or next(made) for arrival in arrivals]
        for outcome, body in zip(outcomes, bodies, strict=True):
            _count(outcome, body.length)
        return outcomes

    async def _make(self, whole: Sequence[tuple[NewFile, Arrival]]) -> list[Outcome]:
        def place(contents: Collection[str]) -> Mapping[str, str]:
            return self.storage.place_arrivals([arrival for _, arrival in whole if arrival.sha256_of_bytes in contents])

        add = partial(
            transactions.files.add_whole_files,
            files=[self._file(new, arrival) for new, arrival in whole],
            if_exists=whole[0][0].if_exists,
            place_blobs=self.database.in_thread(place),
            max_files=self.max_files,
        )
        for _ in range(ATTEMPTS):
            try:
                verdicts = await self.database.transact(add)
            except (Duplicate, BlobLost):
                await asyncio.sleep(PAUSE_SECONDS)  # another request was faster
                continue
            crash_point("whole.after_commit")
            return [
                await self._make_closing(*each) if verdict is None else _outcome(verdict)
                for each, verdict in zip(whole, verdicts, strict=True)
            ]
        raise Unavailable("Files of these names are changing too fast; try again.")

    async def _make_closing(self, new: NewFile, arrival: Arrival) -> Outcome:
        """Make a file whose MD5 has an open upload. If the upload is of the same content, close it."""
        sha256 = arrival.sha256_of_bytes
        place = self.database.in_thread(lambda: self.storage.place_arrivals([arrival]).get(sha256))
        for _ in range(ATTEMPTS):
            file = self._file(new, arrival)
            existing = await self.uploads.by_md5(new.caller, file.md5)
            if existing is not None and not existing.may_be(file.sha256, file.size):
                existing = None
            replaced_id = None if existing is None else existing.id
            add = partial(transactions.files.add_file, max_files=self.max_files)
            commit = partial(self.database.transact, add, file, new.if_exists, replaced_id, place)
            try:
                return _outcome(await self.closers.close_by(existing, commit))
            except (NameTaken, Refused) as error:
                return error
            except (Duplicate, NotOpen, BlobLost):
                await asyncio.sleep(PAUSE_SECONDS)
        raise Unavailable("This upload is changing too fast; try again.")

    def _file(self, new: NewFile, arrival: Arrival) -> File:
        assert arrival.digests is not None
        return File(
            id=new_id(),
            user_id=new.caller.user_id,
            session=new.caller.session,
            md5=arrival.digests.md5,
            sha256=arrival.digests.sha256,
            name=new.name,
            size=arrival.body.length,
            instant=False,
            created_at=self.clock.now(),
            modified_at=new.modified_at,
        )


async def _usage(connection: Connection, user_id: str, more_files: int, max_files: int) -> Usage | None:
    """Return the account of a user, without deleted files that would give way to `more_files`."""
    usage = await queries.usage(connection, user_id)
    return None if usage is None else await trash.without_spare(connection, usage, more_files, max_files)


async def _refuse(connection: Connection, new: NewFile, size: int, max_files: int) -> None:
    """Raises NameTaken, QuotaExceeded, TooManyFiles, unless the file may exist already, or replace others."""
    names = transactions.names.Names(connection, new.caller.user_id)
    of_name = []
    if not new.caller.session:  # a visitor's names lie below the folder of the link, and are never refused
        await names.read([new.name])
        of_name = names.standing([new.name])
        if new.md5 is not None and not of_name and gates(connection):
            held = await queries.newest_held(connection, new.caller, md5=new.md5, size=size, name=new.name)
            of_name = [] if held is None else [held]
    elif await links.may_have_sent(connection, new.caller, new.name, size, new.md5):
        return
    if any((file.size == size and new.md5 is None) or file.may_be(new.md5, new.sha256, size) for file in of_name):
        return
    if new.if_exists is not IfExists.KEEP:
        await names.find(new.name, new.if_exists)
    elif of_name and await _may_have_a_number(connection, new, size):
        return
    usage = await _usage(connection, new.caller.user_id, 1, max_files)
    replaced = of_name if new.if_exists is IfExists.REPLACE else []
    existing = None if new.md5 is None else await queries.open_upload_by_md5(connection, new.caller, new.md5)
    room = Room(max_files, existing if existing is not None and existing.size == size else None)
    more_bytes, more_files = size - sum(file.size for file in replaced), 1 - len(replaced)
    refusal = None if usage is None else room.refusal(FILE, usage, more_bytes, more_files, size)
    if isinstance(refusal, QuotaExceeded):
        QUOTA_REFUSALS.inc()
    if isinstance(refusal, TooManyFiles) and await queries.left_folders(connection, new.caller.user_id, 1):
        return
    if refusal is not None:
        raise refusal


async def _may_have_a_number(connection: Connection, new: NewFile, size: int) -> bool:
    """Return whether the same content may exist already, under a numbered name."""
    if new.md5 is None:
        return True
    return await queries.newest_file(connection, new.caller, new.md5, size=size) is not None


def _outcome(verdict: transactions.files.Verdict) -> Outcome:
    return Complete(file=verdict.file, created=verdict.is_new) if isinstance(verdict, Added) else verdict


def _count(outcome: Outcome, length_bytes: int) -> None:
    if isinstance(outcome, Complete):
        WHOLE_FILES.labels("created" if outcome.created else "present").inc()
        BYTES_RECEIVED.inc(length_bytes if outcome.created else 0)
        return
    WHOLE_FILES.labels(outcome.code).inc()
    if isinstance(outcome, QuotaExceeded):
        QUOTA_REFUSALS.inc()


# Limits of one group. Syncing that many bytes takes longer than all other work.
_GROUP_FILES = 200
_GROUP_BYTES = 8 << 20
# How long an incomplete group waits for more.
_PATIENCE_SECONDS = 1.0
# Outcomes held back until the earlier ones are known: of two groups, and of refused files between theirs.
_MOST_UNTOLD = 3 * _GROUP_FILES

# A file of many: the facts and the bytes, or the reason for having no file.
Entry = tuple[NewFile, Body] | UploaderError


class WholeSource(Protocol):
    @property
    def declared_bytes(self) -> int | None:
        """The length that the client has told; None if it has not."""

    async def receive_up_to(self, caller: Caller, limit_bytes: int) -> Body:
        """Receive the whole body. Raises FileTooLarge, ChunkLengthMismatch, BodyTimeout, StorageFull."""


@dataclass(slots=True)
class _Group:
    places: list[int] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    files: list[NewFile] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)
    bytes: int = 0

    def add(self, place: int, new: NewFile, body: Body) -> None:
        self.places.append(place)
        self.names.add(new.name)
        self.files.append(new)
        self.bodies.append(body)
        self.bytes += body.length

    def takes(self, new: NewFile, body: Body) -> bool:
        """Return whether one more file fits. A group has each name once, to keep files of the same name in order."""
        if not self.files:
            return True
        if new.name in self.names:
            return False
        fits = len(self.files) < _GROUP_FILES and self.bytes + body.length <= _GROUP_BYTES
        return fits and new.if_exists is self.files[0].if_exists

    def close(self) -> None:
        for body in self.bodies:
            body.close()


class _Groups:
    """The files of one request. While a group is stored, the next group gathers."""

    def __init__(self, store: Callable[[_Group], Awaitable[list[Outcome]]]) -> None:
        self._store = store
        # Outcomes of the files from position `_told` on; earlier ones have been told.
        self._told = 0
        self._outcomes: deque[Outcome | None] = deque()
        self._group = _Group()
        self._storing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def refuse(self, error: UploaderError) -> None:
        """Raises what storing an earlier group raises."""
        self._outcomes.append(error)
        if len(self._outcomes) > _MOST_UNTOLD:
            await self._store_all()

    async def add(self, new: NewFile, body: Body) -> None:
        """Take a file and its body. Raises what storing an earlier group raises; the body is taken over all the same."""
        full = not self._group.takes(new, body)
        if full:
            self._waits_no_longer()
            full_group, self._group = self._group, _Group()
        self._group.add(self._told + len(self._outcomes), new, body)
        self._outcomes.append(None)
        if full:
            await self._store_next(full_group)
        if len(self._group.files) == 1:  # not earlier: the timer must not store this group before the full one
            self._timer = asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self._store_early)

    async def end(self) -> None:
        """Raises what storing raises."""
        try:
            await self._store_all()
        finally:
            if self._storing is not None:
                await self._storing

    def outcomes(self) -> Iterator[Outcome]:
        """Yield the known outcomes that were not told yet, up to the first unknown one."""
        while self._outcomes and (outcome := self._outcomes[0]) is not None:
            self._outcomes.popleft()
            self._told += 1
            yield outcome

    async def _store_all(self) -> None:
        self._waits_no_longer()
        group, self._group = self._group, _Group()
        await self._store_next(group)
        if self._storing is not None:
            await uninterrupted(self._storing)

    async def _store_next(self, group: _Group) -> None:
        try:
            if self._storing is not None:
                await uninterrupted(self._storing)
        except BaseException:
            group.close()
            raise
        self._begin(group)

    def _begin(self, group: _Group) -> None:
        self._storing = asyncio.create_task(self._store_and_close(group), name="store a group of files")

    def _store_early(self) -> None:
        """Store an incomplete group after a while, because a slow client must not hold memory for long."""
        if self._storing is not None and not self._storing.done():
            self._timer = asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self._store_early)
            return
        if self._storing is None or self._storing.exception() is None:  # otherwise `add` raises the error
            group, self._group = self._group, _Group()
            self._begin(group)

    def _waits_no_longer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def _store_and_close(self, group: _Group) -> None:
        try:
            if group.files:
                for place, outcome in zip(group.places, await self._store(group), strict=True):
                    self._outcomes[place - self._told] = outcome
        finally:
            group.close()


@dataclass(eq=False, repr=False)
class WholeFiles:
    storing: Storing
    concurrency: ConcurrentBodies

    async def receive(self, new: NewFile, source: WholeSource, claims: ClaimedDigests) -> Complete:
        """Make a file of a whole body. Raises FileTooLarge, QuotaExceeded, TooManyFiles, NameTaken, StorageFull,
        TooManyRequests, BodyTimeout, ChunkLengthMismatch, DigestMismatch, Md5Mismatch, Sha256Mismatch, Unavailable."""
        declared = source.declared_bytes
        if declared is not None:
            await self.storing.refuse_early(new, declared)
        async with self.concurrency.counted(new.caller):
            body = await source.receive_up_to(new.caller, self.storing.max_bytes)
            try:
                await check_digests(body, claims)
                if declared is None:
                    await self.storing.refuse_early(new, body.length)
                (outcome,) = await uninterrupted(self.storing.store([new], [body]))
            finally:
                body.close()
        if isinstance(outcome, UploaderError):
            raise outcome
        return outcome

    async def receive_many(self, caller: Caller, entries: AsyncIterator[Entry]) -> AsyncGenerator[Outcome, None]:
        """Take over many files of one user, and their bodies. Yield the outcomes, in order, as soon as they are known.
        The caller closes the generator (`aclosing`) unless it is read to its end. If `entries` breaks off, the received
        files are stored. Raises what `entries` raises, TooManyRequests, Unavailable."""
        async with self.concurrency.counted(caller):
            groups = _Groups(self._store_group)
            try:
                async for entry in entries:
                    if isinstance(entry, UploaderError):
                        await groups.refuse(entry)
                    else:
                        await groups.add(*entry)
                    for outcome in groups.outcomes():
                        yield outcome
            finally:
                await uninterrupted(groups.end())
            for outcome in groups.outcomes():
                yield outcome

    async def _store_group(self, group: _Group) -> list[Outcome]:
        if await self.storing.has_room(group.files[0].caller.user_id, len(group.files), group.bytes):
            return await self.storing.store(group.files, group.bodies)
        return [await self._store_refusable(new, body) for new, body in zip(group.files, group.bodies, strict=True)]

    async def _store_refusable(self, new: NewFile, body: Body) -> Outcome:
        try:
            await self.storing.refuse_early(new, body.length)
        except (NameTaken, Refused) as error:
            return error
        (outcome,) = await self.storing.store([new], [body])
        return outcome
