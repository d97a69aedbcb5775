"""A page of an application, and a server for it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Browser

from tests.clients.site import Person, build_page, serving_page
from tests.support.browser import PATIENCE_MS
from tests.support.commands import token_of_somebody
from tests.support.process import Mortal

# Browsers ask before a page of elsewhere calls a server on their own machine, as only tests have it.
MAY_CALL_THIS_MACHINE = "local-network-access"


@pytest.fixture(scope="session")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("page")
    build_page(directory)
    with serving_page(directory) as url:
        yield url


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory, origin: str) -> Iterator[Mortal]:
    """For tests that let it live. Who kills one comes through a relay, which has another address."""
    made = Mortal(tmp_path_factory.mktemp("server"), prefix="/store", CORS_ORIGINS=origin, DURABILITY="process")
    yield made
    made.end()


@pytest.fixture
def mortal(tmp_path: Path, origin: str) -> Iterator[Mortal]:
    """For a test that kills it."""
    made = Mortal(tmp_path, CORS_ORIGINS=origin)
    yield made
    made.end()


@pytest.fixture
async def person(browser: Browser, installation: Mortal, origin: str) -> AsyncIterator[Person]:
    """Somebody whom nobody else is, with 32 MiB."""
    context = await browser.new_context(permissions=[MAY_CALL_THIS_MACHINE])
    context.set_default_timeout(PATIENCE_MS)
    token = token_of_somebody(installation.server, "--total-space", "32MiB")
    made = Person(await context.new_page(), origin, installation.url, token)
    await made.open()
    yield made
    await context.close()
