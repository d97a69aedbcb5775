"""TLS to each store, with certificates that are verified both ways, and passwords: by the URLs that docs/redis.md and
docs/databases.md list, and a sentence that names host and reason where something of it is missing."""

from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.conftest import MakeStack
from tests.support.certificates import Authority
from tests.support.content import Content
from tests.support.servers import (
    PRIVATE_DATABASES,
    PrivateCluster,
    PrivateDatabase,
    PrivateRedis,
    PrivateSentinel,
    free_port,
)
from tests.support.waiting import eventually
from uploader.accounting.keys import Shards
from uploader.accounting.pending import Pending
from uploader.accounting.redis import connect
from uploader.database import migrate
from uploader.database.engine import Database, is_refusal
from uploader.errors import Unavailable
from uploader.settings import Settings

CONTENT = Content(200_000)
DELAYS = Settings(quiet_interval_seconds=5, max_delay_seconds=60, max_pending_bytes=1, claim_lease_seconds=30)
PASSWORD = "opensesame"


def options_of(authority: Authority) -> str:
    """What a URL says of certificates."""
    mine = authority.issue("uploader")
    return f"ssl_ca={authority.file}&ssl_cert={mine.certificate}&ssl_key={mine.key}"


async def uploads(make_stack: MakeStack, **settings: Any) -> None:
    """That a file is uploaded, and the stores found ready."""
    async with make_stack(**settings, jobs=True) as stack:
        assert (await stack.upload(CONTENT)).json()["state"] == "complete"

        async def is_ready() -> bool:  # a look may take longer than it may, on a busy machine
            return (await stack.anonymous().get("/readyz")).status_code == 200

        await eventually(is_ready)


async def told(url: str) -> str:
    """What whoever runs the server is told."""
    async with aclosing(connect(url)) as redis:
        with pytest.raises(Unavailable) as raised:
            await Pending(redis, shards=Shards(1), settings=DELAYS).read("upload")
    assert PASSWORD not in raised.value.reason
    return raised.value.reason


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def tls_redis(valkey_authority: Authority, tmp_path: Path) -> Iterator[PrivateRedis]:
    server = PrivateRedis(tmp_path / "redis", authority=valkey_authority, password=PASSWORD).start()
    yield server
    server.stop()


@contextmanager
def stopped(servers: PrivateCluster | PrivateSentinel) -> Iterator[None]:
    try:
        servers.start()
        yield
    finally:
        servers.stop()


async def test_redis_over_tls(make_stack: MakeStack, tls_redis: PrivateRedis, valkey_authority: Authority) -> None:
    await uploads(
        make_stack,
        shards=4,
        redis_url=f"rediss://:{PASSWORD}@127.0.0.1:{tls_redis.port}/3?{options_of(valkey_authority)}",
    )


async def test_what_is_wrong_with_the_certificates_of_redis_is_told(
    tls_redis: PrivateRedis, valkey_authority: Authority, tmp_path: Path
) -> None:
    place = f"127.0.0.1:{tls_redis.port}"
    address = f"rediss://:{PASSWORD}@{place}/0"
    stranger = Authority(tmp_path / "stranger", "nobody knows")
    mine, theirs = valkey_authority.issue("uploader"), stranger.issue("uploader")
    of_mine = f"ssl_cert={mine.certificate}&ssl_key={mine.key}"
    unverified = await told(f"{address}?{of_mine}")
    assert place in unverified
    assert "certificate verify failed" in unverified
    assert "certificate verify failed" in await told(f"{address}?{of_mine}&ssl_ca={stranger.file}")
    for without in ("", f"&ssl_cert={theirs.certificate}&ssl_key={theirs.key}"):
        assert f"Redis at {place} (UPLOADER_REDIS_URL) is away: " in await told(
            f"{address}?ssl_ca={valkey_authority.file}{without}"
        )
    assert "invalid username-password pair" in await told(f"rediss://:wrong@{place}?{options_of(valkey_authority)}")
    assert place in await told(address.replace("rediss", "redis"))
    url = f"rediss://:{PASSWORD}@localhost:{tls_redis.port}?{options_of(valkey_authority)}"
    assert "Hostname mismatch" in await told(url), "unless that is asked for"
    async with aclosing(connect(f"{url}&ssl_check_hostname=false")) as redis:
        assert await redis.ping()


async def test_a_cluster_over_tls_of_which_the_first_seed_is_away(
    make_stack: MakeStack, valkey_authority: Authority, tmp_path: Path
) -> None:
    cluster = PrivateCluster(tmp_path / "cluster", valkey_authority, PASSWORD)
    with stopped(cluster):
        seeds = f"127.0.0.1:{free_port()},127.0.0.1:{cluster.nodes[1].port}"
        await uploads(
            make_stack, shards=4, redis_url=f"rediss+cluster://:{PASSWORD}@{seeds}?{options_of(valkey_authority)}"
        )
        unverified = await told(f"rediss+cluster://:{PASSWORD}@{seeds}")
        assert seeds.replace(",", ", ") in unverified


async def test_sentinels_over_tls_with_a_password_of_their_own(
    make_stack: MakeStack, valkey_authority: Authority, tmp_path: Path
) -> None:
    sentinel = PrivateSentinel(tmp_path / "sentinel", valkey_authority, PASSWORD, "another")
    with stopped(sentinel):
        hosts = f"127.0.0.1:{free_port()},{sentinel.address}"
        url = f"rediss+sentinel://:{PASSWORD}@{hosts}/accounts?{options_of(valkey_authority)}"
        await uploads(make_stack, shards=4, redis_url=f"{url}&sentinel_password=another")
        refused = await told(url)
        assert f"accounts of the Sentinels {hosts.replace(',', ', ')} (UPLOADER_REDIS_URL) is away: " in refused


@pytest.fixture(params=PRIVATE_DATABASES)
def secure_server(request: pytest.FixtureRequest, authority: Authority, tmp_path: Path) -> Iterator[PrivateDatabase]:
    """A MariaDB, and then a MySQL, that lets nobody in without TLS."""
    mine = authority.issue("server")
    files = (f"--ssl-ca={authority.file}", f"--ssl-cert={mine.certificate}", f"--ssl-key={mine.key}")
    server = PRIVATE_DATABASES[request.param](tmp_path / "own-server").start(*files, "--require-secure-transport=ON")
    yield server
    server.stop()


async def test_a_database_over_tls(
    make_stack: MakeStack, secure_server: PrivateDatabase, authority: Authority, tmp_path: Path
) -> None:
    """And what is wrong with certificates is told."""
    plain = secure_server.url("mysql")
    maker = Database(f"{plain}&{options_of(authority)}")
    async with maker.engine.connect() as connection:
        await connection.execute(text("CREATE DATABASE uploader"))
        await connection.execute(text("CREATE USER hers IDENTIFIED BY 'opensesame' REQUIRE X509"))
        await connection.execute(text("GRANT ALL ON uploader.* TO hers"))
    await maker.close()
    place = f"127.0.0.1:{secure_server.port}"
    hers = f"mysql+asyncmy://hers:{PASSWORD}@{place}/uploader?charset=utf8mb4&{options_of(authority)}"
    database = Database(hers)
    await migrate.upgrade(database)
    await database.close()
    await uploads(make_stack, database_url=hers)

    stranger = Authority(tmp_path / "stranger", "nobody knows")
    other_name = plain.replace("127.0.0.1", "localhost")
    for url, reason in (
        (plain, "it wants TLS: "),
        (f"{plain}&ssl_ca={stranger.file}", "certificate verify failed"),
        (f"{other_name}&ssl_ca={authority.file}", "Hostname mismatch"),
    ):
        database = Database(url)
        with pytest.raises(Unavailable) as raised:
            await database.read(lambda connection: connection.execute(text("SELECT 1")))
        await database.close()
        place = url.partition("@")[2].partition("/")[0]
        assert raised.value.reason.startswith(f"the database at {place} (UPLOADER_DATABASE_URL) is away: ")
        assert reason in raised.value.reason
        assert is_refusal(raised.value.__cause__), "no waiting mends it"
    unnamed = Database(f"{other_name}&ssl_ca={authority.file}&ssl_check_hostname=false")
    await unnamed.read(lambda connection: connection.execute(text("SELECT 1")))
    await unnamed.close()
