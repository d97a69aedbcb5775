"""The administrators' page in a real Chromium: who is told of events, who holds tasks, and what nobody took, once more."""

from pathlib import Path

from playwright.async_api import Browser, expect
from sqlalchemy import update

from tests.conftest import MakeStack
from tests.integration.test_relaying import relay_all, upload
from tests.support.browser import visiting
from tests.support.clock import ManualClock
from tests.support.consumer import consuming, events_file, webhook
from tests.support.sockets import serving_stack
from tests.support.stack import Stack
from uploader.database import models
from uploader.service.events import RETRY_SECONDS

ODD = b"no <b>bold</b> songs"


async def let_die(stack: Stack) -> None:
    """All that waits, by one attempt more: it is the last."""
    last = update(models.delivery).values(attempt=len(RETRY_SECONDS))
    await stack.services.database.transact(lambda connection: connection.execute(last))
    for relay in stack.services.relays:
        await relay_all(relay)


async def test_an_administrator_sees_what_sinks_have_not_taken_and_tells_them_once_more(
    make_stack: MakeStack, browser: Browser, tmp_path: Path, clock: ManualClock
) -> None:
    async with consuming() as scan, consuming() as lake:
        path = events_file(tmp_path / "events", webhook("scan", scan.url) + webhook("lake", lake.url))
        async with (
            serving_stack(make_stack, clock=clock, events=path) as server,
            visiting(browser, server.url) as visitor,
        ):
            stack, page = server.stack, visitor.page
            scan.status, scan.body = 400, ODD
            await upload(stack, 1, 3)
            await let_die(stack)
            lake.status = 410
            await upload(stack, 4)
            await relay_all(stack.services.relays[1])
            clock.advance(600)
            root = await stack.services.accounts.create_token("root", admin=True, total_space=None)
            await visitor.sign_in(root, "/admin/")
            rows = page.locator("#sinks tbody tr")
            cells = rows.first.locator("td.number")
            await expect(rows.locator("th")).to_have_text(["scan", "lake"], use_inner_text=True)
            await expect(rows.first).to_contain_text("Late")
            await expect(rows.first).to_contain_text(f"400 {ODD.decode()}")
            await expect(cells).to_have_text(["1", "10 min 0 s", "3", "Tell again"])
            await expect(rows.last).to_contain_text("`uploader events test lake` puts it in force again")
            await expect(rows.last.get_by_role("button")).to_have_count(0)
            await expect(page.locator("#sinks .as-of time[datetime]")).to_have_count(1)
            assert await visitor.violations() == []

            again = page.get_by_role("button", name="Tell scan of dead events again")
            await again.focus()
            await page.keyboard.press("Enter")
            await expect(page.locator("#sinks .outcome")).to_have_text("scan is told of 3 events again.")
            await expect(cells).to_have_text(["4", "10 min 0 s", "0", ""])
            await expect(page.locator("#sinks .table")).to_be_focused()
            scan.status = 200
            await relay_all(stack.services.relays[0])
            await visitor.press("Refresh")
            await expect(rows.first).to_contain_text("In order")
            await expect(cells).to_have_text(["0", "–", "0", ""])

            await page.set_viewport_size({"width": 320, "height": 800})
            assert not await visitor.is_wider_than(320)
            await expect(rows.first.locator("th")).to_contain_text("In order")  # there is no room for a column
            await page.get_by_label("Language").select_option("zh")
            await expect(page.get_by_role("heading", name="事件")).to_be_visible()
            await expect(rows.last).to_contain_text("已停用")
            assert await visitor.violations(["light"]) == []


async def test_an_administrator_sees_who_holds_which_task_and_hands_out_the_dead_ones_once_more(
    make_stack: MakeStack, browser: Browser, tmp_path: Path
) -> None:
    path = events_file(tmp_path / "events", '[queues.scan]\ntypes = ["file.finished"]\nmax_attempts = 1\n')
    async with serving_stack(make_stack, events=path) as server, visiting(browser, server.url) as visitor:
        stack, page = server.stack, visitor.page
        queue, card = stack.services.work.queue("scan"), page.locator("#work")
        await upload(stack, 1, 4)
        first, second, third = await queue.claim("wanda", 3)
        for task in (first, second):
            await queue.release(task.id, task.lease, 0.0, ODD.decode())
        root = await stack.services.accounts.create_token("root", admin=True, total_space=None)
        await visitor.sign_in(root, "/admin/")
        row, tasks = card.locator(".queues tbody tr"), card.locator(".tasks tbody tr")
        cells = row.locator("td.number:not(.widest-only)")
        await expect(cells).to_have_text(["2", "1", "2", "Hand out again"])
        await expect(tasks).to_have_count(3)
        await expect(tasks.first).to_contain_text("Held by wanda until")
        await expect(tasks.first).to_contain_text(third.id)
        await expect(tasks.last).to_contain_text("wanda had it last")
        await expect(tasks.last).to_contain_text(ODD.decode())
        assert await visitor.violations() == []

        again = page.get_by_role("button", name="Hand out the dead tasks of scan again")
        await again.focus()
        await page.keyboard.press("Enter")
        await expect(card.locator(".outcome")).to_have_text("2 tasks of scan are handed out again.")
        await expect(cells).to_have_text(["4", "1", "0", ""])
        await expect(card.locator(".queues")).to_be_focused()
        await expect(tasks).to_have_count(1)
        await queue.keep()
        assert {task.id for task in await queue.claim("wanda", 4)} >= {first.id, second.id}

        await page.set_viewport_size({"width": 320, "height": 800})
        assert not await visitor.is_wider_than(320)
        await page.get_by_label("Language").select_option("zh")
        await expect(page.get_by_role("heading", name="分派的任务")).to_be_visible()
        await expect(tasks.first).to_contain_text("由 wanda 处理")
        assert await visitor.violations(["light"]) == []
