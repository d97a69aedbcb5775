"""The server below a path of its public URL, or of the application that it is a part of: what is asked with the prefix and
without it, and what is told."""

import json
import re

import httpx2
import pytest

from tests.conftest import MakeStack
from tests.support.archives import Entry, archive
from tests.support.content import KIB, Content
from tests.support.problems import problem
from tests.support.sockets import serving_stack
from tests.support.stack import Stack
from uploader.bootstrap.application import check_public_url
from uploader.errors import ConfigurationError
from uploader.settings import Settings

PUBLIC_URL = "https://files.example:444/a/store"
ORIGIN, PREFIX = PUBLIC_URL[:-8], "/a/store"
CONTENT = Content(100 * KIB, chunk_size=64 * KIB)
OTHER = Content(10, seed=2)
# What may come with any request, and changes nothing.
LIES = {"X-Forwarded-Host": "evil.example", "X-Forwarded-Prefix": "/evil", "Forwarded": "host=evil.example;proto=http"}
TUS = {"Tus-Resumable": "1.0.0"}
LAST = {"Upload-Complete": "?1", "Upload-Offset": "0", "Content-Type": "application/partial-upload"}


async def places_told(client: httpx2.AsyncClient, prefix: str) -> list[str]:
    """All that is told of where something is, while it is asked by paths with this prefix."""
    answers = [
        await client.post(
            f"{prefix}/files/{CONTENT.md5}", json={"name": "a", "size": CONTENT.size, "chunk_size": CONTENT.chunk_size}
        ),
        *[
            await client.put(f"{prefix}/files/{CONTENT.md5}/chunks/{n}", content=CONTENT.chunk(n))
            for n in range(CONTENT.chunk_count)
        ],
        await client.post(f"{prefix}/uploads", json={"name": "b", "size": 5}),
        await client.post(f"{prefix}/me/files?name=c", content=b"c"),
        await client.post(f"{prefix}/resumable/", headers={**TUS, "Upload-Length": "4"}),
        await client.post(f"{prefix}/resumable", headers={"Upload-Complete": "?1"}, content=b"whole"),
        begun := await client.post(f"{prefix}/resumable", headers={"Upload-Complete": "?0"}),
        await client.patch(begun.headers["location"], headers=LAST, content=b"last"),
    ]
    assert [answer.status_code for answer in answers] == [201, 200, 201, 201, 201, 201, 201, 201, 201]
    headers = [answer.headers.get(name) for answer in answers for name in ("location", "content-location")]
    return [value for value in headers if value is not None]


@pytest.mark.parametrize("asked", [PREFIX, ""], ids=["kept", "stripped"])
async def test_all_that_is_told_begins_with_the_public_url(make_stack: MakeStack, asked: str) -> None:
    async with make_stack(public_url=PUBLIC_URL) as stack:
        client = stack.client
        client.headers.update(LIES)
        told = await places_told(client, asked)
        assert len(told) == 10
        for place in told:
            path = place.removeprefix(ORIGIN)
            assert path.startswith(f"{PREFIX}/"), place
            assert (await client.get(path, headers=TUS if "resumable" in path else {})).status_code < 500
        file_id = told[1].rpartition("/")[2]
        links = [
            await client.post(f"{asked}/me/files/{file_id}/link"),
            await client.post(f"{asked}/me/archive/link", json={"ids": [file_id]}),
        ]
        for link in (answer.json()["url"] for answer in links):
            assert link.startswith(f"{PREFIX}/me/")
        assert (await stack.anonymous().get(links[0].json()["url"])).content == CONTENT.data
        shared = await client.post(f"{asked}/me/links", json={"kind": "download", "name": "a"})
        assert shared.headers["location"].startswith(f"{PREFIX}/me/links/")
        visited = shared.json()["url"]
        assert visited.startswith(f"{PREFIX}/s/")
        session = await stack.anonymous().post(f"{visited}/session", json={})
        visitor = {"Authorization": f"Bearer {session.json()['token']}"}
        signed = (await stack.anonymous().post(f"{visited}/link", json={}, headers=visitor)).json()["url"]
        assert signed.startswith(f"{PREFIX}/s/")
        config = (await client.get(f"{asked}/config")).json()
        assert config["public_url"] == PUBLIC_URL
        assert (await client.get(f"{asked}/openapi.json")).json()["servers"] == [{"url": PUBLIC_URL}]
        await problems_and_pages(stack, asked, PREFIX)


async def problems_and_pages(stack: Stack, asked: str, prefix: str) -> None:
    """`asked`: what requests begin with, `prefix`: what answers have to."""
    client = stack.client
    refused = problem(await client.get(f"{asked}/me/files/nothing"), 404, "file-not-found", prefix)
    explained = await client.get(refused["type"])
    assert (explained.status_code, explained.headers["content-type"].split(";")[0]) == (200, "text/html")
    assert "<h1>File not found</h1>" in explained.text
    batch = await client.post(f"{asked}/files/batch", content=archive(Entry("../x", b"1")))
    assert batch.json()["results"][0]["problem"]["type"] == f"{prefix}/problems/invalid-request"
    for nowhere in (f"{asked}/nowhere", f"{prefix}{prefix}/config", f"{prefix}er/config"):
        problem(await client.get(nowhere), 404, "not-found", prefix)
    for page in ("/", "/admin/", "/docs"):
        answer = await client.get(f"{asked}{page}")
        parts = re.findall(r'(?:src|href)="(/[^"]*)"', answer.text)
        assert len(parts) > 1
        assert all(part.startswith(f"{prefix}/") for part in parts)
        again = await client.get(f"{asked}{page}", headers={"If-None-Match": answer.headers.get("etag", '"none"')})
        assert again.status_code == (200 if page == "/docs" else 304)
    if asked:
        assert (await client.get(asked)).text == (await client.get(f"{asked}/")).text


@pytest.mark.parametrize("is_told", [True, False], ids=["path with the root", "path without it"])
async def test_within_an_application_its_root_path_is_the_prefix(stack: Stack, is_told: bool) -> None:
    transport = httpx2.ASGITransport(app=stack.app, root_path=PREFIX)
    asked = PREFIX if is_told else ""
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://test", headers=stack.client.headers
    ) as stack.client:
        told = await places_told(stack.client, asked)
        assert {place.removeprefix("http://test")[: len(PREFIX)] for place in told} == {PREFIX}
        assert (await stack.client.get(f"{asked}/config")).json()["public_url"] is None
        assert (await stack.client.get(f"{asked}/openapi.json")).json()["servers"] == [{"url": PREFIX}]
        await problems_and_pages(stack, asked, PREFIX)


async def test_a_root_path_that_somebody_chose_is_told_as_a_path_alone(stack: Stack) -> None:
    """An application may mount below a parameter."""
    transport = httpx2.ASGITransport(app=stack.app, root_path='/é"><script>')
    async with httpx2.AsyncClient(transport=transport, base_url="http://test", headers=stack.client.headers) as client:
        page = (await client.get("/")).text
        assert "/%C3%A9%22%3E%3Cscript%3E/static/" in page
        assert "é" not in page
        opened = await client.post("/uploads", json={"name": "b", "size": 5})
        assert opened.headers["location"].startswith("/%C3%A9%22%3E%3Cscript%3E/uploads/")


async def test_parts_are_named_by_the_addresses_that_were_told(make_stack: MakeStack) -> None:
    async with make_stack(public_url=PUBLIC_URL) as stack:
        made = [
            await stack.client.post(
                f"{PREFIX}/resumable", headers={**TUS, "Upload-Concat": "partial", "Upload-Length": "1"}
            )
            for _ in range(2)
        ]
        one, two = (answer.headers["location"] for answer in made)
        assert one.startswith(f"{PUBLIC_URL}/resumable/")
        paths = f"final;{one} {two.removeprefix(PUBLIC_URL)}"
        final = await stack.client.post(f"{PREFIX}/resumable/", headers={**TUS, "Upload-Concat": paths})
        assert final.status_code == 201
        elsewhere = f"final;{one} {two.replace(PREFIX, '/b/store')}"
        refused = await stack.client.post("/resumable", headers={**TUS, "Upload-Concat": elsewhere})
        assert refused.status_code == 400


async def test_what_never_reaches_the_application_has_the_prefix_too(make_stack: MakeStack) -> None:
    async with serving_stack(make_stack, public_url=PUBLIC_URL, max_connections=1) as server:
        async with server.connection() as connection:
            await connection.request("GET", "/" + "x" * 10_000)
            assert json.loads((await connection.answer()).body)["type"] == f"{PREFIX}/problems/target-too-long"
        async with server.connection(), server.connection() as beyond:
            await beyond.request("GET", f"{PREFIX}/livez")
            assert (await beyond.answer()).status == 200


def test_a_path_that_makes_routes_look_alike_is_refused() -> None:
    fine = ("", "/", "/store", "/a/b/", "/files", "/file", "/store/me")
    alike = (
        "/me",
        "/admin",
        "/uploads",
        "/resumable",
        "/docs",
        "/static",
        "/static/files/",
        "/files/batch",
        "/me/files",
    )
    for path in (*fine, *alike, "/config"):
        settings = Settings.load({"UPLOADER_PUBLIC_URL": f"https://Files.example{path}"})
        assert settings.public_url == f"https://files.example{path.rstrip('/')}"
        if path in fine:
            check_public_url(settings)
            continue
        with pytest.raises(ConfigurationError, match=f"^UPLOADER_PUBLIC_URL: with the path {path.rstrip('/')}, "):
            check_public_url(settings)


def test_what_is_no_url_of_a_server_is_refused() -> None:
    for url in (
        *("files.example/store", "ftp://files.example", "https:///store", "https://a@files.example"),
        *("https://f.example/../b", "https://f.example/a//b", "https://f.example/?q", "https://f.example/#a"),
        *("https://f.example/a%2Fb", "https://f.example/a b"),
    ):
        with pytest.raises(ConfigurationError, match=r"UPLOADER_PUBLIC_URL: .*not a URL such as"):
            Settings.load({"UPLOADER_PUBLIC_URL": url})
