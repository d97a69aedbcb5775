"""The errors that Redis answers: logged once per episode, until probes pass, each with a remedy.

Knows the error texts of Redis and Valkey, and no connection. The breaker handles a Redis that does not answer.
"""

import logging
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from redis import exceptions

from uploader.domain import reasons
from uploader.domain.diagnosis import Diagnosis
from uploader.runtime.bell import Bell
from uploader.runtime.observability import FAILURES

logger = logging.getLogger(__name__)

_FAILURES = FAILURES.labels("redis")
# A failed fsync shows one or two seconds after the acknowledged write.
_SETTLED_SECONDS = 5.0
# Codes that pass by themselves: of a failover, a start, or a move of slots.
_MOMENTARY = frozenset({"READONLY", "MASTERDOWN", "LOADING", "CLUSTERDOWN", "TRYAGAIN", "ASK", "MOVED"})
_CODE = re.compile(r"[A-Z]{3,}\b")
_IN_PIPELINE = re.compile(r"^Command # \d+ .* caused error: \W*", re.DOTALL)  # redis-py's wording
_RUN = re.compile(r"no permissions to run the '([^']+)' command")
_TEXTS = {
    "ACL failure in script": "NOPERM",
    "no permissions": "NOPERM",
    "max number of clients reached": "MAXCLIENTS",
    "protected mode": "DENIED",
    "unknown command": "UNKNOWN",
    # redis-py's wordings.
    "not covered": "CLUSTERDOWN",
    "Cluster mode is not enabled": "NOCLUSTER",
}


class LackedRights(exceptions.NoPermissionError):
    """The user of Redis lacks rights. `rights` have the form that `ACL SETUSER` takes."""

    def __init__(self, rights: Iterable[str]) -> None:
        self.rights = " ".join(rights)
        super().__init__(f"the user of Redis lacks {self.rights}", status_code="NOPERM")


class RedisTooOld(exceptions.ResponseError):
    """The server is too old for the scripts."""

    def __init__(self, version: str) -> None:
        self.version = version
        super().__init__(f"this is Redis {version}; Redis 7.0 or newer, or any Valkey, is needed", status_code="OLD")


def code_of(error: BaseException) -> str | None:
    """Return the code of an error that Redis answered; None if Redis did not answer."""
    text = _IN_PIPELINE.sub("", str(error))
    for words, code in _TEXTS.items():
        if words.lower() in text.lower():
            return code
    told = getattr(error, "status_code", None)
    if isinstance(told, str) and told != "ERR":
        return told
    if not isinstance(error, exceptions.ResponseError):
        return None
    found = _CODE.match(text)
    return found[0] if found else "ERR"


def named_right(error: BaseException) -> str | None:
    """Return the lacking right that an error names; None if the error names no command."""
    found = _RUN.search(str(error))
    return f"+{found[1]}" if found else None


@dataclass(eq=False)
class Refusals:
    """The errors that Redis answered to a client. An episode ends when a probe passes; after MISCONF, when probes
    have passed for `_SETTLED_SECONDS`."""

    # True: the client's Redis is the embedded Valkey.
    embedded: bool = False
    # The last error that Redis answered, and the remedy.
    diagnosis: Diagnosis | None = None
    # The lacking rights for announcements. Without them workers look each second.
    mute: set[str] = field(default_factory=set)
    # Rings when an episode begins, and at each new code.
    bell: Bell = field(default_factory=Bell)
    _code: str | None = None
    _codes: set[str] = field(default_factory=set)
    _count: int = 0
    _since: float = 0.0
    _passing_since: float | None = None

    @property
    def lasts(self) -> bool:
        """Return whether an episode lasts."""
        return bool(self._codes)

    @property
    def is_misconf(self) -> bool:
        """Return whether the last error was MISCONF: Redis can't write its file."""
        return self._code == "MISCONF"

    def note(self, error: BaseException) -> str | None:
        """Record an error, and return its code. An error that Redis answered begins an episode."""
        self._code = code = code_of(error)
        if code is None:
            return None
        _FAILURES.inc()
        self.diagnosis = self._diagnose(code, error)
        if not self._codes:
            self._since, self._count = time.monotonic(), 0
        self._count += 1
        self._passing_since = None
        if code not in self._codes:
            level = logging.WARNING if code in _MOMENTARY else logging.ERROR
            what = "Redis takes no writes for now" if code in _MOMENTARY else "Redis refuses what it is asked"
            logger.log(level, what, extra={"error": code, "reason": str(error), "remedy": self.diagnosis.do})
            self._codes.add(code)
            self.bell.ring()
        return code

    def _diagnose(self, code: str, error: BaseException) -> Diagnosis:
        if code == "MISCONF" and self.embedded:
            return reasons.EMBEDDED_MISCONF()
        lacking = error.rights if isinstance(error, LackedRights) else named_right(error) or "a right"
        version = error.version if isinstance(error, RedisTooOld) else ""
        return reasons.REFUSALS.get(code, reasons.REDIS_REFUSES)(code=code, rights=lacking, version=version)

    def passed(self) -> None:
        """Record that a probe passed."""
        now = time.monotonic()
        if self._passing_since is None:
            self._passing_since = now
        if self._codes and ("MISCONF" not in self._codes or now - self._passing_since >= _SETTLED_SECONDS):
            facts = {"errors": sorted(self._codes), "refused": self._count, "seconds": round(now - self._since, 1)}
            logger.warning("Redis takes everything again", extra=facts)
            self._codes.clear()
        if not self._codes:
            self.diagnosis = self._code = None


_of_clients: "WeakKeyDictionary[Any, Refusals]" = WeakKeyDictionary()


def refusals_of(redis: Any) -> Refusals:
    """Return the refusals of a client."""
    return _of_clients.setdefault(redis, Refusals())
