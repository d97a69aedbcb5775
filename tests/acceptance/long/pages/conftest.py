"""Fixtures: a server, and the user `alice` before its page in a real Chromium."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, BrowserContext

from tests.conftest import MakeStack
from tests.support.browser import PATIENCE_MS, Visitor, visiting
from tests.support.sites import Site, a_site


@pytest.fixture
async def site(make_stack: MakeStack) -> AsyncIterator[Site]:
    """A module whose tests hold other requests than chunks has its own."""
    async with a_site(make_stack) as made:
        yield made


@pytest.fixture
async def visitor(browser: Browser, site: Site) -> AsyncIterator[Visitor]:
    async with visiting(browser, site.url, token=await site.token("alice")) as made:
        yield made


@pytest.fixture
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    """For pages of elsewhere: browsers ask before they call a server on their own machine, as only tests have it."""
    made = await browser.new_context(permissions=["local-network-access"])
    made.set_default_timeout(PATIENCE_MS)
    yield made
    await made.close()
