"""Reading a tar archive as it comes: the same members however it is cut, and a clear refusal of everything else."""

import asyncio
import io
import os
import subprocess
import tarfile
import tempfile
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect
from starlette.types import Message

from tests.support.archives import END, Entry, archive, extended, header, in_pieces, padded, record, sealed
from tests.support.content import KIB, MIB, Content
from tests.support.faults import open_files_under, paused_call
from tests.support.loop_time import pass_time
from tests.support.messages import Sender
from tests.support.waiting import PATIENCE_SECONDS
from uploader.domain import archive as domain_archive
from uploader.domain.archive import (
    FILE_ID,
    MAX_EXTENSION_BYTES,
    MAX_MEMBERS,
    MAX_PADDING_BYTES,
    PROBLEM,
    SHA256,
    ArchiveReader,
    MalformedArchive,
    Member,
    head_of_member,
)
from uploader.domain.links import owner
from uploader.errors import BodyTimeout, FileTooLarge, InvalidArchive, InvalidRequest, UploaderError
from uploader.http.bodies import archive as archive_module
from uploader.http.bodies.archive import Unpacking
from uploader.http.bodies.intake import Intake, MessageBody
from uploader.settings import Settings
from uploader.storage.base import Body
from uploader.storage.store import Spool

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
FORMAT_NAMES = ["ustar", "gnu", "pax"]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HELLO = header(b"hello", 5) + padded(b"world")


@dataclass
class Read:
    """A member and what was given of its bytes."""

    member: Member
    data: bytes = b""

    @property
    def path(self) -> bytes:
        return self.member.path


def read(*pieces: bytes, ends: bool = True) -> list[Read]:
    found: list[Read] = []
    feed_all(ArchiveReader(), pieces, found, ends=ends)
    return found


def feed_all(reader: ArchiveReader, pieces: tuple[bytes, ...], found: list[Read], *, ends: bool = True) -> None:
    """What was found stays found, if it is refused."""
    for piece in pieces:
        for each in reader.feed(memoryview(piece)):
            if isinstance(each, Member):
                found.append(Read(each))
            else:
                assert len(each)
                found[-1].data += each
    if ends:
        reader.end()


@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=300).filter(
        lambda name: name[-1] != "/"
    ),
    st.integers(0, 2**63 - 1) | st.sampled_from([0, 511, 512, 8**11 - 1, 8**11]),
    st.integers(-(10**18), 10**19),
    st.dictionaries(st.sampled_from([FILE_ID, SHA256, PROBLEM]), st.text("abcdef0123456789-", min_size=1, max_size=64)),
)
def test_heads_that_are_written_here_others_read_and_we(
    name: str, size: int, modified_ns: int, told: dict[bytes, str]
) -> None:
    head = head_of_member(name, size, modified_ns, told)
    with tarfile.open(fileobj=io.BytesIO(head)) as tar:
        info = tar.next()
    assert info is not None
    assert (info.name, info.size, info.isreg()) == (name, size, True)
    assert Decimal(info.pax_headers["mtime"]) == Decimal(modified_ns) / 10**9
    assert told == {key: info.pax_headers[key.decode()] for key in told}
    (member,) = (found for found in ArchiveReader().feed(memoryview(head)) if isinstance(found, Member))
    assert (member.path, member.size, member.refused) == (name.encode(), size, None)
    assert told == {
        key: value
        for key, value in zip((FILE_ID, SHA256, PROBLEM), (member.file_id, member.sha256, member.problem), strict=True)
        if value is not None
    }


def read_until_refused(*pieces: bytes) -> list[Read]:
    found: list[Read] = []
    with pytest.raises(MalformedArchive) as refused:
        feed_all(ArchiveReader(), pieces, found)
    assert str(refused.value)
    return found


def only(*pieces: bytes) -> Member:
    (found,) = read(*pieces, END)
    return found.member


names = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=60).filter(
        lambda segment: segment not in (".", "..")
    ),
    min_size=1,
    max_size=4,
).map("/".join)
entries = st.lists(
    st.builds(
        Entry,
        name=names,
        data=st.binary(max_size=1500),
        mtime=st.integers(0, 2**33 - 1),
        type=st.sampled_from([tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE]),
    ).map(lambda entry: entry if entry.type in tarfile.REGULAR_TYPES else Entry(entry.name, type=entry.type)),
    max_size=5,
)


def written(found: list[Entry], kind: int) -> bytes | None:
    """None: no archive of this kind can hold it."""
    try:
        return archive(*found, kind=kind)
    except ValueError:
        return None


@given(entries, st.sampled_from(FORMATS), st.lists(st.integers(1, 20_000), max_size=30))
def test_an_archive_has_the_same_members_however_it_is_cut(found: list[Entry], kind: int, cuts: list[int]) -> None:
    data = written(found, kind)
    if data is None:
        return
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = [(info.name, info.size, info.mtime, info.isreg()) for info in tar if not info.isdir()]
    for pieces in (in_pieces(data, cuts), [data]):
        members = [each.member for each in read(*pieces)]
        assert [
            (m.path.decode("utf-8", "surrogateescape"), m.size, (m.modified_at - EPOCH).total_seconds(), not m.refused)
            for m in members
            if m.modified_at
        ] == expected
    files = [entry for entry in found if entry.type != tarfile.DIRTYPE]
    assert [each.data for each in read(*in_pieces(data, cuts))] == [entry.data for entry in files]


@given(entries, st.sampled_from(FORMATS), st.integers(0, 1000))
def test_what_is_cut_off_is_refused_and_what_came_before_stands(found: list[Entry], kind: int, share: int) -> None:
    data = written(found, kind)
    if data is None:
        return
    whole = read(data)
    end = len(data.rstrip(b"\0"))
    end += -end % 512 + 1024  # both of its last blocks
    cut = read_until_refused(data[: min(end, len(data)) * share // 1001])
    assert [each.path for each in cut] == [each.path for each in whole[: len(cut)]]
    assert [each.data for each in cut[:-1]] == [each.data for each in whole[: len(cut)]][:-1]


@given(st.lists(st.binary(max_size=2000), max_size=8))
def test_any_bytes_are_clearly_refused(pieces: list[bytes]) -> None:
    """Random ones end with no two blocks of zeros."""
    read_until_refused(*pieces)


@given(st.data())
def test_any_damage_is_read_or_clearly_refused(data: st.DataObject) -> None:
    whole = bytearray(archive(Entry("a", b"1" * 700), Entry("x" * 200, b"2"), pax={"comment": "y"}))
    for _ in range(data.draw(st.integers(1, 5))):
        whole[data.draw(st.integers(0, 4000))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        for at in range(0, 4096, 512):
            if any(whole[at : at + 512]):
                whole[at : at + 512] = sealed(whole[at : at + 512])
    try:
        read(bytes(whole))
    except MalformedArchive as error:
        assert str(error)


@pytest.mark.parametrize("kind", FORMATS[1:], ids=FORMAT_NAMES[1:])
def test_a_name_longer_than_any_that_we_take_is_refused_and_cut(kind: int) -> None:
    member = only(archive(Entry("n" * 4095), kind=kind))
    assert (member.path, member.refused) == (b"n" * 4095, None)
    for length in (4096, 5000):
        member = only(archive(Entry("n" * length), kind=kind))
        assert (member.path, member.refused) == (b"n" * 4096, "is longer than 1024 bytes")


def test_an_archive_from_before_ustar_is_read() -> None:
    assert read(
        header(b"d/", magic=b"", kind=b"\0") + header(b"d/a", 3, magic=b"", kind=b"\0") + padded(b"abc") + END
    ) == [Read(Member(b"d/a", 3, EPOCH, None, None, None), b"abc")]


LONG_LINK = header(b"././@LongLink", 4, kind=b"L") + padded(b"gnu\0")


@pytest.mark.parametrize(
    ("blocks", "name"),
    [
        (header(b"name", prefix=b"some/folder"), b"some/folder/name"),
        (header(b"name", magic=b"ustar  \0", prefix=b"14512341234"), b"name"),
        (extended(record(b"path", b"pax")) + LONG_LINK + header(b"own"), b"pax"),
        (LONG_LINK + header(b"own"), b"gnu"),
        (header(b"\xff\xfe"), b"\xff\xfe"),
        (extended(record(b"hdrcharset", b"BINARY"), record(b"path", b"\xff")) + header(b"a"), b"\xff"),
    ],
    ids=["prefix of ustar", "GNU tar has something else there", "extended first", "long", "no UTF-8", "binary"],
)
def test_a_name_comes_from_where_it_counts(blocks: bytes, name: bytes) -> None:
    assert only(blocks).path == name


def test_what_is_said_of_the_next_member_is_not_said_of_the_one_after() -> None:
    found = read(
        extended(record(b"path", b"first"), record(b"uploader.md5", b"1")) + header(b"own") + header(b"second") + END
    )
    assert [(each.path, each.member.md5) for each in found] == [(b"first", "1"), (b"second", None)]


def test_what_is_said_of_all_members_is_said_until_it_is_taken_back() -> None:
    said = extended(record(b"mtime", b"5.5"), record(b"uploader.sha256", b"a"), kind=b"g")
    taken_back = extended(record(b"mtime", b""), record(b"uploader.sha256", b""))
    found = read(said + header(b"a") + taken_back + header(b"b", mtime=b"7") + header(b"c") + END)
    assert [(each.member.modified_at, each.member.sha256) for each in found] == [
        (EPOCH + timedelta(seconds=5.5), "a"),
        (EPOCH + timedelta(seconds=7), None),
        (EPOCH + timedelta(seconds=5.5), "a"),
    ]


@pytest.mark.parametrize(
    ("blocks", "size"),
    [
        (header(b"a", b"\x80" + (700).to_bytes(11, "big")), 700),
        (extended(record(b"size", b"600")) + header(b"a", 0), 600),
        (extended(record(b"size", b"0")) + header(b"a", 5), 0),
    ],
    ids=["binary", "extended", "extended, of nothing"],
)
def test_a_size_may_be_binary_or_extended(blocks: bytes, size: int) -> None:
    (found,) = read(blocks + padded(b"x" * size) + END)
    assert (found.member.size, found.data) == (size, b"x" * size)


def test_a_size_is_believed_no_more_than_the_way_to_the_next_header() -> None:
    for size in (b"\x80" + b"\x7f" * 11, b"77777777777\0"):
        found = read_until_refused(header(b"huge", size), *[bytes(MIB)] * 4)
        assert [each.path for each in found] == [b"huge"]
    for block in (header(b"a", b"\xff" * 12), extended(record(b"size", b"-1")) + header(b"a")):
        assert read_until_refused(block + END) == []


def extended_time(text: bytes) -> bytes:
    return extended(record(b"mtime", text)) + header(b"a")


@pytest.mark.parametrize(
    ("blocks", "seconds"),
    [
        (extended_time(b"1350244992.023960108"), timedelta(seconds=1350244992, microseconds=23960)),
        (extended_time(b"0"), timedelta(0)),
        (extended_time(b"12."), timedelta(seconds=12)),
        (extended_time(b"-1.5"), timedelta(seconds=-1.5)),
        *((extended_time(text), None) for text in (b"1e3", b"soon", b"9" * 20, b"9" * 21, b"-" + b"9" * 15)),
        (header(b"a", mtime=b"14371573076\0"), timedelta(seconds=0o14371573076)),
        (header(b"a", mtime=b"\xff" * 12), timedelta(seconds=-1)),
        (header(b"a", mtime=b"\x80" + b"\x7f" * 11), None),
        (header(b"a", mtime=b""), timedelta(0)),
        (header(b"a", mtime=b" 7 "), timedelta(seconds=7)),
    ],
)
def test_the_time_of_a_member_is_exact_and_none_if_there_is_no_such_time(
    blocks: bytes, seconds: timedelta | None
) -> None:
    assert only(blocks).modified_at == (None if seconds is None else EPOCH + seconds)


@pytest.mark.parametrize(
    ("strange", "why"),
    [
        (header(b"strange", kind=tarfile.LNKTYPE), "is a hard link"),
        (header(b"strange", 5, kind=tarfile.LNKTYPE), "is a hard link"),
        (header(b"strange", kind=tarfile.SYMTYPE), "is a symbolic link"),
        (header(b"strange", kind=tarfile.CHRTYPE), "is a device"),
        (header(b"strange", kind=tarfile.BLKTYPE), "is a device"),
        (header(b"strange", kind=tarfile.FIFOTYPE), "is a named pipe"),
        (header(b"strange", kind=b"V"), "is no regular file"),
        (header(b"strange", 700, kind=b"Z") + padded(b"x" * 700), "is no regular file"),
        (header(b"strange", kind=b"S"), "is a sparse file"),
    ],
    ids=[
        "hard link",
        "link of a size, without bytes",
        "symbolic link",
        *("device", "block", "pipe", "V", "Z", "sparse"),
    ],
)
def test_what_is_no_regular_file_is_told_and_harms_no_other(strange: bytes, why: str) -> None:
    found = read(strange + HELLO + END)
    assert [(each.path, each.member.refused, each.data) for each in found] == [
        (b"strange", why, b""),
        (b"hello", None, b"world"),
    ]


def test_a_sparse_file_is_skipped_with_its_maps() -> None:
    first = bytearray(header(b"old", 600, kind=b"S", magic=b"ustar  \0"))
    first[482] = 1
    maps = bytearray(512), bytearray(512)
    maps[0][504] = 1
    old = sealed(first) + maps[0] + maps[1] + padded(b"x" * 600)
    new = extended(record(b"GNU.sparse.major", b"1")) + header(b"new", 600) + padded(b"y" * 600)
    data = old + new + HELLO + END
    found = read(*in_pieces(data, range(0, len(data), 100)))
    assert [(each.path, each.member.refused, each.data) for each in found] == [
        (b"old", "is a sparse file", b""),
        (b"new", "is a sparse file", b""),
        (b"hello", None, b"world"),
    ]


@pytest.mark.parametrize(
    "options",
    [
        *("--format=ustar", "--format=gnu --sparse", "--format=oldgnu --sparse"),
        *("--format=posix --blocking-factor=2000", "--format=posix --sparse --sparse-version=0.0"),
        *("--format=posix --sparse --sparse-version=0.1", "--format=posix --sparse --sparse-version=1.0"),
    ],
)
def test_what_tar_writes_is_read(tmp_path: Path, options: str) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "\u00fc").write_bytes(b"1" * 1000)
    (folder / ("n" * 150)).write_bytes(b"2")
    (folder / "link").symlink_to("a")
    os.mkfifo(folder / "pipe")
    with (folder / "sparse").open("wb") as sparse:
        for place in range(30):  # more holes than fit into a header
            sparse.seek(place * 64 * KIB)
            sparse.write(b"3")
    done = subprocess.run(["tar", *options.split(), "-cf", "-", "d"], cwd=tmp_path, capture_output=True, check=False)
    found = {each.path.decode(): (each.member.refused, each.data) for each in read(*in_pieces(done.stdout, [5000]))}
    thin = ("is a sparse file", b"") if "--sparse" in options else (None, (folder / "sparse").read_bytes())
    expected = {
        "d/\u00fc": (None, b"1" * 1000),
        "d/link": ("is a symbolic link", b""),
        "d/pipe": ("is a named pipe", b""),
        "d/sparse": thin,
    }
    if "ustar" not in options:  # which has no room for such a name
        expected["d/" + "n" * 150] = (None, b"2")
    assert found == expected


@pytest.mark.parametrize(
    "data",
    [
        b"",
        HELLO,
        HELLO + bytes(512),
        HELLO + bytes(512) + HELLO + END,
        HELLO + END[:-1],
        HELLO[:-400],
        b"\x1f\x8b" + bytes(1022),
        bytes(100),
        HELLO + header(b"a", b"0000000008x\0") + END,
        HELLO + header(b"a", b"1_0") + END,
        HELLO + header(b"a", b"+1") + END,
        HELLO + extended(record(b"path", b"b")) + END,
        HELLO + header(b"long", 2, kind=b"L") + padded(b"a\0") + END,
        *(
            HELLO + extended(wrong) + header(b"a") + END
            for wrong in (b"7 a=b\n", b"6 ab\n\n", b"99 a=b\n", b"0 a=b\n", b"-6 a=b\n", b"1" * 30)
        ),
        HELLO + extended(record(b"size", b"many")) + header(b"a") + END,
        HELLO + END + b"x",
        HELLO + END + HELLO,
    ],
)
def test_what_is_no_whole_archive_is_refused_and_what_came_before_stands(data: bytes) -> None:
    for pieces in ([data], in_pieces(data, range(0, len(data), 77))):
        found = read_until_refused(*pieces)
        expected = [(b"hello", b"world")] if data.startswith(HELLO[:-400]) else []
        assert [(each.path, each.data) for each in found] == expected


def test_each_byte_of_a_header_is_guarded() -> None:
    block = bytearray(HELLO)
    for place in range(512):
        block[place] ^= 1
        if not 154 <= place < 156:  # what ends the checksum is none of it
            assert read_until_refused(bytes(block) + END) == []
        block[place] ^= 1


def test_members_have_a_bound_and_those_before_stand() -> None:
    block = header(b"a")
    assert len(read(block * MAX_MEMBERS + END)) == MAX_MEMBERS
    assert len(read_until_refused(block * (MAX_MEMBERS + 1) + END)) == MAX_MEMBERS


def test_directories_do_not_count_as_members_but_have_a_bound_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domain_archive, "MAX_MEMBERS", 0)
    monkeypatch.setattr(domain_archive, "MAX_HEADERS", 50)
    assert read(header(b"d/", kind=b"5") * 50, END) == []
    assert read_until_refused(header(b"d/", kind=b"5") * 51, END) == []
    assert read_until_refused(extended(kind=b"g") * 51, END) == []


def test_extensions_their_records_and_padding_have_bounds() -> None:
    longest, most = record(b"comment", b"x" * (MAX_EXTENSION_BYTES - 20)), record(b"a", b"") * 4096
    for content in (longest, most):
        assert only(extended(content) + header(b"a")).path == b"a"
    for kind in (b"x", b"g", b"L", b"K"):
        assert read_until_refused(header(b"pax", MAX_EXTENSION_BYTES + 1, kind=kind)) == []
    assert read_until_refused(extended(most + record(b"a", b"")) + header(b"a")) == []
    assert read(END, bytes(MAX_PADDING_BYTES)) == []
    assert read_until_refused(END, bytes(MAX_PADDING_BYTES), b"\0") == []


@pytest.mark.parametrize(
    ("said", "bytes_of_all"),
    [
        (extended(record(b"uploader.md5", b"x" * 60_000), record(b"uploader.sha256", b"x"), kind=b"g"), 4 * KIB),
        (extended(record(b"path", b"x" * 60_000)), 4 * KIB),
        (extended(record(b"GNU.sparse.name", b"x" * 60_000)), 4 * KIB),
        (extended(record(b"linkpath", b"x" * 60_000)), KIB),
        (header(b"././@LongLink", 60_000, kind=b"L") + padded(b"x" * 60_000), 4 * KIB),
        (header(b"././@LongLink", 60_000, kind=b"K") + padded(b"x" * 60_000), KIB),
    ],
    ids=["digest", "path", "sparse", "link", "gnu-name", "gnu-link"],
)
def test_of_a_long_value_its_beginning_is_kept(said: bytes, bytes_of_all: int) -> None:
    reader = ArchiveReader()
    tracemalloc.start()
    feed_all(reader, (said,), [], ends=False)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < bytes_of_all + 4 * KIB
    found: list[Read] = []
    feed_all(reader, (header(b"a", kind=b"2"), END), found)
    (member,) = (each.member for each in found)
    assert max(len(member.path), len(member.md5 or "")) <= 4 * KIB


@pytest.mark.parametrize("key", [b"path", b"linkpath", b"size", b"GNU.sparse.major", b"GNU.sparse.name"])
def test_what_can_be_true_of_one_member_alone_is_not_said_of_all(key: bytes) -> None:
    for value in (b"1", b"x" * 60_000):
        assert read_until_refused(HELLO + extended(record(key, value), kind=b"g") + header(b"a") + END) == [
            Read(Member(b"hello", 5, EPOCH, None, None, None), b"world")
        ]
    assert only(extended(record(b"my." + key, b"1"), kind=b"g") + header(b"a")).path == b"a"


def test_nothing_is_kept_of_what_means_nothing_here() -> None:
    reader = ArchiveReader()
    blocks = [extended(record(b"comment.%d" % number, b"x" * 60_000), kind=b"g") for number in range(50)]
    cut = [piece for block in blocks for piece in in_pieces(block, range(0, len(block), 10_000))]
    tracemalloc.start()
    feed_all(reader, tuple(cut), [], ends=False)
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (kept < 64 * KIB, most < 512 * KIB) == (True, True)


LIMIT_BYTES = 2 * MIB


def admit(member: Member) -> str:
    if member.refused:
        raise InvalidRequest(member.refused)
    if member.size > LIMIT_BYTES:
        raise FileTooLarge(limit=LIMIT_BYTES)
    return member.path.decode()


def unpacking_of(intake: Intake, *pieces: bytes, then: str = "end") -> Unpacking[str]:
    return Unpacking(intake, MessageBody(Sender(*pieces, then=then).receive), owner("alice"), admit)


async def unpacked(unpacking: Unpacking[str]) -> list[tuple[str, bytes] | str]:
    """Each file by its name with its bytes, or the code of what is wrong with it."""
    found: list[tuple[str, bytes] | str] = []
    async with aclosing(unpacking.entries()) as entries:
        async for entry in entries:
            found.append(_taken(entry))
    return found


def _taken(entry: tuple[str, Body] | UploaderError) -> tuple[str, bytes] | str:
    if isinstance(entry, UploaderError):
        return entry.code
    name, body = entry
    data = b"".join(body.pieces())
    assert len(data) == body.length
    body.close()
    return name, data


def charged(intake: Intake) -> int:
    return sum(intake._budget._charged.values())


async def bodies_of(unpacking: Unpacking[str]) -> list[Body]:
    """Of files that are all taken; the test closes them."""
    async with aclosing(unpacking.entries()) as entries:
        return [entry[1] async for entry in entries if isinstance(entry, tuple)]


class Place:
    """Where bodies go that no memory is left for."""

    def __init__(self, spool: Spool, directory: Path) -> None:
        self.spool = spool
        self.directory = directory

    def intake(self, **of_settings: Any) -> Intake:
        return Intake(Settings(**of_settings), self.spool)

    def is_left_empty_by(self, intake: Intake) -> bool:
        return (charged(intake), open_files_under(self.directory)) == (0, [])


@asynccontextmanager
async def place_in(directory: Path) -> AsyncIterator[Place]:
    made = Spool(directory)
    await made.prepare()
    yield Place(made, directory)
    made.close()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with place_in(tmp_path) as made:
        yield made


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 3000), max_size=20), st.lists(st.integers(0, 40_000), max_size=20), st.integers(4, 10_000)
)
def test_budget_and_cuts_change_nothing(sizes: list[int], cuts: list[int], budget_bytes: int) -> None:
    contents = [Content(size, seed=number, name=f"{number}") for number, size in enumerate(sizes)]
    data = archive(*(Entry(content.name, content.data) for content in contents))

    async def check(directory: Path) -> None:
        async with place_in(directory) as place:
            intake = place.intake(body_budget_bytes=budget_bytes)
            unpacking = unpacking_of(intake, *in_pieces(data, cuts))
            assert await unpacked(unpacking) == [(content.name, content.data) for content in contents]
            assert unpacking.failure is None
            assert place.is_left_empty_by(intake)

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(check(Path(directory)))


async def test_what_is_taken_is_charged_until_it_is_closed_and_nothing_else(place: Place) -> None:
    intake = place.intake(body_budget_bytes=4 * 10 * KIB)
    data = archive(Entry("a", bytes(6 * KIB)), Entry("b", bytes(6 * KIB)), Entry("c", bytes(4 * KIB)))
    bodies = await bodies_of(unpacking_of(intake, data))
    assert charged(intake) == 10 * KIB, "a and c in memory"
    assert len(open_files_under(place.directory / "spool")) == 1, "b in the spool"
    for body in bodies:
        body.close()
    assert place.is_left_empty_by(intake)


async def test_what_is_refused_is_never_held(place: Place) -> None:
    intake, left_empty = place.intake(), []

    class Watched(Sender):
        async def receive(self) -> Message:
            left_empty.append(place.is_left_empty_by(intake))
            return await super().receive()

    data = archive(Entry("large", bytes(LIMIT_BYTES + 1)), Entry("good", b"1"))
    receive = Watched(*in_pieces(data, range(0, len(data), 50_000))).receive
    unpacking = Unpacking(intake, MessageBody(receive), owner("alice"), admit)
    assert await unpacked(unpacking) == ["file-too-large", ("good", b"1")]
    assert all(left_empty)


@pytest.mark.parametrize("budget_bytes", [4, 512 * MIB], ids=["spool", "memory"])
@pytest.mark.parametrize(
    ("then", "failure"), [("end", InvalidArchive), ("disconnect", ClientDisconnect), ("silence", BodyTimeout)]
)
async def test_a_stream_that_breaks_off_leaves_what_came_before_and_nothing_else(
    place: Place, budget_bytes: int, then: str, failure: type[Exception]
) -> None:
    data = archive(Entry("a", b"1"), Entry("b", bytes(MIB)))[: 800 * KIB]
    idle_seconds = 0.05 if then == "silence" else 60.0
    intake = place.intake(body_budget_bytes=budget_bytes, body_idle_timeout_seconds=idle_seconds)
    unpacking = unpacking_of(intake, data, then=then)
    assert await unpacked(unpacking) == [("a", b"1")]
    assert isinstance(unpacking.failure, failure)
    assert place.is_left_empty_by(intake)


async def test_the_time_that_files_take_to_be_stored_is_not_the_clients(place: Place) -> None:
    intake = place.intake(body_idle_timeout_seconds=60.0, body_budget_bytes=4)
    unpacking = unpacking_of(intake, header(b"a", 300 * KIB) + bytes(280 * KIB), bytes(20 * KIB) + END)
    with paused_call("pwrite") as pause:
        reading = asyncio.create_task(unpacked(unpacking))
        assert await asyncio.to_thread(pause.reached.wait, PATIENCE_SECONDS)
        await pass_time(100)
        pause.go_on.set()
        assert await reading == [("a", bytes(300 * KIB))]
    assert unpacking.failure is None


async def test_a_slow_file_moves_out_of_memory(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "GRACE_SECONDS", 0.0)
    data = padded(header(b"a", 600 * KIB) + bytes(600 * KIB))
    (body,) = await bodies_of(unpacking_of(place.intake(), data, END))
    assert len(open_files_under(place.directory / "spool")) == 1
    body.close()


async def test_others_have_their_turn_while_a_piece_is_looked_at(place: Place) -> None:
    data = header(b"a") * 400 + END
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    assert len(await unpacked(unpacking_of(place.intake(), data))) == 400
    task.cancel()
    assert turns >= 10
