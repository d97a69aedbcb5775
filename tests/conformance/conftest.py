"""One store after the other: what is tested here every store has to do, the next one, too."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.stores import STORES, MakeProcess, Process, making_processes


@pytest.fixture(params=STORES)
async def make_process(request: pytest.FixtureRequest, tmp_path: Path, sqlite_url: str) -> AsyncIterator[MakeProcess]:
    address = request.getfixturevalue("s3_address") if request.param == "s3" else None
    async with making_processes(request.param, tmp_path / "data", sqlite_url, address) as make:
        yield make


@pytest.fixture
async def process(make_process: MakeProcess, tmp_path: Path) -> Process:
    (tmp_path / "data").mkdir()
    made = make_process()
    await made.store.prepare()
    return made


@pytest.fixture
async def another(make_process: MakeProcess, process: Process) -> Process:
    """Another process, with the same store."""
    made = make_process()
    await made.store.prepare()
    return made
