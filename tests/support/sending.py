"""Requests to a server process, however busy its machine is; a content that goes there by chunks."""

from collections.abc import Iterable

import httpx2

from tests.support.content import Content
from tests.support.waiting import PATIENCE_SECONDS


def client_with(token: str, url: str) -> httpx2.Client:
    """The caller closes it."""
    return httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_SECONDS)


def get(url: str, token: str | None = None) -> httpx2.Response:
    """By a connection of its own."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx2.get(url, headers=headers, timeout=PATIENCE_SECONDS)


def put(client: httpx2.Client, content: Content, numbers: Iterable[int]) -> httpx2.Response:
    """Send chunks of an open upload; the last answer."""
    response = None
    for number in numbers:
        response = client.put(f"/files/{content.md5}/chunks/{number}", content=content.chunk(number))
        assert response.is_success, response.text
    assert response is not None
    return response


def send(client: httpx2.Client, content: Content, numbers: Iterable[int] | None = None) -> httpx2.Response:
    """Open an upload and send these chunks of it, or all; the last answer."""
    body = {"name": content.name, "size": content.size, "chunk_size": content.chunk_size}
    opened = client.post(f"/files/{content.md5}", json=body)
    assert opened.status_code == 201, opened.text
    return put(client, content, range(content.chunk_count) if numbers is None else numbers)
