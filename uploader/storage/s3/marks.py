"""Of which installation a store on S3 is: the object `marks/installation`; and `marks/proposed/<id>` during a first start.

S3 has no first one: of two that write at one time the later one counts. So each first start proposes under a key of its own,
the database decides which of them it is, and that one is found among the proposals, whatever came after it.
"""

import json
import re
from collections.abc import Callable
from typing import TypeVar

from uploader.crashpoints import crash_point
from uploader.errors import ConfigurationError, StorageFailed
from uploader.storage.base import Gone, Marks, StoreName
from uploader.storage.s3.bucket import Bucket
from uploader.storage.s3.streams import BytesBody
from uploader.tasks import Pool

T = TypeVar("T")

# The version of everything in the bucket.
FORMAT = 1
MARK, PROPOSALS = "marks/installation", "marks/proposed/"

_ID = re.compile(r"[0-9a-f]{32}")
_MAX_BYTES = 4096


class S3Marks:
    """As `storage/base.py` has it."""

    def __init__(self, bucket: Bucket, pool: Pool) -> None:
        self._bucket = bucket
        self._pool = pool
        self.store = StoreName(f"bucket {bucket.url}", "UPLOADER_STORAGE", "is it the right one?")

    async def read(self) -> Marks:
        return await self._run(self._read)

    async def propose(self, installation: str) -> str:
        return await self._run(self._propose, installation)

    async def settle(self, installation: str) -> None:
        await self._run(self._settle, installation)

    async def replace(self, installation: str) -> None:
        await self._run(self._write, MARK, installation)
        await self._run(self._forget_proposals)

    async def _run(self, work: Callable[..., T], *arguments: object) -> T:
        """Raises ConfigurationError: without the store nothing starts."""
        try:
            return await self._pool.run(work, *arguments)
        except StorageFailed as error:
            raise ConfigurationError(f"UPLOADER_STORAGE: {error.inside or error.reason}") from error

    # In threads

    def _read(self) -> Marks:
        # In this order: a proposal goes once the mark is there, so one of the two is always seen.
        proposed = frozenset(key.removeprefix(PROPOSALS) for key in self._proposals())
        return Marks(self._find(MARK), frozenset(filter(_ID.fullmatch, proposed)))

    def _proposals(self) -> list[str]:
        return [stat.key for batch in self._bucket.list_keys(PROPOSALS) for stat in batch]

    def _find(self, key: str) -> str | None:
        stat = self._bucket.head(key)
        if stat is None:
            return None
        try:
            return _parse(key, self._bucket.get(key, 0, min(stat.size, _MAX_BYTES)))
        except Gone:
            return None

    def _propose(self, installation: str) -> str:
        marks = self._read()
        if marks.installation is None and not marks.proposed:
            self._write(f"{PROPOSALS}{installation}", installation)
            crash_point("mark.after_proposal")
            marks = self._read()
        return marks.installation or min(marks.proposed, default=installation)

    def _settle(self, installation: str) -> None:
        marks = self._read()
        if marks.installation is None:
            self._write(MARK, installation)
            crash_point("mark.after_mark")
        if marks.installation is None or marks.proposed:
            self._forget_proposals()

    def _forget_proposals(self) -> None:
        proposals = self._proposals()
        if proposals:
            self._bucket.delete(proposals)

    def _write(self, key: str, installation: str) -> None:
        self._bucket.put(key, BytesBody(json.dumps({"format": FORMAT, "id": installation}).encode()))


def _parse(key: str, content: bytes) -> str:
    try:
        facts = json.loads(content)
        version, installation = int(facts["format"]), str(facts["id"])
    except (ValueError, TypeError, KeyError):
        version, installation = FORMAT, ""
    if version > FORMAT:
        raise ConfigurationError(
            f"UPLOADER_STORAGE: it was written in format {version}, newer than this version's {FORMAT}: install a newer one"
        )
    if not _ID.fullmatch(installation):
        raise ConfigurationError(
            f"UPLOADER_STORAGE: the object {key} in it is damaged: remove it and run `uploader adopt`"
        )
    return installation
