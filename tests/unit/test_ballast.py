"""The ballast takes room on the disk, and gives it up as often and to as many as ask."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.content import MIB
from tests.support.faults import Call, failing, failing_call, intercepting
from uploader.errors import StorageFull
from uploader.storage.ballast import Ballast
from uploader.storage.disk import check_room

SIZE = 2 * MIB


@pytest.fixture
def make(tmp_path: Path) -> Callable[[], Ballast]:
    return lambda: Ballast(tmp_path / "ballast", size_bytes=SIZE)


def blocks(tmp_path: Path) -> int:
    return (tmp_path / "ballast").stat().st_blocks * 512


def test_it_takes_what_it_gives_and_others_see_that_it_is_used(tmp_path: Path, make: Callable[[], Ballast]) -> None:
    one, other = make(), make()
    assert (one.free(), one.is_used, one.look()) == (False, False, False), (
        "there is none yet, and nobody is kept waiting"
    )
    assert one.fill()
    assert blocks(tmp_path) >= SIZE
    assert (tmp_path / "ballast").stat().st_mode & 0o777 == 0o600
    assert other.look()
    assert not other.is_used
    for _ in range(2):
        assert one.free(), "who is late may try again as well"
        assert (one.is_used, other.is_used, blocks(tmp_path)) == (True, True, 0)
    with pytest.raises(StorageFull):
        check_room(other.reserve)
    assert other.fill()
    assert not one.is_used
    check_room(one.reserve)
    assert blocks(tmp_path) >= SIZE


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_it_is_given_up_unasked_only_by_a_full_disk(make: Callable[[], Ballast], number: int) -> None:
    ballast = make()
    assert ballast.fill()
    assert not ballast.make_room()
    with failing_call("pwrite", number, times=None):
        assert ballast.make_room() is (number != errno.EIO)
    assert ballast.is_used is (number != errno.EIO)


def test_it_is_not_made_where_nothing_would_be_left(tmp_path: Path, make: Callable[[], Ballast]) -> None:
    ballast = make()

    def nearly_full(call: Call) -> object:
        found = call.make()
        if call.name != "statvfs":
            return found
        return os.statvfs_result([1, 1, 0, 0, 2 * SIZE - 1, *list(found)[5:]])

    with intercepting(nearly_full):
        assert ballast.lacking_bytes() == 1
        assert not ballast.fill()
    assert list(tmp_path.iterdir()) == []


def test_ballast_reserves_inodes_and_gives_them_back(tmp_path: Path, make: Callable[[], Ballast]) -> None:
    def inodes() -> int:
        return len(list(tmp_path.rglob("*")))

    one, other = make(), make()
    assert one.fill()
    reserved = inodes()
    assert reserved > 100
    for _ in range(2):
        assert other.free()
        assert inodes() == 1, "the ballast itself stays"
    assert one.fill()
    assert inodes() == reserved
    shutil.rmtree(tmp_path / "ballast.inodes")  # a ballast of an older version has none
    assert one.fill()
    assert inodes() == reserved


def test_ballast_is_not_made_of_the_last_inodes(tmp_path: Path, make: Callable[[], Ballast]) -> None:
    free = 0

    def without_inodes(call: Call) -> object:
        found = call.make()
        if call.name != "statvfs":
            return found
        return os.statvfs_result([*list(found)[:5], 1000, free, free, *list(found)[8:]])

    with intercepting(without_inodes):
        assert not make().fill()
        assert list(tmp_path.iterdir()) == []
        free = 999
        assert make().fill()


def test_a_disk_that_ends_meanwhile_gets_all_of_it_back(tmp_path: Path, make: Callable[[], Ballast]) -> None:
    ballast = make()
    assert ballast.fill()
    ballast.free()
    with failing(lambda call: call.name == "pwrite", errno.ENOSPC, at=10), pytest.raises(OSError, match="No space"):
        ballast.fill()
    assert blocks(tmp_path) == 0
    assert ballast.is_used


def test_what_is_needed_while_it_is_made_is_given_at_once(tmp_path: Path, make: Callable[[], Ballast]) -> None:
    ballast, other = make(), make()
    assert ballast.fill()
    ballast.free()
    writes = []

    def in_between(call: Call) -> object:
        if call.name == "pwrite":
            writes.append(call)
            if len(writes) == 3:
                assert not other.fill(), "one makes it"
                assert other.free()
        return call.make()

    with intercepting(in_between):
        assert not ballast.fill()
    assert ballast.is_used
    assert ballast.fill()


def test_one_that_somebody_removes_is_none(tmp_path: Path, make: Callable[[], Ballast]) -> None:
    ballast = make()
    assert ballast.fill()
    (tmp_path / "ballast").unlink()
    assert not ballast.look()
    assert not ballast.is_used
    assert ballast.fill()


@pytest.mark.parametrize("sqlite", [None, Path("/data/uploader.db"), Path("/fast/uploader.db")])
def test_it_lies_where_the_database_finds_no_room(sqlite: Path | None) -> None:
    there = "/fast/uploader.db.ballast" if sqlite == Path("/fast/uploader.db") else "/data/ballast"
    assert Ballast.beside(Path("/data"), sqlite).path == Path(there)
