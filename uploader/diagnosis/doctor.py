"""The doctor examines an installation, from the settings to the last backup, and names a remedy for each fault.

It changes nothing. Each part is examined separately and for a limited time: a part that does not answer is a diagnosis,
and the other parts are still reported.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from pathlib import Path

from uploader.accounting.pending import Pending
from uploader.accounting.probe import Probe
from uploader.accounting.redis import time_of
from uploader.database import meta, migrate
from uploader.database.engine import Database
from uploader.diagnosis import exposure
from uploader.diagnosis.health import (
    REDIS_SETTINGS,
    Integrity,
    diagnoses_of_aside,
    diagnoses_of_durability,
    diagnoses_of_mishaps,
    diagnoses_of_redis_settings,
    diagnoses_of_schema,
    odd_settings,
)
from uploader.domain import reasons
from uploader.domain.diagnosis import (
    Diagnosis,
    Subject,
    diagnoses_of_skew,
    error,
    note,
    warning,
    worst_first,
)
from uploader.domain.upload import floor_of
from uploader.errors import ConfigurationError, Unavailable, UploaderError
from uploader.runtime.clock import Clock
from uploader.service.events import Watching
from uploader.service.installation import FACT, Installation
from uploader.service.maintenance import Maintenance
from uploader.service.secret import InstallationSecret
from uploader.settings import Settings, secret_files
from uploader.sinks.configuration import EventSettings
from uploader.storage import disk, modes
from uploader.storage.store import Store
from uploader.units import human_bytes

_FILES_SECONDS, _FILES_AT_START_SECONDS = 1.0, 0.1
# The limit of an examination at a start: a part that takes longer is not reported.
_START_SECONDS = 2.0
_LEAST_INODES_SHARE = 20
_MAX_KEY_SET_BYTES = 256 << 10
_SOON = timedelta(days=14)
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_NO_BARRIER = frozenset({"nobarrier", "barrier=0"})
_BLOCKS = "no server starts before that"


@dataclass(frozen=True, slots=True)
class Kept:
    """The files of an installation on this machine: `paths` in the data directory and beside the SQLite file `sqlite`.
    `owns_all`: the data directory has no other files. `is_begun`: the installation was started before."""

    data: Path
    paths: Sequence[Path]
    owns_all: bool
    is_begun: bool
    sqlite: Path | None


@dataclass(eq=False, repr=False)
class Doctor:
    settings: Settings
    events: EventSettings
    database: Database
    storage: Store
    pending: Pending
    probe: Probe
    installation: Installation
    secret: InstallationSecret
    integrity: Integrity
    watching: Watching
    clock: Clock
    _: KW_ONLY
    kept: Kept
    # Returns the directories that the embedded Valkey could not load. Blocks.
    list_aside: Callable[[], Sequence[Path]]
    # False: there is no Redis to ask, because the embedded Valkey runs only with a server.
    asks_redis: bool
    # The first and the last moment of the certificate in UPLOADER_TLS_CERTIFICATE.
    validity: tuple[datetime, datetime] | None

    async def examine(self, *, all_files: bool = False) -> list[Diagnosis]:
        """Examine everything; return the worst first. `all_files`: look at the mode of every file, without a time
        limit."""
        files_seconds = float("inf") if all_files else _FILES_SECONDS
        parts = {
            Subject.DATABASE: self._database,
            Subject.REDIS: self._redis,
            Subject.BUCKET: self._bucket,
            Subject.CONTENT: self._content,
            Subject.EVENTS: self.watching.diagnoses,
            **Maintenance(self.database, self.clock).looks,
        }
        asked = await asyncio.gather(*(self._asked(subject, ask) for subject, ask in parts.items()))
        return worst_first([*await self._here(files_seconds), *(each for found in asked for each in found)])

    async def examine_at_start(self) -> list[Diagnosis]:
        """Examine what takes only a moment. Leave out stores that do not answer and the bucket, because the start
        itself checks them; and the jobs, because no job ran while the server was stopped."""
        found = await self._here(_FILES_AT_START_SECONDS)
        for ask in (self._database, self._redis):
            with suppress(UploaderError, TimeoutError):
                async with asyncio.timeout(_START_SECONDS):
                    found += await ask()
        return worst_first(found)

    async def _asked(self, subject: Subject, ask: Callable[[], Awaitable[list[Diagnosis]]]) -> list[Diagnosis]:
        if subject in _OF_ROWS and not self._has_rows:
            return []
        try:
            async with asyncio.timeout(self._patience_seconds):
                return await ask()
        except ConfigurationError as failure:
            return [error(subject, failure.detail, _BLOCKS)]
        except UploaderError as failure:
            if subject is Subject.DATABASE and self.database.odd_modes:
                return [reasons.SQL_MODE_CHANGED(how=self.database.odd_modes)]
            # the database reports its own failure
            return [] if subject in _OF_ROWS else [error(subject, failure.reason, "start it, or correct its address")]
        except TimeoutError:
            return [
                error(subject, f"it did not answer within {self._patience_seconds:.0f} s", "look what it is busy with")
            ]

    @property
    def _patience_seconds(self) -> float:
        """The limit for each part."""
        return max(self.settings.database_timeout_seconds, self.settings.redis_timeout_seconds)

    @property
    def _has_rows(self) -> bool:
        return self.kept.sqlite is None or self.kept.is_begun

    # This machine

    async def _here(self, files_seconds: float) -> list[Diagnosis]:
        found = exposure.diagnoses_of(self.settings, self.events)
        found += self._certificate()
        found += await asyncio.to_thread(self._secrets)
        found += _umask()
        try:
            found += await asyncio.to_thread(self._files, files_seconds)
            found += await asyncio.to_thread(self._disk)
        except FileNotFoundError:
            what = f"{self.kept.data} is not there"
            found.append(warning(Subject.FILES, what, "correct UPLOADER_DATA; or the first `uploader serve` makes it"))
        except OSError as failure:
            what = f"{self.kept.data} can't be looked at: {failure.strerror}"
            found.append(error(Subject.FILES, what, "run this as the account of the server"))
        return found

    def _certificate(self) -> list[Diagnosis]:
        if self.validity is None:
            return []
        begin, end = self.validity
        now = self.clock.now()
        if not begin <= now <= end:
            what = f"UPLOADER_TLS_CERTIFICATE: the certificate is not valid now, but from {begin:%Y-%m-%d} to {end:%Y-%m-%d}"
            return [error(Subject.CERTIFICATE, what, "renew it, and send SIGHUP to the server")]
        if end - now < _SOON:
            what = f"UPLOADER_TLS_CERTIFICATE: the certificate ends on {end:%Y-%m-%d}"
            return [warning(Subject.CERTIFICATE, what, "renew it, and send SIGHUP to the server")]
        return []

    def _secrets(self) -> list[Diagnosis]:
        files = secret_files()
        if self.settings.tls_key is not None:
            files["UPLOADER_TLS_KEY"] = self.settings.tls_key
        if self.settings.jwt_jwks is not None and _holds_secrets(Path(self.settings.jwt_jwks)):
            files["UPLOADER_JWT_JWKS"] = Path(self.settings.jwt_jwks)
        named = [*files.items(), *(("UPLOADER_EVENTS", file) for file in self.events.files)]
        found = []
        for name, file in named:
            with suppress(OSError):  # a missing file was reported before
                if modes.is_readable_to_others(file):
                    what = f"{name}: other accounts can read or change {file}"
                    found.append(warning(Subject.SECRETS, what, f"chmod 600 {file}"))
        return found

    def _files(self, seconds: float) -> list[Diagnosis]:
        """Check who may access the files. Raises OSError."""
        data, found = self.kept.data, []
        access = modes.look_at_access(data, self.kept.paths, owns_all=self.kept.owns_all, seconds=seconds)
        if access.open.count:
            what = f"other accounts of this machine can get at {access.open}"
            found.append(error(Subject.FILES, what, "chmod -R go= them"))
        if access.foreign.count:
            what = f"{access.foreign} belong to another account than {data}"
            found.append(warning(Subject.FILES, what, "chown them, and run commands as the account of the server"))
        if access.hidden.count:
            what = f"this account can't look at {access.hidden}"
            found.append(warning(Subject.FILES, what, "run this as the account of the server"))
        if access.closed_above.count:
            what = f"{access.closed_above} have modes for others, whom a directory above keeps out"
            found.append(note(Subject.FILES, what, "chmod -R go= them before that is opened, or copied without it"))
        if not access.is_whole:
            what = f"the modes of the first {access.seen} files were looked at, in {seconds:.1f} s"
            found.append(note(Subject.FILES, what, "`uploader doctor --all-files` looks at all"))
        return found

    def _disk(self) -> list[Diagnosis]:
        """Check the filesystem of the data directory. Raises OSError."""
        data, mounts = self.kept.data, disk.mounts()
        found = diagnoses_of_mounts(data, mounts)
        places = [data / name for name in ("temp", "blobs", "trash") if (data / name).is_dir()]
        if any(place.lstat().st_dev != data.stat().st_dev for place in places):
            what = f"temp, blobs and trash in {data} are not on one filesystem"
            found.append(error(Subject.DISK, what, _BLOCKS))
        if (doubt := disk.doubt_about(data)) is not None:
            found.append(reasons.FILESYSTEM_DOUBTFUL(doubt=doubt))
        path = self.kept.sqlite
        if path is not None and not path.is_relative_to(data) and (doubt := disk.doubt_about(path.parent)) is not None:
            what = doubt.replace("UPLOADER_DATA", f"the database {path}")
            found.append(error(Subject.DATABASE, what, "move it there, with all servers stopped"))
        return found + (self._room(disk.volume_of(data)) if self.storage.keeps_files else [])

    def _room(self, volume: disk.Volume) -> list[Diagnosis]:
        found, floor_bytes = [], floor_of(volume.total_bytes, self.settings.free_space_floor_bytes)
        if volume.free_bytes < floor_bytes:
            free, floor = human_bytes(volume.free_bytes), human_bytes(floor_bytes)
            what = f"{free} of the disk are free, below the floor of {floor}: the trash gives way, then uploads are refused"
            found.append(warning(Subject.DISK, what, "free disk, or lower UPLOADER_FREE_SPACE_FLOOR"))
        if volume.free_inodes * _LEAST_INODES_SHARE < volume.inodes:
            what = f"{volume.free_inodes} of {volume.inodes} inodes of the disk are free: each file takes one"
            found.append(warning(Subject.DISK, what, "free some, or make a filesystem with more"))
        return found

    # Databases, Redis and the bucket

    async def _database(self) -> list[Diagnosis]:
        if not self._has_rows:
            return []
        path = self.kept.sqlite
        if path is not None and not path.exists():
            return [error(Subject.DATABASE, f"the database {path} is not there", "put it back, or restore a backup")]
        await self.database.look()
        await self.database.check_writable()
        schema = await migrate.schema_of(self.database)
        if self.settings.database_url is None and schema.is_behind:
            what = f"the database is at revision {schema.revision or 'none'}, of an older version"
            return [note(Subject.DATABASE, what, "the next start migrates it; `uploader backup` before")]
        await migrate.check(self.database)
        await self.installation.compare()
        found = diagnoses_of_schema(schema) + diagnoses_of_durability(await self.database.read(meta.durability))
        pragmas = await self.database.read(meta.sqlite_pragmas)
        for odd in odd_settings(pragmas, {"journal_mode": ("wal",), "synchronous": ("2",)}):
            found.append(warning(Subject.DATABASE, odd, "put its file on a local filesystem, such as ext4"))
        return found + await self.secret.diagnoses() + await self._database_server()

    async def _database_server(self) -> list[Diagnosis]:
        before = self.clock.now()
        server = await self.database.read(meta.look_at_server)
        if server is None:
            return []
        found = self._skew("the database", server.now, before)
        settings = server.settings
        if settings.get("log_bin") == "ON" and settings.get("binlog_format") == "STATEMENT":
            what = "binlog_format is STATEMENT: the server refuses each write at READ COMMITTED"
            found.append(error(Subject.DATABASE, what, "set it to ROW in the configuration of the server"))
        if settings.get("innodb_doublewrite", "ON") in ("OFF", "0", "DETECT_ONLY"):
            what = "innodb_doublewrite is off: a power cut in the middle of a page damages it"
            found.append(warning(Subject.DATABASE, what, "set it to ON, unless the disk writes pages whole"))
        return found

    async def _redis(self) -> list[Diagnosis]:
        found = diagnoses_of_aside(await asyncio.to_thread(self.list_aside))
        if not self.asks_redis:
            return found
        try:
            await self.probe.run()
        except Unavailable as failure:
            if (refused := self.probe.diagnosis_of(failure)) is None:
                raise
            return [*found, refused]
        before = self.clock.now()
        if (now := await time_of(self.pending.redis)) is not None:
            found += self._skew("Redis", now, before)
        found += diagnoses_of_redis_settings(await self.pending.configuration(*REDIS_SETTINGS))
        found += await self.probe.diagnoses()
        return found + await self._redis_of_others()

    async def _redis_of_others(self) -> list[Diagnosis]:
        marked, ours = await self.installation.redis.read(), None
        if self._has_rows:
            with suppress(UploaderError):  # reported for the database
                ours = await self.database.read(meta.fact, FACT)
        if ours is None or marked in (None, ours):
            return []
        what = f"Redis belongs to installation {marked}, the database to {ours}"
        return [error(Subject.REDIS, what, "correct UPLOADER_REDIS_URL, or see `uploader adopt`")]

    def _skew(self, name: str, theirs: datetime, before: datetime) -> list[Diagnosis]:
        """Compare a clock that was read between `before` and now."""
        half_seconds = (self.clock.now() - before).total_seconds() / 2
        ahead_seconds = (theirs - before).total_seconds() - half_seconds
        return diagnoses_of_skew(name, ahead_seconds, within_seconds=half_seconds)

    async def _bucket(self) -> list[Diagnosis]:
        return await self.storage.diagnoses(upload_expiry_seconds=self.settings.upload_expiry_seconds)

    # The results of jobs

    async def _content(self) -> list[Diagnosis]:
        mishaps = await self.database.read(meta.recent_mishaps, self.clock.now())
        return diagnoses_of_mishaps(mishaps) + await self.integrity.diagnoses()


_OF_ROWS = (Subject.CONTENT, Subject.EVENTS, Subject.RECONCILE, Subject.SNAPSHOT, Subject.BACKUP)


def diagnoses_of_mounts(data: Path, mounts: Sequence[disk.Mount]) -> list[Diagnosis]:
    """Check the options of a data directory's mount, and mounts inside of the directory."""
    found, mount = [], disk.mount_of(data, mounts)
    if mount is not None and mount.kind in _IN_MEMORY:
        what = f"UPLOADER_DATA lies in memory ({mount.kind}): all of it is gone with the next boot"
        found.append(error(Subject.DISK, what, "move it to a disk"))
    if mount is not None and "ro" in mount.options:
        found.append(error(Subject.DISK, f"{mount.point} is mounted to be read only", _BLOCKS))
    if mount is not None and (odd := mount.options & _NO_BARRIER):
        what = f"{mount.point} is mounted with {', '.join(odd)}: a power cut may take what was synced"
        found.append(warning(Subject.DISK, what, "mount it without, unless its cache has a battery"))
    for name in ("temp", "blobs", "trash"):
        if any(each.point == data / name for each in mounts):
            what = f"{data / name} is a mount of its own: no file can be linked to it from the others"
            found.append(error(Subject.DISK, what, _BLOCKS))
    return found


def _umask() -> list[Diagnosis]:
    mask = modes.umask()
    if mask & 0o077 == 0o077:
        return []
    what = f"files are made with umask {mask:03o}, so other accounts may read some"
    return [warning(Subject.UMASK, what, "start the server by `uploader`, or with umask 077")]


def _holds_secrets(key_set: Path) -> bool:
    with suppress(OSError), key_set.open("rb") as file:
        return b'"oct"' in file.read(_MAX_KEY_SET_BYTES)
    return False
