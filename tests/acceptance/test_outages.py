"""Processes that die, start or stop while something they need is out of order: they wait, and come back by themselves."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import emptied_on
from tests.support import outages
from tests.support.content import MIB
from tests.support.failing_disk import FailingDisk
from tests.support.gateways import JuiceGateway
from tests.support.mounted import small_disk
from tests.support.outages import Installation, Outage, survive
from tests.support.servers import PrivateDatabase, PrivateRedis

COMMON = {"FREE_SPACE_FLOOR": "0", "QUIET_INTERVAL": "0.2s", "SECRET": "0123456789abcdef" * 4}
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "one process": (("serve",),),
    "two processes": (("serve", "--workers", "2"),),
    "worker": (("serve", "--no-jobs"), ("work",)),
    "nodes": (("serve",), ("serve",)),
}
# `tests/soak/outages.py` tries all.
CELLS = [
    ("two processes", "database away", "running"),
    ("worker", "database away", "start"),
    ("small disk", "small disk read-only", "start"),
]


@contextmanager
def installed(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Installation]:
    commands = COMMANDS["two processes" if name.endswith("two processes") else "one process"]
    if name.startswith("small"):
        request.getfixturevalue("mounts")
        with small_disk(tmp_path / "disk", 96 * MIB) as small:
            settings = COMMON | {"DATA": str(small.inside / "data")}
            faults = outages.of_small_disk(small)
            yield Installation(tmp_path, small.here / "data", settings, commands, named(faults), small.program)
        return
    disk, data = FailingDisk(tmp_path), tmp_path / "data"
    settings = COMMON | disk.settings | {"DATA": str(data), "TEST_PRELOAD_PROGRAMS": "1"}
    faults = outages.of_disk(disk, data)
    if name.startswith("embedded"):
        yield Installation(tmp_path, data, settings, commands, named(faults))
        return
    database: PrivateDatabase = request.getfixturevalue("mortal_mariadb")
    redis: PrivateRedis = request.getfixturevalue("own_redis")
    asyncio.run(emptied_on(database))
    faults += [*outages.of_database(database), *outages.of_redis(redis)]
    settings |= {
        "DATABASE_URL": outages.url_of_user(database),
        "REDIS_URL": redis.url,
        "DATABASE_TIMEOUT": "5s",
        "REDIS_TIMEOUT": "5s",
    }
    if name == "nodes":
        gateway: JuiceGateway = request.getfixturevalue("own_gateway")
        # The bytes lie in the bucket.
        faults = [replace(fault, hinders=fault.name != "disk full") for fault in faults]
        faults += outages.of_bucket(gateway)
        settings |= gateway.gateway.environment(f"tests/{tmp_path.name}") | {"MIN_CHUNK_SIZE": "64KiB"}
    yield Installation(tmp_path, data, settings, COMMANDS[name], named(faults))


def named(faults: Iterable[Outage]) -> dict[str, Outage]:
    return {fault.name: fault for fault in faults}


def recovery_seconds(cell: tuple[str, str, str], tmp_path: Path, request: pytest.FixtureRequest) -> float:
    name, outage, phase = cell
    with installed(name, tmp_path, request) as installation:
        return survive(installation, outage, phase)


@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_everything_works_again(tmp_path: Path, request: pytest.FixtureRequest, cell: tuple[str, str, str]) -> None:
    recovery_seconds(cell, tmp_path, request)
