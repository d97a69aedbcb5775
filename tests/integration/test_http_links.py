"""Signed links: one file, for a while, without a token."""

import asyncio
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from tests.conftest import MakeStack
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.problems import problem
from tests.support.stack import Stack

CONTENT = Content(100 * KIB)


@pytest.fixture
async def file(stack: Stack) -> dict[str, Any]:
    return await a_file(stack)


async def a_file(stack: Stack, content: Content = CONTENT) -> dict[str, Any]:
    made: dict[str, Any] = (await stack.upload(content)).json()["file"]
    return made


async def a_link(stack: Stack, file_id: str, **body: Any) -> str:
    response = await stack.client.post(f"/me/files/{file_id}/link", json=body)
    assert response.status_code == 200
    url: str = response.json()["url"]
    return url


def altered(url: str, **values: str) -> str:
    """The link with other values in its query."""
    parts = urlsplit(url)
    return f"{parts.path}?{urlencode(dict(parse_qsl(parts.query)) | values)}"


async def test_a_link_downloads_without_a_token_whole_or_in_part(stack: Stack, file: dict[str, Any]) -> None:
    url, anonymous = await a_link(stack, file["id"]), stack.anonymous()
    whole = await anonymous.get(url)
    assert (whole.status_code, whole.content) == (200, CONTENT.data)
    assert whole.headers["content-disposition"].startswith("attachment;")
    part = await anonymous.get(url, headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, CONTENT.data[10:20])
    assert (await anonymous.head(url)).headers["content-length"] == str(CONTENT.size)
    assert stack.client.headers["authorization"].split()[1] not in url
    assert "alice" not in url
    assert (await anonymous.get(altered(url, user="alice"))).status_code == 200  # as earlier versions made them
    for garbage in ("~", "~alice", f"~{'é' * 64}", f"~{'A' * 64}"):
        problem(await anonymous.get(altered(url, user=garbage)), 401, "unauthenticated")
    assert (await stack.client.delete(f"/me/files/{file['id']}")).status_code == 204
    problem(await anonymous.get(url), 404, "file-not-found")


async def test_a_link_works_for_as_long_as_its_maker_and_the_settings_say(
    make_stack: MakeStack, clock: ManualClock
) -> None:
    week = 7 * 86400
    asked = (b"", 300), (b"{}", 300), (b'{"expires_in": 30}', 30), (b'{"expires_in": 2592000}', week)
    for longest, bodies in ((week, asked), (100, tuple((body, min(seconds, 100)) for body, seconds in asked))):
        async with make_stack(clock=clock, link_lifetime_seconds=float(longest)) as stack:
            path = f"/me/files/{(await a_file(stack))['id']}/link"
            for body, seconds in bodies:
                made = (await stack.client.post(path, content=body)).json()
                left = datetime.fromisoformat(made["expires_at"]) - clock.now()
                assert seconds - 1 <= left.total_seconds() <= seconds


async def test_a_link_is_asked_for_strictly_and_by_the_user_of_a_file(stack: Stack, file: dict[str, Any]) -> None:
    path = f"/me/files/{file['id']}/link"
    bodies = [f'{{"expires_in": {value}}}' for value in ("0", "-1", "2592001", '"60"', "1.5", "true", "null")]
    for body in (*bodies, '{"x": 1}', '{"expires_in": 1, "expires_in": 1}', "["):
        problem(await stack.client.post(path, content=body), 422, "invalid-request")
    for client in (await stack.client_of("bob"), await stack.client_of("root", admin=True)):
        problem(await client.post(path), 404, "file-not-found")
    problem(await stack.anonymous().post(path), 401, "unauthenticated")
    problem(await stack.client.post("/me/files/nothing/link"), 404, "file-not-found")


async def test_what_is_shown_runs_nothing(stack: Stack) -> None:
    """Its type is that of its name, and what browsers could run in the origin of the pages stays a download."""
    page = b"<script>alert(1)</script>"
    for name, media_type in (
        *(("a.png", "image/png"), ("a/b.MP4", "video/mp4"), ("x.flac", "audio/flac"), ("x.pdf", "application/pdf")),
        *((name, None) for name in ("a.html", "a.svg", "a.xhtml", "a.png.htm", "png", "a.js", "a.xml", "a.swf", "a.")),
    ):
        added = await stack.client.post("/me/files", params={"name": name}, content=page + name.encode())
        url = await a_link(stack, added.json()["file"]["id"])
        shown, saved = [await stack.anonymous().get(each) for each in (f"{url}&show=inline", url)]
        assert saved.headers["content-type"] == "application/octet-stream"
        assert shown.headers["content-type"] == (media_type or "application/octet-stream")
        assert shown.headers["content-disposition"].split(";")[0] == ("inline" if media_type else "attachment")
        assert shown.headers["x-content-type-options"] == "nosniff"
        policy = shown.headers["content-security-policy"]
        assert "script-src" not in policy
        assert policy == "sandbox" if media_type is None else "default-src 'none'" in policy
        assert ("sandbox" in policy) is (media_type != "application/pdf")
        assert shown.content == saved.content
    problem(await stack.anonymous().get(f"{url}&show=it"), 422, "invalid-request")


async def test_a_link_ends_when_it_says(make_stack: MakeStack, clock: ManualClock) -> None:
    async with make_stack(clock=clock) as stack:
        url = await a_link(stack, (await a_file(stack))["id"], expires_in=60)
        clock.advance(58)
        assert (await stack.anonymous().get(url)).status_code == 200
        clock.advance(2)
        problem(await stack.anonymous().get(url), 401, "unauthenticated")
        assert (await stack.client.get(urlsplit(url).path)).status_code == 200


async def test_nothing_of_a_link_can_be_changed(stack: Stack, file: dict[str, Any]) -> None:
    other = await a_file(stack, Content(70 * KIB, name="other"))
    bob = await stack.client_of("bob")
    url = await a_link(stack, file["id"], expires_in=86400)
    query = dict(parse_qsl(urlsplit(url).query))
    expires, signature = query["expires"], query["signature"]
    later = str(int(expires) + 1)
    tampered = [
        url.replace(file["id"], other["id"]),
        *(altered(url, user=user) for user in ("bob", "", "alice\n", "ALICE")),
        *(altered(url, expires=wrong) for wrong in (later, "", "x", f"0{expires}", f" {expires}", f"{expires}\n")),
        *(altered(url, expires=wrong) for wrong in ("٣", "1e12", "-1", "9" * 5000)),
        *(altered(url, signature=forged) for forged in ("", "x", signature.upper(), signature[:-1], signature + "0")),
        *(altered(url, signature=forged) for forged in ("é" * 64, "0" * 64, f"{signature}\n")),
        f"{url}&user=alice",
        f"{url}&signature={signature}",
        f"{url}&expires={later}",
        f"{urlsplit(url).path}?signature={signature}",
        f"{urlsplit(url).path}?user=alice&signature={signature}",
    ]
    for forged in tampered:
        problem(await stack.anonymous().get(forged), 401, "unauthenticated")
        # A bad link is no better with a token.
        problem(await bob.get(forged), 401, "unauthenticated")
    assert (await stack.anonymous().get(url)).status_code == 200


async def test_a_link_opens_nothing_but_its_content(stack: Stack, file: dict[str, Any]) -> None:
    query, place = urlsplit(await a_link(stack, file["id"])).query, f"/me/files/{file['id']}"
    others = ("/me/files", "/me/usage", "/uploads", f"/files/{CONTENT.md5}", "/admin/usage")
    operations = [("GET", place), ("PATCH", place), ("DELETE", place), ("POST", f"{place}/link")]
    for method, path in (*operations, *(("GET", path) for path in others)):
        problem(await stack.anonymous().request(method, f"{path}?{query}", json={}), 401, "unauthenticated")
    problem(await stack.anonymous().put(f"{place}/content?{query}"), 405, "method-not-allowed")


async def test_a_link_to_a_deleted_file_is_another_than_that_to_the_file(stack: Stack, file: dict[str, Any]) -> None:
    shared = await a_link(stack, file["id"])
    await stack.client.delete(f"/me/files/{file['id']}")
    problem(await (await stack.client_of("bob")).post(f"/me/trash/{file['id']}/link"), 404, "file-not-found")
    url = (await stack.client.post(f"/me/trash/{file['id']}/link")).json()["url"]
    anonymous = stack.anonymous()
    assert (await anonymous.get(url)).content == CONTENT.data
    problem(await anonymous.get(shared), 404, "file-not-found")
    problem(await anonymous.get(shared.replace("/me/files/", "/me/trash/")), 401, "unauthenticated")
    assert (await stack.client.post(f"/me/trash/{file['id']}/restore")).status_code == 200
    assert (await anonymous.get(shared)).status_code == 200
    problem(await anonymous.get(url.replace("/me/trash/", "/me/files/")), 401, "unauthenticated")


async def test_links_work_in_every_process_and_after_a_restart(make_stack: MakeStack) -> None:
    async with make_stack() as stack:
        file = await a_file(stack)
        made = await asyncio.gather(*(a_link(stack, file["id"]) for _ in range(5)))
        async with make_stack() as another:
            for url in (*made, await a_link(stack, file["id"])):
                assert (await another.anonymous().get(url)).status_code == 200
