"""The power is cut at any moment: every acknowledged chunk and every finished file is whole, and every upload goes on."""

import hashlib
import io
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.soak.races.rounds import opening_of
from tests.support.at_rest import read_files
from tests.support.bodies import InPieces
from tests.support.chosen import places
from tests.support.clock import ManualClock
from tests.support.content import Content
from tests.support.faults import OneCall, sync_nothing, without_syncs
from tests.support.invariants import checked_accounts
from tests.support.journey import (
    ALL,
    CONTENTS,
    ROT,
    ROTTING,
    SETTINGS,
    STEP_BYTES,
    WAYS,
    Chunk,
    HealedBlob,
    Journey,
    Rotten,
    RottenBlob,
    Streamed,
    Withdrawn,
)
from tests.support.layout import blob_path
from tests.support.powercut import (
    THE_DISK,
    Choice,
    Mark,
    Recording,
    States,
    Sync,
    Tree,
    by_chance,
    bytes_only,
    everything,
    lay_out,
    names_only,
    nothing,
)
from tests.support.stack import running_stack
from uploader.bootstrap import Services
from uploader.bootstrap import services as services_module
from uploader.database.engine import Database
from uploader.domain import upload as domain_upload
from uploader.domain.links import owner
from uploader.errors import ChunksMissing
from uploader.service.results import Complete, Target, UploadStatus
from uploader.settings import Settings
from uploader.storage import disk
from uploader.storage.local.store import FORMAT
from uploader.storage.store import mark_of

_WAYS = {
    "power": [way for way in WAYS if way not in ("purge", "spool", "cleanup")],
    "process": ["upload", "leftovers", "withdrawal", "append", "mixed", "at once", "whole"],
}
# By durability.
CUT = [(durability, way) for durability, ways in _WAYS.items() for way in ways]


class Violation(AssertionError):
    """What was promised is not there after the cut."""


@dataclass(frozen=True)
class Upload:
    id: str
    user_id: str
    md5: str
    path: str
    size: int
    chunk_size: int


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The database, which makes its commits durable by itself: whole, and what is open or has a file in it."""

    content: bytes
    uploads: list[Upload]
    sha256s: list[str]
    installation: str | None

    @classmethod
    def of(cls, path: Path) -> "Snapshot":
        connection = sqlite3.connect(path)
        # Text is stored as bytes, which compare with bytes alone.
        uploads = connection.execute(
            "SELECT id, user_id, md5, temp_path, size, chunk_size FROM upload WHERE CAST(state AS TEXT) = 'OPEN'"
        )
        files = connection.execute("SELECT DISTINCT sha256 FROM file")
        fact = connection.execute("SELECT value FROM meta WHERE CAST(name AS TEXT) = 'installation'").fetchone()
        snapshot = cls(
            connection.serialize(),
            [Upload(*map(_text, row)) for row in uploads],
            [_text(row[0]) for row in files],
            None if fact is None else _text(fact[0]),
        )
        connection.close()
        return snapshot


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


class Recorder:
    """Goes ways in empty directories, each with a copy of a database and an empty Redis."""

    def __init__(self, directory: Path, database: Path, redis_url: str) -> None:
        self.directory = directory
        self._database = database
        self.redis_url = redis_url

    async def record(self, way: str, durability: str) -> Recording:
        """A way gone once, from the start of the server."""
        directory = Path(tempfile.mkdtemp(dir=self.directory))
        data, database = directory / "data", directory / "uploader.db"
        shutil.copy(self._database, database)
        with Redis.from_url(self.redis_url) as redis:
            redis.flushdb()
        recording = Recording(data)

        def mark(what: object) -> None:
            recording.mark(what)
            if isinstance(what, RottenBlob):
                recording.rot(str(what.path.relative_to(data)), 0, ROT)
            if isinstance(what, Rotten):
                recording.rot(str(what.path.relative_to(data)), ROTTING.chunk_size, ROT)

        url, settings = f"sqlite:///{database}", SETTINGS | {"durability": durability}
        with recording.running(), _marking_commits(database, recording):
            async with running_stack(data, url, self.redis_url, **settings) as stack:
                bob = await stack.client_of("bob", total_space=1 << 30)
                journey = Journey(stack, bob, OneCall(lambda _: False), mark=mark)
                for part in WAYS[way]:
                    await part(journey)
                await bob.aclose()
        return recording


@contextmanager
def _marking_commits(path: Path, recording: Recording) -> Iterator[None]:
    transact = Database.transact

    async def marked(self: Database, work: Any, *of: Any, **how: Any) -> Any:
        try:
            return await transact(self, work, *of, **how)
        finally:
            recording.mark(Snapshot.of(path))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Database, "transact", marked)
        yield


@pytest.fixture
def recorder(tmp_path: Path, sqlite_template: Path, redis_url: str) -> Recorder:
    return Recorder(tmp_path, sqlite_template, redis_url)


# What has happened


@dataclass(frozen=True)
class Promises:
    """What must be there if the power is cut at some moment."""

    snapshot: Snapshot
    acknowledged: frozenset[tuple[str, int]]
    streamed: Streamed
    rotten: frozenset[tuple[str, int]]
    # Contents of files that were deleted: nothing is deleted at once.
    deleted: frozenset[str]
    rotten_blobs: frozenset[str]

    def check(self, tree: Tree, *, durable: bool = True) -> None:
        """`durable`: what is acknowledged survives. Raises Violation."""
        self._check_installation(tree)
        for upload in self.snapshot.uploads:
            self._check_upload(upload, tree, durable)
        for sha256 in set(self.snapshot.sha256s) - self.rotten_blobs:
            content = tree.get(f"blobs/{sha256[:2]}/{sha256[2:4]}/{sha256}")
            if content is None or hashlib.sha256(content).hexdigest() != sha256:
                raise Violation(f"the file {sha256} is not whole")
        for sha256 in self.deleted | self.rotten_blobs:
            places = (f"blobs/{sha256[:2]}/{sha256[2:4]}/{sha256}", f"trash/blobs/{sha256[:2]}/{sha256}.")
            left = [content for path, content in tree.items() if content is not None and path.startswith(places)]
            if sha256 not in (hashlib.sha256(content).hexdigest() for content in left):
                raise Violation(f"the content {sha256}, deleted or rotten, is not in the trash")

    def _check_installation(self, tree: Tree) -> None:
        """What the database says is on the disk, too, or proposed there; and never a part of it."""
        said = [tree[name] for name in ("installation.new", "installation") if name in tree]
        wanted = self.snapshot.installation
        if wanted is not None and mark_of(FORMAT, wanted) not in said:
            raise Violation("the disk does not say of which installation it is")

    def _check_upload(self, upload: Upload, tree: Tree, durable: bool) -> None:
        data, chunk_map = tree.get(f"{upload.path}/data"), tree.get(f"{upload.path}/map")
        if data is None or chunk_map is None or f"{upload.path}/digest" not in tree:
            raise Violation(f"the open upload {upload.id} has lost its files")
        try:
            disk = read_files(chunk_map, io.BytesIO(data))
        except ValueError as error:
            raise Violation(f"the map of {upload.id} is none") from error
        if not durable:
            return
        rotten = {number for upload_id, number in self.rotten if upload_id == upload.id}
        if not disk.present - rotten <= disk.sound:
            raise Violation(f"the map of {upload.id} claims chunks that are not whole")
        acknowledged = {number for upload_id, number in self.acknowledged if upload_id == upload.id}
        if not acknowledged - rotten <= disk.present:
            raise Violation(f"{upload.id} lost chunks that were acknowledged")
        if not disk.tail_is_sound:
            raise Violation(f"the map of {upload.id} claims a tail that is not there")
        if upload.id == self.streamed.upload_id and disk.leading < self.streamed.offset:
            raise Violation(f"{upload.id} lost bytes that were appended")


def promises(states: States) -> Iterator[tuple[int, Promises]]:
    """What is promised after each number of events."""
    snapshot: Snapshot | None = None
    acknowledged: set[tuple[str, int]] = set()
    streamed = Streamed("", 0)
    rotten: set[tuple[str, int]] = set()
    finished: set[str] = set()
    rotten_blobs: set[str] = set()
    for count, happened in enumerate(states.events, 1):
        match happened:
            case Mark(Snapshot() as newest):
                snapshot = newest
                finished |= set(newest.sha256s)
            case Mark(Chunk(upload_id, _, number)):
                acknowledged.add((upload_id, number))
            case Mark(Streamed() as farthest):
                streamed = farthest
            case Mark(Rotten(upload_id, number)):
                rotten.add((upload_id, number))
            case Mark(RottenBlob(sha256)):
                rotten_blobs.add(sha256)
            case Mark(HealedBlob(sha256)):
                rotten_blobs.remove(sha256)
            case Mark(Withdrawn(upload_id, number)):
                acknowledged.remove((upload_id, number))
                rotten.remove((upload_id, number))
        if snapshot is not None:
            deleted = frozenset(finished - set(snapshot.sha256s))
            chunks_of = frozenset(acknowledged), streamed, frozenset(rotten)
            yield count, Promises(snapshot, *chunks_of, deleted, frozenset(rotten_blobs))


def cuts(states: States, seed: str, by_chance_each: int) -> Iterator[tuple[Tree, Promises]]:
    """Different states, the systematic extremes first."""
    chance = random.Random(seed)
    seen = set()
    moments = list(promises(states))
    choices: list[Choice] = [
        nothing,
        everything,
        names_only,
        bytes_only,
        *(by_chance(chance) for _ in range(by_chance_each)),
    ]
    for choice in choices:
        for count, promised in moments:
            tree = states.after(count, choice)
            state = promised, tuple(tree.items())
            if state not in seen:
                seen.add(state)
                yield tree, promised


# What is found after it


class Restarter:
    """Starts the server on what a cut left, and lets its clients go on."""

    def __init__(self, recorder: Recorder, clock: ManualClock, durability: str) -> None:
        self._root = recorder.directory / "cut"
        self._database_path = recorder.directory / "cut.db"
        self._redis_url = recorder.redis_url
        self._clock = clock
        self._durability = durability
        # One for all: its statements are compiled once.
        self.database = Database(f"sqlite:///{self._database_path}")
        sync_nothing(self.database)

    async def check(self, tree: Tree, promised: Promises) -> None:
        """Raises Violation, or what the server raises."""
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir()
        lay_out(tree, self._root)
        for name in ("cut.db-wal", "cut.db-shm"):
            self._database_path.with_name(name).unlink(missing_ok=True)
        self._database_path.write_bytes(promised.snapshot.content)
        services = self._services()
        try:
            await services.redis.flushdb()
            await services.storage.prepare()
            await self._go_on(services, promised.snapshot.uploads)
        finally:
            await services.close()

    def _services(self) -> Services:
        settings = Settings(
            data=self._root,
            redis_url=self._redis_url,
            durability=self._durability,
            free_space_floor_bytes=0,
            **SETTINGS,
        )
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(services_module, "Database", lambda _url, **_: self.database)
            return Services(settings, self._clock)

    async def _go_on(self, services: Services, uploads: list[Upload]) -> None:
        for upload in uploads:
            await _finish(services, upload)
        await checked_accounts(services.database)
        await services.cleanup.clean(opened_before=ALL)
        left = [path for path in (self._root / "temp").glob("*/**/*") if path.is_file()]  # an empty probe.* may stay
        assert not left, "all that belongs to nobody is swept"


async def _finish(services: Services, upload: Upload) -> None:
    """An open upload is opened again, and what is missing is sent."""
    (content,) = (each for each in CONTENTS if each.md5 == upload.md5)
    opening = opening_of(content, upload.user_id)
    target = Target(owner(upload.user_id), content.md5)
    try:
        answer = await _send_missing(services, target, content, await services.openings.open(opening))
    except ChunksMissing:  # what is rotten is found at the merge
        answer = await _send_missing(services, target, content, await services.openings.open(opening))
    assert isinstance(answer, Complete)
    assert blob_path(services.settings.data, content.sha256).read_bytes() == content.data


async def _send_missing(services: Services, target: Target, content: Content, answer: Any) -> Any:
    if not isinstance(answer, UploadStatus):
        return answer
    if not answer.missing:
        return await services.uploads.merge_now(answer.upload)
    for first, last in answer.missing:
        for number in range(first, last + 1):
            body = InPieces(content.chunk(number))
            stored = await services.receiving.store(target, answer.upload, number, body)
            told = await services.receiving.answer(stored)
    return told


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    monkeypatch.setattr(domain_upload, "CHUNK_SIZE_STEP_BYTES", STEP_BYTES)
    clock.advance(2 * 3600)  # what is made now is old enough for the cleanup


# Tests


@pytest.mark.timeout(900 * len(CUT))
async def test_after_a_power_cut_all_that_was_promised_is_there_and_every_upload_goes_on(
    recorder: Recorder, clock: ManualClock
) -> None:
    """And a server that leaves out any one sync is found out."""
    syncs: set[str] = set()
    caught: set[str] = set()
    for durability, way in CUT:
        try:
            recording = await recorder.record(way, durability)
            states = list(cuts(States(recording), way, by_chance_each=20))
            for tree, promised in states:
                promised.check(tree, durable=durability == "power")
            restarter = Restarter(recorder, clock, durability)
            with without_syncs(), pytest.MonkeyPatch.context() as later:
                later.setattr(disk, "boot_id", lambda: "the next boot")
                for tree, promised in places(states, f"{durability} {way}"):
                    await restarter.check(tree, promised)
            await restarter.database.close()
        except Exception as error:
            raise Violation(f"{durability} {way}: {error!r}") from error

        syncs |= {happened.place for happened in recording.events if isinstance(happened, Sync)} - {THE_DISK}
        for left_out in syncs - caught:
            try:
                for tree, promised in cuts(States(recording, without=left_out), way, by_chance_each=2):
                    promised.check(tree, durable=durability == "power")
            except Violation:
                caught.add(left_out)
    assert syncs - caught == set()
