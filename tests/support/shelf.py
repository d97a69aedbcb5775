"""A person in a real Chromium before files that are there."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from playwright.async_api import Browser, FilePayload, Locator, Page, expect

from tests.support.browser import Visitor, visiting
from tests.support.sites import Site


@dataclass
class Shelf:
    """A visitor before files that are there."""

    site: Site
    visitor: Visitor

    @property
    def page(self) -> Page:
        return self.visitor.page

    def row(self, name: str) -> Locator:
        title = self.page.locator(".name").filter(has_text=name)
        return self.visitor.files().filter(has=title.and_(self.page.get_by_title(name, exact=True)))

    async def shows(self, *names: str) -> None:
        await expect(self.page.locator("#file-list .row .name")).to_have_text(list(names))

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.page.keyboard.press(key)

    async def choose(self, name: str, content: bytes) -> None:
        file: FilePayload = {"name": name, "mimeType": "text/plain", "buffer": content}
        await self.page.set_input_files("#files-input", file)

    async def names(self) -> set[str]:
        return set(await self.site.sha256s())


@asynccontextmanager
async def a_shelf(browser: Browser, site: Site, files: Mapping[str, bytes], **options: Any) -> AsyncIterator[Shelf]:
    for name, data in files.items():
        added = await site.stack.client.post("/me/files", params={"name": name}, content=data)
        assert added.status_code == 201, added.text
    async with visiting(browser, site.url, token=await site.token(), **options) as visitor:
        yield Shelf(site, visitor)
