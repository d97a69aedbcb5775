"""How people come in, in a real Chromium: the question for a token, links that sign in, and the administrator who makes
users and tokens and takes them back."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from playwright.async_api import Browser, Locator, Page, expect
from sqlalchemy import delete, insert

from tests.conftest import MakeStack
from tests.support.browser import Visitor, visiting
from tests.support.jwts import hmac_signer
from tests.support.sites import PREFIX, Site, a_site
from tests.support.sockets import serving_stack
from uploader.database import models

GIB = 1 << 30


@pytest.fixture
async def site(make_stack: MakeStack) -> AsyncIterator[Site]:
    """Its figures are what the test makes them: no jobs."""
    async with a_site(make_stack, jobs=False) as made:
        yield made


@pytest.fixture
async def guest(browser: Browser, site: Site) -> AsyncIterator[Visitor]:
    """Somebody who has not signed in."""
    async with visiting(browser, site.url) as made:
        yield made


@asynccontextmanager
async def _administrating(browser: Browser, site: Site, **options: Any) -> AsyncIterator[Visitor]:
    async with site.stack.services.database.engine.begin() as connection:  # whom the tests make for each server
        await connection.execute(delete(models.user_info).where(models.user_info.c.user_id == "alice"))
    async with visiting(browser, site.url, **options) as visitor:
        await visitor.sign_in(await site.token("root", admin=True), "/admin/")
        yield visitor


async def _status_with(site: Site, token: str) -> int:
    async with httpx2.AsyncClient(base_url=site.url, headers={"Authorization": f"Bearer {token}"}) as client:
        return (await client.get("/me/usage")).status_code


def _sign_in(page: Page) -> Locator:
    return page.get_by_role("dialog", name="Sign in")


# Signing in


async def test_the_question_for_a_token_has_a_name_a_language_and_shows_it(site: Site, guest: Visitor) -> None:
    page = guest.page
    await guest.go()
    dialog = _sign_in(page)
    await expect(dialog).to_contain_text("uploader")
    await expect(dialog).to_contain_text("owner.token")  # this server is on this machine
    field = page.get_by_label("Token")
    await expect(field).to_be_focused()
    await expect(field).to_have_attribute("type", "password")
    await page.keyboard.type("not a token")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(field).to_have_attribute("type", "text")
    await expect(dialog.get_by_role("button", name="Show")).to_have_attribute("aria-pressed", "true")
    await dialog.get_by_role("button", name="Sign in").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("does not know this token")
    assert await guest.violations() == []
    await dialog.get_by_label("Language").select_option("zh")
    await expect(page.get_by_label("令牌")).to_have_value("not a token")
    await expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("服务器不认识此令牌")


async def test_elsewhere_nothing_is_said_of_the_first_token(site: Site, guest: Visitor) -> None:
    page = guest.page
    await page.route("http://files.example/**", lambda route: _pass_on(route, site.server.url))
    await page.goto(f"http://files.example{PREFIX}/")
    await expect(_sign_in(page)).to_be_visible()
    await expect(_sign_in(page)).not_to_contain_text("owner.token")
    await page.unroute_all(behavior="wait")


async def _pass_on(route: Any, url: str) -> None:
    await route.fulfill(response=await route.fetch(url=route.request.url.replace("http://files.example", url)))


async def test_where_tokens_are_made_by_others_that_is_said(make_stack: MakeStack, browser: Browser) -> None:
    secret = "a secret that is long enough to sign"
    async with (
        serving_stack(make_stack, auth="jwt", jwt_secret=secret) as server,
        visiting(browser, server.url) as visitor,
    ):
        page = visitor.page
        await visitor.go("/admin/")
        await expect(_sign_in(page)).to_contain_text("JWT")
        await expect(_sign_in(page)).not_to_contain_text("owner.token")
        claims = {"sub": "root", "scope": "admin", "exp": 4_000_000_000}
        await visitor.sign_in(hmac_signer(secret).token(claims), "/admin/")
        await visitor.press("root")
        await expect(page.get_by_role("dialog", name="root").get_by_label("Total space")).to_be_visible()
        await expect(page.get_by_text("Make a token")).to_have_count(0)
        await page.keyboard.press("Escape")
        # A user without a token needs a space; there is no default to leave it to.
        await visitor.press("New user")
        await page.get_by_label("Name or id").fill("carol")
        await visitor.press("Make the user")
        await expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text("Give a number, 0 or larger.")
        await page.get_by_label("Space they may use").fill("3")
        await visitor.press("Make the user")
        await expect(page.get_by_role("dialog", name="carol")).to_be_visible()
        assert (await server.stack.services.files.usage("carol")).total_space == 3 * GIB


async def test_where_nobody_signs_in_nobody_is_made(make_stack: MakeStack, browser: Browser) -> None:
    async with serving_stack(make_stack, auth="none") as server, visiting(browser, server.url) as visitor:
        await visitor.go()
        await expect(visitor.page.get_by_text("Drop files or folders here")).to_be_visible()
        await expect(visitor.page.get_by_label("Token")).to_have_count(0)
        await visitor.page.get_by_role("link", name="Administration").click()
        users = visitor.page.get_by_role("region", name="Users with what they store")
        await expect(users.get_by_role("button", name="local")).to_be_visible()
        await expect(visitor.page.get_by_role("button", name="New user")).to_have_count(0)


async def test_a_link_signs_in_and_takes_nobodys_place_without_asking(site: Site, guest: Visitor) -> None:
    page, token = guest.page, await site.token(admin=True)
    await guest.go("/#token=upl_nothing")
    await expect(_sign_in(page).get_by_role("alert")).to_contain_text("does not know this token")
    assert page.url == f"{site.url}/"
    for path in ("/admin/", "/"):
        await guest.go(f"{path}#token={token}")
        await page.locator("#app").wait_for()
        assert page.url == site.url + path
        await guest.load_anew()
        await expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    administration = page.get_by_role("link", name="Administration")
    await expect(administration).to_be_visible()
    link = f"{site.url}/#token={await site.token('mallory')}"
    for answer, is_alice in (("Back", True), ("Sign in", False)):
        # The page is there already: only its address changes.
        await page.evaluate("(link) => { location.href = link; }", link)
        await expect(page.get_by_role("dialog")).to_contain_text("Sign in with this link?")
        await guest.press(answer)
        await page.locator("#app").wait_for()
        await expect(administration).to_have_count(int(is_alice))
        assert page.url == f"{site.url}/"


# Administration


async def test_the_first_day_and_days_without_anything_are_told_in_words(browser: Browser, site: Site) -> None:
    async with _administrating(browser, site) as visitor:
        page = visitor.page
        await expect(page.locator("#growth-none")).to_contain_text("Nothing to compare yet.")
        await expect(page.locator("#growth .tiles, #growth canvas")).to_have_count(0)
        await expect(page.get_by_role("radio")).to_have_count(0)
        await expect(page.locator("#users-alone")).to_contain_text("Nobody else is here yet.")
        assert "–" not in await page.locator("#growth").inner_text()
        assert await visitor.violations() == []
        now = datetime.now(UTC)
        days = [{"day": (now - timedelta(ago)).date(), "taken_at": now - timedelta(ago)} for ago in (1, 8)]
        async with site.stack.services.database.engine.begin() as connection:
            await connection.execute(insert(models.usage_daily).values(days))
        await visitor.press("Refresh")
        await expect(page.locator("#growth-none")).to_have_text("Nothing was stored in these days.")
        await expect(page.locator("[data-figure=growth-7] .figure")).to_have_text("0 B")
        await expect(page.locator("#growth canvas")).to_have_count(0)


async def test_a_user_is_made_with_a_token_that_is_shown_once(browser: Browser, site: Site) -> None:
    async with _administrating(browser, site) as visitor:
        page = visitor.page
        await page.get_by_role("button", name="New user").focus()
        await page.keyboard.press("Enter")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text("Give a name or an id.")
        await page.keyboard.type("root")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("root is here already")
        await page.get_by_label("Name or id").fill("carol")
        await page.keyboard.press("Tab")
        await page.keyboard.type("2")
        await page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="carol")
        token = await dialog.get_by_label("Token", exact=True).input_value()
        await expect(dialog.get_by_label("Link that signs in", exact=True)).to_have_value(f"{site.url}/#token={token}")
        await expect(dialog).to_contain_text("works on this machine alone")
        assert await _status_with(site, token) == 200
        assert (await site.stack.services.files.usage("carol")).total_space == 2 * GIB
        await page.set_viewport_size({"width": 390, "height": 800})  # as on a phone
        for shown in ("document.documentElement", "document.querySelector('dialog')"):
            assert await page.evaluate(f"{shown}.scrollWidth <= {shown}.clientWidth")
        assert await visitor.violations() == []
        await page.keyboard.press("Escape")
        await expect(page.locator("#users tbody tr")).to_have_count(2)
        await expect(page.locator("#users-alone")).to_be_hidden()
        await visitor.press("carol")
        await expect(dialog.get_by_role("button", name=re.compile("^Revoke "))).to_have_count(1)
        assert token not in await page.content()


async def test_a_token_is_made_copied_and_revoked(browser: Browser, site: Site) -> None:
    async with _administrating(browser, site, permissions=["clipboard-read", "clipboard-write"]) as visitor:
        page = visitor.page
        await visitor.press("root")
        dialog = page.get_by_role("dialog", name="root")
        await dialog.get_by_label("May administer this server").check()
        await dialog.get_by_role("button", name="Make a token").click()
        await dialog.get_by_role("button", name="Copy: Token").click()
        await expect(dialog.get_by_text("Copied")).to_be_visible()
        token = await page.evaluate("navigator.clipboard.readText()")
        assert await _status_with(site, token) == 200
        # The newest is the first; the other one is the one that signed in here.
        revoke = dialog.get_by_role("button", name=re.compile("^Revoke "))
        await expect(revoke).to_have_count(2)
        await revoke.last.click()
        await page.get_by_role("dialog", name="Revoke the token?").get_by_role("button", name="Revoke").click()
        await expect(dialog.get_by_role("alert").first).to_contain_text("the token that you are signed in with")
        await revoke.first.click()
        await page.get_by_role("dialog", name="Revoke the token?").get_by_role("button", name="Revoke").click()
        await expect(revoke).to_have_count(1)
        await expect(dialog.get_by_text(re.compile("^Revoked "))).to_have_count(1)
        await expect(dialog.get_by_text("by administrator root")).to_have_count(1)
        await site.stack.services.accounts.create_token("root", admin=False, scope="metrics")
        await page.keyboard.press("Escape")
        await visitor.press("root")
        await expect(dialog.get_by_role("row").filter(has_text="Read metrics")).to_contain_text("by command ")
        assert await _status_with(site, token) == 401
