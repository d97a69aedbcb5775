"""What the client decides of many files without a server: what is unchanged, what to ask, how a batch is made."""

import hashlib
import io
import os
import tarfile
from collections import deque
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from uploader.client import File, FileChanged, LocalFile, Unreadable
from uploader.client.batch import (
    TooLarge,
    archived,
    bytes_for,
    first_bytes,
    length_of,
    next_batch,
    pieces_of,
    read_batch,
    read_member,
)
from uploader.client.files import There, prefixes_of
from uploader.client.plan import moment_of, wishes
from uploader.domain.archive import END

NS = 1_700_000_000_123_456_789
MOMENT = datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=80)


def stored(name: str = "a", size: int = 1, at: datetime | None = MOMENT, *, damaged: bool = False) -> File:
    """A file on the server."""
    return File("id", name, None, "00" * 32, size, MOMENT, instant=False, damaged=damaged, modified_at=at)


def local(name: str = "a", size: int = 1, modified_ns: int = NS) -> LocalFile:
    return LocalFile(name, name, size, modified_ns)


@given(
    st.lists(
        st.tuples(
            st.lists(NAMES, min_size=1, max_size=4).map("/".join),
            st.binary(max_size=1500),
            st.integers(-(10**18), 10**19),
        ),
        max_size=5,
    )
)
def test_an_archive_is_what_others_read_as_one(members: list[tuple[str, bytes, int]]) -> None:
    digests = [hashlib.sha256(content).hexdigest() for _, content, _ in members]
    archive = b"".join(
        archived(name, content, modified_ns, digest)
        for (name, content, modified_ns), digest in zip(members, digests, strict=True)
    )
    with tarfile.open(fileobj=io.BytesIO(archive + END)) as read:
        entries = list(read)
        assert [entry.name for entry in entries] == [name for name, _, _ in members]
        for entry, (_, content, modified_ns), digest in zip(entries, members, digests, strict=True):
            opened = read.extractfile(entry)
            assert opened is not None
            assert opened.read() == content
            assert entry.pax_headers["uploader.sha256"] == digest
            seconds, _, decimals = entry.pax_headers["mtime"].lstrip("-").partition(".")
            assert int(seconds + decimals) == abs(modified_ns)
            assert entry.pax_headers["mtime"].startswith("-") == (modified_ns < 0)


@pytest.mark.parametrize("length", [90, 99, 100, 101, 1000])
def test_a_name_of_any_length_is_archived(length: int) -> None:
    name = "n" * length
    with tarfile.open(fileobj=io.BytesIO(archived(name, b"x", NS, "0" * 64) + END)) as read:
        assert read.getnames() == [name]


def test_a_batch_is_bounded_by_its_members_and_its_bytes() -> None:
    small = deque(local(str(number)) for number in range(1201))
    assert [len(next_batch(small, 1 << 20)) for _ in range(5)] == [400, 400, 400, 1, 0]
    large = deque(local(str(number), 3 << 20) for number in range(4))
    assert [len(next_batch(large, 6 << 20)) for _ in range(2)] == [2, 2]
    assert [len(next_batch(deque([local(size=9), local(size=9)]), 1))] == [1]


def test_on_a_slow_line_a_batch_is_smaller_and_the_first_one_is_as_a_rate_allows() -> None:
    sizes = {1.0: 2 << 20, 8.0: 256 << 10, 1000.0: 64 << 10, 0.0: 8 << 20, 0.01: 8 << 20}
    assert {seconds: bytes_for(1 << 20, seconds) for seconds in sizes} == sizes
    assert [first_bytes(rate) for rate in (None, 1 << 30, 100 << 10, 1)] == [2 << 20, 2 << 20, 200 << 10, 64 << 10]


async def test_what_a_batch_sends_is_as_long_as_was_announced(tmp_path: Path) -> None:
    sizes = [0, 1, 511, 512, 513, 200_000, 200_000]
    for number, size in enumerate(sizes):
        (tmp_path / str(number)).write_bytes(bytes(size))
    files = [LocalFile.at(tmp_path / str(number)) for number in range(len(sizes))]
    batch = read_batch(files, 1 << 20, There((), "keep"))
    sent = b"".join([piece async for piece in pieces_of(batch.members)])
    assert len(sent) == length_of(batch.members)
    with tarfile.open(fileobj=io.BytesIO(sent)) as read:
        assert [entry.size for entry in read] == sizes


def test_a_file_is_sent_as_it_is_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one")
    found = LocalFile.at(path)
    path.write_bytes(b"one, two")
    os.utime(path, ns=(0, NS))
    member = read_member(found, 100)
    assert (member.size, member.sha256) == (8, hashlib.sha256(b"one, two").hexdigest())
    with tarfile.open(fileobj=io.BytesIO(member.archived + END)) as read:
        assert next(iter(read)).mtime == pytest.approx(NS / 1e9)
    with pytest.raises(TooLarge):
        read_member(found, 7)


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"one")
    real = os.pread

    def grows(descriptor: int, length: int, offset: int) -> bytes:
        content = real(descriptor, length, offset)
        with path.open("ab") as opened:
            opened.write(b"more")
        return content

    monkeypatch.setattr(os, "pread", grows)
    with pytest.raises(FileChanged):
        read_member(LocalFile.at(path), 100)


def test_what_can_not_be_read_harms_no_other_and_what_is_there_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"too large")
    (tmp_path / "same").write_bytes(b"s")
    files = [LocalFile(tmp_path / name, name, 1, NS) for name in ("missing", "there", "pipe", "large", "same")]
    same = replace(stored("same", at=None), sha256=hashlib.sha256(b"s").hexdigest())
    batch = read_batch(files, 5, There([same], "keep"))
    assert [member.local.name for member in batch.members] == ["there"]
    told = {outcome.local.name: outcome for outcome in batch.outcomes}
    assert {name: type(outcome.error) for name, outcome in told.items() if outcome.error} == {
        "missing": Unreadable,
        "pipe": Unreadable,
    }
    assert (told["same"].file, told["same"].how) == (same, "present")
    assert [each.name for each in batch.grown] == ["large"]


@pytest.mark.parametrize(
    ("at", "unchanged"),
    [
        (MOMENT, True),
        (MOMENT + timedelta(microseconds=1), True),  # rounded, not cut off
        (MOMENT.replace(microsecond=123000), True),
        (MOMENT.replace(microsecond=0), True),
        (MOMENT.replace(microsecond=0) + timedelta(seconds=1), False),
        (MOMENT + timedelta(milliseconds=2), False),
        (None, False),
    ],
    ids=str,
)
def test_unchanged_is_what_has_name_size_and_time(at: datetime | None, unchanged: bool) -> None:
    file = stored(at=at)
    assert There([file], "keep").unchanged(local()) == (file if unchanged else None)


def test_another_size_another_name_and_damaged_content_are_changed_and_all_where_others_have_to_go() -> None:
    assert There([stored(size=2), stored("b"), stored(damaged=True)], "keep").unchanged(local()) is None
    files = [stored(at=None), stored()]
    assert There(files, "keep").unchanged(local()) == files[1]
    assert There(files, "fail").unchanged(local()) == files[1]
    assert There(files, "replace").unchanged(local()) is None
    assert There(files[1:], "replace").unchanged(local()) == files[1]


def test_a_time_beyond_the_calendar_is_none() -> None:
    assert moment_of(NS) == MOMENT
    assert moment_of(-1) == datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert moment_of(10**21) is None
    assert There([stored()], "keep").unchanged(local(modified_ns=10**21)) is None
    assert wishes("keep", 10**21) == {}
    assert wishes("replace", NS) == {"if_exists": "replace", "modified_at": "2023-11-14T22:13:20.123456+00:00"}


@pytest.mark.parametrize(
    ("names", "prefixes"),
    [
        ([], []),
        (["film"], ["film"]),
        (["to/film", "to/photo"], ["to/film", "to/photo"]),
        (["a/1", "a/2", "b/1"], ["a/", "b/1"]),
        ([f"photos/{number}" for number in range(10)], ["photos/"]),
        ([f"photos/2026/{number:04}.jpg" for number in range(10)], ["photos/2026/000"]),
        (["a", "b", "c", "d", "e"], [""]),
        (["a", "a"], ["a"]),
    ],
)
def test_the_server_is_asked_for_little_more_than_there_is(names: list[str], prefixes: list[str]) -> None:
    assert prefixes_of(names) == prefixes


@given(st.lists(st.text("ab/", min_size=1, max_size=6), max_size=30))
def test_every_name_begins_with_a_prefix(names: list[str]) -> None:
    prefixes = prefixes_of(names)
    assert all(any(name.startswith(prefix) for prefix in prefixes) for name in names)
