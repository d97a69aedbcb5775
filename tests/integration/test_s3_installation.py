"""What belongs together where the bytes are in a bucket, and what is said of it: of the bucket, not of a data directory."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.content import Content
from tests.support.gateways import PART_BYTES, settings_of
from tests.support.process import run_cli
from tests.support.stack import Stack
from uploader.addresses import BucketAddress
from uploader.database import meta
from uploader.errors import ConfigurationError
from uploader.service.installation import FACT
from uploader.storage.s3.bucket import Bucket
from uploader.storage.s3.store import MARK

OTHER = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def in_bucket(s3_address: BucketAddress) -> dict[str, Any]:
    return settings_of(s3_address) | {"min_chunk_size_bytes": PART_BYTES}


async def refusal(make_stack: MakeStack, **settings: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        async with make_stack(**settings):
            pass
    assert "\n" not in refused.value.detail
    assert "data directory" not in refused.value.detail
    assert "UPLOADER_DATA:" not in refused.value.detail
    return refused.value.detail


async def id_of(stack: Stack) -> str:
    belonging = await stack.services.installation.belonging()
    assert belonging.disk is not None
    assert belonging.disk == belonging.database == belonging.redis
    return belonging.disk


async def test_an_empty_database_stops(
    make_stack: MakeStack, in_bucket: dict[str, Any], sqlite_template: Path, tmp_path: Path
) -> None:
    async with make_stack(**in_bucket) as stack:
        mine = await id_of(stack)
    shutil.copy(sqlite_template, tmp_path / "empty.db")
    detail = await refusal(make_stack, **in_bucket, database_url=f"sqlite:///{tmp_path / 'empty.db'}")
    assert f"the bucket {in_bucket['storage']} belongs to installation {mine}, the database to none" in detail


async def test_a_bucket_of_nobody_stops(make_stack: MakeStack, in_bucket: dict[str, Any]) -> None:
    async with make_stack(**in_bucket) as stack:
        mine = await id_of(stack)
    elsewhere = f"{in_bucket['storage']}-2"
    detail = await refusal(make_stack, **in_bucket | {"storage": elsewhere})
    assert (
        f"the database belongs to installation {mine}, the bucket {elsewhere} to none: is it the right one?" in detail
    )
    assert "Correct UPLOADER_STORAGE" in detail


async def test_the_database_of_another_installation_stops(make_stack: MakeStack, in_bucket: dict[str, Any]) -> None:
    async with make_stack(**in_bucket) as stack:
        await stack.services.database.transact(lambda connection: meta.replace_fact(connection, FACT, OTHER))
    assert f"the database to {OTHER}: correct UPLOADER_STORAGE or" in await refusal(make_stack, **in_bucket)


async def test_the_redis_of_another_installation_stops(make_stack: MakeStack, in_bucket: dict[str, Any]) -> None:
    async with make_stack(**in_bucket) as stack:
        await stack.services.redis.set("installation", f"1 {OTHER}")
    detail = await refusal(make_stack, **in_bucket)
    assert f"Redis belongs to installation {OTHER}, the bucket {in_bucket['storage']} and the database" in detail


async def test_content_that_the_database_does_not_know_stops(
    make_stack: MakeStack, in_bucket: dict[str, Any], s3_address: BucketAddress, sqlite_template: Path, tmp_path: Path
) -> None:
    async with make_stack(**in_bucket) as stack:
        assert (await stack.upload(Content(1000))).status_code == 201
    bucket = Bucket(s3_address)
    bucket.delete([MARK])
    bucket.close()
    shutil.copy(sqlite_template, tmp_path / "empty.db")
    detail = await refusal(make_stack, **in_bucket, database_url=f"sqlite:///{tmp_path / 'empty.db'}")
    assert f"the bucket {in_bucket['storage']} holds content of which the database names nothing" in detail


async def test_a_bucket_has_no_free_bytes_to_watch(make_stack: MakeStack, in_bucket: dict[str, Any]) -> None:
    async with make_stack(**in_bucket) as stack:
        shown = await stack.metrics()
    assert "uploader_free_disk_bytes NaN" in shown
    assert "uploader_trash_bytes NaN" in shown


def test_the_commands_say_what_the_store_is_called(tmp_path: Path, s3_address: BucketAddress) -> None:
    where = f"s3://{s3_address.bucket}/{s3_address.prefix}"
    settings = {
        "DATA": str(tmp_path / "data"),
        "STORAGE": where,
        "S3_ENDPOINT": str(s3_address.endpoint),
        "S3_ACCESS_KEY_ID": str(s3_address.access_key_id),
        "S3_SECRET_ACCESS_KEY": str(s3_address.secret_access_key),
        "S3_PATH_STYLE": "true",
    }
    assert f"bucket {where}: of none\n" in run_cli(settings, "installation").stdout
    adopted = run_cli(settings, "adopt", "--yes")
    assert adopted.returncode == 0, adopted.stderr
    shown = run_cli(settings, "installation").stdout
    assert f"bucket {where}: {adopted.stdout.split()[-2]}\n" in shown
    made = run_cli(settings, "backup", str(tmp_path / "backups"))
    assert made.returncode == 0, made.stderr
    assert f"the blobs stay where they are, in the bucket {where}; the backup has the database\n" in made.stdout
