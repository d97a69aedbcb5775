"""Backups where contents are in a bucket: the database is dumped, and restored beside the bucket that has all the rest."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.content import KIB, Content
from tests.support.gateways import JuiceGateway, settings_of
from tests.support.stack import Stack, running_stack
from uploader.addresses import BucketAddress
from uploader.bootstrap import Services
from uploader.database import copies
from uploader.database.copies import load
from uploader.errors import ConfigurationError
from uploader.service import reconcile
from uploader.service.backup import BackedUp, Copied
from uploader.settings import Settings
from uploader.storage.backups import BackupRefused
from uploader.storage.base import BytesBody
from uploader.storage.s3.bucket import Bucket

CONTENTS = [Content(100 * KIB + seed, seed=seed, name=f"{seed}.bin") for seed in range(1, 4)]
OPEN = Content(3 * 64 * KIB, seed=9, name="open.bin")


def nothing(_what: str, _done: int, _total: int) -> None:
    """Nobody listens."""


@pytest.fixture
def in_bucket(s3_address: BucketAddress) -> dict[str, Any]:
    return settings_of(s3_address)


@pytest.fixture
def make_on_sqlite(make_stack: MakeStack, sqlite_url: str) -> MakeStack:
    """For what is restored to one."""
    return partial(make_stack, database_url=sqlite_url)


async def back_up(stack: Stack, tmp_path: Path) -> BackedUp:
    return await stack.services.backups.back_up(tmp_path / "backups", nothing)


def restored_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'restored' / 'uploader.db'}"


async def restore(tmp_path: Path, redis_url: str, url: str | None = None, **settings: Any) -> Copied:
    """As the command does it, on a machine where nothing is."""
    url = url or restored_url(tmp_path)
    in_force = Settings(data=tmp_path / "restored", database_url=url, redis_url=redis_url, **settings)
    services = Services(in_force)
    try:
        plan = await services.restoring.look(tmp_path / "backups")
        return await services.restoring.restore(plan, nothing)
    finally:
        await services.close()


async def contents_of(stack: Stack) -> dict[str, bytes]:
    files = (await stack.client.get("/me/files")).json()["files"]
    return {
        file["name"]: (await stack.client.get(f"/me/files/{file['id']}/content", follow_redirects=True)).content
        for file in files
    }


async def test_a_database_is_restored_beside_its_bucket(
    make_stack: MakeStack,
    in_bucket: dict[str, Any],
    s3_address: BucketAddress,
    served_url: str,
    blank_served_url: str,
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the lines of its tables: of a SQLite the copy has them all."""
    monkeypatch.setattr(reconcile, "_PAUSE_SECONDS", 0.001)  # nothing moves then
    async with make_stack(database_url=served_url, **in_bucket) as stack:
        for content in CONTENTS:
            assert (await stack.upload(content)).status_code == 201
        await stack.open(OPEN)
        assert (await stack.put(OPEN, 0)).status_code == 200
        made = await back_up(stack, tmp_path)
        assert (made.copied.blobs, made.copied.bytes) == (3, sum(len(content.data) for content in CONTENTS))
        assert made.bucket == f"bucket {in_bucket['storage']}"
        later = Content(1000, seed=7, name="later.bin")
        assert (await stack.upload(later)).status_code == 201
        token = stack.client.headers["Authorization"]
    assert not [path for path in (tmp_path / "backups").rglob("*") if len(path.name) == 64], "a content was copied"
    copied = await restore(tmp_path, redis_url, blank_served_url, **in_bucket)
    assert (copied.blobs, copied.lacking) == (3, {})
    async with running_stack(tmp_path / "restored", blank_served_url, redis_url, **in_bucket) as restored:
        restored.client.headers["Authorization"] = token
        assert await contents_of(restored) == {content.name: content.data for content in CONTENTS}
        assert await restored.services.cleanup.count_lost() == 0, "the bucket has its chunks"
        assert [(await restored.put(OPEN, number)).status_code for number in (1, 2)] == [200, 201]
        assert (await contents_of(restored))[OPEN.name] == OPEN.data
        assert (await restored.services.reconciling.reconcile()).drifts == []
    bucket = Bucket(s3_address)
    sizes = [stat.size for batch in bucket.list_keys("u/") for stat in batch]
    bucket.close()
    assert sizes.count(len(later.data)) == 1, "what came after the backup stays"


async def test_what_the_bucket_lacks_is_named(
    make_on_sqlite: MakeStack, in_bucket: dict[str, Any], s3_address: BucketAddress, redis_url: str, tmp_path: Path
) -> None:
    missing, damaged, _ = CONTENTS
    async with make_on_sqlite(**in_bucket) as stack:
        for content in CONTENTS:
            assert (await stack.upload(content)).status_code == 201
        await back_up(stack, tmp_path)
    bucket = Bucket(s3_address)
    for batch in bucket.list_keys("u/"):
        for stat in batch:
            if stat.size == len(missing.data):
                bucket.delete([stat.key])
            if stat.size == len(damaged.data):
                bucket.put(stat.key, BytesBody(b"x"))
    bucket.close()
    copied = await restore(tmp_path, redis_url, **in_bucket)
    assert copied.lacking == {missing.sha256: "missing", damaged.sha256: "damaged"}


async def test_a_bucket_that_is_away_then_is_told_and_the_database_is_there(
    make_on_sqlite: MakeStack,
    own_gateway: JuiceGateway,
    own_address: BucketAddress,
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_bucket = settings_of(own_address)
    async with make_on_sqlite(**in_bucket) as stack:
        assert (await stack.upload(CONTENTS[0])).status_code == 201
        await back_up(stack, tmp_path)

    async def load_and_kill(*arguments: Any) -> None:
        await load(*arguments)
        own_gateway.kill()

    monkeypatch.setattr(copies, "load", load_and_kill)
    with pytest.raises(BackupRefused, match=r"^the database is restored; whether the bucket .* `uploader scrub`"):
        await restore(tmp_path, redis_url, **in_bucket)
    own_gateway.start_again()
    async with running_stack(tmp_path / "restored", restored_url(tmp_path), redis_url, **in_bucket) as restored:
        assert list((await contents_of(restored)).values()) == [CONTENTS[0].data]


async def test_a_backup_goes_where_its_contents_are(
    make_on_sqlite: MakeStack, in_bucket: dict[str, Any], redis_url: str, sqlite_template: Path, tmp_path: Path
) -> None:
    async with make_on_sqlite(**in_bucket) as stack:
        await back_up(stack, tmp_path)
        mine = (await stack.services.installation.belonging()).disk
    storage = in_bucket["storage"]
    with pytest.raises(BackupRefused, match=f"the contents of the backup are in the bucket {storage}: set UPLOADER_"):
        await restore(tmp_path, redis_url)
    elsewhere = in_bucket | {"storage": f"{storage}-2"}
    with pytest.raises(ConfigurationError, match=r"-2 belongs to no installation, .* correct UPLOADER_STORAGE"):
        await restore(tmp_path, redis_url, **elsewhere)
    shutil.copy(sqlite_template, tmp_path / "other.db")
    async with running_stack(
        tmp_path / "other", f"sqlite:///{tmp_path / 'other.db'}", redis_url, adopts=True, **elsewhere
    ) as other:
        its = (await other.services.installation.belonging()).disk
    with pytest.raises(ConfigurationError, match=f"-2 belongs to installation {its}, the backup to {mine}: correct"):
        await restore(tmp_path, redis_url, **elsewhere)
    assert not (tmp_path / "restored" / "uploader.db").exists()


async def test_a_backup_with_its_contents_goes_to_no_bucket(
    make_on_sqlite: MakeStack, in_bucket: dict[str, Any], redis_url: str, tmp_path: Path
) -> None:
    async with make_on_sqlite(storage=None) as stack:
        await back_up(stack, tmp_path)
    with pytest.raises(BackupRefused, match="which go to a disk: unset UPLOADER_STORAGE"):
        await restore(tmp_path, redis_url, **in_bucket)
