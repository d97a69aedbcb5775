"""The reasons of `/readyz` and `uploader doctor`, in the same words: a fault and its remedy.

docs/troubleshooting.md has a row for each. A new reason needs a line here, a row there, code in `Health` to give the
reason, and a test to cause it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from uploader.domain.diagnosis import Diagnosis, Level, Subject


class Check(StrEnum):
    """The checks of `/readyz`. The checks that fail keep requests away; the others only inform."""

    DATABASE = "database"
    REDIS = "redis"
    STORAGE = "storage"
    CONTENT = "content"
    EVENTS = "events"
    MAINTENANCE = "maintenance"


@dataclass(frozen=True, slots=True)
class Reason:
    """A fault and its remedy. `{name}` in `what` stands for a fact that each diagnosis fills in."""

    check: Check
    level: Level
    subject: Subject
    what: str
    do: str

    def __call__(self, **facts: object) -> Diagnosis:
        return Diagnosis(self.level, self.subject, self.what.format(**facts), self.do)


def spell(diagnoses: Iterable[Diagnosis]) -> str | None:
    """Join diagnoses into the reason of a check; None without any."""
    return "; ".join(f"{each.what}, {each.do}" for each in diagnoses) or None


_ERROR, _WARNING, _NOTE = Level.ERROR, Level.WARNING, Level.NOTE
_LET_WORK = "let a worker run: `uploader serve` with jobs, or `uploader work`"

# For a check that fails: the detail of its error.
DATABASE_FAILS = Reason(
    Check.DATABASE, _ERROR, Subject.DATABASE, "{detail}", "see the log: it says where the database is, and why"
)
REDIS_FAILS = Reason(Check.REDIS, _ERROR, Subject.REDIS, "{detail}", "see the log: it says where Redis is, and why")
STORAGE_FAILS = Reason(Check.STORAGE, _ERROR, Subject.DISK, "{detail}", "see the log: it says what the disk or S3 said")
FAILS = {each.check: each for each in (DATABASE_FAILS, REDIS_FAILS, STORAGE_FAILS)}

DATABASE_DAMAGED = Reason(
    Check.DATABASE,
    _ERROR,
    Subject.DATABASE,
    "the database is damaged: {how}",
    "stop all servers and workers, and run `uploader restore-backup --last`",
)
SQL_MODE_CHANGED = Reason(
    Check.DATABASE,
    _ERROR,
    Subject.DATABASE,
    "the database has another SQL mode than this server sets: {how}",
    "let nothing between the two change `sql_mode`: a proxy has to pass it on",
)
DATABASE_FULL = Reason(
    Check.DATABASE,
    _ERROR,
    Subject.DATABASE,
    "the database has no room, and refuses writes: {how}",
    "free disk on its machine; writes work again by themselves",
)
DATABASE_BUSY = Reason(
    Check.DATABASE,
    _WARNING,
    Subject.DATABASE,
    "the database is busy, and requests are refused: {how}",
    "change that, and restart the servers and workers",
)
SCHEMA_AHEAD = Reason(
    Check.DATABASE,
    _NOTE,
    Subject.DATABASE,
    "the database is at revision {revision}, of a newer version, with which this one may serve",
    "install the newer version here, too",
)
NOT_DURABLE = Reason(
    Check.DATABASE,
    _WARNING,
    Subject.DATABASE,
    "a power cut takes back what was committed: {setting}",
    "set it in the configuration of the server, and restart that",
)
COPY_OLD = Reason(
    Check.DATABASE,
    _WARNING,
    Subject.DATABASE,
    "the last copy of the database was made {ago}",
    "see the log: there may be no room for it on the disk, or no worker",
)

REDIS_EVICTS = Reason(Check.REDIS, _WARNING, Subject.REDIS, "{setting}", "set it: a Redis of its own evicts nothing")
REDIS_FORGETS = Reason(
    Check.REDIS, _NOTE, Subject.REDIS, "{setting}", "set it, and less is rebuilt after a crash of Redis"
)
REDIS_ASIDE = Reason(
    Check.REDIS,
    _WARNING,
    Subject.REDIS,
    "files that the embedded Valkey could not load are set aside: {names}",
    "find out why, and remove them",
)
EMBEDDED_MISCONF = Reason(
    Check.REDIS,
    _ERROR,
    Subject.REDIS,
    "the embedded Valkey can't write its append-only file (MISCONF)",
    "look at the disk of UPLOADER_DATA and at redis/server.log: Valkey is restarted until the disk works",
)
REDIS_MUTE = Reason(
    Check.REDIS,
    _WARNING,
    Subject.REDIS,
    "workers are not woken, and look each second: the user of Redis lacks {rights}",
    "add that by ACL SETUSER, as docs/redis.md has it",
)
REDIS_REFUSES = Reason(
    Check.REDIS, _ERROR, Subject.REDIS, "Redis answers {code}", "see the log: it has the whole error"
)


def _refusal(meaning: str, do: str) -> Reason:
    return Reason(Check.REDIS, _ERROR, Subject.REDIS, f"Redis answers {{code}}: {meaning}", do)


REDIS_MISCONF = _refusal("it can't write its file", "look at the disk and at the log of Redis")
REDIS_OOM = _refusal("its memory is full", "raise maxmemory, or remove what others keep there")
REDIS_REPLICA = _refusal("it is a replica", "let UPLOADER_REDIS_URL lead to the master")
REDIS_ALONE = _refusal("it has too few replicas", "start its replicas, or lower min-replicas-to-write")
REDIS_LOADING = _refusal("it loads its files", "wait until it has loaded them")
REDIS_BUSY = _refusal("another program's script keeps it busy", "SCRIPT KILL or FUNCTION KILL, else restart Redis")
REDIS_CLUSTER_DOWN = _refusal("slots of the Cluster have no master", "CLUSTER INFO: start the masters that failed")
REDIS_IN_CLUSTER = _refusal("it is a node of a Cluster", "begin UPLOADER_REDIS_URL with redis+cluster://")
REDIS_NO_CLUSTER = Reason(
    Check.REDIS,
    _ERROR,
    Subject.REDIS,
    "Redis is no Cluster, or its user lacks +cluster|slots",
    "begin UPLOADER_REDIS_URL with redis://, or add that by ACL SETUSER",
)
REDIS_PASSWORD = _refusal("user or password is wrong", "correct UPLOADER_REDIS_URL, or the user by ACL SETUSER")
REDIS_RIGHTS = _refusal("its user lacks {rights}", "add that by ACL SETUSER, as docs/redis.md has it")
REDIS_CLIENTS = _refusal("it takes no more connections", "raise maxclients, or lower UPLOADER_REDIS_CONNECTIONS")
REDIS_TOO_OLD = Reason(
    Check.REDIS,
    _ERROR,
    Subject.REDIS,
    "this is Redis {version}; Redis 7.0 or newer, or any Valkey, is needed",
    "upgrade it, or let UPLOADER_REDIS_URL lead to another one",
)

# By the code of Redis' error. Every other code is REDIS_REFUSES.
REFUSALS = {
    "MISCONF": REDIS_MISCONF,
    "OOM": REDIS_OOM,
    "READONLY": REDIS_REPLICA,
    "MASTERDOWN": REDIS_REPLICA,
    "NOREPLICAS": REDIS_ALONE,
    "LOADING": REDIS_LOADING,
    "BUSY": REDIS_BUSY,
    "CLUSTERDOWN": REDIS_CLUSTER_DOWN,
    "MOVED": REDIS_IN_CLUSTER,
    "NOCLUSTER": REDIS_NO_CLUSTER,
    "NOAUTH": REDIS_PASSWORD,
    "WRONGPASS": REDIS_PASSWORD,
    "NOPERM": REDIS_RIGHTS,
    "MAXCLIENTS": REDIS_CLIENTS,
    "OLD": REDIS_TOO_OLD,
}

DISK_FULL = Reason(
    Check.STORAGE,
    _ERROR,
    Subject.DISK,
    "the disk is full: no bytes are taken",
    "free disk, or delete files: what is deleted leaves the trash then",
)
BALLAST_USED = Reason(
    Check.STORAGE,
    _ERROR,
    Subject.DISK,
    "the disk was full, and the ballast is used: no bytes are taken, files can be deleted",
    "free disk, or delete files: the server takes bytes when the ballast is there again",
)
DISK_SLOW = Reason(
    Check.STORAGE,
    _WARNING,
    Subject.DISK,
    "the disk, or S3, took {seconds} s to keep a byte",
    "look what it is busy with, and whether it is about to fail",
)
FILESYSTEM_DOUBTFUL = Reason(Check.STORAGE, _ERROR, Subject.DISK, "{doubt}", "move it there, with all servers stopped")
MISHAP = Reason(Check.STORAGE, _WARNING, Subject.CONTENT, "{mishap}, last at {at}", "see the log")

DAMAGED_CONTENTS = Reason(Check.CONTENT, _ERROR, Subject.CONTENT, "damaged contents: {count}", "see `uploader scrub`")
UNREADABLE_CONTENTS = Reason(
    Check.CONTENT, _ERROR, Subject.CONTENT, "contents that can't be read: {count}", "see the log"
)
CONTENTS_HELD = Reason(
    Check.CONTENT,
    _WARNING,
    Subject.CONTENT,
    "the database was brought back from its copy of {at}: contents that it does not name are kept",
    "`uploader cleanup --list` lists them, `uploader cleanup --yes` puts them into the trash",
)
STRAYS_KEPT = Reason(
    Check.CONTENT,
    _WARNING,
    Subject.CONTENT,
    "blobs that no row names: {count}, too many to be what crashes left",
    "is this their database? `uploader cleanup --yes` puts them away",
)
NOT_SCRUBBED = Reason(
    Check.CONTENT,
    _WARNING,
    Subject.CONTENT,
    "a content was not read back for {duration}",
    "raise UPLOADER_SCRUB_RATE, or let a worker run",
)

_EVENTS_DO = "`uploader events list --dead` says why, `uploader events replay` tells them once more"
EVENTS_UNNAMED = Reason(
    Check.EVENTS,
    _WARNING,
    Subject.EVENTS,
    "{waiting} wait for {sink}, which UPLOADER_EVENTS does not name",
    _EVENTS_DO,
)
EVENTS_OFF = Reason(Check.EVENTS, _WARNING, Subject.EVENTS, "{sink} said that it wants no more", _EVENTS_DO)
EVENTS_LATE = Reason(Check.EVENTS, _WARNING, Subject.EVENTS, "{sink} is {seconds} s late", _EVENTS_DO)
EVENTS_DEAD = Reason(Check.EVENTS, _WARNING, Subject.EVENTS, "{sink} has not taken {dead}, which are dead", _EVENTS_DO)

DRIFTS = Reason(
    Check.MAINTENANCE,
    _ERROR,
    Subject.RECONCILE,
    "the last reconcile, {ago}, found {count} drifts",
    "`uploader reconcile` says which, `--repair` mends what can be mended",
)
RECONCILE_OLD = Reason(Check.MAINTENANCE, _WARNING, Subject.RECONCILE, "the last reconcile was {ago}", _LET_WORK)
SNAPSHOT_OLD = Reason(
    Check.MAINTENANCE, _WARNING, Subject.SNAPSHOT, "the last snapshot of the totals was taken {ago}", _LET_WORK
)
BACKUP_LACKS = Reason(
    Check.MAINTENANCE,
    _ERROR,
    Subject.BACKUP,
    "the last backup, {ago}, lacks {count} contents",
    "run `uploader scrub`, send them again, and back up anew",
)
BACKUP_OLD = Reason(
    Check.MAINTENANCE, _WARNING, Subject.BACKUP, "the last backup was made {ago}", "look why no newer one was"
)

REASONS = tuple(each for each in list(globals().values()) if isinstance(each, Reason))
