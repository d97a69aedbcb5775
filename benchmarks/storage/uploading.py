"""A real `uploader serve`, and uploads to it."""

import itertools
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.storage.client import Bytes, Connection, Reply, in_parallel
from tests.support.process import UPLOADER, Server, ended

_names = itertools.count()


@dataclass(frozen=True, slots=True)
class Uploaded:
    """An upload that is a file now."""

    file_id: str
    # From the last byte of the last chunk.
    finished_seconds: float
    # From the first byte of the first chunk to the last of the last one.
    sent_seconds: float
    # Of all chunks but the last.
    chunk_seconds: list[float]


@contextmanager
def serving(directory: Path, durability: str = "power") -> Iterator[Server]:
    """A server as it is by default, with its own Valkey and SQLite, that lets everybody in."""
    directory.mkdir()
    settings = {
        "DATA": str(directory / "data"),
        "AUTH": "none",
        "DEFAULT_TOTAL_SPACE": "1TiB",
        "DURABILITY": durability,
    }
    server = Server(directory / "log", settings, program=(UPLOADER,))
    with ended(server):
        yield server
        server.stop()  # with its Valkey, so that the directory can go


def upload(port: int, content: Bytes, size: int) -> Uploaded:
    """All chunks in order over one connection."""
    with Connection(port) as connection:
        upload_id, count = _open(connection, content, size)
        begin, replies = time.perf_counter(), []
        for number in range(count):
            replies.append(_put(connection, upload_id, number, content, size, last=number == count - 1))
        sent = time.perf_counter() - begin - replies[-1].seconds
        return _finished(port, upload_id, replies, sent)


def upload_with_first_chunk_last(port: int, content: Bytes, size: int) -> Uploaded:
    """So that nothing can be hashed before the last chunk comes."""
    with Connection(port) as connection:
        upload_id, count = _open(connection, content, size)
        begin = time.perf_counter()
        replies = [
            _put(connection, upload_id, number, content, size, last=number == 0) for number in [*range(1, count), 0]
        ]
        return _finished(port, upload_id, replies, time.perf_counter() - begin)


def upload_over(connections: int, port: int, chunk_size: int, size: int) -> Uploaded:
    """Each connection takes the next chunk as soon as it has an answer."""
    with Connection(port) as connection:
        upload_id, count = _open(connection, Bytes(chunk_size), size)
        numbers, lock, replies = iter(range(count)), threading.Lock(), []
        begin = time.perf_counter()

        def send() -> None:
            content = Bytes(chunk_size)
            with Connection(port) as own:
                while True:
                    with lock:
                        number = next(numbers, None)
                    if number is None:
                        return
                    reply = _put(own, upload_id, number, content, size, last=number >= count - connections)
                    with lock:
                        replies.append(reply)

        in_parallel([send] * connections)
        # The one that settled the upload was not answered 200.
        replies.sort(key=lambda reply: reply.status)
        return _finished(port, upload_id, replies, time.perf_counter() - begin)


def delete(port: int, file_id: str) -> None:
    """Make room again."""
    with Connection(port) as connection:
        connection.expect({204}, "DELETE", f"/me/files/{file_id}")


def _open(connection: Connection, content: Bytes, size: int) -> tuple[str, int]:
    opening = {"name": f"{next(_names)}.bin", "size": size, "chunk_size": content.chunk_size}
    opened = connection.expect({201}, "POST", "/uploads", json.dumps(opening).encode()).json()["upload"]
    return opened["id"], opened["chunk_count"]


def _put(connection: Connection, upload_id: str, number: int, content: Bytes, size: int, *, last: bool) -> Reply:
    chunk = content.chunk(min(content.chunk_size, size - number * content.chunk_size))
    return connection.expect({200, 201, 202}, "PUT", f"/uploads/{upload_id}/chunks/{number}", chunk, exact=last)


def _finished(port: int, upload_id: str, replies: list[Reply], sent_seconds: float) -> Uploaded:
    last, seconds = replies[-1], replies[-1].seconds
    begin, answer = time.perf_counter(), last.json()
    while answer["state"] == "merging":
        time.sleep(0.05)
        with Connection(port) as connection:
            answer = connection.expect({200}, "GET", f"/uploads/{upload_id}").json()
        seconds = last.seconds + time.perf_counter() - begin
    return Uploaded(answer["file"]["id"], seconds, sent_seconds, [reply.seconds for reply in replies[:-1]])
