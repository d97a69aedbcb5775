"""The use cases of concatenations: order, report the state, cancel, advance.

Until all parts are complete, a whole is only an order in the database. Then its parts are joined, and the whole is an
upload. The request that completes the last part advances the whole, or a client that asks; if both died, a job does.
"""

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from datetime import timedelta

from uploader import errors
from uploader.database import queries, transactions
from uploader.database.engine import Database, Duplicate
from uploader.database.transactions.rows import NotOpen
from uploader.domain.creations import UPLOAD
from uploader.domain.links import Caller
from uploader.domain.upload import Concatenation, NewConcatenation, Reason, State, Upload, UploadKind, chunk_length
from uploader.runtime.clock import Clock
from uploader.runtime.crashpoints import crash_point
from uploader.runtime.meter import Kind, charged_apart, go_on
from uploader.runtime.observability import level_of
from uploader.runtime.tasks import ended, uninterrupted
from uploader.service.chunk import COUNTED, Receiving
from uploader.service.close import Closers
from uploader.service.ids import greatest
from uploader.service.links import Visitors
from uploader.service.merge import Merging
from uploader.service.open import Admission, chunk_sizes_of
from uploader.service.precreate import PreCreateHook
from uploader.service.results import Complete, StillMerging, Target, check_sent_name
from uploader.service.status import ATTEMPTS, PAUSE_SECONDS, Uploads
from uploader.settings import Settings
from uploader.storage.base import Busy, Gone, PartDamaged, Stopping, UploadBytes

logger = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Joining:
    """Joins complete parts into one upload, under the locks of all parts and in one transaction. Before the
    transaction, the directory of the whole already has the bytes; a failed attempt leaves them for the next one to
    replace. After the transaction the parts are closed, and the whole waits to be filled."""

    settings: Settings
    database: Database
    storage: UploadBytes
    closers: Closers
    admission: Admission
    clock: Clock

    def __post_init__(self) -> None:
        self._chunk_sizes = chunk_sizes_of(self.settings)

    async def join(self, ordered: Concatenation, parts: dict[str, Upload]) -> bool:
        """Return False if a part is not complete. Raises Gone, NotOpen, QuotaExceeded, StorageFull, Unavailable."""
        for part in parts.values():
            if not part.length_known or not (await self.closers.read_map(part)).complete:
                return False
        whole = self._whole_of(ordered, parts)
        # The chunks of the whole are written while the parts still exist, until the merge.
        await self.admission.check(whole.size)
        try:
            return await uninterrupted(self._join(ordered, whole, parts))
        except Duplicate:  # another process has joined them
            return True

    def _whole_of(self, ordered: Concatenation, parts: dict[str, Upload]) -> Upload:
        now = self.clock.now()
        size = sum(parts[part_id].size for part_id in ordered.part_ids)
        return Upload(
            id=ordered.id,
            user_id=ordered.user_id,
            session=ordered.session,
            name=ordered.name,
            size=size,
            chunk_size=self._chunk_sizes.choose(None, size),
            # By the time of the order: each attempt has to find the remains of the attempt before.
            place=self.storage.place_of(ordered.id, ordered.created_at),
            created_at=now,
            updated_at=now,
            metadata=ordered.metadata,
            kind=UploadKind.WHOLE,
            computes_md5=False,
        )

    async def _join(self, ordered: Concatenation, whole: Upload, parts: dict[str, Upload]) -> bool:
        in_order = [parts[part_id] for part_id in ordered.part_ids]
        make_room = self.database.outside(lambda: self.storage.create(whole, in_order))
        async with AsyncExitStack() as stack:
            # In the order of their ids, as everywhere, to avoid deadlocks.
            held = [
                (part, await stack.enter_async_context(self.storage.closing(part))) for _, part in sorted(parts.items())
            ]
            for part, closer in held:
                if not (await closer.read_map()).complete:
                    return False
                await self.closers.announce(part)
            expires_at = whole.created_at + timedelta(seconds=self.settings.upload_expiry_seconds)
            await self.database.transact(transactions.uploads.join_concatenation, whole, expires_at, make_room)
            crash_point("join.after_commit")
            self.admission.promise(whole.size)
            for part, closer in held:
                await self.closers.clear(part, State.CONSUMED, closer)
        logger.info("parts joined", extra={"upload_id": whole.id, "user_id": whole.user_id, "parts": len(in_order)})
        return True


# Filling copies bytes: more fillings at once only slow each other down.
_AT_ONCE = 2


@dataclass(eq=False, repr=False)
class Filling:
    """Fills concatenations with the bytes of their parts, as ordinary chunks, and starts their merge. May be
    interrupted and resumed anywhere: chunks on the map are skipped, and the store lets only one process fill."""

    database: Database
    storage: UploadBytes
    closers: Closers
    receiving: Receiving
    merging: Merging
    _running: dict[str, asyncio.Task[errors.UploaderError | None]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._turns = asyncio.Semaphore(_AT_ONCE)

    def start(self, upload_id: str) -> "asyncio.Task[errors.UploaderError | None]":
        """Begin to fill and merge a whole, or return the task that does so already. The task returns the error, if any."""
        task = self._running.get(upload_id)
        if task is None:
            task = self._running[upload_id] = asyncio.create_task(self._run(upload_id), name=f"fill {upload_id}")
            task.add_done_callback(lambda _: self._running.pop(upload_id, None))
        return task

    async def close(self) -> None:
        for task in list(self._running.values()):
            await ended(task)

    async def wait(self, upload_id: str, seconds: float) -> bool:
        """Fill as `start` does. Return whether this ended in time. Raises StorageFull."""
        filling = self.start(upload_id)
        await asyncio.wait({filling}, timeout=seconds)
        is_done = filling.done() and not filling.cancelled()
        if is_done and isinstance(error := filling.result(), errors.StorageFull):
            raise errors.StorageFull() from error
        return is_done

    async def _run(self, upload_id: str) -> errors.UploaderError | None:
        """Fill and merge a whole. Errors are logged, and the job returns to the whole."""
        try:
            with charged_apart():
                async with self._turns:
                    complete = await self._fill(upload_id)
        except (Busy, Gone, NotOpen, Stopping):
            return None
        except errors.UploaderError as error:
            logger.log(
                level_of(error), "a whole is not filled for now", extra={"upload_id": upload_id, "reason": error.reason}
            )
            return error
        except Exception:
            logger.exception("a whole is not filled", extra={"upload_id": upload_id})
            return None
        if complete:
            with suppress(Stopping):
                try:
                    await asyncio.shield(self.merging.start(upload_id))
                except errors.UploaderError as error:
                    return error
        return None

    async def _fill(self, upload_id: str) -> bool:
        """Return whether this call completed the whole. Raises Busy, Gone, NotOpen, Stopping, StorageFull, Unavailable."""
        upload = await self.database.read(queries.upload_by_id, upload_id, brief=True)
        if upload is None or upload.state is not State.OPEN:
            return False
        present = (await self.closers.read_map(upload)).present
        missing = [number for number, there in enumerate(present) if not there]
        if missing:
            try:
                await self._copy(upload, missing)
            except PartDamaged as error:
                logger.error("a part of a whole is damaged", extra={"upload_id": upload.id, "reason": str(error)})
                await self.closers.close(upload, Reason.PART_DAMAGED)
                return False
        return bool(missing) or not upload.size

    async def _copy(self, upload: Upload, numbers: list[int]) -> None:
        async with self.storage.filling(upload) as read:
            for number in numbers:
                await go_on(Kind.MADE, chunk_length(number, upload.size, upload.chunk_size))
                body = await read(number)
                stored = await uninterrupted(self.receiving.hold_and_record(upload, number, body))
                if stored.result.outcome not in COUNTED:
                    raise NotOpen(upload.id)
                if self.database.is_lost:
                    raise errors.Unavailable("The database is lost.")
                await self.storage.keep_pace(upload, number)


_BATCH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeStatus:
    ordered: str
    metadata: str | None
    # None while a part has no length.
    size: int | None
    finished: bool


@dataclass(eq=False, repr=False)
class Concatenations:
    settings: Settings
    database: Database
    uploads: Uploads
    joining: Joining
    filling: Filling
    pre_create_hook: PreCreateHook
    visitors: Visitors
    clock: Clock
    _: KW_ONLY
    max_file_size_bytes: int

    # Ordering

    async def order(self, new: NewConcatenation) -> str:
        """Order a whole of these parts. Return the id of the whole; the same parts in the same order give the same id.
        If the parts are complete, wait for the file as long as for a merge. Raises InvalidRequest for an upload that is
        no part, UploadNotFound, UploadGone, FileTooLarge, QuotaExceeded, TooManyUploads, NotAllowed, StorageFull,
        Unavailable."""
        for _ in range(ATTEMPTS):
            known = await self._known(new)
            if known is not None:  # raises if the whole ended without a file
                await self._size_of(Target(known.caller, upload_id=known.id), known)
                await self._advance_and_wait(known)
                return known.id
            try:
                ordered = await self._order_once(new)
            except (Duplicate, NotOpen, errors.UploadGone):
                if await self._known(new) is None:
                    await self._check_parts(new.caller, new.part_ids)
                await asyncio.sleep(PAUSE_SECONDS)  # another request was faster: its outcome is the answer
                continue
            try:
                await self._advance_and_wait(ordered)
            except errors.Refused:
                await self._drop(ordered.id)
                raise
            return ordered.id
        raise errors.Unavailable("These parts are changing too fast; try again.")

    async def _known(self, new: NewConcatenation) -> Concatenation | None:
        return await self.database.read(queries.concatenation_by_parts, new.caller, new.parts_sha256, brief=True)

    async def _order_once(self, new: NewConcatenation) -> Concatenation:
        size = await self._check_parts(new.caller, new.part_ids)
        self._check_size(size or 0)
        check_sent_name(new.caller, new.name)
        await self.visitors.refuse_early(new.caller, new.name, 0)
        allowed = await self.visitors.ask(self.pre_create_hook, UPLOAD, new.caller, new.name, size)
        told = {"name": allowed.name, "metadata": new.metadata if allowed.metadata is None else allowed.metadata}
        ordered = Concatenation(**asdict(new) | told, created_at=self.clock.now())
        await self.database.transact(transactions.uploads.order_concatenation, ordered, self.settings.max_open_uploads)
        crash_point("order.after_commit")
        return ordered

    async def _advance_and_wait(self, ordered: Concatenation) -> None:
        if await self._advance(ordered):
            await self.filling.wait(ordered.id, self.settings.merge_wait_seconds)

    async def merge(self, target: Target) -> StillMerging | Complete:
        """Merge as `Uploads.merge` does; fill a whole before. Raises StorageFull, too."""
        found = await self.uploads.find(target)
        if not isinstance(found, Upload) or not found.is_whole:
            return await self.uploads.merge(target)
        if await self.filling.wait(found.id, self.settings.merge_wait_seconds):
            with suppress(errors.ChunksMissing):  # no client can send these chunks
                return await self.uploads.merge(target)
        match await self.uploads.status(target):
            case Complete() as complete:
                return complete
            case status:
                return StillMerging(replace(status, merging=True))

    # Asking, taking back

    async def is_whole(self, target: Target) -> bool:
        """Return whether an upload is a whole, finished or not. A whole takes no appends."""
        return await self.database.read(queries.is_concatenation, target.caller, target.upload_id or "", brief=True)

    async def status(self, target: Target) -> WholeStatus:
        """Raises UploadNotFound, UploadGone."""
        ordered = await self._own(target)
        size, finished = await self._size_of(target, ordered)
        return WholeStatus(ordered=ordered.ordered, metadata=ordered.metadata, size=size, finished=finished)

    async def _size_of(self, target: Target, ordered: Concatenation) -> tuple[int | None, bool]:
        if await self._upload(ordered.id) is None:
            try:
                return await self._check_parts(target.caller, ordered.part_ids), False
            except errors.UploadGone:
                if await self._upload(ordered.id) is None:  # otherwise the parts were joined meanwhile
                    raise
        match await self.uploads.find(target):
            case Complete(file=file):
                return file.size, True
            case upload:
                return upload.size, False

    async def cancel(self, target: Target) -> None:
        """Cancel an unfinished whole, or forget a finished one. The parts of a waiting whole stay. Raises
        UploadNotFound, UploadGone, Unavailable."""
        ordered = await self._own(target)
        if await self._drop(ordered.id):
            return
        match await self.uploads.find(target):
            case Complete():
                await self.uploads.forget(target)
            case _:
                await self.uploads.cancel(target)

    async def _own(self, target: Target) -> Concatenation:
        concatenation_id = target.upload_id or ""
        ordered = await self.database.read(queries.concatenation_by_id, concatenation_id, brief=True)
        if ordered is None or ordered.caller != target.caller:
            raise errors.UploadNotFound()
        return ordered

    async def _drop(self, concatenation_id: str) -> bool:
        return await self.database.transact(transactions.uploads.drop_waiting, concatenation_id)

    # Bringing further

    async def part_completed(self, part: Upload) -> None:
        """Advance each whole that was waiting for this complete part. Never fails."""
        try:
            ids = await self.database.read(queries.concatenations_waiting_for, part.id, brief=True)
            for concatenation_id in ids:
                await self._advance_by_id(concatenation_id)
        except errors.UploaderError as error:
            logger.log(
                level_of(error), "a whole waits for the job", extra={"upload_id": part.id, "reason": error.reason}
            )

    async def advance_due(self) -> bool:
        """Advance every whole; a failure holds up no other. Return whether there is any. Raises Unavailable."""
        if not await self.database.read(queries.has_concatenations, brief=True):
            return False
        after = ""
        while ids := await self.database.read(queries.due_concatenations, after, _BATCH):
            for concatenation_id in ids:
                try:
                    await self._advance_by_id(concatenation_id)
                except errors.UploaderError as error:
                    extra = {"upload_id": concatenation_id, "reason": error.reason}
                    logger.log(level_of(error), "a whole is not made for now", extra=extra)
            after = greatest(after, ids)
        return True

    async def _advance_by_id(self, concatenation_id: str) -> None:
        ordered = await self.database.read(queries.concatenation_by_id, concatenation_id)
        if ordered is not None:
            await self._advance(ordered)

    async def _advance(self, ordered: Concatenation) -> bool:
        """Take a whole's next step. Return whether it is being filled. Raises QuotaExceeded, StorageFull, Unavailable."""
        upload = await self._upload(ordered.id)
        if upload is None and not await self._join(ordered):
            return False
        if upload is not None and upload.state is not State.OPEN:
            await self.database.transact(transactions.uploads.settle_concatenation, ordered.id)
            return False
        self.filling.start(ordered.id)
        return True

    async def _join(self, ordered: Concatenation) -> bool:
        parts = await self._parts_of(ordered.part_ids)
        if any(part_id not in parts or parts[part_id].state is not State.OPEN for part_id in ordered.part_ids):
            await self._drop(ordered.id)  # the whole can never be made, unless another process has just made it
            return await self._upload(ordered.id) is not None
        if all(part.length_known for part in parts.values()):
            self._check_size(sum(parts[part_id].size for part_id in ordered.part_ids))
        try:
            return await self.joining.join(ordered, parts)
        except (Gone, NotOpen):
            return False  # a part has ended: the next look finds out how

    async def _upload(self, upload_id: str) -> Upload | None:
        return await self.database.read(queries.upload_by_id, upload_id, brief=True)

    async def _parts_of(self, part_ids: tuple[str, ...]) -> dict[str, Upload]:
        ids = sorted(set(part_ids))
        return await self.database.read(queries.uploads_by_id, ids)

    async def _check_parts(self, caller: Caller, part_ids: tuple[str, ...]) -> int | None:
        """Return the size of all parts; None while one has no length. Raises UploadNotFound, UploadGone, InvalidRequest."""
        parts = await self._parts_of(part_ids)
        for part_id in part_ids:
            part = parts.get(part_id)
            if part is None or part.caller != caller:
                raise errors.UploadNotFound("You have no such part.")
            if not part.is_part:
                raise errors.InvalidRequest.field("Upload-Concat", "names an upload that is no part")
            if part.state is not State.OPEN:
                raise errors.UploadGone("A part has ended; `reason` says why.", reason=part.close_reason)
        if not all(part.length_known for part in parts.values()):
            return None
        return sum(parts[part_id].size for part_id in part_ids)

    def _check_size(self, size: int) -> None:
        """Raises FileTooLarge."""
        if size > self.max_file_size_bytes:
            raise errors.FileTooLarge(limit=self.max_file_size_bytes)
