"""The work of a bulk operation: the names, their order, and the new names.

The names below a moved prefix are taken in spans. If the target is above the source (`a/` becomes the top), a file may move
to a name that another moved file still has: `a/a/x` to `a/x`. So there are several passes, by the number of times that the
removed segments repeat after the source: first `a/x`, then `a/a/x`. Each pass moves files to names that the pass before
freed.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from uploader.domain.names import MAX_NAME_BYTES, folders_of, normalise_name
from uploader.domain.upload import IfExists
from uploader.errors import InvalidRequest


class Verb(StrEnum):
    MOVE = "move"
    DELETE = "delete"


# A range of names, byte by byte: the first name is included, the second is not.
Span = tuple[bytes, bytes]


def beyond(prefix: bytes) -> bytes:
    """Return the first name after all names with a prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])  # in UTF-8 no byte is the largest one


@dataclass(frozen=True)
class Part:
    """The names below one prefix, to be moved to another prefix or, with None, deleted."""

    source: str
    target: str | None = None

    @property
    def goes_up(self) -> bool:
        """Return whether moved names may still be below the source."""
        return self.target is not None and self.source.startswith(self.target)

    @cached_property
    def _is_folder(self) -> bool:
        """Return whether whole segments are replaced. Then the rest of a name stays valid."""
        return self.source.endswith("/") and (self.target == "" or str(self.target).endswith("/"))

    @cached_property
    def _limit_bytes(self) -> int:
        """Return the length of the longest name below the source that stays valid below the target."""
        target = str(self.target)
        normalise_name(f"{target}x" if target.endswith("/") or not target else target)
        return MAX_NAME_BYTES + len(self.source.encode()) - len(target.encode())

    def moved(self, name: str) -> str:
        """Return the new name of a file. Raises InvalidRequest."""
        target = str(self.target) + name.removeprefix(self.source)
        try:
            if self._is_folder and len(name.encode()) <= self._limit_bytes:
                return target
            return normalise_name(target)
        except ValueError as error:
            raise InvalidRequest.field("prefix", f"makes a name that {error}") from error

    def moved_folder(self, name: str) -> str:
        """Return the new name of a folder, with its slash; empty for the top. Raises InvalidRequest."""
        target = str(self.target) + name.removeprefix(self.source)
        folder = target[: target.rfind("/")]
        try:
            return f"{normalise_name(folder)}/" if folder else ""
        except ValueError as error:
            raise InvalidRequest.field("prefix", f"makes a name that {error}") from error

    def below(self, number: int) -> bytes:
        """Return the prefix of all names of a pass and of later passes."""
        removed = self.source[len(self.target or "") :] if self.goes_up else ""
        return (self.source + removed * number).encode()

    def spans(self, number: int) -> list[Span]:
        """Return the spans of the names of a pass."""
        first = self.below(number)
        if not self.goes_up:
            return [(first, beyond(first))]
        deeper = self.below(number + 1)
        spans, last = [], first
        for name in sorted(name.encode() for name in self.last_names) if number == 0 else ():
            spans.append((last, name))
            last = name + b"\0"
        return [*spans, (last, deeper), (beyond(deeper), beyond(first))]

    @cached_property
    def last_names(self) -> list[str]:
        """Return the names of files that would move to the name of a folder above the source. They move last, when the
        folder has nothing else."""
        if not self.goes_up:
            return []
        target = str(self.target)
        above = [name for name in folders_of(f"{self.source}x") if len(name) > len(target) and name.startswith(target)]
        return [self.source + name[len(target) :] for name in above]


@dataclass(frozen=True)
class Work:
    """The call of a user, stored to be resumed after a crash."""

    verb: Verb
    parts: tuple[Part, ...]
    ids: tuple[str, ...] = ()
    _: KW_ONLY
    # The folder that the files in `ids` move into.
    folder: str = ""
    if_exists: IfExists = IfExists.FAIL
    # Delete also held files and open uploads.
    cancels: bool = False

    def encoded(self) -> bytes:
        parts = [[part.source, part.target] for part in self.parts]
        facts = {"verb": self.verb, "parts": parts, "ids": self.ids, "folder": self.folder}
        return json.dumps(facts | {"if_exists": self.if_exists, "cancels": self.cancels}).encode()

    @classmethod
    def decoded(cls, raw: bytes) -> "Work":
        facts: dict[str, Any] = json.loads(raw)
        verb, if_exists = Verb(facts.pop("verb")), IfExists(facts.pop("if_exists"))
        parts, ids = tuple(Part(*part) for part in facts.pop("parts")), tuple(facts.pop("ids"))
        return cls(verb, parts, ids, if_exists=if_exists, **facts)

    @property
    def digest(self) -> str:
        """Equal for equal calls."""
        return hashlib.sha256(self.encoded()).hexdigest()

    def contradicts(self, other: "Work") -> bool:
        """Return whether the order of the two operations changes the outcome."""
        if set(self.ids) & set(other.ids):
            return True
        return any(one.startswith(two) or two.startswith(one) for one in self._prefixes() for two in other._prefixes())

    def _prefixes(self) -> Iterable[str]:
        for part in self.parts:
            yield part.source
            if part.target is not None:
                yield part.target
        if self.ids and self.verb is Verb.MOVE:
            yield self.folder
