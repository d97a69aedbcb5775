"""Fixtures: a server on a port, with an open upload, and a connection to it."""

from collections.abc import AsyncIterator

import pytest

from tests.conftest import MakeStack
from tests.support.sockets import Connection, Server, serving


@pytest.fixture
async def server(make_stack: MakeStack) -> AsyncIterator[Server]:
    async with serving(make_stack) as made:
        yield made


@pytest.fixture
async def connection(server: Server) -> AsyncIterator[Connection]:
    async with server.connection() as made:
        yield made
