"""Links: strangers get files, or give some, each a stranger to the others."""

from typing import Any

import httpx2

from tests.support.content import KIB, Content
from tests.support.problems import problem
from tests.support.stack import Stack

CONTENT = Content(200 * KIB)


async def make_link(stack: Stack, kind: str = "upload", name: str = "inbox/", **more: Any) -> dict[str, Any]:
    response = await stack.client.post("/me/links", json={"kind": kind, "name": name, **more})
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


async def visit(stack: Stack, link: dict[str, Any], **body: Any) -> httpx2.AsyncClient:
    response = await stack.anonymous().post(f"{link['url']}/session", json=body)
    assert response.status_code == 201, response.text
    client = stack.anonymous()
    client.headers["authorization"] = f"Bearer {response.json()['token']}"
    return client


async def send(client: httpx2.AsyncClient, content: Content, name: str) -> httpx2.Response:
    return await client.put(f"/files/{content.md5}", params={"name": name}, content=content.data)


async def test_smoke(stack: Stack) -> None:
    link = await make_link(stack, label="Your homework")
    visitor = await visit(stack, link)
    sent = await send(visitor, CONTENT, "a/b.txt")
    assert (sent.status_code, sent.json()["file"]["name"]) == (201, "a/b.txt")
    again = await send(visitor, CONTENT, "a/b.txt")
    assert (again.status_code, again.json()) == (200, sent.json())
    other = await visit(stack, link)
    second = await send(other, CONTENT, "a/b.txt")
    assert (second.status_code, second.json()["file"]["name"]) == (201, "a/b.txt")
    files = (await stack.client.get("/me/files")).json()["files"]
    assert sorted(file["name"] for file in files) == ["inbox/a/b (2).txt", "inbox/a/b.txt"]
    problem(await visitor.get("/me/files"), 403, "forbidden")
    shared = await make_link(stack, "download", "inbox/")
    reader = await visit(stack, shared)
    listed = (await reader.get(f"{shared['url']}/files")).json()["files"]
    assert sorted(file["name"] for file in listed) == ["a/b (2).txt", "a/b.txt"]
    got = await reader.get(f"{shared['url']}/files/{listed[0]['id']}/content")
    assert got.content == CONTENT.data
