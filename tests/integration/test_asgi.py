"""The server as a part of an application: mounted in those that people write, with their users, and in process."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx2
import pytest
from django.core.asgi import get_asgi_application
from django.http import HttpResponse
from django.urls import path
from fastapi import FastAPI
from litestar import Litestar, asgi
from sqlalchemy import make_url
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.support.hosting import CONTENT, PREFIX, MakeUploader, configure_django, identify, living, send_file
from tests.support.problems import problem
from tests.support.relay import relaying
from tests.support.servers import free_port
from tests.support.waiting import eventually
from uploader.asgi import FileNotFound, Identity, Uploader
from uploader.contrib.django import mount
from uploader.errors import ConfigurationError, Unavailable
from uploader.settings import Settings


async def identify_later(scope: Scope) -> Identity | None:
    await asyncio.sleep(0)
    return identify(scope)


def starlette(uploads: Uploader) -> ASGIApp:
    return Starlette(routes=[Mount(PREFIX, uploads)], lifespan=lambda _app: uploads.running())


def fastapi(uploads: Uploader) -> ASGIApp:
    app = FastAPI(lifespan=lambda _app: uploads.running())
    app.mount(PREFIX, uploads)
    return app


def litestar(uploads: Uploader) -> ASGIApp:
    @asgi(PREFIX, is_mount=True, copy_scope=True)
    async def mounted(scope: Scope, receive: Receive, send: Send) -> None:
        # The path comes without the prefix, and with a slash at its end.
        whole = {"path": unquote(scope["raw_path"].decode()), "root_path": PREFIX}
        await uploads({**scope, **whole}, receive, send)

    # Its own logging would be that of all tests that follow.
    lifespan = [lambda _app: uploads.running()]
    return Litestar([mounted], lifespan=lifespan, logging_config=None)  # type: ignore[return-value]


def django(uploads: Uploader) -> ASGIApp:
    """Which mounts nothing and has no lifespan."""
    configure_django()
    application: ASGIApp = mount(uploads, PREFIX, get_asgi_application())
    return application


# Of Django.
urlpatterns = [path("films/", lambda _request: HttpResponse("films"))]


@pytest.mark.parametrize("host", [starlette, fastapi, litestar, django], ids=lambda host: host.__name__)
async def test_mounted_it_serves_below_its_path(
    make_uploader: MakeUploader, host: Callable[[Uploader], ASGIApp]
) -> None:
    uploads = make_uploader()
    async with living(host(uploads)) as client:
        file = await send_file(client)
        assert (await client.get(f"{PREFIX}/me/files/{file['id']}/content")).content == CONTENT.data
        refused = problem(await client.get(f"{PREFIX}/me/files/nothing"), 404, "file-not-found", PREFIX)
        assert (await client.get(refused["type"])).status_code == 200
        assert f'src="{PREFIX}/static/' in (await client.get(f"{PREFIX}/")).text
        begun = {"Tus-Resumable": "1.0.0", "Upload-Length": "3"}
        created = await client.post(f"{PREFIX}/resumable", headers=begun)
        assert created.headers["location"].startswith(f"http://test{PREFIX}/resumable/")
        found = await uploads.files.get("alice", file["id"])
        assert (found.name, found.sha256) == ("a", CONTENT.sha256)
        if host is django:
            assert (await client.get("/films/")).text == "films"
            assert (await client.get(f"{PREFIX}er/")).status_code == 404
            assert (await client.get(PREFIX)).text == (await client.get(f"{PREFIX}/")).text


async def test_start_waits_for_the_database_in_the_background(make_uploader: MakeUploader, served_url: str) -> None:
    url, port = make_url(served_url), free_port()
    told = url.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    uploads = make_uploader(database_url=told, secret="0123456789abcdef" * 4)
    async with living(starlette(uploads)) as client:
        problem(await client.get(f"{PREFIX}/me/usage"), 503, "unavailable", PREFIX)
        assert (await client.get(f"{PREFIX}/livez")).status_code == 200
        assert "is away" in (await client.get(f"{PREFIX}/readyz")).json()["checks"]["start"]["reason"]
        with pytest.raises(Unavailable):
            _ = uploads.files
        with relaying(url.port or 3306, port=port):
            await eventually(lambda: is_served(client))
            await send_file(client)
            assert (await uploads.files.list("alice"))[0]


async def is_served(client: httpx2.AsyncClient) -> bool:
    return (await client.get(f"{PREFIX}/readyz")).status_code == 200


async def test_it_serves_alone_and_again(make_uploader: MakeUploader) -> None:
    uploads = make_uploader()
    for name in ("a", "b"):
        async with living(uploads) as client:
            await send_file(client, "", name)
            page, cursor = await uploads.files.list("alice", limit=1)
            assert ([file.name for file in page], cursor is None) == ([name], name == "a")
    with pytest.raises(RuntimeError, match="does not run: enter"):
        _ = uploads.files
    with pytest.raises(RuntimeError, match="does not run: enter"):
        await httpx2.AsyncClient(transport=httpx2.ASGITransport(app=uploads), base_url="http://test").get("/livez")


async def test_what_is_read_in_process_is_the_users_own(make_uploader: MakeUploader) -> None:
    uploads = make_uploader()
    async with living(uploads) as client:
        file = await send_file(client, "")
        found = await uploads.files.get("alice", file["id"])
        for offset in (0, 100_000, CONTENT.size):
            assert b"".join([piece async for piece in uploads.files.read(found, offset)]) == CONTENT.data[offset:]
        with pytest.raises(FileNotFound):
            await uploads.files.get("bob", file["id"])


@pytest.mark.parametrize("who", [identify, identify_later], ids=["at once", "later"])
async def test_the_application_says_who_calls(make_uploader: MakeUploader, who: Callable[[Scope], Any]) -> None:
    async with living(make_uploader(identify=who)) as client:
        callers = {
            user: (await client.get("/me/identity", headers={"X-User": user})).json() for user in ("alice", "root")
        }
        assert callers == {user: {"user_id": user, "admin": user == "root"} for user in callers}
        assert (await client.get("/admin/usage", headers={"X-User": "root"})).status_code == 200
        problem(await client.get("/admin/usage"), 403, "forbidden")
        problem(await client.get("/me/usage", headers={"X-User": ""}), 401, "unauthenticated")
        # A cookie, by which it may know them, a browser sends along with what any page has it ask.
        for header in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
            problem(
                await client.post("/uploads", json={"name": "a", "size": 1}, headers=header), 401, "unauthenticated"
            )
        await send_file(client, "")


async def test_identity_of_other_types_is_refused(make_uploader: MakeUploader) -> None:
    """What stands for no elsewhere is true in Python."""
    values: list[tuple[Any, Any]] = [("eve", "no"), ("eve", 0), ("eve", None), (7, False), (b"eve", False)]
    for user_id, admin in values:
        with pytest.raises(TypeError, match="Identity: "):
            Identity(user_id, admin)
    uploads = make_uploader(identify=lambda _scope: ("eve", True))
    with pytest.raises(TypeError, match="returns an Identity or None"):
        await uploads.identity({})


async def test_handlers_are_told_at_least_once_and_again_until_they_do_not_fail(make_uploader: MakeUploader) -> None:
    uploads = make_uploader()
    told, refused = list[dict[str, Any]](), list[str]()

    @uploads.on("file.finished", "file.deleted")
    async def remember(event: dict[str, Any]) -> None:
        if not refused:
            refused.append(event["id"])
            raise LookupError("not yet")
        told.append(event)

    @uploads.on("file.finished", name="blocking-one")
    def count(event: dict[str, Any]) -> None:
        counted.append(event["subject"])

    counted = list[str]()

    async def all_told() -> bool:
        return len(told) >= 2 and bool(counted)

    async with living(uploads) as client:
        file = await send_file(client, "")
        await client.delete(f"/me/files/{file['id']}")
        await eventually(all_told, 60)
    assert refused[0] in {event["id"] for event in told}
    assert {event["type"] for event in told} == {"file.finished", "file.deleted"}
    assert {event["data"]["file"]["sha256"] for event in told} == {CONTENT.sha256}
    assert set(counted) == {file["id"]}


def test_a_handler_has_a_name_of_its_own_and_known_types(make_uploader: MakeUploader) -> None:
    uploads = make_uploader()
    uploads.on("file.finished", name="scan")(print)
    for types, name, why in (
        (("file.finished",), "scan", "'scan' is no name for a handler, or that of another"),
        (("file.finished",), "a/b", "no name for a handler"),
        (("file.finnished",), "b", "'file.finnished' is not a valid EventType"),
        ((), "b", "name the types"),
    ):
        with pytest.raises(ValueError, match=why):
            uploads.on(*types, name=name)(print)


@pytest.mark.parametrize(
    ("keywords", "why"),
    [
        ({"auth": "none", "identify": None}, "UPLOADER_AUTH: 'none' is not for a part"),
        ({"auth": "jwt", "jwt_secret": "x" * 32}, "UPLOADER_AUTH: 'jwt' is not for a part"),
        ({"tls_certificate": "a.pem", "tls_key": "a.key"}, "UPLOADER_TLS_CERTIFICATE: TLS is for the server"),
        ({"cors_origins": ["*"]}, r"UPLOADER_CORS_ORIGINS: '\*' would let any page"),
        ({"public_url": "https://files.example/me"}, "UPLOADER_PUBLIC_URL: with the path /me"),
        ({"max_file_sise": "1GiB"}, "UPLOADER_MAX_FILE_SISE: no such setting"),
        ({"max_file_size": "much"}, "UPLOADER_MAX_FILE_SIZE: 'much'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_are_not_for_a_part_are_refused(make_uploader: MakeUploader, keywords: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        make_uploader(**keywords)


async def test_a_start_that_fails_says_why(make_uploader: MakeUploader, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"UPLOADER_DATA: .* can't be made"):
        async with make_uploader(data=tmp_path / "file" / "data").running():
            pass
    silent = make_uploader(jobs=False)
    silent.on("file.finished")(print)
    with pytest.raises(ConfigurationError, match="UPLOADER_JOBS: what handlers are told of"):
        async with silent.running():
            pass


async def test_settings_may_be_given_whole_and_tokens_are_asked_for_without_an_application_that_knows(
    tmp_path: Path, redis_url: str
) -> None:
    uploads = Uploader(Settings(data=tmp_path / "data", redis_url=redis_url, free_space_floor_bytes=0))
    async with living(uploads) as client:
        problem(await client.get("/me/usage"), 401, "unauthenticated")
        token = (tmp_path / "data" / "owner.token").read_text().strip()
        known = await client.get("/me/identity", headers={"Authorization": f"Bearer {token}"})
        assert known.json() == {"user_id": "owner", "admin": True}
