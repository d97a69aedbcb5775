"""Knows the address that clients see: a public URL, or the `root_path` of the application that the server is part of.
`Application` takes its prefix off what they ask for, `operation.public_path` puts it before each path that they are told.

Knows no route by itself: those that a prefix makes look like others are compared here, for the start to refuse.
"""

import re
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import product
from typing import Self
from urllib.parse import quote

# The first part of a URL with a host.
_ORIGIN = re.compile(r"https?://[^/]+")
# Parameters that can't be any word, as routes have them.
_NARROW = {"{md5}": re.compile("[0-9a-fA-F]{32}"), "{n}": re.compile("[0-9]+")}


@dataclass(frozen=True, slots=True)
class Mount:
    """`origin` is empty where no public URL is set: then it is the client who knows it."""

    origin: str = ""
    prefix: str = ""

    @classmethod
    def at(cls, public_url: str | None) -> Self:
        """`public_url` has no slash at its end."""
        if public_url is None:
            return cls()
        origin = _ORIGIN.match(public_url)
        assert origin is not None
        return cls(origin[0], public_url[origin.end() :])

    def of_request(self, root_path: str) -> "Mount":
        """Return itself, or, where no public URL is set, what the application around this one tells."""
        return self if self.origin else Mount("", quote(root_path))


def inside(path: str, prefix: str) -> str | None:
    """Return a path without the prefix; None if it is not below it."""
    if not path.startswith(prefix):
        return None
    left = path[len(prefix) :]
    return left if left.startswith("/") else None if left else "/"


_HERE = Mount()
# Of the request that is answered in this task.
mount_of_request: ContextVar[Mount] = ContextVar("mount", default=_HERE)


def leave_mount() -> None:
    mount_of_request.set(_HERE)


def lookalikes(prefix: str, paths: Iterable[str]) -> tuple[str, str] | None:
    """Find a route whose requests, without the prefix, would be those of another one; None if there is none."""
    routes = [(path, path.split("/")[1:]) for path in paths]
    for (path, segments), (other, others) in product(routes, routes):
        if any(_overlap(left, others) for left in _left_of(segments, prefix.split("/")[1:])):
            return path, other
    return None


def _left_of(segments: list[str], prefix: list[str]) -> Iterator[list[str]]:
    """Yield what is left of a route, of those of its paths that begin with the prefix."""
    for at, word in enumerate(prefix):
        if at < len(segments) and segments[at].endswith(":path}"):
            yield ["{rest:path}"]
            return
        if at == len(segments) or not _may_be(segments[at], word):
            return
    yield segments[len(prefix) :] or [""]


def _overlap(one: list[str], other: list[str]) -> bool:
    """Return whether a path may be of both routes."""
    for mine, its in zip(one, other, strict=False):
        if mine.endswith(":path}") or its.endswith(":path}"):
            return True
        if not (_may_be(mine, its) or _may_be(its, mine)):
            return False
    return len(one) == len(other)


def _may_be(segment: str, word: str) -> bool:
    """Return whether a segment of a route is, or stands for, a word or another parameter."""
    if segment == word or not segment.startswith("{"):
        return segment == word
    if word.startswith("{"):
        return True
    narrow = _NARROW.get(segment)
    return bool(word) and (narrow is None or narrow.fullmatch(word) is not None)
