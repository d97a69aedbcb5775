"""What belongs together where the bytes are in a bucket, and what is said of it: of the bucket, not of a data directory."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeStack
from tests.support.gateways import PART_BYTES, Gateway, settings_of
from tests.support.process import run_cli
from tests.support.stack import Stack
from uploader.addresses import BucketAddress
from uploader.errors import ConfigurationError


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


@pytest.fixture
def empty_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A database that nothing is in."""
    shutil.copy(sqlite_template, tmp_path / "empty.db")
    return f"sqlite:///{tmp_path / 'empty.db'}"


async def test_what_belongs_to_no_installation_stops(
    make_stack: MakeStack, in_bucket: dict[str, Any], empty_url: str
) -> None:
    where = in_bucket["storage"]
    async with make_stack(**in_bucket) as stack:
        mine = await id_of(stack)
    detail = await refusal(make_stack, **in_bucket, database_url=empty_url)
    assert f"the bucket {where} belongs to installation {mine}, the database to none" in detail
    detail = await refusal(make_stack, **in_bucket | {"storage": f"{where}-2"})
    said = f"the database belongs to installation {mine}, the bucket {where}-2 to none: is it the right one?"
    assert said in detail
    assert "Correct UPLOADER_STORAGE" in detail


async def test_a_bucket_has_no_free_bytes_to_watch(make_stack: MakeStack, in_bucket: dict[str, Any]) -> None:
    async with make_stack(**in_bucket) as stack:
        shown = await stack.metrics()
    assert "uploader_free_disk_bytes NaN" in shown
    assert "uploader_trash_bytes NaN" in shown


def test_the_commands_say_what_the_store_is_called(
    tmp_path: Path, s3_gateway: Gateway, s3_address: BucketAddress
) -> None:
    settings = {"DATA": str(tmp_path / "data"), **s3_gateway.environment(s3_address.prefix)}
    where = settings["STORAGE"]
    assert f"bucket {where}: of none\n" in run_cli(settings, "installation").stdout
    adopted = run_cli(settings, "adopt", "--yes")
    assert adopted.returncode == 0, adopted.stderr
    shown = run_cli(settings, "installation").stdout
    assert f"bucket {where}: {adopted.stdout.split()[-2]}\n" in shown
    made = run_cli(settings, "backup", str(tmp_path / "backups"))
    assert made.returncode == 0, made.stderr
    assert f"the backup has the database; the blobs stay in the bucket {where}\n" in made.stdout
