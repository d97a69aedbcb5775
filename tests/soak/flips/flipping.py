"""Flips one byte somewhere: which file and which byte of it follow from the seed and from what there is at that moment."""

import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.clients import Client
from tests.soak.flips import sqlite_rows
from tests.soak.flips.installation import Installation
from tests.support.content import Content

# While clients work; and while the server is stopped, because its database and its Valkey read their files at the start.
LIVE = ("map", "digest", "data", "blob", "checksums")
STOPPED = ("sqlite", "aof")
_TRIES = 100


@dataclass
class Flip:
    """Where a byte flipped, whom it hit, and what became of it."""

    number: int
    kind: str
    path: str
    offset: int
    before: int
    after: int
    sha256: str | None = None
    upload_id: str | None = None
    # The content that a row of SQLite is about.
    row_sha256: str | None = None
    users: list[str] = field(default_factory=list)
    about: str = ""
    columns: list[str] = field(default_factory=list)  # of SQLite, whose values are others now
    outcome: str = ""
    troubles: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        where = f"flip {self.number}, {self.path} at {self.offset}, {self.before:#04x} to {self.after:#04x}"
        return f"{where} ({self.about})" if self.about else where


class Flipper:
    """Chooses by a generator of its own for each flip, so that what clients do changes no later choice."""

    def __init__(self, installation: Installation, clients: list[Client], seed: int) -> None:
        self._installation = installation
        self._clients = clients
        self._seed = seed

    def flip(self, number: int, kind: str) -> Flip | None:
        """Flip a byte; None if there is nothing of that kind at the moment."""
        chosen = random.Random(f"{self._seed}/{number}")
        flips: dict[str, Callable[[random.Random, int, str], Flip | None]] = {
            "blob": self._blob,
            "checksums": self._blob,
            "sqlite": self._sqlite,
            "aof": self._append_only_file,
        }
        if kind in flips:
            return flips[kind](chosen, number, kind)
        return self._of_an_upload(chosen, number, kind)

    def undo(self, flip: Flip) -> None:
        """Put the byte back where it still is what it was made."""
        path = self._installation.directory / flip.path
        with suppress(FileNotFoundError), path.open("r+b") as file:
            file.seek(flip.offset)
            if file.read(1) == bytes([flip.after]):
                file.seek(flip.offset)
                file.write(bytes([flip.before]))

    def _of_an_upload(self, chosen: random.Random, number: int, name: str) -> Flip | None:
        uploads = {
            upload.upload_id: (client.user_id, upload.content)
            for client in self._clients
            for upload in client.promises.uploads.values()
        }
        for path in _shuffled(chosen, (self._installation.data / "temp").glob("*/*/*")):
            if path.name not in uploads:
                continue
            user_id, content = uploads[path.name]
            if flip := self._flip(chosen, number, name, path / name):
                flip.upload_id, flip.sha256 = path.name, content.sha256
                flip.users, flip.about = [user_id], f"{content.name}, {content.size} bytes"
                return flip
        return None

    def _blob(self, chosen: random.Random, number: int, kind: str) -> Flip | None:
        """Or what is beside it."""
        ending = "" if kind == "blob" else f".{kind}"
        for path in _shuffled(chosen, (self._installation.data / "blobs").glob("??/??/" + "?" * 64 + ending)):
            if flip := self._flip(chosen, number, kind, path):
                flip.sha256 = path.name.removesuffix(ending)
                flip.users = self.users_of(flip.sha256)
                return flip
        return None

    def users_of(self, sha256: str) -> list[str]:
        return [client.user_id for client in self._clients if client.promises.has(sha256)]

    def add_users(self, flip: Flip) -> None:
        """Those, too, who have come to have the content since, or are sending it."""
        for sha256 in (flip.sha256, flip.row_sha256):
            flip.users += [user for user in self.users_of(sha256 or "") if user not in flip.users]

    def _append_only_file(self, chosen: random.Random, number: int, _kind: str) -> Flip | None:
        """It is a cache: it may hit nobody."""
        return self._flip(chosen, number, "aof", chosen.choice(self._installation.append_only_files()))

    def _sqlite(self, chosen: random.Random, number: int, _kind: str) -> Flip | None:
        """A byte of a row of any table."""
        path = self._installation.database
        for table in _shuffled(chosen, [name for name in sqlite_rows.table_names(path) if name != "alembic_version"]):
            places = sqlite_rows.row_places(path, str(table))
            if not places:
                continue
            place = chosen.choice(places)
            before = sqlite_rows.row(path, place)
            offset = place.offset + chosen.randrange(place.length)
            flip = self._flip(chosen, number, "sqlite", path, offset)
            assert flip is not None
            after = sqlite_rows.row(path, place)
            flip.users = self._users_of_row(before)
            flip.row_sha256 = (before.get("sha256") or b"").decode() or None
            flip.about = f"{place.table} {place.rowid}: {_difference(before, after)}"
            flip.columns = [f"{place.table}.{name}" for name in _changed(before, after)]
            return flip
        return None

    def _users_of_row(self, row: dict[str, Any]) -> list[str]:
        if "user_id" in row:
            return [row["user_id"].decode()]
        return self.users_of(row["sha256"].decode()) if "sha256" in row else []

    def _flip(
        self, chosen: random.Random, number: int, kind: str, path: Path, offset: int | None = None
    ) -> Flip | None:
        """None if there is no such file any more, or nothing in it."""
        mask = chosen.randrange(1, 256)
        try:
            with path.open("r+b") as file:
                size = file.seek(0, 2)
                if not size:
                    return None
                offset = chosen.randrange(size) if offset is None else offset
                file.seek(offset)
                before = file.read(1)[0]
                file.seek(offset)
                file.write(bytes([before ^ mask]))
        except FileNotFoundError:
            return None
        shown = str(path.relative_to(self._installation.directory))
        return Flip(number, kind, shown, offset, before, before ^ mask)


def contents_of(clients: Iterable[Client]) -> dict[str, Content]:
    """All that anybody has or is to have, by SHA-256."""
    return {content.sha256: content for client in clients for content in client.promises.contents}


def _shuffled(chosen: random.Random, things: "Iterable[Any]") -> list[Any]:
    shuffled = sorted(things)
    chosen.shuffle(shuffled)
    return shuffled


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    if "error" in after:
        return str(after["error"])
    changed = [f"{name} {before[name]!r} -> {after.get(name)!r}" for name in _changed(before, after)]
    return ", ".join(changed) or "the same values"


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The columns that have other values; none where the row can't be read."""
    return [] if "error" in after else [name for name in before if before[name] != after.get(name)]
