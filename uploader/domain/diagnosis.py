"""A diagnosis says what is wrong with an installation, how bad it is, and what to do: a line of `uploader doctor`.

Knows no setting and no store: who looks at one makes diagnoses of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The worst first. A note is only good to know: nothing has to be done."""

    # Bytes or accounts can be lost, strangers are let in, or the server can't work.
    ERROR = "error"
    # It works, and would not withstand an attacker, a power cut or the next months.
    WARNING = "warning"
    NOTE = "note"


class Subject(StrEnum):
    """The subjects that are looked at: docs/doctor.md has a row for each."""

    SETTINGS = "settings"
    AUTHENTICATION = "authentication"
    TRANSPORT = "transport"
    CERTIFICATE = "certificate"
    PROXIES = "proxies"
    METRICS = "metrics"
    INSTANT = "instant"
    SECRETS = "secrets"
    EVENTS = "events"
    FILES = "files"
    UMASK = "umask"
    DISK = "disk"
    DATABASE = "database"
    REDIS = "redis"
    BUCKET = "bucket"
    CLOCK = "clock"
    CONTENT = "content"
    RECONCILE = "reconcile"
    SNAPSHOT = "snapshot"
    BACKUP = "backup"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    level: Level
    subject: Subject
    what: str
    do: str

    def __str__(self) -> str:
        return f"{self.level}  {self.subject}: {self.what}; {self.do}"


def error(subject: Subject, what: str, do: str) -> Diagnosis:
    return Diagnosis(Level.ERROR, subject, what, do)


def warning(subject: Subject, what: str, do: str) -> Diagnosis:
    return Diagnosis(Level.WARNING, subject, what, do)


def note(subject: Subject, what: str, do: str) -> Diagnosis:
    return Diagnosis(Level.NOTE, subject, what, do)


# Expiries and leases are decided by several clocks: of the servers, the database, Redis.
MAX_SKEW_SECONDS = 2.0


def diagnoses_of_skew(name: str, ahead_seconds: float, *, within_seconds: float) -> list[Diagnosis]:
    """Compare the clock of another machine with the one here; `within_seconds`: as exactly as that is known."""
    if abs(ahead_seconds) <= MAX_SKEW_SECONDS + within_seconds:
        return []
    how = f"{abs(ahead_seconds):.0f} s {'ahead of' if ahead_seconds > 0 else 'behind'}"
    return [warning(Subject.CLOCK, f"the clock of {name} is {how} the one here", "let both follow the time (NTP)")]


_RANKS = {level: rank for rank, level in enumerate(Level)}


def worst_first(found: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Sort by level, and within one by subject, as these are listed. Each is told once."""
    subjects = list(Subject)
    return sorted(dict.fromkeys(found), key=lambda each: (_RANKS[each.level], subjects.index(each.subject)))


def to_act_on(found: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Return all but the notes."""
    return [each for each in found if each.level is not Level.NOTE]
