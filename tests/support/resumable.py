"""Clients of tus and of resumable uploads of HTTP, as their texts have them: what each says, and how it is answered."""

import base64
import hashlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import httpx2

from tests.support.problems import problem

RESUMABLE = "/resumable"
_TYPES = "https://iana.org/assignments/http-problem-types#"
# Problems of resumable uploads of HTTP (section 7 of the draft).
_TYPE_OF = {
    (409, "offset-mismatch"): f"{_TYPES}mismatching-upload-offset",
    (400, "size-mismatch"): f"{_TYPES}inconsistent-upload-length",
    (400, "file-too-large"): f"{_TYPES}inconsistent-upload-length",
    (400, "bad-request"): f"{_TYPES}completed-upload",
}


def id_of(place: str) -> str:
    return place.rpartition("/")[2]


def path_of(response: httpx2.Response) -> str:
    """The path of an upload below the address of its client, whichever that is."""
    return f"{RESUMABLE}/{id_of(response.headers['location'])}"


def native(path: str) -> str:
    """The path of the same upload in our own protocol."""
    return f"/uploads/{id_of(path)}"


def url_of(client: httpx2.AsyncClient, path: str) -> str:
    """Where a client finds a path."""
    return str(client.build_request("GET", path).url)


async def files_of(client: httpx2.AsyncClient) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await client.get("/me/files")).json()["files"]
    return listed


class Resumable(ABC):
    """A client of one protocol. `_` stands for `-` in the names of headers, and one that is None is left out."""

    always: Mapping[str, str] = {}
    media_type: str | None  # of what is appended
    found: int  # the statuses of the answers to a HEAD, and to the last bytes
    finished: int
    inconsistent: int  # the statuses of problems
    mismatch: int
    busy: int
    gone: int  # what was cancelled, or has expired
    busy_seconds: str
    most_digits: int  # of an offset
    algorithms: tuple[str, ...]

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client

    async def send(self, method: str, path: str, content: Any = b"", **said: str | bytes | None) -> httpx2.Response:
        headers = {
            name.replace("_", "-").encode(): value if isinstance(value, bytes) else value.encode()
            for name, value in {**self.always, **said}.items()
            if value is not None
        }
        return await self.client.request(method, path, content=content, headers=headers)

    async def create(self, size: int | None, content: Any = b"", *, last: bool = False, **said: Any) -> httpx2.Response:
        """`size`: None where it is told later; `last`: the content is the last."""
        length = {} if size is None else {"Upload_Length": str(size)}
        return await self.send("POST", RESUMABLE, content, **{**self._creating(size, content, last), **length, **said})

    async def created(self, size: int | None, content: bytes = b"", **said: Any) -> str:
        """The path of a new upload that is not complete."""
        response = await self.create(size, content, **said)
        self.check(response, 201, complete=False)
        return path_of(response)

    async def patch(
        self, path: str, offset: int, content: Any = b"", *, last: bool = False, **said: Any
    ) -> httpx2.Response:
        headers = {"Upload_Offset": str(offset), "Content_Type": self.media_type, **self._appending(last), **said}
        return await self.send("PATCH", path, content, **headers)

    async def head(self, path: str) -> httpx2.Response:
        response = await self.send("HEAD", path)
        assert response.headers["cache-control"] == "no-store"
        return response

    async def delete(self, path: str) -> httpx2.Response:
        return await self.send("DELETE", path)

    async def state(self, path: str) -> tuple[int, bool, int | None]:
        """The offset, whether the upload is complete, and its length, as a HEAD tells them."""
        response = await self.head(path)
        offset, length = int(response.headers["upload-offset"]), response.headers.get("upload-length")
        complete = self._tells_complete(response)
        self.check(response, self.found, complete=complete)
        return offset, complete, None if length is None else int(length)

    @abstractmethod
    def _creating(self, size: int | None, content: Any, last: bool) -> dict[str, str | None]: ...

    @abstractmethod
    def _appending(self, last: bool) -> dict[str, str]: ...

    @abstractmethod
    def _tells_complete(self, response: httpx2.Response) -> bool: ...

    @abstractmethod
    def digest(self, content: bytes, *algorithms: str) -> dict[str, Any]:
        """The header of content that has this digest."""

    @abstractmethod
    def check(self, response: httpx2.Response, status: int, *, complete: bool | None = None) -> None:
        """The status, and what every answer of the protocol says; `complete`: None where no answer says that."""

    @abstractmethod
    def problem(self, response: httpx2.Response, status: int, code: str) -> Any: ...


class Tus(Resumable):
    always: Mapping[str, str] = {"Tus_Resumable": "1.0.0"}
    media_type: str | None = "application/offset+octet-stream"
    found, finished, inconsistent, mismatch = 200, 204, 409, 460
    busy, busy_seconds = 423, "1"
    gone = 404
    most_digits = 18
    algorithms = ("md5", "sha1", "sha256", "crc32")

    def _creating(self, size: int | None, content: Any, last: bool) -> dict[str, str | None]:
        deferred = {"Upload_Defer_Length": "1"} if size is None else {}
        return deferred | ({"Content_Type": self.media_type} if content else {})

    def _appending(self, last: bool) -> dict[str, str]:
        return {}

    def _tells_complete(self, response: httpx2.Response) -> bool:
        headers = response.headers
        assert headers.get("upload-defer-length") == (None if "upload-length" in headers else "1")
        return bool(headers["upload-offset"] == headers.get("upload-length"))

    def digest(self, content: bytes, *algorithms: str) -> dict[str, Any]:
        (algorithm,) = algorithms or ("sha1",)
        crc = zlib.crc32(content).to_bytes(4, "big")
        value = crc if algorithm == "crc32" else hashlib.new(algorithm, content, usedforsecurity=False).digest()
        return {"Upload_Checksum": f"{algorithm} {base64.b64encode(value).decode()}"}

    def check(self, response: httpx2.Response, status: int, *, complete: bool | None = None) -> None:
        assert (response.status_code, response.headers["tus-resumable"]) == (status, "1.0.0"), response.text
        assert response.content == b""

    def problem(self, response: httpx2.Response, status: int, code: str) -> Any:
        assert response.headers["tus-resumable"] == "1.0.0"
        return problem(response, status, code)


class Rufh(Resumable):
    """Resumable uploads of HTTP: of the current draft, or of a version that is named."""

    found, finished, inconsistent, mismatch = 204, 201, 400, 400
    busy, busy_seconds = 503, "2"
    gone = 410
    most_digits = 15
    algorithms = ("md5", "sha-256")

    def __init__(self, client: httpx2.AsyncClient, version: int | None = None) -> None:
        super().__init__(client)
        self.version = version
        self.always = {} if version is None else {"Upload_Draft_Interop_Version": str(version)}
        self.media_type = "application/partial-upload" if version is None or version >= 6 else None
        self.complete = "upload-incomplete" if version == 3 else "upload-complete"

    def says(self, complete: bool) -> str:
        """What the header says of completeness, whose meaning version 3 has the other way round."""
        return "?1" if complete is not (self.version == 3) else "?0"

    def _creating(self, size: int | None, content: Any, last: bool) -> dict[str, str | None]:
        return {**self._appending(last)}

    def _appending(self, last: bool) -> dict[str, str]:
        return {self.complete.title().replace("-", "_"): self.says(last)}

    def _tells_complete(self, response: httpx2.Response) -> bool:
        return bool(response.headers[self.complete] == self.says(True))

    def digest(self, content: bytes, *algorithms: str) -> dict[str, Any]:
        return {"Content_Digest": digest_of(content, *algorithms or self.algorithms)}

    def check(self, response: httpx2.Response, status: int, *, complete: bool | None = None) -> None:
        assert response.status_code == status, response.text
        self._check_version(response)
        assert response.headers.get(self.complete) == (None if complete is None else self.says(complete))

    def _check_version(self, response: httpx2.Response) -> None:
        """It says what an answer of its version says, and no more than that."""
        headers = response.headers
        assert headers.get("upload-draft-interop-version") == (None if self.version is None else str(self.version))
        assert ("upload-complete" if self.version == 3 else "upload-incomplete") not in headers
        limits = headers.get("upload-limit", "")
        assert bool(limits) is (self.version is None or self.version >= 6)
        assert ("expires=" in limits) <= (self.version == 6)
        assert ("max-age=" in limits) <= (self.version != 6)

    def problem(self, response: httpx2.Response, status: int, code: str) -> Any:
        self._check_version(response)
        has_no_type = code == "bad-request" and (self.version is None or self.version >= 9)
        if has_no_type or (status, code) not in _TYPE_OF:
            return problem(response, status, code)
        body = response.json()
        assert (response.status_code, body["status"], body["code"]) == (status, status, code), response.text
        assert response.headers["content-type"] == "application/problem+json"
        assert body["type"] == _TYPE_OF[status, code]
        return body


def digest_of(content: bytes, *algorithms: str) -> str:
    """As the headers of digests have it (RFC 9530)."""

    def encoded(algorithm: str) -> str:
        computed = hashlib.new(algorithm.replace("-", ""), content, usedforsecurity=False).digest()
        return f"{algorithm}=:{base64.b64encode(computed).decode()}:"

    return ", ".join(map(encoded, algorithms))


def metadata_of(**pairs: str) -> str:
    """As Upload-Metadata has it."""
    return ",".join(f"{key} {base64.b64encode(value.encode()).decode()}" for key, value in pairs.items())
