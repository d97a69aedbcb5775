"""A server process for the commands of clients, and a user of it for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Commands, serving, token_of_somebody
from tests.support.process import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as made:
        yield made


@pytest.fixture
def token(server: Server) -> str:
    """Of a user for this test alone."""
    return token_of_somebody(server, "--total-space", "64MiB")


@pytest.fixture
def commands(server: Server, token: str, tmp_path: Path) -> Commands:
    """What that user runs in a directory where nothing is."""
    here = tmp_path / "here"
    here.mkdir()
    return Commands(here, server.url, token)
