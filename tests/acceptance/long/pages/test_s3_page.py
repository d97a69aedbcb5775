"""The web page where downloads are sent on to a bucket, in a real Chromium: what is saved comes from there, what is shown
from here."""

from playwright.async_api import Browser, expect

from tests.conftest import MakeStack
from tests.support.browser import visiting
from tests.support.content import MIB
from tests.support.gateways import Gateway, settings_of
from tests.support.sockets import serving_stack
from uploader.addresses import BucketAddress

TEXT = b"alpha\n" * (MIB // 6)


async def test_what_is_saved_comes_from_the_bucket_and_what_is_shown_from_here(
    browser: Browser, make_stack: MakeStack, s3_address: BucketAddress, s3_gateway: Gateway
) -> None:
    settings = settings_of(s3_address) | {"s3_presigned_downloads": True}
    async with serving_stack(make_stack, **settings) as server:
        sent = await server.stack.client.post("/me/files?name=notes.txt", content=TEXT)
        assert sent.status_code == 201
        token = server.stack.client.headers["authorization"].removeprefix("Bearer ")
        async with visiting(browser, server.url, token=token) as visitor:
            page, asked = visitor.page, list[str]()
            page.context.on("request", lambda request: asked.append(request.url))
            await visitor.ask_for("Preview", "notes.txt")
            await expect(page.get_by_role("dialog").locator("pre")).to_contain_text("alpha")
            await page.keyboard.press("Escape")
            assert [url for url in asked if "/content?show=inline" in url]
            assert not [url for url in asked if url.startswith(s3_gateway.endpoint)]
            async with page.expect_download() as download:
                await visitor.press("Download notes.txt")
            saved = await download.value
            assert saved.url.startswith(s3_gateway.endpoint)
            assert saved.suggested_filename == "notes.txt"
            assert (await saved.path()).read_bytes() == TEXT
