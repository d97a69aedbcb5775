"""Of which installation a store on S3 is: the object `marks/installation`; and `marks/proposed/<id>` during a first start.

S3 has no first one: of two that write at one time the later one counts. So each first start proposes under a key of its own,
the database decides which of them it is, and that one is found among the proposals, whatever came after it.
"""

from uploader.crashpoints import crash_point
from uploader.errors import ConfigurationError
from uploader.storage.base import BytesBody, Gone
from uploader.storage.marks import INSTALLATION_ID, MAX_MARK_BYTES, MarkFiles, Marks, StoreName, mark_of, parse_mark
from uploader.storage.s3.bucket import Bucket

# The version of everything in the bucket.
FORMAT = 1
MARK, PROPOSALS = "marks/installation", "marks/proposed/"


class S3Marks(MarkFiles):
    """These objects."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.store = StoreName(f"bucket {bucket.url}", "UPLOADER_STORAGE", "is it the right one?")

    def read(self) -> Marks:
        proposed = frozenset(key.removeprefix(PROPOSALS) for key in self._proposals())
        return Marks(self._installation(), frozenset(filter(INSTALLATION_ID.fullmatch, proposed)))

    def propose(self, installation: str, marks: Marks) -> None:
        if not marks.proposed:
            self._write(f"{PROPOSALS}{installation}", installation)
            crash_point("mark.after_proposal")

    def write(self, installation: str, *, replace: bool) -> None:
        self._write(MARK, installation)
        if not replace:
            crash_point("mark.after_mark")

    def forget_proposals(self, *, is_durable: bool = True) -> None:
        proposals = self._proposals()
        if proposals:
            self._bucket.delete(proposals)

    def _proposals(self) -> list[str]:
        return [stat.key for batch in self._bucket.list_keys(PROPOSALS) for stat in batch]

    def _write(self, key: str, installation: str) -> None:
        self._bucket.put(key, BytesBody(mark_of(FORMAT, installation)))

    def _installation(self) -> str | None:
        stat = self._bucket.head(MARK)
        if stat is None:
            return None
        try:
            found = parse_mark(self._bucket.get(MARK, 0, min(stat.size, MAX_MARK_BYTES)))
        except Gone:
            return None
        if found is not None and found[0] > FORMAT:
            raise ConfigurationError(
                f"UPLOADER_STORAGE: it was written in format {found[0]}, newer than this version's {FORMAT}: install a "
                "newer one"
            )
        if found is None or not INSTALLATION_ID.fullmatch(found[1]):
            raise ConfigurationError(
                f"UPLOADER_STORAGE: the object {MARK} in it is damaged: remove it and run `uploader adopt`"
            )
        return found[1]
