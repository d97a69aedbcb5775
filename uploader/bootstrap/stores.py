"""Settings → the stores in force, embedded or given."""

from pathlib import Path

from uploader import embedded
from uploader.accounting.connection import connect, connect_to_socket
from uploader.accounting.scripting import RedisConnection
from uploader.clock import Clock
from uploader.database.engine import Database
from uploader.settings import Settings
from uploader.settings.addresses import bucket_address
from uploader.storage.local.store import LocalStore
from uploader.storage.store import Store


def database_url(settings: Settings) -> str:
    """The URL of the database in force."""
    return settings.database_url or f"sqlite:///{settings.data.absolute() / 'uploader.db'}"


def sqlite_path(settings: Settings) -> Path | None:
    """The file of a SQLite; None of another database."""
    url = database_url(settings)
    name = url.removeprefix("sqlite:///")
    return None if name in (url, "", ":memory:") else Path(name)


def redis_directory(settings: Settings) -> Path:
    """Where the embedded Valkey lives."""
    return settings.data.absolute() / "redis"


def list_aside(settings: Settings) -> list[Path]:
    """Directories of the embedded Valkey, if that is in force, that it could not load and that are still there; blocks."""
    return [] if settings.redis_url is not None else embedded.list_aside(redis_directory(settings))


def create_redis(settings: Settings) -> RedisConnection:
    """Connects to nothing yet."""
    connections, timeout_seconds = settings.redis_connections, settings.redis_timeout_seconds
    if settings.redis_url is not None:
        return connect(settings.redis_url, connections=connections, timeout_seconds=timeout_seconds)
    path = embedded.socket_path(redis_directory(settings))
    return connect_to_socket(path, connections=connections, timeout_seconds=timeout_seconds)


def create_storage(settings: Settings, database: Database, clock: Clock) -> Store:
    """Connects to nothing yet. Raises ConfigurationError."""
    address = bucket_address(settings)
    if address is None:
        return LocalStore(
            settings.data, durable=settings.durability == "power", keeps_trash=settings.trash_retention_seconds > 0
        )
    # Here, because who keeps all on a disk does without the memory that they take.
    from uploader.database.objects.rows import ObjectRows
    from uploader.storage.s3.bucket import Bucket
    from uploader.storage.s3.store import S3Store

    smallest = settings.min_chunk_size_bytes
    return S3Store(Bucket(address), ObjectRows(database), clock, min_chunk_size_bytes=smallest)
