"""Fixtures: a client of the user `alice` in this process, and the wire between it and the server."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.stack import Stack
from tests.support.uploading import Wire, client_on
from uploader.client import AsyncClient


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Stack]:
    """What survives a power cut is not the client's doing, and waiting for the disk takes most of the time."""
    async with make_stack(durability="process") as made:
        yield made


@pytest.fixture
def wire(stack: Stack) -> Wire:
    return Wire(stack)


@pytest.fixture
def client_options() -> dict[str, Any]:
    """Options of the client: a module has its own."""
    return {}


@pytest.fixture
async def client(stack: Stack, wire: Wire, client_options: dict[str, Any]) -> AsyncIterator[AsyncClient]:
    async with await client_on(stack, wire, **client_options) as made:
        yield made
