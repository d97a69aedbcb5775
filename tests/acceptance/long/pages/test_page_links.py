"""Links on the web page, in a real Chromium: how an owner makes and ends them; how who has one sends and gets files."""

import asyncio
import hashlib
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from playwright.async_api import Browser, Locator, expect

from tests.support.browser import Visitor, visiting
from tests.support.content import KIB, MIB, Content
from tests.support.shelf import a_shelf
from tests.support.sites import CONNECTIONS, PREFIX, Site

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}}
SHARED = {"photos/a.txt": b"alpha", "photos/2026/b.txt": b"beta", "photos/2026/c.bin": b"gamma", "other.txt": b"other"}
SLUG = "AbCdEfGhIjKlMnOpQrStUvWx"
# Of a text, as zxing reads it: the SHA-256 of the outlines of its dark modules.
QR = {
    f"https://uploads.example.org/s/{SLUG}": "9c60747d188e20a922b151e1f4b3197059d92455d94a28117625f240ff36322b",
    "é": "52c7cab854a30ecd5fb41c98be3c9315eca89624b0e892aeda30661d866f0cfe",
    "x" * 2000: "a7ab654911d2d6f1c37d6a52f6488504e11d53c3a65cb0200e1574aeda8b2459",
}


async def made(site: Site, **facts: Any) -> str:
    answer = await site.stack.client.post("/me/links", json=facts)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["url"]).removeprefix(PREFIX)


@asynccontextmanager
async def coming(browser: Browser, site: Site, link: str, shows: str = "#title") -> AsyncIterator[Visitor]:
    """Somebody without an account, on a phone, who has opened a link and sees a part of its page."""
    async with visiting(browser, site.url, **PHONE) as visitor:
        await visitor.go(link)
        await visitor.page.locator(shows).wait_for()
        yield visitor
        assert await visitor.context.cookies() == []


def title(visitor: Visitor) -> Locator:
    return visitor.page.locator("#title")


async def test_a_stranger_sends_over_a_reload_and_a_lost_network(browser: Browser, site: Site, tmp_path: Path) -> None:
    """Nothing of what others sent is seen; what was begun goes on where it stopped."""
    link = await made(site, kind="upload", name="inbox/", label="Homework", max_files=9)
    large, small = Content(70 * MIB), {f"work/{number}.txt": b"%d" % number for number in range(5)}
    (tmp_path / "film.bin").write_bytes(large.data)
    for name, data in small.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    async with coming(browser, site, link, "#drop") as other:
        await other.choose(tmp_path / "work" / "0.txt")
        await expect(other.page.get_by_text("Sent. Thank you!")).to_be_visible()
    async with coming(browser, site, link, "#drop") as visitor:
        page = visitor.page
        await expect(title(visitor)).to_have_text("Homework")
        await expect(page.get_by_text("It takes 9 files.")).to_be_visible()
        assert await visitor.violations() == []
        site.gate.close(but=3)
        await visitor.choose(tmp_path / "film.bin")
        await site.gate.wait_until_ended(3)
        site.gate.open()
        page.once("dialog", lambda dialog: asyncio.ensure_future(dialog.accept()))
        await page.reload()
        await expect(page.locator("#unfinished")).to_contain_text("1 file is not complete yet")
        await expect(visitor.row("0.txt")).to_have_count(0)
        assert await visitor.violations() == []
        site.gate.close()
        await visitor.choose(tmp_path / "film.bin")
        await visitor.drop(tmp_path / "work")
        await site.gate.wait_until_held(1)
        await visitor.context.set_offline(True)
        await expect(visitor.tray).to_contain_text("No connection to the server")
        await visitor.context.set_offline(False)
        site.gate.open()
        await expect(page.get_by_text("Sent. Thank you!")).to_be_visible()
        await expect(page.locator("#thanks-words")).to_contain_text("6 files have arrived")
        # What was on its way at the reload, and when the network went, is sent again, and nothing else.
        chunks = large.size // MIB
        assert sum(site.gate.begun[str(number)] for number in range(chunks)) <= chunks + 2 * CONNECTIONS
        assert await visitor.violations() == []
        assert not await visitor.is_wider_than(390)
        await page.reload()
        await expect(page.locator("#sent")).to_contain_text("You have sent 6 files by this link")
    expected = {f"inbox/{name}": hashlib.sha256(data).hexdigest() for name, data in small.items()}
    expected |= {"inbox/film.bin": large.sha256, "inbox/0.txt": hashlib.sha256(b"0").hexdigest()}
    assert await site.sha256s() == expected


async def test_who_has_a_link_walks_through_a_folder(browser: Browser, site: Site) -> None:
    async with a_shelf(browser, site, SHARED):
        link = await made(site, kind="download", name="photos/", password="open sesame")
        async with coming(browser, site, link) as visitor:
            page = visitor.page
            for word in ("wrong", "open sesame"):
                await page.get_by_label("This link has a password").fill(word)
                assert await visitor.violations(["light"]) == []
                await visitor.press("Open")
                if word == "wrong":
                    await expect(page.get_by_text("That is not the password.")).to_be_visible()
            await expect(page.locator("#file-list .name")).to_have_text(["2026", "a.txt"])
            assert await visitor.violations() == []
            assert not await visitor.is_wider_than(390)
            await page.get_by_role("button", name="a.txt", exact=True).click()
            await expect(page.locator(".stage pre")).to_have_text("alpha")
            await expect(page.get_by_role("button", name="Share this file")).to_have_count(0)
            await page.keyboard.press("Escape")
            await page.get_by_role("link", name="2026", exact=True).click()
            await expect(page.locator("#file-list .name")).to_have_text(["b.txt", "c.bin"])
            async with page.expect_download() as download:
                await visitor.press("Download c.bin")
            assert (await (await download.value).path()).read_bytes() == b"gamma"
            for shared in ("photos/2026/", "photos/"):
                async with page.expect_download() as download:
                    await visitor.press("Download all")
                with zipfile.ZipFile(await (await download.value).path()) as archive:
                    assert {
                        f"photos/{name.removeprefix('photos/')}": archive.read(name) for name in archive.namelist()
                    } == {name: data for name, data in SHARED.items() if name.startswith(shared)}
                await page.locator("#path a").first.click()
            await page.get_by_role("link", name="2026", exact=True).click()
            await page.reload()  # the same visit: nobody is asked again
            await expect(page.locator("#file-list .name")).to_have_text(["b.txt", "c.bin"])


async def test_a_file_alone_is_downloaded(browser: Browser, site: Site) -> None:
    async with a_shelf(browser, site, SHARED):
        link = await made(site, kind="download", name="photos/a.txt", label="For you", max_downloads=1)
        async with coming(browser, site, link) as visitor:
            await expect(title(visitor)).to_have_text("For you")
            await visitor.page.get_by_label("Language").select_option("zh")
            async with visitor.page.expect_download() as download:
                await visitor.press("下载")
            assert (await (await download.value).path()).read_bytes() == b"alpha"
            await visitor.page.reload()  # it is used up, but not for who is there
            await expect(visitor.page.locator("#file-list .name")).to_have_text(["a.txt"])
        async with coming(browser, site, link) as visitor:
            await expect(title(visitor)).to_have_text("This link is used up")


async def test_a_link_that_has_ended_says_how(browser: Browser, site: Site) -> None:
    async with a_shelf(browser, site, SHARED):
        client, revoked = site.stack.client, await made(site, kind="download", name="other.txt")
        [listed] = (await client.get("/me/links")).json()["links"]
        assert (await client.delete(f"/me/links/{listed['id']}")).status_code == 204
        deleted = await made(site, kind="download", name="other.txt")
        [file] = (await client.get("/me/files", params={"prefix": "other.txt"})).json()["files"]
        assert (await client.delete(f"/me/files/{file['id']}")).status_code == 204
    for link, said in (
        (revoked, "This link was ended"),
        (deleted, "What this link led to is not there any more"),
        (f"{deleted}x", "There is no such link"),
    ):
        async with coming(browser, site, link) as visitor:
            await expect(title(visitor)).to_have_text(said)
            assert await visitor.violations(["light"]) == []


async def test_a_link_that_is_ended_while_files_are_sent_says_so(browser: Browser, site: Site, tmp_path: Path) -> None:
    link = await made(site, kind="upload", name="inbox/")
    (tmp_path / "film.bin").write_bytes(Content(70 * MIB).data)
    async with coming(browser, site, link, "#drop") as visitor:
        site.gate.close(but=1)
        await visitor.choose(tmp_path / "film.bin")
        await site.gate.wait_until_ended(1)
        [listed] = (await site.stack.client.get("/me/links")).json()["links"]
        await site.stack.client.delete(f"/me/links/{listed['id']}")
        site.gate.open()
        await expect(title(visitor)).to_have_text("This link was ended")
        await expect(visitor.page.locator("#drop")).to_be_hidden()


async def test_an_owner_makes_a_link_shows_changes_and_ends_it(browser: Browser, site: Site) -> None:
    async with a_shelf(browser, site, SHARED) as shelf:
        page, visitor = shelf.page, shelf.visitor
        await visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await visitor.ask_for("Share", "photos")
        dialog = page.get_by_role("dialog", name="Share photos")
        await dialog.get_by_label("Upload").check()
        await expect(dialog.get_by_text("They see nothing of what is there")).to_be_visible()
        await dialog.get_by_label("Text that visitors see").fill("Holiday")
        await dialog.get_by_label("How many files it takes").fill("none")
        await dialog.get_by_role("button", name="Make the link").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("not a number greater than 0")
        await dialog.get_by_label("How many files it takes").fill("7")
        await dialog.get_by_label("How much it takes").fill("0.5")
        assert await visitor.violations() == []
        await dialog.get_by_role("button", name="Make the link").click()
        shown = page.get_by_role("dialog", name="A link to send files into photos")
        await expect(shown.get_by_role("img", name="The link as a QR code")).to_be_visible()
        assert await visitor.violations() == []
        await shown.get_by_role("button", name="Copy").click()
        await expect(shown.get_by_text("Copied")).to_be_visible()
        url = str(await page.evaluate("navigator.clipboard.readText()"))
        await shown.get_by_role("button", name="Close").click()
        [listed] = (await site.stack.client.get("/me/links")).json()["links"]
        assert url == urljoin(visitor.url, listed["url"])
        limits = {name: listed[name] for name in ("kind", "name", "label", "max_files", "max_bytes", "has_password")}
        assert limits == {
            "kind": "upload",
            "name": "photos/",
            "label": "Holiday",
            "max_files": 7,
            "max_bytes": 512 * KIB * KIB,
            "has_password": False,
        }
        await page.get_by_role("link", name="Links").click()
        row = page.locator("#links-list .row")
        await expect(row).to_contain_text("0 files of 7")
        assert await visitor.violations() == []
        await _change(site, visitor, listed["id"])
        await visitor.press("End the link to Party")
        await page.get_by_role("dialog").get_by_role("button", name="End the link").click()
        await expect(page.get_by_text("You have no links.")).to_be_visible()
        assert (await site.stack.client.get("/me/links")).json() == {"links": []}


async def _change(site: Site, visitor: Visitor, link_id: str) -> None:
    """A link called Holiday, of 7 files and 0.5 GiB."""

    async def facts() -> dict[str, Any]:
        return dict((await site.stack.client.get(f"/me/links/{link_id}")).json())

    dialog, row = (
        visitor.page.get_by_role("dialog", name="Change the link to"),
        visitor.page.locator("#links-list .row"),
    )
    before = await facts()
    await visitor.press("Change the link to Holiday")
    await expect(dialog.get_by_label("How much it takes")).to_have_value("0.5")
    await dialog.get_by_label("It works until").fill("2020-01-01T12:00")
    assert await visitor.violations() == []
    await visitor.press("Change the link")
    await expect(dialog.get_by_role("alert")).to_contain_text("is not in the future")
    await dialog.get_by_label("It works until").fill("")
    await visitor.press("Change the link")
    await expect(dialog.get_by_role("alert")).to_contain_text("not a date and a time")
    soon = (datetime.now(UTC) + timedelta(days=2)).replace(second=0, microsecond=0)
    await dialog.get_by_label("It works until").fill(f"{soon:%Y-%m-%dT%H:%M}")
    await dialog.get_by_label("Text that visitors see").fill("Party")
    await dialog.get_by_label("Password (optional)").fill("open sesame")
    await dialog.get_by_label("How many files it takes").fill("")
    await visitor.press("Change the link")
    await expect(row).to_contain_text("with a password")
    changed = {"label": "Party", "has_password": True, "max_files": None, "expires_at": f"{soon:%Y-%m-%dT%H:%M:%SZ}"}
    assert await facts() == before | changed
    await visitor.press("Change the link to Party")
    await dialog.get_by_label("No password any more").check()
    await visitor.press("Change the link")
    await expect(row).not_to_contain_text("with a password")
    assert await facts() == before | changed | {"has_password": False}


async def test_an_administrator_ends_the_link_of_a_user(browser: Browser, site: Site) -> None:
    link = await made(site, kind="upload", name="inbox/", label="Homework")
    async with visiting(browser, site.url) as visitor:
        await visitor.sign_in(await site.token("root", admin=True), "/admin/")
        users = visitor.page.get_by_role("region", name="Users with what they store")
        await users.get_by_role("button", name="alice").click()
        dialog = visitor.page.get_by_role("dialog", name="alice")
        await expect(dialog.get_by_role("row").filter(has_text="Homework")).to_contain_text("0 files")
        assert await visitor.violations(["light"]) == []
        await dialog.get_by_role("button", name="End the link to inbox/").click()
        await visitor.press("End the link")
        await expect(dialog.get_by_text("No links.")).to_be_visible()
        gone = await site.stack.anonymous().get(link, headers={"Accept": "application/json"})
        assert gone.json()["reason"] == "revoked"


async def test_a_qr_code_holds_its_text(browser: Browser, site: Site) -> None:
    async with visiting(browser, site.url) as visitor:
        await visitor.go()
        found = await visitor.page.evaluate(
            """async (texts) => {
                const { qrPicture } = await import("/static/pages/home/links/share.js");
                return texts.map((text) => qrPicture(text, "").querySelector("path[fill='#000000']").getAttribute("d"));
            }""",
            [*QR],
        )
    assert [hashlib.sha256(outlines.encode()).hexdigest() for outlines in found] == list(QR.values())
