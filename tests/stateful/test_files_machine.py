"""Files that come whole, in batches, by uploads and from others, under names that others have, at the edge of the quota and
of the number of files, in any order and with workers that die at any step, compared with a model of names and sizes."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from sqlalchemy import select
from starlette.requests import Request

from tests.support.bodies import InPieces
from tests.support.content import Content
from tests.support.deltas import Edited
from tests.support.faults import without_syncs
from tests.support.invariants import checked_accounts
from tests.support.layout import blob_path
from tests.support.machines import Machine
from tests.support.servers import PrivateRedis
from uploader.database import models
from uploader.database.engine import Connection
from uploader.domain.digest import ClaimedDigests
from uploader.domain.links import owner
from uploader.domain.upload import IfExists
from uploader.errors import FileNotFound, NameTaken, QuotaExceeded, TooManyFiles, UploaderError
from uploader.http.bodies.delta import DeltaChunk
from uploader.http.bodies.intake import Intake
from uploader.service.results import Complete, NewFile, Opening, Target, UploadStatus
from uploader.storage.base import Body

USERS = ("alice", "bob")
TOTAL_SPACE, MAX_FILES = 2000, 6
CONTENTS = [Content(size, seed) for seed, size in enumerate((0, 100, 300, 300, 700, 900))]
CONTENTS += [Edited.of(CONTENTS[base], seed=base) for base in (1, 3, 4)]
BY_SHA256 = {content.sha256: number for number, content in enumerate(CONTENTS)}
NAMES = ("a", "b", "c")
# At which crash point from here on the worker dies, if it does.
DEATHS = st.one_of(st.none(), st.none(), st.integers(1, 8))
user_ids, names, numbers = st.sampled_from(USERS), st.sampled_from(NAMES), st.integers(0, len(CONTENTS) - 1)
edited = st.sampled_from([number for number, content in enumerate(CONTENTS) if isinstance(content, Edited)])
choices = st.sampled_from(IfExists)


class Wanted(NamedTuple):
    """A file that is to be made; the content by its number."""

    name: str
    number: int
    if_exists: IfExists

    @property
    def size(self) -> int:
        return CONTENTS[self.number].size


class Books:
    """What a user has: contents of files by name, and open uploads by content."""

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.uploads: dict[int, Wanted] = {}

    def add(self, wanted: Wanted, *, reserved: bool = False) -> str:
        """What becomes of a file. `reserved`: its room was promised before."""
        name, standing = wanted.name, self.files.get(wanted.name)
        if wanted.if_exists is IfExists.FAIL and standing not in (None, wanted.number):
            return "taken"
        if wanted.if_exists is IfExists.KEEP and standing not in (None, wanted.number):
            numbered = [f"{name} ({number})" for number in range(2, MAX_FILES + 3)]
            same = [each for each in numbered if self.files.get(each) == wanted.number]
            name = (same + [each for each in numbered if each not in self.files])[0]
            standing = self.files.get(name)
        is_there = standing == wanted.number
        removed = [] if standing is None or is_there else [standing]
        more = (0 if is_there else wanted.size) - sum(CONTENTS[number].size for number in removed)
        room = TOTAL_SPACE - self._finished() - self._reserved(besides=wanted.number)
        if not is_there and not reserved and more > room and not more <= 0 < wanted.size:
            return "no room"
        places = 1 - len(removed) - (wanted.number in self.uploads)
        if not is_there and not reserved and places > 0 and self._count() + places > MAX_FILES:
            return "too many"
        self.files[name] = wanted.number
        self.uploads.pop(wanted.number, None)
        return "there" if is_there else "made"

    def refusal(self, size: int) -> type[UploaderError] | None:
        """Why no upload of this size is opened."""
        if size > TOTAL_SPACE - self._finished() - self._reserved(besides=None):
            return QuotaExceeded
        return TooManyFiles if self._count() >= MAX_FILES else None

    def _count(self) -> int:
        return len(self.files) + len(self.uploads)

    def _finished(self) -> int:
        return sum(CONTENTS[number].size for number in self.files.values())

    def _reserved(self, *, besides: int | None) -> int:
        return sum(CONTENTS[number].size for number in self.uploads if number != besides)


class FilesMachine(Machine):
    """Two users, who share contents."""

    def __init__(self) -> None:
        super().__init__()
        self.books = {user_id: Books() for user_id in USERS}
        # Contents of which a worker that died may have received the bytes.
        self.half_sent: set[tuple[str, int]] = set()

    @initialize()
    def start(self) -> None:
        self.serve(USERS, TOTAL_SPACE, max_files=MAX_FILES)
        self.intake = Intake(self.services.settings, self.services.spool)

    @rule(user_id=user_ids, name=names, number=numbers, if_exists=choices, dies_at=DEATHS)
    def send(self, user_id: str, name: str, number: int, if_exists: IfExists, dies_at: int | None) -> None:
        wanted = Wanted(name, number, if_exists)
        outcome = self.run(self._send_all(user_id, [wanted]), dies_at)
        if outcome is not None:
            assert [self.books[user_id].add(wanted)] == outcome

    @rule(
        user_id=user_ids,
        members=st.lists(st.tuples(names, numbers), min_size=2, max_size=7),
        if_exists=choices,
        dies_at=DEATHS,
    )
    def send_many(self, user_id: str, members: list[tuple[str, int]], if_exists: IfExists, dies_at: int | None) -> None:
        """In their order, also where one name, or one content, is among them twice."""
        files = [Wanted(*member, if_exists) for member in members]
        outcomes = self.run(self._send_all(user_id, files), dies_at)
        if outcomes is not None and not self.books[user_id].uploads:
            assert outcomes == [self.books[user_id].add(wanted) for wanted in files]
        elif outcomes is not None:
            self.died = True  # a member that closes an upload comes after its group: the quota is met in another order

    async def _send_all(self, user_id: str, files: list[Wanted]) -> list[str]:
        bodies: list[InPieces] = []

        async def entries() -> AsyncIterator[tuple[NewFile, Body]]:
            for wanted in files:
                bodies.append(InPieces(CONTENTS[wanted.number].data))
                yield _new(user_id, wanted), bodies[-1]

        try:
            return [_said(outcome) async for outcome in self.services.whole.receive_many(owner(user_id), entries())]
        finally:
            assert all(body.keepers == 0 for body in bodies), "a body was never given up"

    @rule(user_id=user_ids, name=names, number=st.integers(1, len(CONTENTS) - 1), if_exists=choices)
    def open(self, user_id: str, name: str, number: int, if_exists: IfExists) -> None:
        books = self.books[user_id]
        if number in books.uploads or books.files.get(name) == number:
            return
        taken = if_exists is IfExists.FAIL and name in books.files
        content = CONTENTS[number]
        opening = Opening(
            caller=owner(user_id),
            md5=content.md5,
            sha256=None,
            name=name,
            size=content.size,
            chunk_size=None,
            instant=False,
            if_exists=if_exists,
        )
        try:
            opened = self.runner.run(self.services.openings.open(opening))
        except NameTaken:
            assert taken
        except (QuotaExceeded, TooManyFiles) as error:
            assert type(error) is books.refusal(content.size)
        else:
            assert isinstance(opened, UploadStatus)
            assert books.refusal(content.size) is None and not taken
            books.uploads[number] = Wanted(name, number, if_exists)

    @rule(user_id=user_ids, which=numbers, dies_at=DEATHS)
    def finish(self, user_id: str, which: int, dies_at: int | None) -> None:
        books = self.books[user_id]
        if not books.uploads:
            return
        wanted = list(books.uploads.values())[which % len(books.uploads)]
        outcome = self.run(self._finish(user_id, CONTENTS[wanted.number]), dies_at)
        if outcome is None:
            self.half_sent.add((user_id, wanted.number))
        self._note_finish(books, wanted, outcome)

    def _note_finish(self, books: Books, wanted: Wanted, outcome: str | None) -> None:
        if outcome is not None:
            expected = books.add(wanted, reserved=True)
            assert (outcome == "taken") == (expected == "taken")
            books.uploads.pop(wanted.number, None)

    async def _finish(self, user_id: str, content: Content) -> str:
        target = Target(owner(user_id), content.md5)
        upload = await self.services.uploads.by_md5(owner(user_id), content.md5)
        assert upload is not None
        try:
            stored = await self.services.receiving.store(target, upload, 0, InPieces(content.data))
            return _said(await self.services.receiving.answer(stored))
        except UploaderError as error:
            return _said(error)

    @rule(user_id=user_ids, owner=user_ids, name=names, number=edited, which=numbers, dies_at=DEATHS)
    def make(self, user_id: str, owner: str, name: str, number: int, which: int, dies_at: int | None) -> None:
        """By instructions, from any of the files that have what the content was edited from: anybody's."""
        books, content = self.books[user_id], CONTENTS[number]
        assert isinstance(content, Edited)
        self.send(owner, name, BY_SHA256[content.base.sha256], IfExists.KEEP, None)
        self.open(user_id, name, number, IfExists.KEEP)
        bases = [row for row in self.runner.run(self.database.read(_rows)) if row.sha256 == content.base.sha256]
        if number not in books.uploads or not bases:
            return
        base = bases[which % len(bases)]
        outcome = self.run(self._make(user_id, content, base.id), dies_at)
        if base.user_id == user_id or ((user_id, number) in self.half_sent and outcome in ("made", "there")):
            self._note_finish(books, books.uploads[number], outcome)
        else:
            assert outcome in (None, "no base")
        if outcome is None:
            self.half_sent.add((user_id, number))

    async def _make(self, user_id: str, content: Edited, base: str) -> str:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content.instructions(0), "more_body": False}

        services, none = self.services, ClaimedDigests()
        request = Request({"type": "http", "headers": []}, receive)
        source = DeltaChunk(self.intake, request, none, partial(services.delta_bases.open, owner(user_id), base))
        try:
            return _said(await services.receiving.receive(Target(owner(user_id), content.md5), 0, source, none))
        except UploaderError as error:
            return _said(error)

    @rule(user_id=user_ids, which=numbers)
    def cancel(self, user_id: str, which: int) -> None:
        books = self.books[user_id]
        if books.uploads:
            number = list(books.uploads)[which % len(books.uploads)]
            self.runner.run(self.services.uploads.cancel(Target(owner(user_id), CONTENTS[number].md5)))
            del books.uploads[number]
            self.half_sent.discard((user_id, number))

    @rule(user_id=user_ids, which=numbers, dies_at=DEATHS)
    def delete(self, user_id: str, which: int, dies_at: int | None) -> None:
        rows = [row for row in self.runner.run(self.database.read(_rows)) if row.user_id == user_id]
        if rows:
            row = rows[which % len(rows)]
            self.run(self.services.files.delete(user_id, row.id), dies_at)
            self.books[user_id].files.pop(row.name, None)

    @rule(dies_at=DEATHS)
    def collect(self, dies_at: int | None) -> None:
        self.run(self.services.files.collect_all(), dies_at)

    @invariant()
    def all_is_as_the_books_say(self) -> None:
        self.runner.run(self._check())

    async def _check(self) -> None:
        await checked_accounts(self.database)
        rows = await self.database.read(_rows)
        uploads = await self.database.read(_open_uploads)
        for user_id, books in self.books.items():
            files = {row.name: BY_SHA256[row.sha256] for row in rows if row.user_id == user_id}
            opened = {number for number, each in enumerate(CONTENTS) if (user_id, each.md5) in uploads}
            if self.died:
                books.files = dict(files)
                books.uploads = {number: wanted for number, wanted in books.uploads.items() if number in opened}
            assert files == books.files
            assert opened == books.uploads.keys()
        self.died = False
        for sha256 in {row.sha256 for row in rows}:
            data = CONTENTS[BY_SHA256[sha256]].data
            assert blob_path(self.services.settings.data, sha256).read_bytes() == data, "bytes of a file are lost"


def _new(user_id: str, wanted: Wanted) -> NewFile:
    return NewFile(
        caller=owner(user_id),
        name=wanted.name,
        md5=CONTENTS[wanted.number].md5,
        sha256=None,
        if_exists=wanted.if_exists,
        modified_at=None,
    )


def _said(outcome: object) -> str:
    match outcome:
        case Complete(created=created):
            return "made" if created else "there"
        case NameTaken():
            return "taken"
        case QuotaExceeded():
            return "no room"
        case TooManyFiles():
            return "too many"
        case FileNotFound():
            return "no base"
    raise AssertionError(outcome)


async def _rows(connection: Connection) -> list[Any]:
    return list(await connection.execute(select(models.file)))


async def _open_uploads(connection: Connection) -> set[tuple[str, str]]:
    table = models.upload.c
    query = select(table.user_id, table.md5).where(table.state == "OPEN")
    return {(row.user_id, row.md5) for row in await connection.execute(query)}


def test_no_order_of_events_makes_files_or_accounts_wrong(
    anyio_backend: str, sqlite_template: Path, own_redis: PrivateRedis, tmp_path: Path
) -> None:
    with without_syncs():
        FilesMachine.pass_examples(tmp_path, sqlite_template, own_redis)
