"""Another user's ids and hashes, tried on every operation of the route table: the answer is the one for what was never
there, and nothing of theirs changes."""

import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis import Redis
from sqlalchemy import select

from tests.conftest import MakeStack
from tests.support.consumer import events_file
from tests.support.content import KIB, Content
from tests.support.problems import problem
from tests.support.stack import Stack
from uploader.database import models

FINISHED = Content(100 * KIB)
OPEN = Content(300 * KIB, seed=1)
CLOSED = Content(200 * KIB, seed=2)
CONTENTS = {"finished": FINISHED, "open": OPEN, "closed": CLOSED}
GATE = '[queues.scan]\ntypes = ["file.finished"]\ngate = true\n'
NOWHERE_MD5, NOWHERE_ID = "0" * 31 + "1", "0" * 31 + "2"

# What is sent, where an operation takes a body; `{md5}` stands for the hash that is tried.
BODIES: dict[str, Any] = {
    "POST /files/{md5}": {"name": "mine", "size": 100 * KIB},
    "POST /files/{md5}/proof": {"id": NOWHERE_ID, "name": "mine", "proof": "0" * 64},
    "POST /uploads/{id}/proof": {"id": NOWHERE_ID, "name": "mine", "proof": "0" * 64},
    "PATCH /uploads/{id}": {"md5": "0" * 32},
    "PATCH /me/files/{id}": {"name": "mine"},
    "POST /files/status": {"md5s": ["{md5}"]},
    "POST /uploads": {"name": "mine", "size": 100 * KIB},
    "PUT /admin/users/{user_id}": {"total_space": 1},
}
# Where others' things are simply not there. What remains is their own, or not for them at all.
OPENING = ("POST /files/{md5}", "POST /uploads")
UPLOADS_ARE_NOT_THERE = {
    f"{method} {path}{more}"
    for path in ("/files/{md5}", "/uploads/{id}")
    for method, more in (("GET", ""), ("HEAD", ""), ("DELETE", ""), ("PUT", "/chunks/{n}"), ("POST", "/merge"))
} | {"PATCH /uploads/{id}"}
FILES_ARE_NOT_THERE = {
    f"{method} /me/files/{{id}}{more}"
    for method, more in (
        *(("GET", ""), ("HEAD", ""), ("PATCH", ""), ("DELETE", "")),
        *(("GET", "/content"), ("HEAD", "/content"), ("POST", "/link")),
    )
}
NOT_FOUND = dict.fromkeys(UPLOADS_ARE_NOT_THERE, "upload-not-found")
NOT_FOUND |= dict.fromkeys(FILES_ARE_NOT_THERE, "file-not-found")


class Victim:
    """alice, who has a finished file, an open upload and a cancelled one; where there is a gate, that holds the file."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.upload_ids: dict[str, str] = {}
        self.file_id = ""

    async def prepare(self) -> "Victim":
        for state, content in CONTENTS.items():
            opened = (await self.stack.open(content)).json()["upload"]
            self.upload_ids[state] = opened["id"]
            await self.stack.put(content, 0)
        await self.stack.put(FINISHED, 1)
        self.file_id = (await self.stack.client.get(f"/files/{FINISHED.md5}")).json()["file"]["id"]
        assert (await self.stack.client.delete(f"/files/{CLOSED.md5}")).status_code == 204
        await self.stack.services.storage.drain()  # the digests follow a moment later
        return self

    async def all_there_is(self) -> dict[str, Any]:
        """Every row, file and key that is hers."""
        rows = {}
        async with self.stack.services.database.engine.connect() as connection:
            for table in (models.user_info, models.upload, models.file, models.held_file):
                query = select(table).where(table.c.user_id == "alice").order_by(*table.primary_key)
                rows[table.name] = [tuple(row) for row in await connection.execute(query)]
            query = select(models.blob).order_by(models.blob.c.sha256)
            rows["blob"] = [tuple(row) for row in await connection.execute(query)]
        rows["file"] += rows.pop("held_file")
        assert [len(rows[table]) for table in ("user_info", "upload", "file", "blob")] == [1, 3, 1, 1]
        directories = [*self.upload_ids.values(), FINISHED.sha256]
        files = {
            str(path): path.read_bytes()
            for path in self.stack.bytes_on_disk()
            if any(name in str(path) for name in directories)
        }
        assert len(files) == 5
        url = self.stack.services.settings.redis_url
        assert url is not None
        with Redis.from_url(url) as redis:
            keys = {key: redis.dump(key) for name in directories for key in redis.scan_iter(f"*{name}*")}
        assert keys
        return {"rows": rows, "files": files, "keys": keys}


def request_for(operation: str, md5: str, upload_id: str, file_id: str) -> tuple[str, str, Any]:
    """Method, path and body of an operation, with these for what it names."""
    method, path = operation.split()
    identifier = file_id if path.startswith("/me/") else upload_id
    values = {"md5": md5, "id": identifier, "n": "0", "user_id": "alice", "upload_id": upload_id}
    body = BODIES.get(operation, {})
    if operation == "POST /files/status":
        body = {"md5s": [md5]}
    return method, re.sub(r"\{(\w+)\}", lambda name: values.get(name[1], "x"), path), body


def shape_of(response: httpx2.Response, *names: str) -> tuple[int, Any, set[str]]:
    """All that an answer says, but for what names it."""
    content = response.text
    for name in names:
        content = content.replace(name, "NAME")
    content = re.sub(r'"(request_id|id|created_at|expires_at|as_of)":\s*"[^"]*"', r'"\1":"-"', content)
    return response.status_code, content, set(response.headers) - {"date"}


async def operations_of(stack: Stack) -> list[str]:
    """Every operation that asks who is calling."""
    paths = (await stack.anonymous().get("/openapi.json")).json()["paths"]
    found = [
        f"{method.upper()} {path}"
        for path, methods in paths.items()
        for method, operation in methods.items()
        if "security" in operation
    ]
    return [*found, *(f"HEAD {each.removeprefix('GET ')}" for each in found if each.startswith("GET "))]


@pytest.mark.parametrize("state", [*CONTENTS, "held"])
async def test_what_is_another_users_was_never_there(make_stack: MakeStack, tmp_path: Path, state: str) -> None:
    events = {"events": events_file(tmp_path, GATE)} if state == "held" else {}
    state = state.replace("held", "finished")
    async with make_stack(**events) as stack:
        victim = await Victim(stack).prepare()
        before = await victim.all_there_is()
        # What opens comes last: it leaves closed uploads of the caller's own.
        operations = sorted(await operations_of(stack), key=lambda operation: operation in OPENING)
        assert set(NOT_FOUND) <= set(operations)
        bob = await stack.client_of("bob")
        md5, upload_id = CONTENTS[state].md5, victim.upload_ids[state]
        for operation in operations:
            answers = []
            for names in ((md5, upload_id, victim.file_id), (NOWHERE_MD5, NOWHERE_ID, NOWHERE_ID)):
                method, path, body = request_for(operation, *names)
                sends_chunk = operation.startswith("PUT ") and "chunks" in operation
                content = {"content": CONTENTS[state].chunk(0)} if sends_chunk else {"json": body}
                response = await bob.request(method, path, **content)
                answers.append(shape_of(response, *names))
                if operation in NOT_FOUND and method != "HEAD":
                    problem(response, 404, NOT_FOUND[operation])
                if response.is_success and method not in ("GET", "HEAD"):
                    await _clean_up(bob)
            assert answers[0] == answers[1], operation
            if operation in NOT_FOUND:
                assert answers[0][0] == 404
        assert await victim.all_there_is() == before


async def _clean_up(client: httpx2.AsyncClient) -> None:
    """End what an opening opened, and delete what came whole, so that no answer depends on the ones before."""
    for kind in ({}, {"state": "held"}):
        for file in (await client.get("/me/files", params=kind)).json()["files"]:
            assert (await client.delete(f"/me/files/{file['id']}")).status_code == 204
    for upload in (await client.get("/uploads")).json()["uploads"]:
        assert (await client.delete(f"/uploads/{upload['id']}")).status_code == 204


async def test_an_id_of_another_user_in_the_query_is_as_one_that_nobody_has(stack: Stack) -> None:
    victim = await Victim(stack).prepare()
    before = await victim.all_there_is()
    bob = await stack.client_of("bob")
    await stack.open(OPEN, bob)
    for state, upload_id in victim.upload_ids.items():
        base, query = f"/files/{CONTENTS[state].md5}", f"?id={upload_id}"
        for method, path in (("GET", base), ("DELETE", base), ("POST", f"{base}/merge"), ("PUT", f"{base}/chunks/0")):
            response = await bob.request(method, path + query, content=b"")
            nobody = await bob.request(method, f"{path}?id={NOWHERE_ID}", content=b"")
            assert shape_of(response) == shape_of(nobody)
            assert response.status_code in (404, 410)
    assert await victim.all_there_is() == before
    assert [upload["md5"] for upload in (await bob.get("/uploads")).json()["uploads"]] == [OPEN.md5]


async def test_cursors_and_idempotency_keys_of_others_lead_nowhere(stack: Stack) -> None:
    victim = await Victim(stack).prepare()
    key = {"Idempotency-Key": "the same key"}
    hers = await stack.client.post("/uploads", json={"name": "a", "size": 1}, headers={"Idempotency-Key": "key"})
    bob = await stack.client_of("bob")
    his = await bob.post("/uploads", json={"name": "a", "size": 1}, headers={"Idempotency-Key": "key"})
    assert (hers.status_code, his.status_code) == (201, 201)
    assert hers.json()["upload"]["id"] != his.json()["upload"]["id"]
    problem(await bob.post("/uploads", json={"name": "a", "size": 1}, headers=key), 422, "invalid-request")
    page = await bob.get("/me/files", params={"after": victim.file_id})
    unknown = await bob.get("/me/files", params={"after": NOWHERE_ID})
    assert shape_of(page) == shape_of(unknown)
