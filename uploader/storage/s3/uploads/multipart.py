"""Where a multipart upload is: the key that it completes to, and the id that S3 gave it. The ledger has both in one word."""

from dataclasses import dataclass

from uploader.errors import StorageFailed


@dataclass(frozen=True, slots=True)
class Multipart:
    """One that S3 has, or had."""

    key: str
    id: str

    def word(self) -> str:
        return f"{self.key}:{self.id}"


def multipart_of(word: str) -> Multipart:
    """Raises StorageFailed for what is none."""
    key, colon, upload_id = word.partition(":")
    if not colon or not upload_id:
        raise StorageFailed(inside="a row of the ledger names no multipart upload")
    return Multipart(key, upload_id)
