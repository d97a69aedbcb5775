"""The price list: what the worst legal request of each operation costs the server, in CPU and memory, one of 10 KB and one
of 5 MB where a body may be as long. docs/limits.md has those that cost more than the rest, and why."""

import base64
import hashlib
import io
import re
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx2
import pytest

from tests.support.chosen import PLACES, chosen
from tests.support.consumer import events_file
from tests.support.deltas import HEAD_OF_COPY, HEAD_OF_LITERAL, copied, literal
from tests.support.process import UPLOADER, Server, client_of_owner, ended
from tests.support.stack import Stack
from tests.support.waiting import wait_for

KB, MIB = 1000, 1 << 20
SMALL, LARGE = 10 * KB, 5 * MIB
MOST_CPU_MS, MOST_MEMORY_MB = 50, 50
LIMITS = Path(__file__).parents[2] / "docs" / "limits.md"
# A cheap request is repeated: a timer of the server's may fall into any one of them.
_CHEAP_SECONDS, _TIMES = 0.06, 4
_IDLE_SHARE = 0.05
TUS = {"Tus-Resumable": "1.0.0"}
BYTES = {**TUS, "Content-Type": "application/offset+octet-stream", "Upload-Offset": "0"}


class Ask(NamedTuple):
    """A request, but for its method."""

    path: str
    json: Any = None
    content: bytes | None = None
    headers: dict[str, str] = {}  # noqa: RUF012 (nobody writes it)


@dataclass
class Place:
    """A server, and what its owner has there: all that makes requests dear."""

    server: Server
    client: httpx2.Client
    number: int = 0
    # A file of 64 MiB; an upload of one chunk of as much; one of 10,000 chunks of which many are missing; a file.
    base: str = field(init=False)
    large: str = field(init=False)
    holed: str = field(init=False)
    file: str = field(init=False)

    def __post_init__(self) -> None:
        self.client.post("/files/batch", content=self.archive(3000, "folder-{:02}/{}"))
        self.base = self.completed(64 * MIB)
        self.large = self.opened(64 * MIB, 64 * MIB)
        self.holed = self.opened(10_000 * 65536, 65536)
        for number in range(0, 400, 2):
            self.client.put(f"/uploads/{self.holed}/chunks/{number}", content=bytes(65536))
        self.file = self.uploaded()

    def salt(self) -> str:
        self.number += 1
        return f"{self.number:06}"

    def md5(self) -> str:
        return md5_of(self.salt().encode())

    def name(self) -> str:
        """A new one, as long as may be."""
        return "/".join(["x" * 200] * 4 + [self.salt().rjust(200, "y")])

    def body(self, size: int) -> bytes:
        return self.salt().encode().ljust(size, b"a")

    def opened(self, size: int = 9 * 10**8, chunk_size: int = 65536) -> str:
        told = {"name": self.name(), "size": size, "chunk_size": chunk_size}
        return str(self.client.post("/uploads", json=told).json()["upload"]["id"])

    def completed(self, size: int) -> str:
        upload = self.opened(size, size)
        return str(self.client.put(f"/uploads/{upload}/chunks/0", content=self.body(size)).json()["file"]["id"])

    def uploaded(self) -> str:
        return str(self.client.post("/me/files", params={"name": self.name()}, content=b"a").json()["file"]["id"])

    def link(self, kind: str = "upload", name: str = "box/", **more: str) -> dict[str, Any]:
        made: dict[str, Any] = self.client.post("/me/links", json={"kind": kind, "name": name, **more}).json()
        return made

    @cached_property
    def shared(self) -> str:
        files = self.client.get("/me/files", params={"prefix": "folder-01/", "limit": 1}).json()["files"]
        return str(files[0]["id"])

    @cached_property
    def visitor(self) -> tuple[str, dict[str, str]]:
        """The address of a link to 50 files, and the headers of one who came by it."""
        url = self.link("download", "folder-01/")["url"]
        token = self.client.post(f"{url}/session").json()["token"]
        return url, {"Authorization": f"Bearer {token}"}

    def archive(self, members: int, name: str = "{:02}{:090}") -> bytes:
        written = io.BytesIO()
        with tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(members):
                tar.addfile(tarfile.TarInfo(name.format(number % 60, number)))
        return written.getvalue()

    def nothing(self, size: int, most: int = 5000) -> dict[str, Any]:
        """The most ids and prefixes that name nothing."""
        ids = [self.md5() for _ in range(min(most, (size - 2 * KB) // 36))]
        return {"ids": ids, "prefixes": [f"none{self.salt()}/" for _ in range(100)]}

    # What the server says of itself

    def cpu_seconds(self) -> float:
        """Once all that was begun beside the requests, such as hashing and merging, has ended."""
        interval = 0.02
        before, now = -1.0, self._cpu_seconds()
        while now - before > _IDLE_SHARE * interval:
            time.sleep(interval)
            before, now = now, self._cpu_seconds()
        return now

    def _cpu_seconds(self) -> float:
        # The clock of a process, by its id: clock_getcpuclockid(3), and CPUCLOCK_SCHED in Linux' posix-timers.h.
        return time.clock_gettime(~self.server.process.pid << 3 | 2)

    def memory_bytes(self, kind: str) -> int:
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(status.partition(f"{kind}:")[2].split()[0]) * 1024

    def charged_seconds(self) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("uploader_cost_seconds_total"))


def md5_of(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def base64_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


def digests(content: bytes, md5: str | None = None) -> dict[str, str]:
    """All the digests that may be compared; `md5`: a wrong one."""
    told = base64_of(bytes.fromhex(md5 or md5_of(content)))
    return {
        "Content-MD5": told,
        "Content-Digest": f"sha-256=:{base64_of(hashlib.sha256(content).digest())}:, md5=:{told}:",
    }


def checksum(content: bytes) -> dict[str, str]:
    return {"Upload-Checksum": f"sha256 {base64_of(hashlib.sha256(content).digest())}"}


# How to ask


def whole(place: Place, size: int) -> Ask:
    content = place.body(size)
    return Ask(f"/files/{md5_of(content)}?name={place.name()}", content=content, headers=digests(content))


def of_any_md5(place: Place, size: int) -> Ask:
    return whole(place, size)._replace(path=f"/me/files?name={place.name()}")


def chunk(place: Place, size: int) -> Ask:
    length = max(65536, size // 65536 * 65536)
    return Ask(
        f"/uploads/{place.opened(length, length)}/chunks/0",
        content=(content := place.body(length)),
        headers=digests(content),
    )


def delta(place: Place, size: int) -> Ask:
    sent = bytes(size - HEAD_OF_COPY - HEAD_OF_LITERAL)
    content = literal(sent) + copied(0, 64 * MIB - len(sent))
    path = f"/uploads/{place.large}/chunks/0?base={place.base}"
    return Ask(path, content=content, headers=digests(content, md5="0" * 32))


def batch(place: Place, size: int) -> Ask:
    return Ask(f"/files/batch?to={place.salt()}", content=place.archive(min(10_000, (size - KB) // 512 - 2)))


def metadata(place: Place) -> dict[str, str]:
    return {"Upload-Metadata": f"filename {base64_of(place.name().encode())},note {'YWFh' * 500}"}


def tus(place: Place, size: int) -> Ask:
    content = place.body(size)
    headers = {**BYTES, **metadata(place), **checksum(content), "Upload-Length": str(size)}
    return Ask("/resumable", content=content, headers=headers)


def tus_alone(place: Place, _: int) -> Ask:
    return Ask("/resumable", headers={**TUS, **metadata(place), "Upload-Length": "900000000"})


def rufh(place: Place, size: int) -> Ask:
    content = place.body(size)
    return Ask("/resumable", content=content, headers={"Upload-Complete": "?1", **digests(content)})


def final(place: Place, _: int) -> Ask:
    length = {"Upload-Length": str(4 * MIB), "Upload-Concat": "partial"}
    part = place.client.post("/resumable", headers={**TUS, **length}).headers["Location"]
    place.client.patch(part, headers=BYTES, content=place.body(4 * MIB))
    return Ask("/resumable", headers={**TUS, "Upload-Concat": "final;" + " ".join([part] * 16)})


def append(place: Place, size: int) -> Ask:
    made = place.client.post("/resumable", headers={**TUS, "Upload-Length": str(size + 1)})
    content = place.body(size)
    return Ask(made.headers["Location"], content=content, headers={**BYTES, **checksum(content)})


def ranges(place: Place, _: int) -> Ask:
    hundred = ", ".join(f"{600_000 * number}-{600_000 * number}" for number in range(100))
    return Ask(f"/me/files/{place.base}/content", headers={"Range": f"bytes={hundred}"})


def at(path: str, json: Any = None, **headers: str) -> "Worst":
    """A path with the place's own ids and names in it."""
    return lambda place, _: Ask(path.format(place=place), json, headers=headers)


def visiting(path: str, json: Any = None) -> "Worst":
    """Below the address of a link, as one who came by it."""
    return lambda place, _: Ask(place.visitor[0] + path.format(place=place), json, headers=place.visitor[1])


def of_link(path: str, json: Any = None) -> "Worst":
    """At a new link."""
    return lambda place, _: Ask(path.format(**place.link(password="p")), json)


def folders(count: int) -> list[str]:
    return [f"folder-{number:02}/" for number in range(count)]


Worst = Callable[[Place, int], Ask]
# Of each operation what it is called with, in words; how long it may be; and how it is asked.
PRICES: dict[str, list[tuple[str, int, Worst]]] = {
    "POST /uploads": [
        ("the longest name", SMALL, lambda place, _: Ask("/uploads", {"name": place.name(), "size": 9 * 10**8})),
    ],
    "POST /files/{md5}": [
        (
            "the longest name",
            SMALL,
            lambda place, _: Ask(
                f"/files/{place.md5()}", {"name": place.name(), "size": 9 * 10**8, "sha256": "0" * 64}
            ),
        ),
    ],
    "PUT /uploads/{id}/chunks/{n}": [
        ("64 KiB and its digests", SMALL, chunk),
        ("5 MiB and its digests", LARGE, chunk),
        ("a delta of 64 MiB, refused", SMALL, delta),
        ("5 MiB of a delta of 64 MiB, refused at its end", LARGE, delta),
    ],
    "GET /uploads/{id}": [("10,000 chunks, many missing", SMALL, at("/uploads/{place.holed}"))],
    "POST /uploads/{id}/merge": [("10,000 chunks, many missing", SMALL, at("/uploads/{place.holed}/merge"))],
    "DELETE /uploads/{id}": [("an open one", SMALL, lambda place, _: Ask(f"/uploads/{place.opened()}"))],
    "PATCH /uploads/{id}": [
        ("an open one", SMALL, lambda place, _: Ask(f"/uploads/{place.opened()}", {"md5": place.md5()})),
    ],
    "POST /uploads/{id}/proof": [
        (
            "a wrong one",
            SMALL,
            lambda place, _: Ask(
                f"/uploads/{place.holed}/proof", {"id": "0" * 32, "proof": "0" * 64, "name": place.name()}
            ),
        ),
    ],
    "GET /uploads": [("all that are open", SMALL, at("/uploads"))],
    "POST /files/status": [
        ("1,000 MD5s", 36 * KB, lambda place, _: Ask("/files/status", {"md5s": [place.md5() for _ in range(1000)]})),
    ],
    "PUT /files/{md5}": [("10 KB and its digests", SMALL, whole), ("5 MiB and its digests", LARGE, whole)],
    "POST /me/files": [("10 KB and its digests", SMALL, of_any_md5), ("5 MiB and its digests", LARGE, of_any_md5)],
    "POST /files/batch": [("17 empty files", SMALL, batch), ("10,000 empty files", LARGE, batch)],
    "POST /resumable": [
        ("tus: 4 KB of metadata", SMALL, tus_alone),
        ("tus: 10 KB and their checksum", SMALL, tus),
        ("tus: 5 MiB and their checksum", LARGE, tus),
        ("tus: a part of 4 MiB, named 16 times", SMALL, final),
        ("uploads of HTTP: 10 KB and their digests", SMALL, rufh),
        ("uploads of HTTP: 5 MiB and their digests", LARGE, rufh),
    ],
    "PATCH /resumable/{id}": [
        ("tus: 10 KB and their checksum", SMALL, append),
        ("tus: 5 MiB and their checksum", LARGE, append),
    ],
    "GET /resumable/{id}": [("10,000 chunks, many missing", SMALL, at("/resumable/{place.holed}"))],
    "HEAD /resumable/{id}": [("10,000 chunks, many missing", SMALL, at("/resumable/{place.holed}"))],
    "DELETE /resumable/{id}": [
        ("an open one", SMALL, lambda place, _: Ask(f"/resumable/{place.opened()}", headers=TUS)),
    ],
    "GET /me/files": [
        ("1,000 files", SMALL, at("/me/files?limit=1000")),
        ("a search that finds nothing", SMALL, at(f"/me/files?limit=1000&q={'z' * 1000}")),
        ("a level of 60 folders", SMALL, at("/me/files?limit=1000&delimiter=/")),
    ],
    "GET /me/files/{id}": [("one", SMALL, at("/me/files/{place.file}"))],
    "PATCH /me/files/{id}": [
        ("the longest name", SMALL, lambda place, _: Ask(f"/me/files/{place.file}", {"name": place.name()})),
    ],
    "DELETE /me/files/{id}": [("one", SMALL, lambda place, _: Ask(f"/me/files/{place.uploaded()}"))],
    "GET /me/files/{id}/content": [
        ("100 ranges", SMALL, ranges),
        ("64 MiB", SMALL, at("/me/files/{place.base}/content")),
    ],
    "GET /me/files/{id}/signature": [("of 64 MiB, made before", SMALL, at("/me/files/{place.base}/signature"))],
    "POST /me/files/{id}/link": [("one", SMALL, at("/me/files/{place.file}/link", {}))],
    "GET /me/usage": [("–", SMALL, at("/me/usage"))],
    "GET /me/identity": [("–", SMALL, at("/me/identity"))],
    "GET /me/tokens": [("–", SMALL, at("/me/tokens"))],
    "GET /me/archive": [("a zip of 50 files", SMALL, at("/me/archive?prefix=folder-01/"))],
    "POST /me/archive": [
        ("nothing, by 100 prefixes and 200 ids", SMALL, lambda place, size: Ask("/me/archive", place.nothing(size))),
        (
            "nothing, by 100 prefixes and 10,000 ids",
            400 * KB,
            lambda place, size: Ask("/me/archive", place.nothing(size, 10_000)),
        ),
        ("1,000 files", SMALL, at("/me/archive", {"prefixes": folders(20)})),
    ],
    "POST /me/archive/link": [
        ("1,000 files", SMALL, at("/me/archive/link", {"prefixes": folders(20)})),
    ],
    "POST /me/files/delete": [
        ("nothing, by 5,000 ids", 200 * KB, lambda place, size: Ask("/me/files/delete", place.nothing(size))),
    ],
    "POST /me/files/move": [
        (
            "nothing, by 5,000 ids",
            200 * KB,
            lambda place, size: Ask("/me/files/move", {**place.nothing(size), "to": ""}),
        ),
    ],
    "DELETE /me/files": [("50 files", SMALL, lambda place, _: Ask(f"/me/files?prefix={filled(place)}"))],
    "PATCH /me/files": [
        ("50 files", SMALL, lambda place, _: Ask(f"/me/files?prefix={filled(place)}", {"prefix": f"{place.salt()}/"})),
    ],
    "GET /me/folders": [("those that are empty", SMALL, at("/me/folders?limit=1000"))],
    "POST /me/folders": [("one", SMALL, lambda _place, _: Ask("/me/folders", {"name": f"empty/{uuid4().hex}"}))],
    "GET /me/trash": [("100 files", SMALL, at("/me/trash?limit=1000"))],
    "GET /me/trash/{id}/content": [("one", SMALL, lambda place, _: Ask(f"/me/trash/{deleted(place)}/content"))],
    "POST /me/trash/{id}/link": [("one", SMALL, lambda place, _: Ask(f"/me/trash/{deleted(place)}/link", {}))],
    "POST /me/trash/{id}/restore": [("one", SMALL, lambda place, _: Ask(f"/me/trash/{deleted(place)}/restore", {}))],
    "POST /me/trash/restore": [
        ("50 files", SMALL, lambda place, _: Ask("/me/trash/restore", {"ids": deleted_folder(place)})),
        (
            "nothing, by 5,000 ids",
            200 * KB,
            lambda place, size: Ask("/me/trash/restore", {"ids": place.nothing(size)["ids"]}),
        ),
    ],
    "DELETE /me/trash/{id}": [("one", SMALL, lambda place, _: Ask(f"/me/trash/{deleted(place)}"))],
    "DELETE /me/trash": [("100 files", SMALL, at("/me/trash"))],
    "POST /me/links": [
        ("one with a password", SMALL, at("/me/links", {"kind": "upload", "name": "b/", "password": "p"}))
    ],
    "GET /me/links": [("all", SMALL, at("/me/links"))],
    "GET /me/links/{id}": [("one", SMALL, of_link("/me/links/{id}"))],
    "PATCH /me/links/{id}": [("another password", SMALL, of_link("/me/links/{id}", {"password": "q"}))],
    "DELETE /me/links/{id}": [("one", SMALL, of_link("/me/links/{id}"))],
    "GET /s/{slug}": [("one", SMALL, lambda place, _: Ask(place.visitor[0], headers={"Accept": "application/json"}))],
    "POST /s/{slug}/session": [("with a password", SMALL, of_link("{url}/session", {"password": "p"}))],
    "GET /s/{slug}/files": [("50 files", SMALL, visiting("/files?limit=1000"))],
    "GET /s/{slug}/files/{id}/content": [("one", SMALL, visiting("/files/{place.shared}/content"))],
    "GET /s/{slug}/archive": [("a zip of 50 files", SMALL, visiting("/archive"))],
    "POST /s/{slug}/link": [("of the archive", SMALL, visiting("/link", {}))],
    "GET /admin/users/{user_id}/links": [("all", SMALL, at("/admin/users/owner/links"))],
    "DELETE /admin/users/{user_id}/links/{id}": [("one", SMALL, of_link("/admin/users/owner/links/{id}"))],
    "DELETE /admin/files/{id}": [("one", SMALL, lambda place, _: Ask(f"/admin/files/{place.uploaded()}?reason=no"))],
    "POST /admin/trash/{id}/restore": [("one", SMALL, lambda place, _: Ask(f"/admin/trash/{deleted(place)}/restore"))],
    "GET /admin/usage": [("1,000 users", SMALL, at("/admin/usage?limit=1000"))],
    "GET /admin/usage/summary": [("–", SMALL, at("/admin/usage/summary"))],
    "GET /admin/usage/history": [("all days", SMALL, at("/admin/usage/history"))],
    "POST /admin/usage/recount": [("3,000 files", SMALL, at("/admin/usage/recount", {}))],
    "GET /admin/queue": [("–", SMALL, at("/admin/queue"))],
    "GET /admin/cost": [("1,000 users", SMALL, at("/admin/cost?limit=1000"))],
    "GET /admin/users/{user_id}": [("one", SMALL, at("/admin/users/owner"))],
    "GET /admin/users/{user_id}/files": [("1,000 files", SMALL, at("/admin/users/owner/files?limit=1000"))],
    "PUT /admin/users/{user_id}": [
        ("a new one", SMALL, lambda place, _: Ask(f"/admin/users/{place.salt()}", {"total_space": 1})),
    ],
    "GET /admin/uploads": [("1,000 uploads", SMALL, at("/admin/uploads?limit=1000&idle_for=0"))],
    "DELETE /admin/uploads/{upload_id}": [
        ("an open one", SMALL, lambda place, _: Ask(f"/admin/uploads/{place.opened()}"))
    ],
    "GET /admin/users/{user_id}/tokens": [("all of one", SMALL, at("/admin/users/owner/tokens"))],
    "POST /admin/users/{user_id}/tokens": [("one", SMALL, at("/admin/users/somebody/tokens", {}))],
    "DELETE /admin/tokens/{token_id}": [
        (
            "one",
            SMALL,
            lambda place, _: Ask(
                f"/admin/tokens/{place.client.post('/admin/users/somebody/tokens', json={}).json()['id']}"
            ),
        ),
    ],
    "GET /admin/events": [("–", SMALL, at("/admin/events"))],
    "POST /admin/events/replay": [("all", SMALL, at("/admin/events/replay", {}))],
    "POST /queues/{name}/claim": [("100 tasks", SMALL, lambda place, _: with_tasks(place, 100))],
    "POST /queues/{name}/tasks/{id}/extend": [
        ("one", SMALL, lambda place, _: of_task(place, "extend", lease_seconds=600)),
    ],
    "POST /queues/{name}/tasks/{id}/ack": [("one", SMALL, lambda place, _: of_task(place, "ack"))],
    "POST /queues/{name}/tasks/{id}/release": [
        ("the longest error", SMALL, lambda place, _: of_task(place, "release", error="x" * 1024)),
    ],
    "GET /queues/{name}/tasks/{id}/content": [
        ("of a file that is gone", SMALL, lambda place, _: content_of_task(place))
    ],
    "GET /admin/work": [("many that are held", SMALL, at("/admin/work"))],
    "GET /admin/audit": [("1,000 lines", SMALL, at("/admin/audit?limit=1000"))],
    "GET /livez": [("–", SMALL, at("/livez"))],
    "GET /readyz": [("–", SMALL, at("/readyz"))],
    "GET /metrics": [("–", SMALL, at("/metrics"))],
    "GET /config": [("–", SMALL, at("/config"))],
    "GET /problems/{code}": [("one", SMALL, at("/problems/not-found"))],
    "GET /openapi.json": [("–", SMALL, at("/openapi.json"))],
    "GET /docs": [("–", SMALL, at("/docs"))],
    "GET /": [("–", SMALL, at("/"))],
    "GET /admin/": [("–", SMALL, at("/admin/"))],
    "GET /client.js": [("–", SMALL, at("/client.js"))],
    "GET /client.d.ts": [("–", SMALL, at("/client.d.ts"))],
    "GET /drop.js": [("–", SMALL, at("/drop.js"))],
    "GET /drop.d.ts": [("–", SMALL, at("/drop.d.ts"))],
    "GET /static/{path}": [("the largest", SMALL, at("/static/swagger-ui/swagger-ui-bundle.js"))],
}
ROWS = [(operation, *row) for operation, rows in PRICES.items() for row in rows]


def deleted(place: Place) -> str:
    """A file in the trash."""
    file_id = place.uploaded()
    place.client.delete(f"/me/files/{file_id}")
    return file_id


def deleted_folder(place: Place) -> list[str]:
    """The ids of 50 files in the trash."""
    folder = {"prefix": filled(place)}
    files = place.client.get("/me/files", params=folder).json()["files"]
    place.client.delete("/me/files", params=folder)
    return [file["id"] for file in files]


def filled(place: Place) -> str:
    """A folder of 50 new files."""
    folder = place.salt()
    place.client.post(f"/files/batch?to={folder}", content=place.archive(50))
    return f"{folder}/"


def with_tasks(place: Place, count: int) -> Ask:
    """Claim tasks, which are there."""
    for _ in range((count + 49) // 50):
        place.client.delete("/me/files", params={"prefix": filled(place)})
    return Ask("/queues/deleted/claim", {"max": count})


def of_task(place: Place, verb: str, **told: Any) -> Ask:
    """Do something with a task that is held."""
    asked = with_tasks(place, 1)
    (task,) = place.client.post(asked.path, json=asked.json).json()["tasks"]
    return Ask(f"/queues/deleted/tasks/{task['id']}/{verb}", {"lease": task["lease"], **told})


def content_of_task(place: Place) -> Ask:
    asked = of_task(place, "content")
    return Ask(asked.path, headers={"Lease": asked.json["lease"]})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("prices")
    settings = {"DATA": str(directory / "data"), "MAX_OPEN_UPLOADS": "1000", "DEFAULT_TOTAL_SPACE": "1TiB"}
    settings |= {"FREE_SPACE_FLOOR": "0", "DURABILITY": "process"}
    settings["EVENTS"] = str(events_file(directory, '[queues.deleted]\ntypes = ["file.deleted"]\n'))
    server = Server(directory / "log", settings, program=(UPLOADER,))
    with ended(server), client_of_owner(server.url, directory / "data") as client:
        client.timeout = httpx2.Timeout(120)
        yield Place(server, client)


def listed() -> dict[tuple[str, str], tuple[float, float]]:
    """The operations of the docs that cost more: of each what, the milliseconds and the megabytes that it may cost."""
    section = LIMITS.read_text().partition("\n## The price of a request\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \| ([\d,]+) ms \| ([\d,]+) MB \| .+ \|$", section, flags=re.MULTILINE)
    return {(row[0], row[1]): (float(row[2].replace(",", "")), float(row[3].replace(",", ""))) for row in rows}


@dataclass(frozen=True)
class Price:
    """The figures of one row: milliseconds of CPU, megabytes, and the status of the answer."""

    operation: str
    what: str
    cpu_ms: float
    memory_mb: float
    status: int

    @property
    def is_kept(self) -> bool:
        most_ms, most_mb = listed().get((self.operation, self.what), (MOST_CPU_MS, MOST_MEMORY_MB))
        return self.cpu_ms <= most_ms and self.memory_mb <= most_mb and self.status < 500

    def __str__(self) -> str:
        return f"`{self.operation}` | {self.what} | {self.cpu_ms:.1f} ms | {self.memory_mb:.1f} MB | {self.status}"


def priced(place: Place, operation: str, what: str, size: int, make: Worst) -> Price:
    """Measure a request, and one that is too dear once more: a machine with other work takes more CPU for the same."""
    price = measured(place, operation, what, size, make)
    return price if price.is_kept else measured(place, operation, what, size, make)


def measured(place: Place, operation: str, what: str, size: int, make: Worst) -> Price:
    method = operation.partition(" ")[0]

    def ask(times: int) -> tuple[float, int]:
        asked = [make(place, size) for _ in range(times)]
        before = place.cpu_seconds()
        for one in asked:
            answer = place.client.request(method, one.path, json=one.json, content=one.content, headers=one.headers)
        return place.cpu_seconds() - before, answer.status_code

    resident, times = place.memory_bytes("VmRSS"), 1
    spent, status = ask(1)
    if spent < _CHEAP_SECONDS:
        spent, status = ask(times := _TIMES)
    grown = place.memory_bytes("VmRSS") - resident
    return Price(operation, what, spent * 1000 / times, grown / 1e6, status)


def test_no_request_costs_more_than_its_price_and_all_are_charged(place: Place) -> None:
    owed, spent = place.charged_seconds(), place.cpu_seconds()
    prices = [priced(place, *row) for row in chosen(ROWS, 12 * PLACES, "prices")]
    print(*prices, sep="\n")  # what docs/limits.md is made from, with UPLOADER_TEST_PLACES=1000
    assert not [str(price) for price in prices if not price.is_kept]
    wait_for(lambda: place.charged_seconds() > owed, 60, "what was charged")
    ratio = (place.charged_seconds() - owed) / (place.cpu_seconds() - spent)
    print(f"charged {ratio:.2f} of the CPU")
    assert 1 / 3 < ratio < 3


async def test_every_operation_has_its_worst_request(stack: Stack) -> None:
    described = (await stack.client.get("/openapi.json")).json()["paths"]
    operations = {f"{method.upper()} {path}" for path, methods in described.items() for method in methods}
    # By MD5 they are the same handlers.
    twins = {
        twin
        for twin in operations
        if twin.replace("/files/{md5}", "/uploads/{id}") in operations and "/files/{md5}" in twin
    }
    assert operations - twins - {"PUT /files/{md5}"} == PRICES.keys() - {"PUT /files/{md5}"} - twins


def test_the_list_of_the_docs_has_no_stale_line() -> None:
    assert listed().keys() <= {(operation, what) for operation, what, _, _ in ROWS}
