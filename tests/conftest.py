"""Fixtures: real stores for every test, private to the worker that runs it."""

import gc
import math
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import none
from playwright.async_api import Browser
from redis import Redis
from sqlalchemy import exists, literal_column, select, text

from tests.support import any_database, every_store
from tests.support.browser import chromium_path, running_chromium
from tests.support.certificates import Authority
from tests.support.chosen import chosen, is_in_share, places, seed
from tests.support.clock import ManualClock
from tests.support.gateways import GIVEN_S3, STORE_ON, Gateway, JuiceGateway, given_gateway, juicefs_program
from tests.support.hosting import MakeUploader, identify
from tests.support.nodes import MakeNode, Node, making_nodes
from tests.support.process import can_mount, clamd_program
from tests.support.proxies import PROXIES, program_of
from tests.support.servers import (
    NEW_SERVERS,
    PRIVATE_DATABASES,
    UNPACKED_VALKEY,
    WITH_TABLES,
    PrivateDatabase,
    PrivateRedis,
    old_redis_program,
)
from tests.support.stack import Stack, patient, running_stack
from tests.support.storing import running_storage
from tests.support.terminal import tmux_path
from uploader.addresses import BucketAddress
from uploader.asgi import Uploader
from uploader.database import migrate, models
from uploader.database.engine import Database
from uploader.runtime import observability
from uploader.storage.store import Store

# A busy machine is no finding: no example fails because it took long.
settings.register_profile(
    "patient",
    settings.get_profile(settings.get_current_profile_name()),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("patient")

MakeStack = Callable[..., AbstractAsyncContextManager[Stack]]

# Servers for all tests that need none of their own.
_GIVEN = {
    "mariadb": os.environ.get("UPLOADER_TEST_DATABASE_URL"),
    "mysql": os.environ.get("UPLOADER_TEST_MYSQL_URL"),
}
_LONG = Path(__file__).parent / "acceptance" / "long"
_BEGUN = pytest.StashKey[float]()
_TOO_LATE = "no time was left"
_LOUD = "{} IS NOT HERE: its tests are left out (see tests/run)"


def _missing() -> dict[str, Callable[[pytest.Item], bool]]:
    """What is not installed here, and which tests need it."""
    missing: dict[str, Callable[[pytest.Item], bool]] = {}
    for kind, private in PRIVATE_DATABASES.items():
        if not private.is_installed():
            missing[private.product] = partial(_needs_database, kind)
    for proxy in PROXIES:
        if program_of(proxy) is None:
            missing[proxy] = partial(_needs_proxy, proxy)
    if find_spec("boto3") is None or juicefs_program() is None:
        missing["The client of S3, or JuiceFS' gateway"] = _needs_s3
    for name, fixture, is_here in (
        ("A Valkey that speaks TLS", "valkey_authority", UNPACKED_VALKEY.is_dir()),
        ("Redis 6.2", "old_redis", old_redis_program() is not None),
        ("Chromium", "browser", chromium_path() is not None),
        ("tmux", "tmux", tmux_path() is not None),
        ("The client of Kafka", "kafka_servers", find_spec("confluent_kafka") is not None),
        ("The right to mount", "mounts", can_mount()),
        ("ClamAV", "clamd_path", clamd_program() is not None),
        ("A second core", "two_cores", len(os.sched_getaffinity(0)) > 1),
    ):
        if not is_here:
            missing[name] = partial(_takes, fixture)
    return missing


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-databases", action="store_true", help="pass each test of a whole server on each kind of database"
    )
    parser.addoption("--long", action="store_true", help="pass what takes long as well, before all else")
    parser.addoption(
        "--share",
        nargs=2,
        action="append",
        default=[],
        metavar=("N", "DIRECTORY"),
        help="of the tests in DIRECTORY pass one in N: which ones says the commit",
    )
    parser.addoption(
        "--for-seconds", type=float, metavar="N", help="leave out what has not begun N seconds after the first test"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what takes long, unless it is asked for. To name its directory beside one above would not do: pytest drops
    the narrower of two paths (since 9.0)."""
    is_asked_for = config.getoption("long") or any(_takes_long(Path(argument)) for argument in config.args)
    return True if _takes_long(collection_path) and not is_asked_for else None


def _takes_long(path: Path) -> bool:
    return _LONG in (path := path.absolute()).parents or path == _LONG


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.config.getoption("all_databases") and _is_of_any_database(metafunc.definition):
        metafunc.parametrize("stack_kind", ["sqlite", *PRIVATE_DATABASES])


def pytest_report_header() -> str:
    return f"UPLOADER_TEST_SEED={seed()}"


def pytest_configure(config: pytest.Config) -> None:
    """Shells start what goes on in the background with Ctrl-C switched off, and all that it starts would inherit that. All
    workers have one place for what a new server of a database begins with, which goes with the first of the processes."""
    if NEW_SERVERS not in os.environ:
        os.environ[NEW_SERVERS] = tempfile.mkdtemp(prefix="uploader-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(NEW_SERVERS)))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """However long it took until the first test began, some are passed."""
    passed = time.monotonic() - item.config.stash.setdefault(_BEGUN, time.monotonic())
    if passed > (item.config.getoption("for_seconds") or math.inf):
        pytest.skip(_TOO_LATE)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without MariaDB, MySQL, Chromium, tmux, proxies, mounts or a second core their tests are left out; in CI they fail."""
    needs = [] if os.environ.get("CI") == "true" else list(_missing().values())
    if sys.version_info[:2] != (3, 11):  # the old Redis has wheels for no other Python
        needs.append(partial(_takes, "old_redis"))
    if STORE_ON in os.environ:
        needs.append(_not_for_every_store)
    needs.append(_not_chosen(items))
    needs += [
        partial(_of_another_share, int(count), Path(path).absolute()) for count, path in config.getoption("share")
    ]
    if config.getoption("long"):  # first, so that no worker is left with it
        items.sort(key=lambda item: not _takes_long(item.path))
        if not (items and _takes_long(items[0].path)):
            raise pytest.UsageError("--long has found nothing that takes long")
    kept, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (left_out if any(needed(item) for needed in needs) else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_collection_finish() -> None:
    """What was imported and collected stays: it need not be looked through for garbage again and again. Hypothesis looks
    once who refers to its random numbers, and would not find who is frozen."""
    settings(max_examples=1)(given(none())(lambda _: None))()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for name in _missing():
        terminalreporter.write_line(_LOUD.format(name), red=True, bold=True)
    if terminalreporter.config.getoption("for_seconds"):
        late = sum(_TOO_LATE in str(report.longrepr) for report in terminalreporter.stats.get("skipped", ()))
        terminalreporter.write_line(
            f"Of the tests near to the change {late} were left out, as time was over, and all others: tests/run runs all",
            bold=True,
        )


def _needs_database(kind: str, item: pytest.Item) -> bool:
    """Whether it runs on a server of this kind: one of its own, if another one is given for the rest."""
    callspec, names = getattr(item, "callspec", None), getattr(item, "fixturenames", ())
    parametrized = callspec is not None and kind in callspec.params.values()
    if _GIVEN[kind] is not None:
        return (parametrized and "own_server" in names) or f"mortal_{kind}" in names
    return parametrized or any(kind in name for name in names)


def _not_chosen(items: list[pytest.Item]) -> Callable[[pytest.Item], bool]:
    """Of the parameters of a test that is marked `places`, those that another commit tries."""
    by_test: dict[str, list[str]] = {}
    for item in items:
        if item.get_closest_marker("places"):
            by_test.setdefault(item.nodeid.partition("[")[0], []).append(item.nodeid)
    left_out = {nodeid for test, each in by_test.items() for nodeid in set(each).difference(places(each, test))}
    return lambda item: item.nodeid in left_out


def _of_another_share(count: int, directory: Path, item: pytest.Item) -> bool:
    """Find what is in the directory, and is left to other commits."""
    return directory in item.path.parents and not is_in_share(count, item.nodeid)


def _not_for_every_store(item: pytest.Item) -> bool:
    name = getattr(item, "originalname", item.name)
    return item.path.stem not in every_store.MODULES or name in every_store.OF_THE_DISK


def _is_of_any_database(item: pytest.Item) -> bool:
    """Whether it runs on one kind of database, whichever that is."""
    names = getattr(item, "fixturenames", ())
    if item.path.stem in any_database.MODULES:
        return False
    fixed = {"sqlite_url", "mariadb_url", "served_url", "own_server", "mortal_mariadb"}
    return "stack_url" in names and fixed.isdisjoint(names)


def _takes(fixture: str, item: pytest.Item) -> bool:
    return fixture in getattr(item, "fixturenames", ())


def _needs_proxy(proxy: str, item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return callspec is not None and callspec.params.get("proxy") == proxy


def _needs_s3(item: pytest.Item) -> bool:
    names, params = getattr(item, "fixturenames", ()), getattr(getattr(item, "callspec", None), "params", {})
    if find_spec("boto3") is not None and GIVEN_S3 is not None:
        return "own_gateway" in names
    return "own_gateway" in names or "s3_gateway" in names or params.get("make_process") == "s3"


@pytest.fixture(scope="session", autouse=True)
def _store_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A bucket for the tests of what every store has to do, as .ci/run has them run on Ceph."""
    given = os.environ.get(STORE_ON)
    if given != "juicefs":
        if given is not None:
            given_gateway(given).make_bucket()
        yield
        return
    with JuiceGateway(tmp_path_factory.mktemp("store")) as juice:
        os.environ[STORE_ON] = juice.gateway.url
        yield


@pytest.fixture(autouse=True)
def _no_faults_of_earlier_tests() -> None:
    """The log tells the beginning and the end of a fault once, and the disk of all tests is one."""
    for trouble in [*observability._open_troubles]:
        trouble.is_open = False
        trouble._kinds.clear()
    observability._open_troubles.clear()
    observability.tell_beginnings_of_troubles()


@pytest.fixture
def two_cores() -> set[int]:
    """Two of the cores that there are."""
    return set(sorted(os.sched_getaffinity(0))[:2])


@pytest.fixture
def tmux() -> None:
    """The test looks at a terminal."""


@pytest.fixture
def mounts() -> None:
    """The test mounts something, where nobody else sees it."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def worker_number() -> int:
    """The number of this pytest worker, from 0."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


# Redis


@pytest.fixture(scope="session")
def shared_redis_url(tmp_path_factory: pytest.TempPathFactory, worker_number: int) -> Iterator[str]:
    """A Redis of this worker's own."""
    given = os.environ.get("UPLOADER_TEST_REDIS_URL")
    if given:
        yield f"{given.rstrip('/').removesuffix('/0')}/{worker_number}"
        return
    server = PrivateRedis(tmp_path_factory.mktemp("redis")).start()
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def _shared_redis(shared_redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(shared_redis_url) as redis:
        yield redis


@pytest.fixture
def redis_url(shared_redis_url: str, _shared_redis: Redis) -> str:
    """An empty Redis."""
    _shared_redis.flushdb()
    return shared_redis_url


@pytest.fixture
def make_uploader(tmp_path: Path, redis_url: str) -> MakeUploader:
    def make(**more: Any) -> Uploader:
        keywords = {"data": tmp_path / "data", "redis_url": redis_url, "free_space_floor": 0, "min_chunk_size": "64KiB"}
        return Uploader(**{"identify": identify, **keywords, **more})

    return make


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[PrivateRedis]:
    """A Redis that the test may kill."""
    server = PrivateRedis(tmp_path / "own-redis").start()
    yield server
    server.stop()


@pytest.fixture
def old_redis(tmp_path: Path) -> Iterator[PrivateRedis]:
    """A Redis of a version that lacks what the scripts need."""
    server = PrivateRedis(tmp_path / "old-redis", program=old_redis_program()).start()
    yield server
    server.stop()


@pytest.fixture
def valkey_authority(tmp_path: Path) -> Authority:
    """Vouches for a Valkey that speaks TLS."""
    return Authority(tmp_path / "authority")


# Databases


@pytest.fixture(scope="session")
def mariadb_server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A URL of a MariaDB in which the tests may make databases: the given one, or a private one of this worker's own."""
    yield from _server_url("mariadb", tmp_path_factory)


@pytest.fixture(scope="session")
def mysql_server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same of a MySQL."""
    yield from _server_url("mysql", tmp_path_factory)


def _server_url(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = _GIVEN[kind]
    if given:
        yield given
        return
    server = PRIVATE_DATABASES[kind](tmp_path_factory.mktemp(kind)).start()
    yield server.url("mysql")
    server.stop()


async def _create_database(server_url: str, name: str) -> str:
    """The URL of a new database without tables."""
    database = patient(server_url)
    async with database.engine.connect() as connection:
        await connection.execute(text(f"DROP DATABASE IF EXISTS {name}"))
        await connection.execute(text(f"CREATE DATABASE {name}"))
    await database.close()
    return _on(server_url, name)


def _on(server_url: str, name: str) -> str:
    """The URL of a database on this server."""
    base, _, query = server_url.partition("?")
    return f"{base.rsplit('/', 1)[0]}/{name}" + (f"?{query}" if query else "")


@pytest.fixture
async def blank_mariadb_url(mariadb_server_url: str, worker_number: int) -> str:
    """A database without tables, for tests of the migrations."""
    return await _create_database(mariadb_server_url, f"uploader_blank_{worker_number}")


@pytest.fixture
async def blank_mysql_url(mysql_server_url: str, worker_number: int) -> str:
    """The same on MySQL."""
    return await _create_database(mysql_server_url, f"uploader_blank_{worker_number}")


@pytest.fixture
def blank_url(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> str:
    """Another database of the same kind, where nothing is."""
    if database_url.startswith("sqlite"):
        return f"sqlite:///{tmp_path / 'restored' / 'uploader.db'}"
    kind = request.node.callspec.params["database_url"]
    url: str = request.getfixturevalue(f"blank_{kind}_url")
    return url


@pytest.fixture(scope="session")
async def mariadb_template(mariadb_server_url: str, worker_number: int) -> AsyncIterator[tuple[str, Database]]:
    """A migrated database on MariaDB; `mariadb_url` empties it before each test."""
    async with _migrated("mariadb", mariadb_server_url, worker_number) as made:
        yield made


@pytest.fixture(scope="session")
async def mysql_template(mysql_server_url: str, worker_number: int) -> AsyncIterator[tuple[str, Database]]:
    """The same on MySQL."""
    async with _migrated("mysql", mysql_server_url, worker_number) as made:
        yield made


@asynccontextmanager
async def _migrated(kind: str, server_url: str, worker_number: int) -> AsyncIterator[tuple[str, Database]]:
    """A database of this worker's own: its URL, and connections to it. A server that is private has one."""
    given = _GIVEN[kind] is not None
    url = (
        await _create_database(server_url, f"uploader_test_{worker_number}") if given else _on(server_url, WITH_TABLES)
    )
    database = patient(url)
    if given:
        await migrate.upgrade(database)
    yield url, database
    await database.close()


@pytest.fixture(scope="session")
async def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file; `database_url` copies it for each test."""
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    database = Database(f"sqlite:///{path}", creates=True)
    await migrate.upgrade(database)
    await database.close()
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A migrated, empty SQLite database."""
    path = tmp_path / "test.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
async def mariadb_url(mariadb_template: tuple[str, Database]) -> str:
    """A migrated, empty MariaDB database."""
    return await _emptied(*mariadb_template)


@pytest.fixture
async def mysql_url(mysql_template: tuple[str, Database]) -> str:
    """A migrated, empty MySQL database."""
    return await _emptied(*mysql_template)


# In which tables anything is, as one row. It waits for what a killed process has not committed yet.
_FILLED = select(
    *(
        exists(select(literal_column("1")).select_from(table).with_for_update()).label(table.name)
        for table in models.metadata.sorted_tables
    )
)


async def _emptied(url: str, database: Database) -> str:
    async with database.engine.begin() as connection:
        filled = (await connection.execute(_FILLED)).mappings().one()
        for table in reversed(models.metadata.sorted_tables):
            if filled[table.name]:
                await connection.execute(table.delete())
    return url


async def emptied_on(server: PrivateDatabase) -> str:
    url = server.url(WITH_TABLES)
    database = patient(url)
    await _emptied(url, database)
    await database.close()
    return url


@pytest.fixture(params=PRIVATE_DATABASES)
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PrivateDatabase]:
    """A MariaDB, and then a MySQL, that the test may kill."""
    server = PRIVATE_DATABASES[request.param](tmp_path / "own-server").start()
    yield server
    server.stop()


@pytest.fixture
async def own_server_url(own_server: PrivateDatabase) -> str:
    """A migrated, empty database on it."""
    return await emptied_on(own_server)


@pytest.fixture(scope="session")
def _mortal_mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateDatabase]:
    server = PRIVATE_DATABASES["mariadb"](tmp_path_factory.mktemp("mortal-mariadb")).start()
    yield server
    server.stop()


@pytest.fixture
def mortal_mariadb(_mortal_mariadb: PrivateDatabase) -> Iterator[PrivateDatabase]:
    """The test may stop or kill it: the next one finds it as it was. No MySQL: on a busy machine a crash of that one undid
    nothing, and a mutant survived. What the two do otherwise has tests with `own_server`."""
    yield _mortal_mariadb
    _mortal_mariadb.revive()


@pytest.fixture
async def mortal_mariadb_url(mortal_mariadb: PrivateDatabase) -> str:
    """A migrated, empty database on it."""
    return await emptied_on(mortal_mariadb)


@pytest.fixture(params=PRIVATE_DATABASES)
def served_url(request: pytest.FixtureRequest) -> str:
    """A migrated, empty database on each kind of server."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def blank_served_url(request: pytest.FixtureRequest, served_url: str) -> str:
    """Another database of the same kind, without tables."""
    kind = request.node.callspec.params["served_url"]
    url: str = request.getfixturevalue(f"blank_{kind}_url")
    return url


@pytest.fixture(params=["sqlite", *PRIVATE_DATABASES])
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated, empty database: the test runs once on each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = patient(database_url)
    yield opened
    await opened.close()


# A storage


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Store]:
    """What it acknowledges survives a power cut."""
    async with running_storage(tmp_path, durable=True) as made:
        yield made


# A bucket


@pytest.fixture(scope="session")
def juice_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JuiceGateway]:
    """JuiceFS' gateway, of this worker's own."""
    with JuiceGateway(tmp_path_factory.mktemp("s3")) as started:
        yield started


@pytest.fixture(scope="session")
def s3_gateway(request: pytest.FixtureRequest) -> Gateway:
    """A server that speaks S3: the given one, or this worker's own."""
    if GIVEN_S3:
        return given_gateway(GIVEN_S3).make_bucket()
    juice: JuiceGateway = request.getfixturevalue("juice_gateway")
    return juice.gateway


@pytest.fixture
def s3_address(s3_gateway: Gateway) -> BucketAddress:
    """A bucket there, below a prefix where nothing is."""
    return s3_gateway.address(f"tests/{secrets.token_hex(8)}")


@pytest.fixture
def own_gateway(juice_gateway: JuiceGateway) -> Iterator[JuiceGateway]:
    """One that the test may stop, or kill: the next one finds it as it was."""
    yield juice_gateway
    juice_gateway.revive()


@pytest.fixture
def own_address(own_gateway: JuiceGateway) -> BucketAddress:
    """A bucket there, below a prefix where nothing is."""
    return own_gateway.gateway.address(f"tests/{secrets.token_hex(8)}")


@pytest.fixture
async def make_node(stack_url: str, s3_address: BucketAddress) -> AsyncIterator[MakeNode]:
    async with making_nodes(stack_url, s3_address) as make:
        yield make


@pytest.fixture
async def node(make_node: MakeNode) -> Node:
    """A store on S3, as a process has it."""
    return make_node()


@pytest.fixture
async def another(make_node: MakeNode, node: Node) -> Node:
    """Another process, with the same bucket and the same ledger."""
    return make_node()


# The whole server


@pytest.fixture
def stack_kind(request: pytest.FixtureRequest) -> str:
    """SQLite for what is the same on any database; else a kind that is chosen anew for each commit."""
    if not _is_of_any_database(request.node):
        return "sqlite"
    is_ci = os.environ.get("CI") == "true"
    kinds = [
        "sqlite",
        *(kind for kind, each in PRIVATE_DATABASES.items() if is_ci or _GIVEN[kind] or each.is_installed()),
    ]
    (kind,) = chosen(kinds, 1, request.node.nodeid)
    request.node.add_report_section("setup", "database", kind)
    return kind


@pytest.fixture
def stack_url(request: pytest.FixtureRequest, stack_kind: str) -> str:
    """A migrated, empty database for a whole server."""
    url: str = request.getfixturevalue(f"{stack_kind}_url")
    return url


@pytest.fixture
def make_stack(tmp_path: Path, stack_url: str, redis_url: str) -> MakeStack:
    """Makes a stack on one kind of database and Redis; takes fields of Settings, `jobs` and `clock`."""
    return partial(_stack, tmp_path / "data", stack_url, redis_url)


@pytest.fixture
def make_stack_on(tmp_path: Path, database_url: str, redis_url: str) -> MakeStack:
    """As `make_stack`, once on each kind of database."""
    return partial(_stack, tmp_path / "data", database_url, redis_url)


def _stack(data: Path, database: str, redis: str, **settings: Any) -> AbstractAsyncContextManager[Stack]:
    return running_stack(data, settings.pop("database_url", database), settings.pop("redis_url", redis), **settings)


@pytest.fixture
async def stack(make_stack: MakeStack) -> AsyncIterator[Stack]:
    """A stack with default settings and no background jobs."""
    async with make_stack() as made:
        yield made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


# A browser


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """A Chromium of this worker's own; each test has a profile of its own in it (`visiting`)."""
    async with running_chromium() as chromium:
        yield chromium
