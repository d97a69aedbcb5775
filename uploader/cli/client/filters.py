"""Matches names against patterns, and selects files by `--exclude`, `--include` and `--files-from`. Pure, except for reading
the list.

Patterns use the wildcards of shells: `*`, `?` and `[…]` within a segment of a name, `**` for any number of segments. Filters
follow .gitignore: a pattern with a `/` before its end applies to the whole path, otherwise to a name in any folder; a final
`/` selects folders only. A pattern that matches a folder matches all its files. The first matching rule decides; without a
match, a file is taken unless all rules are includes. Each file is decided on its own.
"""

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from fnmatch import translate
from typing import IO

from uploader.client.plan import folders_of

_MAGIC = re.compile(r"[*?[]")

# A segment of a pattern; None for `**`.
_Part = Callable[[str], object] | None


def is_pattern(word: str) -> bool:
    return _MAGIC.search(word) is not None


class Pattern:
    def __init__(self, word: str) -> None:
        fixed = _MAGIC.split(word, maxsplit=1)[0]
        # The common beginning of all matching names, and their common folder.
        self.prefix = fixed
        self.base = fixed[: fixed.rfind("/") + 1]
        self._folders_only = word.endswith("/")
        self._parts = [_part(text) for text in word.rstrip("/").split("/")]

    def match(self, name: str) -> str | None:
        """Return the matching part of a name: the whole name, or a folder with a final slash; None without a match."""
        parts = name.split("/")
        if not self._folders_only and _fits(self._parts, parts):
            return name
        for depth in range(1, len(parts)):
            if _fits(self._parts, parts[:depth]):
                return "/".join(parts[:depth]) + "/"
        return None


def _part(text: str) -> _Part:
    return None if text == "**" else re.compile(translate(text)).match


def _fits(pattern: Sequence[_Part], parts: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    first, *rest = pattern
    if first is None:
        return any(_fits(rest, parts[count:]) for count in range(len(parts) + 1))
    return bool(parts) and first(parts[0]) is not None and _fits(rest, parts[1:])


class Rule:
    def __init__(self, pattern: str, *, includes: bool) -> None:
        """Raises ValueError."""
        text = unicodedata.normalize("NFC", pattern)
        if not text.strip("/"):
            raise ValueError(f"{pattern!r} matches nothing")
        self.includes = includes
        self._pattern = Pattern(text.lstrip("/") if "/" in text.rstrip("/") else f"**/{text}")

    def matches(self, path: str) -> bool:
        return self._pattern.match(path) is not None

    def matches_folder(self, path: str) -> bool:
        return (self._pattern.match(f"{path}/\0") or "").endswith("/")  # no file has this name


class Filters:
    """All rules in order, and the files and folders of a list, if given."""

    def __init__(self, rules: Sequence[Rule] = (), listed: Iterable[str] | None = None) -> None:
        self._rules = rules
        self._otherwise = not rules or not all(rule.includes for rule in rules)
        self.listed = None if listed is None else {unicodedata.normalize("NFC", path) for path in listed}
        self._towards = {folder for path in self.listed or () for folder in folders_of(path)}

    def __bool__(self) -> bool:
        return bool(self._rules) or self.listed is not None

    def only(self, listed: Iterable[str]) -> "Filters":
        return Filters(self._rules, listed)

    def take(self, path: str) -> bool:
        """Return True if a file is taken, by its relative path."""
        path = unicodedata.normalize("NFC", path)
        if not self._is_listed(path):
            return False
        return next((rule.includes for rule in self._rules if rule.matches(path)), self._otherwise)

    def leave_out(self, path: str) -> bool:
        """Return True if a file is left out, or if a folder (final slash) cannot contain a file that is taken."""
        if not path.endswith("/"):
            return not self.take(path)
        folder = unicodedata.normalize("NFC", path[:-1])
        if not self._is_listed(folder) and folder not in self._towards:
            return True
        for rule in self._rules:
            if rule.includes:
                return False  # a file in the folder may be included
            if rule.matches_folder(folder):
                return True
        return False

    def _is_listed(self, path: str) -> bool:
        if self.listed is None or path in self.listed:
            return True
        return any(folder in self.listed for folder in folders_of(path))


def listed_in(opened: IO[bytes]) -> list[str]:
    """Return the relative paths of a list, one per line, without duplicates, in order. Raises ValueError."""
    listed: dict[str, None] = {}
    for number, line in enumerate(opened.read().split(b"\n"), 1):
        path = os.fsdecode(line.removesuffix(b"\r")).replace(os.sep, "/")
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if path.startswith("/") or os.path.splitdrive(path)[0] or ".." in parts:
            raise ValueError(f"line {number} is not a path below a folder: {path!r}")
        if parts:
            listed["/".join(parts)] = None
    return list(listed)
