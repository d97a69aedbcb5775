"""The administrators' page in a real Chromium: its figures equal a recount, and its buttons do what they say."""

import csv
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from PIL import Image
from playwright.async_api import Browser, Locator, Page, expect
from sqlalchemy import insert, update

from tests.conftest import MakeStack
from tests.support.browser import Visitor, visiting
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.invariants import checked_accounts
from tests.support.layout import blob_path
from tests.support.problems import problem
from tests.support.rot import flip_bit
from tests.support.screenshots import PARTS, take
from tests.support.sockets import Server, serving_stack
from tests.support.stack import Stack
from uploader.database import models
from uploader.domain.audit_log import Action

SHARED = Content(100 * KIB)
HERS = Content(70 * KIB, seed=1, name="notes/hers.txt")
HER_OPEN = Content(300 * KIB, seed=2, name="=film.mov")
HIS_OPEN = Content(200 * KIB, seed=3)
OTHERS = 24  # with alice, bob and root more than a page of the table
DAY_SECONDS = 86_400
# Acts, their details, and how the page shows these.
ACTS: dict[Action, tuple[dict[str, Any], str]] = {
    Action.DISK_CLEANED: (
        {"all_strays": False, "blobs": 1234, "directories": 2, "disk_bytes": 5 << 30},
        "all strays: no, contents: 1,234, directories: 2, on disk: 5 GiB",
    ),
    Action.USER_REPAIRED: ({"reserved": {"from": 1 << 20, "to": 0}}, "reserved: 1 MiB → 0 B"),
    Action.CONTENT_REPAIRED: ({"refs": {"from": 1, "to": 2}}, "references: 1 → 2"),
    Action.UPLOAD_REPAIRED: (
        {"kind": "received", "expected": 2 << 20, "actual": None},
        "kind: received, counted: 2 MiB",
    ),
    Action.LINK_CHANGED: ({"changed": ["expires_at", "max_bytes"]}, "changed: end, most bytes"),
    Action.INSTALLATION_ADOPTED: ({"disk": None, "database": "abc", "redis": None}, "database: abc"),
}


async def saved_csv(page: Page, card: str) -> list[list[str]]:
    async with page.expect_download() as saving:
        await page.locator(f"{card} button", has_text="Download CSV").click()
    path = await (await saving.value).path()
    return list(csv.reader(path.read_text().splitlines()))


@dataclass
class Office:
    """A server in use, and an administrator before its page."""

    server: Server
    bob: httpx2.AsyncClient
    visitor: Visitor

    @property
    def stack(self) -> Stack:
        return self.server.stack

    @property
    def page(self) -> Page:
        return self.visitor.page

    def figure(self, key: str) -> Locator:
        """A tile of the card of all that is stored, or of the growth."""
        return self.page.locator(f"[data-figure={key}] .figure")

    def users(self) -> Locator:
        return self.page.locator("#users tbody tr")

    def cells(self, user_id: str) -> Locator:
        row = self.users().filter(has=self.page.get_by_role("button", name=user_id, exact=True))
        return row.locator("td:not(.bar-column)")

    async def answer(self, name: str) -> None:
        """Answer the question on the screen."""
        await self.page.locator("dialog:not(.wide)").get_by_role("button", name=name).click()


@pytest.fixture
async def office(make_stack: MakeStack, browser: Browser, clock: ManualClock) -> AsyncIterator[Office]:
    """alice has two files and an upload of which a chunk has arrived; bob has one of those contents, too, and an upload
    without a byte. Both uploads have been idle for two days. The figures of forty days are there."""
    async with serving_stack(make_stack, clock=clock, max_pending_bytes=1, durability="process") as server:
        stack = server.stack
        bob = await stack.client_of("bob", total_space=10**9)
        for content, client in ((SHARED, None), (HERS, None), (SHARED, bob)):
            await stack.upload(content, client, instant=False)
        await stack.open(HER_OPEN)
        await stack.put(HER_OPEN, 0)
        await stack.open(HIS_OPEN, bob)
        for queue in stack.services.pending.flush_queues:
            await stack.services.flushing.flush_due(queue)
        for number in range(OTHERS):
            await stack.services.accounts.create_token(f"user-{number:02}", admin=False, total_space=number)
        await _change(stack, insert(models.usage_daily).values([_day(clock, ago) for ago in range(1, 41)]))
        clock.advance(2 * DAY_SECONDS)
        async with visiting(browser, server.url) as visitor:
            root = await stack.services.accounts.create_token("root", admin=True, total_space=None)
            await visitor.sign_in(root, "/admin/")
            office = Office(server, bob, visitor)
            await expect(office.users()).to_have_count(20)
            yield office


def _day(clock: ManualClock, ago: int) -> dict[str, Any]:
    taken_at = clock.now() - timedelta(days=ago)
    figures = {"physical_bytes": (100 - ago) * KIB, "logical_bytes": 2 * (100 - ago) * KIB}
    return {"day": taken_at.date(), "taken_at": taken_at, **figures}


async def _change(stack: Stack, statement: Any) -> None:
    async with stack.services.database.engine.begin() as connection:
        await connection.execute(statement)


async def test_its_figures_equal_a_recount_and_it_shows_where_they_do_not(office: Office) -> None:
    accounts = (await checked_accounts(office.stack.services.database)).values()
    assert sum(account.finished for account in accounts) == 270 * KIB
    assert sum(account.unfinished for account in accounts) == 64 * KIB
    assert sum(account.reserved for account in accounts) == 500 * KIB
    for key, figure in {
        "logical": "270 KiB",
        "physical": "170 KiB",
        "saved": "100 KiB",
        "unfinished": "64 KiB",
        "reserved": "500 KiB",
        "users": str(OTHERS + 3),
    }.items():
        await expect(office.figure(key)).to_have_text(figure)
    await expect(office.cells("alice")).to_have_text(["170 KiB", "64 KiB", "300 KiB", "10 GiB", "2", "1"])
    await expect(office.page.locator("#temp tbody td")).to_have_text(["2", "64 KiB", "500 KiB"])
    # Everything says of when it is.
    cards = await office.page.locator("#app > .card:not([hidden])").count()
    await expect(office.page.locator("#app > .card:not([hidden]) .as-of time[datetime]")).to_have_count(cards)

    await office.visitor.press("Recount")
    outcome = office.page.locator("#recounted .outcome")
    await expect(outcome).to_have_text(f"{OTHERS + 3} accounts and 2 contents were counted: every figure is right.")
    users = models.user_info
    wrong = update(users).where(users.c.user_id == "alice").values(use_space_finished=175 * KIB)
    await _change(office.stack, wrong)
    await office.visitor.press("Recount")
    await expect(outcome).to_contain_text("1 figure differs")
    row = office.page.locator("#recounted tbody tr")
    await expect(row.locator("th, td")).to_have_text(["Finished", "alice", "170 KiB", "175 KiB"])
    await expect(office.page.locator("#sinks")).to_be_hidden()  # nobody is told of events
    warning = office.page.locator("#totals .content p.error")
    await expect(warning).to_have_count(0)
    flip_bit(blob_path(office.stack.data, HERS.sha256))
    assert [found async for found in office.stack.services.scrubbing.scrub(lambda _read: None)]
    await office.visitor.press("Refresh")
    await expect(warning).to_contain_text("1 content is damaged")
    # bob's bytes have taken the place of alice's.
    await expect(office.page.locator("#totals .disk p.hint")).to_contain_text("in the trash")
    await _check_charts(office)
    assert await office.visitor.violations() == []


async def _check_charts(office: Office) -> None:
    """What they show stands in a table, too, and nothing is wider than a phone."""
    await expect(office.figure("growth-7")).to_contain_text("KiB")
    await expect(office.figure("growth-365")).to_have_text("–")
    await office.page.get_by_text("The same figures as a table").click()
    rows = office.page.locator("#growth-details tbody tr")
    for days, count in ((7, 4), (365, 40)):
        await office.page.get_by_role("radio", name=f"{days} days").check()
        await expect(rows).to_have_count(count)
    await expect(rows.first.locator("td")).to_have_text(["99 KiB", "198 KiB", "0 B", "0 B"])
    chart = office.page.get_by_role("img", name="stored on disk from 60 KiB to 99 KiB")
    await expect(chart.locator("canvas")).to_have_count(1)
    for width in (320, 768):
        await office.page.set_viewport_size({"width": width, "height": 800})
        await expect(office.users()).to_have_count(20)
        assert not await office.visitor.is_wider_than(width)


async def test_stale_uploads_are_expired_after_a_question_and_usage_drops(office: Office, clock: ManualClock) -> None:
    total = office.page.locator("#stale-total")
    await expect(total).to_have_text("2 uploads would give back 64 KiB on disk and 500 KiB of quota.")
    hers = office.page.get_by_role("button", name="Expire =film.mov of alice")
    await hers.focus()
    await office.page.keyboard.press("Enter")
    await office.answer("Back")
    await expect(hers).to_be_focused()
    await hers.click()
    await office.answer("Expire")
    await expect(office.page.locator("#stale-outcome")).to_have_text("1 upload was expired.")
    await expect(office.figure("unfinished")).to_have_text("0 B")
    await expect(office.figure("reserved")).to_have_text("200 KiB")
    await expect(office.cells("alice")).to_have_text(["170 KiB", "0 B", "0 B", "10 GiB", "2", "0"])
    await expect(total).to_have_text("1 upload would give back 0 B on disk and 200 KiB of quota.")
    gone = problem(await office.stack.client.get(f"/files/{HER_OPEN.md5}"), 410, "upload-gone")
    assert gone["reason"] == "expired"

    # One that goes on meanwhile is spared.
    await office.page.get_by_role("button", name=f"Expire {HIS_OPEN.name} of bob").click()
    await office.stack.put(HIS_OPEN, 0, office.bob)
    now = clock.now().timestamp()  # the disk's clock has not been turned
    for path in office.stack.bytes_on_disk():
        os.utime(path, (now, now))
    await office.answer("Expire")
    await expect(office.page.locator("#stale-outcome")).to_have_text(
        "1 was left alone: it went on meanwhile, or has ended."
    )
    await expect(office.figure("reserved")).to_have_text("200 KiB")

    await office.page.get_by_label("Idle for at least").select_option("any time")
    await office.visitor.press("Expire 1 upload")
    await office.answer("Expire 1 upload")
    await expect(office.figure("reserved")).to_have_text("0 B")
    await expect(office.page.locator("#stale .table")).to_contain_text("No upload has been idle for so long.")
    await expect(office.page.get_by_label("Idle for at least")).to_be_focused()
    await checked_accounts(office.stack.services.database)


async def test_users_are_sorted_searched_saved_as_csv_and_given_another_quota(office: Office) -> None:
    page = office.page
    first = office.users().first.locator("th")
    await expect(first).to_have_text("alice")
    await page.get_by_role("button", name="Total space").first.click()
    await expect(page.get_by_role("columnheader", name="Total space")).to_have_attribute("aria-sort", "descending")
    await page.get_by_role("button", name="User", exact=True).click()
    await page.get_by_role("button", name="User", exact=True).click()
    await expect(first).to_have_text(f"user-{OTHERS - 1:02}")
    await page.locator("#users").get_by_role("button", name="Next").click()
    await expect(office.users()).to_have_count(OTHERS + 3 - 20)
    await expect(office.users().last.locator("th")).to_have_text("alice")
    await page.locator("#users").get_by_role("button", name="Previous").click()
    await expect(first).to_have_text(f"user-{OTHERS - 1:02}")
    await page.get_by_label("Search for a user").fill("user-1")
    await expect(office.users()).to_have_count(10)
    rows = await saved_csv(page, "#users")
    assert rows[0][:3] == ["user_id", "total_space", "use_space_finished"]
    assert [row[0] for row in rows[1:]] == [f"user-{number}" for number in range(19, 9, -1)]
    names = [row[2] for row in await saved_csv(page, "#stale")]
    assert "'=film.mov" in names  # no formula for a spreadsheet
    await page.get_by_label("Search for a user").fill("ali")
    await expect(office.users()).to_have_count(1)
    await _check_dialog(office)


async def _check_dialog(office: Office) -> None:
    """One user is looked into and given another quota."""
    page = office.page
    await page.get_by_role("button", name="alice", exact=True).first.click()
    dialog = page.get_by_role("dialog", name="alice")
    await expect(dialog.locator(".figure")).to_have_text(["170 KiB", "64 KiB", "300 KiB", "10.0 GiB"])
    await expect(dialog.get_by_role("row", name="=film.mov")).to_contain_text("64 KiB")
    await expect(dialog.get_by_role("row", name="notes/hers.txt")).to_contain_text("70 KiB")
    assert await office.visitor.violations(["light"]) == []
    await dialog.get_by_label("Name begins with").fill("notes/")
    await expect(dialog.get_by_role("row", name=SHARED.name)).to_have_count(0)
    await dialog.get_by_label("Total space").fill("-1")
    await dialog.get_by_role("button", name="Save").click()
    await expect(dialog.get_by_role("alert").last).to_have_text("Give a number, 0 or larger.")
    await dialog.get_by_label("Total space").fill("2.5")
    await dialog.get_by_role("button", name="Save").click()
    await office.answer("Save")
    await expect(dialog.get_by_role("status")).to_have_text("alice has 2.5 GiB now.")
    assert (await office.stack.services.files.usage("alice")).total_space == 2.5 * (1 << 30)
    await page.keyboard.press("Escape")
    await expect(office.cells("alice").nth(3)).to_have_text("2.5 GiB")


async def test_who_is_no_administrator_is_told_so(make_stack: MakeStack, browser: Browser) -> None:
    async with serving_stack(make_stack) as server, visiting(browser, server.url) as visitor:
        page = visitor.page
        token = server.stack.client.headers["authorization"].removeprefix("Bearer ")
        await visitor.go("/admin/")
        await page.get_by_label("Token").fill(token)
        await visitor.press("Sign in")
        await expect(page.locator("#refused")).to_contain_text("may not see the accounts of others")
        await expect(page.locator("#app")).to_be_hidden()
        assert await visitor.violations(["light"]) == []
        await page.get_by_label("Language").select_option("zh")
        await expect(page.locator("#refused")).to_contain_text("仅限管理员")


async def test_it_shows_what_waits_to_be_accounted_also_of_one_user_or_upload(office: Office) -> None:
    queue, tile = office.page.locator("#queue"), office.page.locator("#queue [data-figure=tasks] .figure")
    pending, search = queue.locator("[data-figure=pending] .figure"), queue.get_by_label("Of one user or upload ID")
    await expect(tile).to_have_text("0")
    await expect(queue.locator(".table")).to_contain_text("Nothing waits.")
    await office.stack.put(HER_OPEN, 1)
    await office.visitor.press("Refresh")
    await expect(tile).to_have_text("1")
    await expect(pending).to_have_text("64 KiB")
    await expect(queue.locator("tbody td")).to_have_text(["Accounting", "1", "64 KiB"])
    assert await office.visitor.violations(["light"]) == []
    upload_id = (await office.stack.open(HER_OPEN)).json()["upload"]["id"]
    await office.stack.put(HIS_OPEN, 0, office.bob)
    await office.visitor.press("Refresh")
    await expect(pending).to_have_text("128 KiB")
    for wanted, found in (("bob", "64 KiB"), ("root", "0 B"), (upload_id, "64 KiB")):
        await search.fill(wanted)
        await expect(pending).to_have_text(found)
    await search.fill("nobody")
    await expect(queue.get_by_role("alert")).not_to_be_empty()
    await expect(queue.locator(".figure, tbody")).to_have_count(0)
    assert await office.visitor.violations(["light"]) == []
    await search.fill("")
    await expect(pending).to_have_text("128 KiB")
    await expect(queue.get_by_role("alert")).to_be_hidden()


async def test_it_shows_who_did_what_by_pages_of_one_user_and_as_csv(make_stack: MakeStack, browser: Browser) -> None:
    async with serving_stack(make_stack, durability="process") as server, visiting(browser, server.url) as visitor:
        accounts = server.stack.services.accounts
        for number in range(21):
            await accounts.ensure_user(f"=user-{number:02}")
        root = await server.stack.client_of("root", admin=True)
        upload_id = (await server.stack.open(HER_OPEN)).json()["upload"]["id"]
        assert (await root.put("/admin/users/alice", json={"total_space": 5 << 30})).status_code == 200
        assert (await root.delete(f"/admin/uploads/{upload_id}")).status_code == 204
        token = await accounts.create_token("root", admin=True)
        await visitor.sign_in(token, "/admin/")

        card = visitor.page.locator("#audit")
        rows = card.locator("tbody tr")
        await expect(rows).to_have_count(20)
        expired = rows.filter(has_text=upload_id).locator("td")
        await expect(expired.nth(0)).to_have_text("Upload expired")
        await expect(expired.nth(1)).to_contain_text("of alice")
        await expect(expired.nth(2)).to_contain_text("root")
        await expect(expired.nth(2)).to_contain_text(", made by command ")
        await expect(expired.nth(3)).to_have_text("127.0.0.1")
        await expect(expired.nth(4)).to_contain_text("=film.mov")
        await expect(expired.nth(4)).to_contain_text("size: 300 KiB")
        await expect(rows.filter(has_text="Quota changed")).to_contain_text("10 GiB → 5 GiB")
        made = rows.filter(has_text="=user-20").locator("td")
        await expect(made.nth(3)).to_have_text("")
        await expect(made.nth(4)).to_have_text("total space: 10 GiB")
        await card.get_by_role("button", name="Next").click()
        await expect(rows.filter(has_text="=user-00")).to_have_count(1)

        await card.get_by_role("searchbox").fill("alice")
        await expect(rows).to_have_count(4)
        await expect(rows.filter(has_text="User made")).to_contain_text("command")
        await card.get_by_role("searchbox").fill("nobody")
        await expect(card.locator(".table")).to_contain_text("Nothing was done.")
        await card.get_by_role("searchbox").fill("=user-07")
        await expect(rows).to_have_count(1)
        lines = await saved_csv(visitor.page, "#audit")
        for action, (details, _) in ACTS.items():
            await server.stack.services.audit_log.note(action, subject=action, user_id="carol", details=details)
        await card.get_by_role("searchbox").fill("carol")
        for action, (_, words) in ACTS.items():
            await expect(rows.filter(has_text=action).locator("td").nth(4)).to_have_text(words)
        assert [line[lines[0].index("subject")] for line in lines[1:]] == ["'=user-07"], "or it would be run"
        await visitor.page.set_viewport_size({"width": 320, "height": 800})
        assert not await visitor.is_wider_than(320)
        assert await visitor.violations() == []


async def test_the_screenshots_of_the_docs_can_be_taken(browser: Browser, tmp_path: Path) -> None:
    await take(browser, tmp_path)
    sizes = {}
    for name in PARTS:
        with Image.open(tmp_path / name) as image:
            sizes[name] = image.size
    assert sizes == {"admin-page.png": (1280, 1500), "web-page.png": (1100, 760)}
