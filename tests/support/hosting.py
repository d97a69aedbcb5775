"""An `Uploader` in an application of a test's own, in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from starlette.types import ASGIApp, Scope

from tests.support.content import KIB, Content
from uploader.asgi import Identity, Uploader

PREFIX = "/uploads"
CONTENT = Content(3 * 64 * KIB - 5, chunk_size=64 * KIB)
MakeUploader = Callable[..., Uploader]


def identify(scope: Scope) -> Identity | None:
    user_id = dict(scope["headers"]).get(b"x-user", b"").decode()
    return Identity(user_id, admin=user_id == "root") if user_id else None


def configure_django() -> None:
    """Once for all tests of a process."""
    import django
    from django.conf import settings

    if not settings.configured:
        urls = "tests.integration.test_asgi"
        settings.configure(SECRET_KEY="x", ROOT_URLCONF=urls, ALLOWED_HOSTS=["test"], LOGGING_CONFIG=None)
        django.setup()


@asynccontextmanager
async def living(app: ASGIApp) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of an application between its startup and its shutdown, as a server makes them."""
    to_app, from_app = asyncio.Queue[Any](), asyncio.Queue[Any]()
    scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    task = asyncio.ensure_future(app(scope, to_app.get, from_app.put))
    try:
        await to_app.put({"type": "lifespan.startup"})
        assert (told := await from_app.get())["type"] == "lifespan.startup.complete", told
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://test") as client:
            client.headers["X-User"] = "alice"
            yield client
    finally:
        await to_app.put({"type": "lifespan.shutdown"})
        await asyncio.wait_for(task, 60)
    assert (await from_app.get())["type"] == "lifespan.shutdown.complete"


async def send_file(client: httpx2.AsyncClient, prefix: str = PREFIX, name: str = "a") -> dict[str, Any]:
    """In chunks; the file."""
    opening = {"name": name, "size": CONTENT.size, "chunk_size": CONTENT.chunk_size}
    opened = await client.post(f"{prefix}/uploads", json=opening)
    assert opened.status_code == 201, opened.text
    place = opened.headers["location"]
    assert place.startswith(f"{prefix}/uploads/")
    for number in range(CONTENT.chunk_count):
        answer = await client.put(f"{place}/chunks/{number}", content=CONTENT.chunk(number))
    assert answer.status_code == 201, answer.text
    file: dict[str, Any] = answer.json()["file"]
    return file
