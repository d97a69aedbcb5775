"""The secret of the installation on a node: from the settings, or from the file `secret` in the data directory, which
the first start makes. The secret is in no database, and in a backup only on request.

A database recognises its secret by a value derived from the secret, so a node with another secret does not start.
Losing or replacing the secret ends all links and URLs signed with the old one.
"""

import asyncio
import os
import secrets
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from uploader.database import meta, migrate
from uploader.database import secret as kept
from uploader.database.copies import sync_path
from uploader.database.engine import Connection, Database, Duplicate
from uploader.database.secret import Former
from uploader.domain.diagnosis import Diagnosis, Subject, error, warning
from uploader.domain.secret import Secret
from uploader.errors import ConfigurationError
from uploader.runtime.clock import Clock

SECRET_FILE = "secret"  # noqa: S105 (a file name)
MIN_BYTES = 32
_MAX_FILE_BYTES = 64 << 10
_REPLACE = "to end all links and signed URLs, stop all servers and run `uploader adopt --yes`"


@dataclass(eq=False, repr=False)
class InstallationSecret:
    """`given`: the secret of the settings. `former`: the setting with which versions before 0.3.0 signed."""

    database: Database
    data: Path
    clock: Clock
    _: KW_ONLY
    given: str | None
    former: str | None
    _value: Secret | None = field(default=None, init=False)
    _former: Former | None = field(default=None, init=False)

    @property
    def path(self) -> Path:
        return self.data / SECRET_FILE

    @property
    def value(self) -> Secret:
        if self._value is None:
            raise RuntimeError("the secret is read at the start")
        return self._value

    @property
    def former_in_force(self) -> Former | None:
        """Return the secret with which versions before 0.3.0 signed, while URLs signed by it are valid."""
        found = self._former
        return found if found is not None and self.clock.now() < found.until else None

    # At a start

    async def obtain(self) -> Secret:
        """Return the secret; the first start makes it. Raises ConfigurationError if the secret is lost, Unavailable."""
        found = await asyncio.to_thread(self._found)
        if found is not None:
            return found
        if await migrate.current_revision(self.database) and await self.database.read(meta.fact, kept.CHECK):
            # Look once more: another process writes the file before the value, and may have made both meanwhile.
            if (found := await asyncio.to_thread(self._found)) is not None:
                return found
            raise ConfigurationError(
                f"the secret of this installation is not there: set UPLOADER_SECRET, or put {self.path} back from where it "
                f"is; or, {_REPLACE}"
            )
        return await self.obtain_anew()

    async def obtain_anew(self, copy: Path | None = None) -> Secret:
        """Return the secret, or make a new one, for a database that may belong to another secret. `copy`: a file that
        may hold the secret. Raises ConfigurationError."""
        return await asyncio.to_thread(self._made, copy)

    def _made(self, copy: Path | None) -> Secret:
        if self.given is not None:
            return Secret(self.given, self.former)
        if not self.path.exists():
            copied = copy is not None and copy.exists()
            text = _read(copy) if copy is not None and copied else secrets.token_hex(32)
            self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_secret(self.path, f"{text}\n")
        return Secret(_read(self.path), self.former)

    def _found(self) -> Secret | None:
        """Raises ConfigurationError."""
        if self.given is not None:
            return Secret(self.given, self.former)
        return Secret(_read(self.path), self.former) if self.path.exists() else None

    async def begin(self, *, protects: bool = False) -> None:
        """Read the secret, and compare it with the database. `protects`: encrypt what nodes of earlier versions have
        written meanwhile. Raises ConfigurationError, Unavailable."""
        secret = await self.obtain()
        try:
            await self.database.transact(kept.belong, secret)
        except Duplicate:  # another node was first by a moment
            await self.database.transact(kept.belong, secret)
        if protects:
            after: bytes | None = b""
            while after is not None:
                after = await self.database.transact(_protect, secret, after)
        self._former = await self.database.read(kept.former, secret)
        self._value = secret

    async def check(self) -> None:
        """Raises ConfigurationError if the database belongs to another secret by now, Unavailable."""
        if self._value is not None and await self.database.read(meta.fact, kept.CHECK) != self._value.check_value:
            raise ConfigurationError(kept.OTHER)

    async def forget_former(self) -> None:
        """Forget the former secret when everything signed with it has expired."""
        if self._former is not None and self.former_in_force is None:
            await self.database.transact(kept.forget_former)
            self._former = None

    async def diagnoses(self) -> list[Diagnosis]:
        """Report problems of the secret; change nothing. Raises Unavailable."""
        stored = await self.database.read(meta.fact, kept.CHECK)
        found = []
        if self.former is not None:
            what = "UPLOADER_LINK_SECRET is the former name of UPLOADER_SECRET, which the next version does not know"
            found.append(warning(Subject.SECRETS, what, "name it UPLOADER_SECRET, with the same value"))
        try:
            secret = await asyncio.to_thread(self._found)
        except ConfigurationError as failure:
            return [error(Subject.SECRETS, failure.detail, "no server starts before that")]
        if stored is not None and (secret is None or secret.check_value != stored):
            what = "the secret of this installation is not there" if secret is None else "the secret is another one"
            do = f"set UPLOADER_SECRET, or put {self.path} back; or, {_REPLACE}"
            found.append(error(Subject.SECRETS, what, do))
        if await self.database.read(meta.fact, kept.REWRITE) is not None:
            what = "the file of the database still has slugs and a secret as they were before 0.3.0, in pages that are free"
            found.append(
                warning(Subject.DATABASE, what, "stop all servers and workers, and start one: it rewrites the file")
            )
        return found

    # By hand

    async def settle(self, secret: Secret, database: Database | None = None) -> int | None:
        """Make a restored or adopted database belong to this secret; by default the database of the settings. Return
        how many links ended; None if the database did not belong to another secret."""
        database = database or self.database
        stored = await database.read(meta.fact, kept.CHECK)
        if stored is None:
            await database.transact(kept.belong, secret)
        return (
            None
            if stored in (None, secret.check_value)
            else await database.transact(kept.replace, secret, self.clock.now())
        )

    async def adopt(self) -> int | None:
        """Settle the database on the node's secret, or on a new one, as `settle`. Raises ConfigurationError, Unavailable."""
        return await self.settle(await self.obtain_anew())


async def _protect(connection: Connection, secret: Secret, after: bytes) -> bytes | None:
    return await connection.run_sync(lambda plain: kept.protect(plain, secret, after=after))


def _read(path: Path) -> str:
    """Raises ConfigurationError: a damaged secret is not made anew, because that would end all links."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES)
    except OSError as failure:
        raise ConfigurationError(
            f"{path}, the secret of this installation, can't be read: {failure.strerror}"
        ) from failure
    with suppress(UnicodeDecodeError):
        text = raw.decode().strip()
        if len(text.encode()) >= MIN_BYTES and text.isprintable():
            return text
    raise ConfigurationError(
        f"{path}, the secret of this installation, is damaged: it has {len(raw)} bytes, of at least {MIN_BYTES} printable "
        f"ones; put it back from where it is; or, {_REPLACE}"
    )


def write_secret(path: Path, content: str) -> None:
    """Write a file whole or not at all, durably, readable by its owner alone. If the file exists, it stays: of two
    writers, the first one wins."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)
    sync_path(path.parent)
