"""The card of the audit log on the administrators' page, in a real Chromium."""

import csv

from playwright.async_api import Browser, expect

from tests.conftest import MakeStack
from tests.support.browser import visiting
from tests.support.content import KIB, Content
from tests.support.sockets import serving_stack

UPLOAD = Content(100 * KIB, name="=film.mov")


async def test_it_shows_who_did_what_page_by_page_of_one_user_and_as_csv(
    make_stack: MakeStack, browser: Browser
) -> None:
    async with serving_stack(make_stack, durability="process") as server, visiting(browser, server.url) as visitor:
        accounts = server.stack.services.accounts
        for number in range(21):
            await accounts.ensure_user(f"=user-{number:02}")
        root = await server.stack.client_of("root", admin=True)
        upload_id = (await server.stack.open(UPLOAD)).json()["upload"]["id"]
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
        await expect(rows.filter(has_text="Quota changed")).to_contain_text("10 GiB → 5 GiB")
        await card.get_by_role("button", name="Next").click()
        await expect(rows.filter(has_text="=user-00")).to_have_count(1)

        await card.get_by_role("searchbox").fill("alice")
        await expect(rows).to_have_count(4)
        await expect(rows.filter(has_text="User made")).to_contain_text("command")
        await card.get_by_role("searchbox").fill("nobody")
        await expect(card.locator(".table")).to_contain_text("Nothing was done.")
        await card.get_by_role("searchbox").fill("=user-07")
        await expect(rows).to_have_count(1)
        async with visitor.page.expect_download() as saving:
            await card.get_by_role("button", name="Download CSV").click()
        lines = list(csv.reader((await (await saving.value).path()).read_text().splitlines()))
        assert [line[lines[0].index("subject")] for line in lines[1:]] == ["'=user-07"], "or it would be run"
        await visitor.page.set_viewport_size({"width": 320, "height": 800})
        assert await visitor.page.evaluate("document.documentElement.scrollWidth") <= 320
        assert await visitor.violations() == []
