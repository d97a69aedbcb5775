"""A diagnosis: a fault of an installation, its level, and the remedy. One line of `uploader doctor`.

Knows no setting and no store: the callers look and make diagnoses.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The levels, worst first. A note needs no action."""

    # Bytes or accounts can be lost, strangers get in, or the server can't work.
    ERROR = "error"
    # The installation works, but would not withstand an attacker, a power cut or the next months.
    WARNING = "warning"
    NOTE = "note"


class Subject(StrEnum):
    """The subjects of diagnoses. docs/doctor.md has a row for each."""

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


# Expiries and leases depend on several clocks: of the servers, the database and Redis.
MAX_SKEW_SECONDS = 2.0


def diagnoses_of_skew(name: str, ahead_seconds: float, *, within_seconds: float) -> list[Diagnosis]:
    """Compare another machine's clock with the clock here. `within_seconds`: the uncertainty of `ahead_seconds`."""
    if abs(ahead_seconds) <= MAX_SKEW_SECONDS + within_seconds:
        return []
    how = f"{abs(ahead_seconds):.0f} s {'ahead of' if ahead_seconds > 0 else 'behind'}"
    return [warning(Subject.CLOCK, f"the clock of {name} is {how} the one here", "let both follow the time (NTP)")]


_RANKS = {level: rank for rank, level in enumerate(Level)}


def worst_first(found: Iterable[Diagnosis]) -> list[Diagnosis]:
    """Sort by level, then by subject in the order of `Subject`. Drop duplicates."""
    subjects = list(Subject)
    return sorted(dict.fromkeys(found), key=lambda each: (_RANKS[each.level], subjects.index(each.subject)))


def to_act_on(found: Iterable[Diagnosis]) -> list[Diagnosis]:
    return [each for each in found if each.level is not Level.NOTE]
