"""Text of SQL in every place of every request, on a MySQL or MariaDB whose own mode takes backslashes for text: each name,
label and reason comes back as it was sent, and no place of a request makes a statement fail."""

import base64
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from sqlalchemy import text as sql

from tests.conftest import MakeStack
from tests.integration.test_sql_text import SETTINGS, unusual_server
from tests.integration.test_work import QUEUE, claim, worker_of
from tests.support.archives import Entry, archive
from tests.support.consumer import events_file
from tests.support.content import KIB, Content
from tests.support.proofs import proof_by
from tests.support.resumable import path_of
from tests.support.stack import Stack
from tests.support.visiting import make_link, visit
from tests.unit.test_openapi import operations_of
from uploader.domain.digest import EMPTY_MD5

NAMES = (
    "inj', 7777, 0, 20200101000000, NULL, left(1,0), NULL) #",
    "it's \u00bf'\u0391' (SELECT GROUP_CONCAT(sha256) FROM blob), 7777, 0) -- ",
    "\"`'%' %s %(name)s :name ? {x}'",
)
# Of labels and reasons, which may have a backslash.
FREE = ("\\' OR 1=1 #", "end\\", "\\\\'")
# The fields whose text is kept, or compared with text that is kept.
WORDS = {
    *("name", "label", "reason", "error", "to", "prefix", "prefixes[]", "q", "password"),
    *("Upload-Metadata", "Content-Disposition"),
}
CONTENT = Content(100 * KIB)
Place = tuple[str, str]
REFUSAL = ("POST /queues/{name}/tasks/{id}/ack", "reason")
GATE = f"{QUEUE}gate = true\n"


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without references, and without all choices but the first."""
    while "$ref" in schema or "anyOf" in schema:
        schema = schema["anyOf"][0] if "anyOf" in schema else _named(document, schema["$ref"])
    return schema


def _named(document: dict[str, Any], reference: str) -> dict[str, Any]:
    schema: dict[str, Any] = document["components"]["schemas"][reference.rpartition("/")[2]]
    return schema


def example(document: dict[str, Any], schema: dict[str, Any]) -> Any:
    """Return a value that a schema allows; of an object all fields."""
    schema = resolved(document, schema)
    match schema.get("type"):
        case "object":
            return {name: example(document, each) for name, each in schema.get("properties", {}).items()}
        case "array":
            return [example(document, schema.get("items", {}))]
        case "integer":
            return schema.get("minimum", 1)
        case "boolean":
            return True
    if schema.get("format") == "date-time":
        return "2030-01-02T03:04:05Z"
    digits = re.search(r"\{(\d+)\}\$$", schema.get("pattern", ""))
    return schema.get("enum", ["0" * int(digits[1] if digits else 1)])[0]


def texts_in(value: Any, name: str = "") -> Iterator[str]:
    """Yield the names of all texts of a value, as in `prefixes[]`."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from texts_in(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from texts_in(each, f"{name}[]")
    elif isinstance(value, str):
        yield name


def with_text(value: Any, place: str, text: str, name: str = "") -> Any:
    """Return a copy of a value that has this text in a place."""
    if isinstance(value, dict):
        return {key: with_text(each, place, text, key) for key, each in value.items()}
    if isinstance(value, list):
        return [with_text(each, place, text, f"{name}[]") for each in value]
    return text if name == place else value


@dataclass
class Described:
    """A request as the OpenAPI document describes it, with a value in each place."""

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    segments: dict[str, str] = field(default_factory=dict)
    body: Any = None

    @property
    def route(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def places(self) -> list[str]:
        return [*self.query, *self.headers, *self.segments, *texts_in(self.body)]

    def with_text(self, place: str, text: str) -> dict[str, Any]:
        """Return the arguments of a request with this text in one place."""
        segments = with_text(self.segments, place, text)
        for name, segment in segments.items():
            segments[name] = quote(segment, safe="")
        in_header = quote(text, safe="'\" #(),%\\")
        request = {"params": with_text(self.query, place, text), "headers": with_text(self.headers, place, in_header)}
        return {"url": self.path.format(**segments), **request, "json": with_text(self.body, place, text)}


def described(document: dict[str, Any]) -> list[Described]:
    requests = []
    for path, method, operation in operations_of(document):
        request = Described(method.upper(), path)
        kept = {"query": request.query, "header": request.headers, "path": request.segments}
        for parameter in operation.get("parameters", []):
            value = example(document, parameter["schema"])
            kept[parameter["in"]][parameter["name"]] = value if isinstance(value, str) else json.dumps(value)
        taken = operation.get("requestBody", {}).get("content", {}).get("application/json")
        request.body = None if taken is None else example(document, taken["schema"])
        requests.append(request)
    return requests


@pytest.fixture
async def stack(
    request: pytest.FixtureRequest, make_stack: MakeStack, served_url: str, tmp_path: Path
) -> AsyncIterator[Stack]:
    events = events_file(tmp_path / "events", getattr(request, "param", QUEUE))
    async with (
        unusual_server(served_url, SETTINGS[0]),
        make_stack(database_url=served_url, events=events) as made,
    ):
        yield made
        assert await injected_rows(made) == 0


async def requests_of(stack: Stack) -> list[Described]:
    return described((await stack.anonymous().get("/openapi.json")).json())


async def test_no_place_of_a_request_makes_a_statement_fail(stack: Stack) -> None:
    requests = await requests_of(stack)
    assert sum(len(each.places) for each in requests) > 200
    root = await stack.client_of("root", admin=True)
    faults = []
    for request in requests:
        client = root if request.path.startswith(("/admin", "/queues")) else stack.client
        for place in request.places:
            for text in (NAMES[0], NAMES[2] + "\\"):
                answer = await client.request(request.method, **request.with_text(place, text))
                if answer.status_code >= 500:
                    faults.append((request.route, place, answer.status_code))
    assert faults == []


async def injected_rows(stack: Stack) -> int:
    async with stack.services.database.engine.connect() as connection:
        query = "SELECT (SELECT COUNT(*) FROM upload WHERE size = 7777) + (SELECT COUNT(*) FROM file WHERE size = 7777)"
        return int((await connection.execute(sql(query))).scalar_one())


@dataclass
class Driver:
    """Sends one text in all places where a text is kept, and notes the places."""

    stack: Stack
    text: str
    covered: set[Place]
    _number: int = 0

    @property
    def folder(self) -> str:
        """The name of another folder each time, so that no name is taken."""
        self._number += 1
        return f"{self._number}{self.text}/"

    async def ask(
        self,
        route: str,
        *places: str,
        client: httpx2.AsyncClient | None = None,
        at: dict[str, str] | None = None,
        **sent: Any,
    ) -> Any:
        """Send a request that has the text in these places; return its JSON."""
        method, path = route.split()
        self.covered |= {(route, place) for place in places}
        answer = await (client or self.stack.client).request(method, path.format(**at or {}), **sent)
        assert answer.status_code < 300, f"{route}: {answer.text}"
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        return answer.json() if is_json else answer

    async def send(self, client: httpx2.AsyncClient) -> None:
        """Send files in each way that gives a file a name."""
        name = f"{self.folder}{self.text}"
        empty = {"name": name, "size": 0}
        made = await self.ask("POST /files/{md5}", "name", client=client, at={"md5": EMPTY_MD5}, json=empty)
        assert made["file"]["name"] == name
        for route, data in (("PUT /files/{md5}", CONTENT), ("POST /me/files", Content(5, seed=self._number))):
            name, at = f"{self.folder}{self.text}", {"md5": CONTENT.md5}
            made = await self.ask(route, "name", client=client, at=at, params={"name": name}, content=data.data)
            assert made["file"]["name"] == name
        name = f"{self.folder}{self.text}"
        opened = await self.ask("POST /uploads", "name", client=client, json={"name": name, "size": 1})
        assert (await client.get(f"/uploads/{opened['upload']['id']}")).json()["upload"]["name"] == name
        to = self.folder
        packed = archive(Entry(self.text, self.text.encode()))
        (line,) = (await self.ask("POST /files/batch", "to", client=client, params={"to": to}, content=packed))[
            "results"
        ]
        assert line["file"]["name"] == to + self.text
        await self.send_resumably(client)

    async def send_resumably(self, client: httpx2.AsyncClient) -> None:
        name, opened = f"{self.folder}{self.text}", "POST /resumable"
        metadata = f"filename {base64.b64encode(name.encode()).decode()},more {base64.b64encode(b'q').decode()}"
        tus = {"Tus-Resumable": "1.0.0", "Upload-Length": "1", "Upload-Metadata": metadata}
        made = await self.ask(opened, "Upload-Metadata", client=client, headers=tus)
        found = await client.head(path_of(made), headers={"Tus-Resumable": "1.0.0"})
        assert found.headers["upload-metadata"] == metadata
        disposition = f"attachment; filename*=UTF-8''{quote(self.text, safe='')}"
        headers = {"Upload-Complete": "?1", "Content-Disposition": disposition}
        await self.ask(opened, "Content-Disposition", client=client, headers=headers, content=b"x")

    async def arrange(self) -> None:
        """Rename, move, delete, restore and list."""
        alice, name = self.stack.client, f"{self.folder}{self.text}"
        made = await self.ask("POST /me/files", params={"name": "plain"}, content=b"plain")
        at = {"id": made["file"]["id"]}
        renamed = await self.ask("PATCH /me/files/{id}", "name", at=at, json={"name": name})
        assert renamed["name"] == name
        before, after, last = name.removesuffix(self.text), self.folder, self.folder
        await self.ask("PATCH /me/files", "prefix", params={"prefix": before}, json={"prefix": after})
        moved = {"prefixes": [after], "to": last}
        await self.ask("POST /me/files/move", "prefixes[]", "to", json=moved)
        name = f"{last}{after}{self.text}"
        for query in ({"prefix": last}, {"q": self.text, "prefix": last}):
            (found,) = (await self.ask("GET /me/files", *query, params=query))["files"]
            assert found["name"] == name
        root = await self.stack.client_of("root", admin=True)
        listed = await self.ask(
            "GET /admin/users/{user_id}/files", "prefix", client=root, at={"user_id": "alice"}, params={"prefix": last}
        )
        assert [file["name"] for file in listed["files"]] == [name]
        await self.ask("GET /admin/usage", "q", client=root, params={"q": self.text})
        await self.ask("GET /me/archive", "prefix", params={"prefix": last})
        await self.ask("POST /me/archive", "prefixes[]", json={"prefixes": [last]})
        await self.ask("POST /me/archive/link", "prefixes[]", json={"prefixes": [last]})
        for route, sent in (
            ("POST /me/files/delete", {"json": {"prefixes": [last]}}),
            ("DELETE /me/files", {"params": {"prefix": last}}),
        ):
            await self.ask(route, "prefixes[]" if "json" in sent else "prefix", **sent)
            (gone,) = (await self.ask("GET /me/trash", "name", params={"name": name}))["files"]
            restored = await self.ask("POST /me/trash/{id}/restore", "name", at={"id": gone["id"]}, json={"name": name})
            assert restored["name"] == name
        file_id = (await alice.get("/me/files", params={"prefix": name})).json()["files"][0]["id"]
        reason = {"reason": self.text}
        await self.ask("DELETE /admin/files/{id}", "reason", client=root, at={"id": file_id}, params=reason)
        log = (await root.get("/admin/audit", params={"user_id": "alice"})).json()
        assert self.text in [entry["details"].get("reason") for entry in log["acts"]]
        folder = self.folder
        assert (await self.ask("POST /me/folders", "name", json={"name": folder}))["name"] == folder
        listed = await self.ask("GET /me/folders", "prefix", params={"prefix": folder})
        assert listed["folders"] == [{"name": folder}]

    async def share(self) -> None:
        folder = self.folder
        shared = f"{folder}{folder}{self.text}"
        await self.ask("POST /me/files", params={"name": shared}, content=b"shared")
        made = {"kind": "download", "name": folder, "label": self.text, "password": self.text}
        link = await self.ask("POST /me/links", "name", "label", "password", json=made)
        assert (link["name"], link["label"]) == (folder, self.text)
        changed = {"label": self.text * 2, "password": self.text * 2}
        link |= await self.ask("PATCH /me/links/{id}", "label", "password", at={"id": link["id"]}, json=changed)
        assert link["label"] == self.text * 2
        at = {"slug": link["url"].rpartition("/")[2]}
        stranger = self.stack.anonymous()
        body = {"password": self.text * 2}
        token = (await self.ask("POST /s/{slug}/session", "password", client=stranger, at=at, json=body))["token"]
        stranger.headers["authorization"] = f"Bearer {token}"
        query = {"prefix": folder}
        listed = await self.ask("GET /s/{slug}/files", "prefix", client=stranger, at=at, params=query)
        assert [file["name"] for file in listed["files"]] == [folder + self.text]
        await self.ask("GET /s/{slug}/archive", "prefix", client=stranger, at=at, params=query)
        await self.ask("POST /s/{slug}/link", "prefix", client=stranger, at=at, json=query)

    async def prove(self) -> None:
        """Finish uploads by a proof, under a name that only the proof has."""
        claimed = {"size": CONTENT.size, "sha256": CONTENT.sha256}
        for route in ("POST /files/{md5}/proof", "POST /uploads/{id}/proof"):
            name = f"{self.folder}{self.text}"
            client = await self.stack.client_of(f"user{self._number}-{NAMES.index(self.text)}")
            if "{md5}" in route:
                at = {"md5": CONTENT.md5}
                asked = await client.post(f"/files/{CONTENT.md5}", json={"name": "asked", **claimed})
            else:
                opened = await client.post("/uploads", json={"name": "asked", "size": CONTENT.size})
                at = {"id": opened.json()["upload"]["id"]}
                told = {"md5": CONTENT.md5, "sha256": CONTENT.sha256}
                asked = await client.patch(f"/uploads/{at['id']}", json=told)
            challenge = asked.json()["challenge"]
            proof = proof_by(CONTENT.data, challenge, CONTENT.sha256)
            body = {"id": challenge["id"], "name": name, "proof": proof}
            made = await self.ask(route, "name", client=client, at=at, json=body)
            assert made["file"]["name"] == name

    async def work(self) -> None:
        (task, *_) = await claim(worker := await worker_of(self.stack))
        at, body = {"name": "scan", "id": task["id"]}, {"lease": task["lease"], "error": self.text}
        await self.ask("POST /queues/{name}/tasks/{id}/release", "error", client=worker, at=at, json=body)

    async def refuse(self) -> None:
        """Refuse a file that a gate holds, which puts the reason into its owner's trash."""
        name = f"{self.folder}{self.text}"
        assert (await self.ask("POST /me/files", params={"name": name}, content=b"held"))["state"] == "held"
        (task,) = await claim(worker := await worker_of(self.stack))
        at, body = (
            {"name": "scan", "id": task["id"]},
            {"lease": task["lease"], "verdict": "refuse", "reason": self.text},
        )
        await self.ask(REFUSAL[0], REFUSAL[1], client=worker, at=at, json=body)
        (refused, *_) = (await self.stack.client.get("/me/trash")).json()["files"]
        assert (refused["name"], refused["detail"]) == (name, self.text.strip())


@pytest.mark.parametrize("stack", [GATE], indirect=True)
async def test_reason_of_a_refusal_comes_back_as_it_was_sent(stack: Stack) -> None:
    for text in NAMES:
        await Driver(stack, text, set()).refuse()


async def test_each_name_label_and_reason_comes_back_as_it_was_sent(stack: Stack) -> None:
    covered: set[Place] = set()
    for text in NAMES:
        driver = Driver(stack, text, covered)
        await driver.send(stack.client)
        await driver.arrange()
        await driver.share()
        await driver.prove()
        await driver.work()
        await driver.send(await visit(stack, await make_link(stack, name=driver.folder)))
    for text in FREE:
        link = await make_link(stack, name="free/", label=text)
        assert (await stack.client.get(f"/me/links/{link['id']}")).json()["label"] == text
    known = {
        (each.route, place)
        for each in await requests_of(stack)
        for place in each.places
        if place in WORDS and place not in each.segments  # which name a queue
    }
    assert known - covered == {REFUSAL}, "no test sends text there"
