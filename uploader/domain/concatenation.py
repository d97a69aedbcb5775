"""How a whole is made of parts: which, and in which order."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Concatenation:
    """One row of `concatenation`, with its parts in their order. Its id is that of the upload that it becomes."""

    id: str
    user_id: str
    name: str
    metadata: str | None
    # As its client ordered it, byte by byte.
    ordered: str
    part_ids: tuple[str, ...]
    created_at: datetime

    @property
    def parts_sha256(self) -> str:
        return sha256_of_parts(self.part_ids)


def sha256_of_parts(part_ids: Sequence[str]) -> str:
    """What tells one list of parts from another."""
    return hashlib.sha256(" ".join(part_ids).encode()).hexdigest()
