"""The use cases of files that come whole, one in a request, or many: of those, groups share their syncs and a transaction,
while the next group arrives.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from uploader.domain.digest import ClaimedDigests
from uploader.errors import NameTaken, QuotaExceeded, StorageFull, UploaderError
from uploader.service.uploads.comparing import check_digests
from uploader.service.uploads.receiving import ChunksAtOnce
from uploader.service.uploads.results import Complete, NewFile
from uploader.service.uploads.storing import Outcome, Storing
from uploader.storage.base import Body
from uploader.tasks import uninterrupted

# Of one group. So many bytes that a sync of them takes longer than all else.
_GROUP_FILES = 200
_GROUP_BYTES = 8 << 20
# How long a group that is not full waits for more.
_PATIENCE_SECONDS = 1.0
# Outcomes that are held until those before them are known: of two groups, and of what was refused between their files.
_MOST_UNTOLD = 3 * _GROUP_FILES

# One of many: what is said of it, and its bytes; or why it is none.
Entry = tuple[NewFile, Body] | UploaderError


class WholeSource(Protocol):
    """The body of a file that is on its way."""

    @property
    def declared_bytes(self) -> int | None:
        """The length that the client has told; None if it has not."""

    async def receive_up_to(self, user_id: str, limit_bytes: int) -> Body:
        """Receive it whole. Raises FileTooLarge, ChunkLengthMismatch, BodyTimeout, StorageFull."""


@dataclass(slots=True)
class _Group:
    """Files that are stored together, with the places of their outcomes."""

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
        """Whether one more still belongs to it. One name is in it once, so that files of one name come in their order."""
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
    """The files of one request: a group is stored while the next one gathers."""

    def __init__(self, store: Callable[[_Group], Awaitable[list[Outcome]]]) -> None:
        self._store = store
        # Of the files from this place on; those before have been told.
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
        """Raises what storing an earlier group raises; the body is taken over all the same."""
        full = not self._group.takes(new, body)
        if full:
            self._waits_no_longer()
            full_group, self._group = self._group, _Group()
        self._group.add(self._told + len(self._outcomes), new, body)
        self._outcomes.append(None)
        if full:
            await self._store_next(full_group)
        if len(self._group.files) == 1:  # not before: it would come before the one that is full
            self._timer = asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self._store_early)

    async def end(self) -> None:
        """Store what is left. Raises what storing raises."""
        try:
            await self._store_all()
        finally:
            if self._storing is not None:
                await self._storing

    def outcomes(self) -> Iterator[Outcome]:
        """Those that are known by now and were not told, up to the first that is not known."""
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
        """Begin with a group, once the one before it is stored."""
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
        """Nobody who is slow holds memory for long."""
        if self._storing is not None and not self._storing.done():
            self._timer = asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self._store_early)
            return
        if self._storing is None or self._storing.exception() is None:  # else who adds the next one is told
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


class WholeFiles:
    """Takes files that come whole."""

    def __init__(self, storing: Storing, at_once: ChunksAtOnce) -> None:
        self._storing = storing
        self._at_once = at_once
        # Of one file.
        self.max_bytes = storing.max_bytes

    async def receive(self, new: NewFile, source: WholeSource, claims: ClaimedDigests) -> Complete:
        """Take one file.

        Raises FileTooLarge, QuotaExceeded, NameTaken, StorageFull, TooManyRequests, BodyTimeout, ChunkLengthMismatch,
        DigestMismatch, Md5Mismatch, Sha256Mismatch, Unavailable.
        """
        declared = source.declared_bytes
        if declared is not None:
            await self._storing.refuse_early(new, declared)
        with self._at_once.counted(new.user_id):
            body = await source.receive_up_to(new.user_id, self._storing.max_bytes)
            try:
                await check_digests(body, claims)
                if declared is None:
                    await self._storing.refuse_early(new, body.length)
                (outcome,) = await uninterrupted(self._storing.store([new], [body]))
            finally:
                body.close()
        if isinstance(outcome, UploaderError):
            raise outcome
        return outcome

    async def receive_many(self, user_id: str, entries: AsyncIterator[Entry]) -> AsyncGenerator[Outcome, None]:
        """Take many files of one user; what became of each, in their order, as soon as it is known. It takes their bodies
        over. To be closed (`aclosing`), if not read to its end.

        What was received is stored also where `entries` breaks off. Raises what that raises, TooManyRequests, Unavailable.
        """
        with self._at_once.counted(user_id):
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
        if await self._storing.has_room(group.files[0].user_id, group.bytes):
            return await self._storing.store(group.files, group.bodies)
        return [await self._store_refusable(new, body) for new, body in zip(group.files, group.bodies, strict=True)]

    async def _store_refusable(self, new: NewFile, body: Body) -> Outcome:
        """One of a group that has no room as a whole."""
        try:
            await self._storing.refuse_early(new, body.length)
        except (NameTaken, QuotaExceeded, StorageFull) as error:
            return error
        (outcome,) = await self._storing.store([new], [body])
        return outcome
