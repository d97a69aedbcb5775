"""What goes over the wire for those who run the server or write a client for it, as types."""

from msgspec import UNSET, Struct, UnsetType


class ChunkSizeBounds(Struct):
    """Chunk sizes, in bytes."""

    default: int
    min: int
    max: int


class ClientConfig(Struct):
    """What a client needs to know. `auth` is there where callers are not known by tokens of this server: `jwt`, `none`."""

    chunk_size: ChunkSizeBounds
    max_file_size: int
    max_chunks: int
    instant: str
    upload_expiry_seconds: float
    link_lifetime_seconds: float
    auth: str | UnsetType = UNSET


class Check(Struct):
    """Whether one thing the server depends on works."""

    ok: bool
    reason: str | None = None


class HealthSchema(Struct):
    """All checks."""

    checks: dict[str, Check]
