"""The address that clients see: a public URL, or the `root_path` of the application that contains this server. `Application`
strips its prefix from requested paths; `operation.public_path` adds it to paths in answers. This module does not know the
routes: `lookalikes` compares the routes of its caller, and the start refuses a prefix that makes two of them ambiguous.
"""

import re
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import product
from typing import Self
from urllib.parse import quote

# Scheme and host of a URL.
_ORIGIN = re.compile(r"https?://[^/]+")
# Path parameters that match only some words.
_NARROW = {"{md5}": re.compile("[0-9a-fA-F]{32}"), "{n}": re.compile("[0-9]+")}


@dataclass(frozen=True, slots=True)
class Mount:
    """The address of the server for its clients. `origin` is empty if no public URL is set: then requests name the host."""

    origin: str = ""
    prefix: str = ""

    @classmethod
    def at(cls, public_url: str | None) -> Self:
        """Split a public URL without a trailing slash."""
        if public_url is None:
            return cls()
        origin = _ORIGIN.match(public_url)
        assert origin is not None
        return cls(origin[0], public_url[origin.end() :])

    def of_request(self, root_path: str) -> "Mount":
        """Return this mount; without a public URL, a mount below the `root_path` of the surrounding application."""
        return self if self.origin else Mount("", quote(root_path))


def inside(path: str, prefix: str) -> str | None:
    """Return the path without the prefix; None if the path is not below the prefix."""
    if not path.startswith(prefix):
        return None
    left = path[len(prefix) :]
    return left if left.startswith("/") else None if left else "/"


_HERE = Mount()
# The mount of the request that this task answers.
mount_of_request: ContextVar[Mount] = ContextVar("mount", default=_HERE)


def leave_mount() -> None:
    mount_of_request.set(_HERE)


def lookalikes(prefix: str, paths: Iterable[str]) -> tuple[str, str] | None:
    """Find a route whose paths become paths of another route when the prefix is stripped. Return both routes, or None."""
    routes = [(path, path.split("/")[1:]) for path in paths]
    for (path, segments), (other, others) in product(routes, routes):
        if any(_overlap(left, others) for left in _left_of(segments, prefix.split("/")[1:])):
            return path, other
    return None


def _left_of(segments: list[str], prefix: list[str]) -> Iterator[list[str]]:
    """Yield the rest of the route after the prefix, for paths of the route that begin with the prefix."""
    for at, word in enumerate(prefix):
        if at < len(segments) and segments[at].endswith(":path}"):
            yield ["{rest:path}"]
            return
        if at == len(segments) or not _may_be(segments[at], word):
            return
    yield segments[len(prefix) :] or [""]


def _overlap(one: list[str], other: list[str]) -> bool:
    """Return True if some path matches both routes."""
    for mine, its in zip(one, other, strict=False):
        if mine.endswith(":path}") or its.endswith(":path}"):
            return True
        if not (_may_be(mine, its) or _may_be(its, mine)):
            return False
    return len(one) == len(other)


def _may_be(segment: str, word: str) -> bool:
    """Return True if a route's segment matches a word, or may match another parameter."""
    if segment == word or not segment.startswith("{"):
        return segment == word
    if word.startswith("{"):
        return True
    narrow = _NARROW.get(segment)
    return bool(word) and (narrow is None or narrow.fullmatch(word) is not None)
