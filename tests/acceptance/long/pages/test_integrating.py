"""docs/integrating.md: its pages and the commands beside them, as they stand there, in Chromium."""

import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import jwt
import pytest
from playwright.async_api import BrowserContext, Page, Route, expect

from tests.support.content import MIB, Content
from tests.support.documents import blocks
from tests.support.embedding import INTEGRATING, Running, as_printed
from tests.support.process import ended

CONTENT = Content(3 * MIB + 1, seed=241, name="film.mp4")
NOBODYS = "0" * 32


_, DJANGO, BESIDE = blocks(INTEGRATING, "bash")
SAME_ORIGIN, OTHER_ORIGIN = blocks(INTEGRATING, "html")


async def upload_and_save(page: Page, directory: Path, *, then_save: bool = True) -> None:
    """Choose the film in the element, and press the button of its form once it is finished."""
    path = directory / CONTENT.name
    path.write_bytes(CONTENT.data)
    await page.locator("uploader-drop input").set_input_files(path)
    await expect(page.locator('uploader-drop li[data-state="complete"]')).to_be_visible()
    if then_save:
        await page.get_by_role("button", name="Save").click()


async def test_a_form_of_django_has_the_element_and_takes_files_of_its_user(
    tmp_path: Path, context: BrowserContext
) -> None:
    with as_printed(tmp_path, "django_app", DJANGO) as app:
        page = await context.new_page()
        await page.goto(f"{app.url}/films/")  # leads to the login
        await page.get_by_label("Username").fill("alice")
        await page.get_by_label("Password").fill("secret")
        await page.get_by_role("button", name="Log in").click()
        await upload_and_save(page, tmp_path, then_save=False)
        # Without a title the form is shown again, and still has the film.
        await page.evaluate("document.querySelector('[name=title]').required = false")
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator(".errorlist")).to_have_text("This field is required.")
        await page.get_by_label("Title").fill("A film")
        await page.get_by_role("button", name="Save").click()
        link = page.get_by_role("link", name=f"films/{CONTENT.name}, {CONTENT.size} bytes")
        url = await link.get_attribute("href")
        assert httpx2.get(f"{app.url}{url}", timeout=60).content == CONTENT.data
        # An id that nobody has.
        await page.goto(f"{app.url}/films/")
        await page.evaluate(
            "(id) => document.querySelector('uploader-drop').outerHTML = `<input type=hidden name=film value=${id}>`",
            NOBODYS,
        )
        await page.get_by_label("Title").fill("Nobody's")
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator(".errorlist")).to_contain_text("This file is not there, or is not yours.")
        assert httpx2.get(f"{app.url}/uploads/me/files").status_code == 401


@pytest.mark.parametrize("html", [SAME_ORIGIN, OTHER_ORIGIN], ids=["in its process", "beside it"])
async def test_a_form_of_any_page_sends_the_id_of_the_file(tmp_path: Path, context: BrowserContext, html: str) -> None:
    """The same page, of an application whose origin the server has, and of another one."""
    is_beside = html is OTHER_ORIGIN
    if is_beside:
        app, prefix = Running(tmp_path, "", script=BESIDE), ""
        origin = "https://app.example"  # as the page's own command names it
    else:
        (tmp_path / "cookie_app.py").write_text(BY_COOKIE)
        app, prefix = Running(tmp_path, "", script="uvicorn cookie_app:app"), "/uploads"
        origin = app.url
    posted = list[str]()

    def token() -> str:
        secret = (tmp_path / "uploads.secret").read_text().strip()
        return jwt.encode({"sub": "alice", "exp": int(time.time()) + 900}, secret, algorithm="HS256")

    async def serve(route: Route) -> None:
        path = urlsplit(route.request.url).path
        if path == "/films":
            posted.append(route.request.post_data or "")
        if path == "/upload-token":
            await route.fulfill(content_type="text/plain", body=token())
        else:
            await route.fulfill(content_type="text/html", body=html.replace("https://uploads.example.com", app.url))

    with ended(app.process):
        app.wait(prefix)
        for path in ("/page", "/films", "/upload-token"):
            await context.route(f"{origin}{path}", serve)
        await context.add_cookies([{"name": "user", "value": "alice", "url": app.url}])
        page = await context.new_page()
        await page.goto(f"{origin}/page")
        await upload_and_save(page, tmp_path)
        await page.wait_for_url(f"{origin}/films")
        (told,) = parse_qs(posted[0])["film"]
        headers: dict[str, Any] = {"Authorization": f"Bearer {token()}"} if is_beside else {"Cookie": "user=alice"}
        found = httpx2.get(f"{app.url}{prefix}/me/files/{told}", headers=headers, timeout=60).json()
        assert (found["name"], found["sha256"]) == (f"films/{CONTENT.name}", CONTENT.sha256)


BY_COOKIE = """
from starlette.applications import Starlette
from starlette.requests import cookie_parser
from starlette.routing import Mount

from uploader.asgi import Identity, Uploader


def identify(scope):
    user = cookie_parser(dict(scope["headers"]).get(b"cookie", b"").decode()).get("user")
    return Identity(user) if user else None


uploads = Uploader(identify=identify)
app = Starlette(routes=[Mount("/uploads", uploads)], lifespan=lambda _app: uploads.running())
"""
