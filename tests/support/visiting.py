"""Links as their owners make them, and the visitors who come by them."""

from typing import Any

import httpx2

from tests.support.content import Content
from tests.support.stack import Stack


async def make_link(stack: Stack, kind: str = "upload", name: str = "inbox/", **more: Any) -> dict[str, Any]:
    response = await stack.client.post("/me/links", json={"kind": kind, "name": name, **more})
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


async def visit(stack: Stack, link: dict[str, Any], **body: Any) -> httpx2.AsyncClient:
    """A client with the token of a new session."""
    response = await stack.anonymous().post(f"{link['url']}/session", json=body)
    assert response.status_code == 201, response.text
    client = stack.anonymous()
    client.headers["authorization"] = f"Bearer {response.json()['token']}"
    return client


async def send(client: httpx2.AsyncClient, content: Content, name: str) -> httpx2.Response:
    return await client.put(f"/files/{content.md5}", params={"name": name}, content=content.data)


async def names_of(client: httpx2.AsyncClient, prefix: str = "") -> list[str]:
    found = (await client.get("/me/files", params={"prefix": prefix})).json()["files"]
    return sorted(file["name"] for file in found)
