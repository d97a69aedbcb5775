"""Uploads whose length nobody has told yet: room is reserved for them step by step, before their bytes are stored; and what
was reserved beyond is given back when the length is told.
"""

from functools import partial

from uploader.clock import Clock
from uploader.crashpoints import crash_point
from uploader.database import queries, transactions
from uploader.database.engine import Database
from uploader.database.transactions import LengthTold
from uploader.domain.chunks import MAX_CHUNK_COUNT
from uploader.domain.upload import Upload
from uploader.errors import FileTooLarge, QuotaExceeded, StorageFull
from uploader.observability import QUOTA_REFUSALS
from uploader.service.uploads.admission import Admission
from uploader.service.uploads.closers import Closers
from uploader.tasks import uninterrupted

# The first step. Each is by so much longer than what is reserved already, up to the longest: ten gigabytes take fourteen.
FIRST_STEP_BYTES = 64 << 20
LONGEST_STEP_BYTES = 1 << 30


class Growing:
    """Reserves for uploads whose length is not known."""

    def __init__(
        self, database: Database, closers: Closers, admission: Admission, clock: Clock, *, max_file_size_bytes: int
    ) -> None:
        self._database = database
        self._closers = closers
        self._admission = admission
        self._clock = clock
        self._max_file_size_bytes = max_file_size_bytes

    def limit_bytes(self, upload: Upload) -> int:
        """How long an upload may become."""
        if upload.length_known:
            return upload.size
        return min(self._max_file_size_bytes, MAX_CHUNK_COUNT * upload.chunk_size)

    async def refuse_early(self, upload: Upload, end: int) -> None:
        """Refuse what is sure to be refused before it is read. Raises QuotaExceeded."""
        usage = await self._database.read(lambda connection: queries.usage(connection, upload.user_id), brief=True)
        if usage is not None and not usage.fits(end - upload.size):
            QUOTA_REFUSALS.inc()
            raise usage.refusal(end - upload.size)

    async def grow(self, upload: Upload, end: int) -> Upload:
        """The upload with room for so many bytes. Raises LengthTold, NotOpen, QuotaExceeded, StorageFull."""
        if end <= upload.size:
            return upload
        if upload.length_known:
            raise LengthTold(upload.id)
        return await uninterrupted(self._grow(upload, end))

    async def _grow(self, upload: Upload, end: int) -> Upload:
        step = await self._admitted(min(upload.size + FIRST_STEP_BYTES, LONGEST_STEP_BYTES), end - upload.size)
        limit, now = self.limit_bytes(upload), self._clock.now()
        try:
            grown = await self._database.transact(
                partial(transactions.grow, upload_id=upload.id, end=end, step=step, limit=limit, now=now)
            )
        except QuotaExceeded:
            QUOTA_REFUSALS.inc()
            raise
        crash_point("grow.after_commit")
        self._admission.promise(grown.size - upload.size)
        return grown

    async def _admitted(self, step: int, wanted: int) -> int:
        """A step that the disk has room for. Raises StorageFull if it has none for what is wanted."""
        if step > wanted:
            try:
                await self._admission.check(step)
            except StorageFull:
                step = wanted
        if step <= wanted:
            await self._admission.check(wanted)
        return step

    async def tell(self, upload: Upload, length: int) -> Upload:
        """Let an upload have the length that is told. Raises FileTooLarge, SizeMismatch, QuotaExceeded, StorageFull, Gone,
        NotOpen, Unavailable."""
        limit = self.limit_bytes(upload)
        if length > limit:
            raise FileTooLarge(limit=limit)
        if length > upload.size:
            await self._admission.check(length - upload.size)

        async def commit(stored: int) -> Upload:
            now = self._clock.now()
            return await self._database.transact(
                lambda connection: transactions.tell_length(connection, upload.id, length, stored, now)
            )

        try:
            told = await self._closers.tell_length(upload, commit)
        except QuotaExceeded:
            QUOTA_REFUSALS.inc()
            raise
        self._admission.promise(told.size - upload.size)
        return told
