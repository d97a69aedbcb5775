"""The names of two users' files and folders: made in every mode, renamed, moved, deleted and restored in any order, with
workers that die at any step, compared with a model of a tree in which a name is of one file, or of a folder, and of a trash
that has all that was deleted or replaced."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path, PurePosixPath
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from sqlalchemy import Table, select

from tests.support.bodies import InPieces
from tests.support.content import Content
from tests.support.faults import without_syncs
from tests.support.invariants import checked_accounts
from tests.support.machines import Machine
from tests.support.servers import PrivateRedis
from uploader.database import models
from uploader.database.engine import Connection
from uploader.domain.bulk import Part
from uploader.domain.links import owner
from uploader.domain.names import Selection
from uploader.domain.upload import IfExists
from uploader.errors import FileNotFound, InvalidRequest, NameTaken, UploaderError
from uploader.service.results import Complete, NewFile
from uploader.storage.base import Body

USERS = ("alice", "bob")
CONTENTS = [Content(10 + number, number) for number in range(3)]
BY_SHA256 = {content.sha256: number for number, content in enumerate(CONTENTS)}
NAMES = ("a", "a.x", "b", "a/a", "a/a.x", "a/b", "b/a", "b/a/a", "a (2)", "a/a/b")
FOLDERS = ("a", "b", "a/a", "b/a", "a.x", "a (2)")
PREFIXES = ("a/", "b/", "a/a/", "b/a/", "a", "a/a")
DEATHS = st.one_of(st.none(), st.none(), st.none(), st.integers(1, 6))
user_ids, names, numbers = st.sampled_from(USERS), st.sampled_from(NAMES), st.integers(0, len(CONTENTS) - 1)
choices, prefixes = st.sampled_from(IfExists), st.sampled_from(PREFIXES)


def above(name: str) -> list[str]:
    return [str(each) for each in reversed(PurePosixPath(name).parents)][1:]


class Taken(Exception):
    """By a file, or a folder."""


class Tree:
    """Contents of files by name, the oldest first, all folders, and names and contents of what is in the trash."""

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.folders: set[str] = set()
        self.trash: Counter[tuple[str, int]] = Counter()

    @property
    def empty(self) -> set[str]:
        return {f"{each}/" for each in self.folders if not any(self._below(f"{each}/"))}

    def _below(self, prefix: str) -> list[str]:
        return [name for name in (*self.files, *self.folders) if name.startswith(prefix)]

    def find(self, name: str, if_exists: IfExists, number: int | None = None) -> str:
        """Raises Taken."""
        blocking = [each for each in above(name) if each in self.files]
        standing = self.files.get(name)
        if not blocking:
            if standing is None and name not in self.folders:
                return name
            if standing is not None and (standing == number or if_exists is IfExists.REPLACE):
                return name
        if if_exists is not IfExists.KEEP:
            raise Taken
        if blocking:
            other = next(each for each in _numbered(blocking[0]) if each not in self.files)
            return self.find(other + name.removeprefix(blocking[0]), if_exists, number)
        same = [each for each in _numbered(name) if number is not None and self.files.get(each) == number]
        free = [each for each in _numbered(name) if each not in self.files and each not in self.folders]
        return (same + free)[0]

    def put(self, name: str, number: int) -> None:
        if name in self.files and self.files[name] != number:
            self.lose(name)
        self.files[name] = number
        self.folders.update(above(name))

    def make(self, folder: str, if_exists: IfExists = IfExists.FAIL) -> None:
        """Raises Taken."""
        blocking = [each for each in (*above(folder), folder) if each in self.files]
        if not blocking:
            self.folders.update((*above(folder), folder))
            return
        if if_exists is not IfExists.KEEP:
            raise Taken
        other = next(each for each in _numbered(blocking[0]) if each not in self.files)
        self.make(other + folder.removeprefix(blocking[0]), if_exists)

    def lose(self, name: str) -> None:
        """Delete or replace one file; its folder stays."""
        self.trash[name, self.files.pop(name)] += 1

    def delete(self, prefix: str) -> int:
        gone = [name for name in self.files if name.startswith(prefix)]
        for name in gone:
            self.lose(name)
        self._leave(prefix)
        return len(gone)

    def _leave(self, prefix: str) -> None:
        self.folders = {each for each in self.folders if not f"{each}/".startswith(prefix)}

    def move(self, prefix: str, new_prefix: str, if_exists: IfExists) -> int:
        """Raises Taken, and then all is as it was."""
        empty, kept = self.empty, (dict(self.files), set(self.folders), self.trash.copy())
        moving = {name: self.files.pop(name) for name in list(self.files) if name.startswith(prefix)}
        self._leave(prefix)
        try:
            part = Part(prefix, new_prefix)
            for name in sorted(moving, key=lambda name: (name in part.last_names, _pass_of(part, name), name.encode())):
                number = moving[name]
                merging = number if if_exists is not IfExists.KEEP else None
                place = self.find(new_prefix + name.removeprefix(prefix), if_exists, merging)
                if self.files.get(place) == merging is not None:
                    self.trash[name, number] += 1  # that one stays
                    continue
                if place in self.files:
                    self.lose(place)
                self.put(place, number)
            for folder in sorted(empty):
                if target := _moved_folder(folder, prefix, new_prefix):
                    self.make(target, if_exists)
        except Taken:
            self.files, self.folders, self.trash = kept
            raise
        return len(moving)


def _pass_of(part: Part, name: str) -> int:
    """Return how many passes of a move come before the one of a name."""
    return sum(name.encode().startswith(part.below(number)) for number in range(1, 9)) if part.goes_up else 0


def _moved_folder(folder: str, prefix: str, new_prefix: str) -> str:
    """Return the new name; none for what lies elsewhere, and for the prefix itself at the top."""
    target = new_prefix + folder.removeprefix(prefix) if folder.startswith(prefix) else ""
    return target[: target.rfind("/")] if "/" in target else ""


def _numbered(name: str) -> list[str]:
    folder, slash, last = name.rpartition("/")
    stem, dot, suffix = last.rpartition(".")
    return [f"{folder}{slash}{f'{stem} ({n}){dot}{suffix}' if stem else f'{last} ({n})'}" for n in range(2, 60)]


class NamesMachine(Machine):
    """Two users with independent names."""

    def __init__(self) -> None:
        super().__init__()
        self.trees = {user_id: Tree() for user_id in USERS}
        # The tree of a user whose bulk operation died, as it is once the operation has been completed.
        self.completed: dict[str, Tree] = {}

    @initialize(files=st.lists(st.tuples(user_ids, names, numbers), min_size=4, max_size=10))
    def start(self, files: list[tuple[str, str, int]]) -> None:
        self.serve(USERS, 1 << 30)
        for user_id, name, number in files:
            self.put(user_id, name, number, IfExists.KEEP, None)

    def act(self, user_id: str, work: Any, dies_at: int | None, expect: Callable[[Tree], Any]) -> None:
        """Compare what the services answer with what the model expects; what is refused changes nothing."""
        outcome = self.run(_outcome(work), dies_at)
        if self.died:
            return
        try:
            expected = expect(self.trees[user_id])
        except Taken:
            expected = "taken"
        assert outcome == expected

    @rule(user_id=user_ids, name=names, number=numbers, if_exists=choices, dies_at=DEATHS)
    def put(self, user_id: str, name: str, number: int, if_exists: IfExists, dies_at: int | None) -> None:
        def expect(tree: Tree) -> str:
            place = tree.find(name, if_exists, number)
            tree.put(place, number)
            return place

        self.act(user_id, self._put(user_id, name, number, if_exists), dies_at, expect)

    async def _put(self, user_id: str, name: str, number: int, if_exists: IfExists) -> str:
        async def entries() -> AsyncIterator[tuple[NewFile, Body]]:
            md5 = CONTENTS[number].md5
            new = NewFile(caller=owner(user_id), name=name, md5=md5, sha256=None, if_exists=if_exists, modified_at=None)
            yield new, InPieces(CONTENTS[number].data)

        (outcome,) = [each async for each in self.services.whole.receive_many(owner(user_id), entries())]
        if isinstance(outcome, UploaderError):
            raise outcome
        assert isinstance(outcome, Complete)
        return outcome.file.name

    @rule(user_id=user_ids, folder=st.sampled_from(FOLDERS), dies_at=DEATHS)
    def make_folder(self, user_id: str, folder: str, dies_at: int | None) -> None:
        def expect(tree: Tree) -> tuple[str, bool]:
            is_new = folder not in tree.folders
            tree.make(folder)
            return f"{folder}/", is_new

        self.act(user_id, self.services.folders.make(user_id, folder), dies_at, expect)

    @rule(user_id=user_ids, which=st.integers(0, 20), name=names, if_exists=choices, dies_at=DEATHS)
    def rename(self, user_id: str, which: int, name: str, if_exists: IfExists, dies_at: int | None) -> None:
        file = self._some_file(user_id, which)
        if file is None:
            return

        def expect(tree: Tree) -> str:
            if name == file.name:
                return name
            number = tree.files.pop(file.name)
            try:
                place = tree.find(name, if_exists)
            except Taken:
                tree.files[file.name] = number
                raise
            if place in tree.files:
                tree.lose(place)
            tree.put(place, number)
            return place

        self.act(user_id, self._rename(user_id, file.id, name, if_exists), dies_at, expect)

    async def _rename(self, user_id: str, file_id: str, name: str, if_exists: IfExists) -> str:
        return (await self.services.folders.rename(user_id, file_id, name, if_exists)).name

    @rule(
        user_id=user_ids,
        prefix=prefixes,
        new_prefix=st.one_of(st.just(""), prefixes),
        if_exists=choices,
        dies_at=DEATHS,
    )
    def move(self, user_id: str, prefix: str, new_prefix: str, if_exists: IfExists, dies_at: int | None) -> None:
        def expect(tree: Tree) -> int | str:
            if new_prefix.startswith(prefix):
                return "invalid"
            targets = [new_prefix + name.removeprefix(prefix) for name in tree.files if name.startswith(prefix)]
            targets += [target for name in tree.empty if (target := _moved_folder(name, prefix, new_prefix))]
            if any(not all(target.split("/")) for target in targets):
                return "invalid"
            return tree.move(prefix, new_prefix, if_exists)

        moving = self.services.bulk_operations.move(user_id, prefix, new_prefix, if_exists)
        self.act_in_bulk(user_id, moving, dies_at, expect)

    @rule(user_id=user_ids, which=st.integers(0, 20), dies_at=DEATHS)
    def delete(self, user_id: str, which: int, dies_at: int | None) -> None:
        file = self._some_file(user_id, which)
        if file is not None:
            self.act(user_id, self.services.files.delete(user_id, file.id), dies_at, lambda tree: tree.lose(file.name))

    @rule(user_id=user_ids, prefix=prefixes, dies_at=DEATHS)
    def delete_below(self, user_id: str, prefix: str, dies_at: int | None) -> None:
        deleting = self.services.bulk_operations.delete(user_id, Selection((), (prefix,)))
        self.act_in_bulk(user_id, deleting, dies_at, lambda tree: tree.delete(prefix))

    def act_in_bulk(self, user_id: str, work: Any, dies_at: int | None, expect: Callable[[Tree], Any]) -> None:
        """The job completes dead operations, unless none had begun."""
        completed = deepcopy(self.trees[user_id])
        self.act(user_id, work, dies_at, expect)
        if self.died:
            with suppress(Taken):
                expect(completed)
            self.completed = {user_id: completed}
            for _ in range(2):  # what nobody has worked on meanwhile
                self.runner.run(self.services.bulk_operations.resume_left())

    @rule(
        user_id=user_ids, which=st.integers(0, 20), name=st.one_of(st.none(), names), if_exists=choices, dies_at=DEATHS
    )
    def restore(self, user_id: str, which: int, name: str | None, if_exists: IfExists, dies_at: int | None) -> None:
        file = self._some_file(user_id, which, models.trashed_file)
        if file is None:
            return
        number = BY_SHA256[file.sha256]

        def expect(tree: Tree) -> str:
            place = tree.find(name or file.name, if_exists)
            tree.trash -= Counter([(file.name, number)])
            if place in tree.files:
                tree.lose(place)
            tree.put(place, number)
            return place

        self.act(user_id, self._restore(user_id, file.id, name, if_exists), dies_at, expect)

    async def _restore(self, user_id: str, file_id: str, name: str | None, if_exists: IfExists) -> str:
        restored = await self.services.deleted_files.restore(user_id, file_id, name, if_exists)
        assert restored is not None, "a content of some bytes is examined at once"
        return restored.name

    @rule(user_id=user_ids, which=st.integers(0, 20), dies_at=DEATHS)
    def forget(self, user_id: str, which: int, dies_at: int | None) -> None:
        file = self._some_file(user_id, which, models.trashed_file)
        if file is not None:
            gone = Counter([(file.name, BY_SHA256[file.sha256])])
            forgetting = self.services.deleted_files.forget(user_id, file.id)
            self.act(user_id, forgetting, dies_at, lambda tree: tree.trash.subtract(gone))

    def _some_file(self, user_id: str, which: int, table: Table = models.file) -> Any:
        rows = [row for row in self.runner.run(self.database.read(_rows, table)) if row.user_id == user_id]
        return rows[which % len(rows)] if rows else None

    @invariant()
    def the_tree_is_as_in_the_model(self) -> None:
        self.runner.run(self._check())

    async def _check(self) -> None:
        await checked_accounts(self.database)
        tables = (models.file, models.folder, models.trashed_file)
        of_all = [await self.database.read(_rows, table) for table in tables]
        for user_id, tree in self.trees.items():
            rows, folders, trashed = [[row for row in found if row.user_id == user_id] for found in of_all]
            files = {row.name: BY_SHA256[row.sha256] for row in rows}
            trash = Counter((row.name, BY_SHA256[row.sha256]) for row in trashed)
            empty = {row.name for row in folders}
            completed = self.completed.pop(user_id, tree)
            if completed is not tree:
                assert (files, empty, trash) in [(each.files, each.empty, each.trash) for each in (tree, completed)]
            if self.died:
                tree.files, tree.trash = files, trash
                tree.folders = {each for name in (*files, *empty) for each in above(name)}
                tree.folders |= {name.rstrip("/") for name in empty}
            assert files == tree.files
            assert empty == tree.empty
            assert trash == tree.trash
            tree.files = files  # in the order of their ids
        self.died = False


async def _outcome(work: Any) -> Any:
    try:
        return await work
    except NameTaken as error:
        assert error.fields.get("files", 0) == 0, "all names are checked before"
        return "taken"
    except (FileNotFound, InvalidRequest):
        return "invalid"


async def _rows(connection: Connection, table: Table) -> list[Any]:
    query = select(table)
    return list(await connection.execute(query.order_by(table.c.id) if "id" in table.c else query))


def test_no_order_of_changes_gives_a_name_to_two(
    anyio_backend: str, sqlite_template: Path, own_redis: PrivateRedis, tmp_path: Path
) -> None:
    with without_syncs():
        NamesMachine.pass_examples(tmp_path, sqlite_template, own_redis)
