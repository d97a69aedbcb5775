"""A third store behind the seam of `uploader/storage/base.py`, the example to begin another one from: a directory of files.

    uploads/<upload_id>.<opened>/  lock                                what is locked, by ranges; it goes first
                                   own.<number>.<length>.<crc>         a chunk, or its first bytes: a tail
                                   <position>.<number>.<length>.<crc>  of a whole: a chunk of one of its parts
                                   deferred                            these came while its length was not known
                                   content.<md5>.<sha256>              all of it, once it was digested
    blobs/<sha256>                 draft-<token> on its way there
    trash/<name>.<token>           a blob, or the directory of an upload
    installation                   installation.new during a first start

Any number of processes of one machine share it. No file has a name before it is whole and durable, and locks go with the
process that has them: of one that is killed nothing is left half done. All that the store knows, names of files say.
Refuses to be fast: digests come with the merge, which copies the chunks, and nothing is remembered.
"""

import asyncio
import re
import secrets
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from stat import S_ISDIR
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from isal.isal_zlib import crc32

from uploader import errors
from uploader.domain.upload import UNBOUNDED_CHUNK_COUNT, Tail, Upload, chunk_count, chunk_length
from uploader.storage import base, disk
from uploader.storage.base import Arrival, Body, Busy, BytesBody, Digests, Found, Gone, Lost, PresentChunks
from uploader.storage.disk import Directory, Root
from uploader.storage.hashes import PrefixHashes, identify
from uploader.storage.store import InstallationMark, MarkFiles, Marks, Store, StoreName, mark_of, parse_mark
from uploader.tasks import uninterrupted

P = ParamSpec("P")
T = TypeVar("T")
_Method = Callable[Concatenate["PlainStore", P], T]
_UPLOADS, _BLOBS, _TRASH, _MARK, _PROPOSAL = "uploads", "blobs", "trash", "installation", "installation.new"
_LOCK, _OWN, _DEFERRED = "lock", "own", "deferred"
# The bytes of `lock`: of who begins to write, or keeps writers out; of who appends or fills, and of who waits to; of who
# digests; and from there on, of each chunk.
_GATE, _APPEND, _CLAIM, _DIGEST, _CHUNKS = range(5)
_STORED = re.compile(r"(own|[0-9]{6})\.([0-9]+)\.([0-9]+)\.([0-9a-f]{8})")
_CONTENT = re.compile(r"content\.([0-9a-f]{32}|none)\.([0-9a-f]{64})")
# What this store has made. Others know it by what is before the dot.
_ENTRY = re.compile(r"(draft-)?[0-9a-f]{32,64}(\.[0-9a-fT]+)?")
_STAMP = "%Y%m%dT%H%M%S"
_FORMAT, _READ_BYTES, _LIST_BATCH, _BLOCK_BYTES = 1, 1 << 20, 250, 512


@contextmanager
def _instead_of(error: type[OSError], become: Callable[[OSError], Exception]) -> Iterator[None]:
    """Raise what an error of the disk means."""
    try:
        yield
    except error as raised:
        raise become(raised) from raised


_or_unfit = partial(_instead_of, OSError, lambda error: errors.ConfigurationError(f"UPLOADER_DATA: {error}"))


def in_thread(method: "_Method[P, T]") -> "_Method[P, Coroutine[Any, Any, T]]":
    """Run a method of the store in a thread, and to its end: nobody closes what it has open. What it misses has gone."""

    async def run(self: "PlainStore", /, *args: P.args, **kwargs: P.kwargs) -> T:
        attempt = _instead_of(FileNotFoundError, Gone)(method)
        return await uninterrupted(self.threads.long.run(partial(attempt, self, *args, **kwargs)))

    return run


@contextmanager
def _written(directory: Directory, pieces: Iterable[base.Piece]) -> Iterator[int]:
    """A file of these bytes, which are durable; it has no name yet."""
    with disk.opened(directory.open_unnamed()) as descriptor:
        offset = 0
        for piece in pieces:
            disk.write(descriptor, memoryview(piece), offset)
            offset += len(piece)
        disk.sync_data(descriptor)
        yield descriptor


def _add(directory: Directory, name: str, pieces: Iterable[base.Piece] = ()) -> None:
    """A file of these bytes, durably, unless this name is taken. Whoever took it may have died before it was durable."""
    with _written(directory, pieces) as descriptor, suppress(FileExistsError):
        directory.link_open(descriptor, name)
    directory.sync()


class _Stored(NamedTuple):
    """A file of bytes that came, as its name tells."""

    owner: str  # "own", or of a whole the position of the part that they are of
    number: int
    length: int
    checksum: int  # CRC-32

    @property
    def name(self) -> str:
        return f"{self.owner}.{self.number}.{self.length}.{self.checksum:08x}"


class _Files(base.HeldChunk):
    """The directory of an upload, and a descriptor that has locks: who holds a chunk has its lock by this. Both are closed
    with their last user."""

    def __init__(self, parent: Directory, name: str, upload: Upload) -> None:
        super().__init__(written=False)
        self.upload = upload
        with ExitStack() as opened:
            self.directory = opened.enter_context(parent.enter(name))
            self.lock = self.directory.open_to_write(_LOCK)
            opened.callback(disk.close, self.lock)
            self.close = weakref.finalize(self, opened.pop_all().close)

    def release(self) -> None:
        self.close()

    def stored(self) -> list[_Stored]:
        """In order."""
        names = filter(None, map(_STORED.fullmatch, self.directory.names()))
        return sorted(_Stored(name[1], int(name[2]), int(name[3]), int(name[4], 16)) for name in names)

    def own(self) -> dict[int, _Stored]:
        """Its chunks, and the tail. Of two files of one chunk the longer counts: the other one is its beginning."""
        return {each.number: each for each in self.stored() if each.owner == _OWN}

    def is_whole(self, each: _Stored) -> bool:
        return each.length == chunk_length(each.number, self.upload.extent, self.upload.chunk_size)

    def read_map(self, *, verified: bool = True) -> PresentChunks:
        """What it says is durable: whoever stored a chunk may have died before."""
        size, chunk_size, own = self.upload.extent, self.upload.chunk_size, self.own()
        is_settled = not (self.upload.length_known and _DEFERRED in self.directory.names())
        if verified and not is_settled:
            raise errors.Unverified()
        present = bytearray(chunk_count(size, chunk_size))
        for number, each in own.items():
            present[number] = self.is_whole(each)
        first = present.find(0)
        tail = Tail(first, own[first].length) if first in own else None
        self.directory.sync()
        return PresentChunks(present, tail, size, chunk_size, disk.status(self.lock).st_mtime, is_settled)

    def content(self) -> tuple[str, Digests] | None:
        """The name of its content, and what that says."""
        for name in filter(None, map(_CONTENT.fullmatch, self.directory.names())):
            return name[0], Digests(None if name[1] == "none" else name[1], name[2])
        return None

    def forget_content(self) -> None:
        while (known := self.content()) is not None:
            self.directory.unlink(known[0])


class _Appender(NamedTuple):
    files: _Files
    read_map: Callable[[], Coroutine[Any, Any, PresentChunks]]

    @property
    def is_claimed(self) -> bool:
        return disk.is_locked(self.files.lock, _CLAIM, 1)


class PlainBlob:
    """A file, open to be read; closed with its last user."""

    def __init__(self, store: Store, descriptor: int) -> None:
        self._pool = store.threads.reading
        self._descriptor = descriptor
        self._close = weakref.finalize(self, disk.close, descriptor)

    async def read(self, length_bytes: int, offset: int) -> bytes:
        return await self._pool.run(disk.read, self._descriptor, length_bytes, offset)

    async def read_all(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        contents = [await self.read(length, offset) for offset, length in ranges]
        if [len(content) for content in contents] != [length for _, length in ranges]:
            raise Gone
        return contents

    async def close(self) -> None:
        await self._pool.run(self._close)


@dataclass(frozen=True)
class PlainMarks(MarkFiles):
    """Of which installation the directory is. Of several first starts that one counts which has made the file."""

    _root: Root
    store = StoreName("directory", "UPLOADER_DATA", "is it mounted?")

    def read(self) -> Marks:
        with _or_unfit():
            self._root.open()
        proposed = self._read(_PROPOSAL)
        return Marks(self._read(_MARK), frozenset([proposed] if proposed else ()))

    def propose(self, installation: str, marks: Marks) -> None:
        _add(self._root, _PROPOSAL, [mark_of(_FORMAT, installation)])

    def write(self, installation: str, *, replace: bool) -> None:
        if replace:  # whoever dies here leaves none: nothing starts until somebody replaces it again
            self.read()
            self._root.unlink(_MARK)
        _add(self._root, _MARK, [mark_of(_FORMAT, installation)])

    def forget_proposals(self, *, is_durable: bool = True) -> None:
        self._root.sync()
        self._root.unlink(_PROPOSAL)

    def _read(self, name: str) -> str | None:
        with suppress(FileNotFoundError):
            found = parse_mark(self._root.read_whole(name))
            if found is None or found[0] > _FORMAT:
                raise errors.ConfigurationError(f"UPLOADER_DATA: {name} in it is damaged, or of a newer version")
            return found[1]
        return None


class PlainStore(Store):
    """On a directory of one machine."""

    keeps_files = False  # backups look for them where the local store has them
    keeps_trash = True

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = Root(root.absolute())
        self.marks = InstallationMark(PlainMarks(self._root), self.threads.long)

    @in_thread
    def prepare(self) -> None:
        with _or_unfit(), ExitStack() as opened:
            self._root.open()
            made = {name: opened.enter_context(self._root.make(name)) for name in (_UPLOADS, _BLOBS, _TRASH)}
            disk.check_unnamed(made[_UPLOADS])
            disk.check_names(made)

    @in_thread
    def check(self) -> None:
        with suppress(errors.StorageFull), _instead_of(OSError, disk.refusal), _written(self._root, [b"."]):
            pass

    @contextmanager
    def _at(self, place: str) -> Iterator[tuple[Directory, str]]:
        """In which directory something lies, and its name there."""
        parent, _, name = place.rpartition("/")
        with self._root.enter(parent) as directory:
            yield directory, name

    # Open uploads

    def _files(self, upload: Upload) -> _Files:
        with self._at(upload.place) as (uploads, name):
            return _Files(uploads, name, upload)

    _open = in_thread(_files)

    async def _locked(
        self, upload: Upload, *ranges: tuple[int, int], seconds: float = 30, busy: type[Exception] = errors.Unavailable
    ) -> _Files:
        """Lock ranges, each a start and a length, one after the other. Raises `busy` if others keep them, and Gone."""
        deadline = time.monotonic() + seconds
        with ExitStack() as opened:
            files = opened.enter_context(closing(await self._open(upload)))
            for start, length in ranges:
                while not disk.try_lock(files.lock, start, length):
                    if time.monotonic() >= deadline:
                        raise busy("This upload is busy; try again.")
                    await asyncio.sleep(0.002)
            if disk.is_unlinked(files.lock):
                raise Gone(upload.id)
            opened.pop_all()
            return files

    def place_of(self, upload_id: str, opened_at: datetime) -> str:
        return f"{_UPLOADS}/{upload_id}.{opened_at.astimezone(UTC).strftime(_STAMP)}"

    @in_thread
    def create(self, upload: Upload, parts: Sequence[Upload] | None = None) -> float:
        if parts is not None:
            self._remove(upload.place)  # of an attempt that did not commit
        with self._at(upload.place) as (uploads, name):
            uploads.make_directory(name)
            with uploads.enter(name) as directory:
                for position, part in enumerate(parts or ()):
                    with closing(self._files(part)) as files:
                        for each in files.own().values():
                            files.directory.link(each.name, directory, each._replace(owner=f"{position:06}").name)
                if not upload.length_known:
                    _add(directory, _DEFERRED)
                _add(directory, _LOCK)
                uploads.sync()
                return directory.status(_LOCK).st_mtime

    @in_thread
    def discard(self, upload: Upload, placed_at: str | None = None) -> bool:
        return self._remove(upload.place)

    async def hold_chunk(self, upload: Upload, number: int, body: Body | None, *, start: int = 0) -> _Files:
        """By the gate, so that whoever has that waits for those who write by now, and for no others."""
        with ExitStack() as opened:
            files = opened.enter_context(closing(await self._locked(upload, (_GATE, 1), (_CHUNKS + number, 1))))
            disk.unlock(files.lock, _GATE, 1)
            files.written = await self._put(files, number, body, start)
            opened.pop_all()
            return files

    @in_thread
    def _put(self, files: _Files, number: int, body: Body | None, start: int) -> bool:
        """Whether it had to be written. What was acknowledged is not touched, but copied into the file that follows it."""
        upload, there = files.upload, files.own().get(number, _Stored(_OWN, number, 0, 0))
        if (_DEFERRED in files.directory.names()) == upload.length_known:
            raise errors.Unverified()
        if files.is_whole(there):
            files.directory.sync()  # whoever stored it may have died before
            return False
        if body is None or (start and start != there.length):
            raise Gone(upload.id)
        checksum = there.checksum if start else 0
        for piece in body.pieces():
            checksum = crc32(piece, checksum)
        new = _Stored(_OWN, number, start + body.length, checksum)
        if not files.is_whole(new) and (start != there.length or 0 in files.read_map().present[:number]):
            raise Gone(upload.id)  # chunks, or the tail, were withdrawn
        before = files.directory.read_whole(there.name) if there.length else b""
        if before and not start and not b"".join(body.pieces()).startswith(before):
            raise errors.BytesConflict()
        _add(files.directory, new.name, [before[:start], *body.pieces()])
        if new != there:
            files.directory.unlink(there.name)
        disk.write(files.lock, memoryview(b"."), 0)  # for `last_write`
        return True

    @in_thread
    def read_map(self, upload: Upload, *, verified: bool = True) -> PresentChunks:
        with closing(self._files(upload)) as files:
            return files.read_map(verified=verified)

    @asynccontextmanager
    async def appending(self, upload: Upload) -> AsyncIterator[_Appender]:
        """Whoever waits has the claim, by which the one before sees that it is to end."""
        with closing(await self._locked(upload, (_CLAIM, 1), (_APPEND, 1), seconds=8, busy=errors.UploadBusy)) as files:
            disk.unlock(files.lock, _CLAIM, 1)
            yield _Appender(files, partial(self.read_map, upload))

    @asynccontextmanager
    async def filling(self, whole: Upload) -> AsyncIterator[base.ReadPart]:
        with closing(await self._locked(whole, (_APPEND, 1), seconds=0, busy=Busy)) as files:
            yield partial(self._read_part, files)

    @in_thread
    def _read_part(self, files: _Files, number: int) -> BytesBody:
        start = number * files.upload.chunk_size
        end = start + chunk_length(number, files.upload.size, files.upload.chunk_size)
        content, position = bytearray(), 0
        for each in files.stored():
            if each.owner == _OWN:
                continue
            if position < end and position + each.length > start:
                content += (self._read(files, each) or b"")[max(start - position, 0) : end - position]
            position += each.length
        if len(content) != end - start:
            raise base.PartDamaged(f"of chunk {number} not all bytes are what came")
        return BytesBody(bytes(content))

    # Under all its locks

    @asynccontextmanager
    async def locked(self, upload: Upload) -> AsyncIterator[None]:
        with closing(await self._locked(upload, (_GATE, 1), (_CHUNKS, 0))):  # of all chunks
            yield

    @in_thread
    def settle_length(self, upload: Upload) -> bool:
        """By its length a chunk is whole or not, so there is no more to do."""
        with closing(self._files(upload)) as files:
            was_deferred = upload.length_known and files.directory.unlink(_DEFERRED)
            files.directory.sync()
            return was_deferred

    async def withdraw(
        self, upload: Upload, numbers: list[int], *, generation: int, verified: bool = False, lost: Lost | None = None
    ) -> None:
        with closing(await self._locked(upload, (_DIGEST, 1))) as files:
            await self._withdraw(files, numbers)

    @in_thread
    def _withdraw(self, files: _Files, numbers: list[int]) -> None:
        """The digests go first, which were of these, too; then a tail that comes after one, which would count again."""
        files.forget_content()
        first = min(numbers, default=UNBOUNDED_CHUNK_COUNT)
        for each in reversed(files.stored()):
            is_after = each.number > first and not files.is_whole(each)
            if each.owner == _OWN and (each.number in numbers or is_after):
                files.directory.unlink(each.name)
        files.directory.sync()

    @in_thread
    def find_bad_chunks(self, upload: Upload) -> list[int]:
        with closing(self._files(upload)) as files:
            return [number for number, each in files.own().items() if self._read(files, each) is None]

    def _read(self, files: _Files, each: _Stored) -> bytes | None:
        """The bytes of a file, as the disk has them; None if they are not those that came. Raises Stopping."""
        self.check_stopping()
        try:
            with disk.opened(files.directory.open_to_read(each.name)) as descriptor:
                disk.drop_cache(descriptor)
                content = disk.read(descriptor, each.length + 1, 0)
        except OSError as error:
            if error.errno not in disk.DAMAGED:
                raise
            return None
        return content if (len(content), crc32(content)) == (each.length, each.checksum) else None

    async def digest(self, upload: Upload) -> Digests:
        with closing(await self._locked(upload, (_DIGEST, 1), seconds=0, busy=Busy)) as files:
            return await self._digest(files)

    @in_thread
    def _digest(self, files: _Files) -> Digests:
        upload, known = files.upload, files.content()
        if known is not None and (known[1].md5 is not None or not upload.needs_md5):
            return known[1]
        if not files.read_map().complete:
            raise Busy(upload.id)  # chunks were withdrawn
        hashes = PrefixHashes(with_md5=upload.needs_md5)
        with disk.opened(files.directory.open_unnamed()) as descriptor:
            for each in files.own().values():
                if (content := self._read(files, each)) is None:
                    raise errors.StorageFailed(inside=f"{each.name} of upload {upload.id} is not what came")
                disk.write(descriptor, memoryview(content), hashes.position)
                hashes.update(memoryview(content))
            disk.sync_data(descriptor)
            digests = hashes.digests()
            files.forget_content()
            files.directory.link_open(descriptor, f"content.{digests.md5 or 'none'}.{digests.sha256}")
        files.directory.sync()
        return digests

    @in_thread
    def place_blob(self, upload: Upload, sha256: str) -> None:
        with closing(self._files(upload)) as files:
            known = files.content()
            if known is None or known[1].sha256 != sha256:
                raise Busy(upload.id)  # chunks were withdrawn since
            with disk.opened(files.directory.open_to_read(known[0])) as descriptor:
                self._make_blob(descriptor, sha256)

    # Blobs

    def _make_blob(self, descriptor: int, sha256: str) -> None:
        """Let an open file be the blob, durably; others at its place go to the trash, and at no time is there none."""
        with self._root.enter(_BLOBS) as blobs, self._root.enter(_TRASH) as trash:
            if not blobs.has(sha256, disk.status(descriptor)):
                draft = f"draft-{secrets.token_hex(16)}"
                blobs.link_open(descriptor, draft)
                with suppress(FileNotFoundError):
                    blobs.link(sha256, trash, f"{sha256}.{secrets.token_hex(16)}")
                trash.sync()
                blobs.rename(draft, sha256)
            blobs.sync()

    @in_thread
    def store_arrivals(self, arrivals: Sequence[Arrival]) -> None:
        """Their rows are not locked yet: what has their names stays."""
        with self._root.enter(_BLOBS) as blobs:
            for arrival in filter(identify, arrivals):
                try:
                    _add(blobs, arrival.sha256_of_bytes, arrival.body.pieces())
                except OSError as error:
                    arrival.error = disk.refusal(error)  # of this one alone

    def place_arrivals(self, arrivals: Sequence[Arrival]) -> Mapping[str, str]:
        with _instead_of(OSError, disk.refusal), self._root.enter(_BLOBS) as blobs:
            for arrival in arrivals:
                sha256 = arrival.sha256_of_bytes
                found = self._look(f"{_BLOBS}/{sha256}")
                if found is None or self._hash(found, None, with_md5=False) != Digests(None, sha256):
                    with _written(blobs, arrival.body.pieces()) as descriptor:
                        self._make_blob(descriptor, sha256)
        return {}

    @in_thread
    def open_found(self, found: Found) -> PlainBlob:
        return PlainBlob(self, self._open_file(found))

    def _open_file(self, found: Found) -> int:
        with self._at(found.place) as (directory, name):
            return directory.open_to_read(name)

    @in_thread
    def find_blob(self, sha256: str) -> Found | None:
        return self._look(f"{_BLOBS}/{sha256}")

    def pieces(self, found: Found, *, cold: bool = False) -> Generator[bytes]:
        with _instead_of(FileNotFoundError, Gone):
            descriptor = self._open_file(found)
        with disk.opened(descriptor):
            if cold:
                disk.drop_cache(descriptor)
            offset = 0
            while piece := disk.read(descriptor, _READ_BYTES, offset):
                yield piece
                offset += len(piece)

    # The trash

    @in_thread
    def put_away(self, found: Found) -> bool:
        if self._look(found.place) != found:
            return False
        with suppress(FileNotFoundError), self._at(found.place) as (directory, name), self._root.enter(_TRASH) as trash:
            directory.rename(name, f"{found.name}.{secrets.token_hex(16)}", trash)
            trash.sync()
            directory.sync()
            return True
        return False  # somebody else was faster

    def list_trash(self, name: str | None = None) -> AsyncIterator[list[Found]]:
        return self._list(_TRASH, lambda found: name in (None, found.name))

    @in_thread
    def restore_blob(self, found: Found) -> None:
        with disk.opened(self._open_file(found)) as descriptor:
            self._make_blob(descriptor, found.name)
        self._remove(found.place)

    # Housekeeping

    def _look(self, place: str) -> Found | None:
        """What is there now."""
        with suppress(FileNotFoundError), self._at(place) as (directory, name):
            own = directory.status(name)
            files = [own]
            if S_ISDIR(own.st_mode):
                with directory.enter(name) as inner:
                    files = [inner.status(file) for file in inner.names()]
            freed_bytes = sum(each.st_blocks * _BLOCK_BYTES for each in files if each.st_nlink == 1)
            kind = {"is_draft": name.startswith("draft-"), "in_trash": place.startswith(_TRASH)}
            return Found(name.partition(".")[0], place, own.st_ino, own.st_ctime, freed_bytes, size=own.st_size, **kind)
        return None

    def list_uploads(self, opened_before: datetime) -> AsyncIterator[list[Found]]:
        stamp = opened_before.astimezone(UTC).strftime(_STAMP)
        return self._list(_UPLOADS, lambda found: found.place.partition(".")[2] < stamp)

    def list_blobs(self) -> AsyncIterator[list[Found]]:
        return self._list(_BLOBS, lambda _: True)

    async def _list(self, parent: str, is_wanted: Callable[[Found], bool]) -> AsyncIterator[list[Found]]:
        found = await self._find(parent, is_wanted)
        for first in range(0, len(found), _LIST_BATCH):
            self.check_stopping()
            yield found[first : first + _LIST_BATCH]

    @in_thread
    def _find(self, parent: str, is_wanted: Callable[[Found], bool]) -> list[Found]:
        """What this store has made there, ordered by what follows the dots: uploads by their opening."""
        with suppress(FileNotFoundError), self._root.enter(parent) as directory:
            names = sorted(filter(_ENTRY.fullmatch, directory.names()), key=lambda name: name.partition(".")[2])
            return [found for name in names if (found := self._look(f"{parent}/{name}")) and is_wanted(found)]
        return []  # it is not prepared

    @in_thread
    def remaining(self, uploads: list[Upload]) -> list[Upload]:
        return [upload for upload in uploads if self._look(upload.place) is not None]

    @in_thread
    def holds_chunks(self, found: Found) -> bool:
        with suppress(FileNotFoundError), self._root.enter(found.place) as directory:
            return any(name.startswith(f"{_OWN}.") for name in directory.names())
        return False

    @in_thread
    def remove(self, found: Found) -> bool:
        return self._look(found.place) == found and self._remove(found.place)

    def _remove(self, place: str) -> bool:
        """A file, or the directory of an upload: its lock goes first, by which others see that it has ended."""
        with suppress(FileNotFoundError), self._at(place) as (directory, name):
            if not S_ISDIR(directory.status(name).st_mode):
                return directory.unlink(name)
            with directory.enter(name) as inner:
                for file in (_LOCK, *inner.names()):
                    inner.unlink(file)
            directory.remove_directory(name)
            return True
        return False
