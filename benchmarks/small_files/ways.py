"""The ways in which a small file gets to the server, as the requests of a load; the content of each file is its own."""

import hashlib
import io
import itertools
import json
import os
import tarfile
from collections.abc import Callable, Sequence

from benchmarks.ingest.load import Request, head
from benchmarks.small_files.scale import SIZE_BYTES

Bearer = dict[str, str]
_CONNECTIONS = 16
_BATCHES_AT_ONCE = 2
_names = itertools.count()


def batch(files: int, members: int, bearer: Bearer) -> list[list[Request]]:
    """Archives of so many, two on their way at once."""
    archives = [_archive(min(members, files - first)) for first in range(0, files, members)]
    return _spread([[_request("POST", "/files/batch?to=batch", one, bearer)] for one in archives], _BATCHES_AT_ONCE)


def one_request(files: int, _: int, bearer: Bearer) -> list[list[Request]]:
    """A request for each file."""
    return _spread([[_whole(os.urandom(SIZE_BYTES), bearer)] for _ in range(files)], _CONNECTIONS)


def opened_and_sent(files: int, _: int, bearer: Bearer) -> list[list[Request]]:
    """An upload of one chunk for each file, which merges it."""
    return _spread([_upload(os.urandom(SIZE_BYTES), bearer) for _ in range(files)], _CONNECTIONS)


Way = Callable[[int, int, Bearer], list[list[Request]]]


def _archive(members: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for _ in range(members):
            member = tarfile.TarInfo(f"{next(_names)}.bin")
            member.size = SIZE_BYTES
            archive.addfile(member, io.BytesIO(os.urandom(SIZE_BYTES)))
    return buffer.getvalue()


def _whole(content: bytes, bearer: Bearer) -> Request:
    return _request("PUT", f"/files/{_md5(content)}?name=one/{next(_names)}.bin", content, bearer)


def _upload(content: bytes, bearer: Bearer) -> list[Request]:
    path = f"/files/{_md5(content)}"
    opening = json.dumps({"name": f"sent/{next(_names)}.bin", "size": SIZE_BYTES}).encode()
    return [_request("POST", path, opening, bearer), _request("PUT", f"{path}/chunks/0", content, bearer)]


def _md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def _request(method: str, path: str, body: bytes, bearer: Bearer) -> Request:
    return Request(head(method, path, len(body), bearer), len(body), body)


def _spread(files: Sequence[list[Request]], connections: int) -> list[list[Request]]:
    """The requests of each file one after the other, over one of the connections."""
    used = min(connections, len(files))
    return [[request for file in files[number::used] for request in file] for number in range(used)]
