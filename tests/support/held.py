"""What Redis keeps of an upload, as `_upload.lua` names it, read apart from the scripts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uploader.domain.upload import Tail


@dataclass(frozen=True)
class HeldUpload:
    """The hash of an upload, in numbers. Without a task `at_ms` and `due_ms` are None."""

    state: str
    received: int = 0
    flushed: int = 0
    chunks: int = 0
    chunk_count: int = 0
    generation: int = 0
    at_ms: int | None = None
    due_ms: int | None = None
    pending_since: int = 0
    lease_until: int = 0
    tail: Tail | None = None


def held(facts: Mapping[bytes, bytes]) -> HeldUpload:
    """Of the fields of a hash."""
    figures = _named(facts.get(b"figures", b""), "received", "flushed", "chunks", "chunk_count", "generation")
    timer = _named(facts.get(b"timer", b""), "at_ms", "due_ms", "pending_since", "lease_until")
    tail = Tail(*map(int, facts[b"tail"].split())) if b"tail" in facts else None
    return HeldUpload(facts.get(b"state", b"").decode(), tail=tail, **figures, **timer)


def _named(field: bytes, *names: str) -> dict[str, Any]:
    numbers = [int(number) for number in field.split()]
    return dict(zip(names, numbers, strict=bool(numbers)))


async def held_of(redis: Any, up: str) -> HeldUpload:
    return held(await redis.hgetall(up))
