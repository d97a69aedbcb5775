"""The use cases of wholes that are made of parts: order one, say where it stands, take the order back, bring it further.

Until all of its parts are complete a whole is an order in the database, and nothing else; then it is joined, and from there
on it is an upload. Whoever completes the last part brings it further, or whoever asks; and a job where both have died.
"""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial

from uploader.clock import Clock
from uploader.crashpoints import crash_point
from uploader.database import concatenations, queries, transactions
from uploader.database.engine import Database, Duplicate
from uploader.database.transactions import NotOpen
from uploader.domain.concatenation import Concatenation, sha256_of_parts
from uploader.domain.upload import State, Upload
from uploader.errors import (
    FileTooLarge,
    InvalidRequest,
    Refused,
    Unavailable,
    UploaderError,
    UploadGone,
    UploadNotFound,
)
from uploader.service.concatenation.filling import Filling
from uploader.service.concatenation.joining import Joining
from uploader.service.events.asking import Asking, Question
from uploader.service.ids import greatest
from uploader.service.uploads.results import Complete, Target
from uploader.service.uploads.status import ATTEMPTS, PAUSE_SECONDS, Uploads
from uploader.settings import Settings
from uploader.storage.base import Gone

logger = logging.getLogger(__name__)

_BATCH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWhole:
    """An order: which parts of the caller's, by their ids, and what is said of the file that they become."""

    id: str
    user_id: str
    name: str
    metadata: str | None
    ordered: str
    part_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeStatus:
    """Where a whole stands."""

    ordered: str
    metadata: str | None
    # None while a part has no length.
    size: int | None
    finished: bool


class Concatenations:
    """All that can be done to wholes, beside what can be done to every upload."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        uploads: Uploads,
        joining: Joining,
        filling: Filling,
        asking: Asking,
        clock: Clock,
        *,
        max_file_size_bytes: int,
    ) -> None:
        self._max_waiting = settings.max_open_uploads
        self._wait_seconds = settings.merge_wait_seconds
        self._max_file_size_bytes = max_file_size_bytes
        self._database = database
        self._uploads = uploads
        self._joining = joining
        self._filling = filling
        self._asking = asking
        self._clock = clock

    # Ordering

    async def order(self, new: NewWhole) -> str:
        """Make a whole of parts, at once if they are complete, else as soon as they are; its id. Whoever orders the same
        parts once more gets the same whole. It is waited for as long as for a merge.

        Raises InvalidRequest for what is no part, UploadNotFound, UploadGone, FileTooLarge, QuotaExceeded, TooManyUploads,
        NotAllowed, StorageFull, Unavailable.
        """
        for _ in range(ATTEMPTS):
            known = await self._known(new)
            if known is not None:
                await self._advance_known(known)
                return known.id
            try:
                ordered = await self._order_once(new)
            except (Duplicate, NotOpen, UploadGone):
                if await self._known(new) is None:
                    await self._check_parts(new.user_id, new.part_ids)
                await asyncio.sleep(PAUSE_SECONDS)  # somebody else was faster: what they did is the answer now
                continue
            try:
                await self._advance_and_wait(ordered)
            except Refused:
                await self._drop(ordered.id)
                raise
            return ordered.id
        raise Unavailable("These parts are changing too fast; try again.")

    async def _known(self, new: NewWhole) -> Concatenation | None:
        key = sha256_of_parts(new.part_ids)
        return await self._database.read(
            lambda connection: concatenations.by_parts(connection, new.user_id, key), brief=True
        )

    async def _order_once(self, new: NewWhole) -> Concatenation:
        size = await self._check_parts(new.user_id, new.part_ids)
        self._check_size(size or 0)
        await self._asking.ask(Question(new.user_id, new.name, size, md5=None, sha256=None))
        ordered = Concatenation(
            id=new.id,
            user_id=new.user_id,
            name=new.name,
            metadata=new.metadata,
            ordered=new.ordered,
            part_ids=new.part_ids,
            created_at=self._clock.now(),
        )
        await self._database.transact(
            lambda connection: transactions.order_concatenation(connection, ordered, max_waiting=self._max_waiting)
        )
        crash_point("order.after_commit")
        return ordered

    async def _advance_known(self, known: Concatenation) -> None:
        """Raises what became of it, if that is no file."""
        await self._size_of(Target(known.user_id, upload_id=known.id), known)
        await self._advance_and_wait(known)

    async def _advance_and_wait(self, ordered: Concatenation) -> None:
        filling = await self._advance(ordered)
        if filling is not None:
            await asyncio.wait({filling}, timeout=self._wait_seconds)

    # Asking, taking back

    async def is_whole(self, target: Target) -> bool:
        """Whether this is a whole, finished or not: nobody appends to it."""
        return await self._database.read(
            lambda connection: concatenations.is_whole(connection, target.user_id, target.upload_id or ""), brief=True
        )

    async def status(self, target: Target) -> WholeStatus:
        """Raises UploadNotFound, UploadGone."""
        ordered = await self._own(target)
        size, finished = await self._size_of(target, ordered)
        return WholeStatus(ordered=ordered.ordered, metadata=ordered.metadata, size=size, finished=finished)

    async def _size_of(self, target: Target, ordered: Concatenation) -> tuple[int | None, bool]:
        """And whether it is a file."""
        if await self._upload(ordered.id) is None:
            try:
                return await self._check_parts(target.user_id, ordered.part_ids), False
            except UploadGone:
                if await self._upload(ordered.id) is None:  # else they were joined at this moment
                    raise
        match await self._uploads.find(target):
            case Complete(file=file):
                return file.size, True
            case upload:
                return upload.size, False

    async def cancel(self, target: Target) -> None:
        """End a whole without a file, or forget it, as every upload; of one that waits the parts stay. Raises
        UploadNotFound, UploadGone, Unavailable."""
        ordered = await self._own(target)
        if await self._drop(ordered.id):
            return
        match await self._uploads.find(target):
            case Complete():
                await self._uploads.forget(target)
            case _:
                await self._uploads.cancel(target)

    async def _own(self, target: Target) -> Concatenation:
        concatenation_id = target.upload_id or ""
        ordered = await self._database.read(
            lambda connection: concatenations.by_id(connection, concatenation_id), brief=True
        )
        if ordered is None or ordered.user_id != target.user_id:
            raise UploadNotFound()
        return ordered

    async def _drop(self, concatenation_id: str) -> bool:
        return await self._database.transact(lambda connection: transactions.drop_waiting(connection, concatenation_id))

    # Bringing further

    async def part_completed(self, part: Upload) -> None:
        """The last byte of a part is there: if its whole waits for nothing else, it is joined. Never fails."""
        try:
            ids = await self._database.read(partial(concatenations.waiting_for, part_id=part.id), brief=True)
            for concatenation_id in ids:
                await self._advance_by_id(concatenation_id)
        except UploaderError as error:
            logger.warning("a whole waits for the job", extra={"upload_id": part.id, "reason": error.reason})

    async def advance_due(self) -> None:
        """Bring everything further that something is to be done for. One that can't be holds up no other. Raises
        Unavailable."""
        after = ""
        while ids := await self._database.read(partial(concatenations.due, after=after, limit=_BATCH)):
            for concatenation_id in ids:
                try:
                    await self._advance_by_id(concatenation_id)
                except UploaderError as error:
                    extra = {"upload_id": concatenation_id, "reason": error.reason}
                    logger.warning("a whole is not made for now", extra=extra)
            after = greatest(after, ids)

    async def _advance_by_id(self, concatenation_id: str) -> None:
        ordered = await self._database.read(partial(concatenations.by_id, concatenation_id=concatenation_id))
        if ordered is not None:
            await self._advance(ordered)

    async def _advance(self, ordered: Concatenation) -> "asyncio.Task[None] | None":
        """Do what is next for it; who fills it, if it has been joined. Raises QuotaExceeded, StorageFull, Unavailable."""
        upload = await self._upload(ordered.id)
        if upload is None and not await self._join(ordered):
            return None
        if upload is not None and upload.state is not State.OPEN:
            await self._database.transact(lambda connection: transactions.settle_concatenation(connection, ordered.id))
            return None
        return self._filling.start(ordered.id)

    async def _join(self, ordered: Concatenation) -> bool:
        parts = await self._parts_of(ordered.part_ids)
        if any(part_id not in parts or parts[part_id].state is not State.OPEN for part_id in ordered.part_ids):
            await self._drop(ordered.id)  # it can never be made, unless somebody has just made it
            return await self._upload(ordered.id) is not None
        if all(part.length_known for part in parts.values()):
            self._check_size(sum(parts[part_id].size for part_id in ordered.part_ids))
        try:
            return await self._joining.join(ordered, parts)
        except (Gone, NotOpen):
            return False  # a part has ended meanwhile: the next look tells how

    async def _upload(self, upload_id: str) -> Upload | None:
        return await self._database.read(partial(queries.upload_by_id, upload_id=upload_id), brief=True)

    async def _parts_of(self, part_ids: tuple[str, ...]) -> dict[str, Upload]:
        ids = sorted(set(part_ids))
        return await self._database.read(partial(queries.uploads_by_id, upload_ids=ids))

    async def _check_parts(self, user_id: str, part_ids: tuple[str, ...]) -> int | None:
        """Their bytes; None while one has no length. Raises UploadNotFound, UploadGone, InvalidRequest."""
        parts = await self._parts_of(part_ids)
        for part_id in part_ids:
            _check_part(parts.get(part_id), user_id)
        if not all(part.length_known for part in parts.values()):
            return None
        return sum(parts[part_id].size for part_id in part_ids)

    def _check_size(self, size: int) -> None:
        """Raises FileTooLarge."""
        if size > self._max_file_size_bytes:
            raise FileTooLarge(limit=self._max_file_size_bytes)

    async def close(self) -> None:
        await self._filling.close()


def _check_part(part: Upload | None, user_id: str) -> None:
    """Raises UploadNotFound, UploadGone, InvalidRequest."""
    if part is None or part.user_id != user_id:
        raise UploadNotFound("You have no such part.")
    if not part.is_part:
        raise InvalidRequest.field("Upload-Concat", "names an upload that is no part")
    if part.state is not State.OPEN:
        raise UploadGone("A part has ended; `reason` says why.", reason=part.close_reason)
