"""The use cases of files that come whole, one in a request, or many: of those, groups share their syncs and a transaction,
while the next group arrives.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from uploader.domain.digest import ClaimedDigests
from uploader.errors import NameTaken, QuotaExceeded, StorageFull, UploaderError
from uploader.service.uploads.receiving import ChunksAtOnce, check_digests
from uploader.service.uploads.results import Complete, NewFile
from uploader.service.uploads.storing import Outcome, Storing
from uploader.storage.base import Body
from uploader.tasks import uninterrupted

# Of one group. So many bytes that a sync of them takes longer than all else.
_GROUP_FILES = 200
_GROUP_BYTES = 8 << 20

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

    async def receive_many(self, user_id: str, entries: AsyncIterator[Entry]) -> list[Outcome]:
        """Take many files of one user; what became of each, in their order. It takes their bodies over.

        What was received is stored also where `entries` breaks off. Raises what that raises, TooManyRequests, Unavailable.
        """
        outcomes: list[Outcome | None] = []
        storing: asyncio.Task[None] | None = None
        group = _Group()
        with self._at_once.counted(user_id):
            try:
                async for entry in entries:
                    outcomes.append(entry if isinstance(entry, UploaderError) else None)
                    if isinstance(entry, UploaderError):
                        continue
                    full = None if group.takes(*entry) else group
                    group = group if full is None else _Group()
                    group.add(len(outcomes) - 1, *entry)
                    if full is not None:
                        storing = await self._store_next(storing, full, outcomes)
            finally:
                await uninterrupted(self._store_last(storing, group, outcomes))
        return [outcome for outcome in outcomes if outcome is not None]

    async def _store_next(
        self, storing: "asyncio.Task[None] | None", group: _Group, outcomes: list[Outcome | None]
    ) -> "asyncio.Task[None]":
        """Store a group, once the one before it is stored, while the next one arrives."""
        try:
            if storing is not None:
                await uninterrupted(storing)
        except BaseException:
            group.close()
            raise
        return asyncio.create_task(self._store_group(group, outcomes), name="store a group of files")

    async def _store_last(
        self, storing: "asyncio.Task[None] | None", group: _Group, outcomes: list[Outcome | None]
    ) -> None:
        try:
            if storing is not None:
                await storing
        finally:
            await self._store_group(group, outcomes)

    async def _store_group(self, group: _Group, outcomes: list[Outcome | None]) -> None:
        try:
            if not group.files:
                return
            if await self._storing.has_room(group.files[0].user_id, group.bytes):
                stored = await self._storing.store(group.files, group.bodies)
            else:
                stored = [
                    await self._store_refusable(new, body) for new, body in zip(group.files, group.bodies, strict=True)
                ]
            for place, outcome in zip(group.places, stored, strict=True):
                outcomes[place] = outcome
        finally:
            group.close()

    async def _store_refusable(self, new: NewFile, body: Body) -> Outcome:
        """One of a group that has no room as a whole."""
        try:
            await self._storing.refuse_early(new, body.length)
        except (NameTaken, QuotaExceeded, StorageFull) as error:
            return error
        (outcome,) = await self._storing.store([new], [body])
        return outcome
