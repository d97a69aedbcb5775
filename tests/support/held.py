"""What Redis keeps of an upload, as `_upload.lua` names it, read apart from the scripts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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


def held(facts: Mapping[bytes, bytes]) -> HeldUpload:
    """Of the fields of a hash."""
    figures = [int(figure) for figure in facts.get(b"figures", b"").split()]
    times = [int(time) for time in facts.get(b"timer", b"").split()]
    timer = dict(zip(("at_ms", "due_ms", "pending_since", "lease_until"), times, strict=bool(times)))
    return HeldUpload(facts.get(b"state", b"").decode(), *figures, **timer)


async def held_of(redis: Any, up: str) -> HeldUpload:
    return held(await redis.hgetall(up))
